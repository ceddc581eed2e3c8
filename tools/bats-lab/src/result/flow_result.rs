//! The result of a competing flow.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A competing flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FlowResult {
    /// Label of the flow.
    pub(crate) label: String,
    /// Figures by name.
    pub(crate) figures: BTreeMap<String, f64>,
}
