//! Throughput: a source and a sink for each protocol, by the tool that knows it best.

use anyhow::Result;

use super::programs::{BATS_IPERF, BATSLAB, find};
use super::reading::Reader;
use super::unfit;
use crate::config::model::{PacketType, Relays};
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
    /// Seconds between samples of a sender's state.
    pub(crate) sample_interval: f64,
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

/// Why hosts do not recode here.
pub(crate) const NO_RELAYS: &str = "on hosts packets are forwarded, and nobody on the way recodes: recoding relays are in the backend sim";

/// The programs of a flow.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) server: Vec<String>,
    pub(crate) client: Vec<String>,
    pub(crate) reader: Reader,
}

/// Rate of what has no congestion control where none is given, in Mbit/s.
pub(crate) const UDP_RATE: f64 = 10.0;
/// Bytes of a message of UDP and of the modes that may lose some: fits through tunnels that add
/// headers of their own.
pub(crate) const DATAGRAM: usize = 1200;

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
        ProtocolKind::Missing { why } => unfit!("{why}"),
        ProtocolKind::Bats { relays: Some(Relays::Recode | Relays::Forward), .. } => {
            unfit!("{NO_RELAYS}")
        }
        ProtocolKind::Bats { mode, .. } => bats(wish, mode, &[], &port, &seconds),
        // What is not this project's goes by modes of their own where bats_iperf was asked for.
        ProtocolKind::Udp if wish.bats => bats(wish, "udp", &[], &port, &seconds),
        ProtocolKind::Quic { congestion } if wish.bats => {
            if congestion == "newreno" {
                unfit!("bats_iperf has QUIC with bbr and cubic, not with {congestion}");
            }
            bats(wish, "quic", &["--congestion", congestion], &port, &seconds)
        }
        _ if wish.bats => {
            unfit!(
                "bats_iperf measures this project's protocols, udp, quic and tcp-next, not {}",
                wish.protocol.name
            )
        }
        ProtocolKind::Quic { congestion } => {
            refuse(wish, &[BITRATE, DATAGRAMS, PARALLEL, ARGS])?;
            let server = sink("__quic-sink", wish, &port);
            let to = format!("{}:{port}", wish.to);
            let mut client = words([BATSLAB, "__quic-source", "--to", &to, "--seconds", &seconds]);
            client.extend(words(["--congestion", congestion]));
            Ok(Load { server, client, reader: Reader::Own })
        }
        ProtocolKind::Udp => udp(wish, wish.to, &port, &seconds),
        ProtocolKind::Tunnel { port, carries: PacketType::Udp, .. } => {
            udp(wish, "127.0.0.1", &port.to_string(), &seconds)
        }
        ProtocolKind::Tunnel { port, .. } => {
            tcp(wish, "127.0.0.1", &port.to_string(), &seconds, None)
        }
        ProtocolKind::Daemon { .. } => tcp(wish, wish.to, &port, &seconds, None),
        ProtocolKind::Tcp { congestion } => tcp(wish, wish.to, &port, &seconds, Some(congestion)),
    }
}

/// bats_iperf in one of its modes.
fn bats(wish: &Wish<'_>, mode: &str, more: &[&str], port: &str, seconds: &str) -> Result<Load> {
    // Without congestion control the rate has to be said.
    let is_uncontrolled = ["3", "transparent", "11", "udp"].contains(&mode);
    let is_lossy = is_uncontrolled || ["0", "btp"].contains(&mode);
    if wish.packet_type == PacketType::Udp && !is_lossy {
        unfit!("{}", crate::backend::sim::not_lossy(wish.protocol));
    }
    // Its state is told with its intervals, which are put together for throughput. What may
    // be lost counts as lost until it has been repaired, so short intervals would mislead.
    let sample = if is_lossy { wish.interval } else { wish.sample_interval };
    let interval = wish.interval.min(sample).max(0.1).to_string();
    let server = words([BATS_IPERF, "-s", "-1", "-p", port, "-J"]);
    let mut client = words([BATS_IPERF, "-c", wish.to, "-p", port, "-m", mode, "-J"]);
    client.extend(words(["-i", &interval, "-t", seconds, "-P", &wish.parallel.to_string()]));
    client.extend(more.iter().map(|word| (*word).to_owned()));
    let bitrate = if is_uncontrolled && wish.bitrate <= 0.0 { UDP_RATE } else { wish.bitrate };
    if bitrate > 0.0 {
        let each = format!("{}M", bitrate / f64::from(wish.parallel));
        client.extend(words(["-b", &each]));
    }
    let has_length = wish.args.iter().any(|word| word.starts_with("--length"));
    if is_lossy && !has_length {
        client.extend(words(["--length", &DATAGRAM.to_string()]));
    }
    client.extend(wish.args.iter().cloned());
    let reader = if is_lossy { Reader::Lossy } else { Reader::Bats };
    Ok(Load { server, client, reader })
}

/// A key of a tool, and whether it asks for something.
type Key = (&'static str, fn(&Wish<'_>) -> bool);
const PARALLEL: Key = ("parallel", |wish| wish.parallel > 1);
const BITRATE: Key = ("bitrate", |wish| wish.bitrate > 0.0);
const ARGS: Key = ("args", |wish| !wish.args.is_empty());
const DATAGRAMS: Key = ("packet_type: udp", |wish| wish.packet_type == PacketType::Udp);

