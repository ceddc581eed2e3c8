//! Whole connections over real TLS: authentication, key updates, and packets of unauthenticated
//! peers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::crypto::{fingerprint, generate_identity};
use bats_proto::testing::{Wires, World};
use bats_proto::{
    ClientConfig, CloseReason, CongestionAlgorithm, ConnectionHandle, Endpoint, EndpointConfig,
    Event, Identity, Local, PeerTrust, ServerConfig, Timestamp, TransportConfig,
};
use bytes::Bytes;

const CLIENT: usize = 0;
const SERVER: usize = 1;

/// Two endpoints and a network with a delay of 5 ms and without faults, except for datagrams that
/// a test drops.
type Pair = World<Wires>;

/// Frequent key updates; no congestion control, which these tests do not need.
fn transport() -> TransportConfig {
    TransportConfig {
        key_update_packets: 64,
        congestion: CongestionAlgorithm::None,
        ..TransportConfig::default()
    }
}

fn address(peer: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + peer as u8], 4_000))
}

fn pair(server: ServerConfig) -> Pair {
    let client = Endpoint::new(EndpointConfig::default(), [1; 32]).unwrap();
    let config = EndpointConfig { server: Some(server), ..EndpointConfig::default() };
    let server = Endpoint::new(config, [2; 32]).unwrap();
    let nodes = vec![(address(CLIENT), client), (address(SERVER), server)];
    World::wired(Timestamp::from_millis(1), nodes, Duration::from_millis(5))
}

fn server(retry_threshold: usize) -> (ServerConfig, [u8; 32]) {
    let identity = generate_identity(&["server.example".to_owned()]).unwrap();
    let print = fingerprint(&identity.certificate_chain[0]);
    let transport = Arc::new(transport());
    (
        ServerConfig {
            identity,
            client_trust: None,
            transport,
            retry_threshold,
            max_connections: 10,
        },
        print,
    )
}

/// The year 2026.
const NOW: Duration = Duration::from_secs(1_790_000_000);

fn connect(pair: &mut Pair, trust: PeerTrust) -> ConnectionHandle {
    let transport = Arc::new(transport());
    let config = ClientConfig { trust, identity: None, transport };
    pair.nodes[CLIENT].connect(pair.now, address(SERVER), "server.example", config).unwrap()
}

#[test]
fn all_packets_of_a_connection_name_its_interface() {
    let (config, print) = server(0);
    let mut pair = pair(config);
    let interface = NonZeroU32::new(7);
    let config = ClientConfig {
        trust: PeerTrust::Fingerprints(vec![print]),
        identity: None,
        transport: Arc::new(transport()),
    };
    let local = Local { ip: None, interface };
    let client = pair.nodes[CLIENT]
        .connect_from(pair.now, local, address(SERVER), "server.example", config)
        .unwrap();
    pair.run(Duration::from_millis(300));
    pair.nodes[CLIENT].send(pair.now, client, Bytes::from(vec![1; 300_000])).unwrap();
    pair.run(Duration::from_millis(300));
    assert_eq!(pair.nodes[CLIENT].local_ip(client), Some(address(CLIENT).ip()), "learned");
    pair.nodes[CLIENT].close(pair.now, client, 0, "");
    pair.run(Duration::from_millis(300));
    let interfaces = [CLIENT, SERVER].map(|peer| {
        let sent = pair.links.sent.iter().filter(|sent| sent.from == peer);
        sent.map(|sent| sent.transmit.interface).collect::<BTreeSet<_>>()
    });
    assert_eq!(interfaces, [[interface].into(), [None].into()], "the server has no say");
}

#[test]
fn trusted_certificate_connects_and_data_survives_key_updates() {
    let (config, print) = server(1_000);
    let authority = config.identity.certificate_chain[0].clone();
    for trust in [
        PeerTrust::Fingerprints(vec![print]),
        PeerTrust::DangerousAcceptAny,
        PeerTrust::Authorities { certificates: vec![authority], unix_time: NOW },
    ] {
        let mut pair = pair(config.clone());
        let client = connect(&mut pair, trust.clone());
        pair.run(Duration::from_millis(300));
        assert_eq!(pair.handle_of_event(CLIENT, &Event::Connected), Some(client), "{trust:?}");
        let accepted = pair.handle_of_event(SERVER, &Event::Accepted).unwrap();
        assert_eq!(pair.nodes[CLIENT].peer_fingerprint(client), Some(print));

        for round in 0..6 {
            let message = Bytes::from(vec![round; 300_000]);
            pair.nodes[CLIENT].send(pair.now, client, message.clone()).unwrap();
            pair.run(Duration::from_millis(400));
            assert_eq!(pair.nodes[SERVER].recv(pair.now, accepted), Some(message));
        }
        let stats = pair.nodes[CLIENT].stats(pair.now, client).unwrap();
        assert!(stats.key_updates >= 3, "{stats:?}");
        assert_eq!(stats.packets.forged, 0, "no packet is lost to a key update");
    }
}

