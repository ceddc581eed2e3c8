//! `batsctl trace`: the nodes on the path to another one.

use std::path::Path;
use std::time::Duration;

use batsd::control;
use serde_json::{Value, json};

use crate::output::text;

/// 32 nodes with three answers each.
const LONGER: Duration = Duration::from_secs(180);

/// Returns the list, and whether the destination answered.
pub(crate) fn trace(socket: &Path, json: bool, node: &str) -> anyhow::Result<(String, bool)> {
    let answer = control::call_within(socket, "Trace", &json!({ "node": node }), LONGER)?;
    let reached = answer["reached"] == true;
    if json {
        return Ok((format!("{answer:#}\n"), reached));
    }
    let mut output = String::new();
    for hop in answer["hops"].as_array().into_iter().flatten() {
        let times: Vec<String> = hop["rtt_ms"].as_array().into_iter().flatten().map(text).collect();
        let times = if times.is_empty() { "-".to_owned() } else { times.join(", ") + " ms" };
        output += &format!("{}: {}  {times}\n", hop["hop"], text(&hop["node"]));
    }
    if let Value::String(reason) = &answer["reason"] {
        output += &format!("{reason}\n");
    }
    Ok((output, reached))
}
