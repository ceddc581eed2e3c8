//! An observer of the first flight knows the Initial keys. It cannot change a connection with them
//! once TLS has taken its Initial data. Real TLS.

use std::sync::Arc;

use bats_types::Timestamp;
use core::time::Duration;

use super::first::{FirstPacket, ServerCrypto, ServerStart, parse_first};
use super::machine::Handshake;
use super::packet::{self, PacketHeader};
use super::protection::Protection;
use crate::config::{ClientConfig, PeerTrust, Security, ServerConfig, TransportConfig};
use crate::crypto::{InitialSecrets, generate_identity, initial_keys};
use crate::remote::Remote;
use crate::wire::long_header::{CID_LEN, LongKind, ORIGINAL_CID_LEN};
use crate::wire::parameters::TransportParameters;
use crate::wire::varint::Writer;

const NOW: Timestamp = Timestamp::from_millis(1_000);
const LATER: Timestamp = Timestamp::from_millis(60_000);
const CLIENT_CID: [u8; CID_LEN] = [1; CID_LEN];
const SERVER_CID: [u8; CID_LEN] = [2; CID_LEN];

pub(super) struct Pair {
    pub(super) client: Handshake,
    pub(super) server: Handshake,
    original: [u8; ORIGINAL_CID_LEN],
    now: Timestamp,
}

fn datagrams(from: &mut Handshake, now: Timestamp) -> Vec<Vec<u8>> {
    let mut buffer = [0; 1_500];
    core::iter::from_fn(|| {
        from.poll_datagram(now, &mut buffer, usize::MAX).map(|len| buffer[..len].to_vec())
    })
    .collect()
}

impl Pair {
    fn new() -> Self {
        Self::with_client(TransportConfig::default())
    }

    /// A server that has taken the client's first flight.
    pub(super) fn with_client(transport: TransportConfig) -> Self {
        Self::with(transport, &["server".to_owned()])
    }

    /// As [`Self::with_client`], with these names in the server's certificate.
    fn with(transport: TransportConfig, names: &[String]) -> Self {
        let client_transport = Arc::new(transport);
        let transport = Arc::new(TransportConfig::default());
        let config = ServerConfig {
            identity: generate_identity(names).expect("an identity"),
            client_trust: None,
            transport,
            retry_threshold: 100,
            max_connections: 10,
        };
        let crypto = ServerCrypto::new(&config, Security::Tls, [9; 32]).expect("a configuration");
        let remote = Remote::Network(([10, 0, 0, 1], 4_000).into());
        let client = ClientConfig {
            trust: PeerTrust::DangerousAcceptAny,
            identity: None,
            transport: client_transport,
        };
        let parameters = TransportParameters::default;
        let to = (remote, "server");
        let mut client = Handshake::client(
            NOW,
            &client,
            to,
            Protection::Handshake(Security::Tls),
            parameters(),
            CLIENT_CID,
            [3; 32],
        )
        .expect("a configuration");
        let mut flight = datagrams(&mut client, NOW);
        let Some(FirstPacket::Initial(initial)) = parse_first(&flight[0]) else {
            panic!("a first flight")
        };
        let original = initial.destination;
        let ServerStart::Accept(start) = crypto.start(NOW, remote, &initial, false, false) else {
            panic!("it is accepted")
        };
        let mut server =
            Handshake::server(NOW, &crypto, parameters(), SERVER_CID, &start, false, [4; 32])
                .expect("a session");
        for datagram in &mut flight {
            server.handle_datagram(NOW, datagram).expect("a valid flight");
        }
        Self { client, server, original, now: NOW }
    }

    /// A packet with the Initial keys and a CRYPTO frame, as an observer can seal it.
    fn forged(&self, to_client: bool, offset: u64, data: &[u8]) -> Vec<u8> {
        let secrets = InitialSecrets {
            psk: None,
            destination: &self.original,
            source: &CLIENT_CID,
            salt: &[],
        };
        let keys = initial_keys(Security::Tls, &secrets, !to_client).expect("keys");
        let mut payload = vec![0; data.len() + 32];
        let mut writer = Writer::new(&mut payload);
        writer.u8(1).expect("room");
        writer.varint(offset).expect("room");
        writer.varint(data.len() as u64).expect("room");
        writer.bytes(data).expect("room");
        let len = writer.written();
        let (destination, source) = match to_client {
            true => (&CLIENT_CID, &SERVER_CID),
            false => (&SERVER_CID, &CLIENT_CID),
        };
        let head =
            PacketHeader { kind: LongKind::Initial, destination, source, token: &[], grease: 0 };
        let mut out = vec![0; 1_500];
        let len = packet::seal(&mut out, &keys.local, &head, 4_000, &payload[..len]).expect("room");
        out.truncate(len);
        out
    }

    /// Forged data of all kinds: over and after the data of the level, and far behind it.
    fn forgeries(&self, to_client: bool) -> Vec<Vec<u8>> {
        // A NewSessionTicket, or what else TLS might take at this point.
        let ticket: Vec<u8> = [4, 0, 0, 60].into_iter().chain([7; 60]).collect();
        let mut forged: Vec<_> =
            (0..900).step_by(30).map(|at| self.forged(to_client, at, &ticket)).collect();
        forged.extend((0..900).map(|at| self.forged(to_client, at, &[4, 0, 0, 0])));
        forged.push(self.forged(to_client, 0, &[0; 1_000]));
        forged.push(self.forged(to_client, 4_000, &[0; 1_000]));
        forged
    }

