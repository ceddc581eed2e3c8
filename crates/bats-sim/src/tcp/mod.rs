//! A simple model of TCP, to compete with: one bulk transfer, its sender and its receiver.
//!
//! What is modelled: segments of 1,448 bytes; an acknowledgement for every segment, with the
//! cumulative number and up to four selective ranges, the one just extended first (RFC 2018); a
//! segment is lost when one sent three transmissions later was acknowledged (the link keeps the
//! order; RFC 8985 in spirit), or after a time-out (RFC 6298, at least 200 ms); lost segments go first;
//! one answer of the controller for a round trip's losses; data clocked out by acknowledgements, and
//! paced where the controller says so. Controllers: [`reno`], [`cubic`] and [`bbr`].
//!
//! What is not: handshake, receive window, delayed acknowledgements, proportional rate reduction,
//! ECN, undo of spurious retransmissions.

pub mod bbr;
pub mod cubic;
mod receiver;
pub mod reno;

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

pub use receiver::{Ack, Receiver};

/// Bytes of data in a segment.
pub const SEGMENT: u64 = 1_448;
/// Bytes of a full segment beyond the Ethernet and IPv4 headers and eight more, so that it fills
/// the same frame as a UDP payload of 1,472.
pub const SEGMENT_PAYLOAD: usize = SEGMENT as usize + 24;
/// The same of an acknowledgement.
pub const ACK_PAYLOAD: usize = 24;
/// Transmissions after a segment whose acknowledgement proves it lost.
const REORDERING: u64 = 3;
/// Bounds of the retransmission time-out.
const LEAST_TIMEOUT: Duration = Duration::from_millis(200);
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);
const MOST_TIMEOUT: Duration = Duration::from_secs(60);

/// What an acknowledgement told a controller.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// When it came.
    pub now: Timestamp,
    /// Segments newly known to have arrived.
    pub acked: u64,
    /// Segments newly known to be lost, if that begins a new round of loss.
    pub is_loss_event: bool,
    /// Round-trip time of the newest one, unless it was sent twice.
    pub rtt: Option<Duration>,
    /// Segments in flight now.
    pub in_flight: u64,
    /// Segments delivered in all.
    pub delivered: u64,
    /// Segments delivered when the newest one was sent.
    pub delivered_before: u64,
    /// Segments a second at which the newest one and those before it were delivered.
    pub rate: Option<f64>,
}

/// A TCP congestion controller: windows in segments, rates in segments a second.
pub trait Control: core::fmt::Debug {
    /// An acknowledgement came.
    fn on_ack(&mut self, progress: &Progress);
    /// Nothing came for a retransmission time-out.
    fn on_timeout(&mut self, now: Timestamp);
    /// Segments that may be in flight.
    fn window(&self) -> u64;
    /// Segments a second; `None` for what acknowledgements clock out.
    fn pace(&self) -> Option<f64> {
        None
    }
}

/// A transmission of a segment and its fate.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// Number of the transmission.
    order: u64,
    sent: Timestamp,
    /// Segments delivered, when the last of them was, and when that one was sent.
    delivered: u64,
    delivered_at: Timestamp,
    first_sent: Timestamp,
    fate: Fate,
    is_repeated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    InFlight,
    Arrived,
    Lost,
}

/// A sender with more data than it can send.
#[derive(Debug)]
pub struct Sender {
    control: Box<dyn Control>,
    /// Number of the first segment not acknowledged in order; the first of `segments`.
    base: u64,
    segments: VecDeque<Segment>,
    lost: VecDeque<u64>,
    /// Transmissions of which nothing has been concluded from later ones: order and number.
    sent: VecDeque<(u64, u64)>,
    /// The ranges of the acknowledgement before.
    known: [Option<(u64, u64)>; 4],
    in_flight: u64,
    orders: u64,
    largest_arrived: u64,
    recovery_until: u64,
    delivered: u64,
    delivered_at: Timestamp,
    first_sent: Timestamp,
    srtt: Option<(Duration, Duration)>,
    backoff: u32,
    timer: Option<Timestamp>,
    next_paced: Timestamp,
    repeated: u64,
    rate: Option<f64>,
}

impl Sender {
    /// A sender under `control`.
    pub fn new(control: Box<dyn Control>) -> Self {
        Self {
            control,
            base: 0,
            segments: VecDeque::new(),
            lost: VecDeque::new(),
            sent: VecDeque::new(),
            known: [None; 4],
            in_flight: 0,
            orders: 0,
            largest_arrived: 0,
            recovery_until: 0,
            delivered: 0,
            delivered_at: Timestamp::ZERO,
            first_sent: Timestamp::ZERO,
            srtt: None,
            backoff: 0,
            timer: None,
            next_paced: Timestamp::ZERO,
            repeated: 0,
            rate: None,
        }
    }

    /// Its controller.
    pub fn control(&self) -> &dyn Control {
        &*self.control
    }

    /// The smoothed round-trip time (RFC 6298), once there is a sample.
    pub fn smoothed_rtt(&self) -> Option<Duration> {
        self.srtt.map(|(mean, _)| mean)
    }

