//! Tools: the programs that each starts over a protocol, and how their words are read.

mod scp;

use anyhow::{Result, bail};

use crate::config::model::{PacketType, Relays};
use crate::config::suggest::nearest;
use crate::plan::{Protocol, ProtocolKind, Tool, ToolKind};
use crate::protocol::load::{NO_RELAYS, Wish, load};
use crate::protocol::programs::{BATSLAB, find};
use crate::protocol::reading::{self, Reader, Reading};
use crate::protocol::unfit;
use crate::result::figures::set;

/// Port of the tool's server.
pub(crate) const PORT: u16 = 5201;

/// The programs of a tool.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// On the server's node, if there is one.
    pub(crate) server: Option<Vec<String>>,
    /// On the client's node.
    pub(crate) client: Vec<String>,
    pub(crate) read: Read,
    /// Seconds after which the client is ended and that is no failure.
    pub(crate) ends_after: Option<f64>,
    /// Whether the tool's failure is that of iperf3, for which there is a stand-in.
    pub(crate) has_stand_in: bool,
    /// Port of the flow at the server, for the kernel's figures of its socket.
    pub(crate) port: u16,
}

/// How the words of a tool are read.
#[derive(Clone, Debug)]
pub(crate) enum Read {
    /// Throughput.
    Throughput { reader: Reader, interval: f64, length: f64 },
    /// Round-trip times.
    RoundTrips,
    /// A file that was copied, and must be equal to the one that was sent.
    File(scp::Copy),
    /// Nothing but the exit code; throughput if it prints JSON in iperf3's shape.
    Command,
}

/// Where a tool runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// Address of the server.
    pub(crate) to: &'a str,
    /// Whether iperf3 has failed already.
    pub(crate) own: bool,
    /// Seconds between samples of a sender's state.
    pub(crate) sample_interval: f64,
    /// Whether server and client share the file system.
    pub(crate) is_local: bool,
}

/// The programs of `tool` over `protocol`.
///
/// # Errors
/// Where the two do not go together, or a program is missing; in words for people.
pub(crate) fn job(tool: &Tool, protocol: &Protocol, place: &Place<'_>) -> Result<Job> {
    if let ProtocolKind::Missing { why } = &protocol.kind {
        unfit!("{why}");
    }
    match &tool.kind {
        ToolKind::Throughput { packet_type, parallel, bitrate, args, bats } => {
            let load = load(&Wish {
                protocol,
                to: place.to,
                port: PORT,
                seconds: tool.seconds(),
                interval: tool.interval,
                sample_interval: place.sample_interval,
                parallel: *parallel,
                bitrate: *bitrate,
                packet_type: *packet_type,
                args,
                bats: *bats,
                own: place.own,
            })?;
            let has_stand_in = load.reader == Reader::Iperf
                && *parallel == 1
                && args.is_empty()
                && *bitrate == 0.0;
            Ok(Job {
                server: Some(load.server),
                client: load.client,
                read: Read::Throughput {
                    reader: load.reader,
                    interval: tool.interval,
                    length: tool.seconds(),
                },
                ends_after: None,
                has_stand_in,
                port: port_of(protocol),
            })
        }
        ToolKind::Rtt { count, size } => round_trips(tool, protocol, place, *count, *size),
        ToolKind::Ping { count, size } => {
            Ok(echo(tool, "udp", place.to, PORT, *count, *size, None))
        }
        ToolKind::Scp { megabytes } => scp::job(protocol, place, *megabytes),
        ToolKind::Command { words, server } => command(tool, protocol, place, words, server),
    }
}

/// The port that a flow of the protocol has at its server.
fn port_of(protocol: &Protocol) -> u16 {
    match &protocol.kind {
        ProtocolKind::Tunnel { port, .. } => *port,
        _ => PORT,
    }
}

