//! Which clients a server trusts. Real TLS without packets.

use core::time::Duration;

use super::new_keys::CryptoError;
use super::session::Session;
use super::session_tests::{Peers, exchange};
use super::{fingerprint, generate_identity};
use crate::config::{Identity, PeerTrust};

/// A time at which the certificates are valid.
const UNIX_TIME: Duration = Duration::from_secs(1_790_000_000);

fn identity() -> Identity {
    generate_identity(&["client".to_owned()]).unwrap()
}

fn print_of(identity: &Identity) -> [u8; 32] {
    fingerprint(&identity.certificate_chain[0])
}

fn authorities(certificate: &Identity, unix_time: Duration) -> PeerTrust {
    PeerTrust::Authorities { certificates: certificate.certificate_chain.clone(), unix_time }
}

/// The handshake of a server with this trust and a client with this identity.
fn handshake(
    trust: Option<PeerTrust>,
    identity: Option<&Identity>,
) -> Result<(Session, Session), CryptoError> {
    let (mut client, mut server) = Peers::with_clients(trust, identity.cloned()).begin();
    exchange(&mut client, &mut server)?;
    assert!(client.is_done() && server.is_done());
    Ok((client, server))
}

fn refusal(trust: PeerTrust, identity: Option<&Identity>) -> String {
    match handshake(Some(trust), identity) {
        Ok(_) => panic!("the server accepts the client"),
        Err(CryptoError(text)) => text,
    }
}

#[test]
fn server_without_trust_asks_for_no_certificate() {
    let client = identity();
    for identity in [None, Some(&client)] {
        let (client, server) = handshake(None, identity).unwrap();
        assert!(!client.is_certificate_requested() && !server.is_certificate_requested());
        assert_eq!(server.peer_fingerprint(), None);
        assert!(client.peer_fingerprint().is_some());
    }
}

#[test]
fn server_with_fingerprints_requires_one_of_their_certificates() {
    let (ours, other) = (identity(), identity());
    let trust = || PeerTrust::Fingerprints(vec![print_of(&other), print_of(&ours)]);
    for known in [&ours, &other] {
        let (client, server) = handshake(Some(trust()), Some(known)).unwrap();
        assert!(client.is_certificate_requested() && !server.is_certificate_requested());
        assert_eq!(server.peer_fingerprint(), Some(print_of(known)));
    }
    let text = refusal(trust(), None);
    assert!(text.contains("this client presented none"), "{text}");
    let text = refusal(trust(), Some(&identity()));
    assert!(text.contains("does not trust the certificate of this client"), "{text}");
}

#[test]
fn server_that_accepts_any_client_needs_no_certificate() {
    let ours = identity();
    for identity in [None, Some(&ours)] {
        let (client, server) = handshake(Some(PeerTrust::DangerousAcceptAny), identity).unwrap();
        assert!(client.is_certificate_requested());
        assert_eq!(server.peer_fingerprint(), identity.map(print_of));
    }
}

#[test]
fn server_with_authorities_requires_a_certificate_of_theirs_that_is_valid_now() {
    let (ours, other) = (identity(), identity());
    let (client, server) = handshake(Some(authorities(&ours, UNIX_TIME)), Some(&ours)).unwrap();
    assert!(client.is_certificate_requested());
    assert_eq!(server.peer_fingerprint(), Some(print_of(&ours)));
    let untrusted = "the server does not trust the certificate of this client";
    let text = refusal(authorities(&other, UNIX_TIME), Some(&ours));
    assert!(text.starts_with(untrusted), "{text}");
    assert!(refusal(authorities(&ours, UNIX_TIME), None).contains("presented none"));
    // Certificates are valid from 1975.
    let text = refusal(authorities(&ours, Duration::ZERO), Some(&ours));
    assert!(text.starts_with(untrusted) && text.contains("not valid yet"), "{text}");
}
