//! Closed mode over real TLS: who has the key is served as always, and whoever has it not hears not one
//! byte.

#[allow(dead_code, reason = "shared by several tests, each needs a part")]
#[path = "resumption/world.rs"]
mod world;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::stream::{Secured, SecuredServer};
use bats_proto::wire::long_header::{self, LongKind};
use bats_proto::{
    ClientConfig, CloseReason, ClosedKey, ClosedKeyError, ConnectError, ConnectionHandle, Endpoint,
    EndpointConfig, EndpointStats, Event, Identity, Input, Mode, Output, PeerTrust, Received,
    ServerConfig, SessionStore, Timestamp, TransportConfig,
};
use bytes::Bytes;
use world::{CLIENT, SERVER, World, address, identity};

const TIMEOUT: Duration = Duration::from_secs(3);

fn key(byte: u8) -> Option<ClosedKey> {
    Some(ClosedKey::new([byte; 32]))
}

fn server(identity: &Identity, closed: Option<ClosedKey>) -> ServerConfig {
    let config = world::server(identity, true);
    let transport = TransportConfig { closed, ..(*config.transport).clone() };
    ServerConfig { transport: Arc::new(transport), ..config }
}

fn client(print: [u8; 32], closed: Option<ClosedKey>) -> ClientConfig {
    let transport =
        TransportConfig { closed, handshake_timeout: TIMEOUT, ..world::transport(Mode::Brtp) };
    let trust = PeerTrust::Fingerprints(vec![print]);
    ClientConfig { trust, identity: None, transport: Arc::new(transport) }
}

fn stats(world: &World) -> EndpointStats {
    world.endpoints[SERVER].endpoint_stats()
}

/// Bytes that the server has sent to anybody.
fn said(world: &World) -> usize {
    world.sent.iter().filter(|(who, ..)| *who == SERVER).map(|(_, _, bytes)| bytes.len()).sum()
}

/// A message each way.
fn talk(world: &mut World, handle: ConnectionHandle) {
    let accepted = *world.all(SERVER, &Event::Accepted).last().expect("accepted");
    for (from, by, to, at) in
        [(CLIENT, handle, SERVER, accepted), (SERVER, accepted, CLIENT, handle)]
    {
        let message = Bytes::from(vec![from as u8; 20_000]);
        world.endpoints[from].send(world.now, by, message.clone()).expect("room");
        world.run(Duration::from_millis(200));
        assert_eq!(world.endpoints[to].recv(world.now, at), Some(message));
    }
}

#[test]
fn who_has_the_key_is_served() {
    let (identity, print) = identity();
    let mut world = World::new(server(&identity, key(1)));
    let handle = world.connect(client(print, key(1)));
    world.run(Duration::from_millis(200));
    assert_eq!(world.all(CLIENT, &Event::Connected), [handle]);
    talk(&mut world, handle);
    assert_eq!((stats(&world).strangers_ignored, stats(&world).retries_sent), (0, 0));
}

#[test]
fn whoever_has_another_key_or_none_meets_silence() {
    let (identity, print) = identity();
    for (theirs, ours) in [(key(1), key(2)), (key(1), None), (None, key(1))] {
        let is_closed = theirs.is_some();
        let mut world = World::new(server(&identity, theirs));
        let handle = world.connect(client(print, ours));
        world.run(TIMEOUT + Duration::from_millis(100));
        let closed = Event::Closed(CloseReason::HandshakeTimeout);
        assert_eq!(world.all(CLIENT, &closed), [handle], "{:?}", world.events);
        assert_eq!(said(&world), 0);
        assert_eq!(world.endpoints[SERVER].connection_count(), 0);
        let (stats, flights) = (stats(&world), world.sent.len() as u64);
        assert!(flights >= 4, "the client has tried more than once: {flights}");
        let ignored = if is_closed { stats.strangers_ignored } else { stats.datagrams_dropped };
        assert_eq!((ignored, stats.datagrams_received), (flights, flights));
    }
}

