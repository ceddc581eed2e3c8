//! Limits of the memory that untrusted peers can use.

use std::thread;
use std::time::Duration;

use openbats::{
    ClientOptions, CloseReason, Connection, Endpoint, Identity, Mode, ServerOptions,
    TransportConfig, Trust, Wait,
};

const LIMIT: Duration = Duration::from_secs(20);
const BUDGET: usize = 100_000;
const MODES: [Mode; 6] =
    [Mode::Btp, Mode::Brtp, Mode::Brctp, Mode::Transparent, Mode::Tcp, Mode::Quic];

fn pair(mode: Mode) -> (Endpoint, Endpoint, Connection, Connection) {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let options = ClientOptions::new(Trust::fingerprint(identity.fingerprint())).mode(mode);
    let server = ServerOptions::new(identity).modes(MODES).untrusted_peer_budget(BUDGET);
    let server =
        Endpoint::builder().bind(([127, 0, 0, 1], 0).into()).server(server).start().unwrap();
    let client = Endpoint::builder().start().unwrap();
    let near = client.connect(server.local_addr(), "localhost", options);
    let near = near.wait_for(LIMIT).unwrap().unwrap();
    let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
    (server, client, near, far)
}

/// Sends until the connection closes, in complete messages or parts of one; returns the reason.
fn flood(near: &Connection, length: usize) -> Option<CloseReason> {
    let message = bytes(length);
    for _ in 0..2_000 {
        let _ = near.try_send_within(message.clone(), LIMIT);
        if let Some(reason) = near.close_reason() {
            return Some(reason);
        }
        thread::sleep(Duration::from_millis(5));
    }
    None
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|place| (place * 31 + place / 253) as u8).collect()
}

#[test]
fn untrusted_peers_beyond_their_budget_are_closed_in_every_mode() {
    for mode in MODES {
        for length in [1_000, 8_000_000] {
            let (_server, _client, near, far) = pair(mode);
            let reason = flood(&near, length).expect("the connection is closed");
            let text = reason.to_string();
            assert!(
                text.contains("receive limit of an untrusted peer exceeded"),
                "{mode:?} {length}: {text}"
            );
            assert_eq!(far.close_reason(), Some(CloseReason::Local), "{mode:?} {length}");
            // The receiver may hold data that arrived at once beyond the budget, and no more. In
            // modes with losses the first part of a message allocates space for the whole message.
            let held = far.stats().buffers.receive_bytes;
            let limit = if mode.is_reliable() { 2_000_000 } else { length as u64 + 2_000_000 };
            assert!(held < limit, "{mode:?} {length}: {held}");
        }
    }
}

#[test]
fn trusted_peers_may_use_the_whole_receive_budget() {
    for mode in MODES.into_iter().filter(|mode| mode.is_reliable()) {
        let (_server, _client, near, far) = pair(mode);
        // A message that identifies the peer is within the limit.
        near.send(bytes(1_000)).wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), bytes(1_000));
        far.trust_peer();
        far.trust_peer();
        for _ in 0..3 {
            near.send(bytes(2_000_000)).wait_for(LIMIT).unwrap().unwrap();
        }
        // The application takes no messages meanwhile.
        let is_received = || far.stats().buffers.receive_bytes > 2 * 2_000_000;
        let arrived = (0..2_000).any(|_| {
            thread::sleep(Duration::from_millis(5));
            is_received()
        });
        assert!(arrived && far.close_reason().is_none(), "{mode:?}: {:?}", far.stats());
        for _ in 0..3 {
            assert!(far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap() == bytes(2_000_000));
        }
    }
}

/// Without an untrusted-peer budget every peer has the whole receive budget.
#[test]
fn without_the_option_untrusted_peers_are_not_limited() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let options = ClientOptions::new(Trust::fingerprint(identity.fingerprint()))
        .transport(TransportConfig::default());
    let server = Endpoint::builder()
        .bind(([127, 0, 0, 1], 0).into())
        .server(ServerOptions::new(identity))
        .start()
        .unwrap();
    let client = Endpoint::builder().start().unwrap();
    let near = client.connect(server.local_addr(), "localhost", options);
    let near = near.wait_for(LIMIT).unwrap().unwrap();
    let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
    near.send(bytes(2_000_000)).wait_for(LIMIT).unwrap().unwrap();
    assert!(far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap() == bytes(2_000_000));
}
