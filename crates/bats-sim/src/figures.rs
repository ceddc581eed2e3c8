//! Figures of a [`Transfer`](crate::transfer::Transfer) between two times of the run.

use crate::transfer::{Outcome, Sample};

/// Step in seconds of the search for the time at which the rate has recovered.
const STEP: f64 = 0.05;

/// Times are in seconds since the connection was established, as in the samples.
/// [`Outcome::since_connected`] converts times since the start of the run.
impl Outcome {
    /// The first sample at or after `second`, or the last sample if there is none.
    ///
    /// # Panics
    ///
    /// If no connection was established.
    pub fn at(&self, second: f64) -> &Sample {
        self.sample(second).expect("the connection was established")
    }

    fn sample(&self, second: f64) -> Option<&Sample> {
        let from = |sample: &&Sample| sample.time.as_secs_f64() >= second - 1e-9;
        self.samples.iter().find(from).or(self.samples.last())
    }

    /// Converts a time since the start of the run to a time since the connection was established.
    /// Returns the time unchanged if no connection was established.
    pub fn since_connected(&self, second: f64) -> f64 {
        // Virtual time starts at one millisecond.
        self.established.map_or(second, |at| second + 0.001 - at.as_secs_f64())
    }

    /// Goodput in Mbit/s between two times, counting bytes that became deliverable in order. 0 if
    /// no connection was established or `to` is not after `from`.
    pub fn goodput(&self, from: f64, to: f64) -> f64 {
        let (Some(a), Some(b)) = (self.sample(from), self.sample(to)) else { return 0.0 };
        if b.time <= a.time {
            return 0.0;
        }
        (b.delivered - a.delivered) as f64 * 8e-6 / (b.time - a.time).as_secs_f64()
    }

    /// Seconds from `change` until a second in which the goodput is at least `least` Mbit/s begins.
    /// Infinite if there is none.
    pub fn recovery(&self, change: f64, least: f64) -> f64 {
        let end = self.samples.last().map_or(0.0, |sample| sample.time.as_secs_f64());
        let mut after = 0.0;
        while change + after + 1.0 <= end {
            if self.goodput(change + after, change + after + 1.0) >= least {
                return after;
            }
            after += STEP;
        }
        f64::INFINITY
    }

    /// Mean bytes in the queue of the data direction between two times.
    ///
    /// # Panics
    ///
    /// If no connection was established.
    pub fn mean_queue(&self, from: f64, to: f64) -> f64 {
        let (a, b) = (self.at(from), self.at(to));
        let waited = b.link.queue_byte_seconds - a.link.queue_byte_seconds;
        waited / (b.time - a.time).as_secs_f64()
    }

    /// Fraction of the packets sent to the link that its full queue dropped between two times.
    ///
    /// # Panics
    ///
    /// If no connection was established.
    pub fn queue_loss(&self, from: f64, to: f64) -> f64 {
        let (a, b) = (self.at(from), self.at(to));
        let offered = (b.link.offered - a.link.offered).max(1);
        (b.link.dropped_queue - a.link.dropped_queue) as f64 / offered as f64
    }
}
