//! Sessions without packets: what becomes of a first message whose ticket was tampered with.

use core::time::Duration;
use std::sync::Arc;

use bats_types::Timestamp;
use rustls::server::StoresServerSessions as _;

use super::session::{ClientTls, ServerTls, Session};
use super::tickets::MAX_SESSIONS;
use super::{SessionStore, fingerprint, generate_identity};
use crate::config::{
    ClientConfig, Mode, PeerTrust, Resumption, Security, ServerConfig, TransportConfig,
};

const NOW: Timestamp = Timestamp::from_millis(5);
/// Behind the ticket: its age, and the binders with their lengths (SHA-384).
const BEHIND_TICKET: usize = 4 + 2 + 1 + 48;
const TICKET: usize = 32;

struct Ends {
    server: ServerTls,
    config: ClientConfig,
    store: SessionStore,
}

impl Ends {
    fn new() -> Self {
        let identity = generate_identity(&["server".to_owned()]).unwrap();
        let trust = PeerTrust::Fingerprints(vec![fingerprint(&identity.certificate_chain[0])]);
        let transport =
            TransportConfig { mode: Mode::Btp, early_data: true, ..TransportConfig::default() };
        let server = ServerConfig {
            identity,
            transport: Arc::new(transport.clone()),
            retry_threshold: 1,
            max_connections: 1,
        };
        let store = SessionStore::new(8);
        let resumption = Some(Resumption { store: store.clone(), unix_time: Duration::ZERO });
        let transport = Arc::new(TransportConfig { resumption, ..transport });
        Self {
            server: ServerTls::new(&server, Security::Tls).unwrap(),
            config: ClientConfig { trust, identity: None, transport },
            store,
        }
    }

    fn begin(&self) -> (Session, Session) {
        let remote = "10.0.0.1:1".parse().unwrap();
        let tls = ClientTls::new(NOW, &self.config, remote, "server", Security::Tls).unwrap();
        (tls.start(vec![1, 2]).unwrap(), self.server.start(vec![3, 4, 5], true).unwrap())
    }
}

/// What a session has to say, level by level.
fn say(session: &mut Session) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    loop {
        let mut part = Vec::new();
        let unlocked = session.write(&mut part);
        let nothing = part.is_empty() && unlocked.is_none();
        parts.extend((!part.is_empty()).then_some(part));
        if nothing {
            return parts;
        }
    }
}

/// Hands everything over until nobody has more to say; false if somebody does not accept it.
fn finish(client: &mut Session, server: &mut Session) -> bool {
    for _ in 0..4 {
        for part in say(server) {
            if client.read(NOW, &part).is_err() {
                return false;
            }
        }
        for part in say(client) {
            if server.read(NOW, &part).is_err() {
                return false;
            }
        }
    }
    client.is_done() && server.is_done()
}

fn meet(ends: &Ends, tamper: impl FnOnce(&mut Vec<u8>)) -> (bool, Session, Session) {
    let (mut client, mut server) = ends.begin();
    let mut hello = say(&mut client).concat();
    tamper(&mut hello);
    let read = server.read(NOW, &hello).is_ok();
    let done = read && finish(&mut client, &mut server);
    (done, client, server)
}

#[test]
fn a_ticket_is_taken_as_it_is_or_not_at_all() {
    let ends = Ends::new();
    let (done, client, server) = meet(&ends, |_| {});
    assert!(done && !client.is_resumed() && ends.store.len() == 2);
    assert!(server.early_keys().is_none());

    let (done, client, server) = meet(&ends, |_| {});
    assert!(done && client.is_resumed() && server.is_resumed());
    assert!(client.early_keys().is_some() && server.early_keys().is_some());
    assert!(client.is_early_accepted());

    // Garbled: of the ticket, of its age, of the binder, and of what the binder stands for.
    for (from_end, is_ticket) in [
        (BEHIND_TICKET + TICKET, true),
        (BEHIND_TICKET + TICKET / 2, true),
        (BEHIND_TICKET + 1, true),
        (BEHIND_TICKET - 1, false),
        (40, false),
        (1, false),
    ] {
        ends.store.clear();
        assert!(meet(&ends, |_| {}).0);
        let (done, client, server) = meet(&ends, |hello| {
            let at = hello.len() - from_end;
            hello[at] ^= 1;
        });
        assert!(!done && server.early_keys().is_none(), "{from_end} octets from the end");
        assert!(!client.is_done());
        // An unknown ticket is none; a wrong binder is an attack.
        let (mut client, mut server) = ends.begin();
        let mut hello = say(&mut client).concat();
        let at = hello.len() - from_end;
        hello[at] ^= 1;
        assert_eq!(server.read(NOW, &hello).is_ok(), is_ticket, "{from_end} octets from the end");
    }
}

/// A server that does not want early data of a connection goes on without.
#[test]
fn early_data_are_refused_without_harm() {
    let ends = Ends::new();
    assert!(meet(&ends, |_| {}).0);
    let (mut client, _) = ends.begin();
    let mut server = ends.server.start(vec![6], false).unwrap();
    server.read(NOW, &say(&mut client).concat()).unwrap();
    assert!(server.early_keys().is_none());
    // Until the handshake is done the client knows what the server said before.
    assert_eq!(client.peer_parameters(), Some(&[3, 4, 5][..]));
    assert!(finish(&mut client, &mut server));
    assert_eq!(client.peer_parameters(), Some(&[6][..]));
    assert!(client.is_resumed() && !client.is_early_accepted());
}

#[test]
fn sessions_that_made_room_are_counted() {
    let Ends { server, .. } = Ends::new();
    let ServerTls::Tls(parts) = &server else { panic!("real TLS") };
    for number in 0..MAX_SESSIONS {
        assert!(parts.sessions.put(number.to_be_bytes().to_vec(), vec![7]));
    }
    assert_eq!(server.sessions_displaced(), 0, "at the limit");
    assert!(parts.sessions.put(vec![1], vec![7]) && parts.sessions.put(vec![2], vec![7]));
    assert_eq!(server.sessions_displaced(), 2, "beyond it");
}
