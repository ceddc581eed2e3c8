//! Echo measurements: messages are sent back and timed, over TCP, UDP, QUIC and OpenBATS.
//!
//! Messages are due on a fixed schedule, and round-trip times start at the due time. A blocked
//! sender therefore shows in the results.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::socket::{setsockopt, sockopt};
use openbats::{ClientOptions, Endpoint, Identity, Mode, ServerOptions, Trust, Wait};
use serde_json::json;

use super::quic;
use crate::interrupt;
use crate::shortage::{ACCEPT_PAUSE, is_temporary_accept, may_retry};

/// How long the last reply may take.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum length of a message in bytes.
const MAX_MESSAGE: usize = 60_000;

/// The transport of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum EchoTransport {
    /// The kernel's TCP
    Tcp,
    /// The kernel's UDP
    Udp,
    /// OpenBATS, BTP (unreliable)
    Btp,
    /// OpenBATS, BRTP (reliable)
    Brtp,
    /// OpenBATS, BRCTP (reliable, rateless code of RFC 9426)
    Brctp,
    /// OpenBATS, transparent (no coding)
    Transparent,
    /// QUIC by quinn
    Quic,
}

/// The schedule of messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pub(crate) count: u64,
    pub(crate) size: usize,
    pub(crate) interval: Duration,
}

impl Schedule {
    /// The due time of a message since the start.
    pub(crate) fn due(&self, number: u64) -> Duration {
        Duration::from_nanos((self.interval.as_nanos() as u64).saturating_mul(number))
    }

    /// A message: its number, then filler bytes derived from the number.
    pub(crate) fn message(&self, number: u64) -> Vec<u8> {
        let mut message = vec![number as u8; self.size];
        message[..8].copy_from_slice(&number.to_le_bytes());
        message
    }
}

/// The number of a message.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn parse_number(message: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*message.first_chunk()?))
}

/// Results so far, shared by the sending and the receiving thread.
#[derive(Default)]
pub(crate) struct RttRecord(Mutex<Times>);

#[derive(Default)]
struct Times {
    sent: u64,
    /// Due times in seconds and round-trip times in milliseconds.
    round_trips: Vec<(f64, f64)>,
    seen: std::collections::BTreeSet<u64>,
}

impl RttRecord {
    /// Counts a sent message.
    pub(crate) fn sent(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).sent += 1;
    }

    /// Records a reply; true if all replies have arrived.
    pub(crate) fn arrived(&self, schedule: &Schedule, start: Instant, message: &[u8]) -> bool {
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = parse_number(message);
        if let Some(number) = number.filter(|&number| number < schedule.count)
            && times.seen.insert(number)
        {
            let due = schedule.due(number);
            let time = start.elapsed().saturating_sub(due);
            times.round_trips.push((due.as_secs_f64(), time.as_secs_f64() * 1e3));
        }
        times.seen.len() as u64 >= schedule.count
    }
}

/// Echoes all messages until interrupted.
pub(crate) fn serve(transport: EchoTransport, port: u16) -> Result<()> {
    match transport {
        EchoTransport::Tcp => serve_tcp(port),
        EchoTransport::Udp => serve_udp(port),
        EchoTransport::Btp
        | EchoTransport::Brtp
        | EchoTransport::Brctp
        | EchoTransport::Transparent => serve_bats(port),
        EchoTransport::Quic => quic::echo(port),
    }
}

fn serve_tcp(port: u16) -> Result<()> {
    interrupt::watch()?;
    let listener = TcpListener::bind(("0.0.0.0", port))
        .with_context(|| format!("cannot listen on port {port}"))?;
    listener.set_nonblocking(true)?;
    while !interrupt::requested() {
        match listener.accept() {
            Ok((mut stream, _)) => {
                // Without a thread for it, the connection is closed.
                let _ = std::thread::Builder::new().spawn(move || {
                    let _ = stream.set_nonblocking(false);
                    let _ = stream.set_nodelay(true);
                    let mut buffer = vec![0; MAX_MESSAGE];
                    while let Ok(count @ 1..) = stream.read(&mut buffer) {
                        if stream.write_all(&buffer[..count]).is_err() {
                            break;
                        }
                    }
                });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) if is_temporary_accept(&error) => std::thread::sleep(ACCEPT_PAUSE),
            Err(error) => return Err(error).context("the listener failed"),
        }
    }
    Ok(())
}

fn serve_udp(port: u16) -> Result<()> {
    interrupt::watch()?;
    let socket = UdpSocket::bind(("0.0.0.0", port))
        .with_context(|| format!("cannot listen on port {port}"))?;
    socket.set_read_timeout(Some(POLL_INTERVAL))?;
    let mut buffer = vec![0; 65_536];
    while !interrupt::requested() {
        match socket.recv_from(&mut buffer) {
            Ok((count, from)) => {
                // Datagrams that cannot be sent back are lost, as on a link.
                let _ = socket.send_to(&buffer[..count], from);
            }
            Err(error) if may_retry(&error) => {}
            Err(error) => return Err(error).context("the socket failed"),
        }
    }
    Ok(())
}