    /// Segments a second at which what was acknowledged last was delivered.
    pub fn delivery_rate(&self) -> Option<f64> {
        self.rate
    }

    /// Segments sent in all, and those of them that had been sent before.
    pub fn transmissions(&self) -> (u64, u64) {
        (self.orders, self.repeated)
    }

    fn timeout(&self) -> Duration {
        let base = self.srtt.map_or(FIRST_TIMEOUT, |(mean, deviation)| mean + deviation * 4);
        (base.max(LEAST_TIMEOUT) * 2_u32.saturating_pow(self.backoff.min(10))).min(MOST_TIMEOUT)
    }

    /// The number of a segment to send now; `None` if it must wait.
    pub fn poll(&mut self, now: Timestamp) -> Option<u64> {
        if self.timer.is_some_and(|at| at <= now) {
            self.on_timeout(now);
        }
        if self.in_flight >= self.control.window().max(1) {
            return None;
        }
        if let Some(rate) = self.control.pace() {
            if now < self.next_paced {
                return None;
            }
            let gap = Duration::from_secs_f64(1.0 / rate.max(1.0));
            // A timer that is late by less than a millisecond is made up for.
            let from = if now - self.next_paced > Duration::from_millis(1) {
                now
            } else {
                self.next_paced
            };
            self.next_paced = from + gap;
        }
        while let Some(number) = self.lost.pop_front() {
            let Some(index) = number.checked_sub(self.base) else { continue };
            if self.segments.get(index as usize).is_some_and(|segment| segment.fate == Fate::Lost) {
                self.send(now, index as usize, true);
                return Some(number);
            }
        }
        let number = self.base + self.segments.len() as u64;
        self.segments.push_back(Segment {
            order: 0,
            sent: now,
            delivered: 0,
            delivered_at: now,
            first_sent: now,
            fate: Fate::InFlight,
            is_repeated: false,
        });
        self.send(now, self.segments.len() - 1, false);
        Some(number)
    }

    fn send(&mut self, now: Timestamp, index: usize, is_repeated: bool) {
        if self.in_flight == 0 {
            (self.delivered_at, self.first_sent) = (now, now);
        }
        self.orders += 1;
        self.repeated += u64::from(is_repeated);
        self.in_flight += 1;
        self.sent.push_back((self.orders, self.base + index as u64));
        if let Some(segment) = self.segments.get_mut(index) {
            *segment = Segment {
                order: self.orders,
                sent: now,
                delivered: self.delivered,
                delivered_at: self.delivered_at,
                first_sent: self.first_sent,
                fate: Fate::InFlight,
                is_repeated,
            };
        }
        if self.timer.is_none() {
            self.timer = Some(now + self.timeout());
        }
    }

