//! `batsctl events`: what happened to links and sessions.

use std::path::Path;

use batsd::control;
use serde_json::Value;

use crate::output::{print, text};

/// A line for each event.
pub(crate) fn lines(answer: &Value) -> String {
    let events = answer["events"].as_array().map_or(&[][..], Vec::as_slice);
    let line = |event: &Value| {
        let mut line =
            format!("{:.3}  {}", event["time"].as_f64().unwrap_or(0.0), text(&event["event"]));
        let fields = event.as_object().into_iter().flatten();
        let others = fields
            .filter(|(key, value)| !["time", "event"].contains(&key.as_str()) && !value.is_null());
        for (key, value) in others {
            line += &format!("  {key}={}", text(value));
        }
        line + "\n"
    };
    events.iter().map(line).collect()
}

/// Prints the events until the program that reads them, or the daemon, ends.
pub(crate) fn follow(socket: &Path, json: bool) -> anyhow::Result<()> {
    control::follow(socket, "Events", |answer| match json {
        // A line for each event.
        true => answer["events"]
            .as_array()
            .into_iter()
            .flatten()
            .all(|event| print(&format!("{event}\n"))),
        false => print(&lines(&answer)),
    })
}
