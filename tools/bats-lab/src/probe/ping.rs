//! Round-trip times of small datagrams that the other host echoes.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::interrupt;
use crate::namespace::Namespaces;
use crate::shortage::may_retry;

/// Round-trip times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PingResult {
    /// Datagrams sent.
    pub(crate) sent: u64,
    /// Datagrams that were echoed.
    pub(crate) received: u64,
    /// The minimum.
    pub(crate) min: Duration,
    /// The median.
    pub(crate) median: Duration,
    /// The maximum.
    pub(crate) max: Duration,
}

/// Sends `count` datagrams, 5 ms apart, from one namespace to `address` in another and back.
pub(crate) fn ping(
    namespaces: &Namespaces,
    from: &str,
    to: &str,
    address: IpAddr,
    count: u64,
    last_packet_timeout: Duration,
) -> Result<PingResult> {
    let echo = namespaces.within(to, || {
        let socket = UdpSocket::bind(SocketAddr::new(address, 0))
            .with_context(|| format!("cannot listen on {address}"))?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        Ok(socket)
    })?;
    let target = echo.local_addr()?;
    let near = namespaces.within(from, || {
        let socket = UdpSocket::bind("0.0.0.0:0").context("cannot open a socket")?;
        socket.connect(target).with_context(|| format!("cannot reach {target}"))?;
        Ok(socket)
    })?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| echo_datagrams(&echo, &done));
        let result = measure(&near, count, last_packet_timeout);
        done.store(true, Ordering::Relaxed);
        result
    })
}

fn echo_datagrams(socket: &UdpSocket, done: &AtomicBool) {
    let mut buffer = [0; 64];
    while !done.load(Ordering::Relaxed) {
        match socket.recv_from(&mut buffer) {
            // A datagram that cannot be echoed counts as lost.
            Ok((length, peer)) => drop(socket.send_to(&buffer[..length], peer)),
            Err(error) => _ = may_retry(&error),
        }
    }
}

fn measure(socket: &UdpSocket, count: u64, last_packet_timeout: Duration) -> Result<PingResult> {
    const INTERVAL: Duration = Duration::from_millis(5);
    let mut sent_at = Vec::new();
    let mut times: Vec<Option<Duration>> = Vec::new();
    let start = Instant::now();
    let mut buffer = [0; 64];
    loop {
        interrupt::check()?;
        let now = Instant::now();
        let due = start + INTERVAL * sent_at.len() as u32;
        let deadline = if (sent_at.len() as u64) < count {
            if now >= due {
                socket.send(&(sent_at.len() as u64).to_be_bytes()).context("cannot send")?;
                sent_at.push(now);
                times.push(None);
                continue;
            }
            due
        } else {
            due + last_packet_timeout
        };
        if now >= deadline || times.iter().filter(|time| time.is_some()).count() as u64 == count {
            break;
        }
        socket.set_read_timeout(Some((deadline - now).max(Duration::from_micros(100))))?;
        match socket.recv(&mut buffer) {
            Ok(length) => {
                let now = Instant::now();
                let index = parse_number(&buffer[..length]);
                if let Some((time, sent)) = index
                    .and_then(|index| Some((times.get_mut(index)?, sent_at.get(index)?)))
                    .filter(|(time, _)| time.is_none())
                {
                    *time = Some(now - *sent);
                }
            }
            Err(error) if may_retry(&error) => {}
            Err(error) => return Err(error).context("cannot receive"),
        }
    }
    Ok(summary(sent_at.len() as u64, times.into_iter().flatten().collect()))
}

/// The number of an echo.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn parse_number(datagram: &[u8]) -> Option<usize> {
    usize::try_from(u64::from_be_bytes(*datagram.first_chunk()?)).ok()
}

fn summary(sent: u64, mut times: Vec<Duration>) -> PingResult {
    times.sort();
    PingResult {
        sent,
        received: times.len() as u64,
        min: times.first().copied().unwrap_or_default(),
        median: times.get(times.len() / 2).copied().unwrap_or_default(),
        max: times.last().copied().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_has_minimum_median_and_maximum() {
        let times = [30, 10, 20].map(Duration::from_millis).to_vec();
        let result = summary(4, times);
        assert_eq!((result.sent, result.received), (4, 3));
        assert_eq!(
            [result.min, result.median, result.max],
            [10, 20, 30].map(Duration::from_millis)
        );
        assert_eq!(summary(1, Vec::new()).received, 0);
    }
}