#[test]
fn untrusted_certificate_ends_the_handshake_on_both_sides() {
    let (config, _) = server(1_000);
    let mut pair = pair(config);
    connect(&mut pair, PeerTrust::Fingerprints(vec![[9; 32]]));
    pair.run(Duration::from_secs(1));
    let closed = pair.events.iter().any(|(peer, _, event)| {
        *peer == CLIENT && matches!(event, Event::Closed(CloseReason::Handshake(_)))
    });
    assert!(closed, "{:?}", pair.events);
    assert_eq!(pair.handle_of_event(SERVER, &Event::Accepted), None);
}

/// Time is an argument: the same certificate is rejected outside of its validity period.
#[test]
fn certificate_validity_uses_the_given_time() {
    let (config, _) = server(1_000);
    let certificates = vec![config.identity.certificate_chain[0].clone()];
    // Certificates made here are valid from 1975 to 4096.
    for unix_time in [Duration::ZERO, Duration::from_secs(70_000_000_000)] {
        let mut pair = pair(config.clone());
        connect(
            &mut pair,
            PeerTrust::Authorities { certificates: certificates.clone(), unix_time },
        );
        pair.run(Duration::from_secs(1));
        assert_eq!(pair.handle_of_event(CLIENT, &Event::Connected), None, "{unix_time:?}");
    }
}

#[test]
fn a_busy_server_requires_a_retry_token() {
    let (config, print) = server(0);
    let mut pair = pair(config);
    connect(&mut pair, PeerTrust::Fingerprints(vec![print]));
    pair.run(Duration::from_millis(500));
    assert!(pair.handle_of_event(CLIENT, &Event::Connected).is_some());
    assert!(pair.nodes[SERVER].endpoint_stats().retries_sent >= 1);
    assert_eq!(pair.nodes[SERVER].endpoint_stats().handshakes_started, 1);
}

#[test]
fn an_unvalidated_address_gets_at_most_three_times_its_bytes() {
    let (config, print) = server(1_000);
    let mut pair = pair(config);
    connect(&mut pair, PeerTrust::Fingerprints(vec![print]));
    // Only the client's first datagram arrives, nothing else in either direction.
    let mut first = true;
    pair.run_with(Duration::from_secs(12), |peer, _| {
        !(peer == CLIENT && core::mem::take(&mut first))
    });
    let of_server = pair.links.sent.iter().filter(|sent| sent.from == SERVER);
    let bytes: usize = of_server.map(|sent| sent.bytes.len()).sum();
    assert!((1..=3 * 1_200).contains(&bytes), "{bytes}");
    let gone = pair.events.iter().any(|(peer, _, event)| {
        *peer == CLIENT && *event == Event::Closed(CloseReason::HandshakeTimeout)
    });
    assert!(gone, "{:?}", pair.events);
    assert_eq!(pair.nodes[SERVER].connection_count(), 0, "no half-open state remains");
}

#[test]
fn handshakes_survive_loss_or_corruption_of_thirty_percent() {
    let (config, print) = server(1_000);
    let mut slow = 0;
    for seed in 0..40_u64 {
        let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = move || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x >> 40
        };
        let mut pair = pair(config.clone());
        let client = connect(&mut pair, PeerTrust::Fingerprints(vec![print]));
        pair.run_with(Duration::from_secs(9), |_, bytes| {
            if seed % 2 == 1 {
                return draw() % 10 < 3;
            }
            if draw() % 10 < 3 {
                let at = draw() as usize % bytes.len();
                bytes[at] ^= 1 + (draw() % 255) as u8;
            }
            false
        });
        assert_eq!(pair.handle_of_event(CLIENT, &Event::Connected), Some(client), "seed {seed}");
        assert!(pair.handle_of_event(SERVER, &Event::Accepted).is_some(), "seed {seed}");
        let stats = pair.nodes[CLIENT].stats(pair.now, client).unwrap();
        slow += u32::from(stats.established.unwrap() > Timestamp::from_millis(1_000));
    }
    assert!(slow <= 2, "{slow} of 40 took more than a second");
}

