//! Early data: messages arrive early or later, once, and only from the holder of the session.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::{
    ClientConfig, CloseReason, ConnectionHandle, Event, Identity, Mode, PeerTrust, SendError,
    SessionStore,
};
use bytes::Bytes;

use crate::world::{
    CLIENT, Connections, DELAY, NAME, SERVER, World, address, client, identity, new_world, server,
};

/// A world in which the client has sessions that allow early data.
struct Setup {
    world: World,
    config: ClientConfig,
    identity: Identity,
    store: SessionStore,
}

fn setup() -> Setup {
    let (identity, print) = identity();
    let store = SessionStore::new(100);
    let config = client(Mode::Btp, PeerTrust::Fingerprints(vec![print]), &store);
    let mut world = new_world(server(&identity, true));
    world.connect_and_close(config.clone());
    assert_eq!(store.len(), 2);
    Setup { world, config, identity, store }
}

fn message(number: usize, len: usize) -> Bytes {
    (0..len).map(|at| (at * 31 + number * 7) as u8).collect()
}

/// Connects and sends `count` messages of `len` bytes at once.
fn begin(world: &mut World, config: &ClientConfig, count: usize, len: usize) -> ConnectionHandle {
    let handle = world.connect(config.clone());
    for number in 0..count {
        world.nodes[CLIENT].send(world.now, handle, message(number, len)).unwrap();
    }
    handle
}

fn sorted(mut messages: Vec<Bytes>) -> Vec<Bytes> {
    messages.sort();
    messages
}

fn expected(count: usize, len: usize) -> Vec<Bytes> {
    sorted((0..count).map(|number| message(number, len)).collect())
}

#[test]
fn early_message_arrives_after_half_a_round_trip_and_its_echo_after_one() {
    let Setup { mut world, config, .. } = setup();
    let began = world.now;
    let handle = begin(&mut world, &config, 1, 512);
    world.run(DELAY);
    let accepted = world.all(SERVER, &Event::Accepted)[0];
    let echo = world.delivered();
    assert_eq!(echo, [message(0, 512)], "after {:?}", world.now - began);
    world.nodes[SERVER].send(world.now, accepted, echo[0].clone()).unwrap();
    world.run(DELAY);
    assert_eq!(world.nodes[CLIENT].recv(world.now, handle), Some(message(0, 512)));
    world.run(Duration::from_millis(500));
    let (stats, theirs) = (world.stats(CLIENT, handle), world.stats(SERVER, accepted));
    assert!(stats.resumed && theirs.resumed);
    assert_eq!((stats.early.messages, stats.early.messages_accepted), (1, 1));
    assert_eq!((stats.messages.sent, theirs.early.messages, theirs.messages.received), (1, 1, 1));
    // Messages accepted as early data are not retransmitted.
    assert_eq!(stats.coding.source_packets_sent, 0);
    assert_eq!(world.all(CLIENT, &Event::AllAcknowledged), [handle]);
    // Later message numbers follow the early ones, and the end counts all.
    world.nodes[CLIENT].send(world.now, handle, message(1, 512)).unwrap();
    world.nodes[CLIENT].finish(world.now, handle).unwrap();
    world.run(Duration::from_millis(500));
    assert_eq!(world.delivered(), [message(1, 512)]);
    assert!(world.nodes[SERVER].is_finished(accepted));
    let theirs = world.stats(SERVER, accepted);
    assert_eq!((theirs.messages.received, theirs.messages.lost), (2, 0));
}

#[test]
fn early_messages_are_limited_by_bytes_number_and_initial_window() {
    let Setup { mut world, config, .. } = setup();
    let handle = begin(&mut world, &config, 20, 300);
    let blocked = world.nodes[CLIENT].send(world.now, handle, message(20, 3_000));
    assert_eq!(blocked, Err(SendError::Blocked(message(20, 3_000))));
    world.run(Duration::from_millis(500));
    assert_eq!(sorted(world.delivered()), expected(20, 300));
    assert_eq!(world.all(CLIENT, &Event::Writable), [handle]);
    assert_eq!(world.stats(CLIENT, handle).early.messages, 20);
    world.end(handle);

    // The number of messages is limited, too.
    let handle = begin(&mut world, &config, 32, 5);
    let blocked = world.nodes[CLIENT].send(world.now, handle, message(32, 5));
    assert!(matches!(blocked, Err(SendError::Blocked(_))));
    world.run(Duration::from_millis(500));
    assert_eq!(sorted(world.delivered()), expected(32, 5));
    world.end(handle);

    // A client's first flight stays within the initial congestion window.
    let before = world.links.sent.len();
    let handle = begin(&mut world, &config, 6, 1_190);
    world.run_with(Duration::from_secs(4), |_, _| true);
    let early = world.links.sent[before..].iter().filter(|sent| sent.bytes[0] >> 4 == 0b1111);
    let bytes: usize = early.map(|sent| sent.bytes.len()).sum();
    assert!((7_200..=14_720).contains(&bytes), "{bytes}");
    world.run(Duration::from_secs(3));
    assert_eq!(sorted(world.delivered()), expected(6, 1_190));
    world.end(handle);
}

