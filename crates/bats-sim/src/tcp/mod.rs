//! A simple model of TCP as a competing flow: sender and receiver of one bulk transfer.
//!
//! Modelled: segments of 1,448 bytes; an acknowledgement for every segment, with the cumulative
//! number and up to four selective ranges, the most recently extended one first (RFC 2018). A
//! segment is lost when one sent three transmissions later is acknowledged (links keep the order;
//! similar to RFC 8985), or after a time-out (RFC 6298, at least 200 ms). Lost segments are sent
//! before new ones. The controller responds once to the losses of a round trip. Acknowledgements
//! clock out data, which is paced if the controller has a pacing rate. Controllers: [`reno`],
//! [`cubic`] and [`bbr`].
//!
//! Not modelled: handshake, receive window, delayed acknowledgements, proportional rate reduction,
//! ECN, undo of spurious retransmissions.

pub mod bbr;
pub mod cubic;
mod receiver;
pub mod reno;

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

pub use receiver::{Ack, Receiver};

/// Data bytes of a segment.
pub const SEGMENT: u64 = 1_448;
/// Size of a full segment as the UDP payload that would fill the same frame: 1,472 bytes. The links
/// add the overhead of Ethernet, IPv4 and UDP to every payload.
pub const SEGMENT_PAYLOAD: usize = SEGMENT as usize + 24;
/// Size of an acknowledgement as the UDP payload that would fill the same frame.
pub const ACK_PAYLOAD: usize = 24;
/// Reordering threshold in transmissions (RFC 6675: DupThresh).
const REORDERING_THRESHOLD: u64 = 3;
/// Minimum, initial and maximum retransmission time-out (RFC 6298; the minimum is that of Linux).
const MIN_TIMEOUT: Duration = Duration::from_millis(200);
const INITIAL_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// An acknowledgement as the controller sees it.
#[derive(Clone, Copy, Debug)]
pub struct AckSample {
    /// Arrival time.
    pub now: Timestamp,
    /// Newly acknowledged segments.
    pub acked: u64,
    /// Whether a loss was detected, the first in this round trip.
    pub is_loss_event: bool,
    /// RTT sample of the newest acknowledged segment, unless it was retransmitted.
    pub rtt: Option<Duration>,
    /// Segments in flight now.
    pub in_flight: u64,
    /// Segments delivered in total.
    pub delivered: u64,
    /// Segments delivered when the newest acknowledged segment was sent.
    pub delivered_before: u64,
    /// Delivery rate sample in segments per second.
    pub rate: Option<f64>,
}

/// A TCP congestion controller: windows in segments, rates in segments per second.
pub trait Control: core::fmt::Debug {
    /// Handles an acknowledgement.
    fn on_ack(&mut self, sample: &AckSample);
    /// Handles a retransmission time-out.
    fn on_timeout(&mut self, now: Timestamp);
    /// Congestion window in segments.
    fn window(&self) -> u64;
    /// Pacing rate in segments per second; `None` without pacing.
    fn pace(&self) -> Option<f64> {
        None
    }
}

/// The last transmission of a segment and its state.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// Number of the transmission.
    order: u64,
    sent: Timestamp,
    /// State at transmission, for rate samples: segments delivered, time of the last delivery, and
    /// send time of the segment delivered last.
    delivered: u64,
    delivered_at: Timestamp,
    first_sent: Timestamp,
    fate: Fate,
    is_retransmission: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    InFlight,
    Arrived,
    Lost,
}

/// A sender that is never application-limited.
#[derive(Debug)]
pub struct Sender {
    control: Box<dyn Control>,
    /// Number of the first segment that is not acknowledged in order: the first of `segments`.
    base: u64,
    segments: VecDeque<Segment>,
    lost: VecDeque<u64>,
    /// Transmissions that loss detection has not examined: order and segment number.
    sent: VecDeque<(u64, u64)>,
    /// The ranges of the previous acknowledgement.
    known: [Option<(u64, u64)>; 4],
    in_flight: u64,
    transmissions_sent: u64,
    largest_arrived: u64,
    recovery_until: u64,
    delivered: u64,
    delivered_at: Timestamp,
    first_sent: Timestamp,
    srtt: Option<(Duration, Duration)>,
    backoff: u32,
    timer: Option<Timestamp>,
    next_paced: Timestamp,
    retransmissions: u64,
    rate: Option<f64>,
}

impl Sender {
    /// A sender with this congestion controller.
    pub fn new(control: Box<dyn Control>) -> Self {
        Self {
            control,
            base: 0,
            segments: VecDeque::new(),
            lost: VecDeque::new(),
            sent: VecDeque::new(),
            known: [None; 4],
            in_flight: 0,
            transmissions_sent: 0,
            largest_arrived: 0,
            recovery_until: 0,
            delivered: 0,
            delivered_at: Timestamp::ZERO,
            first_sent: Timestamp::ZERO,
            srtt: None,
            backoff: 0,
            timer: None,
            next_paced: Timestamp::ZERO,
            retransmissions: 0,
            rate: None,
        }
    }

    /// The congestion controller.
    pub fn control(&self) -> &dyn Control {
        &*self.control
    }

    /// The smoothed round-trip time (RFC 6298), once there is a sample.
    pub fn smoothed_rtt(&self) -> Option<Duration> {
        self.srtt.map(|(mean, _)| mean)
    }

    /// The last delivery rate sample in segments per second.
    pub fn delivery_rate(&self) -> Option<f64> {
        self.rate
    }

