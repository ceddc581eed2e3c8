//! PSK mode over real TLS: holders of the key are served as usual, all others get no byte.

#[allow(dead_code, reason = "shared by several tests, each needs a part")]
#[path = "resumption/world.rs"]
mod world;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::stream::{TlsStream, TlsStreamServer};
use bats_proto::wire::long_header::{self, LongKind};
use bats_proto::{
    ClientConfig, CloseReason, ConnectError, ConnectionHandle, Endpoint, EndpointConfig,
    EndpointStats, Event, Identity, Input, Mode, Output, PeerTrust, PresharedKey,
    PresharedKeyError, Received, ServerConfig, SessionStore, Timestamp, TransportConfig,
};
use bytes::Bytes;
use world::{CLIENT, Connections, SERVER, World, address, identity, new_world};

const TIMEOUT: Duration = Duration::from_secs(3);

fn key(byte: u8) -> Option<PresharedKey> {
    Some(PresharedKey::new([byte; 32]))
}

fn server(identity: &Identity, psk: Option<PresharedKey>) -> ServerConfig {
    let config = world::server(identity, true);
    let transport = TransportConfig { psk, ..(*config.transport).clone() };
    ServerConfig { transport: Arc::new(transport), ..config }
}

fn client(print: [u8; 32], psk: Option<PresharedKey>) -> ClientConfig {
    let transport =
        TransportConfig { psk, handshake_timeout: TIMEOUT, ..world::transport(Mode::Brtp) };
    let trust = PeerTrust::Fingerprints(vec![print]);
    ClientConfig { trust, identity: None, transport: Arc::new(transport) }
}

fn stats(world: &World) -> EndpointStats {
    world.nodes[SERVER].endpoint_stats()
}

/// Bytes that the server has sent to any address.
fn bytes_sent(world: &World) -> usize {
    world.links.sent.iter().filter(|sent| sent.from == SERVER).map(|sent| sent.bytes.len()).sum()
}

/// Exchanges a message in each direction.
fn exchange_messages(world: &mut World, handle: ConnectionHandle) {
    let accepted = *world.all(SERVER, &Event::Accepted).last().expect("accepted");
    for (from, by, to, at) in
        [(CLIENT, handle, SERVER, accepted), (SERVER, accepted, CLIENT, handle)]
    {
        let message = Bytes::from(vec![from as u8; 20_000]);
        world.nodes[from].send(world.now, by, message.clone()).expect("room");
        world.run(Duration::from_millis(200));
        assert_eq!(world.nodes[to].recv(world.now, at), Some(message));
    }
}

#[test]
fn clients_with_the_key_connect() {
    let (identity, print) = identity();
    let mut world = new_world(server(&identity, key(1)));
    let handle = world.connect(client(print, key(1)));
    world.run(Duration::from_millis(200));
    assert_eq!(world.all(CLIENT, &Event::Connected), [handle]);
    exchange_messages(&mut world, handle);
    assert_eq!((stats(&world).unauthenticated_ignored, stats(&world).retries_sent), (0, 0));
}

#[test]
fn clients_with_another_key_or_none_get_no_answer() {
    let (identity, print) = identity();
    for (theirs, ours) in [(key(1), key(2)), (key(1), None), (None, key(1))] {
        let is_closed = theirs.is_some();
        let mut world = new_world(server(&identity, theirs));
        let handle = world.connect(client(print, ours));
        world.run(TIMEOUT + Duration::from_millis(100));
        let closed = Event::Closed(CloseReason::HandshakeTimeout);
        assert_eq!(world.all(CLIENT, &closed), [handle], "{:?}", world.events);
        assert_eq!(bytes_sent(&world), 0);
        assert_eq!(world.nodes[SERVER].connection_count(), 0);
        let (stats, flights) = (stats(&world), world.links.sent.len() as u64);
        assert!(flights >= 4, "the client has tried more than once: {flights}");
        let ignored =
            if is_closed { stats.unauthenticated_ignored } else { stats.datagrams_dropped };
        assert_eq!((ignored, stats.datagrams_received), (flights, flights));
    }
}