    /// When [`Self::poll`] has something to do at the latest.
    pub fn next_timer(&self) -> Option<Timestamp> {
        let open = self.in_flight < self.control.window().max(1);
        let paced = (open && self.control.pace().is_some()).then_some(self.next_paced);
        match (paced, self.timer) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn on_timeout(&mut self, now: Timestamp) {
        self.backoff += 1;
        for (segment, number) in self.segments.iter_mut().zip(self.base..) {
            if segment.fate == Fate::InFlight {
                segment.fate = Fate::Lost;
                self.lost.push_back(number);
            }
        }
        self.in_flight = 0;
        self.sent.clear();
        self.recovery_until = self.orders;
        self.control.on_timeout(now);
        self.timer = Some(now + self.timeout());
        self.next_paced = now;
    }

    /// An acknowledgement arrived.
    pub fn on_ack(&mut self, now: Timestamp, ack: &Ack) {
        let mut newest: Option<Segment> = None;
        let mut acked = 0;
        // Of a range that has grown at its end only what is new is looked at.
        let known = core::mem::replace(&mut self.known, ack.ranges);
        let unknown = |(start, end): (u64, u64)| {
            let before = known.iter().flatten().find(|range| (range.0..range.1).contains(&start));
            (before.map_or(start, |range| range.1), end)
        };
        let ranges = ack.ranges.iter().flatten().copied().map(unknown);
        for (start, end) in core::iter::once((self.base, ack.next)).chain(ranges) {
            for number in start.max(self.base)..end {
                let Some(segment) = self.segments.get_mut((number - self.base) as usize) else {
                    break;
                };
                if segment.fate == Fate::Arrived {
                    continue;
                }
                self.in_flight -= u64::from(segment.fate == Fate::InFlight);
                segment.fate = Fate::Arrived;
                acked += 1;
                if newest.is_none_or(|newest| newest.order < segment.order) {
                    newest = Some(*segment);
                }
            }
        }
        while self.segments.front().is_some_and(|segment| segment.fate == Fate::Arrived) {
            self.segments.pop_front();
            self.base += 1;
        }
        let Some(newest) = newest else { return };
        self.backoff = 0;
        self.largest_arrived = self.largest_arrived.max(newest.order);
        self.delivered += acked;
        self.delivered_at = now;
        self.first_sent = newest.sent;
        let rtt = (!newest.is_repeated).then(|| now - newest.sent);
        if let Some(rtt) = rtt {
            self.note_rtt(rtt);
        }
        let is_loss_event = self.detect_losses();
        let span = (now - newest.delivered_at).max(newest.sent - newest.first_sent).as_secs_f64();
        let count = (self.delivered - newest.delivered) as f64;
        self.timer = Some(now + self.timeout());
        let rate = (span > 0.0).then(|| count / span);
        self.rate = rate.or(self.rate);
        self.control.on_ack(&Progress {
            now,
            acked,
            is_loss_event,
            rtt,
            in_flight: self.in_flight,
            delivered: self.delivered,
            delivered_before: newest.delivered,
            rate,
        });
    }

    fn note_rtt(&mut self, rtt: Duration) {
        self.srtt = Some(match self.srtt {
            None => (rtt, rtt / 2),
            Some((mean, deviation)) => {
                ((mean * 7 + rtt) / 8, (deviation * 3 + rtt.abs_diff(mean)) / 4)
            }
        });
    }

    /// Marks what is lost; true if the first of a round trip.
    fn detect_losses(&mut self) -> bool {
        let mut is_event = false;
        let mut found = Vec::new();
        while let Some(&(order, number)) = self.sent.front()
            && order + REORDERING <= self.largest_arrived
        {
            self.sent.pop_front();
            let index = number.checked_sub(self.base).map(|index| index as usize);
            let segment = index.and_then(|index| self.segments.get_mut(index));
            let Some(segment) = segment.filter(|segment| segment.order == order) else { continue };
            if segment.fate == Fate::InFlight {
                segment.fate = Fate::Lost;
                self.in_flight -= 1;
                found.push(number);
                is_event |= order > self.recovery_until;
            }
        }
        // What has waited longest for being delivered goes first.
        found.sort_unstable();
        self.lost.extend(found);
        if is_event {
            self.recovery_until = self.orders;
        }
        is_event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A constant window.
    #[derive(Debug)]
    struct Constant(u64, u64);

    impl Control for Constant {
        fn on_ack(&mut self, progress: &Progress) {
            self.1 += u64::from(progress.is_loss_event);
        }
        fn on_timeout(&mut self, _now: Timestamp) {}
        fn window(&self) -> u64 {
            self.0
        }
    }

    /// A sender with a window of ten over a path of 10 ms.
    fn run(is_dropped: impl Fn(u64) -> bool, steps: u64) -> (Sender, Receiver) {
        let sender = Sender::new(Box::new(Constant(10, 0)));
        run_over(Duration::from_millis(10), sender, is_dropped, steps)
    }

    /// Milliseconds over a path of this delay without a limit that drops the transmissions that `is_dropped`
    /// names, the first one 1.
    pub(super) fn run_over(
        delay: Duration,
        mut sender: Sender,
        mut is_dropped: impl FnMut(u64) -> bool,
        steps: u64,
    ) -> (Sender, Receiver) {
        let (mut receiver, mut wire, mut sent) = (Receiver::default(), VecDeque::new(), 0);
        for step in 0..steps {
            let now = Timestamp::from_millis(step);
            while wire.front().is_some_and(|&(at, _)| at <= now) {
                let (_, number) = wire.pop_front().expect("a segment");
                let ack = receiver.on_segment(number);
                sender.on_ack(now, &ack);
            }
            while let Some(number) = sender.poll(now) {
                sent += 1;
                if !is_dropped(sent) {
                    wire.push_back((now + delay, number));
                }
            }
        }
        (sender, receiver)
    }

    #[test]
    fn acknowledgements_clock_data_out() {
        let (sender, receiver) = run(|_| false, 1_000);
        assert!((980..=1_000).contains(&receiver.in_order()), "{}", receiver.in_order());
        assert_eq!(sender.in_flight, 10);
        // Ten segments in each round trip of ten milliseconds.
        assert_eq!(sender.smoothed_rtt(), Some(Duration::from_millis(10)));
        assert!((sender.delivery_rate().unwrap_or(0.0) - 1_000.0).abs() < 1.0);
        let (sent, repeated) = sender.transmissions();
        assert_eq!((sent - 10 - receiver.in_order(), repeated), (0, 0));
    }

    #[test]
    fn losses_are_repaired_without_a_timeout_and_counted_once_a_round() {
        let (sender, receiver) = run(|sent| sent % 20 == 0 || sent % 50 == 1, 2_000);
        // Seven of a hundred transmissions are lost.
        assert!((1_600..=1_900).contains(&receiver.in_order()), "{}", receiver.in_order());
        assert_eq!(sender.backoff, 0);
        let (sent, repeated) = sender.transmissions();
        let share = repeated as f64 / sent as f64;
        assert!((0.06..0.08).contains(&share), "{share}");
    }

    #[test]
    fn silence_ends_in_a_timeout() {
        let (_, receiver) = run(|sent| (5..=15).contains(&sent), 2_000);
        assert!(receiver.in_order() > 1_000, "{}", receiver.in_order());
    }
}