fn round_trips(
    tool: &Tool,
    protocol: &Protocol,
    place: &Place<'_>,
    count: u32,
    size: u32,
) -> Result<Job> {
    let (carrier, to, port, congestion) = match &protocol.kind {
        ProtocolKind::Tcp { congestion } => ("tcp", place.to, PORT, Some(congestion.as_str())),
        ProtocolKind::Daemon { .. } => ("tcp", place.to, PORT, None),
        ProtocolKind::Udp => ("udp", place.to, PORT, None),
        ProtocolKind::Quic { congestion } => ("quic", place.to, PORT, Some(congestion.as_str())),
        ProtocolKind::Bats { relays: Some(Relays::Recode | Relays::Forward), .. } => {
            unfit!("{NO_RELAYS}")
        }
        ProtocolKind::Bats { mode, .. } => {
            let carrier = match mode.as_str() {
                "0" | "btp" => "btp",
                "1" | "brtp" => "brtp",
                "2" | "brctp" => "brctp",
                "3" | "transparent" => "transparent",
                "10" | "tcp" => "tcp",
                "11" | "udp" => "udp",
                "12" | "quic" => unfit!("rtt measures QUIC over `quic` and `quic-bbr`"),
                _ => unfit!("rtt does not know mode {mode}"),
            };
            (carrier, place.to, PORT, None)
        }
        ProtocolKind::Tunnel { port, carries: PacketType::Tcp, .. } => {
            ("tcp", "127.0.0.1", *port, None)
        }
        ProtocolKind::Tunnel { is_one_way: true, .. } => {
            unfit!("{} carries datagrams to the server only: nothing comes back", protocol.name)
        }
        ProtocolKind::Tunnel { port, .. } => ("udp", "127.0.0.1", *port, None),
        ProtocolKind::Missing { why } => unfit!("{why}"),
    };
    let mut job = echo(tool, carrier, to, port, count, size, congestion);
    if carrier == "udp" {
        job.port = 0;
    }
    Ok(job)
}

fn echo(
    tool: &Tool,
    carrier: &str,
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
        "--carrier",
        carrier,
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
            "--carrier",
            carrier,
            "--port",
            &port.to_string(),
        ])),
        client,
        read: Read::RoundTrips,
        ends_after: None,
        has_stand_in: false,
        port,
    }
}

fn command(
    tool: &Tool,
    protocol: &Protocol,
    place: &Place<'_>,
    words: &[String],
    server: &[String],
) -> Result<Job> {
    let to = match &protocol.kind {
        ProtocolKind::Tunnel { .. } => "127.0.0.1",
        _ => place.to,
    };
    let fill = |words: &[String]| -> Vec<String> {
        words.iter().map(|word| word.replace("%s", to)).collect()
    };
    let client = fill(words);
    let program = client.first().map_or("", String::as_str);
    if place.is_local
        && let Some(why) = not_installed(program)
    {
        bail!("{why}");
    }
    if matches!(protocol.kind, ProtocolKind::Bats { .. } | ProtocolKind::Quic { .. }) {
        unfit!(
            "`{program}` cannot speak {}; tunnels for any command come with the node",
            protocol.name
        );
    }
    Ok(Job {
        server: (!server.is_empty()).then(|| fill(server)),
        client,
        read: Read::Command,
        ends_after: Some(tool.seconds() + 1.0),
        has_stand_in: false,
        port: 0,
    })
}

/// Tools that are more than a command.
const BUILT_IN: [&str; 5] = ["iperf", "bats_iperf", "rtt", "ping", "scp"];

/// What is to be said of a command that is not on this machine, if it is not.
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

/// What the programs of a job said, and how the client ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said<'a> {
    pub(crate) client: &'a str,
    pub(crate) server: &'a str,
    pub(crate) exit_code: Option<i32>,
    /// Seconds that the client ran.
    pub(crate) seconds: f64,
}

/// The figures of a job.
///
/// # Errors
/// Where there are none, with the reason.
pub(crate) fn read(job: &Job, said: &Said<'_>, of: &str) -> Result<Reading> {
    match &job.read {
        Read::Throughput { reader, interval, length } => {
            reading::throughput(*reader, *interval, *length, said.client, said.server, of)
        }
        Read::RoundTrips => reading::round_trips(said.client, of),
        Read::File(copy) => copy.read(said.seconds),
        Read::Command => {
            // How long the command sends is its own affair.
            let length = f64::INFINITY;
            let (client, server) = (said.client, said.server);
            let mut reading = reading::throughput(Reader::Iperf, 0.0, length, client, server, of)
                .unwrap_or_default();
            if let Some(code) = said.exit_code {
                set(&mut reading.figures, "exit_code", f64::from(code));
            }
            Ok(reading)
        }
    }
}