/// A key is changed without a gap: the server accepts both, the clients change one after the other,
/// then the server accepts the new one only.
#[test]
fn keys_are_exchanged_without_a_gap() {
    let (identity, print) = identity();
    let keys = |bytes: &[u8]| bytes.iter().filter_map(|&byte| key(byte)).collect::<Vec<_>>();
    for (is_busy, steps) in [
        (
            false,
            [
                (keys(&[1]), [true, false]),
                (keys(&[2, 1]), [true, true]),
                (keys(&[2]), [false, true]),
            ],
        ),
        (
            true,
            [
                (keys(&[1, 2]), [true, true]),
                (keys(&[1, 3, 4, 2]), [true, true]),
                (keys(&[1, 3, 4, 5]), [true, false]),
            ],
        ),
    ] {
        let mut config = server(&identity, key(1));
        // A busy server sends each client a Retry, with a proof by the client's own key.
        config.retry_threshold = if is_busy { 0 } else { config.retry_threshold };
        let mut world = new_world(config);
        for (accepted, connects) in steps {
            world.nodes[SERVER].set_psks(&accepted).expect("one to four keys");
            for (byte, connects) in [1, 2].into_iter().zip(connects) {
                let handle = world.connect(client(print, key(byte)));
                world.run(TIMEOUT + Duration::from_millis(100));
                let connected = world.all(CLIENT, &Event::Connected).contains(&handle);
                assert_eq!(connected, connects, "key {byte} of {}", accepted.len());
                if connects {
                    exchange_messages(&mut world, handle);
                }
            }
        }
    }
}

#[test]
fn keys_of_the_configuration_are_accepted_and_limited() {
    let (identity, print) = identity();
    let with = |psk: Option<PresharedKey>, further: u8| {
        let config = server(&identity, psk);
        let also_accepted_psks = (2..2 + further).filter_map(key).collect();
        let transport = TransportConfig { also_accepted_psks, ..(*config.transport).clone() };
        ServerConfig { transport: Arc::new(transport), ..config }
    };
    let mut world = new_world(with(key(1), 3));
    for byte in 1..=4 {
        let handle = world.connect(client(print, key(byte)));
        world.run(Duration::from_millis(200));
        assert!(world.all(CLIENT, &Event::Connected).contains(&handle), "key {byte}");
    }
    let refused = |psk, further| {
        let server = Some(with(psk, further));
        let config = EndpointConfig { server, ..EndpointConfig::default() };
        Endpoint::new(config, [1; 32]).map(drop).unwrap_err()
    };
    for error in [refused(key(1), 4), refused(None, 1)] {
        assert!(matches!(error, ConnectError::Configuration(_)), "{error}");
    }
    let five: Vec<_> = (1..=5).filter_map(key).collect();
    for keys in [&[][..], &five] {
        assert!(world.nodes[SERVER].set_psks(keys).is_err(), "{} keys", keys.len());
    }
    let mut open = new_world(server(&identity, None));
    assert!(open.nodes[SERVER].set_psks(&five[..1]).is_err(), "no PSK mode");
    assert!(open.nodes[CLIENT].set_psks(&five[..1]).is_err(), "no server");
}

/// The certificate is still verified: the key alone does not authenticate the server.
#[test]
fn the_key_does_not_replace_the_certificate() {
    let (identity, _) = identity();
    let mut world = new_world(server(&identity, key(1)));
    let handle = world.connect(client([7; 32], key(1)));
    world.run(Duration::from_millis(200));
    let refused = world.events.iter().any(|(peer, by, event)| {
        (*peer, *by) == (CLIENT, handle)
            && matches!(event, Event::Closed(CloseReason::Handshake(_)))
    });
    assert!(refused, "{:?}", world.events);
}

#[test]
fn a_busy_server_validates_client_addresses() {
    let (identity, print) = identity();
    let busy = ServerConfig { retry_threshold: 0, ..server(&identity, key(1)) };
    let mut world = new_world(busy);
    let handle = world.connect(client(print, key(1)));
    world.run(Duration::from_millis(200));
    assert_eq!(world.all(CLIENT, &Event::Connected), [handle]);
    assert!(stats(&world).retries_sent >= 1);
    exchange_messages(&mut world, handle);
    // A client without the key does not even get a Retry.
    let before = (bytes_sent(&world), stats(&world).retries_sent);
    world.end(handle);
    let before_end = bytes_sent(&world) - before.0;
    world.connect(client(print, key(2)));
    world.run(TIMEOUT);
    assert_eq!(bytes_sent(&world), before.0 + before_end);
    assert_eq!(stats(&world).retries_sent, before.1);
}