/// Refuses keys that would be ignored.
fn refuse(wish: &Wish<'_>, keys: &[Key]) -> Result<()> {
    if let Some((key, _)) = keys.iter().find(|(_, asks)| asks(wish)) {
        unfit!("`{key}` is not for {}", wish.protocol.name);
    }
    Ok(())
}

/// A sink of this program; shorter intervals than a tenth say little, as with iperf3.
fn sink(name: &str, wish: &Wish<'_>, port: &str) -> Vec<String> {
    words([BATSLAB, name, "--port", port, "--interval", &wish.interval.max(0.1).to_string()])
}

fn tcp(
    wish: &Wish<'_>,
    to: &str,
    port: &str,
    seconds: &str,
    congestion: Option<&str>,
) -> Result<Load> {
    refuse(wish, &[DATAGRAMS])?;
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
        return Ok(Load { server, client, reader: Reader::Iperf });
    }
    if let Some((key, _)) = [PARALLEL, BITRATE, ARGS].iter().find(|(_, asks)| asks(wish)) {
        unfit!("`{key}` over {} takes iperf3, which is not to be had here", wish.protocol.name);
    }
    let server = sink("__tcp-sink", wish, port);
    let to = format!("{to}:{port}");
    let mut client = words([BATSLAB, "__tcp-source", "--to", &to, "--seconds", seconds]);
    client.extend(words(["--congestion", congestion.unwrap_or("cubic")]));
    Ok(Load { server, client, reader: Reader::Own })
}

fn udp(wish: &Wish<'_>, to: &str, port: &str, seconds: &str) -> Result<Load> {
    refuse(wish, &[PARALLEL, ARGS])?;
    let rate = if wish.bitrate > 0.0 { wish.bitrate } else { UDP_RATE };
    let server = sink("__udp-sink", wish, port);
    let to = format!("{to}:{port}");
    let mut client = words([BATSLAB, "__udp-source", "--to", &to, "--seconds", seconds]);
    client.extend(words(["--mbps", &rate.to_string()]));
    Ok(Load { server, client, reader: Reader::Own })
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

    /// A wish that the programs of this one fulfil alone.
    fn wish<'a>(protocol: &'a Protocol, args: &'a [String]) -> Wish<'a> {
        Wish {
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
            own: true,
        }
    }

    #[test]
    fn the_sdks_udp_and_quic_go_by_bats_iperf() {
        let of = |kind: ProtocolKind, bats: bool| {
            let protocol = protocol("own", kind);
            load(&Wish { bats, ..wish(&protocol, &[]) }).map(|load| load.client.join(" "))
        };
        let mode = |mode: &str| ProtocolKind::Bats { mode: mode.to_owned(), relays: None };
        let udp = of(mode("11"), false).unwrap();
        for words in ["{bats_iperf} -c 10.0.0.1", " -m 11 ", " -b 10M", " --length 1200"] {
            assert!(udp.contains(words), "{udp}");
        }
        // The tool's word for what is built in, too.
        assert!(of(ProtocolKind::Udp, true).unwrap().contains(" -m udp "));
        assert!(of(ProtocolKind::Udp, false).unwrap().contains("__udp-source"));
        // TCP by the SDK's carrier: the same program, without what is for datagrams.
        let tcp = of(mode("10"), false).unwrap();
        assert!(tcp.contains(" -m 10 ") && !tcp.contains("--length"), "{tcp}");
        let quic = |congestion: &str| ProtocolKind::Quic { congestion: congestion.to_owned() };
        let by_bbr = of(quic("bbr"), true).unwrap();
        assert!(by_bbr.contains(" -m quic ") && by_bbr.contains(" --congestion bbr"), "{by_bbr}");
        assert!(of(quic("newreno"), true).is_err());
        assert!(of(ProtocolKind::Tcp { congestion: "cubic".to_owned() }, true).is_err());
    }

    #[test]
    fn no_key_is_ignored() {
        let args = ["-x".to_owned()];
        for protocol in &all() {
            let name = protocol.name.as_str();
            let plain = load(&wish(protocol, &[])).unwrap();
            assert!(plain.server.ends_with(&["--interval".to_owned(), "0.25".to_owned()]));
            let asked = [
                ("parallel", Wish { parallel: 2, ..wish(protocol, &[]) }),
                ("args", wish(protocol, &args)),
                ("bitrate", Wish { bitrate: 3.0, ..wish(protocol, &[]) }),
                ("packet_type", Wish { packet_type: PacketType::Udp, ..wish(protocol, &[]) }),
            ];
            for (key, wish) in asked {
                if name == "udp" && ["bitrate", "packet_type"].contains(&key) {
                    assert!(load(&wish).is_ok());
                    continue;
                }
                let error = load(&wish).expect_err(key);
                assert!(error.is::<crate::protocol::Unfit>(), "{name} {key}: {error}");
                let text = error.to_string();
                assert!(text.contains(key) && text.contains(name), "{text}");
            }
        }
    }
}
