//! Tools: the keys that each accepts and their meaning.

use serde_saphyr::{Location, Spanned};

use super::model::{PacketType, ToolSpec};
use super::source::{ConfigError, Source};
use super::words::words;
use crate::plan::{Tool, ToolKind};

/// Maximum duration of a tool in seconds.
const MAX_SECONDS: f64 = 24.0 * 3600.0;

/// Converts an entry of `test_tools`. `last` is the last node of the network.
pub(crate) fn tool(
    source: &Source,
    name: &Spanned<String>,
    spec: &ToolSpec,
    last: u32,
) -> Result<Tool, ConfigError> {
    let word = name.value.as_str();
    if word.is_empty() || word.contains(['/', '\0']) {
        return Err(source.invalid(name, "a tool name must be one word without slashes"));
    }
    let interval = within(source, &spec.interval, 1.0, 0.001, 3600.0, "seconds")?;
    let intervals = within(source, &spec.interval_num, 10, 1, 1_000_000, "intervals")?;
    let packet_count = spec.packet_count.as_ref();
    let args = || match &spec.args {
        Some(args) => words(&args.value.0).map_err(|error| source.invalid(args, error)),
        None => Ok(Vec::new()),
    };
    let is_bats = word.contains("bats_iperf");
    let (kind, known): (ToolKind, &[&str]) = if word.contains("iperf") {
        let kind = ToolKind::Throughput {
            packet_type: spec.packet_type.unwrap_or_default(),
            parallel: within(source, &spec.parallel, 1, 1, 128, "streams")?,
            bitrate: within(source, &spec.bitrate, 0.0, 0.0, 1e6, "Mbit/s")?,
            args: args()?,
            bats: is_bats,
        };
        (kind, &["parallel", "packet_type", "bitrate", "args"])
    } else {
        match word {
            word if word.starts_with("rtt") => {
                let count = (f64::from(intervals)).clamp(1.0, 1e6) as u32;
                let count = within(source, &spec.packet_count, count, 1, 10_000_000, "messages")?;
                let size = within(source, &spec.packet_size, 512, 16, 60_000, "bytes")?;
                (
                    ToolKind::Rtt { count, size },
                    &["packet_count", "packet_size", "packet_type", "under_load"],
                )
            }
            // With arguments it is the program of that name.
            "ping" if spec.args.is_none() => {
                let count =
                    within(source, &spec.packet_count, intervals, 1, 10_000_000, "datagrams")?;
                let size = within(source, &spec.packet_size, 56, 16, 1472, "bytes")?;
                (ToolKind::Ping { count, size }, &["packet_count", "packet_size", "under_load"])
            }
            "scp" => {
                let megabytes = within(source, &spec.file_size, 1, 1, 100_000, "MB")?;
                (ToolKind::Scp { megabytes }, &["file_size"])
            }
            _ => {
                let mut client = vec![word.to_owned()];
                client.extend(args()?);
                let server = spec.server.as_ref().map(|server| words(&server.0));
                let server = server.transpose().map_err(|error| source.invalid(name, error))?;
                let server = server.unwrap_or_default();
                (ToolKind::Command { words: client, server }, &["args", "server"])
            }
        }
    };
    check_keys(source, word, spec, known)?;
    // For `rtt` and `ping` the number of messages determines the duration.
    let (interval, intervals) = match (&kind, packet_count) {
        (ToolKind::Rtt { count: 1, .. }, _) => (1.0, 15),
        (ToolKind::Rtt { count, .. } | ToolKind::Ping { count, .. }, _) => (interval, *count),
        _ => (interval, intervals),
    };
    if interval * f64::from(intervals) > MAX_SECONDS {
        return Err(source.invalid(name, "a tool can run for at most 24 hours"));
    }
    let node =
        |host: &Option<Spanned<u32>>, default| host.as_ref().map_or(default, |host| host.value);
    Ok(Tool {
        name: word.to_owned(),
        client: node(&spec.client_host, 0),
        server: node(&spec.server_host, last),
        interval,
        intervals,
        kind,
        under_load: spec.under_load.as_ref().is_some_and(|is_on| is_on.value),
    })
}

fn within<T: PartialOrd + Copy + std::fmt::Display>(
    source: &Source,
    value: &Option<Spanned<T>>,
    default: T,
    min: T,
    max: T,
    unit: &str,
) -> Result<T, ConfigError> {
    match value {
        None => Ok(default),
        Some(value) if value.value >= min && value.value <= max => Ok(value.value),
        Some(value) => Err(source.invalid(value, format!("must be {min} to {max} {unit}"))),
    }
}

/// Fails if a key is set that the tool does not use.
fn check_keys(
    source: &Source,
    tool: &str,
    spec: &ToolSpec,
    known: &[&str],
) -> Result<(), ConfigError> {
    fn at<T>(value: &Option<Spanned<T>>) -> Option<Location> {
        value.as_ref().map(|value| value.referenced)
    }
    // Files for Oasis set `packet_type: tcp` for every tool, so ignore that value.
    let packet_type =
        spec.packet_type.filter(|&kind| kind != PacketType::Tcp).map(|_| Location::UNKNOWN);
    // Files for Oasis set `parallel: 1` and `bitrate: 0` for every tool.
    let parallel =
        spec.parallel.as_ref().filter(|value| value.value != 1).map(|value| value.referenced);
    let bitrate =
        spec.bitrate.as_ref().filter(|value| value.value != 0.0).map(|value| value.referenced);
    let args =
        spec.args.as_ref().filter(|args| !args.value.0.is_empty()).map(|args| args.referenced);
    let set = [
        ("parallel", parallel),
        ("packet_type", packet_type),
        ("bitrate", bitrate),
        ("args", args),
        ("packet_count", at(&spec.packet_count)),
        ("packet_size", at(&spec.packet_size)),
        ("file_size", at(&spec.file_size)),
        ("under_load", at(&spec.under_load)),
        ("server", spec.server.as_ref().map(|_| Location::UNKNOWN)),
    ];
    for (key, position) in set {
        if let Some(position) = position.filter(|_| !known.contains(&key)) {
            return Err(source.error_at(position, format!("the tool `{tool}` has no key `{key}`")));
        }
    }
    Ok(())
}
