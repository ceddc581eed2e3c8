//! Limits of the store, and which of its sessions a connection may resume.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

use super::*;
use crate::config::{ClientConfig, TransportConfig};
use crate::crypto::session_tests::{Peers, handshake_with};
use crate::crypto::{fingerprint, generate_identity};

const UNIX_TIME: Duration = Duration::from_secs(1_790_000_000);

/// Sessions of real handshakes.
struct Values {
    peers: Peers,
    ready: VecDeque<StoredSession>,
}

impl Values {
    fn new() -> Self {
        Self { peers: Peers::new(), ready: VecDeque::new() }
    }

    /// A session with this number in its parameters.
    fn next(&mut self, number: u8) -> Tls13ClientSessionValue {
        if self.ready.is_empty() {
            assert!(handshake_with(&self.peers, |_| {}).0);
            self.ready.append(&mut self.peers.store.lock().sessions);
        }
        let mut value = self.ready.pop_front().expect("a session").value;
        value.set_quic_params(&[number]);
        value
    }
}

fn identity() -> Identity {
    generate_identity(&["server".to_owned()]).unwrap()
}

fn trusting(certificate: &[u8]) -> ClientConfig {
    let trust = PeerTrust::Fingerprints(vec![fingerprint(certificate)]);
    ClientConfig { trust, identity: None, transport: TransportConfig::default().into() }
}

fn clock() -> Arc<ExternalClock> {
    Arc::new(ExternalClock::new(UNIX_TIME, Timestamp::ZERO))
}

fn name() -> ServerName<'static> {
    ServerName::try_from("server").unwrap()
}

fn remembered(store: &SessionStore, config: &ClientConfig) -> (TrustIdentity, Template) {
    let (trust, identity) = (&config.trust, config.identity.as_ref());
    let trust_identity = TrustIdentity::of(trust, identity);
    (trust_identity, store.template(trust_identity, trust, identity).unwrap())
}

/// The store as a connection to a server at this port uses it.
fn connection(
    store: &SessionStore,
    config: &ClientConfig,
    port: u16,
    clock: Arc<ExternalClock>,
) -> ConnectionSessionStore {
    let (trust, template) = remembered(store, config);
    let server = Remote::Network(([10, 0, 0, 1], port).into());
    let trust = (trust, template);
    ConnectionSessionStore::new(store.clone(), trust, server, name(), b"test", clock)
}

/// The same, of a server whose certificate is trusted.
fn trusted(store: &SessionStore, port: u16) -> ConnectionSessionStore {
    let certificate = [1, 2, 3];
    let connection = connection(store, &trusting(&certificate), port, clock());
    connection.set_chain(&[CertificateDer::from(certificate.to_vec())]);
    connection
}

fn insert(connection: &ConnectionSessionStore, value: Tls13ClientSessionValue) {
    connection.insert_tls13_ticket(name(), value);
}

/// The number of the session that a connection would resume.
fn take(connection: &ConnectionSessionStore) -> Option<u8> {
    connection.take_tls13_ticket(&name()).map(|value| value.quic_params()[0])
}

#[test]
fn four_sessions_per_server_are_kept_and_the_newest_is_used_first() {
    let (mut values, store) = (Values::new(), SessionStore::new(100));
    let (other, server) = (trusted(&store, 1), trusted(&store, 2));
    insert(&other, values.next(100));
    for number in 0..7 {
        insert(&server, values.next(number));
        assert_eq!(store.len(), 1 + usize::from(number + 1).min(4));
    }
    assert_eq!(core::array::from_fn(|_| take(&server)), [Some(6), Some(5), Some(4), Some(3), None]);
    assert_eq!((take(&other), take(&other)), (Some(100), None));
}

#[test]
fn sessions_beyond_the_limit_displace_the_oldest() {
    let (mut values, store) = (Values::new(), SessionStore::new(3));
    let servers: Vec<_> = (1..=5).map(|port| trusted(&store, port)).collect();
    for (number, server) in (0..).zip(&servers) {
        insert(server, values.next(number));
        assert_eq!(store.len(), usize::from(number + 1).min(3));
    }
    let taken: Vec<_> = servers.iter().map(take).collect();
    assert_eq!(taken, [None, None, Some(2), Some(3), Some(4)]);
    assert!(store.is_empty());
    let none = SessionStore::new(0);
    insert(&trusted(&none, 1), values.next(0));
    assert!(none.is_empty(), "a store without room");
}

