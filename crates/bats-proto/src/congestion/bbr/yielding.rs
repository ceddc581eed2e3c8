//! Is it a queue? One that this sender made shrinks when it sends less than the path's rate. What
//! does not shrink is a longer path (a satellite's handover, a new route, jitter that keeps the
//! order), or the queue of others, which will not get shorter for our waiting either.

use core::time::Duration;

use bats_types::Timestamp;

/// Part of the expected decrease that must be seen for a queue to be our own.
const OWN_SHARE: f64 = 0.25;
/// Pace that counts as less than the path's rate even if that is overestimated.
const MAX_GAIN: f64 = 0.8;
/// Least decrease that is worth a conclusion.
const MIN_EXPECTED: Duration = Duration::from_millis(5);

/// A time of sending less than the path's rate because a queue seems to stand.
#[derive(Clone, Copy, Debug)]
struct Trial {
    since: Timestamp,
    last: Timestamp,
    /// The queue at the beginning, and by how much it should have become shorter, in seconds.
    from: Duration,
    expected: f64,
    /// What the path's rate was believed to be at the beginning.
    bandwidth: u64,
}

/// What the controller sees with an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) now: Timestamp,
    /// The queue that stands.
    pub(super) standing: Duration,
    /// A queue of this length counts as such.
    pub(super) threshold: Duration,
    /// Pace, as a share of the path's rate.
    pub(super) gain: f64,
    pub(super) min_rtt: Duration,
    pub(super) smoothed_rtt: Duration,
    /// Estimate of the path's rate, bytes per second.
    pub(super) bandwidth: u64,
}

/// The queue turned out to be none of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Longer {
    /// The rate that was believed before the mistaken queue was worked off.
    pub(super) bandwidth: u64,
}

/// Watches whether queues shrink when they should.
#[derive(Debug, Default)]
pub(super) struct Yielding {
    trial: Option<Trial>,
}

impl Yielding {
    pub(super) fn on_ack(&mut self, view: &View) -> Option<Longer> {
        if view.standing <= view.threshold || view.gain > MAX_GAIN {
            self.trial = None;
            return None;
        }
        let fresh = Trial {
            since: view.now,
            last: view.now,
            from: view.standing,
            expected: 0.0,
            bandwidth: view.bandwidth,
        };
        let trial = self.trial.get_or_insert(fresh);
        let passed = view.now - trial.last;
        trial.last = view.now;
        // What is sent now shows a round trip later; until then the queue may grow.
        if view.now - trial.since <= view.smoothed_rtt + view.min_rtt {
            trial.from = trial.from.max(view.standing);
            return None;
        }
        trial.expected += passed.as_secs_f64() * (1.0 - view.gain);
        if view.standing > trial.from + view.threshold {
            // It still grows: the link may have become slower than is known yet.
            *trial = fresh;
            return None;
        }
        let worthwhile = trial.from.min(view.min_rtt / 2).max(MIN_EXPECTED).as_secs_f64();
        if trial.expected < worthwhile {
            return None;
        }
        let ended = *trial;
        let expected = ended.expected.min(ended.from.as_secs_f64());
        let seen = ended.from.saturating_sub(view.standing).as_secs_f64();
        self.trial = None;
        (seen < expected * OWN_SHARE).then_some(Longer { bandwidth: ended.bandwidth })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Acknowledgements every millisecond with the queue that `queue` gives; when and what was
    /// concluded first.
    fn watch(queue: impl Fn(u32) -> Duration) -> Option<(u32, Longer)> {
        let mut yielding = Yielding::default();
        (0..1_000).find_map(|ms| {
            let view = View {
                now: Timestamp::from_millis(u64::from(ms)),
                standing: queue(ms),
                threshold: 3 * MS,
                gain: 0.75,
                min_rtt: 40 * MS,
                smoothed_rtt: 60 * MS,
                bandwidth: 1_000,
            };
            yielding.on_ack(&view).map(|longer| (ms, longer))
        })
    }

    #[test]
    fn a_queue_that_shrinks_is_our_own() {
        assert!(watch(|ms| (80 * MS).saturating_sub(MS * ms / 4)).is_none());
        // Half of the way only: others share it.
        assert!(watch(|ms| (80 * MS).saturating_sub(MS * ms / 8)).is_none());
    }

    #[test]
    fn a_delay_that_stays_is_the_paths() {
        let (ms, longer) = watch(|_| 80 * MS).expect("a conclusion");
        assert_eq!(longer.bandwidth, 1_000);
        assert!(ms < 250, "{ms} ms");
    }

    #[test]
    fn nothing_is_concluded_while_it_grows_or_where_nothing_stands() {
        assert!(watch(|ms| 10 * MS + MS * ms).is_none());
        assert!(watch(|_| 2 * MS).is_none());
    }
}
