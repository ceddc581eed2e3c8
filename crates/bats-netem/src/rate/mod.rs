//! Rates over time, and the transmission times that follow from them.

mod generated;
mod pieces;
mod segment;
mod trace;

use core::time::Duration;

use bats_types::Timestamp;

pub(crate) use generated::step_nanos;
pub use generated::{LeoRate, LteRate};
pub use pieces::RatePieces;
pub use trace::{OPPORTUNITY_BYTES, Trace, TraceError, TraceProblem};

use crate::ConfigError;
use generated::Walk;
use segment::{MAX_RATE, Segment};

/// Units of work per byte: see [`Segment`].
pub(crate) const WORK_PER_BYTE: u128 = 8_000_000_000;

/// A rate that changes with time. It begins at the link's `epoch`; its first rate applies before
/// that.
#[derive(Clone, Debug, PartialEq)]
pub enum RateSchedule {
    /// A list of pieces: steps, a sawtooth or a recorded trace.
    Pieces(RatePieces),
    /// Generated, like that of a cellular link.
    Lte(LteRate),
    /// Generated, like that of satellites in low orbit.
    Leo(LeoRate),
}

impl RateSchedule {
    /// Constant rates in bit/s with their durations, repeated or once (then the last rate remains).
    /// At rate 0 nothing is transmitted.
    ///
    /// # Errors
    ///
    /// As [`RatePieces::new`].
    pub fn steps(steps: &[(Duration, u64)], repeat: bool) -> Result<Self, ConfigError> {
        let pieces = steps.iter().map(|&(length, rate)| (length, rate, rate));
        RatePieces::new(pieces, repeat).map(Self::Pieces)
    }

    /// A sawtooth: the rate rises linearly from `low_bps` to `high_bps` within `rise`, falls back
    /// within `fall` (zero: at once), and repeats. If `rise` is zero it begins at `high_bps`.
    ///
    /// # Errors
    ///
    /// As [`RatePieces::new`].
    pub fn saw(
        low_bps: u64,
        high_bps: u64,
        rise: Duration,
        fall: Duration,
    ) -> Result<Self, ConfigError> {
        let pieces = [(rise, low_bps, high_bps), (fall, high_bps, low_bps)];
        let pieces = pieces.into_iter().filter(|(length, ..)| !length.is_zero());
        RatePieces::new(pieces, true).map(Self::Pieces)
    }

    /// A recorded trace, repeated.
    pub fn trace(trace: &Trace) -> Self {
        Self::Pieces(trace.pieces())
    }

    /// Bits that are transmitted between two times by a schedule that begins at `epoch`: the
    /// capacity of the interval.
    pub fn bits(&self, epoch: Timestamp, from: Timestamp, to: Timestamp) -> f64 {
        Rate::scheduled(self.clone(), epoch).work(from, to) as f64 / 1e9
    }

    /// The rate in bit/s at `time` of a schedule that begins at `epoch`.
    pub fn rate_at(&self, epoch: Timestamp, time: Timestamp) -> u64 {
        Rate::scheduled(self.clone(), epoch).at(time)
    }
}

/// The rate of a link over time, with a cursor at the last position.
#[derive(Clone, Debug)]
pub(crate) struct Rate {
    schedule: Option<RateSchedule>,
    epoch: u64,
    current: Segment,
    hint: usize,
    walk: Walk,
}

impl Rate {
    /// A constant rate. As everywhere, 0 counts as 1 bit/s.
    pub(crate) fn fixed(rate: u64) -> Self {
        Self {
            schedule: None,
            epoch: 0,
            current: Segment::forever(rate.max(1)),
            hint: 0,
            walk: Walk::default(),
        }
    }

    pub(crate) fn scheduled(schedule: RateSchedule, epoch: Timestamp) -> Self {
        let epoch = epoch.as_nanos();
        // An empty segment, so that the first call looks up the right one.
        let current = Segment { start: 1, end: 0, from: 0, to: 0 };
        Self { schedule: Some(schedule), epoch, current, hint: 0, walk: Walk::default() }
    }

    fn segment(&mut self, time: u64) -> Segment {
        if self.current.contains(time) {
            return self.current;
        }
        let Some(schedule) = &self.schedule else { return self.current };
        let mut lookup = |offset| match schedule {
            RateSchedule::Pieces(pieces) => pieces.segment(offset, &mut self.hint),
            RateSchedule::Lte(lte) => lte.segment(offset, &mut self.walk),
            RateSchedule::Leo(leo) => leo.segment(offset),
        };
        self.current = if time < self.epoch {
            let rate = lookup(0).from;
            Segment { start: 0, end: self.epoch, from: rate, to: rate }
        } else {
            let segment = lookup(time - self.epoch);
            Segment {
                start: segment.start.saturating_add(self.epoch),
                end: segment.end.saturating_add(self.epoch),
                ..segment
            }
        };
        self.current
    }

