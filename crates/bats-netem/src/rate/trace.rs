//! Recorded traces in the format of mahimahi.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use core::fmt;
use core::time::Duration;

use super::pieces::RatePieces;

/// Bytes per delivery opportunity (mahimahi: `PACKET_SIZE` without its tunnel header).
pub const OPPORTUNITY_BYTES: u64 = 1_500;
/// Maximum number of lines: an hour at 40 Mbit/s.
const MAX_LINES: usize = 12_000_000;
/// Maximum time of an opportunity in milliseconds: 24 hours.
const MAX_MILLIS: u64 = 86_400_000;
/// Maximum number of opportunities in one millisecond: 12 Tbit/s.
const MAX_PER_MILLISECOND: u32 = 1_000_000;

/// A recorded rate: the milliseconds at which a link could deliver 1,500 bytes.
///
/// In mahimahi a link delivers up to 1,500 bytes at each opportunity, and unused opportunities are
/// lost. Here the opportunities of a millisecond become a rate over the millisecond that ends with
/// it. So one integrator serves all schedules, and rate changes and queue disciplines need no
/// special case. The capacity of each millisecond is the same, unused capacity is lost as well, and
/// a packet leaves at most one millisecond before it would in mahimahi.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Millisecond and number of opportunities, ascending, without zeros.
    runs: Vec<(u32, u32)>,
}

/// Why a trace cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// Line number from 1; 0 for the whole trace.
    pub line: usize,
    /// The problem.
    pub problem: TraceProblem,
}

/// A problem of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceProblem {
    /// Not a whole number of milliseconds.
    NotANumber,
    /// Before the time of the previous line.
    NotAscending,
    /// Later than 24 hours.
    TooLate,
    /// More than a million opportunities in one millisecond.
    TooFast,
    /// More than 12 million lines.
    TooLong,
    /// No opportunity after millisecond 0: the trace has no length.
    Empty,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        f.write_str(match self.problem {
            TraceProblem::NotANumber => "not a whole number of milliseconds",
            TraceProblem::NotAscending => "earlier than the line before; times must not descend",
            TraceProblem::TooLate => "later than 86,400,000 ms (24 hours)",
            TraceProblem::TooFast => "more than 1,000,000 opportunities in one millisecond",
            TraceProblem::TooLong => "more than 12,000,000 lines",
            TraceProblem::Empty => "no delivery opportunity after 0 ms; the trace has no length",
        })
    }
}

impl core::error::Error for TraceError {}

