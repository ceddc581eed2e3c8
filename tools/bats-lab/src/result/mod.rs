//! Results of a run: the types of `result.json`, and computations on them.

pub(crate) mod csv;
pub(crate) mod figures;
pub(crate) mod flow_result;
pub(crate) mod flows;
pub(crate) mod folder;
pub(crate) mod judge;
pub(crate) mod measures;
pub(crate) mod series;
pub(crate) mod statistics;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::protocol::reading::Reading;
use crate::verify::Row;
use flow_result::FlowResult;
use series::{Distribution, Series};

/// The format version of `result.json`.
pub(crate) const FORMAT: &str = "batslab-result-1";

/// A run of `batslab run`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "batslab result")]
pub(crate) struct RunResult {
    /// `batslab-result-1`.
    pub(crate) format: String,
    /// Start time in UTC (RFC 3339).
    pub(crate) started: String,
    /// Duration in seconds.
    pub(crate) seconds: f64,
    /// The test file or case.
    pub(crate) file: String,
    /// The command line.
    pub(crate) command: Vec<String>,
    /// Versions of programs and kernel, and the processors.
    pub(crate) versions: BTreeMap<String, String>,
    /// Settings that were accepted but have no effect.
    pub(crate) notes: Vec<String>,
    /// Whether every test passed, was skipped or may fail.
    pub(crate) passed: bool,
    /// Why the run ended early, if it did.
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
    /// Description.
    pub(crate) description: String,
    /// The backend.
    pub(crate) backend: String,
    /// Seed of the first repetition.
    pub(crate) seed: u64,
    /// Whether all measurements and assertions passed.
    pub(crate) passed: bool,
    /// Whether the run succeeds even if this test fails.
    pub(crate) allow_failure: bool,
    /// Why the test was skipped, if this backend can measure none of it.
    #[serde(default)]
    pub(crate) skipped: Option<String>,
    /// The networks.
    pub(crate) networks: Vec<NetworkResult>,
    /// Events and competing flows, one each.
    #[serde(default)]
    pub(crate) conditions: Vec<String>,
    /// Measured and configured rate, delay and loss of the emulator, for each distinct path of the
    /// test, or for the extremes of many paths.
    #[schemars(with = "Vec<serde_json::Value>")]
    pub(crate) verification: Vec<Row>,
    /// Warnings about the test.
    pub(crate) warnings: Vec<String>,
    /// The measurements.
    pub(crate) measurements: Vec<Measurement>,
    /// Results of the assertions.
    pub(crate) assertions: Vec<AssertionResult>,
    /// Published figures of others.
    pub(crate) published: Vec<PublishedResult>,
}

/// A network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkResult {
    /// Name of its directory.
    pub(crate) name: String,
    /// Short description.
    pub(crate) label: String,
    /// Number of nodes.
    pub(crate) nodes: u32,
    /// Description of each link.
    pub(crate) links: Vec<String>,
    /// Loss of each link in percent, if equal on all links.
    pub(crate) loss_percent: Option<f64>,
    /// One-way delay of each link in ms, if equal on all links.
    pub(crate) delay_ms: Option<f64>,
}

/// How a measurement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// It has figures.
    Passed,
    /// It failed.
    Failed,
    /// The backend does not support it.
    Unsupported,
}

/// One run of a tool over a protocol and a network.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Measurement {
    /// Index of the network, from 0.
    pub(crate) network: usize,
    /// The protocol's name.
    pub(crate) protocol: String,
    /// Label of the protocol.
    pub(crate) label: String,
    /// The tool's name.
    pub(crate) tool: String,
    /// Index of the repetition, from 0.
    pub(crate) repetition: u32,
    /// Outcome.
    pub(crate) status: Status,
    /// Why it failed or is not supported.
    pub(crate) reason: Option<String>,
    /// Figures by name.
    pub(crate) figures: BTreeMap<String, f64>,
    /// Competing flows, with their own figures.
    #[serde(default)]
    pub(crate) flows: Vec<FlowResult>,
    /// Time series.
    pub(crate) series: Vec<Series>,
    /// Distributions of values.
    pub(crate) distributions: Vec<Distribution>,
    /// Warnings about these figures.
    pub(crate) warnings: Vec<String>,
    /// Whether host overload may have limited these figures, instead of the protocol; a warning has
    /// the details.
    #[serde(default)]
    pub(crate) machine_bound: bool,
    /// Command lines of the programs.
    pub(crate) commands: Vec<String>,
    /// Directory of its logs and tables, relative to that of the run.
    pub(crate) folder: String,
}

impl Measurement {
    /// Stores a reading.
    pub(crate) fn read(&mut self, reading: Reading) {
        let Reading { figures, flows, series, distributions } = reading;
        (self.figures, self.flows) = (figures, flows);
        (self.series, self.distributions) = (series, distributions);
    }
}

/// Result of an assertion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AssertionResult {
    /// The assertion.
    pub(crate) asked: String,
    /// The measured value.
    pub(crate) measured: String,
    /// Whether it holds; null if the backend does not support the measurement.
    pub(crate) holds: Option<bool>,
}

/// Published figures of others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishedResult {
    /// Source of the figures.
    pub(crate) source: String,
    /// Label of the published figures.
    pub(crate) label: String,
    /// Our figure to compare with.
    pub(crate) figure: String,
    /// One value for each network; null where none was published.
    pub(crate) values: Vec<Option<f64>>,
}

/// The schema of `result.json` derived from these types.
pub(crate) fn schema() -> serde_json::Value {
    schemars::schema_for!(RunResult).to_value()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_schema_of_results_is_current() {
        crate::config::schema::compare("result.schema.json", &schema());
    }
}
