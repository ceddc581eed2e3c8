//! Tools: the programs that each runs over a protocol, and how their output is parsed.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

mod scp;

use anyhow::{Result, bail};

use crate::config::model::{NodeEntry, PacketType, Relays};
use crate::config::suggest::nearest;
use crate::plan::{Protocol, ProtocolKind, Tool, ToolKind};
use crate::protocol::commands;
use crate::protocol::incompatible;
use crate::protocol::load::{LoadRequest, NO_RELAYS, load};
use crate::protocol::perftest;
use crate::protocol::programs::{BATSLAB, find};
use crate::protocol::reading::{self, OutputFormat, Reading};
use crate::result::figures::set;

/// Port of the tool's server.
pub(crate) const PORT: u16 = 5201;

/// The command lines of a tool, and how to parse their output.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Runs on the server's node, if present.
    pub(crate) server: Option<Vec<String>>,
    /// Runs on the client's node.
    pub(crate) client: Vec<String>,
    pub(crate) read: OutputParser,
    /// Seconds after which the client is ended; that is not a failure.
    pub(crate) ends_after: Option<f64>,
    /// Whether a built-in load can replace iperf3 if it fails.
    pub(crate) has_stand_in: bool,
    /// Port of the flow at the server, to find the kernel's statistics of its socket.
    pub(crate) port: u16,
}

/// How the output of a tool is parsed.
#[derive(Clone, Debug)]
pub(crate) enum OutputParser {
    /// Throughput.
    Throughput { output_format: OutputFormat, interval: f64, length: f64 },
    /// Round-trip times.
    RoundTrips,
    /// A copied file, which must equal the original.
    File(scp::FileCopy),
    /// The exit code; also figures, if the command prints JSON as iperf3 or bats_perftest does.
    Command,
}

/// Where and how a tool runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToolContext<'a> {
    /// Address of the server.
    pub(crate) to: &'a str,
    /// Whether iperf3 has failed already.
    pub(crate) without_iperf3: bool,
    /// Seconds between samples of the sender's state.
    pub(crate) sample_interval: f64,
    /// Whether server and client share the file system.
    pub(crate) is_local: bool,
}

/// The command lines of `tool` over `protocol`.
///
/// # Errors
/// The two cannot be combined, or a program is missing; the error is meant for users.
pub(crate) fn job(tool: &Tool, protocol: &Protocol, context: &ToolContext<'_>) -> Result<Job> {
    if let ProtocolKind::Missing { why } = &protocol.kind {
        incompatible!("{why}");
    }
    match &tool.kind {
        ToolKind::Throughput { packet_type, parallel, bitrate, args, bats } => {
            let load = load(&LoadRequest {
                protocol,
                to: context.to,
                port: PORT,
                seconds: tool.seconds(),
                interval: tool.interval,
                sample_interval: context.sample_interval,
                parallel: *parallel,
                bitrate: *bitrate,
                packet_type: *packet_type,
                args,
                bats: *bats,
                without_iperf3: context.without_iperf3,
            })?;
            let has_stand_in = load.output_format == OutputFormat::Iperf
                && *parallel == 1
                && args.is_empty()
                && *bitrate == 0.0;
            Ok(Job {
                server: Some(load.server),
                client: load.client,
                read: OutputParser::Throughput {
                    output_format: load.output_format,
                    interval: tool.interval,
                    length: tool.seconds(),
                },
                ends_after: None,
                has_stand_in,
                port: port_of(protocol),
            })
        }
        ToolKind::Rtt { count, size } => round_trips(tool, protocol, context, *count, *size),
        ToolKind::Ping { .. } | ToolKind::Command { .. } if is_forward(protocol) => {
            incompatible!("{} forwards TCP to the port of the built-in tools only", protocol.name)
        }
        ToolKind::Ping { count, size } => {
            Ok(echo(tool, "udp", context.to, PORT, *count, *size, None))
        }
        ToolKind::Scp { megabytes } => scp::job(protocol, context, *megabytes),
        ToolKind::Command { words, server } => command(tool, protocol, context, words, server),
    }
}

fn is_forward(protocol: &Protocol) -> bool {
    matches!(protocol.kind, ProtocolKind::Node { entry: NodeEntry::Forward, .. })
}

/// The server port of a flow of the protocol.
fn port_of(protocol: &Protocol) -> u16 {
    match &protocol.kind {
        ProtocolKind::Tunnel { port, .. } => *port,
        _ => PORT,
    }
}

