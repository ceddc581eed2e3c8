//! Throughput: a source and a sink for each protocol, by the tool that knows it best.

use anyhow::{Result, bail};

use super::programs::{BATS_IPERF, BATSLAB, find};
use super::reading::Reader;
use crate::config::model::PacketType;
use crate::plan::{Protocol, ProtocolKind};

/// What a flow shall do.
#[derive(Clone, Debug)]
pub(crate) struct Wish<'a> {
    pub(crate) protocol: &'a Protocol,
    /// Address of the server.
    pub(crate) to: &'a str,
    pub(crate) port: u16,
    pub(crate) seconds: f64,
    pub(crate) interval: f64,
    pub(crate) parallel: u16,
    /// Mbit/s; 0 for as much as goes.
    pub(crate) bitrate: f64,
    pub(crate) packet_type: PacketType,
    pub(crate) args: &'a [String],
    /// Whether `bats_iperf` was asked for by name.
    pub(crate) bats: bool,
    /// Whether iperf3 has failed already: its control connection does not survive every link.
    pub(crate) own: bool,
}

/// The programs of a flow.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) server: Vec<String>,
    pub(crate) client: Vec<String>,
    pub(crate) reader: Reader,
}

/// UDP's rate where none is given, in Mbit/s.
const UDP_RATE: f64 = 10.0;

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// The programs for a wish.
///
/// # Errors
/// Where the protocol cannot do it, with the reason.
pub(crate) fn load(wish: &Wish<'_>) -> Result<Load> {
    let seconds = wish.seconds.ceil().max(1.0).to_string();
    let port = wish.port.to_string();
    match &wish.protocol.kind {
        ProtocolKind::Missing { why } => bail!("{why}"),
        ProtocolKind::Bats { mode } => {
            if wish.packet_type == PacketType::Udp && !["0", "btp"].contains(&mode.as_str()) {
                bail!("datagrams that may be lost are for btp; {} is not", wish.protocol.name);
            }
            let interval = wish.interval.max(0.1).to_string();
            let server = words([BATS_IPERF, "-s", "-1", "-p", &port, "-J"]);
            let mut client = words([BATS_IPERF, "-c", wish.to, "-p", &port, "-m", mode, "-J"]);
            client.extend(words([
                "-i",
                &interval,
                "-t",
                &seconds,
                "-P",
                &wish.parallel.to_string(),
            ]));
            if wish.bitrate > 0.0 {
                client.extend(words([
                    "-b",
                    &format!("{}M", wish.bitrate / f64::from(wish.parallel)),
                ]));
            }
            client.extend(wish.args.iter().cloned());
            Ok(Load { server, client, reader: Reader::Bats })
        }
        _ if wish.bats => {
            bail!("bats_iperf measures this project's protocols, not {}", wish.protocol.name)
        }
        ProtocolKind::Quic { congestion } => {
            let server = words([BATSLAB, "__quic-sink", "--port", &port]);
            let to = format!("{}:{port}", wish.to);
            let mut client = words([BATSLAB, "__quic-source", "--to", &to, "--seconds", &seconds]);
            client.extend(words(["--congestion", congestion]));
            Ok(Load { server, client, reader: Reader::Own })
        }
        ProtocolKind::Udp => Ok(udp(wish, wish.to, &port, &seconds)),
        ProtocolKind::Tunnel { port, carries: PacketType::Udp, .. } => {
            Ok(udp(wish, "127.0.0.1", &port.to_string(), &seconds))
        }
        ProtocolKind::Tunnel { port, .. } => {
            Ok(tcp(wish, "127.0.0.1", &port.to_string(), &seconds, None))
        }
        ProtocolKind::Daemon { .. } => Ok(tcp(wish, wish.to, &port, &seconds, None)),
        ProtocolKind::Tcp { congestion } if wish.packet_type == PacketType::Tcp => {
            Ok(tcp(wish, wish.to, &port, &seconds, Some(congestion)))
        }
        ProtocolKind::Tcp { .. } => bail!("`packet_type: udp` is for udp and btp, not for TCP"),
    }
}

fn tcp(wish: &Wish<'_>, to: &str, port: &str, seconds: &str, congestion: Option<&str>) -> Load {
    // iperf3 takes whole seconds and intervals of a tenth at least.
    if !wish.own && find("iperf3").is_some() {
        let interval = wish.interval.clamp(0.1, 60.0).to_string();
        let server = words(["iperf3", "-s", "-1", "-p", port, "-i", &interval, "-J"]);
        let mut client =
            words(["iperf3", "-c", to, "-p", port, "-i", &interval, "-J", "-t", seconds]);
        client.extend(words(["-P", &wish.parallel.to_string(), "--connect-timeout", "5000"]));
        if let Some(congestion) = congestion {
            client.extend(words(["-C", congestion]));
        }
        if wish.bitrate > 0.0 {
            client.extend(words(["-b", &format!("{}M", wish.bitrate / f64::from(wish.parallel))]));
        }
        client.extend(wish.args.iter().cloned());
        return Load { server, client, reader: Reader::Iperf };
    }
    let server = words([BATSLAB, "__tcp-sink", "--port", port]);
    let to = format!("{to}:{port}");
    let mut client = words([BATSLAB, "__tcp-source", "--to", &to, "--seconds", seconds]);
    client.extend(words(["--congestion", congestion.unwrap_or("cubic")]));
    Load { server, client, reader: Reader::Own }
}

fn udp(wish: &Wish<'_>, to: &str, port: &str, seconds: &str) -> Load {
    let rate = if wish.bitrate > 0.0 { wish.bitrate } else { UDP_RATE };
    let server = words([BATSLAB, "__udp-sink", "--port", port]);
    let to = format!("{to}:{port}");
    let mut client = words([BATSLAB, "__udp-source", "--to", &to, "--seconds", seconds]);
    client.extend(words(["--mbps", &rate.to_string()]));
    Load { server, client, reader: Reader::Own }
}
