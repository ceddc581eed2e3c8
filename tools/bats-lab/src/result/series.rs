//! Time series and distributions of a measurement.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Time series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Series {
    /// Quantity: `throughput`, `cwnd`, `rtt`, ...
    pub(crate) name: String,
    /// The flow.
    pub(crate) of: String,
    /// Unit.
    pub(crate) unit: String,
    /// Time in seconds and value; for throughput, the end of the interval.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Distribution of values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Distribution {
    /// Quantity.
    pub(crate) name: String,
    /// Unit.
    pub(crate) unit: String,
    /// Values in rising order.
    pub(crate) values: Vec<f64>,
}