/// Retry and version negotiation packets of an observer without the key have no effect. Without PSK
/// mode, a client would start again with a wrong token or give up.
#[test]
fn forged_retry_and_version_negotiation_are_ignored() {
    let (identity, print) = identity();
    let mut world = new_world(server(&identity, key(1)));
    let handle = world.connect(client(print, key(1)));
    world.run_with(Duration::from_millis(1), |_, _| true);
    let flight = world.links.sent[0].bytes.clone();
    let header = long_header::decode(&flight).expect("a first packet");
    assert_eq!(header.token.len(), 16, "only the proof");
    let (server_id, client_id) = (header.destination, header.source);
    for token in [&[9; 40][..], &[9; 56], &[9; 5], &[]] {
        let retry = long_header::retry(client_id, server_id, token, 0);
        world.inject(CLIENT, address(SERVER), retry);
    }
    let mut negotiation = long_header::version_negotiation(client_id, server_id, 0);
    let at = negotiation.len() - 8;
    negotiation[at..].fill(0x0a);
    world.inject(CLIENT, address(SERVER), negotiation);
    // Forged data packets take no buffers.
    let mut data = vec![0x40; 1_000];
    data[1..5].copy_from_slice(client_id);
    (0..100).for_each(|_| world.inject(CLIENT, address(SERVER), data.clone()));
    world.run(Duration::from_secs(1));
    assert_eq!(world.all(CLIENT, &Event::Connected), [handle], "{:?}", world.events);
    assert_eq!(world.stats(CLIENT, handle).packets.early_dropped, 0);
    exchange_messages(&mut world, handle);
}

#[test]
fn psk_sessions_resume_with_early_data() {
    let (identity, print) = identity();
    let store = SessionStore::new(100);
    let mut world = new_world(server(&identity, key(1)));
    let with = |mode, psk| {
        let config = world::client(mode, PeerTrust::Fingerprints(vec![print]), &store);
        let transport = TransportConfig { psk, ..(*config.transport).clone() };
        ClientConfig { transport: Arc::new(transport), ..config }
    };
    world.connect_and_close(with(Mode::Btp, key(1)));
    let handle = world.connect(with(Mode::Btp, key(1)));
    let message = Bytes::from_static(b"early");
    world.nodes[CLIENT].send(world.now, handle, message.clone()).expect("a session");
    world.run(Duration::from_millis(500));
    assert_eq!(world.delivered(), core::slice::from_ref(&message));
    let client_stats = world.stats(CLIENT, handle);
    assert!(client_stats.resumed);
    assert_eq!((client_stats.early.messages, client_stats.early.messages_accepted), (1, 1));
    world.end(handle);
    // A session does not replace the key.
    let before = bytes_sent(&world);
    let handle = world.connect(with(Mode::Btp, key(2)));
    world.nodes[CLIENT].send(world.now, handle, message).expect("a session");
    world.run(Duration::from_secs(2));
    assert_eq!(bytes_sent(&world), before);
    assert!(world.delivered().is_empty());
}

/// Returns the datagrams of a client's first flight.
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

