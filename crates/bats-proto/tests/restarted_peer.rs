//! A restarted peer: the connections of the process before end when the new one has authenticated
//! itself (transport parameter 15).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::crypto::generate_identity;
use bats_proto::{
    ClientConfig, CloseReason, ConnectionHandle, Endpoint, EndpointConfig, Event, Identity, Input,
    Output, PeerTrust, Received, ServerConfig, Timestamp, TransportConfig,
};

const HUB: u8 = 1;

fn address(host: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, host], 4_000))
}

/// Endpoints by host; datagrams to a host without an endpoint are lost.
struct World {
    now: Timestamp,
    endpoints: BTreeMap<u8, Endpoint>,
    events: Vec<(u8, ConnectionHandle, Event)>,
    starts: u8,
}

impl World {
    fn new(hub_instance: u64) -> Self {
        let mut world = Self {
            now: Timestamp::from_millis(1_000),
            endpoints: BTreeMap::new(),
            events: Vec::new(),
            starts: 0,
        };
        let identity = generate_identity(&["hub".to_owned()]).unwrap();
        world.start(HUB, &identity, hub_instance);
        world
    }

    fn start(&mut self, host: u8, identity: &Identity, instance: u64) {
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
        self.endpoints.insert(host, Endpoint::new(config, seed).unwrap());
    }

    fn connect(&mut self, from: u8, to: u8, identity: Option<&Identity>) -> ConnectionHandle {
        let config = ClientConfig {
            trust: PeerTrust::DangerousAcceptAny,
            identity: identity.cloned(),
            transport: Arc::new(TransportConfig::default()),
        };
        let endpoint = self.endpoints.get_mut(&from).unwrap();
        let handle = endpoint.connect(self.now, address(to), "hub", config).unwrap();
        self.run(Duration::from_millis(200));
        assert!(self.events.contains(&(from, handle, Event::Connected)));
        handle
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let mut buffer = Vec::with_capacity(65_536);
        while self.now < end {
            let mut sent = Vec::new();
            for (&host, endpoint) in &mut self.endpoints {
                endpoint.handle(self.now, Input::Timeout);
                loop {
                    match endpoint.poll(self.now, &mut buffer) {
                        Output::Transmit(transmit) => {
                            let datagrams = buffer[..transmit.len].chunks(transmit.segment_size);
                            sent.extend(datagrams.map(|d| (host, transmit.remote, d.to_vec())));
                        }
                        Output::Event(handle, event) => self.events.push((host, handle, event)),
                        Output::Timeout(_) => break,
                    }
                }
            }
            self.now += Duration::from_millis(1);
            for (from, to, mut payload) in sent {
                let to = self.endpoints.iter_mut().find(|(host, _)| address(**host) == to);
                let Some((_, endpoint)) = to else { continue };
                let remote = address(from);
                let payload = &mut payload[..];
                let datagram = Received { remote, local_ip: None, ecn: 0, payload };
                endpoint.handle(self.now, Input::Datagram(datagram));
            }
        }
    }

    /// Connections of a host that ended because the peer was restarted.
    fn superseded(&self, host: u8) -> usize {
        let reason = Event::Closed(CloseReason::Lost("the peer was restarted".to_owned()));
        self.events.iter().filter(|(at, _, event)| *at == host && *event == reason).count()
    }
}

#[test]
fn connections_of_the_process_before_end_at_a_server() {
    let mut world = World::new(0);
    let (peer, other) = (generate_identity(&[]).unwrap(), generate_identity(&[]).unwrap());
    world.start(2, &peer, 100);
    world.start(3, &other, 50);
    world.connect(2, HUB, Some(&peer));
    world.connect(2, HUB, Some(&peer));
    world.connect(3, HUB, Some(&other));
    assert_eq!((world.superseded(HUB), world.endpoints[&HUB].connection_count()), (0, 3));
    // The peer's process ends without a word and starts again: its first connection proves it.
    world.start(2, &peer, 101);
    world.connect(2, HUB, Some(&peer));
    assert_eq!(world.superseded(HUB), 2);
    assert_eq!(world.endpoints[&HUB].connection_count(), 2, "the new one and the other peer's");
}

#[test]
fn connections_of_the_process_before_end_at_a_client() {
    let mut world = World::new(0);
    let peer = generate_identity(&["hub".to_owned()]).unwrap();
    world.start(2, &peer, 100);
    world.connect(HUB, 2, None);
    world.start(2, &peer, 200);
    world.connect(HUB, 2, None);
    assert_eq!((world.superseded(HUB), world.endpoints[&HUB].connection_count()), (1, 1));
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
        world.start(2, &peer, old);
        world.connect(2, HUB, Some(&peer));
        world.start(2, &peer, new);
        world.connect(2, HUB, identity);
        assert_eq!(world.superseded(HUB), 0, "{old}, {new}");
        assert_eq!(world.endpoints[&HUB].connection_count(), 2, "{old}, {new}");
    }
}
