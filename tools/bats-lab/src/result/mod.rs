//! What a run gave: the shapes of `result.json`, and what follows from them.

pub(crate) mod csv;
pub(crate) mod figures;
pub(crate) mod flows;
pub(crate) mod folder;
pub(crate) mod judge;
pub(crate) mod statistics;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::protocol::reading::Reading;
use crate::verify::Row;

/// The shape of this file.
pub(crate) const FORMAT: &str = "batslab-result-1";

/// A run of `batslab run`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "batslab result")]
pub(crate) struct RunResult {
    /// `batslab-result-1`.
    pub(crate) format: String,
    /// When it began, in UTC (RFC 3339).
    pub(crate) started: String,
    /// How long it took.
    pub(crate) seconds: f64,
    /// The test file or case.
    pub(crate) file: String,
    /// The command line.
    pub(crate) command: Vec<String>,
    /// Programs, kernel, processors.
    pub(crate) versions: BTreeMap<String, String>,
    /// What was accepted and had no effect.
    pub(crate) notes: Vec<String>,
    /// Whether every test passed or may fail.
    pub(crate) passed: bool,
    /// Why the run ended before its end, if it did.
    pub(crate) ended_early: Option<String>,
    /// The tests.
    pub(crate) cases: Vec<CaseResult>,
}

/// A test.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CaseResult {
    /// Its name.
    pub(crate) name: String,
    /// What it shows.
    pub(crate) description: String,
    /// Where it ran.
    pub(crate) backend: String,
    /// Decides the first repetition's random choices.
    pub(crate) seed: u64,
    /// Whether all measurements and assertions passed.
    pub(crate) passed: bool,
    /// Whether a failure leaves the whole a success.
    pub(crate) allow_failure: bool,
    /// Why nothing was measured, where what the test asks for cannot exist on this backend.
    #[serde(default)]
    pub(crate) skipped: Option<String>,
    /// The networks.
    pub(crate) networks: Vec<NetworkResult>,
    /// The emulator's own rate, delay and loss over each different way of the test, or over the corners
    /// of many, beside what was asked for.
    #[schemars(with = "Vec<serde_json::Value>")]
    pub(crate) verification: Vec<Row>,
    /// What a reader has to know of the figures.
    pub(crate) warnings: Vec<String>,
    /// The measurements.
    pub(crate) measurements: Vec<Measurement>,
    /// What the figures had to be, and were.
    pub(crate) assertions: Vec<AssertionResult>,
    /// Figures of others.
    pub(crate) published: Vec<PublishedResult>,
}

/// A network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkResult {
    /// Its folder's name.
    pub(crate) name: String,
    /// What it does, in a line.
    pub(crate) label: String,
    /// How many nodes it has.
    pub(crate) nodes: u32,
    /// Each link in words.
    pub(crate) links: Vec<String>,
    /// Loss of each link in per cent, where all have the same.
    pub(crate) loss_percent: Option<f64>,
    /// One-way delay of each link in ms, where all have the same.
    pub(crate) delay_ms: Option<f64>,
}

/// How a measurement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// It gave figures.
    Passed,
    /// It did not.
    Failed,
    /// The backend cannot do it.
    Unsupported,
}

/// One tool over one protocol over one network, once.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Measurement {
    /// Which network, from 0.
    pub(crate) network: usize,
    /// The protocol's name.
    pub(crate) protocol: String,
    /// The protocol as it is shown.
    pub(crate) label: String,
    /// The tool's name.
    pub(crate) tool: String,
    /// Which repetition, from 0.
    pub(crate) repetition: u32,
    /// How it ended.
    pub(crate) status: Status,
    /// Why it failed or is not supported.
    pub(crate) reason: Option<String>,
    /// Figures by name.
    pub(crate) figures: BTreeMap<String, f64>,
    /// The flows beside the tool's, with figures of their own.
    #[serde(default)]
    pub(crate) flows: Vec<FlowResult>,
    /// Values over time.
    pub(crate) series: Vec<Series>,
    /// Values whose distribution counts.
    pub(crate) distributions: Vec<Distribution>,
    /// What a reader has to know of these figures.
    pub(crate) warnings: Vec<String>,
    /// Whether the machine may have set these figures and not the protocol: a warning says how.
    #[serde(default)]
    pub(crate) machine_bound: bool,
    /// The programs that ran, as they were started.
    pub(crate) commands: Vec<String>,
    /// Folder of its logs and tables, below the run's.
    pub(crate) folder: String,
}

impl Measurement {
    /// Takes over what was read.
    pub(crate) fn read(&mut self, reading: Reading) {
        let Reading { figures, flows, series, distributions } = reading;
        (self.figures, self.flows) = (figures, flows);
        (self.series, self.distributions) = (series, distributions);
    }
}

/// A flow beside the tool's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FlowResult {
    /// The flow as it is shown.
    pub(crate) label: String,
    /// Figures by name.
    pub(crate) figures: BTreeMap<String, f64>,
}

/// Values over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Series {
    /// What: `throughput`, `cwnd`, `rtt`, ...
    pub(crate) name: String,
    /// Of what: the flow.
    pub(crate) of: String,
    /// In what.
    pub(crate) unit: String,
    /// Seconds and value; of throughputs the end of the interval.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Values whose distribution counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Distribution {
    /// What.
    pub(crate) name: String,
    /// In what.
    pub(crate) unit: String,
    /// The values, in rising order.
    pub(crate) values: Vec<f64>,
}

/// What a figure had to be, and was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AssertionResult {
    /// What was asked for.
    pub(crate) asked: String,
    /// What was measured.
    pub(crate) measured: String,
    /// Whether it holds; nothing where the backend cannot measure what it takes to know.
    pub(crate) holds: Option<bool>,
}

/// Figures of others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishedResult {
    /// Who published them, and where.
    pub(crate) source: String,
    /// What was measured.
    pub(crate) label: String,
    /// The figure of ours that they stand beside.
    pub(crate) figure: String,
    /// One for each network; none where nothing was published.
    pub(crate) values: Vec<Option<f64>>,
}

/// The schema of `result.json` as it follows from these shapes.
pub(crate) fn schema() -> serde_json::Value {
    schemars::schema_for!(RunResult).to_value()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_schema_of_results_is_current() {
        crate::config::schema::compare("result.schema.json", &schema());
    }
}
