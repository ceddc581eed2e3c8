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
}

/// The figures by transport and size.
#[derive(Clone, Debug, Default)]
pub(super) struct Results {
    pub(super) throughput: BTreeMap<String, BTreeMap<usize, Throughput>>,
    pub(super) latency: BTreeMap<String, BTreeMap<usize, Latency>>,
}

impl Results {
    /// Adds the figures of a run.
    pub(super) fn add(&mut self, case: &Case, tables: &Tables) {
        match case.test {
            Test::Throughput => {
                if let Some([_, samples, rate, mbps, lost, lost_percent]) =
                    numbers(&tables.subscriber)
                {
                    let figures = Throughput { samples, rate, mbps, lost, lost_percent };
                    let of_transport = self.throughput.entry(case.transport.clone()).or_default();
                    of_transport.insert(case.length, figures);
                }
            }
            Test::Latency => {
                if let Some([_, figures @ ..]) = numbers::<10>(&tables.publisher) {
                    let of_transport = self.latency.entry(case.transport.clone()).or_default();
                    of_transport.insert(case.length, Latency(figures));
                }
            }
        }
    }
}

/// The numbers of the last line of a table.
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
        let case =
            |test| Case { transport: "brtp".into(), test, length: 100, domain: 0, is_first: true };
        let latency = table.lines().take(2).collect::<Vec<_>>().join("\n");
        let tables = Tables { publisher: latency, subscriber: table.to_owned() };
        let mut results = Results::default();
        results.add(&case(Test::Throughput), &tables);
        results.add(&case(Test::Latency), &tables);
        let throughput = results.throughput["brtp"][&100];
        assert_eq!((throughput.mbps, throughput.lost_percent), (910.9, 28.41));
        let latency = results.latency["brtp"][&100];
        assert_eq!((latency.min(), latency.median(), latency.p90()), (96.0, 85.0, 139.0));
        assert_eq!(numbers::<3>("1, x, 3"), None);
        assert_eq!(numbers::<3>(""), None);
    }
}