    /// Duration and work of a cycle that begins at `time`. Whole cycles are skipped at once, so
    /// that a slow schedule with short cycles takes no longer.
    fn cycle_at(&self, time: u64) -> Option<(u64, u128)> {
        let Some(RateSchedule::Pieces(pieces)) = &self.schedule else { return None };
        let (length, work) = pieces.cycle()?;
        (time >= self.epoch && (time - self.epoch).is_multiple_of(length)).then_some((length, work))
    }

    /// The rate in bit/s at `time`.
    pub(crate) fn at(&mut self, time: Timestamp) -> u64 {
        let time = time.as_nanos();
        self.segment(time).rate_at(time)
    }

    /// Time at which `work` that begins at `start` is done, rounded down to nanoseconds;
    /// [`Timestamp::MAX`] for never.
    #[inline]
    pub(crate) fn tx_end(&mut self, start: Timestamp, work: u128) -> Timestamp {
        let (mut time, mut left) = (start.as_nanos(), work);
        if self.schedule.is_none() {
            let nanos = segment::quotient(work, self.current.from);
            return Timestamp::from_nanos(time.saturating_add(nanos));
        }
        loop {
            if left == 0 || time == u64::MAX {
                return Timestamp::from_nanos(time);
            }
            let segment = self.segment(time);
            let can = segment.work(time, segment.end);
            if can >= left {
                return Timestamp::from_nanos(segment.finish(time, left));
            }
            left -= can;
            time = segment.end;
            if let Some((length, cycle)) = self.cycle_at(time) {
                if cycle == 0 {
                    return Timestamp::MAX;
                }
                let cycles = (left - 1) / cycle;
                left -= cycles * cycle;
                let skip = cycles.saturating_mul(length.into());
                time = time.saturating_add(u64::try_from(skip).unwrap_or(u64::MAX));
            }
        }
    }

    /// Work that is done between two times.
    pub(crate) fn work(&mut self, from: Timestamp, to: Timestamp) -> u128 {
        let (mut time, end) = (from.as_nanos(), to.as_nanos());
        let mut done = 0_u128;
        while time < end {
            let segment = self.segment(time);
            let until = segment.end.min(end);
            done = done.saturating_add(segment.work(time, until));
            time = until;
            if let Some((length, cycle)) = self.cycle_at(time) {
                let cycles = (end - time) / length;
                done = done.saturating_add(u128::from(cycles) * cycle);
                time += cycles * length;
            }
        }
        done
    }
}

