//! Session resumption (TLS 1.3): when it succeeds and when it must not.

use std::sync::Arc;
use std::time::Duration;

use crate::world::{
    CLIENT, Connections, NAME, NOW, SERVER, World, address, client, identity, new_world, server,
    transport,
};
use bats_proto::{
    ClientConfig, ConnectError, ConnectionHandle, Endpoint, EndpointConfig, Event, Mode, PeerTrust,
    Resumption, SessionStore, TransportConfig, config::Security,
};
use bytes::Bytes;

/// Connects and closes again. Returns whether the handshake resumed a session.
fn is_resumed(world: &mut World, config: ClientConfig, name: &str) -> bool {
    let handle = world.connect_as(config, name);
    world.run(Duration::from_millis(300));
    assert_eq!(world.all(CLIENT, &Event::Connected), [handle], "{:?}", world.events);
    let accepted = world.all(SERVER, &Event::Accepted)[0];
    let resumed = world.stats(CLIENT, handle).resumed;
    assert_eq!(world.stats(SERVER, accepted).resumed, resumed);
    let message = Bytes::from_static(b"data flow");
    world.nodes[CLIENT].send(world.now, handle, message.clone()).unwrap();
    world.run(Duration::from_millis(100));
    assert_eq!(world.delivered(), [message]);
    world.end(handle);
    resumed
}

#[test]
fn sessions_resume_under_every_kind_of_trust_with_known_certificate() {
    let (identity, print) = identity();
    let authority = identity.certificate_chain[0].clone();
    for trust in [
        PeerTrust::Fingerprints(vec![print]),
        PeerTrust::DangerousAcceptAny,
        PeerTrust::Authorities { certificates: vec![authority], unix_time: NOW },
    ] {
        let mut world = new_world(server(&identity, false));
        let store = SessionStore::new(100);
        let config = client(Mode::Brtp, trust, &store);
        assert!(!is_resumed(&mut world, config.clone(), NAME));
        assert_eq!(store.len(), 2, "two tickets are requested");
        for _ in 0..5 {
            assert!(is_resumed(&mut world, config.clone(), NAME));
        }
        assert_eq!(store.len(), 4, "four tickets are stored");
        let before = world.links.sent.len();
        let handle = world.connect(config);
        world.run(Duration::from_millis(300));
        assert_eq!(world.nodes[CLIENT].peer_fingerprint(handle), Some(print));
        // No certificate is sent.
        let sent = world.links.sent[before..].iter();
        let long = sent.filter(|sent| sent.from == SERVER && sent.bytes[0] & 0x80 != 0);
        let longest = long.map(|sent| sent.bytes.len()).max().unwrap();
        assert!(longest < 600, "{longest}");
    }
}

#[test]
fn without_a_store_no_tickets_are_sent() {
    let (identity, print) = identity();
    let mut world = new_world(server(&identity, true));
    let config = ClientConfig {
        trust: PeerTrust::Fingerprints(vec![print]),
        identity: None,
        transport: Arc::new(transport(Mode::Brtp)),
    };
    assert!(!is_resumed(&mut world, config.clone(), NAME));
    assert!(!is_resumed(&mut world, config, NAME));
}

/// Trust established by one rule does not hold for another rule.
#[test]
fn sessions_do_not_resume_under_another_trust_name_or_address() {
    let (identity, print) = identity();
    let authority = identity.certificate_chain[0].clone();
    let mut world = new_world(server(&identity, false));
    let store = SessionStore::new(100);
    let any = client(Mode::Brtp, PeerTrust::DangerousAcceptAny, &store);
    assert!(!is_resumed(&mut world, any.clone(), NAME));
    let pinned = client(Mode::Brtp, PeerTrust::Fingerprints(vec![print]), &store);
    assert!(
        !is_resumed(&mut world, pinned.clone(), NAME),
        "a pinned certificate must be presented"
    );
    let pinned_twice = client(Mode::Brtp, PeerTrust::Fingerprints(vec![print, [7; 32]]), &store);
    assert!(!is_resumed(&mut world, pinned_twice, NAME));
    let trust = PeerTrust::Authorities { certificates: vec![authority], unix_time: NOW };
    assert!(!is_resumed(&mut world, client(Mode::Brtp, trust, &store), NAME));
    assert!(!is_resumed(&mut world, any.clone(), "other.example"));
    // Each kind of trust has sessions of its own.
    assert!(is_resumed(&mut world, any.clone(), NAME));
    assert!(is_resumed(&mut world, any.clone(), "other.example"));
    assert!(is_resumed(&mut world, pinned, NAME));

    // The same server at another address.
    let before = store.len();
    let elsewhere = "10.0.0.2:4001".parse().unwrap();
    world.nodes[CLIENT].connect(world.now, elsewhere, NAME, any).unwrap();
    assert_eq!(store.len(), before, "no session was used");

    // A client that pins another certificate rejects this server although it has sessions with it.
    let wrong = client(Mode::Brtp, PeerTrust::Fingerprints(vec![[9; 32]]), &store);
    world.connect(wrong);
    world.run(Duration::from_secs(1));
    assert_eq!(world.all(CLIENT, &Event::Connected), Vec::<ConnectionHandle>::new());
}