/// The certificate counts as ever: the key alone makes nobody the server.
#[test]
fn the_key_is_no_certificate() {
    let (identity, _) = identity();
    let mut world = World::new(server(&identity, key(1)));
    let handle = world.connect(client([7; 32], key(1)));
    world.run(Duration::from_millis(200));
    let refused = world.events.iter().any(|(who, by, event)| {
        (*who, *by) == (CLIENT, handle) && matches!(event, Event::Closed(CloseReason::Handshake(_)))
    });
    assert!(refused, "{:?}", world.events);
}

#[test]
fn a_busy_server_has_clients_prove_their_address() {
    let (identity, print) = identity();
    let busy = ServerConfig { retry_threshold: 0, ..server(&identity, key(1)) };
    let mut world = World::new(busy);
    let handle = world.connect(client(print, key(1)));
    world.run(Duration::from_millis(200));
    assert_eq!(world.all(CLIENT, &Event::Connected), [handle]);
    assert!(stats(&world).retries_sent >= 1);
    talk(&mut world, handle);
    // Who has no key is not even asked.
    let before = (said(&world), stats(&world).retries_sent);
    world.end(handle);
    let before_end = said(&world) - before.0;
    world.connect(client(print, key(2)));
    world.run(TIMEOUT);
    assert_eq!(said(&world), before.0 + before_end);
    assert_eq!(stats(&world).retries_sent, before.1);
}

/// What an onlooker without the key says to a client moves it as little: it would have an open one begin
/// again with a wrong token, or give up.
#[test]
fn retries_and_version_negotiations_of_others_are_not_believed() {
    let (identity, print) = identity();
    let mut world = World::new(server(&identity, key(1)));
    let handle = world.connect(client(print, key(1)));
    world.run_with(Duration::from_millis(1), &mut |_, _| true);
    let flight = world.sent[0].2.clone();
    let header = long_header::decode(&flight).expect("a first packet");
    assert_eq!(header.token.len(), 16, "nothing but the proof");
    let (server_id, client_id) = (header.destination, header.source);
    for token in [&[9; 40][..], &[9; 56], &[9; 5], &[]] {
        let retry = long_header::retry(client_id, server_id, token, 0);
        world.inject(CLIENT, address(SERVER), retry);
    }
    let mut negotiation = long_header::version_negotiation(client_id, server_id, 0);
    let at = negotiation.len() - 8;
    negotiation[at..].fill(0x0a);
    world.inject(CLIENT, address(SERVER), negotiation);
    // Data that nobody has sent find no place.
    let mut data = vec![0x40; 1_000];
    data[1..5].copy_from_slice(client_id);
    (0..100).for_each(|_| world.inject(CLIENT, address(SERVER), data.clone()));
    world.run(Duration::from_secs(1));
    assert_eq!(world.all(CLIENT, &Event::Connected), [handle], "{:?}", world.events);
    assert_eq!(world.stats(CLIENT, handle).early_packets_dropped, 0);
    talk(&mut world, handle);
}

#[test]
fn sessions_are_taken_up_and_early_data_arrive() {
    let (identity, print) = identity();
    let store = SessionStore::new(100);
    let mut world = World::new(server(&identity, key(1)));
    let with = |mode, closed| {
        let config = world::client(mode, PeerTrust::Fingerprints(vec![print]), &store);
        let transport = TransportConfig { closed, ..(*config.transport).clone() };
        ClientConfig { transport: Arc::new(transport), ..config }
    };
    world.visit(with(Mode::Btp, key(1)));
    let handle = world.connect(with(Mode::Btp, key(1)));
    let message = Bytes::from_static(b"early");
    world.endpoints[CLIENT].send(world.now, handle, message.clone()).expect("a session");
    world.run(Duration::from_millis(500));
    assert_eq!(world.delivered(), core::slice::from_ref(&message));
    let told = world.stats(CLIENT, handle);
    assert!(told.resumed);
    assert_eq!((told.early_messages, told.early_messages_accepted), (1, 1));
    world.end(handle);
    // A session does not stand for the key.
    let before = said(&world);
    let handle = world.connect(with(Mode::Btp, key(2)));
    world.endpoints[CLIENT].send(world.now, handle, message).expect("a session");
    world.run(Duration::from_secs(2));
    assert_eq!(said(&world), before);
    assert!(world.delivered().is_empty());
}

