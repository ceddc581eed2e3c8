//! A way out of a rate that noise has led to.
//!
//! Where much is lost, a round trip at a low rate holds a packet or two: what arrives then says nothing
//! of the link, and every loss looks like too much. Whoever has come down to a small part of what a path
//! carried not long ago, although no queue stands, starts as at the beginning.

use core::time::Duration;

use bats_types::Timestamp;

/// Part of the best rate below which a start is tried, and rounds without a queue before it.
const LOW_SHARE: f64 = 0.25;
const EMPTY_ROUNDS: u32 = 16;
/// Rounds that a rate must have held to count as one that the path carried.
const HELD_ROUNDS: u32 = 4;
/// Time between two starts: twice as long after each that found nothing.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(64);

/// Whether to start anew.
#[derive(Debug)]
pub(super) struct Restart {
    /// The best rate that the path carried, octets a second, and that of these rounds.
    best: u64,
    candidate: u64,
    held: u32,
    low_rounds: u32,
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
}