fn at(config: &ClientConfig, unix_time: Duration) -> ClientConfig {
    let mut config = config.clone();
    if let PeerTrust::Authorities { unix_time: judged, .. } = &mut config.trust {
        *judged = unix_time;
    }
    let store = config.transport.resumption.as_ref().unwrap().store.clone();
    let resumption = Some(Resumption { store, unix_time });
    config.transport = Arc::new(TransportConfig { resumption, ..(*config.transport).clone() });
    config
}

#[test]
fn expired_sessions_are_rejected_by_both_ends() {
    let (identity, print) = identity();
    let mut world = new_world(server(&identity, false));
    let store = SessionStore::new(100);
    let config = client(Mode::Brtp, PeerTrust::Fingerprints(vec![print]), &store);
    let day = Duration::from_secs(24 * 60 * 60);
    assert!(!is_resumed(&mut world, config.clone(), NAME));
    assert!(is_resumed(&mut world, at(&config, NOW + day / 2), NAME));
    // By the client's clock the sessions have expired.
    assert!(!is_resumed(&mut world, at(&config, NOW + day * 2), NAME));
    // The client's clock stands still while the server's advances.
    store.clear();
    assert!(!is_resumed(&mut world, config.clone(), NAME));
    world.now += day + Duration::from_secs(5);
    assert!(!is_resumed(&mut world, config.clone(), NAME));
    assert!(is_resumed(&mut world, config, NAME));
}

/// The certificate is verified again: an earlier verification does not count.
#[test]
fn a_session_does_not_outlive_the_certificate() {
    let (identity, _) = identity();
    let authority = identity.certificate_chain[0].clone();
    let mut world = new_world(server(&identity, false));
    let store = SessionStore::new(100);
    let trust = PeerTrust::Authorities { certificates: vec![authority], unix_time: NOW };
    let config = client(Mode::Brtp, trust, &store);
    assert!(!is_resumed(&mut world, config.clone(), NAME));
    // Certificates made here are valid from 1975 on. The sessions are from later and have not
    // expired.
    world.connect(at(&config, Duration::ZERO));
    world.run(Duration::from_secs(1));
    assert_eq!(world.all(CLIENT, &Event::Connected), Vec::<ConnectionHandle>::new());
    assert_eq!(store.len(), 1, "the session was examined and discarded");
}

#[test]
fn lost_sessions_or_a_new_certificate_cause_a_full_handshake() {
    let (first, print) = identity();
    let (second, other_print) = identity();
    let store = SessionStore::new(100);
    let mut world = new_world(server(&first, false));
    let config = client(Mode::Brtp, PeerTrust::Fingerprints(vec![print]), &store);
    assert!(!is_resumed(&mut world, config.clone(), NAME));
    world.restart(server(&first, false));
    assert!(!is_resumed(&mut world, config.clone(), NAME));
    assert!(is_resumed(&mut world, config.clone(), NAME));
    world.restart(server(&second, false));
    let handle = world.connect(config);
    world.run(Duration::from_secs(1));
    assert_eq!(world.all(CLIENT, &Event::Connected), [], "another certificate is pinned");
    world.end(handle);
    let config = client(Mode::Brtp, PeerTrust::Fingerprints(vec![other_print]), &store);
    assert!(!is_resumed(&mut world, config, NAME));
}