#[test]
fn arbitrary_datagrams_leave_no_state() {
    let (config, _) = server(1_000);
    let mut pair = pair(config);
    let mut x = 7_u64;
    for i in 0..20_000_usize {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut bytes: Vec<u8> =
            (0..i % 1_300).map(|j| (x >> (j % 57)) as u8 ^ (j * 31) as u8).collect();
        if i % 3 == 0 && bytes.len() > 6 {
            bytes[..5].copy_from_slice(&[0xc0, 0xba, 0x75, 0, 1]);
        }
        pair.inject(SERVER, address(CLIENT), bytes);
    }
    pair.run(Duration::from_secs(12));
    assert_eq!(pair.nodes[SERVER].connection_count(), 0);
    assert_eq!(pair.handle_of_event(SERVER, &Event::Accepted), None);
}

/// With a one-way delay of 5 ms the client is connected after 10 ms; a further flight would be
/// visible.
#[test]
fn the_client_is_connected_after_one_round_trip() {
    let (config, print) = server(1_000);
    let mut pair = pair(config);
    let began = pair.now;
    let client = connect(&mut pair, PeerTrust::Fingerprints(vec![print]));
    // A flight is a burst of one side that follows packets of the other side.
    let mut flights = Vec::new();
    pair.run_with(Duration::from_micros(10_500), |peer, _| {
        if flights.last() != Some(&peer) {
            flights.push(peer);
        }
        false
    });
    assert_eq!(pair.handle_of_event(CLIENT, &Event::Connected), Some(client));
    let established = pair.nodes[CLIENT].stats(pair.now, client).unwrap().established.unwrap();
    assert_eq!(established - began, Duration::from_millis(10));
    assert!(flights.starts_with(&[CLIENT, SERVER]), "{flights:?}");
    assert!(flights.len() <= 3, "the client's answer is the third: {flights:?}");
}

/// Packets sealed with the old keys are accepted until the peer was seen to use the new ones,
/// however long that takes.
#[test]
fn packets_with_old_keys_are_accepted_until_the_peer_updates() {
    let (config, print) = server(1_000);
    let mut pair = pair(config);
    let client = connect(&mut pair, PeerTrust::Fingerprints(vec![print]));
    pair.run(Duration::from_millis(300));
    let accepted = pair.handle_of_event(SERVER, &Event::Accepted).unwrap();

    // The client sends more than one key may seal. No packet of the new phase arrives for a second.
    let big = Bytes::from(vec![1; 300_000]);
    pair.nodes[CLIENT].send(pair.now, client, big.clone()).unwrap();
    let mut sent = 0;
    pair.run_with(Duration::from_secs(1), |peer, _| {
        sent += usize::from(peer == CLIENT);
        peer == CLIENT && sent > 20
    });
    assert!(pair.nodes[CLIENT].stats(pair.now, client).unwrap().key_updates >= 1);
    let small = Bytes::from_static(b"sealed with the old keys");
    pair.nodes[SERVER].send(pair.now, accepted, small.clone()).unwrap();
    pair.run_with(Duration::from_millis(200), |peer, _| peer == CLIENT);
    assert_eq!(pair.nodes[CLIENT].recv(pair.now, client), Some(small));
    let stats = pair.nodes[CLIENT].stats(pair.now, client).unwrap();
    assert_eq!(stats.packets.forged, 0, "{stats:?}");

    pair.run(Duration::from_secs(3));
    assert_eq!(pair.nodes[SERVER].recv(pair.now, accepted), Some(big));
}

/// Connects a client with or without an identity to a server that trusts `client_trust`.
fn connect_identified(
    client_trust: Option<PeerTrust>,
    identity: Option<&Identity>,
) -> (Pair, ConnectionHandle) {
    let (config, print) = server(1_000);
    let mut pair = pair(ServerConfig { client_trust, ..config });
    let trust = PeerTrust::Fingerprints(vec![print]);
    let transport = Arc::new(transport());
    let config = ClientConfig { trust, identity: identity.cloned(), transport };
    let endpoint = &mut pair.nodes[CLIENT];
    let client = endpoint.connect(pair.now, address(SERVER), "server.example", config).unwrap();
    pair.run(Duration::from_secs(1));
    (pair, client)
}

