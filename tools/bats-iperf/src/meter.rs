//! Counters of a stream, updated by its thread and read by the reporter.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::control::Totals;

/// Counters of one stream.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    bytes: AtomicU64,
    messages: AtomicU64,
    lost: AtomicU64,
    out_of_order: AtomicU64,
    duplicates: AtomicU64,
    jitter_ns: AtomicU64,
    unsent: AtomicU64,
    unanswered: AtomicU64,
    /// When the results start to count, and the counters at that time.
    base: Mutex<Option<(Duration, Reading)>>,
}

/// Counters at one time, or their difference between two times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
    pub(crate) lost: u64,
    pub(crate) out_of_order: u64,
    pub(crate) duplicates: u64,
    pub(crate) jitter_ms: f64,
}

impl Meter {
    pub(crate) fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_sequence(&self, sequence: &Sequence) {
        self.lost.store(sequence.lost(), Ordering::Relaxed);
        self.out_of_order.store(sequence.out_of_order, Ordering::Relaxed);
        self.duplicates.store(sequence.duplicates, Ordering::Relaxed);
    }

    pub(crate) fn set_jitter(&self, nanoseconds: f64) {
        self.jitter_ns.store(nanoseconds as u64, Ordering::Relaxed);
    }

    /// Sets the number of messages that were due but not sent before the end.
    pub(crate) fn set_unsent(&self, count: u64) {
        self.unsent.store(count, Ordering::Relaxed);
    }

    /// Counts a message whose echo is expected.
    pub(crate) fn expect_echo(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// Subtracts the echoes that have arrived.
    pub(crate) fn count_echoes(&self, count: u64) {
        let subtract = |asked: u64| Some(asked.saturating_sub(count));
        let _ = self.unanswered.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
    }

    /// Omits everything counted so far from the totals.
    pub(crate) fn start_counting(&self, now: Duration) {
        if let Ok(mut base) = self.base.lock() {
            *base = Some((now, self.read()));
        }
    }

    pub(crate) fn read(&self) -> Reading {
        Reading {
            bytes: self.bytes.load(Ordering::Relaxed),
            messages: self.messages.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            out_of_order: self.out_of_order.load(Ordering::Relaxed),
            duplicates: self.duplicates.load(Ordering::Relaxed),
            jitter_ms: self.jitter_ns.load(Ordering::Relaxed) as f64 / 1e6,
        }
    }

    /// Totals without the omitted part, up to `end`.
    pub(crate) fn totals(&self, end: Duration, error: Option<String>) -> Totals {
        let (begin, base) = self.base.lock().ok().and_then(|base| *base).unwrap_or_default();
        let reading = self.read().since(base);
        Totals {
            seconds: end.saturating_sub(begin).as_secs_f64(),
            bytes: reading.bytes,
            messages: reading.messages,
            lost: reading.lost,
            out_of_order: reading.out_of_order,
            duplicates: reading.duplicates,
            jitter_ms: reading.jitter_ms,
            unsent: self.unsent.load(Ordering::Relaxed),
            unanswered: self.unanswered.load(Ordering::Relaxed),
            error,
            transport_stats: None,
        }
    }
}

impl Reading {
    /// The difference to `earlier`; jitter is a state and is not subtracted.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(earlier.bytes),
            messages: self.messages.saturating_sub(earlier.messages),
            // A message that arrives late no longer counts as lost.
            lost: self.lost.saturating_sub(earlier.lost),
            out_of_order: self.out_of_order.saturating_sub(earlier.out_of_order),
            duplicates: self.duplicates.saturating_sub(earlier.duplicates),
            jitter_ms: self.jitter_ms,
        }
    }

    /// The sum over streams; its jitter is their mean.
    pub(crate) fn sum(readings: &[Self]) -> Self {
        let total = |field: fn(&Self) -> u64| {
            readings.iter().fold(0_u64, |sum, reading| sum.saturating_add(field(reading)))
        };
        let count = readings.len().max(1) as f64;
        Self {
            bytes: total(|reading| reading.bytes),
            messages: total(|reading| reading.messages),
            lost: total(|reading| reading.lost),
            out_of_order: total(|reading| reading.out_of_order),
            duplicates: total(|reading| reading.duplicates),
            jitter_ms: readings.iter().map(|reading| reading.jitter_ms).sum::<f64>() / count,
        }
    }
}

impl From<&Totals> for Reading {
    fn from(totals: &Totals) -> Self {
        Self {
            bytes: totals.bytes,
            messages: totals.messages,
            lost: totals.lost,
            out_of_order: totals.out_of_order,
            duplicates: totals.duplicates,
            jitter_ms: totals.jitter_ms,
        }
    }
}

