//! A way out of a rate that noise has led to.
//!
//! Where much is lost, a round trip at a low rate holds a packet or two: what arrives then says nothing
//! of the link, and every loss looks like too much. Whoever has come down to a small part of what a path
//! carried not long ago, although no queue stands, starts as at the beginning. Where one stands all the time, it
//! is that of others who leave nothing: a sender of so little makes none.

use core::time::Duration;

use bats_types::Timestamp;

/// Part of the best rate below which a start is tried, and rounds without a queue before it.
const LOW_SHARE: f64 = 0.25;
const EMPTY_ROUNDS: u32 = 16;
/// Part of the best rate below which whoever sees a queue in so many rounds starves.
const STARVING_SHARE: f64 = 1.0 / 16.0;
const STARVING_ROUNDS: u32 = 24;
/// Rounds that a rate must have held to count as one that the path carried.
const HELD_ROUNDS: u32 = 4;
/// Time between two starts: twice as long after each that found nothing.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(64);

/// Whether to start anew.
#[derive(Debug)]
pub(super) struct Restart {
    /// The best rate that the path carried, bytes a second, and that of these rounds.
    best: u64,
    candidate: u64,
    held: u32,
    low_rounds: u32,
    starving_rounds: u32,
    pause: Duration,
    next: Timestamp,
}

impl Default for Restart {
    fn default() -> Self {
        Self {
            best: 0,
            candidate: 0,
            held: 0,
            low_rounds: 0,
            starving_rounds: 0,
            pause: FIRST_PAUSE,
            next: Timestamp::ZERO,
        }
    }
}

impl Restart {
    /// A round has passed at this rate; whether it is time to start as at the beginning.
    pub(super) fn on_round(&mut self, now: Timestamp, bandwidth: u64, has_queue: bool) -> bool {
        self.held = if bandwidth >= self.candidate { self.held + 1 } else { 0 };
        if self.held == 0 || self.held >= HELD_ROUNDS {
            if self.held > 0 && self.candidate >= self.best {
                self.best = self.candidate;
                self.pause = FIRST_PAUSE;
            }
            self.held = 0;
            self.candidate = bandwidth;
        }
        let is_low = (bandwidth as f64) < self.best as f64 * LOW_SHARE && !has_queue;
        self.low_rounds = if is_low { self.low_rounds + 1 } else { 0 };
        if self.low_rounds < EMPTY_ROUNDS || now < self.next {
            return false;
        }
        self.low_rounds = 0;
        self.next = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        // A path that carries less for good is not tried again and again.
        self.best = (self.best / 2).max(bandwidth);
        true
    }

    /// A round has passed at this rate; whether others have left next to nothing for long.
    pub(super) fn starves(&mut self, bandwidth: u64, has_queue: bool) -> bool {
        let is_low = (bandwidth as f64) < self.best as f64 * STARVING_SHARE;
        self.starving_rounds = if is_low && has_queue { self.starving_rounds + 1 } else { 0 };
        let starves = self.starving_rounds >= STARVING_ROUNDS;
        if starves {
            self.starving_rounds = 0;
        }
        starves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of 20 ms until a start is wanted.
    fn rounds_until_start(
        restart: &mut Restart,
        from: u64,
        rate: u64,
        has_queue: bool,
    ) -> Option<u64> {
        (0..500)
            .find(|&n| restart.on_round(Timestamp::from_millis((from + n) * 20), rate, has_queue))
    }

    #[test]
    fn who_has_fallen_far_without_a_queue_starts_anew_and_later_each_time() {
        let mut restart = Restart::default();
        assert_eq!(
            rounds_until_start(&mut restart, 0, 1_000_000, false),
            None,
            "nothing has fallen"
        );
        assert_eq!(rounds_until_start(&mut restart, 500, 100_000, true), None, "a queue stands");
        assert_eq!(rounds_until_start(&mut restart, 1_000, 400_000, false), None, "not far enough");
        assert_eq!(rounds_until_start(&mut restart, 1_500, 100_000, false), Some(15));
        assert_eq!(
            rounds_until_start(&mut restart, 1_516, 100_000, false),
            Some(49),
            "a second later"
        );
        // The best rate is halved each time: a link that is slow for good is left in peace.
        assert_eq!(rounds_until_start(&mut restart, 1_566, 100_000, false), None);
    }

    #[test]
    fn who_is_left_nothing_behind_a_queue_for_long_starves() {
        let mut restart = Restart::default();
        rounds_until_start(&mut restart, 0, 1_000_000, false);
        let mut rounds_until =
            |rate, has_queue| (0..100).find(|_| restart.starves(rate, has_queue));
        assert_eq!(rounds_until(50_000, false), None, "no queue");
        assert_eq!(rounds_until(70_000, true), None, "more than a sixteenth");
        assert_eq!(rounds_until(50_000, true), Some(23));
        assert_eq!(rounds_until(50_000, true), Some(23), "and once more");
    }

    #[test]
    fn a_rate_that_did_not_hold_is_none() {
        let mut restart = Restart::default();
        for n in 0..40 {
            let rate = if n % 5 == 0 { 1_000_000 } else { 100_000 };
            assert!(!restart.on_round(Timestamp::from_millis(n * 20), rate, false), "{n}");
        }
    }
}
