//! A connection ends when an AEAD has been used as often as it may be (RFC 9001, section 6.6).

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;

use bats_types::Timestamp;
use bytes::Bytes;

use super::{ConnectionHandle, Endpoint, Input, Output, Received};
use crate::config::{
    ClientConfig, EndpointConfig, PeerTrust, Security, ServerConfig, TransportConfig,
};
use crate::connection::Connection;
use crate::crypto::generate_identity;
use crate::error::CloseReason;
use crate::event::Event;

const CLIENT: usize = 0;
const SERVER: usize = 1;
const ROUND: Duration = Duration::from_millis(10);

fn address(peer: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + peer as u8], 4_000))
}

/// A client and a server that are connected.
struct Pair {
    endpoints: [Endpoint; 2],
    handles: [ConnectionHandle; 2],
    now: Timestamp,
    closed: [Vec<CloseReason>; 2],
    /// The last datagrams of each end.
    sent: [Vec<Vec<u8>>; 2],
}

impl Pair {
    fn new() -> Self {
        let transport = Arc::new(TransportConfig::default());
        let server = ServerConfig {
            identity: generate_identity(&["server".to_owned()]).expect("an identity"),
            client_trust: None,
            transport: transport.clone(),
            retry_threshold: 100,
            max_connections: 10,
        };
        let security = Security::DangerousPlain;
        let endpoint = |server, seed| {
            let config = EndpointConfig { security, server, ..EndpointConfig::default() };
            Endpoint::new(config, [seed; 32]).expect("a configuration")
        };
        let mut endpoints = [endpoint(None, 1), endpoint(Some(server), 2)];
        let client =
            ClientConfig { trust: PeerTrust::DangerousAcceptAny, identity: None, transport };
        let now = Timestamp::from_millis(1_000);
        let handle = endpoints[CLIENT]
            .connect(now, address(SERVER), "server", client)
            .expect("a configuration");
        let closed = [Vec::new(), Vec::new()];
        let mut pair =
            Self { endpoints, handles: [handle; 2], now, closed, sent: [Vec::new(), Vec::new()] };
        pair.run(20, true);
        pair.handles[SERVER] =
            pair.endpoints[SERVER].connections.iter().next().expect("it is accepted").0;
        assert!(pair.connection(CLIENT).is_some() && pair.connection(SERVER).is_some());
        pair
    }

    fn connection(&mut self, peer: usize) -> Option<&mut Connection> {
        self.endpoints[peer].connections.get_mut(self.handles[peer])
    }

    /// Sends a message of the client, in `rounds` rounds; its packets are lost unless `deliver`.
    fn send(&mut self, rounds: usize, deliver: bool) {
        let message = Bytes::from_static(&[7; 500]);
        let handle = self.handles[CLIENT];
        // It fails once the connection is closed.
        let _ = self.endpoints[CLIENT].send(self.now, handle, message);
        self.run(rounds, deliver);
    }

    fn run(&mut self, rounds: usize, deliver: bool) {
        let mut buffer = Vec::with_capacity(65_536);
        for _ in 0..rounds {
            for peer in [CLIENT, SERVER] {
                self.endpoints[peer].handle(self.now, Input::Timeout);
                let mut datagrams = Vec::new();
                loop {
                    match self.endpoints[peer].poll(self.now, &mut buffer) {
                        Output::Transmit(transmit) => datagrams.extend(
                            buffer[..transmit.len]
                                .chunks(transmit.segment_size)
                                .map(<[u8]>::to_vec),
                        ),
                        Output::Event(_, Event::Closed(why)) => self.closed[peer].push(why),
                        Output::Event(..) => {}
                        Output::Timeout(_) => break,
                    }
                }
                for datagram in datagrams.iter().filter(|_| deliver) {
                    self.inject(1 - peer, datagram.clone());
                }
                if !datagrams.is_empty() {
                    self.sent[peer] = datagrams;
                }
            }
            self.now += ROUND;
        }
    }

    fn inject(&mut self, to: usize, mut payload: Vec<u8>) {
        let datagram =
            Received { remote: address(1 - to), local_ip: None, ecn: 0, payload: &mut payload };
        self.endpoints[to].handle(self.now, Input::Datagram(datagram));
    }

    /// A packet of the client with a wrong tag.
    fn forge(&mut self) {
        let mut packet = self.sent[CLIENT].last().expect("it has sent").clone();
        assert_eq!(packet[0] & 0x80, 0, "a data packet");
        *packet.last_mut().expect("a tag") ^= 1;
        self.inject(SERVER, packet);
        self.run(1, true);
    }

    fn key_updates(&self, peer: usize) -> u64 {
        self.endpoints[peer].stats(self.now, self.handles[peer]).expect("it is open").key_updates
    }
}

#[test]
fn forged_packets_over_all_key_updates_close_the_connection_at_the_integrity_limit() {
    let mut pair = Pair::new();
    pair.connection(SERVER).expect("it is open").link_mut().leave_forged_packets(3);
    for updates in 1..=2 {
        pair.send(20, true);
        pair.forge();
        assert_eq!(pair.closed[SERVER], [], "{updates} of 3");
        pair.connection(CLIENT).expect("it is open").link_mut().leave_sealed_packets(0, true);
        pair.send(20, true);
        assert_eq!((pair.key_updates(CLIENT), pair.key_updates(SERVER)), (updates, updates));
    }
    pair.forge();
    assert_eq!(pair.closed[SERVER], [CloseReason::AeadLimit]);
    pair.run(10, true);
    assert!(pair.connection(SERVER).is_none_or(|connection| connection.is_dead()));
}

#[test]
fn sender_whose_keys_cannot_be_updated_closes_the_connection_at_the_confidentiality_limit() {
    let mut pair = Pair::new();
    pair.send(20, true);
    // The update cannot be confirmed: the peer hears nothing.
    pair.connection(CLIENT).expect("it is open").link_mut().leave_sealed_packets(0, true);
    pair.send(2, false);
    assert_eq!((pair.key_updates(CLIENT), pair.key_updates(SERVER)), (1, 0));
    pair.connection(CLIENT).expect("it is open").link_mut().leave_sealed_packets(3, false);
    pair.sent[CLIENT].clear();
    let mut sent = 0;
    for _ in 0..10 {
        pair.send(1, false);
        sent += std::mem::take(&mut pair.sent[CLIENT]).len();
    }
    assert_eq!(pair.closed[CLIENT], [CloseReason::AeadLimit]);
    // One burst is sealed before the limit is seen.
    assert!((1..64).contains(&sent), "{sent} packets");
}
