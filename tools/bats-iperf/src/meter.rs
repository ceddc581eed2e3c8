//! What a stream has carried, counted by its thread and read by the reporter.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::control::Totals;

/// Counters of one stream.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    bytes: AtomicU64,
    messages: AtomicU64,
    lost: AtomicU64,
    jitter_ns: AtomicU64,
}

/// The counters at one moment, or what they gained between two.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
    pub(crate) lost: u64,
    pub(crate) jitter_ms: f64,
}

impl Meter {
    pub(crate) fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_lost(&self, messages: u64) {
        self.lost.store(messages, Ordering::Relaxed);
    }

    pub(crate) fn set_jitter(&self, nanoseconds: f64) {
        self.jitter_ns.store(nanoseconds as u64, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Reading {
        Reading {
            bytes: self.bytes.load(Ordering::Relaxed),
            messages: self.messages.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            jitter_ms: self.jitter_ns.load(Ordering::Relaxed) as f64 / 1e6,
        }
    }

    pub(crate) fn totals(&self, seconds: f64, error: Option<String>) -> Totals {
        let Reading { bytes, messages, lost, jitter_ms } = self.read();
        Totals { seconds, bytes, messages, lost, jitter_ms, error }
    }
}

impl Reading {
    /// What was gained since `earlier`; jitter is a state and not a sum.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            bytes: self.bytes - earlier.bytes,
            messages: self.messages - earlier.messages,
            lost: self.lost.saturating_sub(earlier.lost),
            jitter_ms: self.jitter_ms,
        }
    }
}

/// Smoothed variation of the transit time (RFC 3550, section 6.4.1).
#[derive(Debug, Default)]
pub(crate) struct Jitter {
    transit_ns: Option<i128>,
    smoothed_ns: f64,
}

impl Jitter {
    /// Takes a message's sending and arrival times, each on any clock; the smoothed value.
    pub(crate) fn update(&mut self, sent_ns: u64, arrived_ns: u64) -> f64 {
        let transit = i128::from(arrived_ns) - i128::from(sent_ns);
        if let Some(before) = self.transit_ns.replace(transit) {
            let variation = (transit - before).unsigned_abs() as f64;
            self.smoothed_ns += (variation - self.smoothed_ns) / 16.0;
        }
        self.smoothed_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_transit_has_no_jitter_whatever_the_clocks_say() {
        let mut jitter = Jitter::default();
        for number in 0..100 {
            assert_eq!(jitter.update(u64::MAX - 1_000_000 + number * 1_000, number * 1_000), 0.0);
        }
    }

    #[test]
    fn alternating_transit_settles_at_its_difference() {
        let mut jitter = Jitter::default();
        for number in 0..1_000 {
            jitter.update(number * 1_000_000, number * 1_000_000 + (number % 2) * 50_000);
        }
        assert!((jitter.update(0, 0) - 50_000.0).abs() < 5_000.0);
    }

    #[test]
    fn readings_are_differences() {
        let meter = Meter::default();
        meter.count(100);
        let first = meter.read();
        meter.count(50);
        meter.set_lost(3);
        let gained = meter.read().since(first);
        assert_eq!((gained.bytes, gained.messages, gained.lost), (50, 1, 3));
    }
}
