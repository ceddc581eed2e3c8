//! A restarted peer: the connections of the process before end when the new one has authenticated
//! itself (transport parameter 15).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::crypto::generate_identity;
use bats_proto::testing::{self, Wires};
use bats_proto::{
    ClientConfig, CloseReason, ConnectionHandle, Endpoint, EndpointConfig, Event, Identity,
    PeerTrust, ServerConfig, Timestamp, TransportConfig,
};

const HUB: usize = 0;
const HOSTS: usize = 3;

fn address(host: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1 + host as u8], 4_000))
}

/// Hosts, of which the tests start processes.
struct World {
    world: testing::World<Wires>,
    starts: u8,
}

impl World {
    fn new(hub_instance: u64) -> Self {
        let silent = || Endpoint::new(EndpointConfig::default(), [0; 32]).unwrap();
        let nodes = (0..HOSTS).map(|host| (address(host), silent())).collect();
        let now = Timestamp::from_millis(1_000);
        let world = testing::World::wired(now, nodes, Duration::from_millis(1));
        let mut world = Self { world, starts: 0 };
        let identity = generate_identity(&["hub".to_owned()]).unwrap();
        world.start(HUB, &identity, hub_instance);
        world
    }

    fn start(&mut self, host: usize, identity: &Identity, instance: u64) {
        let server = ServerConfig {
            client_trust: Some(PeerTrust::DangerousAcceptAny),
            identity: identity.clone(),
            transport: Arc::default(),
            retry_threshold: 1_000,
            max_connections: 10,
        };
        let server = Some(server);
        let config = EndpointConfig { server, instance, ..EndpointConfig::default() };
        self.starts += 1;
        let seed = [self.starts; 32];
        self.world.nodes[host] = Endpoint::new(config, seed).unwrap();
    }

    fn connect(&mut self, from: usize, to: usize, identity: Option<&Identity>) -> ConnectionHandle {
        let config = ClientConfig {
            trust: PeerTrust::DangerousAcceptAny,
            identity: identity.cloned(),
            transport: Arc::new(TransportConfig::default()),
        };
        let world = &mut self.world;
        let handle = world.nodes[from].connect(world.now, address(to), "hub", config).unwrap();
        world.run(Duration::from_millis(200));
        assert!(world.events.contains(&(from, handle, Event::Connected)));
        handle
    }

    /// Connections of a host that ended because the peer was restarted.
    fn superseded(&self, host: usize) -> usize {
        let reason = Event::Closed(CloseReason::Lost("the peer was restarted".to_owned()));
        self.world.all(host, &reason).len()
    }
}

#[test]
fn connections_of_the_process_before_end_at_a_server() {
    let mut world = World::new(0);
    let (peer, other) = (generate_identity(&[]).unwrap(), generate_identity(&[]).unwrap());
    world.start(1, &peer, 100);
    world.start(2, &other, 50);
    world.connect(1, HUB, Some(&peer));
    world.connect(1, HUB, Some(&peer));
    world.connect(2, HUB, Some(&other));
    assert_eq!((world.superseded(HUB), world.world.nodes[HUB].connection_count()), (0, 3));
    // The peer's process ends without a word and starts again: its first connection proves it.
    world.start(1, &peer, 101);
    world.connect(1, HUB, Some(&peer));
    assert_eq!(world.superseded(HUB), 2);
    assert_eq!(world.world.nodes[HUB].connection_count(), 2, "the new one and the other peer's");
}

#[test]
fn connections_of_the_process_before_end_at_a_client() {
    let mut world = World::new(0);
    let peer = generate_identity(&["hub".to_owned()]).unwrap();
    world.start(1, &peer, 100);
    world.connect(HUB, 1, None);
    world.start(1, &peer, 200);
    world.connect(HUB, 1, None);
    assert_eq!((world.superseded(HUB), world.world.nodes[HUB].connection_count()), (1, 1));
}

/// Neither an older instance, nor one that says nothing, nor one without a certificate ends anything.
#[test]
fn only_a_newer_authenticated_instance_ends_connections() {
    let peer = generate_identity(&[]).unwrap();
    for (old, new, identity) in [
        (100, 99, Some(&peer)),
        (100, 100, Some(&peer)),
        (100, 0, Some(&peer)),
        (0, 100, Some(&peer)),
        (100, 101, None),
    ] {
        let mut world = World::new(7);
        world.start(1, &peer, old);
        world.connect(1, HUB, Some(&peer));
        world.start(1, &peer, new);
        world.connect(1, HUB, identity);
        assert_eq!(world.superseded(HUB), 0, "{old}, {new}");
        assert_eq!(world.world.nodes[HUB].connection_count(), 2, "{old}, {new}");
    }
}
