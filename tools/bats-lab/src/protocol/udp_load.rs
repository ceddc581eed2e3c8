//! Built-in UDP load: numbered datagrams at a constant rate, and a sink that counts losses.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::json;

use super::load::DATAGRAM as SIZE;
use crate::interrupt;
use crate::shortage::may_retry;

/// Number in the datagrams that mark the end.
const END_MARKER: u64 = u64::MAX;
/// How long the sink waits for the next datagram after the first.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// Sends for some seconds at a rate of UDP payload.
pub(crate) fn source(to: SocketAddr, seconds: u64, mbps: f64) -> Result<()> {
    interrupt::watch()?;
    let socket = UdpSocket::bind("0.0.0.0:0").context("cannot open a socket")?;
    socket.connect(to).with_context(|| format!("cannot reach {to}"))?;
    let gap = SIZE as f64 * 8.0 / (mbps.max(0.001) * 1e6);
    let start = Instant::now();
    let end = Duration::from_secs(seconds);
    let mut datagram = [0x5a; SIZE];
    let mut number = 0u64;
    while start.elapsed() < end && !interrupt::requested() {
        let due = (start.elapsed().as_secs_f64() / gap) as u64 + 1;
        while number < due {
            write_header(&mut datagram, number);
            // A full queue or an unreachable receiver loses the datagram, as a link would.
            let _ = socket.send(&datagram);
            number += 1;
        }
        std::thread::sleep(Duration::from_secs_f64(gap.clamp(50e-6, 0.05)));
    }
    let sent = number;
    for _ in 0..10 {
        write_header(&mut datagram, END_MARKER);
        datagram[8..16].copy_from_slice(&sent.to_le_bytes());
        let _ = socket.send(&datagram);
        std::thread::sleep(Duration::from_millis(50));
    }
    outln!("{}", json!({ "intervals": [], "sent": sent }));
    Ok(())
}

/// Writes the number and the send time.
fn write_header(datagram: &mut [u8; SIZE], number: u64) {
    datagram[..8].copy_from_slice(&number.to_le_bytes());
    datagram[8..16].copy_from_slice(&micros().to_le_bytes());
}

fn micros() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// Counts arriving datagrams per `interval` until the last, and prints the result in iperf3's
/// format.
pub(crate) fn sink(port: u16, interval: Duration) -> Result<()> {
    interrupt::watch()?;
    let socket = UdpSocket::bind(("0.0.0.0", port))
        .with_context(|| format!("cannot listen on port {port}"))?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut count = Counter { interval: interval.as_secs_f64(), ..Counter::default() };
    let mut buffer = [0; 2048];
    let mut start: Option<Instant> = None;
    let mut last_arrival = Instant::now();
    while !interrupt::requested() {
        match socket.recv(&mut buffer) {
            Ok(length) if length >= 16 => {
                last_arrival = Instant::now();
                let begin = *start.get_or_insert(last_arrival);
                if !count.take(begin.elapsed().as_secs_f64(), &buffer[..length]) {
                    break;
                }
            }
            Ok(_) => {}
            Err(error) if may_retry(&error) => {}
            Err(error) => return Err(error).context("the socket failed"),
        }
        if start.is_some() && last_arrival.elapsed() > RECEIVE_TIMEOUT {
            break;
        }
    }
    outln!("{}", count.report());
    Ok(())
}

/// Counts of received datagrams.
#[derive(Default)]
struct Counter {
    bytes: u64,
    packets: u64,
    highest: u64,
    /// Number of datagrams sent, if the source has reported it.
    sent: Option<u64>,
    /// In seconds.
    interval: f64,
    interval_start: f64,
    interval_bytes: u64,
    interval_packets: u64,
    /// The highest number before the current interval, plus 1.
    interval_highest: u64,
    intervals: Vec<serde_json::Value>,
    last: f64,
    transit: Option<f64>,
    jitter: f64,
}

impl Counter {
    /// Counts a datagram; false if it was the last.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn take(&mut self, now: f64, datagram: &[u8]) -> bool {
        let number = |at: usize| {
            let bytes = datagram.get(at..).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        if number(0) == END_MARKER {
            self.sent = Some(number(8));
            return false;
        }
        self.highest = self.highest.max(number(0).saturating_add(1));
        let bytes = datagram.len() as u64;
        self.packets = self.packets.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        self.interval_bytes = self.interval_bytes.saturating_add(bytes);
        self.interval_packets = self.interval_packets.saturating_add(1);
        self.last = now;
        // RFC 3550 section 6.4.1.
        let transit = micros() as f64 - number(8) as f64;
        if let Some(before) = self.transit.replace(transit) {
            self.jitter += ((transit - before).abs() - self.jitter) / 16.0;
        }
        if now - self.interval_start >= self.interval {
            self.close(now);
        }
        true
    }

    fn close(&mut self, now: f64) {
        let (start, bytes) = (self.interval_start, std::mem::take(&mut self.interval_bytes));
        let sent = self.highest - std::mem::replace(&mut self.interval_highest, self.highest);
        let lost = sent.saturating_sub(std::mem::take(&mut self.interval_packets));
        let seconds = (now - start).max(1e-9);
        self.intervals.push(json!({ "sum": {
            "start": start, "end": now, "seconds": seconds, "bytes": bytes,
            "bits_per_second": bytes as f64 * 8.0 / seconds,
            "jitter_ms": self.jitter / 1e3,
            "lost_percent": 100.0 * lost as f64 / sent.max(1) as f64,
        }}));
        self.interval_start = now;
    }

    fn report(mut self) -> serde_json::Value {
        if self.last > self.interval_start {
            self.close(self.last);
        }
        let sent = self.sent.unwrap_or(self.highest);
        let lost = sent.saturating_sub(self.packets);
        json!({
            "intervals": self.intervals,
            "end": { "sum": {
                "bytes": self.bytes, "packets": sent, "lost_packets": lost,
                "lost_percent": if sent > 0 { 100.0 * lost as f64 / sent as f64 } else { 100.0 },
                "jitter_ms": self.jitter / 1e3,
            }},
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_datagrams_count_as_lost() {
        let mut count = Counter { interval: 1.0, ..Counter::default() };
        let mut datagram = [0; SIZE];
        for number in 0..100 {
            write_header(&mut datagram, number);
            if number % 10 != 3 {
                assert!(count.take(number as f64 * 0.03, &datagram));
            }
        }
        write_header(&mut datagram, END_MARKER);
        datagram[8..16].copy_from_slice(&102u64.to_le_bytes());
        assert!(!count.take(3.0, &datagram));
        let report = count.report();
        assert_eq!(report["end"]["sum"]["lost_packets"], 12);
        assert_eq!(report["end"]["sum"]["packets"], 102);
        let bytes: u64 = report["intervals"]
            .as_array()
            .unwrap()
            .iter()
            .map(|i| i["sum"]["bytes"].as_u64().unwrap())
            .sum();
        assert_eq!(bytes, 90 * SIZE as u64);
        let first = &report["intervals"][0]["sum"];
        let lost_percent = first["lost_percent"].as_f64().unwrap();
        assert!((5.0..15.0).contains(&lost_percent), "{lost_percent}");
    }
}