#[test]
fn server_accepts_only_clients_that_it_trusts() {
    let identity = generate_identity(&["client.example".to_owned()]).unwrap();
    let other = generate_identity(&["other.example".to_owned()]).unwrap();
    let certificate = identity.certificate_chain[0].clone();
    let print = fingerprint(&certificate);
    let pinned = || Some(PeerTrust::Fingerprints(vec![[7; 32], print]));
    let issued = |unix_time| {
        Some(PeerTrust::Authorities { certificates: vec![certificate.clone()], unix_time })
    };
    let any = || Some(PeerTrust::DangerousAcceptAny);
    let (mine, theirs) = (Some(&identity), Some(&other));
    for (number, (trust, presented, is_accepted)) in [
        (None, None, true),
        (None, mine, true),
        (any(), None, true),
        (any(), mine, true),
        (pinned(), mine, true),
        (pinned(), theirs, false),
        (pinned(), None, false),
        (issued(NOW), mine, true),
        (issued(NOW), theirs, false),
        (issued(NOW), None, false),
        // Outside of the validity period.
        (issued(Duration::ZERO), mine, false),
    ]
    .into_iter()
    .enumerate()
    {
        let asks = trust.is_some();
        let (mut pair, client) = connect_identified(trust, presented);
        let accepted = pair.handle_of_event(SERVER, &Event::Accepted);
        assert_eq!(accepted.is_some(), is_accepted, "case {number}");
        let connected = pair.handle_of_event(CLIENT, &Event::Connected);
        assert_eq!(connected.is_some(), is_accepted, "case {number}: {:?}", pair.events);
        if let Some(accepted) = accepted {
            let expected = presented.filter(|_| asks).map(|i| fingerprint(&i.certificate_chain[0]));
            assert_eq!(pair.nodes[SERVER].peer_fingerprint(accepted), expected, "{number}");
            let message = Bytes::from_static(b"identified");
            pair.nodes[CLIENT].send(pair.now, client, message.clone()).unwrap();
            pair.run(Duration::from_millis(100));
            assert_eq!(pair.nodes[SERVER].recv(pair.now, accepted), Some(message));
        } else {
            let closed = |peer| {
                pair.events.iter().any(|(w, _, e)| *w == peer && matches!(e, Event::Closed(_)))
            };
            assert!(closed(CLIENT) && closed(SERVER), "both learn it at once: {:?}", pair.events);
        }
    }
}

/// Keys are replaced by their age (120 s by default), however few packets they sealed; both ends do so
/// at the same time, and no packet is lost. A connection that sends nothing keeps its keys, and the
/// packet that ends a long idle time arrives.
#[test]
fn keys_are_replaced_after_120_s_and_no_packet_is_lost() {
    let (config, print) = server(1_000);
    let few = |transport: &TransportConfig| {
        let defaults = TransportConfig::default();
        Arc::new(TransportConfig {
            key_update_packets: defaults.key_update_packets,
            idle_timeout: Duration::from_secs(3_600),
            ..transport.clone()
        })
    };
    let transport = few(&transport());
    assert_eq!(transport.key_update_interval, Duration::from_secs(120));
    let mut pair = pair(ServerConfig { transport: transport.clone(), ..config });
    let trust = PeerTrust::Fingerprints(vec![print]);
    let config = ClientConfig { trust, identity: None, transport };
    let client =
        pair.nodes[CLIENT].connect(pair.now, address(SERVER), "server.example", config).unwrap();
    pair.run(Duration::from_millis(300));
    let accepted = pair.handle_of_event(SERVER, &Event::Accepted).unwrap();

    let exchange = |pair: &mut Pair, number: u64| {
        let message = Bytes::copy_from_slice(&number.to_be_bytes());
        for (from, to) in
            [((CLIENT, client), (SERVER, accepted)), ((SERVER, accepted), (CLIENT, client))]
        {
            pair.nodes[from.0].send(pair.now, from.1, message.clone()).unwrap();
            // Within one one-way delay: an update does not delay a message.
            pair.run(Duration::from_millis(6));
            assert_eq!(pair.nodes[to.0].recv(pair.now, to.1), Some(message.clone()), "{number}");
        }
        pair.run(Duration::from_millis(988));
    };
    let updates = |pair: &Pair| {
        let stats = [(CLIENT, client), (SERVER, accepted)]
            .map(|(peer, handle)| pair.nodes[peer].stats(pair.now, handle).unwrap());
        assert!(stats.iter().all(|s| s.packets.forged == 0 && s.packets.lost == 0), "{stats:?}");
        stats.map(|stats| stats.key_updates)
    };
    (0..118).for_each(|number| exchange(&mut pair, number));
    assert_eq!(updates(&pair), [0, 0], "no key is 120 s old");
    (118..610).for_each(|number| exchange(&mut pair, number));
    assert_eq!(updates(&pair), [5, 5], "after 120, 240, 360, 480 and 600 s");

    pair.run(Duration::from_secs(1_200));
    exchange(&mut pair, 610);
    let after = updates(&pair);
    assert!(after[0] == after[1] && (6..=7).contains(&after[0]), "{after:?}");
}
