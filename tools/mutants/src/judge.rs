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
    /// Usual processor time of all tests of a mutant.
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
        let limited = self.limit(&mut tests);
        // The first run has few tests, because most mutants are caught by those; later ones have more,
        // because a start takes time.
        let mut size = Duration::from_millis(100);
        while !tests.is_empty() {
            let (batch, duration) = self.take_batch(&mut tests, size);
            match self.run(number, &batch, duration)? {
                Outcome::Failed => return Ok(Verdict::Caught),
                Outcome::TimedOut => return Ok(Verdict::TimedOut),
                Outcome::Passed => {}
            }
            size = size.saturating_mul(2);
        }
        Ok(Verdict::Missed(if limited { Missed::Limited } else { Missed::Passed }))
    }

    /// Leaves out tests that would exceed the limit, and returns whether there are any.
    fn limit(&self, tests: &mut Vec<usize>) -> bool {
        let mut total = Duration::ZERO;
        let all = tests.len();
        tests.retain(|&test| {
            let duration = self.suite.tests[test].duration;
            let within = total + duration <= self.limit;
            total += if within { duration } else { Duration::ZERO };
            within
        });
        tests.len() < all
    }

    /// Takes the first test, and as many others of its program as fit; returns them and their duration.
    fn take_batch(&self, tests: &mut Vec<usize>, size: Duration) -> (Vec<usize>, Duration) {
        let mut duration = Duration::ZERO;
        let mut batch: Vec<usize> = Vec::new();
        tests.retain(|&index| {
            let test = &self.suite.tests[index];
            let taken = batch.first().is_none_or(|&first| {
                let same = self.suite.tests[first].program == test.program;
                same && duration + test.duration <= size
            });
            if taken {
                duration += test.duration;
                batch.push(index);
            }
            !taken
        });
        (batch, duration)
    }

    fn run(&self, number: u32, tests: &[usize], duration: Duration) -> Result<Outcome> {
        let program = &self.suite.programs[self.suite.tests[tests[0]].program];
        let names: Vec<&str> = tests.iter().map(|&test| &*self.suite.tests[test].name).collect();
        let number = number.to_string();
        let (outcome, _) =
            run(program, &names, &[(switch::ACTIVE, &number)], Limits::of(duration))?;
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::suite::Test;

    /// Tests with a program and a duration in milliseconds each.
    fn suite(tests: &[(usize, u64)]) -> Suite {
        let test = |&(program, duration): &(usize, u64)| Test {
            program,
            name: String::new(),
            duration: Duration::from_millis(duration),
        };
        let tests = tests.iter().map(test).collect();
        Suite { programs: Vec::new(), tests, reaching: HashMap::new() }
    }

    #[test]
    fn tests_that_exceed_the_limit_are_left_out() {
        let suite = suite(&[(0, 600), (0, 500), (0, 300), (0, 100), (0, 1)]);
        let judge = Judge { suite: &suite, limit: Duration::from_secs(1) };
        let mut tests = vec![0, 1, 2, 3, 4];
        assert!(judge.limit(&mut tests));
        assert_eq!(tests, [0, 2, 3]);
        let mut tests = vec![1, 2];
        assert!(!judge.limit(&mut tests));
        assert_eq!(tests, [1, 2]);
    }

    #[test]
    fn a_batch_has_tests_of_one_program_that_fit() {
        let suite = suite(&[(0, 60), (1, 10), (0, 50), (0, 40), (1, 900)]);
        let judge = Judge { suite: &suite, limit: Duration::MAX };
        let mut tests = vec![0, 1, 2, 3, 4];
        let size = Duration::from_millis(100);
        assert_eq!(judge.take_batch(&mut tests, size), (vec![0, 3], size));
        assert_eq!(judge.take_batch(&mut tests, size), (vec![1], Duration::from_millis(10)));
        assert_eq!(judge.take_batch(&mut tests, size), (vec![2], Duration::from_millis(50)));
        // One that is longer than a batch is one.
        assert_eq!(judge.take_batch(&mut tests, size), (vec![4], Duration::from_millis(900)));
        assert!(tests.is_empty());
    }
}
