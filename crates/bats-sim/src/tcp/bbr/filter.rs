use std::collections::VecDeque;

/// Windowed maximum over rounds. It is exact, where Linux's `minmax_running_max` keeps three
/// samples.
#[derive(Debug)]
pub(super) struct MaxFilter {
    rounds: u64,
    /// (round, value) with decreasing values: the first one is the maximum.
    values: VecDeque<(u64, f64)>,
}

impl MaxFilter {
    pub(super) fn new(rounds: u64) -> Self {
        Self { rounds, values: VecDeque::new() }
    }

    pub(super) fn max(&self) -> Option<f64> {
        self.values.front().map(|&(_, value)| value)
    }

    pub(super) fn update(&mut self, round: u64, value: f64) {
        while self.values.back().is_some_and(|&(_, last)| last <= value) {
            self.values.pop_back();
        }
        self.values.push_back((round, value));
        while self.values.front().is_some_and(|&(at, _)| at + self.rounds < round) {
            self.values.pop_front();
        }
    }
}
