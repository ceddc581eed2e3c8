//! Parses the values of options.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use openbats::{Goal, Mode};

use super::spelling::{Given, number};
use super::{OutputFormat, Pause, Peer, Transport, TrustOption};

/// The transport, and whether it uses IPv6.
pub(super) fn transport(given: &Given) -> Result<(Transport, bool)> {
    let name = given.value("transport");
    let best_effort = given.has("bestEffort");
    let lower = name.map(str::to_ascii_lowercase);
    let is_raw = given.has("rawTransport");
    let (transport, ipv6) = match lower.as_deref() {
        Some("shmem") => bail!("-transport SHMEM: there is no transport over shared memory"),
        Some("dtls") => bail!("-transport DTLS: use brtp, which encrypts, too"),
        Some("wan") => bail!("-transport WAN: name the peer's address with -peer"),
        _ if is_raw => match lower.as_deref() {
            None | Some("udpv4" | "udp") => (Transport::Raw, false),
            Some("udpv6") => (Transport::Raw, true),
            Some(other) => bail!("-rawTransport is UDP: -transport {other} does not go with it"),
        },
        None | Some("udpv4") if best_effort => (Transport::Session(Mode::Btp), false),
        Some("udpv6") if best_effort => (Transport::Session(Mode::Btp), true),
        None | Some("udpv4" | "brtp") => (Transport::Session(Mode::Brtp), false),
        Some("udpv6") => (Transport::Session(Mode::Brtp), true),
        Some("btp") => (Transport::Session(Mode::Btp), false),
        Some("brctp") => (Transport::Session(Mode::Brctp), false),
        Some("transparent") => (Transport::Session(Mode::Transparent), false),
        Some("tcp" | "tls" | "tcpv4_lan" | "tlsv4_lan") => (Transport::Session(Mode::Tcp), false),
        Some("quic") => (Transport::Session(Mode::Quic), false),
        Some(other) => bail!(
            "-transport {other} is unknown: brtp, btp, brctp, transparent, tcp, quic, UDPv4, UDPv6"
        ),
    };
    if let Transport::Session(mode) = transport {
        ensure!(
            !(best_effort && mode.is_reliable()),
            "-bestEffort is transport btp (or transparent): {} is reliable",
            name.unwrap_or_default()
        );
    }
    Ok((transport, ipv6))
}

/// The options of [`trust`].
pub(crate) const TRUST: [&str; 3] = ["fingerprint", "knownHosts", "noKnownHosts"];

/// Whom a publisher trusts.
pub(super) fn trust(given: &Given, transport: Transport) -> Result<TrustOption> {
    let chosen: Vec<_> = TRUST.into_iter().filter(|name| given.has(name)).collect();
    if let [first, second, ..] = chosen[..] {
        bail!("-{first} and -{second} exclude each other");
    }
    if let [name, ..] = chosen[..] {
        ensure!(transport != Transport::Raw, "-{name}: raw UDP has no certificates");
    }
    let fingerprints: Result<Vec<_>, _> = given.values("fingerprint").map(str::parse).collect();
    let fingerprints = fingerprints.context("-fingerprint")?;
    Ok(match given.value("knownHosts") {
        _ if given.has("noKnownHosts") => TrustOption::Any,
        _ if !fingerprints.is_empty() => TrustOption::Fingerprints(fingerprints),
        path => TrustOption::KnownHosts(path.map(PathBuf::from)),
    })
}

/// What repairs serve.
pub(super) fn goal(given: &Given, transport: Transport) -> Result<Goal> {
    let Some(name) = given.value("goal") else { return Ok(Goal::default()) };
    let is_coded = matches!(transport, Transport::Session(Mode::Btp | Mode::Brtp | Mode::Brctp));
    ensure!(is_coded, "-goal {name}: only the transports brtp, btp and brctp send repairs");
    match name.to_ascii_lowercase().as_str() {
        "latency" => Ok(Goal::Latency),
        "balanced" => Ok(Goal::Balanced),
        "throughput" => Ok(Goal::Throughput),
        _ => bail!("-goal {name} is unknown: latency, balanced or throughput"),
    }
}