/// The datagrams of a client's first flight.
fn flight_of(config: ClientConfig) -> Vec<Vec<u8>> {
    let mut endpoint = Endpoint::new(EndpointConfig::default(), [9; 32]).unwrap();
    let now = Timestamp::from_millis(1);
    endpoint.connect(now, address(SERVER), "server.example", config).unwrap();
    let mut buffer = Vec::with_capacity(65_536);
    let mut flight = Vec::new();
    while let Output::Transmit(transmit) = endpoint.poll(now, &mut buffer) {
        flight.extend(buffer[..transmit.len].chunks(transmit.segment_size).map(<[u8]>::to_vec));
    }
    assert!(!flight.is_empty());
    flight
}

/// Bytes that a server answers at once to each of 100,000 addresses that send it this flight.
fn storm(server: &mut Endpoint, flight: &[Vec<u8>]) -> Vec<usize> {
    let mut buffer = Vec::with_capacity(65_536);
    let now = Timestamp::from_millis(5);
    let mut answered = Vec::new();
    for number in 0..100_000_u32 {
        let ip = (0x0a00_0000 | number << 4).to_be_bytes();
        let remote = SocketAddr::from((ip, 4_433));
        let mut bytes = 0;
        for datagram in flight {
            let mut payload = datagram.clone();
            let received = Received { remote, local_ip: None, ecn: 0, payload: &mut payload };
            server.handle(now, Input::Datagram(received));
            while let Output::Transmit(transmit) = server.poll(now, &mut buffer) {
                bytes += transmit.len;
            }
        }
        answered.push(bytes);
    }
    answered
}

#[test]
fn a_storm_of_strangers_from_a_hundred_thousand_addresses_is_answered_nothing() {
    let (identity, print) = identity();
    for theirs in [None, key(2)] {
        let mut server = World::server(server(&identity, key(1)), 2);
        let flight = flight_of(client(print, theirs));
        let answered = storm(&mut server, &flight);
        assert_eq!(answered.iter().sum::<usize>(), 0);
        let stats = server.endpoint_stats();
        assert_eq!(stats.strangers_ignored, 100_000 * flight.len() as u64);
        assert_eq!((stats.handshakes_started, server.connection_count()), (0, 0));
    }
}

/// A recorded flight is good for one answer: then its sender has to prove its address, for which it
/// lacks the keys.
#[test]
fn a_recorded_flight_begins_one_handshake() {
    let (identity, print) = identity();
    let mut server = World::server(server(&identity, key(1)), 2);
    let flight = flight_of(client(print, key(1)));
    let bytes: usize = flight.iter().map(Vec::len).sum();
    let answered = storm(&mut server, &flight);
    assert!(answered[0] > 0 && answered[0] <= 3 * bytes, "{} for {bytes}", answered[0]);
    for answer in &answered[1..] {
        // A retry for each datagram, and less than a tenth of what it took.
        assert!(*answer <= bytes / 10, "{answer} for {bytes}");
    }
    let stats = server.endpoint_stats();
    assert_eq!((stats.handshakes_started, server.connection_count()), (1, 1));
    assert!(stats.retries_sent > 0);
}

