//! `batsctl top`: links and sessions with their present rates.

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::{Duration, Instant};

use batsd::control;
use serde_json::{Value, json};

use crate::output::{print, table};

/// Bytes per second in Mbit/s between two looks at a counter.
fn mbps(now: &Value, before: Option<&Value>, path: &str, seconds: f64) -> Value {
    let value = |row: &Value| row.pointer(path).and_then(Value::as_u64);
    match (value(now), before.and_then(value)) {
        (Some(now), Some(before)) => json!(now.saturating_sub(before) as f64 * 8.0 / 1e6 / seconds),
        _ => Value::Null,
    }
}

/// The rows with their rates since `before`; `keys` identify a row.
fn with_rates(rows: &Value, before: &Value, keys: &[&str], seconds: f64) -> Value {
    let list = |rows: &Value| rows.as_array().cloned().unwrap_or_default();
    let old = list(before);
    let rated = list(rows).into_iter().map(|mut row| {
        let is_same = |other: &&Value| keys.iter().all(|key| other[*key] == row[*key]);
        let other = old.iter().find(is_same);
        row["sent_mbps"] = mbps(&row, other, "/traffic/bytes_sent", seconds);
        row["received_mbps"] = mbps(&row, other, "/traffic/bytes_received", seconds);
        row
    });
    Value::Array(rated.collect())
}

/// Shows the rates between two looks, again and again.
pub(crate) fn top(
    socket: &Path,
    json: bool,
    interval: f64,
    count: Option<u64>,
) -> anyhow::Result<()> {
    let look = || anyhow::Ok((control::call(socket, "Links")?, control::call(socket, "Sessions")?));
    let (mut before, mut at) = (look()?, Instant::now());
    let mut looks = 0;
    while count.is_none_or(|count| looks < count) {
        std::thread::sleep(Duration::from_secs_f64(interval));
        let now = look()?;
        let seconds = at.elapsed().as_secs_f64();
        at = Instant::now();
        let links = with_rates(&now.0["links"], &before.0["links"], &["name", "remote"], seconds);
        let sessions = with_rates(
            &now.1["sessions"],
            &before.1["sessions"],
            &["peer", "class", "direction"],
            seconds,
        );
        before = now;
        looks += 1;
        let text = match json {
            true => format!("{}\n", json!({ "links": links, "sessions": sessions })),
            false => top_screen(&links, &sessions),
        };
        if !print(&text) {
            break;
        }
    }
    Ok(())
}

fn top_screen(links: &Value, sessions: &Value) -> String {
    let rates = [("OUT Mbit/s", "/sent_mbps"), ("IN Mbit/s", "/received_mbps")];
    let mut of_links = vec![("LINK", "/name"), ("REMOTE", "/remote"), ("STATE", "/state")];
    of_links.extend(rates);
    of_links.extend([("RTT ms", "/traffic/rtt_ms"), ("LOSS", "/traffic/loss")]);
    let mut of_sessions = vec![("PEER", "/peer"), ("CLASS", "/class"), ("DIRECTION", "/direction")];
    of_sessions.push(("LINK", "/over_link/link"));
    of_sessions.extend(rates);
    of_sessions.extend([
        ("RTT ms", "/traffic/rtt_ms"),
        ("QUEUE", "/queue/packets"),
        ("DELAY ms", "/queue/delay_ms"),
    ]);
    // A terminal shows the newest look at the same place.
    let clear = if std::io::stdout().is_terminal() { "\x1b[2J\x1b[H" } else { "" };
    format!("{clear}{}\n{}\n", table(links, &of_links), table(sessions, &of_sessions))
}