fn round_trips(
    tool: &Tool,
    protocol: &Protocol,
    context: &ToolContext<'_>,
    count: u32,
    size: u32,
) -> Result<Job> {
    let (transport, to, port, congestion) = match &protocol.kind {
        ProtocolKind::Tcp { congestion }
        | ProtocolKind::Node { congestion, .. }
        | ProtocolKind::WireGuard { congestion } => {
            ("tcp", context.to, PORT, Some(congestion.as_str()))
        }
        ProtocolKind::Daemon { .. } => ("tcp", context.to, PORT, None),
        ProtocolKind::Udp => ("udp", context.to, PORT, None),
        ProtocolKind::Quic { congestion } => ("quic", context.to, PORT, Some(congestion.as_str())),
        ProtocolKind::Bats { relays: Some(Relays::Recode | Relays::Forward), .. } => {
            incompatible!("{NO_RELAYS}")
        }
        ProtocolKind::Bats { mode, .. } => {
            let transport = match mode.as_str() {
                "0" | "btp" => "btp",
                "1" | "brtp" => "brtp",
                "2" | "brctp" => "brctp",
                "3" | "transparent" => "transparent",
                "10" | "tcp" => "tcp",
                "11" | "udp" => "udp",
                "12" | "quic" => incompatible!("rtt supports QUIC as `quic` and `quic-bbr`"),
                _ => incompatible!("rtt does not support mode {mode}"),
            };
            (transport, context.to, PORT, None)
        }
        ProtocolKind::Tunnel { port, carries: PacketType::Tcp, .. } => {
            ("tcp", "127.0.0.1", *port, None)
        }
        ProtocolKind::Tunnel { is_one_way: true, .. } => {
            incompatible!(
                "{} transports datagrams to the server only: there are no replies",
                protocol.name
            )
        }
        ProtocolKind::Tunnel { port, .. } => ("udp", "127.0.0.1", *port, None),
        ProtocolKind::Missing { why } => incompatible!("{why}"),
    };
    let mut job = echo(tool, transport, to, port, count, size, congestion);
    if transport == "udp" {
        job.port = 0;
    }
    Ok(job)
}

fn echo(
    tool: &Tool,
    transport: &str,
    to: &str,
    port: u16,
    count: u32,
    size: u32,
    congestion: Option<&str>,
) -> Job {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut client = words(&[
        BATSLAB,
        "__rtt",
        "--transport",
        transport,
        "--to",
        &format!("{to}:{port}"),
        "--count",
        &count.to_string(),
        "--size",
        &size.to_string(),
        "--interval",
        &tool.interval.to_string(),
    ]);
    if count == 1 {
        client.extend(words(&["--first", "15"]));
    }
    if let Some(congestion) = congestion {
        client.extend(words(&["--congestion", congestion]));
    }
    Job {
        server: Some(words(&[
            BATSLAB,
            "__echo",
            "--transport",
            transport,
            "--port",
            &port.to_string(),
        ])),
        client,
        read: OutputParser::RoundTrips,
        ends_after: None,
        has_stand_in: false,
        port,
    }
}

fn command(
    tool: &Tool,
    protocol: &Protocol,
    context: &ToolContext<'_>,
    words: &[String],
    server: &[String],
) -> Result<Job> {
    let to = match &protocol.kind {
        ProtocolKind::Tunnel { .. } => "127.0.0.1",
        _ => context.to,
    };
    let fill = |words: &[String]| -> Vec<String> {
        words.iter().map(|word| word.replace("%s", to)).collect()
    };
    let client = fill(words);
    let program = client.first().map_or("", String::as_str);
    if context.is_local
        && let Some(why) = not_installed(program)
    {
        bail!("{why}");
    }
    if matches!(protocol.kind, ProtocolKind::Bats { .. } | ProtocolKind::Quic { .. }) {
        incompatible!("`{program}` cannot use {}, for which there is no tunnel", protocol.name);
    }
    Ok(Job {
        server: (!server.is_empty()).then(|| fill(server)),
        client,
        read: OutputParser::Command,
        ends_after: Some(tool.seconds() + 1.0),
        has_stand_in: false,
        port: 0,
    })
}

/// Built-in tools.
const BUILT_IN: [&str; 5] = ["iperf", "bats_iperf", "rtt", "ping", "scp"];

/// The error about a command that is not installed on this machine, if it is not.
pub(crate) fn not_installed(program: &str) -> Option<String> {
    if find(program).is_some() {
        return None;
    }
    Some(match nearest(program, BUILT_IN) {
        Some(tool) => {
            format!("the program `{program}` is not installed; did you mean the tool `{tool}`?")
        }
        None => format!("the program `{program}` is not installed"),
    })
}

/// The output of a tool's programs, and how the client ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToolOutput<'a> {
    pub(crate) client: &'a str,
    pub(crate) server: &'a str,
    pub(crate) exit_code: Option<i32>,
    /// Seconds that the client ran.
    pub(crate) seconds: f64,
}

/// Parses the results of a tool.
///
/// # Errors
/// There are none; the error gives the reason.
pub(crate) fn read(job: &Job, output: &ToolOutput<'_>, of: &str) -> Result<Reading> {
    match &job.read {
        OutputParser::Throughput { output_format, interval, length } => reading::throughput(
            *output_format,
            *interval,
            *length,
            output.client,
            output.server,
            of,
        ),
        OutputParser::RoundTrips => reading::round_trips(output.client, of),
        OutputParser::File(copy) => copy.read(output.seconds),
        OutputParser::Command => {
            // The command decides how long it sends.
            let length = f64::INFINITY;
            let (client, server) = (output.client, output.server);
            let mut reading = match commands::ping(client, of)? {
                Some(reading) => reading,
                None => reading::throughput(OutputFormat::Iperf, 0.0, length, client, server, of)
                    .unwrap_or_default(),
            };
            commands::curl(&mut reading.figures, client);
            perftest::read(&mut reading.figures, client, server);
            if let Some(code) = output.exit_code {
                set(&mut reading.figures, "exit_code", f64::from(code));
            }
            Ok(reading)
        }
    }
}
