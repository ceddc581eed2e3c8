//! Tests of TLS sessions without packets: tampered tickets, refused early data, the stand-in.

use core::time::Duration;
use std::sync::Arc;

use bats_types::Timestamp;
use rustls::server::StoresServerSessions as _;

use super::new_keys::{CryptoError, NewKeys};
use super::plain_session::plain_keys;
use super::session::{ClientTls, InitialSecrets, ServerTls, Session, initial_keys};
use super::symbol::SymbolKeys;
use super::tickets::MAX_SESSIONS;
use super::{
    DirectionalKeys, Keys, PacketKey, PlainIdentity, SessionStore, TAG_LEN, fingerprint,
    generate_identity,
};
use crate::config::{
    ClientConfig, Identity, Mode, PeerTrust, Resumption, Security, ServerConfig, TransportConfig,
};
use crate::remote::Remote;

pub(super) const NOW: Timestamp = Timestamp::from_millis(5);
/// Bytes after the ticket: its age, and the binders with their lengths (SHA-384).
const BYTES_AFTER_TICKET: usize = 4 + 2 + 1 + 48;
const TICKET: usize = 32;

pub(super) struct Peers {
    server: ServerTls,
    config: ClientConfig,
    pub(super) store: SessionStore,
}

impl Peers {
    pub(super) fn new() -> Self {
        Self::with_clients(None, None)
    }

    /// A server that trusts such clients, and a client with this identity.
    pub(super) fn with_clients(
        client_trust: Option<PeerTrust>,
        client_identity: Option<Identity>,
    ) -> Self {
        let identity = generate_identity(&["server".to_owned()]).unwrap();
        let trust = PeerTrust::Fingerprints(vec![fingerprint(&identity.certificate_chain[0])]);
        let transport =
            TransportConfig { mode: Mode::Btp, early_data: true, ..TransportConfig::default() };
        let server = ServerConfig {
            identity,
            transport: Arc::new(transport.clone()),
            client_trust,
            retry_threshold: 1,
            max_connections: 1,
        };
        let store = SessionStore::new(8);
        let resumption = Some(Resumption { store: store.clone(), unix_time: Duration::ZERO });
        let transport = Arc::new(TransportConfig { resumption, ..transport });
        Self {
            server: ServerTls::new(&server, Security::Tls).unwrap(),
            config: ClientConfig { trust, identity: client_identity, transport },
            store,
        }
    }

    pub(super) fn begin(&self) -> (Session, Session) {
        let remote = Remote::Network("10.0.0.1:1".parse().unwrap());
        let tls = ClientTls::new(NOW, &self.config, remote, "server", Security::Tls).unwrap();
        (tls.start(vec![1, 2]).unwrap(), self.server.start(vec![3, 4, 5], true, None).unwrap())
    }
}

/// Takes all data that a session wants to send, level by level.
fn flights_of(session: &mut Session) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    loop {
        let mut part = Vec::new();
        let new_keys = session.write(&mut part);
        let nothing = part.is_empty() && new_keys.is_none();
        parts.extend((!part.is_empty()).then_some(part));
        if nothing {
            return parts;
        }
    }
}

/// Gives data to a session message by message, as a connection does.
fn read_messages(session: &mut Session, mut data: &[u8]) -> Result<(), CryptoError> {
    while !data.is_empty() {
        let (message, behind) = data.split_at(session.next_message(data));
        assert!(!message.is_empty(), "flights end with a whole message");
        session.read(NOW, message)?;
        data = behind;
    }
    Ok(())
}

/// Exchanges all flights, the client's first; fails if one end rejects the other's data.
pub(super) fn exchange(client: &mut Session, server: &mut Session) -> Result<(), CryptoError> {
    for _ in 0..4 {
        for part in flights_of(client) {
            read_messages(server, &part)?;
        }
        for part in flights_of(server) {
            read_messages(client, &part)?;
        }
    }
    Ok(())
}

/// Exchanges all flights; false if one end rejects the other's data or is not complete.
fn finish(client: &mut Session, server: &mut Session) -> bool {
    exchange(client, server).is_ok() && client.is_done() && server.is_done()
}

