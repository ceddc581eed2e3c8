//! Stateless resets (RFC 9000, section 10.3): a restarted server ends connections at its clients, and
//! no other sender does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::crypto::generate_identity;
use bats_proto::testing::{self, Wires};
use bats_proto::{
    ClientConfig, CloseReason, ConnectionHandle, Endpoint, EndpointConfig, Event, Identity, Input,
    Output, PeerTrust, Received, ServerConfig, Timestamp, TransportConfig,
};
use bytes::Bytes;

const DELAY: Duration = Duration::from_millis(10);

fn address(host: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1 + host as u8], 4_000))
}

const CLIENT: usize = 0;
const SERVER: usize = 1;

fn identity() -> Identity {
    generate_identity(&["server.example".to_owned()]).unwrap()
}

fn server(identity: &Identity, seed: u8, transport: TransportConfig) -> Endpoint {
    let server = ServerConfig {
        client_trust: None,
        identity: identity.clone(),
        transport: Arc::new(TransportConfig { stateless_resets: true, ..transport }),
        retry_threshold: 1_000,
        max_connections: 10,
    };
    let config = EndpointConfig { server: Some(server), ..EndpointConfig::default() };
    Endpoint::new(config, [seed; 32]).unwrap()
}

/// All datagrams that an endpoint has to send now, with their destination.
fn poll(endpoint: &mut Endpoint, now: Timestamp) -> Vec<(SocketAddr, Vec<u8>)> {
    let mut datagrams = Vec::new();
    let mut buffer = Vec::with_capacity(65_536);
    loop {
        match endpoint.poll(now, &mut buffer) {
            Output::Transmit(transmit) => {
                for datagram in buffer[..transmit.len].chunks(transmit.segment_size) {
                    datagrams.push((transmit.remote, datagram.to_vec()));
                }
            }
            Output::Event(..) => {}
            Output::Timeout(_) => return datagrams,
        }
    }
}

fn deliver(endpoint: &mut Endpoint, now: Timestamp, remote: SocketAddr, datagram: &[u8]) {
    let payload = &mut datagram.to_vec()[..];
    endpoint.handle(now, Input::Datagram(Received { remote, local_ip: None, ecn: 0, payload }));
}

/// A client with an established connection to a server, and a network with a delay.
struct World {
    world: testing::World<Wires>,
    handle: ConnectionHandle,
}

impl World {
    fn new(identity: &Identity) -> Self {
        let idle_timeout = Duration::from_secs(60);
        let transport = TransportConfig { idle_timeout, ..TransportConfig::default() };
        let now = Timestamp::from_millis(1_000);
        let mut client = Endpoint::new(EndpointConfig::default(), [1; 32]).unwrap();
        let config = ClientConfig {
            trust: PeerTrust::DangerousAcceptAny,
            identity: None,
            transport: Arc::new(transport.clone()),
        };
        let handle = client.connect(now, address(SERVER), "server.example", config).unwrap();
        let nodes =
            vec![(address(CLIENT), client), (address(SERVER), server(identity, 2, transport))];
        let mut world = testing::World::wired(now, nodes, DELAY);
        world.run(Duration::from_secs(1));
        assert_eq!(world.all(CLIENT, &Event::Connected), [handle]);
        Self { world, handle }
    }

    fn run(&mut self, time: Duration) {
        self.world.run(time);
    }

    /// Why the client's connection ended.
    fn closed(&self) -> Option<&CloseReason> {
        self.world.events.iter().find_map(|(node, _, event)| match event {
            Event::Closed(reason) if *node == CLIENT => Some(reason),
            _ => None,
        })
    }

    fn client(&mut self) -> &mut Endpoint {
        &mut self.world.nodes[CLIENT]
    }

    fn deliver_to_client(&mut self, from: usize, datagram: &[u8]) {
        self.world.inject(CLIENT, address(from), datagram.to_vec());
    }

    fn send(&mut self) {
        let (now, handle) = (self.world.now, self.handle);
        self.client().send(now, handle, Bytes::from_static(b"hello")).unwrap();
    }

    /// A packet of the client's connection.
    fn packet(&mut self) -> Vec<u8> {
        self.send();
        let now = self.world.now;
        poll(self.client(), now).remove(0).1
    }
}

#[test]
fn a_restarted_server_ends_the_connection_within_a_round_trip() {
    let identity = identity();
    let mut world = World::new(&identity);
    world.world.nodes[SERVER] = server(&identity, 3, TransportConfig::default());
    world.send();
    world.run(DELAY * 2 + Duration::from_millis(5));
    assert!(
        matches!(&world.closed(), Some(CloseReason::Lost(text)) if text.contains("restarted")),
        "{:?}",
        world.closed()
    );
    assert_eq!(world.client().endpoint_stats().stateless_resets_received, 1);
    assert!(world.world.nodes[SERVER].endpoint_stats().stateless_resets_sent >= 1);
    world.run(Duration::from_secs(20));
    assert_eq!(world.client().connection_count(), 0, "its state is freed");
}

