//! Control by Varlink (<https://varlink.org>): JSON texts that end with a zero byte. This is the
//! client's side, and the part that both sides share.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

/// Name of the interface.
pub const INTERFACE: &str = "org.openbats.node";
/// Its description in Varlink's language.
pub const DESCRIPTION: &str = include_str!("org.openbats.node.varlink");
/// Longest call.
pub(crate) const MAX_CALL: usize = 64 << 10;
/// Longest answer that a client accepts; 1,024 peers with all counters need 1 MiB.
const MAX_ANSWER: u64 = 16 << 20;
/// Time for an answer: a reload waits for the keeper.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Calls a method of a running batsd, for example `Status`.
///
/// # Errors
/// No batsd listens at the socket, or it refuses the call.
pub fn call(socket: &Path, method: &str) -> anyhow::Result<Value> {
    call_with(socket, method, &json!({}))
}

/// As [`call`], with parameters of the method.
///
/// # Errors
/// As those of `call`.
pub fn call_with(socket: &Path, method: &str, parameters: &Value) -> anyhow::Result<Value> {
    call_within(socket, method, parameters, Duration::ZERO)
}

/// As [`call_with`], for a method that takes `longer` than others.
///
/// # Errors
/// As those of `call`.
pub fn call_within(
    socket: &Path,
    method: &str,
    parameters: &Value,
    longer: Duration,
) -> anyhow::Result<Value> {
    let stream = begin(socket, method, parameters, false)?;
    stream.set_read_timeout(Some(TIMEOUT.saturating_add(longer)))?;
    answer(socket, &mut BufReader::new(stream))
}

/// Calls a method that answers again and again, for example `Events`, and hands each answer to `each` until
/// that returns false.
///
/// # Errors
/// No batsd listens at the socket, it refuses the call, or it ends.
pub fn follow(
    socket: &Path,
    method: &str,
    mut each: impl FnMut(Value) -> bool,
) -> anyhow::Result<()> {
    let stream = begin(socket, method, &json!({}), true)?;
    // The next event may be long in coming.
    stream.set_read_timeout(None)?;
    let mut reader = BufReader::new(stream);
    while each(answer(socket, &mut reader)?) {}
    Ok(())
}

fn begin(
    socket: &Path,
    method: &str,
    parameters: &Value,
    more: bool,
) -> anyhow::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket).with_context(|| {
        format!("cannot reach batsd at {}: is it running, and may you use it?", socket.display())
    })?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let method = format!("{INTERFACE}.{method}");
    let call = match more {
        true => json!({ "method": method, "parameters": parameters, "more": true }),
        false => json!({ "method": method, "parameters": parameters }),
    };
    match stream.write_all(format!("{call}\0").as_bytes()) {
        // A client beyond a limit is refused before its call is read; the answer says why.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written?,
    }
    Ok(stream)
}

fn answer(socket: &Path, reader: &mut BufReader<UnixStream>) -> anyhow::Result<Value> {
    let mut answer = Vec::new();
    reader
        .take(MAX_ANSWER)
        .read_until(0, &mut answer)
        .with_context(|| format!("no answer of batsd at {}", socket.display()))?;
    if answer.pop() != Some(0) {
        bail!("batsd at {} ended before it answered", socket.display());
    }
    let mut answer: Value = serde_json::from_slice(&answer).context("not an answer of batsd")?;
    if let Some(error) = answer.get("error").and_then(Value::as_str) {
        let reason = answer.pointer("/parameters/reason").and_then(Value::as_str).unwrap_or(error);
        bail!("{reason}");
    }
    Ok(answer.get_mut("parameters").map(Value::take).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_any_form_are_taken_or_refused() {
        let read = |text: &str| {
            let (mut daemon, client) = UnixStream::pair().unwrap();
            daemon.write_all(text.as_bytes()).unwrap();
            drop(daemon);
            answer(Path::new("socket"), &mut BufReader::new(client))
                .map_err(|error| error.to_string())
        };
        assert_eq!(read("{\"parameters\":{\"a\":1}}\0"), Ok(json!({ "a": 1 })));
        for nothing in ["{}", "[]", "[1]", "1", "\"text\"", "null", "{\"parameters\":null}"] {
            assert_eq!(read(&format!("{nothing}\0")), Ok(Value::Null), "{nothing}");
        }
        assert_eq!(
            read("{\"error\":\"wrong\",\"parameters\":{\"reason\":\"late\"}}\0"),
            Err("late".into())
        );
        for reason in ["{\"error\":\"wrong\"}", "{\"error\":\"wrong\",\"parameters\":[{}]}"] {
            assert_eq!(read(&format!("{reason}\0")), Err("wrong".into()), "{reason}");
        }
        assert!(read("{}").is_err_and(|error| error.contains("ended before it answered")));
        assert!(read("{\0").is_err());
    }
}