    /// Segments sent in total, and retransmissions among them.
    pub fn transmissions(&self) -> (u64, u64) {
        (self.transmissions_sent, self.retransmissions)
    }

    fn timeout(&self) -> Duration {
        let base = self.srtt.map_or(INITIAL_TIMEOUT, |(mean, deviation)| mean + deviation * 4);
        (base.max(MIN_TIMEOUT) * 2_u32.saturating_pow(self.backoff.min(10))).min(MAX_TIMEOUT)
    }

    /// The number of the segment to send now; `None` if the sender must wait.
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
            // Pacing catches up if the timer is late by at most 1 ms.
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
            is_retransmission: false,
        });
        self.send(now, self.segments.len() - 1, false);
        Some(number)
    }

    fn send(&mut self, now: Timestamp, index: usize, is_retransmission: bool) {
        if self.in_flight == 0 {
            (self.delivered_at, self.first_sent) = (now, now);
        }
        self.transmissions_sent += 1;
        self.retransmissions += u64::from(is_retransmission);
        self.in_flight += 1;
        self.sent.push_back((self.transmissions_sent, self.base + index as u64));
        if let Some(segment) = self.segments.get_mut(index) {
            *segment = Segment {
                order: self.transmissions_sent,
                sent: now,
                delivered: self.delivered,
                delivered_at: self.delivered_at,
                first_sent: self.first_sent,
                fate: Fate::InFlight,
                is_retransmission,
            };
        }
        if self.timer.is_none() {
            self.timer = Some(now + self.timeout());
        }
    }

    /// Latest time at which [`Self::poll`] must be called.
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
        self.recovery_until = self.transmissions_sent;
        self.control.on_timeout(now);
        self.timer = Some(now + self.timeout());
        self.next_paced = now;
    }

    /// Handles an acknowledgement.
    pub fn on_ack(&mut self, now: Timestamp, ack: &Ack) {
        let mut newest: Option<Segment> = None;
        let mut acked = 0;
        // Skip the part of a range that the previous acknowledgement contained.
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
        let rtt = (!newest.is_retransmission).then(|| now - newest.sent);
        if let Some(rtt) = rtt {
            self.update_rtt(rtt);
        }
        let is_loss_event = self.detect_losses();
        let span = (now - newest.delivered_at).max(newest.sent - newest.first_sent).as_secs_f64();
        let count = (self.delivered - newest.delivered) as f64;
        self.timer = Some(now + self.timeout());
        let rate = (span > 0.0).then(|| count / span);
        self.rate = rate.or(self.rate);
        self.control.on_ack(&AckSample {
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

    fn update_rtt(&mut self, rtt: Duration) {
        self.srtt = Some(match self.srtt {
            None => (rtt, rtt / 2),
            Some((mean, deviation)) => {
                ((mean * 7 + rtt) / 8, (deviation * 3 + rtt.abs_diff(mean)) / 4)
            }
        });
    }

    /// Marks lost segments. True if this is the first loss of a round trip.
    fn detect_losses(&mut self) -> bool {
        let mut is_event = false;
        let mut found = Vec::new();
        while let Some(&(order, number)) = self.sent.front()
            && order + REORDERING_THRESHOLD <= self.largest_arrived
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
        // Retransmit in the order of segment numbers.
        found.sort_unstable();
        self.lost.extend(found);
        if is_event {
            self.recovery_until = self.transmissions_sent;
        }
        is_event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A controller with a constant window, and its count of loss events.
    #[derive(Debug)]
    struct Constant(u64, u64);

    impl Control for Constant {
        fn on_ack(&mut self, sample: &AckSample) {
            self.1 += u64::from(sample.is_loss_event);
        }
        fn on_timeout(&mut self, _now: Timestamp) {}
        fn window(&self) -> u64 {
            self.0
        }
    }

    /// Runs a sender with a window of ten segments over a path with an RTT of 10 ms.
    fn run(is_dropped: impl Fn(u64) -> bool, steps: u64) -> (Sender, Receiver) {
        let sender = Sender::new(Box::new(Constant(10, 0)));
        run_over(Duration::from_millis(10), sender, is_dropped, steps)
    }

    /// Runs `steps` milliseconds over a path with an RTT of `delay` and no rate limit. The path
    /// drops the transmissions, counted from 1, for which `is_dropped` is true.
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
        // Ten segments in each round trip of 10 ms.
        assert_eq!(sender.smoothed_rtt(), Some(Duration::from_millis(10)));
        assert!((sender.delivery_rate().unwrap_or(0.0) - 1_000.0).abs() < 1.0);
        let (sent, retransmissions) = sender.transmissions();
        assert_eq!((sent - 10 - receiver.in_order(), retransmissions), (0, 0));
    }

    #[test]
    fn losses_are_retransmitted_without_a_timeout() {
        let (sender, receiver) = run(|sent| sent % 20 == 0 || sent % 50 == 1, 2_000);
        // Seven of a hundred transmissions are lost.
        assert!((1_600..=1_900).contains(&receiver.in_order()), "{}", receiver.in_order());
        assert_eq!(sender.backoff, 0);
        let (sent, retransmissions) = sender.transmissions();
        let share = retransmissions as f64 / sent as f64;
        assert!((0.06..0.08).contains(&share), "{share}");
    }

    #[test]
    fn a_lost_window_is_retransmitted_after_a_timeout() {
        let (_, receiver) = run(|sent| (5..=15).contains(&sent), 2_000);
        assert!(receiver.in_order() > 1_000, "{}", receiver.in_order());
    }
}