#[test]
fn a_server_with_another_identity_or_a_psk_resets_nothing() {
    let first = identity();
    let psk = TransportConfig {
        psk: Some(bats_proto::config::PresharedKey::new([5; 32])),
        ..TransportConfig::default()
    };
    for (new, is_silent) in [
        (server(&identity(), 3, TransportConfig::default()), false),
        (server(&first, 3, psk), true),
    ] {
        let mut world = World::new(&first);
        world.world.nodes[SERVER] = new;
        world.send();
        world.run(Duration::from_secs(5));
        assert_eq!(world.closed(), None);
        assert_eq!(
            world.world.nodes[SERVER].endpoint_stats().stateless_resets_sent == 0,
            is_silent
        );
    }
}

/// What attackers get from a restarted server with the same key does not end the connection, because
/// tokens depend on the address that they are sent to.
#[test]
fn resets_elicited_from_other_addresses_have_no_effect() {
    let identity = identity();
    let mut world = World::new(&identity);
    let packet = world.packet();
    let mut restarted = server(&identity, 3, TransportConfig::default());
    deliver(&mut restarted, world.world.now, address(9), &packet);
    let resets = poll(&mut restarted, world.world.now);
    assert_eq!((resets.len(), resets[0].0), (1, address(9)));
    world.deliver_to_client(SERVER, &resets[0].1);
    world.run(Duration::from_secs(1));
    assert_eq!(world.closed(), None);

    // The right reset, but changed, or from another address than the server's.
    deliver(&mut restarted, world.world.now, address(CLIENT), &packet);
    let reset = poll(&mut restarted, world.world.now).remove(0).1;
    for byte in reset.len() - 16..reset.len() {
        let mut changed = reset.clone();
        changed[byte] ^= 1;
        world.deliver_to_client(SERVER, &changed);
    }
    world.deliver_to_client(SERVER, &reset[..24]);
    world.deliver_to_client(9, &reset);
    world.run(Duration::from_secs(1));
    assert_eq!(world.closed(), None);
    world.deliver_to_client(SERVER, &reset);
    world.run(Duration::from_millis(2));
    assert!(matches!(world.closed(), Some(CloseReason::Lost(_))));
}

#[test]
fn resets_are_shorter_than_their_cause_and_limited_in_number() {
    let mut server = server(&identity(), 3, TransportConfig::default());
    let mut now = Timestamp::from_millis(1_000);
    for len in 0..1_500 {
        let mut packet = vec![0x55; len];
        packet.iter_mut().zip(1..).skip(1).take(4).for_each(|(byte, n)| *byte = n);
        deliver(&mut server, now, address(CLIENT), &packet);
        let answers = poll(&mut server, now);
        assert!(answers.len() <= 1 && answers.iter().all(|(_, reset)| reset.len() < len));
        assert_eq!(answers.is_empty(), len < 26, "{len}");
        now += Duration::from_millis(10);
    }
    let before = server.endpoint_stats();
    let seconds = 10;
    for _ in 0..seconds * 1_000 {
        for _ in 0..20 {
            deliver(&mut server, now, address(CLIENT), &[0x55; 1_200]);
            poll(&mut server, now);
        }
        now += Duration::from_millis(1);
    }
    let after = server.endpoint_stats();
    let sent = after.stateless_resets_sent - before.stateless_resets_sent;
    assert!((9_000..=seconds * 1_000 + 100).contains(&sent), "{sent} in {seconds} s");
    assert!(after.answers_dropped - before.answers_dropped > 100_000);
}

#[test]
fn two_servers_do_not_answer_each_other_without_end() {
    let now = Timestamp::from_millis(1_000);
    let mut servers = [3, 4].map(|seed| server(&identity(), seed, TransportConfig::default()));
    let mut datagram = vec![0x55; 1_400];
    let mut answers = 0;
    for turn in 0..1_000 {
        let at = turn % 2;
        deliver(&mut servers[at], now, address(1 - at), &datagram);
        let Some((_, answer)) = poll(&mut servers[at], now).pop() else { break };
        assert!(answer.len() < datagram.len());
        datagram = answer;
        answers += 1;
    }
    assert!((1..=18).contains(&answers), "{answers}");
}

#[test]
fn clients_answer_no_unknown_packet() {
    let mut world = World::new(&identity());
    for len in 26..100 {
        world.deliver_to_client(SERVER, &vec![0x55; len]);
    }
    let now = world.world.now;
    assert!(poll(world.client(), now).is_empty());
    assert_eq!(world.client().endpoint_stats().stateless_resets_sent, 0);
}