#[test]
fn sixteen_trust_configurations_are_remembered_the_most_recently_used_ones() {
    let (mut values, store) = (Values::new(), SessionStore::new(100));
    let configs: Vec<_> = (0..=MAX_TRUST_IDENTITIES).map(|one| trusting(&[one as u8])).collect();
    let (last, known) = configs.split_last().unwrap();
    assert_eq!(known.len(), 16);
    for (number, config) in (0..).zip(known) {
        let connection = connection(&store, config, 1, clock());
        connection.set_chain(&[CertificateDer::from(vec![number])]);
        insert(&connection, values.next(number));
    }
    let is_same = |one: &Template, other: &Template| Arc::ptr_eq(&one.verifier, &other.verifier);
    let template = |config| remembered(&store, config).1;
    let first = template(&known[0]);
    assert!(is_same(&first, &template(&known[0])));
    assert!(!is_same(&first, &template(&known[1])));
    assert_eq!(store.len(), 16);
    // The third one is the oldest now: the first two were used again.
    template(last);
    assert_eq!(store.len(), 15);
    assert!(is_same(&first, &template(&known[0])));
    let taken = |config| take(&connection(&store, config, 1, clock()));
    for (number, config) in (0..).zip(known) {
        if number != 2 {
            assert_eq!(taken(config), Some(number));
        }
    }
    assert_eq!(taken(&known[2]), None);
}

/// TLS would not resume them, because the objects of the configuration are others.
#[test]
fn sessions_of_a_forgotten_configuration_are_not_kept() {
    let (mut values, store) = (Values::new(), SessionStore::new(100));
    let before = trusted(&store, 1);
    insert(&before, values.next(1));
    store.clear();
    insert(&before, values.next(2));
    assert!(store.is_empty(), "the configuration is unknown");
    let after = trusted(&store, 1);
    insert(&before, values.next(3));
    assert!(store.is_empty(), "it is known again with other objects");
    insert(&after, values.next(4));
    assert_eq!(take(&after), Some(4));
}

#[test]
fn sessions_need_a_certificate_chain_of_at_most_16_kib() {
    let (mut values, store) = (Values::new(), SessionStore::new(100));
    let certificate = identity().certificate_chain.remove(0);
    let rest = (16 << 10) - certificate.len();
    let chain = |rest: &[usize]| -> Vec<CertificateDer<'static>> {
        let rest = rest.iter().map(|&len| CertificateDer::from(vec![0; len]));
        core::iter::once(certificate.clone().into()).chain(rest).collect()
    };
    for (chain, is_kept) in [
        (vec![], false),
        (chain(&[]), true),
        (chain(&[rest]), true),
        (chain(&[rest + 1]), false),
        (chain(&[rest, 1]), false),
    ] {
        let connection = connection(&store, &trusting(&certificate), 1, clock());
        connection.set_chain(&chain);
        insert(&connection, values.next(1));
        assert_eq!(take(&connection).is_some(), is_kept, "{} certificates", chain.len());
    }
    // The chain that was verified first is that of the connection.
    let connection = connection(&store, &trusting(&certificate), 1, clock());
    connection.set_chain(&chain(&[]));
    connection.set_chain(&[CertificateDer::from(vec![7])]);
    insert(&connection, values.next(2));
    assert_eq!(take(&connection), Some(2));
}

#[test]
fn sessions_are_resumed_only_while_the_certificate_is_valid() {
    let (mut values, store) = (Values::new(), SessionStore::new(100));
    let certificates = identity().certificate_chain;
    let chain = [CertificateDer::from(certificates[0].clone())];
    let trust = PeerTrust::Authorities { certificates, unix_time: UNIX_TIME };
    let transport = TransportConfig::default().into();
    let config = ClientConfig { trust, identity: None, transport };
    // Certificates are valid until the year 4096.
    let late = Arc::new(ExternalClock::new(Duration::from_secs(1 << 36), Timestamp::ZERO));
    let now = connection(&store, &config, 1, clock());
    let later = connection(&store, &config, 1, late);
    now.set_chain(&chain);
    for number in 0..3 {
        insert(&now, values.next(number));
    }
    assert_eq!((take(&now), take(&later), take(&now)), (Some(2), None, Some(0)));
}
