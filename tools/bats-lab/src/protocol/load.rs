//! Throughput loads: the client and server programs for each protocol.

use anyhow::Result;

use super::incompatible;
use super::programs::{BATS_IPERF, BATSLAB, find};
use super::reading::OutputFormat;
use crate::config::model::{NodeEntry, PacketType, Relays};
use crate::plan::{Protocol, ProtocolKind};

/// Parameters of a flow.
#[derive(Clone, Debug)]
pub(crate) struct LoadRequest<'a> {
    pub(crate) protocol: &'a Protocol,
    /// Address of the server.
    pub(crate) to: &'a str,
    pub(crate) port: u16,
    pub(crate) seconds: f64,
    pub(crate) interval: f64,
    /// Seconds between samples of the sender's state.
    pub(crate) sample_interval: f64,
    pub(crate) parallel: u16,
    /// Mbit/s; 0 for unlimited.
    pub(crate) bitrate: f64,
    pub(crate) packet_type: PacketType,
    pub(crate) args: &'a [String],
    /// Whether the tool is `bats_iperf` rather than `iperf`.
    pub(crate) bats: bool,
    /// Whether iperf3 has failed already and a built-in load replaces it: its control connection
    /// does not survive every link.
    pub(crate) without_iperf3: bool,
}

/// Why relays do not recode here.
pub(crate) const NO_RELAYS: &str =
    "hosts only forward packets: recoding relays are available in the backend sim";

/// The command lines of a flow.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) server: Vec<String>,
    pub(crate) client: Vec<String>,
    pub(crate) output_format: OutputFormat,
}

/// Default rate of protocols without congestion control, in Mbit/s.
pub(crate) const UDP_RATE: f64 = 10.0;
/// Message size in bytes of UDP and of modes that may lose messages: fits through tunnels that add
/// headers.
pub(crate) const DATAGRAM: usize = 1200;

fn to_args<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// The command lines for a flow.
///
/// # Errors
/// The protocol does not support a parameter; the error names it.
pub(crate) fn load(request: &LoadRequest<'_>) -> Result<Load> {
    let seconds = request.seconds.ceil().max(1.0).to_string();
    let port = request.port.to_string();
    match &request.protocol.kind {
        ProtocolKind::Missing { why } => incompatible!("{why}"),
        ProtocolKind::Bats { relays: Some(Relays::Recode | Relays::Forward), .. } => {
            incompatible!("{NO_RELAYS}")
        }
        ProtocolKind::Bats { mode, .. } => bats(request, mode, &[], &port, &seconds),
        // With the tool bats_iperf, UDP and QUIC run in its own modes.
        ProtocolKind::Udp if request.bats => bats(request, "udp", &[], &port, &seconds),
        ProtocolKind::Quic { congestion } if request.bats => {
            if congestion == "newreno" {
                incompatible!("bats_iperf supports QUIC with bbr and cubic, not with {congestion}");
            }
            bats(request, "quic", &["--congestion", congestion], &port, &seconds)
        }
        _ if request.bats => {
            incompatible!(
                "bats_iperf supports the OpenBATS protocols, udp, quic and tcp-next, not {}",
                request.protocol.name
            )
        }
        ProtocolKind::Quic { congestion } => {
            reject_keys(request, &[BITRATE, DATAGRAMS, PARALLEL, ARGS])?;
            let server = sink("__quic-sink", request, &port);
            let to = format!("{}:{port}", request.to);
            let mut client =
                to_args([BATSLAB, "__quic-source", "--to", &to, "--seconds", &seconds]);
            client.extend(to_args(["--congestion", congestion]));
            Ok(Load { server, client, output_format: OutputFormat::BuiltIn })
        }
        ProtocolKind::Udp => udp(request, request.to, &port, &seconds),
        ProtocolKind::Tunnel { port, carries: PacketType::Udp, .. } => {
            udp(request, "127.0.0.1", &port.to_string(), &seconds)
        }
        ProtocolKind::Tunnel { port, .. } => {
            tcp(request, "127.0.0.1", &port.to_string(), &seconds, None)
        }
        ProtocolKind::Daemon { .. } => tcp(request, request.to, &port, &seconds, None),
        ProtocolKind::Node { entry: NodeEntry::Forward, .. }
            if request.packet_type == PacketType::Udp =>
        {
            incompatible!("{} transports TCP only", request.protocol.name)
        }
        ProtocolKind::Node { .. } | ProtocolKind::WireGuard { .. }
            if request.packet_type == PacketType::Udp =>
        {
            udp(request, request.to, &port, &seconds)
        }
        ProtocolKind::Tcp { congestion }
        | ProtocolKind::Node { congestion, .. }
        | ProtocolKind::WireGuard { congestion } => {
            tcp(request, request.to, &port, &seconds, Some(congestion))
        }
    }
}