pub(super) fn handshake_with(
    peers: &Peers,
    tamper: impl FnOnce(&mut Vec<u8>),
) -> (bool, Session, Session) {
    let (mut client, mut server) = peers.begin();
    let mut hello = flights_of(&mut client).concat();
    tamper(&mut hello);
    let read = server.read(NOW, &hello).is_ok();
    let done = read && finish(&mut client, &mut server);
    (done, client, server)
}

#[test]
fn tampered_ticket_prevents_resumption() {
    let peers = Peers::new();
    let (done, client, server) = handshake_with(&peers, |_| {});
    assert!(done && !client.is_resumed() && peers.store.len() == 2 && !peers.store.is_empty());
    assert!(server.early_keys().is_none());

    let (done, client, server) = handshake_with(&peers, |_| {});
    assert!(done && client.is_resumed() && server.is_resumed());
    assert!(client.early_keys().is_some() && server.early_keys().is_some());
    assert!(client.is_early_accepted());

    // Tamper with the ticket, its age, the binder, and the data that the binder covers.
    for (from_end, is_ticket) in [
        (BYTES_AFTER_TICKET + TICKET, true),
        (BYTES_AFTER_TICKET + TICKET / 2, true),
        (BYTES_AFTER_TICKET + 1, true),
        (BYTES_AFTER_TICKET - 1, false),
        (40, false),
        (1, false),
    ] {
        peers.store.clear();
        assert!(peers.store.is_empty());
        assert!(handshake_with(&peers, |_| {}).0);
        let (done, client, server) = handshake_with(&peers, |hello| {
            let at = hello.len() - from_end;
            hello[at] ^= 1;
        });
        assert!(!done && server.early_keys().is_none(), "{from_end} bytes from the end");
        assert!(!client.is_done());
        // An unknown ticket is ignored; a wrong binder is an error.
        let (mut client, mut server) = peers.begin();
        let mut hello = flights_of(&mut client).concat();
        let at = hello.len() - from_end;
        hello[at] ^= 1;
        assert_eq!(server.read(NOW, &hello).is_ok(), is_ticket, "{from_end} bytes from the end");
    }
}

/// A server can refuse early data and still resume the session.
#[test]
fn session_is_resumed_when_early_data_is_refused() {
    let peers = Peers::new();
    assert!(handshake_with(&peers, |_| {}).0);
    let (mut client, _) = peers.begin();
    let mut server = peers.server.start(vec![6], false, None).unwrap();
    server.read(NOW, &flights_of(&mut client).concat()).unwrap();
    assert!(server.early_keys().is_none());
    // Until the handshake is complete the client has the server's earlier parameters.
    assert_eq!(client.peer_parameters(), Some(&[3, 4, 5][..]));
    assert!(finish(&mut client, &mut server));
    assert_eq!(client.peer_parameters(), Some(&[6][..]));
    assert!(client.is_resumed() && !client.is_early_accepted());
}

/// Messages of a level that are read together have the effect of those that are read one by one.
#[test]
fn messages_of_a_level_may_be_read_together() {
    let peers = Peers::new();
    for is_resumed in [false, true] {
        let (mut client, mut server) = peers.begin();
        for _ in 0..3 {
            for part in flights_of(&mut client) {
                server.read(NOW, &part).unwrap();
            }
            for part in flights_of(&mut server) {
                client.read(NOW, &part).unwrap();
            }
        }
        assert!(client.is_done() && server.is_done());
        assert_eq!((client.is_resumed(), server.is_resumed()), (is_resumed, is_resumed));
        assert!(peers.store.len() >= 2, "sessions are kept");
    }
}

#[test]
fn session_is_not_released_before_its_handshake_is_complete() {
    let (mut client, mut server) = Peers::new().begin();
    for part in flights_of(&mut client) {
        read_messages(&mut server, &part).unwrap();
    }
    let flights = flights_of(&mut server);
    // The server has 1-RTT keys, but the client's Finished message is missing.
    for session in [&mut client, &mut server] {
        session.release();
        assert!(!session.is_done());
    }
    for part in flights {
        read_messages(&mut client, &part).unwrap();
    }
    assert!(finish(&mut client, &mut server));
    for session in [&mut client, &mut server] {
        assert!(session.symbol_keys().is_some());
        session.release();
        assert!(session.is_done() && session.symbol_keys().is_none());
    }
    assert!(opens(&client.next_keys().unwrap().0, &server.next_keys().unwrap().1));
}

