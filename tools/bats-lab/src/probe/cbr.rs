//! Constant-bit-rate probe: numbered UDP datagrams, counted by the receiver.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg, setsockopt, sockopt};

use crate::interrupt;
use crate::namespace::Namespaces;
use crate::shortage::may_retry;

/// Bytes of the Ethernet, IPv4 and UDP headers of a datagram.
const HEADER_BYTES: usize = 14 + 20 + 8;
/// Bytes of a datagram's sequence number.
const SEQUENCE_BYTES: usize = 8;
/// Limit of datagrams per system call.
const MAX_SEGMENTS: usize = 24;

/// Datagrams to send, and the two hosts.
#[derive(Clone, Debug)]
pub(crate) struct CbrPlan<'a> {
    /// The namespaces.
    pub(crate) namespaces: &'a Namespaces,
    /// The sending host's namespace.
    pub(crate) from: String,
    /// The receiving host's namespace.
    pub(crate) to: String,
    /// The receiving host's address.
    pub(crate) address: IpAddr,
    /// Size of a frame in bytes.
    pub(crate) frame: usize,
    /// Rate in bits per second of frames.
    pub(crate) rate: u64,
    /// Limit of datagrams.
    pub(crate) packets: u64,
    /// Limit of the sending time.
    pub(crate) time: Duration,
    /// How long to receive after the last datagram was sent.
    pub(crate) last_packet_timeout: Duration,
}

/// Result of a probe.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CbrResult {
    /// Datagrams sent.
    pub(crate) sent: u64,
    /// Distinct datagrams received.
    pub(crate) received: u64,
    /// Duplicate datagrams received.
    pub(crate) duplicates: u64,
    /// Datagrams received after a later one.
    pub(crate) reordered: u64,
    /// Received rate in bits per second of frames, without the first quarter of the run.
    pub(crate) received_rate: f64,
    /// How long sending took.
    pub(crate) sending: Duration,
}

impl CbrResult {
    /// Fraction of the datagrams that were lost.
    pub(crate) fn loss(&self) -> f64 {
        1.0 - self.received as f64 / self.sent.max(1) as f64
    }
}

/// Sends the datagrams and counts those received.
///
/// # Errors
/// If a socket cannot be opened or fails, or if the user interrupts.
pub(crate) fn send_cbr(plan: &CbrPlan<'_>) -> Result<CbrResult> {
    let receiver = plan.namespaces.within(&plan.to, || {
        let socket = UdpSocket::bind(SocketAddr::new(plan.address, 0))
            .with_context(|| format!("cannot listen on {}", plan.address))?;
        if setsockopt(&socket, sockopt::RcvBufForce, &(32 << 20)).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &(32 << 20))?;
        }
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        Ok(socket)
    })?;
    let target = receiver.local_addr()?;
    let sender = plan.namespaces.within(&plan.from, || {
        let socket = UdpSocket::bind("0.0.0.0:0").context("cannot open a socket")?;
        socket.connect(target).with_context(|| format!("cannot reach {target}"))?;
        Ok(socket)
    })?;
    let sent_all = AtomicBool::new(false);
    thread::scope(|scope| {
        let counting = scope.spawn(|| count(&receiver, plan, &sent_all));
        let sent = send(&sender, plan);
        thread::sleep(plan.last_packet_timeout);
        sent_all.store(true, Ordering::Relaxed);
        let counted = counting.join().map_err(|_| anyhow!("the receiver panicked"))??;
        let (sent, sending) = sent?;
        interrupt::check()?;
        Ok(CbrResult { sent, sending, ..counted })
    })
}