/// bats_iperf in one of its modes.
fn bats(
    request: &LoadRequest<'_>,
    mode: &str,
    more: &[&str],
    port: &str,
    seconds: &str,
) -> Result<Load> {
    // Without congestion control a rate must be given.
    let is_uncontrolled = ["3", "transparent", "11", "udp"].contains(&mode);
    let is_lossy = is_uncontrolled || ["0", "btp"].contains(&mode);
    if request.packet_type == PacketType::Udp && !is_lossy {
        incompatible!("{}", crate::backend::sim::not_for_lossy_mode(request.protocol));
    }
    // Sender state is sampled with the intervals, which are merged for throughput. In lossy modes
    // data counts as lost until it has been repaired, so short intervals would be misleading.
    let sample = if is_lossy { request.interval } else { request.sample_interval };
    let interval = request.interval.min(sample).max(0.1).to_string();
    let server = to_args([BATS_IPERF, "-s", "-1", "-p", port, "-J"]);
    let mut client = to_args([BATS_IPERF, "-c", request.to, "-p", port, "-m", mode, "-J"]);
    // Topologies use the same addresses for different hosts.
    client.push("--no-known-hosts".to_owned());
    client.extend(to_args(["-i", &interval, "-t", seconds, "-P", &request.parallel.to_string()]));
    client.extend(more.iter().map(|word| (*word).to_owned()));
    let bitrate =
        if is_uncontrolled && request.bitrate <= 0.0 { UDP_RATE } else { request.bitrate };
    if bitrate > 0.0 {
        let each = format!("{}M", bitrate / f64::from(request.parallel));
        client.extend(to_args(["-b", &each]));
    }
    let has_length = request.args.iter().any(|word| word.starts_with("--length"));
    if is_lossy && !has_length {
        client.extend(to_args(["--length", &DATAGRAM.to_string()]));
    }
    client.extend(request.args.iter().cloned());
    let output_format = if is_lossy { OutputFormat::Lossy } else { OutputFormat::Bats };
    Ok(Load { server, client, output_format })
}

/// A key of a tool, and whether a flow uses it.
type Key = (&'static str, fn(&LoadRequest<'_>) -> bool);
const PARALLEL: Key = ("parallel", |request| request.parallel > 1);
const BITRATE: Key = ("bitrate", |request| request.bitrate > 0.0);
const ARGS: Key = ("args", |request| !request.args.is_empty());
const DATAGRAMS: Key = ("packet_type: udp", |request| request.packet_type == PacketType::Udp);

/// Rejects keys that would be ignored.
fn reject_keys(request: &LoadRequest<'_>, keys: &[Key]) -> Result<()> {
    if let Some((key, _)) = keys.iter().find(|(_, asks)| asks(request)) {
        incompatible!("`{key}` is not supported by {}", request.protocol.name);
    }
    Ok(())
}

/// A built-in sink; intervals are at least 0.1 s, as in iperf3.
fn sink(name: &str, request: &LoadRequest<'_>, port: &str) -> Vec<String> {
    to_args([BATSLAB, name, "--port", port, "--interval", &request.interval.max(0.1).to_string()])
}

fn tcp(
    request: &LoadRequest<'_>,
    to: &str,
    port: &str,
    seconds: &str,
    congestion: Option<&str>,
) -> Result<Load> {
    reject_keys(request, &[DATAGRAMS])?;
    // iperf3 accepts whole seconds and intervals of at least 0.1 s.
    if !request.without_iperf3 && find("iperf3").is_some() {
        let interval = request.interval.clamp(0.1, 60.0).to_string();
        let server = to_args(["iperf3", "-s", "-1", "-p", port, "-i", &interval, "-J"]);
        let mut client =
            to_args(["iperf3", "-c", to, "-p", port, "-i", &interval, "-J", "-t", seconds]);
        client.extend(to_args(["-P", &request.parallel.to_string(), "--connect-timeout", "5000"]));
        if let Some(congestion) = congestion {
            client.extend(to_args(["-C", congestion]));
        }
        if request.bitrate > 0.0 {
            client.extend(to_args([
                "-b",
                &format!("{}M", request.bitrate / f64::from(request.parallel)),
            ]));
        }
        client.extend(request.args.iter().cloned());
        return Ok(Load { server, client, output_format: OutputFormat::Iperf });
    }
    if let Some((key, _)) = [PARALLEL, BITRATE, ARGS].iter().find(|(_, asks)| asks(request)) {
        incompatible!(
            "`{key}` over {} needs iperf3, which is not available",
            request.protocol.name
        );
    }
    let server = sink("__tcp-sink", request, port);
    let to = format!("{to}:{port}");
    let mut client = to_args([BATSLAB, "__tcp-source", "--to", &to, "--seconds", seconds]);
    client.extend(to_args(["--congestion", congestion.unwrap_or("cubic")]));
    Ok(Load { server, client, output_format: OutputFormat::BuiltIn })
}