#[test]
fn evicted_sessions_are_counted() {
    let Peers { server, .. } = Peers::new();
    let ServerTls::Tls(parts) = &server else { panic!("real TLS") };
    for number in 0..MAX_SESSIONS {
        assert!(parts.sessions.put(number.to_be_bytes().to_vec(), vec![7]));
    }
    assert_eq!(server.sessions_displaced(), 0, "at the limit");
    assert!(parts.sessions.put(vec![1], vec![7]) && parts.sessions.put(vec![2], vec![7]));
    assert_eq!(server.sessions_displaced(), 2, "beyond it");
}

/// A sealed payload.
fn sealed(key: &PacketKey) -> Vec<u8> {
    let mut packet = vec![7; 3 + TAG_LEN];
    key.seal_in_place(5, b"header", &mut packet, 3);
    packet
}

/// Whether `open` opens what `seal` has sealed.
fn opens(seal: &PacketKey, open: &PacketKey) -> bool {
    let opened = open.open_in_place(5, b"header", &mut sealed(seal));
    assert!(opened.is_none_or(|len| len == 3));
    opened.is_some()
}

fn match_each_other(client: &Keys, server: &Keys) -> bool {
    opens(&client.local.packet, &server.remote.packet)
        && opens(&server.local.packet, &client.remote.packet)
        && !opens(&client.local.packet, &client.remote.packet)
}

/// The stand-in's handshake: flights as long as those of TLS, which may arrive in pieces.
#[test]
fn stand_in_completes_a_handshake_like_tls() {
    fn write(session: &mut Session) -> (Vec<u8>, Option<NewKeys>) {
        let mut out = Vec::new();
        let new_keys = session.write(&mut out);
        (out, new_keys)
    }

    /// Delivers a flight and checks that nothing happens before its last byte.
    fn read(session: &mut Session, flight: &[u8]) {
        assert!(!session.is_done() && session.symbol_keys().is_none());
        session.release();
        let with_more = [flight, &[0; 9]].concat();
        assert_eq!(session.next_message(&with_more), flight.len(), "no part of the next flight");
        let (last, before) = flight.split_last().unwrap();
        session.read(NOW, before).unwrap();
        assert_eq!(session.next_message(&[0; 9]), 1);
        let (out, new_keys) = write(session);
        assert!(out.is_empty() && new_keys.is_none() && !session.is_done());
        session.read(NOW, &[*last]).unwrap();
    }

    let mut client = ClientTls::Plain(PlainIdentity::new(None, None)).start(vec![1, 2]).unwrap();
    let mut server =
        ServerTls::Plain(PlainIdentity::new(None, None)).start(vec![3], false, None).unwrap();
    let (hello, None) = write(&mut client) else { panic!("no keys yet") };
    assert_eq!((hello.len(), server.peer_parameters()), (280, None));
    read(&mut server, &hello);
    let (hello, Some(NewKeys::Handshake(servers))) = write(&mut server) else { panic!("keys") };
    let (flight, Some(NewKeys::OneRtt(servers_data))) = write(&mut server) else { panic!("keys") };
    assert_eq!((hello.len(), flight.len()), (96, 800));
    read(&mut client, &hello);
    let (nothing, Some(NewKeys::Handshake(clients))) = write(&mut client) else { panic!("keys") };
    assert!(nothing.is_empty());
    read(&mut client, &flight);
    let (finished, Some(NewKeys::OneRtt(clients_data))) = write(&mut client) else {
        panic!("keys")
    };
    assert_eq!(finished.len(), 36);
    read(&mut server, &finished);
    assert!(match_each_other(&clients, &servers));
    assert!(match_each_other(&clients_data, &servers_data));
    assert!(!opens(&clients.local.packet, &servers_data.remote.packet));

    assert!(client.is_done() && server.is_done());
    assert_eq!(client.peer_parameters(), Some(&[3][..]));
    assert_eq!(server.peer_parameters(), Some(&[1, 2][..]));
    assert!(!client.is_resumed() && !client.is_early_accepted());
    assert!(client.peer_fingerprint().is_none() && client.early_keys().is_none());

    let mut content = Vec::new();
    let (mut clients, mut servers) = (client.symbol_keys().unwrap(), server.symbol_keys().unwrap());
    let mut symbol = [0; 40];
    assert!(clients.seal.seal(1, &mut symbol, |bytes| bytes.len()) > 0);
    assert!(servers.open.open(1, &symbol, &mut content));
    assert!(!clients.open.open(1, &symbol, &mut content));
    // The ends have the keys of their sides, which others can compute.
    assert!(SymbolKeys::plain(false).open.open(1, &symbol, &mut content));

    for generation in 1..4 {
        let (seal, open) = client.next_keys().unwrap();
        let (servers_seal, servers_open) = server.next_keys().unwrap();
        assert!(opens(&seal, &servers_open) && opens(&servers_seal, &open));
        assert!(opens(&seal, &plain_keys(8 + generation, false).remote.packet));
    }

    for session in [&mut client, &mut server] {
        session.release();
        assert!(session.is_done() && session.peer_parameters().is_none());
    }
    assert!(opens(&client.next_keys().unwrap().0, &server.next_keys().unwrap().1));
}

