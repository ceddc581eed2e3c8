//! A connection ends when an AEAD has been used as often as it may be (RFC 9001, section 6.6).

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::{Arc, MutexGuard};

use bats_types::Timestamp;
use bytes::Bytes;

use super::{ConnectionHandle, Endpoint};
use crate::config::{
    ClientConfig, EndpointConfig, PeerTrust, Security, ServerConfig, TransportConfig,
};
use crate::connection::Connection;
use crate::crypto::generate_identity;
use crate::error::CloseReason;
use crate::event::Event;
use crate::testing::{Sent, Wires, World};

const CLIENT: usize = 0;
const SERVER: usize = 1;
const ROUND: Duration = Duration::from_millis(10);

fn address(peer: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + peer as u8], 4_000))
}

/// A client and a server that are connected.
struct Pair {
    world: World<Wires>,
    handles: [ConnectionHandle; 2],
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
        let nodes = (0..).map(address).zip(endpoints).collect();
        let world = World::wired(now, nodes, Duration::from_millis(1));
        let mut pair = Self { world, handles: [handle; 2] };
        pair.run(20, true);
        pair.handles[SERVER] =
            pair.world.handle_of_event(SERVER, &Event::Accepted).expect("it is accepted");
        assert!(pair.connection(CLIENT).is_some() && pair.connection(SERVER).is_some());
        pair
    }

    fn connection(&mut self, peer: usize) -> Option<MutexGuard<'_, Connection>> {
        self.world.nodes[peer].connections.get_mut(self.handles[peer])
    }

    /// Sends a message of the client, in `rounds` rounds; its packets are lost unless `deliver`.
    fn send(&mut self, rounds: u32, deliver: bool) {
        let message = Bytes::from_static(&[7; 500]);
        let handle = self.handles[CLIENT];
        // It fails once the connection is closed.
        let _ = self.world.nodes[CLIENT].send(self.world.now, handle, message);
        self.run(rounds, deliver);
    }

    fn run(&mut self, rounds: u32, deliver: bool) {
        self.world.run_with(ROUND * rounds, |_, _| !deliver);
    }

    /// Why the connection of an end has ended.
    fn closed(&self, peer: usize) -> Vec<CloseReason> {
        let events = self.world.events.iter().filter(|(node, ..)| *node == peer);
        let reason = |(_, _, event): &(usize, _, Event)| match event {
            Event::Closed(reason) => Some(reason.clone()),
            _ => None,
        };
        events.filter_map(reason).collect()
    }

    /// Datagrams of the client.
    fn sent(&self) -> impl DoubleEndedIterator<Item = &Sent> {
        self.world.links.sent.iter().filter(|sent| sent.from == CLIENT)
    }

    /// A packet of the client with a wrong tag.
    fn forge(&mut self) {
        let mut packet = self.sent().next_back().expect("it has sent").bytes.clone();
        assert_eq!(packet[0] & 0x80, 0, "a data packet");
        *packet.last_mut().expect("a tag") ^= 1;
        self.world.inject(SERVER, address(CLIENT), packet);
        self.run(1, true);
    }

    fn key_updates(&self, peer: usize) -> u64 {
        let stats = self.world.nodes[peer].stats(self.world.now, self.handles[peer]);
        stats.expect("it is open").key_updates
    }
}

#[test]
fn forged_packets_over_all_key_updates_close_the_connection_at_the_integrity_limit() {
    let mut pair = Pair::new();
    pair.connection(SERVER).expect("it is open").link_mut().leave_forged_packets(3);
    for updates in 1..=2 {
        pair.send(20, true);
        pair.forge();
        assert_eq!(pair.closed(SERVER), [], "{updates} of 3");
        pair.connection(CLIENT).expect("it is open").link_mut().leave_sealed_packets(0, true);
        pair.send(20, true);
        assert_eq!((pair.key_updates(CLIENT), pair.key_updates(SERVER)), (updates, updates));
    }
    pair.forge();
    assert_eq!(pair.closed(SERVER), [CloseReason::AeadLimit]);
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
    let before = pair.sent().count();
    (0..10).for_each(|_| pair.send(1, false));
    let sent = pair.sent().count() - before;
    assert_eq!(pair.closed(CLIENT), [CloseReason::AeadLimit]);
    // One burst is sealed before the limit is seen.
    assert!((1..64).contains(&sent), "{sent} packets");
}
