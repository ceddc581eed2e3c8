//! The TLS session is released after the handshake, and a peer cannot make it grow. Real TLS.

use core::time::Duration;

use bats_types::Timestamp;

use super::key_discard_tests::Pair;
use super::machine::Handshake;
use crate::config::{Resumption, TransportConfig};
use crate::crypto::{SessionStore, TAG_LEN};

const NOW: Timestamp = Timestamp::from_millis(90_000);
/// Types of TLS messages (RFC 8446, section 4).
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
/// What an end that has released its session holds on the heap: secrets, names and flags.
const RELEASED: i64 = 1_024;

/// A complete handshake of a client that keeps sessions in the store; confirmed at both ends.
fn confirmed() -> (Pair, SessionStore) {
    let store = SessionStore::new(100);
    let resumption =
        Resumption { store: store.clone(), unix_time: Duration::from_secs(1_790_000_000) };
    let transport = TransportConfig { resumption: Some(resumption), ..TransportConfig::default() };
    let mut pair = Pair::with_client(transport);
    pair.complete();
    for end in [&mut pair.client, &mut pair.server] {
        assert!(end.take_one_rtt_keys().is_some());
        end.confirm();
    }
    (pair, store)
}

/// Only a session that was not released exports keys.
fn is_released(end: &Handshake) -> bool {
    end.symbol_keys().is_none()
}

fn held(end: Handshake) -> i64 {
    -allocation_counter::measure(|| drop(end)).bytes_current
}

fn ticket(number: u8) -> Vec<u8> {
    let mut body = vec![0, 0, 14, 16, 1, 2, 3, 4];
    body.extend_from_slice(&[1, number]);
    body.extend_from_slice(&[0, 4, 9, 9, 9, number]);
    body.extend_from_slice(&[0, 0]);
    let mut message = vec![NEW_SESSION_TICKET, 0, 0, body.len() as u8];
    message.append(&mut body);
    message
}

fn next_keys_match(pair: &mut Pair) -> bool {
    let (seal, _) = pair.client.next_one_rtt_keys().unwrap();
    let (_, open) = pair.server.next_one_rtt_keys().unwrap();
    let mut packet = b"data".to_vec();
    packet.resize(4 + TAG_LEN, 0);
    seal.seal_in_place(7, b"header", &mut packet, 4);
    open.open_in_place(7, b"header", &mut packet) == Some(4)
}

#[test]
fn server_releases_its_session_when_the_handshake_is_confirmed() {
    let (mut pair, _) = confirmed();
    assert!(!is_released(&pair.server) && next_keys_match(&mut pair));
    let print = pair.server.peer_fingerprint();
    pair.server.release_session(false);
    assert!(is_released(&pair.server) && pair.server.is_complete() && !pair.server.is_resumed());
    assert_eq!(pair.server.peer_fingerprint(), print);
    assert!((0..3).all(|_| next_keys_match(&mut pair)), "key updates go on");
    assert!(!pair.server.post_handshake_data().is_empty(), "tickets may have to be sent again");
    pair.server.on_post_handshake_acknowledged();
    assert!(pair.server.post_handshake_data().is_empty());
    let held = held(pair.server);
    assert!(held <= RELEASED, "{held}");
}

#[test]
fn client_releases_its_session_when_it_has_its_tickets() {
    let (mut pair, store) = confirmed();
    let print = pair.client.peer_fingerprint();
    assert!(print.is_some());
    pair.client.release_session(false);
    assert!(!is_released(&pair.client), "it awaits tickets");
    let tickets = pair.server.post_handshake_data().to_vec();
    let half = tickets.len() / 2 + 1;
    pair.client.read_post_handshake(NOW, half as u64, &tickets[half..]);
    pair.client.release_session(false);
    assert!(!is_released(&pair.client) && store.is_empty());
    pair.client.read_post_handshake(NOW, 0, &tickets[..half]);
    pair.client.release_session(false);
    assert!(is_released(&pair.client) && store.len() == 2);
    assert_eq!(pair.client.peer_fingerprint(), print);
    assert!((0..3).all(|_| next_keys_match(&mut pair)), "key updates go on");
    let held = held(pair.client);
    assert!(held <= RELEASED, "{held}");
}

/// A server that sends no tickets does not keep the client's session alive, and neither does one
/// that never ends a message.
#[test]
fn idle_client_awaits_no_tickets() {
    for data in [&[][..], &[NEW_SESSION_TICKET, 0, 255, 255]] {
        let (mut pair, store) = confirmed();
        for offset in (0..200).map(|part| part * 100) {
            pair.client.read_post_handshake(NOW, offset, data);
            pair.client.read_post_handshake(NOW, offset + 50, &data.repeat(12));
        }
        pair.client.release_session(false);
        assert!(!is_released(&pair.client));
        pair.client.release_session(true);
        assert!(is_released(&pair.client) && store.is_empty());
        let held = held(pair.client);
        assert!(held <= RELEASED, "{held}");
    }
}

#[test]
fn session_is_not_released_before_the_handshake_is_confirmed() {
    let mut pair = Pair::with_client(TransportConfig::default());
    pair.client.release_session(true);
    pair.server.release_session(true);
    pair.complete();
    pair.client.release_session(true);
    assert!(!is_released(&pair.client), "HANDSHAKE_DONE has not arrived");
    pair.client.confirm();
    pair.client.release_session(false);
    assert!(is_released(&pair.client), "without a store there is nothing to wait for");
}

/// Of a flood of tickets the client takes as many as it requested.
#[test]
fn flood_of_session_tickets_is_discarded() {
    let (mut pair, store) = confirmed();
    let flood: Vec<u8> = (0..200).flat_map(ticket).collect();
    for part in 0..1_000 {
        let offset = part * flood.len() as u64;
        pair.client.read_post_handshake(NOW, offset, &flood);
        pair.client.release_session(false);
    }
    assert_eq!(store.len(), 2);
    assert!(is_released(&pair.client));
    let held = held(pair.client);
    assert!(held <= RELEASED, "{held}");
}

/// TLS messages must not update keys (RFC 9001, section 6). Neither end takes other messages than
/// tickets, and they leave no memory and no other keys.
#[test]
fn key_updates_and_other_messages_of_tls_change_nothing() {
    for message in [&[KEY_UPDATE, 0, 0, 1, 1][..], &[13, 0, 0, 3, 0, 0, 0], &[255, 0, 0, 0]] {
        let (mut pair, store) = confirmed();
        for part in 0..100 {
            let offset = part * message.len() as u64;
            pair.client.read_post_handshake(NOW, offset, message);
            pair.server.read_post_handshake(NOW, offset, message);
        }
        pair.client.release_session(false);
        pair.server.release_session(false);
        assert!(is_released(&pair.client) && is_released(&pair.server) && store.is_empty());
        assert!(next_keys_match(&mut pair));
        pair.server.on_post_handshake_acknowledged();
        for held in [held(pair.client), held(pair.server)] {
            assert!(held <= RELEASED, "{held}");
        }
    }
}