/// How far below the highest number duplicates are detected.
const WINDOW: u64 = 4_096;

/// Detects loss, reordering and duplicates from message numbers.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// The highest number seen plus 1.
    next: u64,
    received: u64,
    out_of_order: u64,
    duplicates: u64,
    seen: Box<[bool; WINDOW as usize]>,
}

impl Sequence {
    pub(crate) fn new() -> Self {
        let seen = Box::new([false; WINDOW as usize]);
        Self { next: 0, received: 0, out_of_order: 0, duplicates: 0, seen }
    }

    /// Adds a number; returns whether it was new. Numbers below the window count as duplicates.
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        if number >= self.next {
            let gap = number - self.next;
            if gap >= WINDOW {
                self.seen.fill(false);
            } else {
                (self.next..number)
                    .for_each(|skipped| self.seen[(skipped % WINDOW) as usize] = false);
            }
            self.next = number.saturating_add(1);
        } else {
            let position = &self.seen[(number % WINDOW) as usize];
            if self.next - number > WINDOW || *position {
                self.duplicates += 1;
                return false;
            }
            self.out_of_order += 1;
        }
        self.seen[(number % WINDOW) as usize] = true;
        self.received += 1;
        true
    }

    /// Sets how many messages the sender has sent.
    pub(crate) fn end_at(&mut self, count: u64) {
        self.next = self.next.max(count);
    }

    fn lost(&self) -> u64 {
        self.next.saturating_sub(self.received)
    }
}

/// Smoothed variation of the transit time (RFC 3550 section 6.4.1), in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Jitter {
    transit_ns: Option<i128>,
    smoothed_ns: f64,
}

impl Jitter {
    /// Takes the send and arrival time of a message, each on any clock; returns the smoothed value.
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
    fn constant_transit_has_no_jitter_for_any_clock_offset() {
        let mut jitter = Jitter::default();
        for number in 0..100 {
            assert_eq!(jitter.update(u64::MAX - 1_000_000 + number * 1_000, number * 1_000), 0.0);
        }
    }

    #[test]
    fn alternating_transit_converges_to_its_difference() {
        let mut jitter = Jitter::default();
        for number in 0..1_000 {
            jitter.update(number * 1_000_000, number * 1_000_000 + (number % 2) * 50_000);
        }
        assert!((jitter.update(0, 0) - 50_000.0).abs() < 5_000.0);
    }

    #[test]
    fn totals_exclude_the_omitted_part() {
        let meter = Meter::default();
        meter.count(100);
        let first = meter.read();
        meter.start_counting(Duration::from_secs(1));
        meter.count(50);
        let difference = meter.read().since(first);
        assert_eq!((difference.bytes, difference.messages), (50, 1));
        let totals = meter.totals(Duration::from_secs(3), None);
        assert_eq!((totals.bytes, totals.messages, totals.seconds), (50, 1, 2.0));
        let sum = Reading::sum(&[difference, difference]);
        assert_eq!((sum.bytes, sum.messages), (100, 2));
        let most = Reading { bytes: u64::MAX, ..difference };
        assert_eq!(Reading::sum(&[most, most]).bytes, u64::MAX);
    }

    /// Compares with a set of all numbers seen.
    #[test]
    fn loss_reordering_and_duplicates_are_distinguished() {
        let mut sequence = Sequence::new();
        let mut seen = std::collections::BTreeSet::new();
        let (mut late, mut again) = (0, 0);
        let mut state = 1_u64;
        for step in 0..20_000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (step + (state >> 60)).saturating_sub((state >> 50) % 32);
            let highest = seen.last().copied();
            if !seen.insert(number) {
                again += 1;
            } else if highest.is_some_and(|highest| number < highest) {
                late += 1;
            }
            sequence.insert(number);
        }
        assert_eq!((sequence.out_of_order, sequence.duplicates), (late, again));
        assert_eq!(sequence.lost(), seen.last().unwrap() + 1 - seen.len() as u64);
    }

    #[test]
    fn messages_missing_at_the_end_are_lost() {
        let mut sequence = Sequence::new();
        [0, 1, 4].into_iter().for_each(|number| assert!(sequence.insert(number)));
        sequence.end_at(3);
        assert_eq!(sequence.lost(), 2);
        sequence.end_at(9);
        assert_eq!(sequence.lost(), 6);
    }

    #[test]
    fn extreme_numbers_do_not_overflow() {
        let mut sequence = Sequence::new();
        for number in [u64::MAX, 0, u64::MAX, u64::MAX - 1, 5] {
            sequence.insert(number);
        }
        assert!(sequence.lost() > 1 << 60);
    }
}
