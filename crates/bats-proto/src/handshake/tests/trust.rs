//! Who is believed, what both ends agree on, and their keys.

use core::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::network::{CLIENT_CID, Network, Pair, SERVER_CID, client_config, identity};
use crate::config::{Identity, PeerTrust, Security};
use crate::crypto::{Keys, fingerprint};
use crate::error::{CloseReason, ConnectError};
use crate::handshake::{Blame, FirstPacket, Handshake, HandshakeError, ServerStart, parse_first};
use crate::wire::parameters::TransportParameters;

fn tls(trust: PeerTrust) -> Pair {
    Pair::new(Security::Tls, trust, Network::clean(10), 7)
}

#[test]
fn the_right_fingerprint_is_believed() {
    let pin = fingerprint(identity()).unwrap();
    let mut pair = tls(PeerTrust::Fingerprints(vec![[0; 32], pin]));
    pair.run().unwrap();
    assert_eq!(pair.client.peer_fingerprint(), Some(pin));
    assert_eq!(pair.server().peer_fingerprint(), None);
}

#[test]
fn a_wrong_fingerprint_is_refused_and_both_ends_know_why() {
    let mut pair = tls(PeerTrust::Fingerprints(vec![[1; 32]]));
    assert_eq!(pair.run(), None);
    let error = pair.client_error.clone().unwrap();
    assert!(matches!(error, HandshakeError::Tls { .. }), "{error:?}");
    assert_eq!(error.blame(), Blame::Peer);
    assert!(matches!(CloseReason::from(error), CloseReason::Handshake(_)));
    let told = pair.server_error.clone().unwrap();
    assert!(matches!(told, HandshakeError::ClosedByPeer { code: 0x100..0x200, .. }), "{told:?}");
    assert!(!pair.client.is_complete() && !pair.server().is_complete());
}

/// A certificate authority and a server's identity that it signed, with intermediates of `extra`
/// octets each.
fn authority(names: &[&str], extra: &[usize]) -> (Vec<u8>, Identity) {
    let ca_key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::new(Vec::new()).unwrap();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = parameters.self_signed(&ca_key).unwrap();
    let issuer = Issuer::new(parameters, ca_key);
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let leaf = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let mut certificate_chain = vec![leaf.der().to_vec()];
    for len in extra {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        let content = vec![5; *len];
        let extension =
            rcgen::CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 9999], content);
        parameters.custom_extensions.push(extension);
        let padding = parameters.self_signed(&KeyPair::generate().unwrap()).unwrap();
        certificate_chain.push(padding.der().to_vec());
    }
    let identity = Identity { certificate_chain, private_key: key.serialize_der() };
    (root.der().to_vec(), identity)
}

#[test]
fn an_authority_vouches_for_the_name_that_it_signed_only() {
    for (name, good) in [("bats.example", true), ("other.example", false)] {
        let (root, identity) = authority(&[name], &[]);
        let config = client_config(PeerTrust::Authorities(vec![root]));
        let mut pair = Pair::with(Security::Tls, &config, identity, Network::clean(10), 7);
        assert_eq!(pair.run().is_some(), good, "{:?}", pair.client_error);
    }
    let (root, _) = authority(&["bats.example"], &[]);
    assert_eq!(tls(PeerTrust::Authorities(vec![root])).run(), None);
}

#[test]
fn long_chains_cross_in_pieces_below_three_times_what_was_received() {
    let (root, identity) = authority(&["bats.example"], &[3_000, 3_000, 2_000]);
    let config = client_config(PeerTrust::Authorities(vec![root]));
    let network = Network::clean(15);
    let mut pair = Pair::with(Security::Tls, &config, identity.clone(), network, 7);
    let done = pair.run().unwrap();
    assert!(pair.sent_by_server.iter().sum::<usize>() > 8_500);
    // The address is proved by acknowledging the first part: one round trip more.
    assert!(done <= Duration::from_millis(15 * 6), "{done:?}");
    let lossy = Network { loss: 0.3, reordering: 0.3, ..network };
    for seed in 0..20 {
        let mut pair = Pair::with(Security::Tls, &config, identity.clone(), lossy, seed);
        let done = pair.run().unwrap();
        assert!(done <= Duration::from_secs(5), "{done:?}");
    }
}

