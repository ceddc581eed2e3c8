//! Windowed maximum over a virtual clock.

use std::collections::VecDeque;

/// The largest value of the last `window` ticks. It drops values that a later, larger value
/// supersedes, so it holds at most one entry per tick of the window.
#[derive(Debug, Default)]
pub(super) struct WindowedMax {
    entries: VecDeque<(u64, u64)>,
}

impl WindowedMax {
    /// Adds `value` at tick `time` and drops values older than `window` ticks.
    pub(super) fn update(&mut self, value: u64, time: u64, window: u64) -> u64 {
        while self.entries.back().is_some_and(|&(_, last)| last <= value) {
            self.entries.pop_back();
        }
        match self.entries.back() {
            // Keeps only the largest value of a tick.
            Some(&(at, _)) if at == time => {}
            _ => self.entries.push_back((time, value)),
        }
        while self.entries.len() > 1
            && self.entries.front().is_some_and(|&(at, _)| at + window <= time)
        {
            self.entries.pop_front();
        }
        self.max()
    }

    /// The largest value in the window; 0 if there is none.
    pub(super) fn max(&self) -> u64 {
        self.entries.front().map_or(0, |&(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_a_scan_of_the_window(steps in prop::collection::vec((0_u64..3, 0_u64..50), 1..200)) {
            let (mut filter, mut time) = (WindowedMax::default(), 0);
            let mut all: Vec<(u64, u64)> = Vec::new();
            for (step, value) in steps {
                time += step;
                all.push((time, value));
                let kept = all.iter().filter(|&&(at, _)| at + 5 > time);
                let naive = kept.map(|&(_, value)| value).max().unwrap();
                prop_assert_eq!(filter.update(value, time, 5), naive);
                prop_assert!(filter.entries.len() <= 5);
            }
        }
    }
}