/// A generator that produces the same numbers on every run.
fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x >> 40
    }
}

#[test]
fn thirty_percent_loss_or_corruption_delivers_messages_once_and_unchanged() {
    let Setup { mut world, config, .. } = setup();
    let (mut early, mut connected, mut arrived) = (0, 0, 0);
    for seed in 0..60_u64 {
        let mut draw = numbers(seed + 1);
        let handle = begin(&mut world, &config, 8, 100 + 20 * seed as usize % 700);
        world.run_with(Duration::from_secs(4), |_, bytes| {
            if seed % 2 == 1 {
                return draw() % 10 < 3;
            }
            if draw() % 10 < 3 {
                let at = draw() as usize % bytes.len();
                bytes[at] ^= 1 + (draw() % 255) as u8;
            }
            false
        });
        let stats = world.stats(CLIENT, handle);
        connected += u32::from(stats.resumed);
        early += stats.early.messages_accepted;
        let len = 100 + 20 * seed as usize % 700;
        // BTP repairs what it can. Each delivered message must be unchanged and delivered once.
        let messages = sorted(world.delivered());
        let mut once = messages.clone();
        once.dedup();
        assert!(once == messages, "seed {seed}: delivered twice");
        assert!(messages.iter().all(|one| expected(8, len).contains(one)), "seed {seed}: changed");
        assert!(messages.len() as u64 >= stats.early.messages_accepted, "seed {seed}");
        arrived += messages.len();
        world.run(Duration::from_millis(100));
        world.end(handle);
    }
    // A session is lost if nothing came back on the connection before; there are two.
    assert!(connected >= 50 && early > 200, "{connected} resumed, {early} messages accepted");
    assert!(arrived >= 470, "{arrived} of 480");
}

/// The attacker replays everything that the client sent: to the same connection, later, and from
/// another address.
#[test]
fn replayed_first_flight_delivers_nothing_twice_and_gets_at_most_three_times_its_bytes() {
    let Setup { mut world, config, .. } = setup();
    let before = world.links.sent.len();
    let handle = begin(&mut world, &config, 3, 500);
    world.run(Duration::from_millis(300));
    assert_eq!(sorted(world.delivered()), expected(3, 500));
    let all = world.links.sent[before..].iter();
    let flight: Vec<Vec<u8>> =
        all.filter(|sent| sent.from == CLIENT).map(|sent| sent.bytes.clone()).collect();
    let attacker: SocketAddr = "10.9.9.9:999".parse().unwrap();
    for from in [address(CLIENT), attacker] {
        for bytes in &flight {
            world.inject(SERVER, from, bytes.clone());
        }
        world.run(Duration::from_millis(300));
        assert_eq!(world.delivered(), Vec::<Bytes>::new(), "{from}");
    }
    world.end(handle);
    // The server has forgotten the connection, so the flight starts a new one, even from the
    // client's address.
    for from in [address(CLIENT), attacker] {
        let (mut injected, before) = (0, world.links.sent.len());
        for bytes in &flight {
            injected += bytes.len();
            world.inject(SERVER, from, bytes.clone());
        }
        world.run(Duration::from_secs(12));
        assert_eq!(world.delivered(), Vec::<Bytes>::new());
        assert_eq!(world.all(SERVER, &Event::Accepted), [], "no connection is accepted");
        let answers = world.links.sent[before..]
            .iter()
            .filter(|sent| sent.from == SERVER && sent.transmit.remote == from);
        let answered: usize = answers.map(|sent| sent.bytes.len()).sum();
        assert!(answered > 0 && answered <= 3 * injected, "{answered} for {injected}");
    }
    assert_eq!(world.nodes[SERVER].connection_count(), 0);
}

