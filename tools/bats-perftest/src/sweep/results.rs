//! The figures of a sweep, from its tables.

use std::collections::BTreeMap;

use super::run::{Case, Tables, Test};

/// Throughput of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Throughput {
    pub(super) samples: f64,
    pub(super) rate: f64,
    pub(super) mbps: f64,
    pub(super) lost: f64,
    pub(super) lost_percent: f64,
}

/// Latency of one size in microseconds: average, deviation, minimum, maximum, and the percentiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Latency(pub(super) [f64; 9]);

impl Latency {
    pub(super) fn min(&self) -> f64 {
        self.0[2]
    }

    pub(super) fn median(&self) -> f64 {
        self.0[4]
    }

    pub(super) fn p90(&self) -> f64 {
        self.0[5]
    }

    pub(super) fn p99(&self) -> f64 {
        self.0[6]
    }
}

/// The figures of all rounds by transport and size.
#[derive(Clone, Debug, Default)]
pub(super) struct Rounds {
    throughput: BTreeMap<String, BTreeMap<usize, Vec<Throughput>>>,
    latency: BTreeMap<String, BTreeMap<usize, Vec<Latency>>>,
}

/// The median; of an even number of values the lower one.
fn median<T>(rounds: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(figure).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

impl Throughput {
    /// The medians of all rounds, and the lost samples of all together.
    fn median(rounds: &[Self]) -> Self {
        let lost: f64 = rounds.iter().map(|round| round.lost).sum();
        let received: f64 = rounds.iter().map(|round| round.samples).sum();
        Self {
            samples: median(rounds, |round| round.samples),
            rate: median(rounds, |round| round.rate),
            mbps: median(rounds, |round| round.mbps),
            lost,
            lost_percent: 100.0 * lost / (received + lost).max(1.0),
        }
    }
}

/// The figures by transport and size.
#[derive(Clone, Debug, Default)]
pub(super) struct Results {
    pub(super) throughput: BTreeMap<String, BTreeMap<usize, Throughput>>,
    pub(super) latency: BTreeMap<String, BTreeMap<usize, Latency>>,
}

impl Rounds {
    /// Adds the figures of a run.
    pub(super) fn add(&mut self, case: &Case, tables: &Tables) {
        let transport = || case.transport.clone();
        match case.test {
            Test::Throughput => {
                if let Some([_, samples, rate, mbps, lost, lost_percent]) =
                    numbers(&tables.subscriber)
                {
                    let figures = Throughput { samples, rate, mbps, lost, lost_percent };
                    let of_transport = self.throughput.entry(transport()).or_default();
                    of_transport.entry(case.length).or_default().push(figures);
                }
            }
            Test::Latency => {
                if let Some([_, figures @ ..]) = numbers::<10>(&tables.publisher) {
                    let of_transport = self.latency.entry(transport()).or_default();
                    of_transport.entry(case.length).or_default().push(Latency(figures));
                }
            }
        }
    }

    /// The medians of all rounds.
    pub(super) fn medians(&self) -> Results {
        let throughput = self.throughput.iter().map(|(transport, sizes)| {
            let medians =
                sizes.iter().map(|(&size, rounds)| (size, Throughput::median(rounds))).collect();
            (transport.clone(), medians)
        });
        let latency = self.latency.iter().map(|(transport, sizes)| {
            let of_rounds = |rounds: &Vec<Latency>| {
                Latency(std::array::from_fn(|figure| median(rounds, |round| round.0[figure])))
            };
            let medians = sizes.iter().map(|(&size, rounds)| (size, of_rounds(rounds))).collect();
            (transport.clone(), medians)
        });
        Results { throughput: throughput.collect(), latency: latency.collect() }
    }
}

/// The numbers of the last line of a table.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn numbers<const N: usize>(table: &str) -> Option<[f64; N]> {
    let line = table.lines().next_back()?;
    let numbers: Vec<f64> = line.split(',').map_while(|cell| cell.trim().parse().ok()).collect();
    numbers.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_golden_tables() {
        let table = include_str!("../../tests/golden/summaries.csv");
        let case = |test| Case { transport: "brtp".into(), test, length: 100, domain: 0 };
        let latency = table.lines().take(2).collect::<Vec<_>>().join("\n");
        let tables = Tables { publisher: latency, subscriber: table.to_owned() };
        let mut rounds = Rounds::default();
        rounds.add(&case(Test::Throughput), &tables);
        rounds.add(&case(Test::Latency), &tables);
        let results = rounds.medians();
        let throughput = results.throughput["brtp"][&100];
        let percent = (throughput.lost_percent * 100.0).round() / 100.0;
        assert_eq!((throughput.mbps, percent), (910.9, 28.41), "the table rounds the latter");
        let latency = results.latency["brtp"][&100];
        assert_eq!((latency.min(), latency.median(), latency.p90()), (96.0, 85.0, 139.0));
        assert_eq!(latency.p99(), 139.0);
        assert_eq!(numbers::<3>("1, x, 3"), None);
        assert_eq!(numbers::<3>(""), None);
    }

    #[test]
    fn figures_of_several_rounds_are_medians_and_losses_are_sums() {
        let case = |test| Case { transport: "raw".into(), test, length: 64, domain: 0 };
        let mut rounds = Rounds::default();
        for (rate, median) in [(10, 7.25), (30, 6.5), (20, 90.0)] {
            let subscriber = format!("64, 100, {rate}, {rate}.5, 20, 0.00");
            let publisher = format!("64, 1, 1, 1, 1, {median}, 1, 1, 1, 1");
            let tables = Tables { publisher, subscriber };
            rounds.add(&case(Test::Throughput), &tables);
            rounds.add(&case(Test::Latency), &tables);
        }
        let results = rounds.medians();
        let throughput = results.throughput["raw"][&64];
        assert_eq!((throughput.rate, throughput.mbps, throughput.lost), (20.0, 20.5, 60.0));
        assert!((throughput.lost_percent - 100.0 * 60.0 / 360.0).abs() < 1e-9);
        assert_eq!(results.latency["raw"][&64].median(), 7.25);
    }
}
