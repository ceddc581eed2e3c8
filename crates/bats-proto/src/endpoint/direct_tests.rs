//! A flow ID alone decides whether a session does without TLS, at both ends.

use std::sync::Arc;

use bats_types::Timestamp;

use super::Endpoint;
use super::admission::MAX_HALF_OPEN_PER_PREFIX;
use crate::config::{ClientConfig, EndpointConfig, PeerTrust, ServerConfig, TransportConfig};
use crate::crypto::generate_identity;
use crate::datagram::Incoming;
use crate::handshake::{
    FirstPacket, Handshake, Protection, ServerCrypto, ServerStart, parse_first,
};
use crate::relay::RelayConfig;
use crate::remote::Remote;
use crate::session::local_parameters;
use crate::wire::flow::{DIRECT_FLOW, FlowKey, NodeId};
use crate::wire::long_header::MIN_INITIAL_DATAGRAM;
use crate::{Output, PresharedKey};

const NOW: Timestamp = Timestamp::from_millis(1_000);
const ORDINARY: FlowKey = FlowKey { destination: NodeId(2), source: NodeId(1), flow: 7 };
const DIRECT: FlowKey = FlowKey { flow: 7 | DIRECT_FLOW, ..ORDINARY };

/// Node 1, which uses TLS.
fn node(psk: Option<PresharedKey>) -> Endpoint {
    let transport = TransportConfig { psk, ..TransportConfig::default() };
    let server = ServerConfig {
        identity: generate_identity(&["node.example".to_owned()]).unwrap(),
        transport: Arc::new(transport),
        client_trust: None,
        retry_threshold: usize::MAX,
        max_connections: 100_000,
    };
    let config = EndpointConfig { server: Some(server), ..EndpointConfig::default() };
    let mut endpoint = Endpoint::new(config, [1; 32]).unwrap();
    endpoint.enable_relay(RelayConfig::new(NodeId(1))).unwrap();
    endpoint
}

fn client() -> ClientConfig {
    let trust = PeerTrust::DangerousAcceptAny;
    ClientConfig { trust, identity: None, transport: Arc::default() }
}

/// The handshake of a client in this flow, and its first flight.
fn first_flight(key: FlowKey, protection: Protection, number: u64) -> (Handshake, Vec<u8>) {
    let mut seed = [7; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    let parameters = local_parameters(&TransportConfig::default(), 1);
    let cid = (number as u32).to_be_bytes();
    let to = (Remote::Relays(key), "node.example");
    let config = client();
    let mut handshake =
        Handshake::client(NOW, &config, to, protection, parameters, cid, seed).unwrap();
    let mut flight = vec![0; MIN_INITIAL_DATAGRAM];
    let len = handshake.poll_datagram(NOW, &mut flight, usize::MAX).unwrap();
    flight.truncate(len);
    (handshake, flight)
}

fn receive(endpoint: &mut Endpoint, key: FlowKey, mut packet: Vec<u8>) {
    endpoint.handle_datagram(NOW, Incoming::over_relays(key, &mut packet));
}

#[test]
fn handshakes_without_tls_are_accepted_in_direct_flows_only() {
    let tls = Protection::Handshake(Default::default());
    for psk in [None, Some(PresharedKey::new([1; 32]))] {
        for (number, key, protection, is_accepted) in [
            (1, ORDINARY, Protection::Links(None), false),
            (2, DIRECT, tls, false),
            (3, DIRECT, Protection::Links(None), true),
        ] {
            let mut endpoint = node(psk.clone());
            let (_, flight) = first_flight(key, protection, number);
            receive(&mut endpoint, key, flight);
            let started = endpoint.endpoint_stats().handshakes_started;
            assert_eq!(started, u64::from(is_accepted), "{key:?} {protection:?} {psk:?}");
            assert_eq!(endpoint.connection_count() as u64, started);
        }
    }
}

/// A relay, or a node that takes the place of the destination, answers the first flight of an ordinary session as if it were
/// a direct one.
#[test]
fn ordinary_sessions_take_no_answer_without_tls() {
    for (key, is_answered) in [(ORDINARY, false), (DIRECT, true)] {
        let mut endpoint = node(None);
        let session = endpoint.connect_in_flow(NOW, key, "node.example", client()).unwrap();
        let mut flight = vec![0; MIN_INITIAL_DATAGRAM];
        let mut connection = endpoint.connections.get_mut(session).unwrap();
        let outgoing = connection.poll_transmit(NOW, &mut flight, None).unwrap();
        drop(connection);
        flight.truncate(outgoing.len);
        let Some(FirstPacket::Initial(initial)) = parse_first(&flight) else {
            panic!("no Initial")
        };
        let crypto = ServerCrypto::of_links([1; 32]);
        let start = crypto.start(NOW, Remote::Relays(key.reversed()), &initial, false, false);
        let ServerStart::Accept(start) = start else { panic!("{start:?}") };
        let parameters = local_parameters(&TransportConfig::default(), 1);
        let mut server =
            Handshake::server(NOW, &crypto, parameters, [9; 4], &start, false, [2; 32]).unwrap();
        let cid = u32::from_be_bytes(initial.source);
        let opened = server.handle_datagram(NOW, &mut flight).unwrap();
        assert_eq!(opened, is_answered, "the first flight of an ordinary session has other keys");
        // Without keys it can still answer as if the first flight were that of a direct session.
        let (_, mut plain) = first_flight(DIRECT, Protection::Links(None), cid.into());
        assert!(opened || server.handle_datagram(NOW, &mut plain).unwrap());
        let mut answer = vec![0; MIN_INITIAL_DATAGRAM];
        let len = server.poll_datagram(NOW, &mut answer, usize::MAX).unwrap();
        answer.truncate(len);
        receive(&mut endpoint, key, answer);
        let connection = endpoint.connections.get(session).unwrap();
        assert_eq!(connection.is_unanswered(), !is_answered, "{key:?}");
        assert_eq!(connection.is_established(), is_answered, "{key:?}");
    }
}

/// One neighbour has the half-open handshakes of one network, whatever flows it uses. It answers nothing for them: the
/// links have validated it.
#[test]
fn half_open_direct_sessions_of_a_neighbour_are_limited() {
    let mut endpoint = node(None);
    let mut open = |number: u64| {
        let key = FlowKey { flow: number as u32 | DIRECT_FLOW, ..DIRECT };
        let (_, flight) = first_flight(key, Protection::Links(None), number);
        receive(&mut endpoint, key, flight);
        assert!(endpoint.answers.pop().is_none(), "the links have validated it");
        let stats = endpoint.endpoint_stats();
        (endpoint.connection_count(), stats.retries_sent, stats.half_open_refused)
    };
    let limit = MAX_HALF_OPEN_PER_PREFIX as u64;
    let mut last = (0, 0, 0);
    (0..limit).for_each(|number| last = open(number));
    assert_eq!(last, (MAX_HALF_OPEN_PER_PREFIX, 0, 0));
    assert_eq!(open(limit), (MAX_HALF_OPEN_PER_PREFIX, 0, 1));
    assert_eq!(endpoint.relay_node.as_ref().unwrap().stats().flows, 0, "the relay has none yet");
    // They end after the handshake timeout.
    let mut buffer = Vec::new();
    for at in [NOW, NOW + core::time::Duration::from_secs(60)] {
        endpoint.handle(at, crate::Input::Timeout);
        while !matches!(endpoint.poll(at, &mut buffer), Output::Timeout(_)) {}
    }
    assert_eq!(endpoint.connection_count(), 0);
}