/// Sends this flight from 100,000 addresses. Returns the bytes answered at once to each.
fn flood_from_100000_addresses(server: &mut Endpoint, flight: &[Vec<u8>]) -> Vec<usize> {
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
fn first_flights_without_the_key_from_100000_addresses_get_no_answer() {
    let (identity, print) = identity();
    for theirs in [None, key(2)] {
        let mut server = world::server_endpoint(server(&identity, key(1)), 2);
        let flight = flight_of(client(print, theirs));
        let answered = flood_from_100000_addresses(&mut server, &flight);
        assert_eq!(answered.iter().sum::<usize>(), 0);
        let stats = server.endpoint_stats();
        assert_eq!(stats.unauthenticated_ignored, 100_000 * flight.len() as u64);
        assert_eq!((stats.handshakes_started, server.connection_count()), (0, 0));
    }
}

/// A recorded flight starts one handshake. After that its sender has to prove its address, for
/// which it lacks the keys.
#[test]
fn a_replayed_flight_starts_one_handshake() {
    let (identity, print) = identity();
    let mut server = world::server_endpoint(server(&identity, key(1)), 2);
    let flight = flight_of(client(print, key(1)));
    let bytes: usize = flight.iter().map(Vec::len).sum();
    let answered = flood_from_100000_addresses(&mut server, &flight);
    assert!(answered[0] > 0 && answered[0] <= 3 * bytes, "{} for {bytes}", answered[0]);
    for answer in &answered[1..] {
        // A Retry for each datagram, with less than a tenth of the bytes received.
        assert!(*answer <= bytes / 10, "{answer} for {bytes}");
    }
    let stats = server.endpoint_stats();
    assert_eq!((stats.handshakes_started, server.connection_count()), (1, 1));
    assert!(stats.retries_sent > 0);
}

/// Conversely, a client whose address changes during the handshake proves the new one.
#[test]
fn a_client_whose_address_changes_during_the_handshake_connects() {
    let (identity, print) = identity();
    let mut world = new_world(server(&identity, key(1)));
    let handle = world.connect(client(print, key(1)));
    // The first flight arrives from another address, and the answer to it is lost.
    let elsewhere = SocketAddr::from(([192, 0, 2, 1], 9));
    world.run_with(Duration::from_millis(1), |peer, _| peer == CLIENT);
    let flight: Vec<_> = world.links.sent.iter().map(|sent| sent.bytes.clone()).collect();
    flight.into_iter().for_each(|bytes| world.inject(SERVER, elsewhere, bytes));
    world.run(Duration::from_secs(1));
    assert_eq!(world.all(CLIENT, &Event::Connected), [handle]);
    assert!(stats(&world).retries_sent >= 1);
    exchange_messages(&mut world, handle);
}

/// A server in PSK mode does not answer packets of other kinds and versions either.
#[test]
fn other_packet_kinds_and_versions_get_no_answer() {
    let (identity, print) = identity();
    let mut world = new_world(server(&identity, key(1)));
    let flight = flight_of(client(print, None)).remove(0);
    let mut other_version = flight.clone();
    other_version[1] ^= 0x55;
    for kind in [LongKind::Handshake, LongKind::Retry, LongKind::Early] {
        let mut packet = flight.clone();
        packet[0] = 0xc0 | (kind as u8) << 4;
        world.inject(SERVER, address(CLIENT), packet);
    }
    let mut negotiation = flight.clone();
    negotiation[1..5].fill(0);
    for packet in [negotiation, other_version, flight[..1_199].to_vec(), vec![0x40; 1_200]] {
        world.inject(SERVER, address(CLIENT), packet);
    }
    world.run(Duration::from_secs(1));
    let stats = stats(&world);
    assert_eq!((bytes_sent(&world), stats.version_negotiations_sent), (0, 0));
    assert_eq!((stats.unauthenticated_ignored, stats.datagrams_dropped), (1, 6));
}

#[test]
fn psk_rejects_modes_of_other_protocols() {
    let (identity, print) = identity();
    let check_error = |result: Result<(), ConnectError>| match result {
        Err(ConnectError::Configuration(text)) => assert!(text.contains("modes 0 to 3"), "{text}"),
        other => panic!("{other:?}"),
    };
    for mode in [Mode::Tcp, Mode::Udp, Mode::Quic] {
        let config = server(&identity, key(1));
        let transport =
            TransportConfig { also_accepted: vec![mode], ..(*config.transport).clone() };
        let config = ServerConfig { transport: Arc::new(transport), ..config };
        check_error(TlsStreamServer::new(&config).map(|_| ()));
        let config = EndpointConfig { server: Some(config), ..EndpointConfig::default() };
        check_error(Endpoint::new(config, [1; 32]).map(|_| ()));
    }
    let config = client(print, key(1));
    let transport = TransportConfig { mode: Mode::Tcp, ..(*config.transport).clone() };
    let config = ClientConfig { transport: Arc::new(transport), ..config };
    check_error(TlsStream::client(Timestamp::from_millis(1), "localhost", &config).map(|_| ()));
}

#[test]
fn a_key_parses_from_hexadecimal_digits() {
    let text = "00ff".repeat(16);
    assert!(text.parse::<PresharedKey>().is_ok());
    assert!(text.to_uppercase().parse::<PresharedKey>().is_ok());
    for wrong in
        ["", &text[1..], &format!("{text}0"), &format!("{text}00"), &text.replace('f', "g")]
    {
        assert_eq!(wrong.parse::<PresharedKey>().err(), Some(PresharedKeyError), "{wrong}");
    }
    let (identity, print) = identity();
    let mut world = new_world(server(&identity, text.parse().ok()));
    let bytes = core::array::from_fn(|at| if at % 2 == 0 { 0 } else { 0xff });
    let handle = world.connect(client(print, Some(PresharedKey::new(bytes))));
    world.run(Duration::from_millis(200));
    assert_eq!(world.all(CLIENT, &Event::Connected), [handle], "the same key");
}
