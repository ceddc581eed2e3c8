//! The share of extra repairs that a path has room for.

use core::time::Duration;

use bats_types::Timestamp;

use super::PathView;

/// Round trips in which the share grows from 0 to 1. Faster growth overshoots: with 16, the 99.9th
/// percentile on a path with 30 % of spare rate is 1.39 delays instead of 1.18
/// (`timely_messages_with_the_latency_goal_use_spare_rate`).
const GROWTH_ROUND_TRIPS: u32 = 64;
/// Round trips without extra repairs after a queue was seen. Without the pause, flows on paths with
/// little spare rate have a queue most of the time (p99 of 2.1 instead of 1.4 delays).
const PAUSE_ROUND_TRIPS: u32 = 32;
/// A queueing delay of this part of the round trip counts as a queue.
const QUEUE_RTT_FRACTION: u32 = 32;
/// A send queue that was not empty for this part of the round trip counts as a queue, too. Shorter
/// times are those of an application that sends several messages at once.
const BACKLOG_RTT_FRACTION: u32 = 4;
/// Shorter queueing delays are those of hosts.
const MIN_QUEUE: Duration = Duration::from_micros(500);

/// Share of the repairs that only save delay. A flow that its application limits knows nothing of
/// the path's rate above its own, so the share grows slowly until there is a queue, on the path or
/// for sending. Then there are no such repairs for a while.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpareRate {
    /// 0 to 1.
    share: f64,
    updated: Option<Timestamp>,
    /// When a queue was seen last.
    queue_at: Option<Timestamp>,
}

impl SpareRate {
    /// Updates the share when a symbol is sent, and returns it: 0 to 1. `waited` is the time
    /// since the send queue was empty.
    pub(super) fn on_symbol(&mut self, now: Timestamp, waited: Duration, path: &PathView) -> f64 {
        let rtt = path.smoothed_rtt;
        let since = self.updated.replace(now).map_or(Duration::ZERO, |at| now - at);
        let has_queue = path.queue_delay > (rtt / QUEUE_RTT_FRACTION).max(MIN_QUEUE);
        if has_queue || waited > rtt / BACKLOG_RTT_FRACTION {
            self.share = 0.0;
            self.queue_at = Some(now);
        }
        // By the round trip of now: that of the queue may have been many times as long.
        if self.queue_at.is_some_and(|at| now < at + rtt * PAUSE_ROUND_TRIPS) {
            return 0.0;
        }
        // An idle flow learns nothing.
        let rounds = since.min(rtt).as_secs_f64() / rtt.as_secs_f64().max(1e-6);
        self.share = (self.share + rounds / f64::from(GROWTH_ROUND_TRIPS)).min(1.0);
        self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Duration = Duration::from_millis(20);

    fn path(queue_delay: Duration) -> PathView {
        PathView {
            rate_bytes_per_second: 1_000_000,
            smoothed_rtt: ROUND,
            ack_interval: Duration::from_millis(1),
            loss: 0.05,
            burst_factor: 1.0,
            loss_packets: 10_000,
            queue_delay,
        }
    }

    /// Sends symbols for `rounds` round trips, ten in each; returns the last share.
    fn send(spare: &mut SpareRate, now: &mut Timestamp, rounds: u32, queue: Duration) -> f64 {
        let mut share = 0.0;
        for _ in 0..10 * rounds {
            *now += ROUND / 10;
            share = spare.on_symbol(*now, Duration::ZERO, &path(queue));
        }
        share
    }

    #[test]
    fn the_share_grows_until_a_queue_and_pauses_after_it() {
        let (mut spare, mut now) = (SpareRate::default(), Timestamp::from_millis(1));
        let half = send(&mut spare, &mut now, GROWTH_ROUND_TRIPS / 2, MIN_QUEUE);
        assert!((half - 0.5).abs() < 0.01, "{half}");
        assert_eq!(send(&mut spare, &mut now, GROWTH_ROUND_TRIPS, Duration::ZERO), 1.0);
        assert_eq!(spare.on_symbol(now, Duration::ZERO, &path(ROUND / 31)), 0.0, "queue");
        assert_eq!(send(&mut spare, &mut now, PAUSE_ROUND_TRIPS - 1, Duration::ZERO), 0.0);
        assert!(send(&mut spare, &mut now, 2, Duration::ZERO) > 0.0);
        assert_eq!(spare.on_symbol(now, ROUND / 3, &path(Duration::ZERO)), 0.0, "send queue");
    }

    /// A queue of seconds, as of a host that was suspended.
    #[test]
    fn pause_lasts_32_round_trips_of_the_path_without_the_queue() {
        let (mut spare, mut now) = (SpareRate::default(), Timestamp::from_millis(1));
        let queued = PathView { smoothed_rtt: Duration::from_secs(5), ..path(ROUND * 200) };
        assert_eq!(spare.on_symbol(now, Duration::ZERO, &queued), 0.0);
        assert_eq!(send(&mut spare, &mut now, PAUSE_ROUND_TRIPS - 1, Duration::ZERO), 0.0);
        assert!(send(&mut spare, &mut now, 2, Duration::ZERO) > 0.0);
    }

    #[test]
    fn idle_time_counts_as_one_round_trip_at_most() {
        let mut spare = SpareRate::default();
        spare.on_symbol(Timestamp::from_millis(1), Duration::ZERO, &path(Duration::ZERO));
        let later = Timestamp::from_millis(3_600_000);
        let share = spare.on_symbol(later, Duration::ZERO, &path(Duration::ZERO));
        assert!(share <= 1.0 / f64::from(GROWTH_ROUND_TRIPS), "{share}");
    }

    #[test]
    fn queues_up_to_their_limits_do_not_count() {
        let mut spare = SpareRate::default();
        let mut now = Timestamp::from_millis(1);
        send(&mut spare, &mut now, GROWTH_ROUND_TRIPS * 2, Duration::ZERO);
        assert_eq!(spare.on_symbol(now, ROUND / 4, &path(ROUND / 32)), 1.0);
        let near = PathView { smoothed_rtt: Duration::from_millis(1), ..path(MIN_QUEUE) };
        assert_eq!(spare.on_symbol(now, Duration::ZERO, &near), 1.0);
        let longer = PathView { queue_delay: MIN_QUEUE + Duration::from_nanos(1), ..near };
        assert_eq!(spare.on_symbol(now, Duration::ZERO, &longer), 0.0);
    }

    #[test]
    fn share_grows_by_a_64th_in_each_round_trip_after_the_pause() {
        let mut spare = SpareRate::default();
        let start = Timestamp::from_millis(1);
        assert_eq!(spare.on_symbol(start, Duration::ZERO, &path(ROUND)), 0.0, "queue");
        let resume = start + ROUND * PAUSE_ROUND_TRIPS;
        let view = path(Duration::ZERO);
        let mut send = |at| spare.on_symbol(at, Duration::ZERO, &view);
        assert_eq!(send(resume.saturating_sub(ROUND / 4)), 0.0);
        assert_eq!(send(resume), 0.25 / 64.0);
        assert_eq!(send(resume + ROUND / 2), 0.75 / 64.0);
        assert_eq!(send(resume + ROUND * 2), 1.75 / 64.0);
    }
}
