//! Queueing delay: one-way delay above its minimum, free of what the reverse direction adds.

use core::time::Duration;

use bats_types::Timestamp;

use super::constants::MIN_RTT_FILTER;

/// Spans in a round trip.
const SPANS: u32 = 32;
/// Shortest span: below it timestamps show how the hosts schedule.
const MIN_SPAN: Duration = Duration::from_millis(1);
/// Spans over which a queue must stand.
const SPANS_KEPT: usize = 4;
/// Bounds of the queueing delay that counts as a queue: RFC 9406 section 4.2.
const MIN_THRESHOLD: Duration = Duration::from_millis(4);
const MAX_THRESHOLD: Duration = Duration::from_millis(16);

/// The time over which a flow with this round trip measures rate and queue.
pub(super) fn span(rtt: Duration) -> Duration {
    MIN_SPAN.max(rtt / SPANS)
}

/// Queueing delay that counts as a queue.
pub(super) fn queue_threshold(min_rtt: Duration) -> Duration {
    (min_rtt / 8).clamp(MIN_THRESHOLD, MAX_THRESHOLD)
}

/// The delay, and its minimum in each round and over the last spans.
#[derive(Debug, Default)]
pub(super) struct QueueDelay {
    min: Option<(i64, Timestamp)>,
    next_min: Option<(i64, Timestamp)>,
    round_min: Option<i64>,
    latest: Option<i64>,
    /// When this span began, its least delay, and those of the spans before.
    span: Option<(Timestamp, i64)>,
    span_minima: [Option<i64>; SPANS_KEPT],
    /// Least queueing delay of the last full round.
    pub(super) last_round: Duration,
}

impl QueueDelay {
    /// A packet sent at `sent_at` was received at `received_at`, on the receiver's clock.
    pub(super) fn on_ack(
        &mut self,
        now: Timestamp,
        sent_at: Timestamp,
        received_at: Timestamp,
        rtt: Duration,
    ) {
        // The clocks have different epochs; only differences of delays are used.
        let delay = received_at.as_nanos().wrapping_sub(sent_at.as_nanos()) as i64;
        if self.next_min.is_none_or(|(min, _)| delay <= min) {
            self.next_min = Some((delay, now));
        }
        match self.min {
            Some((min, at)) if delay > min => {
                if now - at > MIN_RTT_FILTER {
                    self.min = self.next_min.take();
                }
            }
            _ => {
                self.min = Some((delay, now));
                self.next_min = None;
            }
        }
        self.latest = Some(delay);
        self.on_span(now, delay, rtt);
        self.round_min = Some(self.round_min.map_or(delay, |min| min.min(delay)));
    }

    fn on_span(&mut self, now: Timestamp, delay: i64, rtt: Duration) {
        let (since, least) = self.span.map_or((now, delay), |(at, least)| (at, least.min(delay)));
        self.span = Some((since, least));
        if now - since >= span(rtt) {
            self.span_minima.rotate_right(1);
            self.span_minima[0] = Some(least);
            self.span = None;
        }
    }

    /// The queue that has stood over the last spans: their least delay.
    pub(super) fn standing(&self) -> Duration {
        let spans = self.span_minima.iter().copied();
        let least = spans.reduce(|least, span| Some(least?.min(span?))).flatten();
        least.map_or(Duration::ZERO, |least| self.above_min(least))
    }

    /// A round ended.
    pub(super) fn on_round(&mut self) {
        if let Some(least) = self.round_min.take() {
            self.last_round = self.above_min(least);
        }
    }

    /// The path's own delay is `delay` now.
    pub(super) fn set_base(&mut self, now: Timestamp, delay: i64) {
        *self = Self { min: Some((delay, now)), ..Self::default() };
    }

    /// Delay of the newest acknowledged packet in nanoseconds, by two clocks.
    pub(super) fn latest_delay(&self) -> Option<i64> {
        self.latest
    }

    /// Queueing delay of the newest acknowledged packet.
    pub(super) fn latest(&self) -> Duration {
        self.latest.map_or(Duration::ZERO, |delay| self.above_min(delay))
    }

    fn above_min(&self, delay: i64) -> Duration {
        let base = self.min.map_or(delay, |(min, _)| min);
        Duration::from_nanos(delay.saturating_sub(base).max(0) as u64)
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(64);

    /// The standing queue in milliseconds after packets each millisecond with these one-way delays.
    fn standing(delays: impl Iterator<Item = u64>) -> u128 {
        let mut queue = QueueDelay::default();
        for (ms, delay) in delays.enumerate() {
            let sent_at = Timestamp::from_millis(ms as u64 + 1);
            let received_at = sent_at + Duration::from_millis(delay);
            queue.on_ack(sent_at + RTT, sent_at, received_at, RTT);
        }
        queue.standing().as_millis()
    }

    #[test]
    fn a_queue_stands_after_an_eighth_of_a_round_trip() {
        let grows = |rounds: usize| (0..rounds).map(|ms| if ms < 30 { 10 } else { 15 });
        assert_eq!(standing(grows(36)), 0);
        assert_eq!(standing(grows(44)), 5);
    }

    #[test]
    fn a_delay_that_falls_back_within_that_time_is_no_queue() {
        assert_eq!(standing((0..100).map(|ms| if ms % 6 == 0 { 10 } else { 40 })), 0);
    }
}
