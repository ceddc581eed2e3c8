//! Whether tests notice a mutant.

use std::time::Duration;

use anyhow::Result;

use crate::process::{Limits, Outcome, run};
use crate::suite::Suite;
use crate::switch;

#[derive(Clone, Copy, PartialEq)]
pub enum Verdict {
    Caught,
    /// Caught, because a test did not end.
    TimedOut,
    Missed(Missed),
}

#[derive(Clone, Copy, PartialEq)]
pub enum Missed {
    /// No test reaches it.
    Unreached,
    /// All tests that reach it pass.
    Passed,
    /// Those that ran pass; others would have exceeded the limit of time.
    Limited,
}

pub struct Judge<'a> {
    pub suite: &'a Suite,
    /// Usual duration of all tests of a mutant.
    pub limit: Duration,
}

impl Judge<'_> {
    /// Runs tests that reach the site, the near ones first, each group in the order of duration.
    pub fn judge(&self, number: u32, site: u32, near: impl Fn(usize) -> bool) -> Result<Verdict> {
        let Some(reaching) = self.suite.reaching.get(&site) else {
            return Ok(Verdict::Missed(Missed::Unreached));
        };
        let (mut tests, others): (Vec<usize>, Vec<usize>) =
            reaching.iter().copied().partition(|&test| near(test));
        tests.extend(others);
        let mut total = Duration::ZERO;
        let all = tests.len();
        tests.retain(|&test| {
            let duration = self.suite.tests[test].duration;
            let within = total + duration <= self.limit;
            total += if within { duration } else { Duration::ZERO };
            within
        });
        let limited = tests.len() < all;
        // A run starts with few tests, because most mutants are caught by those; later ones have more,
        // because a start takes time.
        let mut rest = tests.as_slice();
        let mut size = Duration::from_millis(100);
        while !rest.is_empty() {
            let (batch, duration) = self.batch(rest, size);
            let outcome = self.run(number, &rest[..batch], duration)?;
            match outcome {
                Outcome::Failed => return Ok(Verdict::Caught),
                Outcome::TimedOut => return Ok(Verdict::TimedOut),
                Outcome::Passed => {}
            }
            rest = &rest[batch..];
            size *= 2;
        }
        Ok(Verdict::Missed(if limited { Missed::Limited } else { Missed::Passed }))
    }

    /// Number and duration of the first tests: at least one, of one program.
    fn batch(&self, tests: &[usize], size: Duration) -> (usize, Duration) {
        let first = &self.suite.tests[tests[0]];
        let mut duration = first.duration;
        let mut count = 1;
        for &test in &tests[1..] {
            let test = &self.suite.tests[test];
            if test.program != first.program || duration + test.duration > size {
                break;
            }
            duration += test.duration;
            count += 1;
        }
        (count, duration)
    }

    fn run(&self, number: u32, tests: &[usize], duration: Duration) -> Result<Outcome> {
        let program = &self.suite.programs[self.suite.tests[tests[0]].program];
        let names: Vec<&str> = tests.iter().map(|&test| &*self.suite.tests[test].name).collect();
        let number = number.to_string();
        run(program, &names, &[(switch::ACTIVE, &number)], Limits::of(duration))
    }
}
