//! `batsctl ping`: echo requests to a peer.

use std::path::Path;
use std::time::Duration;

use batsd::control;
use serde_json::{Value, json};

use crate::output::{print, text};

/// One request after another. Returns the summary, and whether there was an echo.
pub(crate) fn ping(
    socket: &Path,
    json: bool,
    parameters: &Value,
    count: u64,
    interval: f64,
) -> anyhow::Result<(String, bool)> {
    let mut times = Vec::new();
    let mut errors = Vec::new();
    for number in 1..=count {
        if number > 1 {
            std::thread::sleep(Duration::from_secs_f64(interval));
        }
        let line = match control::call_with(socket, "Ping", parameters) {
            Ok(answer) => {
                let time = answer["rtt_ms"].as_f64().unwrap_or(f64::NAN);
                times.push(time);
                format!("{number}: {time:.2} ms\n")
            }
            Err(error) => {
                errors.push(format!("{error:#}"));
                format!("{number}: {error:#}\n")
            }
        };
        if !json && !print(&line) {
            break;
        }
    }
    let node = text(&parameters["node"]);
    let (sent, answered) = (times.len() + errors.len(), times.len());
    let summary = match json {
        true => format!(
            "{:#}\n",
            json!({ "node": node, "sent": sent, "answered": answered, "rtt_ms": times, "errors": errors })
        ),
        false => {
            times.sort_by(f64::total_cmp);
            let at = |index: usize| times.get(index).copied().unwrap_or(f64::NAN);
            let spread = match answered {
                0 => String::new(),
                _ => format!(
                    "; minimum {:.2}, median {:.2}, maximum {:.2} ms",
                    at(0),
                    at(answered / 2),
                    at(answered - 1)
                ),
            };
            format!("{node}: {answered} of {sent} answered{spread}\n")
        }
    };
    Ok((summary, answered > 0))
}
