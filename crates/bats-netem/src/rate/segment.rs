//! A period in which the rate is constant or changes linearly, and its exact integral.

/// Rates above this count as this, so that integrals fit in 128 bits: 17.6 Tbit/s.
pub(crate) const MAX_RATE: u64 = 1 << 44;
/// Maximum duration of a linear change, in nanoseconds (18 minutes): with [`MAX_RATE`] the square
/// of the time still fits in 128 bits.
pub(crate) const MAX_RAMP: u64 = 1 << 40;

/// Times are in nanoseconds. Work is in units of 10^-9 bit, so that a rate in bit/s does that many
/// units per nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// First nanosecond.
    pub(crate) start: u64,
    /// First nanosecond after the segment; `u64::MAX` for a segment without end.
    pub(crate) end: u64,
    /// Rate in bit/s at the start.
    pub(crate) from: u64,
    /// Rate in bit/s at the end.
    pub(crate) to: u64,
}

impl Segment {
    /// A constant rate without end.
    pub(crate) fn forever(rate: u64) -> Self {
        Self { start: 0, end: u64::MAX, from: rate, to: rate }
    }

    pub(crate) fn contains(&self, time: u64) -> bool {
        self.start <= time && (time < self.end || self.end == u64::MAX)
    }

    /// The rate in bit/s at `time`.
    pub(crate) fn rate_at(&self, time: u64) -> u64 {
        if self.from == self.to {
            return self.from;
        }
        let length = u128::from((self.end - self.start).max(1));
        let passed = u128::from(time.clamp(self.start, self.end) - self.start);
        let change = u128::from(self.from.abs_diff(self.to)) * passed / length;
        // The change is at most the difference of the two rates.
        let change = change as u64;
        if self.to > self.from { self.from + change } else { self.from - change }
    }

    /// Work done from the start to `time`, rounded down.
    fn done(&self, time: u64) -> u128 {
        let passed = u128::from(time - self.start);
        let level = u128::from(self.from) * passed;
        if self.from == self.to {
            return level;
        }
        let double = 2 * u128::from((self.end - self.start).max(1));
        let square = u128::from(self.from.abs_diff(self.to)) * passed * passed;
        if self.to > self.from { level + square / double } else { level - square.div_ceil(double) }
    }

    /// Work done between two times of the segment.
    pub(crate) fn work(&self, from: u64, to: u64) -> u128 {
        self.done(to).saturating_sub(self.done(from))
    }

    /// Time at which `work` that begins at `from` is done, rounded down. The rest of the segment
    /// must suffice for it.
    pub(crate) fn finish(&self, from: u64, work: u128) -> u64 {
        if work == 0 {
            return from;
        }
        if self.from == self.to {
            return from.saturating_add(quotient(work, self.from.max(1)));
        }
        let goal = self.done(from) + work;
        // The last nanosecond at which at most this work is done. It is near the floating-point
        // estimate; bisection finds it from there.
        let guess = self.guess(from, work).clamp(from, self.end);
        let (mut low, mut high, mut step) = (from, self.end, 16);
        if self.done(guess) <= goal {
            low = guess;
            while low < high && high - low > step {
                let next = low + step;
                if self.done(next) > goal {
                    high = next - 1;
                    break;
                }
                low = next;
                step *= 8;
            }
        } else {
            high = guess - 1;
            while low < high && high - low > step {
                let next = high - step;
                if self.done(next) <= goal {
                    low = next;
                    break;
                }
                high = next - 1;
                step *= 8;
            }
        }
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.done(middle) <= goal {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    /// Estimates when `work` that begins at `from` is done: the root of rate * t + slope * t^2 / 2
    /// = work.
    fn guess(&self, from: u64, work: u128) -> u64 {
        let length = (self.end - self.start).max(1) as f64;
        let slope = (self.to as f64 - self.from as f64) / length;
        let rate = self.from as f64 + slope * (from - self.start) as f64;
        let root = (rate * rate + 2.0 * slope * work as f64).max(0.0).sqrt();
        // The conversion saturates. The quotient is finite except for zero work.
        from.saturating_add((2.0 * work as f64 / (rate + root)) as u64)
    }
}

/// Work divided by rate, rounded down. 64 bits suffice for frames of up to 2 GB and divide faster.
pub(crate) fn quotient(work: u128, rate: u64) -> u64 {
    match u64::try_from(work) {
        Ok(work) => work / rate.max(1),
        Err(_) => u64::try_from(work / u128::from(rate.max(1))).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_a_ramp_is_that_of_its_mean_rate() {
        let up = Segment { start: 1_000, end: 1_001_000, from: 0, to: 2_000_000 };
        let down = Segment { from: 2_000_000, to: 0, ..up };
        for ramp in [up, down] {
            assert_eq!(ramp.work(1_000, 1_001_000), 1_000_000 * 1_000_000);
            assert_eq!(ramp.rate_at(501_000), 1_000_000);
        }
        // A quarter of the work of a ramp from zero takes half of its duration.
        assert_eq!(up.finish(1_000, 250_000_000_000), 501_000);
        assert_eq!(down.finish(1_000, 750_000_000_000), 501_000);
        assert_eq!(up.finish(501_000, 0), 501_000);
    }

    #[test]
    fn the_largest_values_do_not_overflow() {
        let ramp = Segment { start: 0, end: MAX_RAMP, from: MAX_RATE, to: 0 };
        assert_eq!(ramp.work(0, MAX_RAMP), u128::from(MAX_RATE) * u128::from(MAX_RAMP) / 2);
        let constant = Segment::forever(u64::MAX);
        assert!(constant.work(0, u64::MAX) > 0);
        assert_eq!(Segment::forever(1).finish(u64::MAX - 1, u128::MAX), u64::MAX);
    }
}