/// RFC 8446, section 8: the attacker holds back the client's flight and delivers a copy, so that
/// the server rejects the client's and the client sends its messages again.
#[test]
fn replayed_flight_before_the_client_delivers_each_message_once() {
    for held_back in [false, true] {
        let Setup { mut world, config, .. } = setup();
        let handle = begin(&mut world, &config, 10, 300);
        let mut flight = Vec::new();
        world.run_with(Duration::from_micros(100), |peer, bytes| {
            assert_eq!(peer, CLIENT);
            flight.push(bytes.clone());
            true
        });
        assert!(flight.len() >= 3, "{}", flight.len());
        let attacker: SocketAddr = "10.9.9.9:999".parse().unwrap();
        let late = if held_back { flight.split_off(1) } else { Vec::new() };
        for bytes in flight {
            world.inject(SERVER, attacker, bytes);
        }
        world.run(Duration::from_micros(100));
        let first = world.delivered();
        assert!(!first.is_empty());
        world.run(Duration::from_millis(500));
        let stats = world.stats(CLIENT, handle);
        assert_eq!(
            (stats.resumed, stats.early.messages_accepted),
            (false, 0),
            "early data was rejected"
        );
        // Once the client is connected, copies deliver nothing.
        for bytes in late {
            world.inject(SERVER, attacker, bytes);
        }
        world.run(Duration::from_secs(1));
        let all = [first, world.delivered()].concat();
        assert_eq!(sorted(all), expected(10, 300), "held back: {held_back}");
        world.run(Duration::from_secs(11));
        let gone = world.events.iter().filter(|(peer, _, event)| {
            *peer == SERVER && *event == Event::Closed(CloseReason::HandshakeTimeout)
        });
        assert_eq!(gone.count(), 1, "the attacker's connection ends: {:?}", world.events);
        assert_eq!(world.nodes[SERVER].connection_count(), 1);
    }
}

#[test]
fn rejected_early_data_is_delivered_once_after_the_handshake() {
    let (other, _) = identity();
    for case in 0..4 {
        let Setup { mut world, config, identity, store } = setup();
        let mut config = config;
        match case {
            // The server has lost its sessions.
            0 => world.restart(server(&identity, true)),
            // The server has another certificate, which this client accepts like any other.
            1 => {
                config = client(Mode::Btp, PeerTrust::DangerousAcceptAny, &store);
                world.connect_and_close(config.clone());
                world.restart(server(&other, true));
            }
            // The server no longer accepts early data.
            2 => world.restart(server(&identity, false)),
            // The server's age of the session exceeds the client's: it resumes the session without
            // early data.
            _ => world.now += Duration::from_secs(300),
        }
        let handle = begin(&mut world, &config, 9, 400);
        world.run(Duration::from_millis(14));
        assert_eq!(world.delivered(), Vec::<Bytes>::new(), "case {case}: not early");
        world.run(Duration::from_millis(400));
        assert_eq!(sorted(world.delivered()), expected(9, 400), "case {case}");
        let stats = world.stats(CLIENT, handle);
        assert_eq!((stats.early.messages, stats.early.messages_accepted), (9, 0), "case {case}");
        assert_eq!(stats.resumed, case == 3);
        world.end(handle);
        if case == 2 {
            // The new sessions do not allow early data.
            let handle = world.connect(config);
            let sent = world.nodes[CLIENT].send(world.now, handle, message(0, 10));
            assert!(matches!(sent, Err(SendError::Blocked(_))));
        }
    }
}

#[test]
fn without_a_matching_session_there_is_no_early_data() {
    let Setup { mut world, config, store, .. } = setup();
    let mut is_blocked = |config: &ClientConfig, name: &str| {
        let handle = world.connect_as(config.clone(), name);
        let sent = world.nodes[CLIENT].send(world.now, handle, message(0, 10));
        matches!(sent, Err(SendError::Blocked(_)))
    };
    assert!(is_blocked(&config, "other.example"));
    let mut plain = config.clone();
    Arc::make_mut(&mut plain.transport).early_data = false;
    assert!(is_blocked(&plain, NAME), "early data must be enabled");
    let reliable = ClientConfig {
        transport: client(Mode::Brtp, config.trust.clone(), &store).transport,
        ..config.clone()
    };
    assert_eq!(store.len(), 1);
    assert!(is_blocked(&reliable, NAME), "BRTP has none");
    assert!(is_blocked(&config, NAME), "sessions are used once each");
    assert!(store.is_empty());
}

