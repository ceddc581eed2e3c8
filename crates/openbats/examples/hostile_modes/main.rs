//! Packets of the modes TCP, QUIC and UDP for an instruction counter: `hostile_modes CASE honest|hostile`, as
//! `hostile_packets` of `bats-proto` for the other modes. `.ci/hostile-packets` runs both.
#![allow(clippy::disallowed_macros, reason = "a program for the command line")]

#[cfg(feature = "quic")]
mod quic;
#[cfg(feature = "quic")]
mod quic_client;
mod tcp;
mod tcp_client;
mod udp;

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use bats_proto::crypto::generate_identity;
use bats_proto::{
    ClientConfig, CongestionAlgorithm, Event, Input, Mode, PeerTrust, Received, ServerConfig,
    Timestamp, TransportConfig,
};
pub(crate) use openbats::bindings::Bindings;
use openbats::bindings::Step;

/// Most bytes of a segment or a datagram.
const PACKET: usize = 1_400;

/// What a measurement gives: number of packets, and whether the server closed the connection.
type Outcome = Result<(u64, bool), Box<dyn Error>>;

fn transport(mode: Mode) -> TransportConfig {
    TransportConfig { mode, congestion: CongestionAlgorithm::Cubic, ..TransportConfig::default() }
}

fn client_config(mode: Mode) -> ClientConfig {
    let transport = Arc::new(transport(mode));
    ClientConfig { trust: PeerTrust::DangerousAcceptAny, identity: None, transport }
}

fn server(mode: Mode, has_datagrams: bool) -> Result<Bindings, Box<dyn Error>> {
    let config = ServerConfig {
        identity: generate_identity(&["localhost".to_owned()])?,
        client_trust: None,
        transport: Arc::new(transport(mode)),
        retry_threshold: usize::MAX,
        max_connections: 100_000,
    };
    Ok(Bindings::new(Some(config), [2; 32], has_datagrams)?)
}

/// Whether a poll of the server until it waits closes a connection.
fn polled(server: &mut Bindings, now: Timestamp, buffer: &mut Vec<u8>) -> bool {
    let mut is_closed = false;
    loop {
        match server.poll(now, buffer) {
            Step::Timeout(Some(at)) if at <= now => server.handle(now, Input::Timeout),
            Step::Timeout(_) => return is_closed,
            Step::Event(_, Event::Closed(_)) => is_closed = true,
            _ => {}
        }
    }
}

/// What the server does for a datagram, and for the timers that are due. Returns whether it closes a
/// connection. The counter counts this function and the next three.
#[inline(never)]
fn measured(
    server: &mut Bindings,
    now: Timestamp,
    remote: SocketAddr,
    payload: &mut [u8],
    buffer: &mut Vec<u8>,
) -> bool {
    server.handle(now, Input::Datagram(Received { remote, local_ip: None, ecn: 0, payload }));
    polled(server, now, buffer)
}

/// What the server does for what has arrived at its sockets.
#[inline(never)]
fn measured_sockets(server: &mut Bindings, now: Timestamp, buffer: &mut Vec<u8>) -> bool {
    server.handle(now, Input::Timeout);
    polled(server, now, buffer)
}

/// As [`measured`], for an ICMP error.
#[cfg(feature = "quic")]
#[inline(never)]
fn measured_unreachable_port(
    server: &mut Bindings,
    now: Timestamp,
    remote: SocketAddr,
    quoted: &[u8],
    buffer: &mut Vec<u8>,
) -> bool {
    server.handle_unreachable_port(now, remote, quoted);
    polled(server, now, buffer)
}

/// As [`measured`]; returns the datagrams that the server sends.
#[cfg(feature = "quic")]
#[inline(never)]
fn measured_with_answers(
    server: &mut Bindings,
    now: Timestamp,
    remote: SocketAddr,
    payload: &mut [u8],
    buffer: &mut Vec<u8>,
) -> (Vec<Vec<u8>>, bool) {
    server.handle(now, Input::Datagram(Received { remote, local_ip: None, ecn: 0, payload }));
    let (mut sent, mut is_closed) = (Vec::new(), false);
    loop {
        match server.poll(now, buffer) {
            Step::Transmit(transmit) => {
                sent.extend(
                    buffer[..transmit.len].chunks(transmit.segment_size).map(<[u8]>::to_vec),
                );
            }
            Step::Event(_, Event::Closed(_)) => is_closed = true,
            Step::Timeout(_) => return (sent, is_closed),
            Step::Event(..) => {}
        }
    }
}

/// The cases, each with a name of its honest packets, which several share.
fn cases() -> impl Iterator<Item = (&'static str, &'static str)> {
    let named = |names: &'static [&'static str], honest: fn(&str) -> &'static str| {
        names.iter().map(move |&name| (name, honest(name)))
    };
    let cases = named(tcp::NAMES, tcp::honest_name).chain(named(udp::NAMES, udp::honest_name));
    #[cfg(feature = "quic")]
    let cases = cases.chain(named(quic::NAMES, quic::honest_name));
    cases
}

fn is_case(name: &str) -> bool {
    cases().any(|(case, _)| case == name)
}

fn run(case: &str, is_hostile: bool) -> Outcome {
    match case.split_once('-') {
        Some(("tcp", _)) => tcp::run(case, is_hostile),
        #[cfg(feature = "quic")]
        Some(("quic", _)) => quic::run(case, is_hostile),
        _ => udp::run(case, is_hostile),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["--list"] => {
            cases().for_each(|(case, honest)| println!("{case} {honest}"));
            return ExitCode::SUCCESS;
        }
        [case, kind @ ("honest" | "hostile")] if is_case(case) => run(case, kind == "hostile"),
        _ => {
            eprintln!("usage: hostile_modes --list | CASE honest|hostile");
            return ExitCode::FAILURE;
        }
    };
    match outcome {
        Ok((packets, is_closed)) if packets > 0 && !(is_closed && words[1] == "honest") => {
            println!("{packets} {}", if is_closed { "closed" } else { "open" });
            ExitCode::SUCCESS
        }
        Ok((packets, _)) => {
            eprintln!("{words:?}: the connection was closed after {packets} packets");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{words:?}: {error}");
            ExitCode::FAILURE
        }
    }
}
