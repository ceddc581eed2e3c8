//! When trials take place: at common instants of the clock.
//!
//! A flow among many cannot tell by its own rate whether losses are the path's own: its share hardly
//! changes what the others lose. All flows of a host read one clock, and hosts with synchronised
//! clocks nearly one. So every flow that sees losses sends less than was delivered at the same
//! instants: a bottleneck that they overload together has room then. The instants are irregular, so
//! that no periodic change of a link coincides with them each time.

use core::time::Duration;

use bats_types::Timestamp;

use super::constants::PROBE_RTT_DURATION;
use super::variation::{Constant, Variation};

/// Round trips in a trial: the first meets the queue that stood before.
const ROUNDS: u32 = 3;
/// Most slots from one trial of a flow to its next. The clocks of different endpoints agree only modulo
/// this many slots of the default length.
const MAX_SLOTS: u64 = 64;

/// Whether a trial is on.
#[derive(Debug)]
pub(super) struct TrialClock {
    constants: Variation,
    is_on: bool,
    /// The time of a trial passes, whether or not this flow takes part.
    was_time: bool,
}

/// What happens to the trial now.
pub(super) enum Change {
    /// It begins; packets count from then on.
    Begin(Timestamp),
    End,
    None,
}

impl TrialClock {
    pub(super) fn new(constants: Variation) -> Self {
        Self { constants, is_on: false, was_time: false }
    }

    /// Whether a trial is on.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Checks the clock. A flow that has no losses takes part without sending less.
    pub(super) fn update(&mut self, now: Timestamp, rtt: Duration, has_losses: bool) -> Change {
        let length = PROBE_RTT_DURATION.max(rtt * ROUNDS);
        let is_time = self.is_time(now, length);
        let was_time = core::mem::replace(&mut self.was_time, is_time);
        // Few losses come and go within a trial: it ends with its time.
        let was_on = self.is_on;
        self.is_on = is_time && (was_on || has_losses);
        match (was_on, self.is_on) {
            (false, true) => Change::Begin(now + length / ROUNDS),
            (true, false) => Change::End,
            (false, false) if was_time && !is_time => Change::End,
            _ => Change::None,
        }
    }

    /// Whether `now` is within a trial of this `length`.
    ///
    /// Time is divided into slots. In each an instant is drawn by the slot's number modulo
    /// [`MAX_SLOTS`]; flows with long round trips use each second, fourth and so on.
    fn is_time(&self, now: Timestamp, length: Duration) -> bool {
        let period = self.constants.value(Constant::TrialPeriod);
        let slot_length = (period * 1e9) as u64;
        let spacing = length.as_nanos() as f64 * self.constants.value(Constant::TrialSpacing);
        let slots = (spacing / slot_length as f64).ceil().clamp(1.0, MAX_SLOTS as f64) as u64;
        let slots = slots.next_power_of_two();
        let slot = now.as_nanos() / slot_length / slots * slots;
        let begin = slot * slot_length + mix(slot % MAX_SLOTS) % (slot_length / 2);
        (begin..begin + length.as_nanos() as u64).contains(&now.as_nanos())
    }
}

/// The finaliser of SplitMix64.
fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    /// The times of two minutes, in milliseconds, at which trials of a flow with this round trip begin.
    fn begins(rtt: u64, from: u64) -> Vec<u64> {
        let mut clock = TrialClock::new(Variation::default());
        let rtt = Duration::from_millis(rtt);
        (from..120_000)
            .filter(|&ms| {
                matches!(clock.update(Timestamp::from_millis(ms), rtt, true), Change::Begin(_))
            })
            .collect()
    }

    #[test]
    fn flows_with_any_round_trip_and_start_begin_together() {
        let near = begins(20, 0);
        assert_eq!(near.len(), 30);
        assert!(near.iter().enumerate().all(|(slot, &at)| at / 4_000 == slot as u64));
        assert_eq!(begins(20, 4_000), near[1..]);
        // Three round trips take more than an eighth of 4 s.
        let far = begins(300, 0);
        assert_eq!(far.len(), 15);
        assert!(far.iter().all(|at| near.contains(at)));
    }

    #[test]
    fn clocks_that_agree_modulo_256_s_have_trials_at_the_same_times() {
        let begins_after = |start: u64| -> Vec<u64> {
            let mut clock = TrialClock::new(Variation::default());
            (0..120_000)
                .filter(|&ms| {
                    let now = Timestamp::from_millis(start + ms);
                    let change = clock.update(now, Duration::from_millis(20), true);
                    matches!(change, Change::Begin(_))
                })
                .collect()
        };
        assert_eq!(begins_after(256_000), begins_after(512_000));
        assert_eq!(begins_after(256_000), begins_after(256_000 * 1_000));
    }

    #[test]
    fn trials_are_irregular() {
        let begins = begins(20, 0);
        let gaps: std::collections::BTreeSet<_> =
            begins.windows(2).map(|pair| (pair[1] - pair[0]) / 100).collect();
        assert!(gaps.len() > 10, "{gaps:?}");
    }

    #[test]
    fn trials_last_three_round_trips_whatever_is_lost_meanwhile() {
        let rtt = Duration::from_millis(100);
        let begin = begins(100, 0)[1];
        let mut clock = TrialClock::new(Variation::default());
        let mut at = |ms, has_losses| clock.update(Timestamp::from_millis(ms), rtt, has_losses);
        assert!(matches!(at(begin, true), Change::Begin(_)));
        assert!(matches!(at(begin + 298, false), Change::None));
        assert!(matches!(at(begin + 300, true), Change::End));
    }

    #[test]
    fn the_time_of_a_trial_without_losses_ends_too() {
        let begin = begins(20, 0)[0];
        let mut clock = TrialClock::new(Variation::default());
        let rtt = Duration::from_millis(20);
        let mut at = |ms| clock.update(Timestamp::from_millis(ms), rtt, false);
        assert!(matches!(at(begin), Change::None));
        assert!(matches!(at(begin + 201), Change::End));
    }
}