#[test]
fn stand_in_rejects_more_data_than_a_handshake() {
    let server =
        || ServerTls::Plain(PlainIdentity::new(None, None)).start(vec![], false, None).unwrap();
    let most = 280 + 96 + 800 + 36;
    assert!(server().read(NOW, &vec![0; most]).is_ok());
    assert!(server().read(NOW, &vec![0; most + 1]).is_err());
    let mut one = server();
    assert!(one.read(NOW, &vec![0; most]).is_ok());
    assert!(one.read(NOW, &[0]).is_err());
    // Parameters longer than the data received.
    assert!(server().read(NOW, &[0xff; 280]).is_err());
}

#[test]
fn stand_in_keys_differ_by_label_and_direction() {
    let mut tags = std::collections::BTreeSet::new();
    for label in 0..20 {
        let Keys { local, remote } = plain_keys(label, true);
        tags.extend([local, remote].map(|DirectionalKeys { packet, .. }| sealed(&packet)));
        assert!(match_each_other(&plain_keys(label, true), &plain_keys(label, false)));
    }
    assert_eq!(tags.len(), 40);
    let Keys { local, .. } = plain_keys(1, true);
    assert_eq!(local.header.mask(&[9; 16]), [0; 5]);
    assert_eq!(local.packet.confidentiality_limit(), 1 << 40);
    assert_eq!(local.packet.integrity_limit(), 1 << 40);
    assert_eq!(local.packet.open_in_place(0, &[], &mut [0; TAG_LEN - 1]), None);
}

/// Samples and masks of RFC 9001, appendices A.2 and A.3, with the five bits of the first byte that
/// are masked in a short header; limits of section 6.6.
#[test]
fn header_masks_match_rfc_9001() {
    let open_keys = |security, is_client| {
        let destination = &[0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];
        let secrets = InitialSecrets { psk: None, destination, source: &[0; 4], salt: &[] };
        initial_keys(security, &secrets, is_client)
    };
    let keys = open_keys(Security::Tls, true).unwrap();
    let sample = 0xd1b1_c98d_d768_9fb8_ec11_d242_b123_dc9b_u128;
    let mask = [0x43 & 0x1f, 0x7b, 0x9a, 0xec, 0x36];
    assert_eq!(keys.local.header.mask(&sample.to_be_bytes()), mask);
    let sample = 0x2cd0_991c_d25b_0aac_406a_5816_b639_4100_u128;
    let mask = [0x2e & 0x1f, 0xc0, 0xd8, 0x35, 0x6a];
    assert_eq!(keys.remote.header.mask(&sample.to_be_bytes()), mask);
    assert_eq!(keys.local.packet.confidentiality_limit(), 1 << 23);
    assert_eq!(keys.local.packet.integrity_limit(), 1 << 52);
    let servers = open_keys(Security::Tls, false).unwrap();
    assert!(match_each_other(&keys, &servers));
    let plain = open_keys(Security::DangerousPlain, true).unwrap();
    assert!(opens(&plain.local.packet, &plain_keys(1, false).remote.packet));
}