#[test]
fn unusable_configurations_are_named() {
    let begin = |trust, name| {
        let seed = [0; 32];
        let parameters = TransportParameters::default();
        Handshake::client(
            bats_types::Timestamp::ZERO,
            &client_config(trust),
            name,
            Security::Tls,
            parameters,
            CLIENT_CID,
            seed,
        )
        .map(|_| ())
    };
    let any = PeerTrust::DangerousAcceptAny;
    assert_eq!(begin(any.clone(), "no name"), Err(ConnectError::ServerName("no name".to_owned())));
    assert_eq!(begin(any, "192.0.2.1"), Ok(()));
    for trust in [
        PeerTrust::Fingerprints(Vec::new()),
        PeerTrust::Authorities(Vec::new()),
        PeerTrust::Authorities(vec![vec![1, 2, 3]]),
    ] {
        assert!(matches!(begin(trust, "bats.example"), Err(ConnectError::Configuration(_))));
    }
}

fn both() -> [Pair; 2] {
    [Security::Tls, Security::DangerousPlain].map(|security| {
        let any = PeerTrust::DangerousAcceptAny;
        let mut pair = Pair::new(security, any, Network::clean(10), 7);
        pair.run().unwrap();
        pair
    })
}

#[test]
fn both_ends_know_each_others_parameters() {
    for mut pair in both() {
        let own = pair.client.peer_parameters().unwrap();
        assert_eq!((own.code_seed, own.initial_source), (2, SERVER_CID));
        assert_eq!(pair.client.peer_cid(), Some(SERVER_CID));
        let other = pair.server().peer_parameters().unwrap();
        assert_eq!((other.code_seed, other.initial_source), (1, CLIENT_CID));
        assert_eq!(pair.server().peer_cid(), Some(CLIENT_CID));
    }
}

#[test]
fn keys_fit_in_both_directions_and_every_generation() {
    for mut pair in both() {
        let client = pair.client.take_one_rtt_keys().unwrap();
        let server = pair.server().take_one_rtt_keys().unwrap();
        assert!(pair.client.take_one_rtt_keys().is_none());
        let sample = [9; 16];
        assert_eq!(client.local.header.mask(&sample), server.remote.header.mask(&sample));
        assert_eq!(client.remote.header.mask(&sample), server.local.header.mask(&sample));
        let Keys { local, remote } = client;
        let mut client = (local.packet, remote.packet);
        let Keys { local, remote } = server;
        let mut server = (local.packet, remote.packet);
        let mut last = None;
        for generation in 0..4 {
            for (seal, open) in [(&client.0, &server.1), (&server.0, &client.1)] {
                let mut packet = [generation; 40];
                seal.seal_in_place(5, b"header", &mut packet, 24);
                let sealed = packet;
                assert_eq!(open.open_in_place(5, b"header", &mut packet), Some(24));
                assert_eq!(packet[..24], [generation; 24]);
                // The last generation does not open what this one sealed.
                if let Some((_, old)) = &last {
                    let old: &crate::crypto::PacketKey = old;
                    assert_eq!(old.open_in_place(5, b"header", &mut sealed.clone()), None);
                }
            }
            let next = pair.client.next_one_rtt_keys().unwrap();
            last = Some(core::mem::replace(&mut client, next));
            server = pair.server().next_one_rtt_keys().unwrap();
        }
    }
}

#[test]
fn an_application_that_closes_early_is_heard_and_begins_nothing_new() {
    for security in [Security::Tls, Security::DangerousPlain] {
        let any = PeerTrust::DangerousAcceptAny;
        let mut pair = Pair::new(security, any, Network::clean(10), 7);
        let mut close = Vec::new();
        pair.client.write_close("private words", &mut close);
        assert_eq!(close.len(), 1_200);
        let Some(FirstPacket::Initial(initial)) = parse_first(&close) else { panic!("no Initial") };
        let start = pair.crypto.start(pair.now, pair.remote, &initial, false, false);
        assert!(matches!(start, ServerStart::Drop), "{start:?}");
        while pair.server.is_none() {
            assert!(pair.step());
        }
        let now = pair.now;
        let told = pair.server().handle_datagram(now, &mut close);
        let expected = HandshakeError::ClosedByPeer { code: 0xc, reason: String::new() };
        assert_eq!(told, Err(expected));
    }
}

#[test]
fn post_handshake_data_is_bounded_in_its_effect() {
    for mut pair in both() {
        let before = pair.client.counters().malformed;
        pair.client.read_post_handshake(&[0xff; 50]);
        assert_eq!(pair.client.counters().malformed, before + 1);
        assert!(pair.client.is_complete());
        assert!(pair.client.next_one_rtt_keys().is_some());
    }
}