/// A thief of a client's sessions can impersonate that client, but each session works once.
#[test]
fn a_stolen_session_works_for_one_of_two_users() {
    let Setup { mut world, config, store, .. } = setup();
    let thief = begin(&mut world, &config, 1, 50);
    let stolen: Vec<Vec<u8>> = {
        let mut flight = Vec::new();
        world.run_with(Duration::from_micros(100), |_, bytes| {
            flight.push(bytes.clone());
            true
        });
        flight
    };
    for bytes in &stolen {
        world.inject(SERVER, "10.9.9.9:1".parse().unwrap(), bytes.clone());
        world.inject(SERVER, "10.9.9.9:2".parse().unwrap(), bytes.clone());
    }
    world.run_with(Duration::from_millis(50), |_, _| true);
    assert_eq!(world.delivered(), [message(0, 50)], "one of the two");
    world.nodes[CLIENT].close(world.now, thief, 0, "");
    assert_eq!(store.len(), 1);
}

/// Copies of an early packet exhaust the server's limit; the connection continues without early
/// data.
#[test]
fn server_limits_early_data_bytes() {
    let Setup { mut world, config, .. } = setup();
    let handle = begin(&mut world, &config, 2, 1_100);
    let mut flight = Vec::new();
    world.run_with(Duration::from_micros(100), |_, bytes| {
        flight.push(bytes.clone());
        true
    });
    let early: Vec<Vec<u8>> =
        flight.iter().filter(|bytes| bytes[0] >> 4 == 0b1111).cloned().collect();
    assert_eq!(early.len(), 2);
    // The first flight without the second message, and copies of the first message up to the limit.
    world.inject(SERVER, address(CLIENT), flight[0].clone());
    let at_limit = (16 << 10) / early[0].len();
    for _ in 0..at_limit {
        world.inject(SERVER, address(CLIENT), early[0].clone());
    }
    let accepted = {
        world.run_with(Duration::from_micros(10), |_, _| true);
        world.all(SERVER, &Event::Accepted)[0]
    };
    assert_eq!(world.stats(SERVER, accepted).early.packets_refused, 0);
    for _ in 0..20 {
        world.inject(SERVER, address(CLIENT), early[1].clone());
    }
    assert_eq!(world.stats(SERVER, accepted).early.packets_refused, 20);
    assert_eq!(world.delivered(), [message(0, 1_100)]);
    world.run(Duration::from_millis(500));
    assert_eq!(world.delivered(), [message(1, 1_100)], "after the handshake");
    assert_eq!(world.stats(CLIENT, handle).early.messages_accepted, 1);
}

/// The application of a server sends a long answer to an unvalidated address.
#[test]
fn server_respects_amplification_limit_before_address_validation() {
    let Setup { mut world, config, .. } = setup();
    let handle = begin(&mut world, &config, 1, 500);
    let before = world.links.sent.len();
    let mut received = 0;
    world.run_with(DELAY, |_, bytes| {
        received += bytes.len();
        false
    });
    let accepted = world.all(SERVER, &Event::Accepted)[0];
    for _ in 0..50 {
        world.nodes[SERVER].send(world.now, accepted, message(0, 10_000)).unwrap();
    }
    // Nothing more arrives from the client; packets already in flight are delivered.
    world.run_with(Duration::from_secs(12), |peer, _| peer == CLIENT);
    let sent: usize = world.links.sent[before..]
        .iter()
        .filter(|sent| sent.from == SERVER)
        .map(|sent| sent.bytes.len())
        .sum();
    assert!(sent > received && sent <= 3 * received, "{sent} for {received}");
    let gone = (SERVER, accepted, Event::Closed(CloseReason::HandshakeTimeout));
    assert!(world.events.contains(&gone), "{:?}", world.events);
    assert_eq!(world.all(CLIENT, &Event::Connected), [handle]);
}

#[test]
fn early_data_survives_a_retry() {
    let (identity, print) = identity();
    let store = SessionStore::new(100);
    let config = client(Mode::Btp, PeerTrust::Fingerprints(vec![print]), &store);
    let mut busy = server(&identity, true);
    busy.retry_threshold = 0;
    let mut world = new_world(busy);
    world.connect_and_close(config.clone());
    let handle = begin(&mut world, &config, 3, 600);
    world.run(DELAY * 3);
    assert_eq!(sorted(world.delivered()), expected(3, 600), "half a round trip after the token");
    world.run(Duration::from_millis(300));
    assert!(world.nodes[SERVER].endpoint_stats().retries_sent >= 2);
    assert_eq!(world.stats(CLIENT, handle).early.messages_accepted, 3);
}