impl Trace {
    /// Parses a trace: one decimal number of milliseconds per line, in ascending order; equal
    /// numbers may repeat. White space around a number and empty lines are ignored.
    ///
    /// # Errors
    ///
    /// A malformed line, or a trace that exceeds the limits; see [`TraceProblem`].
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, TraceError> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for (index, line) in text.as_ref().split(|&byte| byte == b'\n').enumerate() {
            let fail = |problem| TraceError { line: index.saturating_add(1), problem };
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            if index >= MAX_LINES {
                return Err(fail(TraceProblem::TooLong));
            }
            let millis = line.iter().try_fold(0_u64, |sum, &digit| {
                let value = u64::from(digit.checked_sub(b'0').filter(|&value| value < 10)?);
                Some(sum.saturating_mul(10).saturating_add(value))
            });
            let millis = millis.ok_or_else(|| fail(TraceProblem::NotANumber))?;
            if millis > MAX_MILLIS {
                return Err(fail(TraceProblem::TooLate));
            }
            let millis = millis as u32;
            match runs.last_mut() {
                Some((last, _)) if *last > millis => return Err(fail(TraceProblem::NotAscending)),
                Some((last, count)) if *last == millis => {
                    *count = count.saturating_add(1);
                    if *count > MAX_PER_MILLISECOND {
                        return Err(fail(TraceProblem::TooFast));
                    }
                }
                _ => runs.push((millis, 1)),
            }
        }
        match runs.last() {
            Some(&(last, _)) if last > 0 => Ok(Self { runs }),
            _ => Err(TraceError { line: 0, problem: TraceProblem::Empty }),
        }
    }

    /// The trace as text that [`Trace::parse`] reads.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for &(millis, count) in &self.runs {
            let line = format!("{millis}\n");
            (0..count).for_each(|_| text.push_str(&line));
        }
        text
    }

    /// Duration of the loop: the time of the last opportunity.
    pub fn length(&self) -> Duration {
        Duration::from_millis(self.runs.last().map_or(0, |&(last, _)| last.into()))
    }

    /// Number of opportunities in a loop.
    pub fn opportunities(&self) -> u64 {
        self.runs.iter().map(|&(_, count)| u64::from(count)).sum()
    }

    /// The rate, repeated.
    pub fn pieces(&self) -> RatePieces {
        let per_millisecond =
            |count: u32| u64::from(count).saturating_mul(OPPORTUNITY_BYTES * 8 * 1_000);
        // Opportunities at the end of a loop are those at the start of the next.
        let at_zero = self.runs.first().map_or(0, |&(at, count)| if at == 0 { count } else { 0 });
        let last = self.runs.last().map_or(0, |&(at, _)| at);
        let mut pieces: Vec<(Duration, u64, u64)> = Vec::new();
        let mut push = |millis: u32, rate: u64| {
            if millis == 0 {
                return;
            }
            let length = Duration::from_millis(millis.into());
            match pieces.last_mut() {
                Some((before, from, _)) if *from == rate => *before = before.saturating_add(length),
                _ => pieces.push((length, rate, rate)),
            }
        };
        let mut done = 0;
        for &(at, count) in self.runs.iter().filter(|&&(at, _)| at > 0) {
            push(at.saturating_sub(1).saturating_sub(done), 0);
            let count = count.saturating_add(if at == last { at_zero } else { 0 });
            push(1, per_millisecond(count));
            done = at;
        }
        // A trace has an opportunity after 0 ms, and its limits are stricter than those of a
        // schedule.
        RatePieces::new(pieces, true).unwrap_or_else(|_| RatePieces::silent())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn opportunities_become_the_rate_of_the_millisecond_before_them() {
        let trace = Trace::parse("1\n1\n2\n5\n").unwrap();
        assert_eq!(trace.length(), Duration::from_millis(5));
        assert_eq!(trace.opportunities(), 4);
        let pieces = trace.pieces();
        let mut hint = 0;
        let rates: Vec<u64> =
            (0..6).map(|ms| pieces.segment(ms * 1_000_000 + 7, &mut hint).from).collect();
        assert_eq!(rates, [24_000_000, 12_000_000, 0, 0, 12_000_000, 24_000_000]);
        assert_eq!(pieces.mean_bps(), 4 * 1_500 * 8 * 200);
        // An opportunity at 0 ms is one at the end of the previous loop.
        assert_eq!(Trace::parse("0\n3").unwrap().pieces().mean_bps(), 8_000_000);
    }

    #[test]
    fn errors_name_the_line() {
        let problem = |text: &str| {
            let error = Trace::parse(text).unwrap_err();
            (error.line, error.problem)
        };
        assert_eq!(problem("1\n2x\n"), (2, TraceProblem::NotANumber));
        assert_eq!(problem("1\n-2\n"), (2, TraceProblem::NotANumber));
        assert_eq!(problem("5\n\n 4\n"), (3, TraceProblem::NotAscending));
        assert_eq!(problem("1\n99999999999999999999999999\n"), (2, TraceProblem::TooLate));
        assert_eq!(problem(""), (0, TraceProblem::Empty));
        assert_eq!(problem("0\n0\n"), (0, TraceProblem::Empty));
        assert_eq!(problem(&"7\n".repeat(1_000_001)), (1_000_001, TraceProblem::TooFast));
        let text = Trace::parse("4\n3").unwrap_err().to_string();
        assert_eq!(text, "line 2: earlier than the line before; times must not descend");
        assert!(Trace::parse([0xff, 0xfe]).is_err());
    }

    proptest! {
        #[test]
        fn a_printed_trace_parses_to_the_same_trace(
            mut times in prop::collection::vec(0_u64..5_000, 1..200),
            last in 5_000_u64..6_000,
        ) {
            times.push(last);
            times.sort_unstable();
            let text: String = times.iter().map(|time| format!("{time}\n")).collect();
            let trace = Trace::parse(&text).unwrap();
            prop_assert_eq!(trace.to_text(), text.clone());
            prop_assert_eq!(trace.opportunities(), times.len() as u64);
            let bits = trace.pieces().mean_bps() as f64 * trace.length().as_secs_f64();
            prop_assert!((bits / (times.len() as f64 * 12_000.0) - 1.0).abs() < 1e-3);
        }

        #[test]
        fn arbitrary_bytes_parse_or_are_rejected(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(trace) = Trace::parse(&bytes) {
                prop_assert!(trace.pieces().mean_bps() > 0 || trace.length().as_secs() > 1);
            }
        }
    }
}