/// The other side of it: a client whose address changes while it shakes hands proves the new one.
#[test]
fn a_client_whose_address_changes_within_the_handshake_connects() {
    let (identity, print) = identity();
    let mut world = World::new(server(&identity, key(1)));
    let handle = world.connect(client(print, key(1)));
    // The first flight leaves under another address, to which the answer is lost.
    let elsewhere = SocketAddr::from(([192, 0, 2, 1], 9));
    world.run_with(Duration::from_millis(1), &mut |who, _| who == CLIENT);
    let flight: Vec<_> = world.sent.iter().map(|(_, _, bytes)| bytes.clone()).collect();
    flight.into_iter().for_each(|bytes| world.inject(SERVER, elsewhere, bytes));
    world.run(Duration::from_secs(1));
    assert_eq!(world.all(CLIENT, &Event::Connected), [handle]);
    assert!(stats(&world).retries_sent >= 1);
    talk(&mut world, handle);
}

/// Packets of other kinds and versions at a closed server, too, get nothing.
#[test]
fn baits_are_not_taken() {
    let (identity, print) = identity();
    let mut world = World::new(server(&identity, key(1)));
    let flight = flight_of(client(print, None)).remove(0);
    let mut other_version = flight.clone();
    other_version[1] ^= 0x55;
    for kind in [LongKind::Handshake, LongKind::Retry, LongKind::Early] {
        let mut bait = flight.clone();
        bait[0] = 0xc0 | (kind as u8) << 4;
        world.inject(SERVER, address(CLIENT), bait);
    }
    let mut negotiation = flight.clone();
    negotiation[1..5].fill(0);
    for bait in [negotiation, other_version, flight[..1_199].to_vec(), vec![0x40; 1_200]] {
        world.inject(SERVER, address(CLIENT), bait);
    }
    world.run(Duration::from_secs(1));
    let stats = stats(&world);
    assert_eq!((said(&world), stats.version_negotiations_sent), (0, 0));
    assert_eq!((stats.strangers_ignored, stats.datagrams_dropped), (1, 6));
}

#[test]
fn modes_of_other_protocols_are_refused() {
    let (identity, print) = identity();
    let says_why = |result: Result<(), ConnectError>| match result {
        Err(ConnectError::Configuration(text)) => assert!(text.contains("modes 0 to 3"), "{text}"),
        other => panic!("{other:?}"),
    };
    for mode in [Mode::Tcp, Mode::Udp, Mode::Quic] {
        let config = server(&identity, key(1));
        let transport =
            TransportConfig { also_accepted: vec![mode], ..(*config.transport).clone() };
        let config = ServerConfig { transport: Arc::new(transport), ..config };
        says_why(SecuredServer::new(&config).map(|_| ()));
        let config = EndpointConfig { server: Some(config), ..EndpointConfig::default() };
        says_why(Endpoint::new(config, [1; 32]).map(|_| ()));
    }
    let config = client(print, key(1));
    let transport = TransportConfig { mode: Mode::Tcp, ..(*config.transport).clone() };
    let config = ClientConfig { transport: Arc::new(transport), ..config };
    says_why(Secured::client(Timestamp::from_millis(1), "localhost", &config).map(|_| ()));
}

#[test]
fn a_key_is_read_from_hexadecimal_digits() {
    let text = "00ff".repeat(16);
    assert!(text.parse::<ClosedKey>().is_ok());
    assert!(text.to_uppercase().parse::<ClosedKey>().is_ok());
    for wrong in
        ["", &text[1..], &format!("{text}0"), &format!("{text}00"), &text.replace('f', "g")]
    {
        assert_eq!(wrong.parse::<ClosedKey>().err(), Some(ClosedKeyError), "{wrong}");
    }
    let (identity, print) = identity();
    let mut world = World::new(server(&identity, text.parse().ok()));
    let bytes = core::array::from_fn(|at| if at % 2 == 0 { 0 } else { 0xff });
    let handle = world.connect(client(print, Some(ClosedKey::new(bytes))));
    world.run(Duration::from_millis(200));
    assert_eq!(world.all(CLIENT, &Event::Connected), [handle], "the same key");
}
