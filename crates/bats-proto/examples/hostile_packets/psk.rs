//! First packets for a server with pre-shared keys.

use std::net::SocketAddr;
use std::sync::Arc;

use bats_proto::config::{PresharedKey, Security};
use bats_proto::fuzzing::MisbehavingClient;
use bats_proto::{
    ClientConfig, Endpoint, EndpointConfig, Mode, Output, PeerTrust, TransportConfig,
};

use crate::Attack;
use crate::harness::{Harness, MS, server, transport};

pub(crate) const NAMES: &[&str] = &[
    "psk-other-key",
    "psk-no-key",
    "psk-damaged-first-flights",
    "psk-replayed-first-flights",
    "psk-replayed-damaged-first-flights",
    "psk-unknown-versions",
    "psk-garbage",
    "psk-other-key-at-the-limit",
];

/// Packets that are measured.
const PACKETS: u32 = 100;
/// Half-open handshakes of other networks, nearly as many as there may be.
const HALF_OPEN: u32 = 2_000;

fn key(byte: u8) -> PresharedKey {
    PresharedKey::new([byte; 32])
}

/// With as many keys as a server may have: a client with the last one costs the most.
fn psk_transport() -> TransportConfig {
    TransportConfig {
        psk: Some(key(1)),
        also_accepted_psks: [2, 3, 4].map(key).to_vec(),
        ..transport()
    }
}

/// The first datagram of a client with this key.
fn first_flight(number: u32, psk: Option<PresharedKey>) -> Option<Vec<u8>> {
    let config = EndpointConfig { security: Security::DangerousPlain, ..EndpointConfig::default() };
    let mut seed = [3; 32];
    seed[..4].copy_from_slice(&number.to_be_bytes());
    let mut client = Endpoint::new(config, seed).ok()?;
    let transport = TransportConfig { psk, mode: Mode::Brtp, ..transport() };
    let config = ClientConfig {
        trust: PeerTrust::DangerousAcceptAny,
        identity: None,
        transport: Arc::new(transport),
    };
    let now = bats_proto::Timestamp::from_millis(1_000);
    client.connect(now, ([10, 0, 0, 9], 4_433).into(), "server", config).ok()?;
    let mut buffer = Vec::with_capacity(65_536);
    loop {
        match client.poll(now, &mut buffer) {
            Output::Transmit(sent) => return Some(buffer[..sent.segment_size].to_vec()),
            Output::Event(..) => {}
            Output::Timeout(_) => return None,
        }
    }
}

/// Each in a network of its own.
fn address(number: u32) -> SocketAddr {
    MisbehavingClient::address(number << 8 | 1)
}

/// The honest packets that a case is compared with.
pub(crate) fn honest_name(case: &str) -> &'static str {
    match case {
        "psk-other-key-at-the-limit" => "psk-first-flights-at-the-limit",
        _ => "psk-first-flights",
    }
}

/// Runs a case; `None` if it is not one of a pre-shared key.
pub(crate) fn run(case: &str, is_hostile: bool) -> Option<(u64, bool)> {
    if !NAMES.contains(&case) {
        return None;
    }
    let mut harness = Harness::established(transport());
    harness.server = server(psk_transport(), usize::MAX, 10_000);
    harness.handle = None;
    let mut attack = Attack::new(harness);
    if case.ends_with("at-the-limit") {
        for number in 0..HALF_OPEN {
            attack.harness.remote = address(PACKETS + 1 + number);
            let flight = first_flight(PACKETS + 1 + number, Some(key(1)))?;
            attack.harness.deliver(flight);
        }
        // Their first probe timeouts are over: they are no work of the packets that follow.
        attack.harness.advance(MS * 30);
    }
    let replayed = first_flight(0, Some(key(4)))?;
    if case.starts_with("psk-replayed") && is_hostile {
        attack.harness.remote = address(0);
        attack.harness.deliver(replayed.clone());
    }
    for number in 1..=PACKETS {
        attack.harness.remote = address(number);
        let right = first_flight(number, Some(key(4)))?;
        let datagram = match case {
            _ if !is_hostile => right,
            "psk-no-key" => first_flight(number, None)?,
            "psk-damaged-first-flights" => damaged(right),
            "psk-replayed-first-flights" => replayed.clone(),
            "psk-replayed-damaged-first-flights" => damaged(replayed.clone()),
            "psk-unknown-versions" => {
                let mut datagram = right;
                datagram[1] ^= 0x55;
                datagram
            }
            "psk-garbage" => (0..1_400).map(|at| (at * 7 + number * 13) as u8 | 0xc0).collect(),
            _ => first_flight(number, Some(key(9)))?,
        };
        attack.push(datagram);
    }
    Some((attack.packets, attack.is_closed))
}

/// Changes the last byte that is not padding: the proof stays right.
fn damaged(mut datagram: Vec<u8>) -> Vec<u8> {
    if let Some(last) = datagram.iter_mut().rev().find(|byte| **byte != 0) {
        *last ^= 1;
    }
    datagram
}
