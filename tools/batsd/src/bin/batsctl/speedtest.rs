//! `batsctl speedtest`: throughput to a peer and back.

use std::path::Path;
use std::time::Duration;

use batsd::control;
use serde_json::{Value, json};

use crate::output::print;

/// Time for the request, the report and the end of what is in transit, in addition to the test.
const LONGER: Duration = Duration::from_secs(20);

/// Measures the directions one after the other. The error of the first one that fails is the result.
pub(crate) fn speedtest(
    socket: &Path,
    json: bool,
    node: &str,
    seconds: u64,
    direction: &str,
) -> anyhow::Result<(String, bool)> {
    let mut result = json!({ "node": node, "out": Value::Null, "in": Value::Null });
    for (name, arrow) in [("out", "to"), ("in", "from")] {
        if direction != name && direction != "both" {
            continue;
        }
        let parameters = json!({ "node": node, "direction": name, "seconds": seconds });
        let longer = Duration::from_secs(seconds) + LONGER;
        let answer = control::call_within(socket, "Speedtest", &parameters, longer)?;
        let mbps = answer["mbps"].as_f64().unwrap_or(0.0);
        if !json && !print(&format!("{arrow} {node}: {mbps:.1} Mbit/s\n")) {
            break;
        }
        result[name] = answer;
    }
    Ok((if json { format!("{result:#}\n") } else { String::new() }, true))
}