/// Parses `ADDRESS[:ID]`; an IPv6 address with an id is in brackets. The address must be of the IP family
/// of the transport.
pub(super) fn peer(text: &str, ipv6: bool) -> Result<Peer> {
    let (host, id) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => match rest.strip_prefix(':') {
            Some(id) => (host, Some(id)),
            None => {
                bail!("-peer {text}: '{rest}' follows the address; an id is written [{host}]:ID")
            }
        },
        None if text.matches(':').count() == 1 => {
            let (host, id) = text.split_once(':').unwrap_or((text, ""));
            (host, Some(id))
        }
        None => (text, None),
    };
    let id = id.map(|id| number("peer", id, 0, i32::MAX as u64)).transpose()?;
    let addresses = match host.parse() {
        Ok(ip) => vec![ip],
        Err(_) => (host, 0)
            .to_socket_addrs()
            .with_context(|| format!("-peer {text}: no address of '{host}'"))?
            .map(|address| address.ip())
            .collect(),
    };
    let usable = |ip: &IpAddr| ip.is_ipv6() == ipv6;
    let ip = addresses.into_iter().find(usable).with_context(|| match ipv6 {
        true => format!("-peer {text}: no IPv6 address, which -transport UDPv6 needs"),
        false => format!("-peer {text}: no IPv4 address; for IPv6 use -transport UDPv6"),
    })?;
    ensure!(!is_link_local(ip), "-peer {text}: {LINK_LOCAL}");
    Ok(Peer { ip, id: id.map(|id| id as u32) })
}

const LINK_LOCAL: &str =
    "link-local IPv6 addresses are not supported; use a global or a unique local one";

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

pub(super) fn multicast_address(text: &str) -> Result<Ipv4Addr> {
    match text.parse::<Ipv4Addr>() {
        Ok(address) if address.is_multicast() => Ok(address),
        _ => bail!("-multicastAddr {text} is not an IPv4 multicast address (224.0.0.0/4)"),
    }
}

/// The address of an interface given by name or address.
pub(super) fn interface(name: &str, ipv6: bool) -> Result<IpAddr> {
    if let Ok(address) = name.parse::<IpAddr>() {
        ensure!(address.is_ipv6() == ipv6, "-nic {name}: the transport uses the other IP family");
        ensure!(!is_link_local(address), "-nic {name}: {LINK_LOCAL}");
        return Ok(address);
    }
    let addresses: Vec<IpAddr> = nix::ifaddrs::getifaddrs()
        .context("cannot list the interfaces")?
        .filter(|interface| interface.interface_name == name)
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
            v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))
        })
        .filter(|address| address.is_ipv6() == ipv6)
        .collect();
    ensure!(!addresses.is_empty(), "-nic {name}: no such interface with an address (see ip addr)");
    let usable = addresses.into_iter().find(|&address| !is_link_local(address));
    usable.with_context(|| format!("-nic {name}: {LINK_LOCAL}"))
}

pub(super) fn output_format(name: Option<&str>) -> Result<OutputFormat> {
    match name.map(str::to_ascii_lowercase).as_deref() {
        None | Some("csv") => Ok(OutputFormat::Csv),
        Some("json") => Ok(OutputFormat::Json),
        Some("legacy") => Ok(OutputFormat::Legacy),
        Some(other) => bail!("-outputFormat {other} is unknown: csv, json or legacy"),
    }
}

/// Parses CPU numbers, separated by commas.
pub(super) fn cpus(text: &str) -> Result<Vec<usize>> {
    text.split(',')
        .map(|cpu| number("threadCPUAffinity", cpu.trim(), 0, 4_096).map(|cpu| cpu as usize))
        .collect()
}

/// Parses `FIRST:LAST`, or one key.
pub(super) fn key_range(text: &str) -> Result<(u32, u32)> {
    let (first, last) = text.split_once(':').unwrap_or((text, text));
    let key = |text| number("cft", text, 0, u32::MAX.into()).map(|key| key as u32);
    let (first, last) = (key(first)?, key(last)?);
    ensure!(first <= last, "-cft {text}: the first key is greater than the last");
    Ok((first, last))
}

/// Samples per second by `-pubRate` or `-pubRatebps`.
pub(super) fn rate(given: &Given, data_length: usize) -> Result<Option<(f64, Pause)>> {
    let parse = |name: &str, max: u64| -> Result<Option<(u64, Pause)>> {
        let Some(text) = given.value(name) else { return Ok(None) };
        let (rate, method) = text.split_once(':').unwrap_or((text, "spin"));
        let pause = match method.to_ascii_lowercase().as_str() {
            "spin" => Pause::Spin,
            "sleep" => Pause::Sleep,
            _ => bail!("-{name} {text}: the method is spin or sleep"),
        };
        Ok(Some((number(name, rate, 1, max)?, pause)))
    };
    match (parse("pubRate", 10_000_000)?, parse("pubRatebps", u64::MAX)?) {
        (Some(_), Some(_)) => bail!("-pubRate and -pubRatebps exclude each other"),
        (Some((rate, pause)), None) => Ok(Some((rate as f64, pause))),
        (None, Some((bits, pause))) => Ok(Some((bits as f64 / (8.0 * data_length as f64), pause))),
        (None, None) => Ok(None),
    }
}