/// Maximum rate of schedules in bit/s.
pub(crate) const HIGHEST: u64 = MAX_RATE;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn ms(at: u64) -> Timestamp {
        Timestamp::from_millis(at)
    }

    #[test]
    fn steps_stop_and_go() {
        let steps = [(10 * MS, 8_000_000), (20 * MS, 0), (10 * MS, 16_000_000)];
        let schedule = RateSchedule::steps(&steps, true).unwrap();
        let mut rate = Rate::scheduled(schedule, ms(5));
        let frame = 1_000 * WORK_PER_BYTE;
        // 1,000 bytes per millisecond, nothing from 15 to 35 ms, then 2,000 bytes per millisecond.
        assert_eq!(rate.tx_end(ms(5), frame), ms(6));
        assert_eq!(rate.tx_end(ms(14), frame), ms(15));
        assert_eq!(rate.tx_end(ms(15), frame), Timestamp::from_micros(35_500));
        assert_eq!(rate.tx_end(Timestamp::from_micros(14_500), frame).as_micros(), 35_250);
        // The first rate applies before the epoch.
        assert_eq!(rate.tx_end(ms(1), frame), ms(2));
        // 10 cycles of 30,000 bytes lie in between.
        assert_eq!(rate.tx_end(ms(5), 301 * frame), ms(406));
        assert_eq!(rate.work(ms(0), ms(405)), 305 * frame);
        assert_eq!(rate.at(ms(20)), 0);
        let once = RateSchedule::steps(&[(10 * MS, 8_000_000), (MS, 0)], false).unwrap();
        assert_eq!(Rate::scheduled(once, ms(0)).tx_end(ms(0), 11 * frame), Timestamp::MAX);
        let never = RateSchedule::steps(&[(MS, 0)], true).unwrap();
        assert_eq!(Rate::scheduled(never, ms(0)).tx_end(ms(0), 1), Timestamp::MAX);
    }

    #[test]
    fn a_cycle_that_is_short_and_slow_takes_no_time_to_integrate() {
        let nanosecond = Duration::from_nanos(1);
        let schedule = RateSchedule::steps(&[(nanosecond, 1), (nanosecond, 0)], true).unwrap();
        let mut rate = Rate::scheduled(schedule, ms(0));
        // 8,000 bits at half a bit per second.
        let tx_end = rate.tx_end(ms(0), 1_000 * WORK_PER_BYTE);
        assert_eq!(tx_end.as_nanos(), 16_000 * 1_000_000_000 - 1);
    }

    #[test]
    fn work_of_a_sawtooth_ends_when_its_area_is_covered() {
        let saw = RateSchedule::saw(5_000_000, 50_000_000, 2_000 * MS, Duration::ZERO).unwrap();
        let mut rate = Rate::scheduled(saw.clone(), ms(0));
        assert_eq!(rate.at(ms(1_000)), 27_500_000);
        assert_eq!(rate.at(ms(2_000)), 5_000_000);
        assert_eq!(saw.bits(ms(0), ms(0), ms(4_000)), 110e6);
        // Half of the area from 1 s on ends before sqrt(2500+...): checked by the integral itself.
        let tx_end = rate.tx_end(ms(1_000), 10_000_000 * 1_000_000_000);
        let seconds = tx_end.as_secs_f64() - 1.0;
        let bits = 27.5e6 * seconds + 22.5e6 * seconds * seconds / 2.0;
        assert!((bits - 10e6).abs() < 0.2, "{bits}");
    }

    #[test]
    fn invalid_schedules_are_rejected() {
        assert_eq!(RateSchedule::steps(&[], true).unwrap_err().field, "rate schedule");
        let zero = RateSchedule::steps(&[(Duration::ZERO, 1)], true);
        assert_eq!(zero.unwrap_err().field, "rate piece");
        assert_eq!(RateSchedule::steps(&[(MS, u64::MAX)], true).unwrap_err().field, "rate");
        let ramp = RateSchedule::saw(0, 1, Duration::from_secs(5_000), Duration::ZERO);
        assert_eq!(ramp.unwrap_err().field, "rate ramp");
        assert!(RateSchedule::saw(0, 1, Duration::ZERO, Duration::ZERO).is_err());
    }

    /// A reference that steps through the schedule by microseconds.
    fn naive(steps: &[(u64, u64)], repeat: bool, start: u64, work: u128) -> u64 {
        let length: u64 = steps.iter().map(|step| step.0).sum();
        let rate = |at: u64| {
            let mut within = if repeat { at % length } else { at.min(length - 1) };
            for &(long, rate) in steps {
                if within < long {
                    return rate;
                }
                within -= long;
            }
            0
        };
        let (mut time, mut left) = (start, work);
        loop {
            let step = u128::from(rate(time));
            if left < step || left == 0 {
                return time;
            }
            left -= step;
            time += 1;
            if time > 1_000_000 {
                return u64::MAX;
            }
        }
    }

    proptest! {
        #[test]
        fn departures_follow_the_schedule_to_the_nanosecond(
            steps in prop::collection::vec(
                (1_u64..2_000, prop_oneof![Just(0), 1_u64..2_000_000_000]), 1..6),
            repeat: bool,
            start in 0_u64..10_000,
            bits in 1_u128..10_000,
        ) {
            let list: Vec<_> =
                steps.iter().map(|&(long, rate)| (Duration::from_nanos(long), rate)).collect();
            let schedule = RateSchedule::steps(&list, repeat).unwrap();
            let mut rate = Rate::scheduled(schedule, Timestamp::ZERO);
            let work = bits * 1_000_000;
            let tx_end = rate.tx_end(Timestamp::from_nanos(start), work).as_nanos();
            let expected = naive(&steps, repeat, start, work);
            if expected == u64::MAX {
                prop_assert!(tx_end > 900_000);
            } else if tx_end != expected {
                // Work that ends with a step is done at the end of that step, not after the idle
                // time that follows.
                let done = rate.work(Timestamp::from_nanos(start), Timestamp::from_nanos(tx_end));
                prop_assert_eq!(done, work);
                prop_assert!(tx_end < expected);
            }
        }

        #[test]
        fn work_and_time_are_inverse(
            low in 0_u64..1_000_000_000, high in 0_u64..1_000_000_000,
            rise in 1_u64..1_000_000, fall in 0_u64..1_000_000,
            start in 0_u64..3_000_000, bytes in 1_u128..3_000,
        ) {
            prop_assume!(low.max(high) > 1_000_000);
            let micros = Duration::from_micros;
            let saw = RateSchedule::saw(low, high, micros(rise), micros(fall)).unwrap();
            let mut rate = Rate::scheduled(saw, Timestamp::ZERO);
            let start = Timestamp::from_micros(start);
            let work = bytes * WORK_PER_BYTE;
            let tx_end = rate.tx_end(start, work);
            let after = Timestamp::from_nanos(tx_end.as_nanos() + 2);
            // The rounding error of each segment is below one unit.
            prop_assert!(rate.work(start, tx_end) <= work + 8);
            prop_assert!(rate.work(start, after) + 8 >= work || rate.at(tx_end) < 1_000);
        }
    }
}
