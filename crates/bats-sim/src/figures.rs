//! What came of a [`Transfer`](crate::transfer::Transfer) between two seconds of it.

use crate::transfer::{Outcome, Sample};

/// Between two looks for the second from which on the rate is back.
const STEP: f64 = 0.05;

/// Seconds count from the established connection, as the samples have them; those of the run are
/// made such by [`Outcome::since_connected`].
impl Outcome {
    /// The first sample from `second` on, the last one if there is none.
    ///
    /// # Panics
    ///
    /// If no connection came about.
    pub fn at(&self, second: f64) -> &Sample {
        self.sample(second).expect("a connection came about")
    }

    fn sample(&self, second: f64) -> Option<&Sample> {
        let from = |sample: &&Sample| sample.time.as_secs_f64() >= second - 1e-9;
        self.samples.iter().find(from).or(self.samples.last())
    }

    /// A second of the run, as samples count; where no connection came about, the same.
    pub fn since_connected(&self, second: f64) -> f64 {
        // Virtual time starts at one millisecond.
        self.established.map_or(second, |at| second + 0.001 - at.as_secs_f64())
    }

    /// Mbit/s that became deliverable between two seconds; 0 where no connection came about or
    /// no time is between them.
    pub fn goodput(&self, from: f64, to: f64) -> f64 {
        let (Some(a), Some(b)) = (self.sample(from), self.sample(to)) else { return 0.0 };
        if b.time <= a.time {
            return 0.0;
        }
        (b.delivered - a.delivered) as f64 * 8e-6 / (b.time - a.time).as_secs_f64()
    }

    /// Seconds from the second `change` until the second that follows brings `least` Mbit/s;
    /// infinite if none does.
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

    /// Mean bytes in the queue of the data's direction between two seconds.
    ///
    /// # Panics
    ///
    /// If no connection came about.
    pub fn mean_queue(&self, from: f64, to: f64) -> f64 {
        let (a, b) = (self.at(from), self.at(to));
        let waited = b.link.queue_byte_seconds - a.link.queue_byte_seconds;
        waited / (b.time - a.time).as_secs_f64()
    }

    /// Share of the packets handed to the link that its full queue dropped between two seconds.
    ///
    /// # Panics
    ///
    /// If no connection came about.
    pub fn queue_loss(&self, from: f64, to: f64) -> f64 {
        let (a, b) = (self.at(from), self.at(to));
        let offered = (b.link.offered - a.link.offered).max(1);
        (b.link.dropped_queue - a.link.dropped_queue) as f64 / offered as f64
    }
}