fn serve_bats(port: u16) -> Result<()> {
    interrupt::watch()?;
    let endpoint = Endpoint::builder()
        .bind(SocketAddr::from(([0, 0, 0, 0], port)))
        .server(ServerOptions::new(Identity::generate(&["lab"])?).modes([
            Mode::Btp,
            Mode::Brtp,
            Mode::Brctp,
            Mode::Transparent,
        ]))
        .start()?;
    std::thread::scope(|scope| {
        let accepting = &endpoint;
        scope.spawn(move || {
            while let Ok(connection) = accepting.accept().wait() {
                let _ = std::thread::Builder::new().spawn(move || {
                    while let Ok(Some(message)) = connection.recv().wait() {
                        if connection.send(message).wait().is_err() {
                            break;
                        }
                    }
                    let _ = connection.finish().wait();
                });
            }
        });
        while !interrupt::requested() {
            std::thread::sleep(POLL_INTERVAL);
        }
        endpoint.shut_down(0, "the echo server ends");
    });
    Ok(())
}

/// Parameters of `__rtt`.
#[derive(Clone, Debug)]
pub(crate) struct RttRequest {
    pub(crate) transport: EchoTransport,
    pub(crate) to: SocketAddr,
    pub(crate) schedule: Schedule,
    /// Number of connections of which only the first message is measured.
    pub(crate) first: Option<u32>,
    pub(crate) congestion: Option<String>,
}