fn send(socket: &UdpSocket, plan: &CbrPlan<'_>) -> Result<(u64, Duration)> {
    let payload = plan.frame.saturating_sub(HEADER_BYTES).max(SEQUENCE_BYTES);
    let frame = payload + HEADER_BYTES;
    let nanos_per_frame = frame as f64 * 8e9 / plan.rate.max(1) as f64;
    // Bursts of up to 0.5 ms, which fit any queue.
    let segments = ((5e5 / nanos_per_frame) as usize).clamp(1, MAX_SEGMENTS);
    let mut burst = vec![0; payload * segments];
    let segment_size = u16::try_from(payload).context("frames are too large")?;
    let start = Instant::now();
    let mut sent = 0u64;
    while sent < plan.packets && start.elapsed() < plan.time && !interrupt::requested() {
        let due = Duration::from_nanos((sent as f64 * nanos_per_frame) as u64);
        if let Some(wait) = due.checked_sub(start.elapsed()) {
            thread::sleep(wait);
        }
        let count = (plan.packets - sent).min(segments as u64) as usize;
        for (offset, segment) in burst.chunks_exact_mut(payload).take(count).enumerate() {
            segment[..SEQUENCE_BYTES].copy_from_slice(&(sent + offset as u64).to_be_bytes());
        }
        let bytes = [IoSlice::new(&burst[..count * payload])];
        let control = [ControlMessage::UdpGsoSegments(&segment_size)];
        let control = if count > 1 { &control[..] } else { &[] };
        let fd = socket.as_raw_fd();
        match sendmsg::<SockaddrStorage>(fd, &bytes, control, MsgFlags::empty(), None) {
            Ok(_) => {}
            Err(_) => {
                // The kernel does not support GSO on this interface: send one at a time.
                for segment in burst.chunks_exact(payload).take(count) {
                    socket.send(segment).context("cannot send")?;
                }
            }
        }
        sent += count as u64;
    }
    Ok((sent, start.elapsed()))
}

fn count(socket: &UdpSocket, plan: &CbrPlan<'_>, done: &AtomicBool) -> Result<CbrResult> {
    let mut seen = vec![0u64; usize::try_from(plan.packets / 64 + 1)?];
    let mut buffer = vec![0; plan.frame.max(64)];
    let mut result = CbrResult::default();
    let mut last_number = None;
    let mut marks: Vec<(Instant, u64)> = Vec::new();
    loop {
        let length = match socket.recv(&mut buffer) {
            Ok(length) => length,
            Err(error) if may_retry(&error) => {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                continue;
            }
            Err(error) => return Err(error).context("cannot receive"),
        };
        let Some(number) = parse_number(&buffer[..length]) else { continue };
        let Some(word) = usize::try_from(number / 64).ok().and_then(|at| seen.get_mut(at)) else {
            continue;
        };
        if *word & (1 << (number % 64)) != 0 {
            result.duplicates += 1;
            continue;
        }
        *word |= 1 << (number % 64);
        result.received += 1;
        result.reordered += u64::from(last_number.is_some_and(|last| number < last));
        last_number = last_number.max(Some(number));
        if result.received % 32 == 1 {
            marks.push((Instant::now(), result.received));
        }
    }
    result.received_rate = steady_rate(&marks, frame_bytes(plan));
    Ok(result)
}

/// The number of a datagram.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn parse_number(datagram: &[u8]) -> Option<u64> {
    datagram.first_chunk::<SEQUENCE_BYTES>().map(|number| u64::from_be_bytes(*number))
}

fn frame_bytes(plan: &CbrPlan<'_>) -> usize {
    plan.frame.max(HEADER_BYTES + SEQUENCE_BYTES)
}

/// The rate after the first quarter of the run, in which the queue fills.
fn steady_rate(marks: &[(Instant, u64)], frame: usize) -> f64 {
    let (Some(first), Some(last)) = (marks.get(marks.len() / 4), marks.last()) else { return 0.0 };
    let time = (last.0 - first.0).as_secs_f64();
    if time <= 0.0 { 0.0 } else { (last.1 - first.1) as f64 * frame as f64 * 8.0 / time }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_rate_excludes_the_first_quarter() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let marks = [(at(0), 0), (at(900), 100), (at(1000), 200), (at(1100), 300)];
        let rate = steady_rate(&marks, 1000);
        assert!((rate - 8e6).abs() < 1.0, "{rate}");
        assert_eq!(steady_rate(&[], 1000), 0.0);
    }

    #[test]
    fn loss_is_the_fraction_of_lost_datagrams() {
        let result = CbrResult { sent: 200, received: 150, ..CbrResult::default() };
        assert_eq!(result.loss(), 0.25);
    }
}
