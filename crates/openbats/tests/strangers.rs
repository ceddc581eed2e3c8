//! What peers cost of whom the application does not know yet whom it has before it.

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
    let server = ServerOptions::new(identity).modes(MODES).stranger_budget(BUDGET);
    let server =
        Endpoint::builder().bind(([127, 0, 0, 1], 0).into()).server(server).start().unwrap();
    let client = Endpoint::builder().start().unwrap();
    let near = client.connect(server.local_addr(), "localhost", options);
    let near = near.wait_for(LIMIT).unwrap().unwrap();
    let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
    (server, client, near, far)
}

/// Sends without end, in whole messages or in parts of one; how it ended.
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
fn a_stranger_that_sends_much_is_shown_the_door_in_every_mode() {
    for mode in MODES {
        for length in [1_000, 8_000_000] {
            let (_server, _client, near, far) = pair(mode);
            let reason = flood(&near, length).expect("it is closed");
            let words = reason.to_string();
            assert!(words.contains("more than a stranger may send"), "{mode:?} {length}: {words}");
            assert_eq!(far.close_reason(), Some(CloseReason::Local), "{mode:?} {length}");
            // It held what had come in at once beyond its budget, and no more; where messages may be
            // lost, the first part of one makes room for all of it.
            let held = far.stats().receive_buffer_bytes;
            let most = if mode.is_reliable() { 2_000_000 } else { length as u64 + 2_000_000 };
            assert!(held < most, "{mode:?} {length}: {held}");
        }
    }
}

#[test]
fn a_peer_that_is_vouched_for_may_fill_its_budget() {
    for mode in MODES.into_iter().filter(|mode| mode.is_reliable()) {
        let (_server, _client, near, far) = pair(mode);
        // What says who it is fits.
        near.send(bytes(1_000)).wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), bytes(1_000));
        far.trust_peer();
        far.trust_peer();
        for _ in 0..3 {
            near.send(bytes(2_000_000)).wait_for(LIMIT).unwrap().unwrap();
        }
        // Nobody takes it meanwhile.
        let is_there = || far.stats().receive_buffer_bytes > 2 * 2_000_000;
        let came = (0..2_000).any(|_| {
            thread::sleep(Duration::from_millis(5));
            is_there()
        });
        assert!(came && far.close_reason().is_none(), "{mode:?}: {:?}", far.stats());
        for _ in 0..3 {
            assert!(far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap() == bytes(2_000_000));
        }
    }
}

/// Without a budget for strangers nothing is different for them.
#[test]
fn without_the_option_nobody_is_a_stranger() {
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