/// Measures, and prints the results as JSON.
pub(crate) fn measure(request: &RttRequest) -> Result<()> {
    interrupt::watch()?;
    if !(16..=MAX_MESSAGE).contains(&request.schedule.size) {
        bail!("the message size must be 16 to {MAX_MESSAGE} bytes");
    }
    let mut connects = Vec::new();
    let (mut sent, mut round_trips) = (0, Vec::new());
    let rounds = request.first.unwrap_or(1);
    for round in 0..rounds {
        interrupt::check()?;
        let record = RttRecord::default();
        let schedule = if request.first.is_some() {
            Schedule { count: 1, ..request.schedule }
        } else {
            request.schedule
        };
        let connected = measure_connection(request, &schedule, &record);
        let times = record.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let connect = match connected {
            Ok(connect) => connect,
            // Rounds may fail on a lossy link; the message counts as unanswered.
            Err(_) if request.first.is_some() => {
                sent += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        connects.push((f64::from(round), connect));
        sent += times.sent;
        match request.first {
            Some(_) => {
                round_trips.extend(times.round_trips.first().map(|time| (f64::from(round), time.1)))
            }
            None => round_trips = times.round_trips,
        }
    }
    round_trips.sort_by(|a, b| a.0.total_cmp(&b.0));
    outln!(
        "{}",
        json!({
            "sent": sent, "round_trips": round_trips, "connects": connects,
            "first": request.first.is_some(),
        })
    );
    Ok(())
}

/// Measures over one connection; returns its setup time in milliseconds.
fn measure_connection(
    request: &RttRequest,
    schedule: &Schedule,
    record: &RttRecord,
) -> Result<f64> {
    match request.transport {
        EchoTransport::Tcp => over_tcp(request, schedule, record),
        EchoTransport::Udp => over_udp(request.to, schedule, record),
        EchoTransport::Btp => over_bats(request.to, Mode::Btp, schedule, record),
        EchoTransport::Brtp => over_bats(request.to, Mode::Brtp, schedule, record),
        EchoTransport::Brctp => over_bats(request.to, Mode::Brctp, schedule, record),
        EchoTransport::Transparent => over_bats(request.to, Mode::Transparent, schedule, record),
        EchoTransport::Quic => {
            let congestion = request.congestion.as_deref().unwrap_or("cubic");
            quic::messages(request.to, congestion, schedule, record)
        }
    }
}

/// Sends messages on schedule with `send`, on the calling thread.
fn send_on_schedule(
    schedule: &Schedule,
    start: Instant,
    record: &RttRecord,
    mut send: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    for number in 0..schedule.count {
        std::thread::sleep(
            (start + schedule.due(number)).saturating_duration_since(Instant::now()),
        );
        interrupt::check()?;
        record.sent();
        send(&schedule.message(number))?;
    }
    Ok(())
}

fn over_tcp(request: &RttRequest, schedule: &Schedule, record: &RttRecord) -> Result<f64> {
    let connect_start = Instant::now();
    let timeout = Duration::from_secs(30);
    let mut stream = TcpStream::connect_timeout(&request.to, timeout)
        .with_context(|| format!("cannot reach {}", request.to))?;
    let connected = connect_start.elapsed().as_secs_f64() * 1e3;
    if let Some(congestion) = &request.congestion {
        setsockopt(&stream, sockopt::TcpCongestion, &congestion.as_str().into())
            .with_context(|| format!("this kernel has no congestion control `{congestion}`"))?;
    }
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(POLL_INTERVAL))?;
    let start = Instant::now();
    let mut reading = stream.try_clone()?;
    let end = start + schedule.due(schedule.count) + REPLY_TIMEOUT;
    std::thread::scope(|scope| {
        let replies = scope.spawn(move || {
            let mut message = vec![0; schedule.size];
            let mut filled = 0;
            while Instant::now() < end && !interrupt::requested() {
                match reading.read(&mut message[filled..]) {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    Err(error) if may_retry(&error) => continue,
                    Err(_) => break,
                }
                if filled == schedule.size {
                    filled = 0;
                    if record.arrived(schedule, start, &message) {
                        break;
                    }
                }
            }
        });
        let sent = send_on_schedule(schedule, start, record, |message| {
            stream.write_all(message).context("the connection failed")
        });
        let _ = replies.join();
        sent
    })?;
    Ok(connected)
}

fn over_udp(to: SocketAddr, schedule: &Schedule, record: &RttRecord) -> Result<f64> {
    let socket = UdpSocket::bind("0.0.0.0:0").context("cannot open a socket")?;
    socket.connect(to).with_context(|| format!("cannot reach {to}"))?;
    socket.set_read_timeout(Some(POLL_INTERVAL))?;
    let start = Instant::now();
    // Replies to lost datagrams never arrive, so the final wait is short.
    let end = start + schedule.due(schedule.count) + Duration::from_secs(2);
    std::thread::scope(|scope| {
        let socket = &socket;
        let replies = scope.spawn(move || {
            let mut message = vec![0; schedule.size];
            while Instant::now() < end && !interrupt::requested() {
                match socket.recv(&mut message) {
                    Ok(_) if record.arrived(schedule, start, &message) => break,
                    Ok(_) => {}
                    Err(error) if may_retry(&error) => {}
                    // No server listens there yet.
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        let sent = send_on_schedule(schedule, start, record, |message| {
            let _ = socket.send(message);
            Ok(())
        });
        let _ = replies.join();
        sent
    })?;
    Ok(0.0)
}

fn over_bats(to: SocketAddr, mode: Mode, schedule: &Schedule, record: &RttRecord) -> Result<f64> {
    let endpoint = Endpoint::builder().start()?;
    let connect_start = Instant::now();
    let options = ClientOptions::new(Trust::dangerous_any()).mode(mode);
    let connection = endpoint
        .connect(to, "lab", options)
        .wait()
        .with_context(|| format!("cannot reach {to}"))?;
    let connected = connect_start.elapsed().as_secs_f64() * 1e3;
    let start = Instant::now();
    // Replies to lost messages never arrive, so the final wait is short.
    let is_lossy = matches!(mode, Mode::Btp | Mode::Transparent);
    let timeout = if is_lossy { Duration::from_secs(2) } else { REPLY_TIMEOUT };
    let end = start + schedule.due(schedule.count) + timeout;
    std::thread::scope(|scope| {
        let connection = &connection;
        let replies = scope.spawn(move || {
            while Instant::now() < end && !interrupt::requested() {
                match connection.recv().wait_for(POLL_INTERVAL) {
                    Ok(Ok(Some(message))) if record.arrived(schedule, start, &message) => break,
                    Ok(Ok(Some(_))) | Err(_) => {}
                    Ok(Ok(None) | Err(_)) => break,
                }
            }
        });
        let sent = send_on_schedule(schedule, start, record, |message| {
            connection.send(message.to_vec()).wait().context("the connection failed")
        });
        let _ = replies.join();
        sent
    })?;
    connection.close(0, "done");
    Ok(connected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_count_once_and_from_the_due_time() {
        let schedule = Schedule { count: 2, size: 16, interval: Duration::from_millis(10) };
        let record = RttRecord::default();
        let start = Instant::now() - Duration::from_millis(30);
        assert!(!record.arrived(&schedule, start, &schedule.message(1)));
        assert!(!record.arrived(&schedule, start, &schedule.message(1)));
        assert!(!record.arrived(&schedule, start, &schedule.message(7)));
        assert!(record.arrived(&schedule, start, &schedule.message(0)));
        let times = record.0.into_inner().unwrap();
        assert_eq!(times.round_trips.len(), 2);
        assert!(times.round_trips[0].1 >= 20.0 && times.round_trips[1].1 >= 30.0);
        assert_eq!(times.round_trips[0].0, 0.01);
    }
}
