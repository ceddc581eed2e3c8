//! Endpoint statistics of the replay ledger.

use core::time::Duration;
use std::net::SocketAddr;
use std::sync::Arc;

use bats_types::Timestamp;

use super::{Endpoint, Input, Output, Received};
use crate::config::{ClientConfig, EndpointConfig, Mode, PeerTrust, ServerConfig, TransportConfig};
use crate::crypto::generate_identity;

/// Delivers the first flight of a client (numbered) to the server.
fn connect_once(server: &mut Endpoint, now: Timestamp, number: u8) {
    let config = ClientConfig {
        trust: PeerTrust::DangerousAcceptAny,
        identity: None,
        transport: Arc::new(TransportConfig { mode: Mode::Btp, ..TransportConfig::default() }),
    };
    let mut client = Endpoint::new(EndpointConfig::default(), [number; 32]).expect("a client");
    let to = SocketAddr::from(([10, 0, 1, 1], 4_000));
    client.connect(now, to, "server", config).expect("a configuration");
    let mut buffer = Vec::with_capacity(65_536);
    let remote = SocketAddr::from(([10, 0, 0, number], 4_000));
    while let Output::Transmit(transmit) = client.poll(now, &mut buffer) {
        for payload in buffer.chunks_mut(transmit.segment_size) {
            let received = Received { remote, local_ip: None, ecn: 0, payload };
            server.handle(now, Input::Datagram(received));
        }
    }
}

#[test]
fn handshakes_without_room_for_early_data_are_counted() {
    let transport =
        TransportConfig { mode: Mode::Btp, early_data: true, ..TransportConfig::default() };
    let server = ServerConfig {
        identity: generate_identity(&["server".to_owned()]).expect("an identity"),
        transport: Arc::new(transport),
        client_trust: None,
        retry_threshold: usize::MAX,
        max_connections: 100,
    };
    let config = EndpointConfig { server: Some(server), ..EndpointConfig::default() };
    let mut server = Endpoint::new(config, [3; 32]).expect("a configuration");
    let now = Timestamp::from_millis(1_000);
    connect_once(&mut server, now, 1);
    assert_eq!(server.endpoint_stats().early_data_refused, 0);
    server.server.as_ref().expect("it serves").fill_ledger(now);
    connect_once(&mut server, now, 2);
    connect_once(&mut server, now, 3);
    let stats = server.endpoint_stats();
    assert_eq!((stats.early_data_refused, stats.handshakes_started), (2, 3));
    // Entries of the ledger expire after a while.
    connect_once(&mut server, now + Duration::from_secs(26), 4);
    assert_eq!(server.endpoint_stats().early_data_refused, 2);
}
