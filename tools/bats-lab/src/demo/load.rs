//! Built-in TCP load: a source that writes for some seconds, and a sink that counts bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::json;

use crate::interrupt;
use crate::shortage::{ACCEPT_PAUSE, is_temporary_accept, may_retry};

/// Timeout of reads and writes, after which the time is checked.
const IO_TIMEOUT: Duration = Duration::from_millis(50);

/// Accepts one connection and prints the bytes received in each `interval`, in the JSON format of
/// iperf3.
pub(crate) fn sink(port: u16, interval: Duration) -> Result<()> {
    interrupt::watch()?;
    let listener = TcpListener::bind(("0.0.0.0", port))
        .with_context(|| format!("cannot listen on port {port}"))?;
    listener.set_nonblocking(true)?;
    let mut stream = loop {
        interrupt::check()?;
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) if is_temporary_accept(&error) => std::thread::sleep(ACCEPT_PAUSE),
            Err(error) => return Err(error).context("cannot accept a connection"),
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(IO_TIMEOUT.min(interval)))?;
    let start = Instant::now();
    let mut buffer = vec![0; 1 << 18];
    let mut intervals = Vec::new();
    let (mut begin, mut bytes) = (0.0, 0u64);
    loop {
        let ended = interrupt::requested()
            || match stream.read(&mut buffer) {
                Ok(0) => true,
                Ok(count) => {
                    bytes += count as u64;
                    false
                }
                Err(error) => !may_retry(&error),
            };
        let now = start.elapsed().as_secs_f64();
        if now - begin >= interval.as_secs_f64() || ended {
            let seconds = now - begin;
            if seconds > 0.0 {
                intervals.push(json!({ "sum": {
                    "start": begin, "end": now, "seconds": seconds, "bytes": bytes,
                    "bits_per_second": bytes as f64 * 8.0 / seconds,
                }}));
            }
            (begin, bytes) = (now, 0);
        }
        if ended {
            break;
        }
    }
    outln!("{}", json!({ "intervals": intervals }));
    Ok(())
}

/// Writes for `seconds`, then closes the connection without waiting.
pub(crate) fn source(to: SocketAddr, seconds: u64, congestion: &str) -> Result<()> {
    let mut stream = TcpStream::connect(to).with_context(|| format!("cannot reach {to}"))?;
    setsockopt(&stream, sockopt::TcpCongestion, &congestion.into())
        .with_context(|| format!("this kernel has no congestion control `{congestion}`"))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let block = vec![0x5a; 1 << 18];
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) {
        match stream.write(&block) {
            Ok(_) => {}
            Err(error) if may_retry(&error) => {}
            Err(error) => return Err(error).context("the connection failed"),
        }
    }
    Ok(())
}