#[test]
fn session_store_is_bounded_and_keeps_the_newest() {
    let (identity, print) = identity();
    let mut world = new_world(server(&identity, false));
    let store = SessionStore::new(3);
    let config = client(Mode::Brtp, PeerTrust::Fingerprints(vec![print]), &store);
    for name in ["a.example", "b.example", "c.example"] {
        assert!(!is_resumed(&mut world, config.clone(), name));
        assert!(store.len() <= 3);
    }
    assert_eq!(store.len(), 3);
    assert!(is_resumed(&mut world, config.clone(), "c.example"));
    assert!(!is_resumed(&mut world, config.clone(), "a.example"));
    assert!(store.len() <= 3);
    let none = SessionStore::new(0);
    let config = client(Mode::Brtp, PeerTrust::Fingerprints(vec![print]), &none);
    assert!(!is_resumed(&mut world, config.clone(), NAME));
    assert!(none.is_empty() && !is_resumed(&mut world, config, NAME));
    // The number of trust identities is limited, too: the oldest is removed with its sessions.
    let many = SessionStore::new(1_000);
    for kind in 0..40 {
        let trust = PeerTrust::Fingerprints(vec![print, [kind; 32]]);
        assert!(!is_resumed(&mut world, client(Mode::Brtp, trust, &many), NAME));
    }
    assert_eq!(many.len(), 16 * 2);
}

/// Tickets that arrive after the store was cleared are not stored.
#[test]
fn tickets_of_cleared_trust_are_not_stored() {
    let (identity, print) = identity();
    let mut world = new_world(server(&identity, false));
    let store = SessionStore::new(100);
    let config = client(Mode::Brtp, PeerTrust::Fingerprints(vec![print]), &store);
    let first = world.connect(config.clone());
    world.run(Duration::from_millis(10));
    store.clear();
    let second = world.connect(config.clone());
    world.run(Duration::from_millis(100));
    assert_eq!(world.all(CLIENT, &Event::Connected), [first, second]);
    assert_eq!(store.len(), 2, "only those of the second connection");
    world.end(first);
    world.end(second);
    assert!(is_resumed(&mut world, config, NAME));
}

/// Tickets are sent after the handshake and retransmitted if lost.
#[test]
fn tickets_arrive_despite_loss() {
    let (identity, print) = identity();
    for seed in 0..10_u64 {
        let mut world = new_world(server(&identity, false));
        let store = SessionStore::new(100);
        let config = client(Mode::Brtp, PeerTrust::Fingerprints(vec![print]), &store);
        world.connect(config);
        let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        world.run_with(Duration::from_secs(5), |_, _| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 40) % 10 < 4
        });
        assert_eq!(store.len(), 2, "seed {seed}");
    }
}

#[test]
fn invalid_resumption_configurations_are_rejected() {
    let (identity, print) = identity();
    let store = SessionStore::new(10);
    let trust = PeerTrust::Fingerprints(vec![print]);
    let mut world = new_world(server(&identity, false));
    let plain = EndpointConfig { security: Security::DangerousPlain, ..EndpointConfig::default() };
    let mut plain = Endpoint::new(plain, [5; 32]).unwrap();
    let mut refused = |endpoint: Option<&mut Endpoint>, change: &dyn Fn(&mut TransportConfig)| {
        let mut config = client(Mode::Btp, trust.clone(), &store);
        change(Arc::make_mut(&mut config.transport));
        let endpoint = endpoint.unwrap_or(&mut world.nodes[CLIENT]);
        let begun = endpoint.connect(world.now, address(SERVER), NAME, config);
        matches!(begun, Err(ConnectError::Configuration(_)))
    };
    assert!(!refused(None, &|_| {}));
    assert!(refused(None, &|transport| transport.mode = Mode::Brtp), "early data requires BTP");
    assert!(refused(None, &|transport| transport.resumption = None), "and a session store");
    assert!(refused(Some(&mut plain), &|_| {}), "the stand-in has no sessions");

    let start = |change: &dyn Fn(&mut TransportConfig), security| {
        let mut config = server(&identity, true);
        change(Arc::make_mut(&mut config.transport));
        Endpoint::new(
            EndpointConfig { security, server: Some(config), ..EndpointConfig::default() },
            [6; 32],
        )
        .is_ok()
    };
    assert!(start(&|_| {}, Security::Tls));
    assert!(
        !start(&|transport| transport.also_accepted.clear(), Security::Tls),
        "BTP is not offered"
    );
    assert!(!start(&|_| {}, Security::DangerousPlain));
}