fn udp(request: &LoadRequest<'_>, to: &str, port: &str, seconds: &str) -> Result<Load> {
    reject_keys(request, &[PARALLEL, ARGS])?;
    let rate = if request.bitrate > 0.0 { request.bitrate } else { UDP_RATE };
    let server = sink("__udp-sink", request, port);
    let to = format!("{to}:{port}");
    let mut client = to_args([BATSLAB, "__udp-source", "--to", &to, "--seconds", seconds]);
    client.extend(to_args(["--mbps", &rate.to_string()]));
    Ok(Load { server, client, output_format: OutputFormat::BuiltIn })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protocol(name: &str, kind: ProtocolKind) -> Protocol {
        Protocol { name: name.to_owned(), label: name.to_owned(), kind }
    }

    fn all() -> [Protocol; 5] {
        let congestion = || "cubic".to_owned();
        let tunnel = |carries| ProtocolKind::Tunnel {
            client: Vec::new(),
            server: Vec::new(),
            port: 7000,
            carries,
            is_one_way: false,
        };
        [
            protocol("tcp", ProtocolKind::Tcp { congestion: congestion() }),
            protocol("quic", ProtocolKind::Quic { congestion: congestion() }),
            protocol("udp", ProtocolKind::Udp),
            protocol("tunnel", tunnel(PacketType::Tcp)),
            protocol("daemon", ProtocolKind::Daemon { words: Vec::new() }),
        ]
    }

    /// A request that the built-in programs support.
    fn request<'a>(protocol: &'a Protocol, args: &'a [String]) -> LoadRequest<'a> {
        LoadRequest {
            protocol,
            to: "10.0.0.1",
            port: 5201,
            seconds: 2.0,
            interval: 0.25,
            sample_interval: 0.1,
            parallel: 1,
            bitrate: 0.0,
            packet_type: PacketType::Tcp,
            args,
            bats: false,
            without_iperf3: true,
        }
    }

    #[test]
    fn udp_and_quic_modes_of_the_sdk_run_with_bats_iperf() {
        let of = |kind: ProtocolKind, bats: bool| {
            let protocol = protocol("own", kind);
            load(&LoadRequest { bats, ..request(&protocol, &[]) }).map(|load| load.client.join(" "))
        };
        let mode = |mode: &str| ProtocolKind::Bats { mode: mode.to_owned(), relays: None };
        let udp = of(mode("11"), false).unwrap();
        for expected in ["{bats_iperf} -c 10.0.0.1", " -m 11 ", " -b 10M", " --length 1200"] {
            assert!(udp.contains(expected), "{udp}");
        }
        // The tool bats_iperf also runs the built-in protocols.
        assert!(of(ProtocolKind::Udp, true).unwrap().contains(" -m udp "));
        assert!(of(ProtocolKind::Udp, false).unwrap().contains("__udp-source"));
        // TCP by the SDK: the same program without the datagram options.
        let tcp = of(mode("10"), false).unwrap();
        assert!(tcp.contains(" -m 10 ") && !tcp.contains("--length"), "{tcp}");
        let quic = |congestion: &str| ProtocolKind::Quic { congestion: congestion.to_owned() };
        let by_bbr = of(quic("bbr"), true).unwrap();
        assert!(by_bbr.contains(" -m quic ") && by_bbr.contains(" --congestion bbr"), "{by_bbr}");
        assert!(of(quic("newreno"), true).is_err());
        assert!(of(ProtocolKind::Tcp { congestion: "cubic".to_owned() }, true).is_err());
    }

    #[test]
    fn unsupported_keys_are_rejected() {
        let args = ["-x".to_owned()];
        for protocol in &all() {
            let name = protocol.name.as_str();
            let plain = load(&request(protocol, &[])).unwrap();
            assert!(plain.server.ends_with(&["--interval".to_owned(), "0.25".to_owned()]));
            let asked = [
                ("parallel", LoadRequest { parallel: 2, ..request(protocol, &[]) }),
                ("args", request(protocol, &args)),
                ("bitrate", LoadRequest { bitrate: 3.0, ..request(protocol, &[]) }),
                (
                    "packet_type",
                    LoadRequest { packet_type: PacketType::Udp, ..request(protocol, &[]) },
                ),
            ];
            for (key, request) in asked {
                if name == "udp" && ["bitrate", "packet_type"].contains(&key) {
                    assert!(load(&request).is_ok());
                    continue;
                }
                let error = load(&request).expect_err(key);
                assert!(error.is::<crate::protocol::Incompatible>(), "{name} {key}: {error}");
                let text = error.to_string();
                assert!(text.contains(key) && text.contains(name), "{text}");
            }
        }
    }
}