    fn forge(&mut self, to_client: bool) {
        for mut forged in self.forgeries(to_client) {
            let victim = if to_client { &mut self.client } else { &mut self.server };
            assert!(victim.handle_datagram(self.now, &mut forged).is_ok());
        }
    }

    fn deliver_to_client(&mut self) {
        for mut datagram in datagrams(&mut self.server, self.now) {
            self.client.handle_datagram(self.now, &mut datagram).expect("valid");
        }
    }

    fn deliver_to_server(&mut self) {
        for mut datagram in datagrams(&mut self.client, self.now) {
            self.server.handle_datagram(self.now, &mut datagram).expect("valid");
        }
    }

    pub(super) fn complete(&mut self) {
        for _ in 0..20 {
            self.deliver_to_client();
            self.deliver_to_server();
            self.now += Duration::from_millis(30);
        }
        assert!(self.client.is_complete() && self.server.is_complete());
    }
}

#[test]
fn initial_data_after_the_hello_changes_nothing() {
    let mut pair = Pair::new();
    pair.forge(false);
    pair.complete();
    // The client's hello is complete: its server has Handshake keys, and so has the client as soon
    // as it has the answer.
    let mut pair = Pair::new();
    let first = datagrams(&mut pair.server, pair.now).into_iter().next();
    let mut first = first.expect("an answer");
    pair.client.handle_datagram(pair.now, &mut first).expect("valid");
    pair.forge(true);
    pair.complete();
}

#[test]
fn forged_initial_packets_do_not_change_a_complete_handshake() {
    let mut pair = Pair::new();
    pair.complete();
    assert!(pair.server.is_confirmed() && !pair.client.is_confirmed());
    let before = pair.client.next_timeout();
    for (to_client, confirm) in [(false, false), (true, false), (true, true)] {
        if confirm {
            pair.client.confirm();
        }
        for mut forged in pair.forgeries(to_client) {
            let victim = if to_client { &mut pair.client } else { &mut pair.server };
            assert_eq!(victim.handle_datagram(pair.now, &mut forged), Ok(false), "not authentic");
            assert!(victim.is_complete());
        }
    }
    assert!(before.is_some(), "a client repeats its Finished until it is confirmed");
    assert_eq!((pair.client.next_timeout(), pair.server.next_timeout()), (None, None));
    assert!(!pair.client.has_timed_out(LATER) && !pair.server.has_timed_out(LATER));
    assert!(datagrams(&mut pair.client, LATER).is_empty());
    assert!(datagrams(&mut pair.server, LATER).is_empty());
}

/// RFC 9001, section 4.9.1: a server needs no Initial keys after the first Handshake packet, also if
/// that does not complete the handshake.
#[test]
fn server_discards_its_initial_keys_with_the_first_handshake_packet() {
    // A certificate that takes more than one datagram.
    let names: Vec<_> = (0..80).map(|number| format!("server-{number}.example")).collect();
    let mut pair = Pair::with(TransportConfig::default(), &names);
    let first = datagrams(&mut pair.server, pair.now).into_iter().next();
    pair.client.handle_datagram(pair.now, &mut first.expect("an answer")).expect("valid");
    let forge = |pair: &mut Pair| {
        let mut forged = pair.forged(false, 0, &[4, 0, 0, 0]);
        pair.server.handle_datagram(pair.now, &mut forged).expect("it does not fail")
    };
    assert!(forge(&mut pair), "Initial keys are in use until then");
    pair.deliver_to_server();
    assert!(!pair.server.is_complete(), "the client's last data is not there");
    assert!(!forge(&mut pair), "they are discarded");
    pair.complete();
}

/// RFC 9001, section 4.9.2: no packet of any level is authentic once the handshake is confirmed, not
/// even the peer's own.
#[test]
fn packets_of_a_confirmed_handshake_are_not_authentic_again() {
    let mut pair = Pair::new();
    let mut to_client = datagrams(&mut pair.server, pair.now);
    for mut datagram in to_client.clone() {
        assert_eq!(pair.client.handle_datagram(pair.now, &mut datagram), Ok(true));
    }
    let mut to_server = datagrams(&mut pair.client, pair.now);
    for mut datagram in to_server.clone() {
        assert_eq!(pair.server.handle_datagram(pair.now, &mut datagram), Ok(true));
    }
    assert!(pair.server.is_confirmed());
    let again = datagrams(&mut pair.client, pair.now);
    to_server.extend(again);
    pair.client.confirm();
    assert!(pair.client.is_confirmed());
    for datagram in &mut to_client {
        assert_eq!(pair.client.handle_datagram(pair.now, datagram), Ok(false));
    }
    for datagram in &mut to_server {
        assert_eq!(pair.server.handle_datagram(pair.now, datagram), Ok(false));
    }
}
