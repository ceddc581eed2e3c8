//! PSK mode: no (key, nonce) pair recurs, whatever copies of a first flight reach which server.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use bats_types::Timestamp;
use core::time::Duration;

use super::{Endpoint, Input, Output, Received};
use crate::config::{
    ClientConfig, EndpointConfig, Identity, PeerTrust, PresharedKey, ServerConfig, TransportConfig,
};
use crate::crypto::{InitialSecrets, PskSecrets, SALT_LEN, generate_identity, initial_keys};
use crate::handshake::{FirstPacket, parse_first};
use crate::wire::long_header::{self, LongKind};
use crate::wire::short_header::PROTECTED_LONG_BITS;

const KEY: [u8; 32] = [5; 32];

fn transport() -> Arc<TransportConfig> {
    let psk = Some(PresharedKey::new(KEY));
    Arc::new(TransportConfig { psk, ..TransportConfig::default() })
}

fn server(identity: &Identity, seed: u8) -> Endpoint {
    let server = ServerConfig {
        identity: identity.clone(),
        client_trust: None,
        transport: transport(),
        retry_threshold: 1_000,
        max_connections: 100,
    };
    let config = EndpointConfig { server: Some(server), ..EndpointConfig::default() };
    Endpoint::new(config, [seed; 32]).expect("a configuration")
}

/// Datagrams that an endpoint sends until `until`.
fn sent(endpoint: &mut Endpoint, mut now: Timestamp, until: Timestamp) -> Vec<Vec<u8>> {
    let mut buffer = Vec::with_capacity(65_536);
    let mut datagrams = Vec::new();
    loop {
        match endpoint.poll(now, &mut buffer) {
            Output::Transmit(transmit) => {
                datagrams.extend(buffer.chunks(transmit.segment_size).map(<[u8]>::to_vec));
            }
            Output::Event(..) => {}
            Output::Timeout(Some(at)) if at <= until => {
                now = at;
                endpoint.handle(now, Input::Timeout);
            }
            Output::Timeout(_) => return datagrams,
        }
    }
}

#[test]
fn no_key_and_nonce_recur_over_two_servers_a_restart_and_replays() {
    let identity = generate_identity(&["server".to_owned()]).expect("an identity");
    let psk = PskSecrets::new(&PresharedKey::new(KEY));
    let start = Timestamp::from_millis(1_000);
    let mut client = Endpoint::new(EndpointConfig::default(), [1; 32]).expect("a configuration");
    let config = ClientConfig {
        trust: PeerTrust::DangerousAcceptAny,
        identity: None,
        transport: transport(),
    };
    let to = SocketAddr::from(([10, 0, 1, 1], 4_000));
    client.connect(start, to, "server", config).expect("a configuration");
    let flight = sent(&mut client, start, start);
    let Some(FirstPacket::Initial(initial)) = parse_first(&flight[0]) else { panic!("a flight") };
    let (destination, source) = (initial.destination, initial.source);

    // Two servers with the key, the first of them after a restart, and copies from other addresses.
    let mut pairs = BTreeSet::new();
    let mut packets = 0;
    for (seed, copies) in [(2, 3), (3, 3), (4, 3)] {
        let mut server = server(&identity, seed);
        for copy in 0..copies {
            let remote = SocketAddr::from(([10, 0, 0, 1 + copy], 4_000));
            let mut payload = flight[0].clone();
            let datagram = Received { remote, local_ip: None, ecn: 0, payload: &mut payload };
            server.handle(start, Input::Datagram(datagram));
        }
        for datagram in sent(&mut server, start, start + Duration::from_millis(300)) {
            let header = long_header::decode(&datagram).expect("a long header");
            if header.kind != LongKind::Initial {
                continue;
            }
            let salt: [u8; SALT_LEN] = header.token.try_into().expect("the token is the salt");
            let secrets = InitialSecrets {
                psk: Some(&psk),
                destination: &destination,
                source: &source,
                salt: &salt,
            };
            let keys = initial_keys(crate::config::Security::Tls, &secrets, true).expect("keys");
            // Remove the header protection: the packet number is the nonce.
            let at = header.number_at;
            let mut packet = datagram[..header.packet_len].to_vec();
            let sample = packet[at + 4..].first_chunk().expect("a sample");
            let mask = keys.remote.header.mask(sample);
            packet[0] ^= mask[0] & PROTECTED_LONG_BITS;
            packet[at..at + 4].iter_mut().zip(&mask[1..]).for_each(|(byte, mask)| *byte ^= mask);
            let number = *packet[at..].first_chunk::<4>().expect("a number");
            let pn = u64::from(u32::from_be_bytes(number));
            let (associated, sealed) = packet.split_at_mut(at + 4);
            let opened = keys.remote.packet.open_in_place(pn, associated, sealed);
            assert!(opened.is_some(), "the salt, the IDs and the key give the server's key");
            let key = psk.keying_material(&destination, &source, &salt);
            assert!(pairs.insert((key, pn)), "packet number {pn} recurs under one key");
            packets += 1;
        }
    }
    assert!(packets > 6, "{packets} packets");
    let keys: BTreeSet<_> = pairs.iter().map(|(key, _)| key).collect();
    assert!(keys.len() >= 3, "each server has a key of its own");
    // The client seals in the other direction with keys that no salt gives.
    let clients = psk.keying_material(&destination, &source, &[]);
    assert!(!keys.contains(&clients));
}
