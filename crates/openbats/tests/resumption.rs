//! Session resumption and early data over real sockets on loopback.

use std::thread;
use std::time::Duration;

use openbats::{
    ClientOptions, ConnectError, Connection, Endpoint, Identity, Mode, ServerOptions, SessionStore,
    StartError, Trust, Wait,
};

const LIMIT: Duration = Duration::from_secs(20);

fn server(identity: &Identity, early_data: bool) -> Endpoint {
    let options = ServerOptions::new(identity.clone()).modes([Mode::Brtp, Mode::Btp]);
    let options = if early_data { options.early_data() } else { options };
    Endpoint::builder().bind("127.0.0.1:0".parse().unwrap()).server(options).start().unwrap()
}

fn options(identity: &Identity, store: &SessionStore, mode: Mode) -> ClientOptions {
    let trust = Trust::fingerprint(identity.fingerprint());
    ClientOptions::new(trust).sessions(store).mode(mode).deadline(LIMIT)
}

/// Accepts the next connection.
fn accept(server: &Endpoint) -> Connection {
    server.accept().wait_for(LIMIT).unwrap().unwrap()
}

/// Connects with early `messages` and checks that each arrives once, in any order; returns both
/// ends.
fn resume(
    client: &Endpoint,
    server: &Endpoint,
    options: ClientOptions,
    messages: &[Vec<u8>],
) -> (Connection, Connection) {
    let near = client
        .connect_early(server.local_addr(), "localhost", options, messages.to_vec())
        .wait_for(LIMIT)
        .unwrap()
        .unwrap();
    let far = accept(server);
    let mut received: Vec<Vec<u8>> = messages
        .iter()
        .map(|_| far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap().to_vec())
        .collect();
    received.sort();
    assert_eq!(received, messages, "each once");
    (near, far)
}

/// Waits for the session tickets of the server, then closes the connection.
fn close_with_ticket(connection: Connection, store: &SessionStore) {
    for _ in 0..4_000 {
        if !store.is_empty() {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    assert!(!store.is_empty(), "no session ticket was received");
    connection.close(0, "");
}

#[test]
fn resumed_connections_send_early_messages() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let server = server(&identity, true);
    let client = Endpoint::builder().start().unwrap();
    let store = SessionStore::new(16);
    let options = || options(&identity, &store, Mode::Btp).early_data();
    for number in 0..5_u64 {
        let messages = [vec![number as u8; 512], vec![100; 100]];
        let (near, far) = resume(&client, &server, options(), &messages);
        let stats = near.stats();
        assert_eq!((stats.resumed, stats.early.messages), (number > 0, 2 * u64::from(number > 0)));
        assert!(stats.early.messages_accepted <= 2);
        assert_eq!(near.peer_fingerprint(), Some(identity.fingerprint()));
        // The connection continues as usual.
        far.send("answer").wait_for(LIMIT).unwrap().unwrap();
        let reply = near.recv().wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(reply.as_deref(), Some(&b"answer"[..]));
        near.send("more").wait_for(LIMIT).unwrap().unwrap();
        let more = far.recv().wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(more.as_deref(), Some(&b"more"[..]));
        close_with_ticket(near, &store);
    }
}

#[test]
fn messages_beyond_the_first_flight_follow() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let store = SessionStore::new(16);
    let client = Endpoint::builder().start().unwrap();
    for early_data in [true, false] {
        let server = server(&identity, early_data);
        let options = || options(&identity, &store, Mode::Btp).early_data();
        let first = client.connect(server.local_addr(), "localhost", options());
        let first = first.wait_for(LIMIT).unwrap().unwrap();
        store.clear();
        // The tickets come from the second connection.
        let second = client.connect(server.local_addr(), "localhost", options());
        close_with_ticket(second.wait_for(LIMIT).unwrap().unwrap(), &store);
        first.close(0, "");
        let (_, _) = (accept(&server), accept(&server));
        let messages: Vec<Vec<u8>> = (0..40).map(|number| vec![number; 400]).collect();
        let (near, _far) = resume(&client, &server, options(), &messages);
        let stats = near.stats();
        assert!(stats.resumed);
        assert_eq!(stats.early.messages > 0, early_data, "{}", stats.early.messages);
        assert!(stats.early.messages < 40);
    }
}

#[test]
fn other_modes_resume_without_early_data() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let server = server(&identity, true);
    let client = Endpoint::builder().start().unwrap();
    let store = SessionStore::new(16);
    let to = server.local_addr();
    for round in 0..3 {
        let options = options(&identity, &store, Mode::Brtp);
        let near = client.connect(to, "localhost", options).wait_for(LIMIT).unwrap().unwrap();
        let far = accept(&server);
        near.send("hello").wait_for(LIMIT).unwrap().unwrap();
        near.finish().wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(far.recv().wait_for(LIMIT).unwrap().unwrap().as_deref(), Some(&b"hello"[..]));
        assert_eq!((near.stats().resumed, far.stats().resumed), (round > 0, round > 0));
        close_with_ticket(near, &store);
    }
    for mode in [Mode::Brtp, Mode::Tcp, Mode::Udp] {
        let refused = client
            .connect_early(to, "localhost", options(&identity, &store, mode).early_data(), ["x"])
            .wait_for(LIMIT)
            .unwrap();
        assert!(matches!(refused, Err(ConnectError::Configuration(_))), "{mode:?}");
    }
    let no_btp = Endpoint::builder().server(ServerOptions::new(identity).early_data()).start();
    assert!(matches!(no_btp, Err(StartError::Configuration(_))));
}
