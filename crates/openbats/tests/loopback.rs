//! Connections over real sockets on loopback.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use openbats::{
    ClientOptions, CloseReason, CongestionAlgorithm, ConnectError, Connection, Endpoint, Identity,
    RecvError, SendError, ServerOptions, StartError, TransportConfig, Trust, Wait,
};

const LIMIT: Duration = Duration::from_secs(20);

struct Pair {
    server: Endpoint,
    client: Endpoint,
    near: Connection,
    far: Connection,
}

fn pair_with(bind: &str, transport: TransportConfig) -> Pair {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let trust = Trust::fingerprint(identity.fingerprint());
    let server = Endpoint::builder()
        .bind(bind.parse().unwrap())
        .server(ServerOptions::new(identity).transport(transport.clone()))
        .start()
        .unwrap();
    let client = Endpoint::builder().start().unwrap();
    let mut to = server.local_addr();
    if to.ip().is_unspecified() {
        to.set_ip([127, 0, 0, 1].into());
    }
    let near = client
        .connect(to, "localhost", ClientOptions::new(trust).transport(transport))
        .wait_for(LIMIT)
        .unwrap()
        .unwrap();
    let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
    Pair { server, client, near, far }
}

fn pair() -> Pair {
    pair_with("127.0.0.1:0", TransportConfig::default())
}

/// Bytes that depend on position and message.
fn content(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|x| (x * 31 + x / 251 + number * 7) as u8).collect()
}

#[test]
fn messages_of_all_sizes_arrive_in_both_directions_and_families() {
    let sizes = [0, 1, 100, 1_472, 70_000, 3_000_000];
    for bind in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
        let pair = pair_with(bind, TransportConfig::default());
        thread::scope(|scope| {
            for (from, to) in [(&pair.near, &pair.far), (&pair.far, &pair.near)] {
                scope.spawn(move || {
                    for (number, &size) in sizes.iter().enumerate() {
                        from.send(content(number, size)).wait().unwrap();
                    }
                    from.finish().wait_for(LIMIT).unwrap().unwrap();
                });
                scope.spawn(move || {
                    for (number, &size) in sizes.iter().enumerate() {
                        let message = to.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
                        assert!(message == content(number, size), "{bind}: message {number}");
                    }
                    assert_eq!(to.recv().wait_for(LIMIT).unwrap(), Ok(None), "{bind}");
                });
            }
        });
    }
}

#[test]
fn many_connections_share_an_endpoint() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let options = ClientOptions::new(Trust::fingerprint(identity.fingerprint()));
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse().unwrap())
        .server(ServerOptions::new(identity))
        .start()
        .unwrap();
    let client = Endpoint::builder().start().unwrap();
    thread::scope(|scope| {
        let server = &server;
        scope.spawn(move || {
            for _ in 0..20 {
                let connection = server.accept().wait_for(LIMIT).unwrap().unwrap();
                scope.spawn(move || {
                    while let Some(message) = connection.recv().wait_for(LIMIT).unwrap().unwrap() {
                        connection.send(message).wait().unwrap();
                    }
                    connection.finish().wait_for(LIMIT).unwrap().unwrap();
                });
            }
        });
        for number in 0..20 {
            let (client, options, to) = (&client, options.clone(), server.local_addr());
            scope.spawn(move || {
                let connection =
                    client.connect(to, "localhost", options).wait_for(LIMIT).unwrap().unwrap();
                let message = content(number, 1 + 5_000 * number);
                connection.send(message.clone()).wait().unwrap();
                let echo = connection.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
                assert!(echo == message, "{number}");
                connection.finish().wait_for(LIMIT).unwrap().unwrap();
                assert_eq!(connection.recv().wait_for(LIMIT).unwrap(), Ok(None));
            });
        }
    });
}

#[test]
fn a_slow_reader_blocks_the_sender_within_both_budgets() {
    let transport = TransportConfig {
        send_budget: 1 << 20,
        receive_budget: 2 << 20,
        max_message_size: 1 << 20,
        ..TransportConfig::default()
    };
    let pair = pair_with("127.0.0.1:0", transport);
    let message = content(1, 100_000);
    let mut sent = 0;
    // Send until no message has been accepted for a while.
    let mut refused = 0;
    while refused < 50 {
        match pair.near.try_send(message.clone()) {
            Ok(()) => (sent, refused) = (sent + 1, 0),
            Err(SendError::Blocked(back)) => {
                assert!(back == message);
                refused += 1;
                thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
        assert!(sent <= 40, "{sent} messages were accepted although the receiver reads none");
        assert!(pair.near.stats().buffers.send_bytes <= 1 << 20);
        // A smaller receive budget is raised to four windows.
        assert!(pair.far.stats().buffers.receive_bytes <= 3 << 20);
    }
    for number in 0..sent {
        let received = pair.far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
        assert!(received == message, "{number}");
    }
    assert!(sent >= 20, "{sent}");
    pair.near.send("more").wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(pair.far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), "more");
}

#[test]
fn a_close_reports_the_reason_and_keeps_received_messages() {
    let pair = pair();
    pair.near.send("last message").wait().unwrap();
    pair.near.flush().wait_for(LIMIT).unwrap().unwrap();
    pair.near.close(42, "enough");
    pair.server.idle().wait_for(LIMIT).unwrap();
    pair.client.idle().wait_for(LIMIT).unwrap();
    assert_eq!(pair.near.recv().wait(), Err(RecvError::Closed(CloseReason::Local)));
    assert_eq!(pair.near.send("x").wait(), Err(SendError::Closed(CloseReason::Local)));
    let reason = CloseReason::Peer { code: 42, reason: "enough".into() };
    assert_eq!(pair.far.recv().wait().unwrap().unwrap(), "last message");
    assert_eq!(pair.far.recv().wait(), Err(RecvError::Closed(reason.clone())));
    assert_eq!(pair.far.close_reason(), Some(reason.clone()));
    assert_eq!(pair.far.finish().wait(), Err(SendError::Closed(reason)));
    assert!(pair.far.stats().messages.received == 1, "the final statistics remain");
}

#[test]
fn dropping_the_last_handle_closes_the_connection() {
    let pair = pair();
    let other = pair.near.clone();
    drop(pair.near);
    other.send("still here").wait().unwrap();
    assert_eq!(pair.far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), "still here");
    drop(other);
    let reason = CloseReason::Peer { code: 0, reason: String::new() };
    assert_eq!(pair.far.recv().wait_for(LIMIT).unwrap(), Err(RecvError::Closed(reason)));
}

#[test]
fn an_endpoint_accepts_nothing_after_shutdown() {
    let pair = pair();
    pair.server.shut_down(7, "maintenance");
    let reason = CloseReason::Peer { code: 7, reason: "maintenance".into() };
    assert_eq!(pair.near.recv().wait_for(LIMIT).unwrap(), Err(RecvError::Closed(reason)));
    let accepted = pair.server.accept().wait_for(LIMIT).unwrap();
    assert_eq!(accepted.err(), Some(ConnectError::EndpointClosed));
    pair.server.idle().wait_for(LIMIT).unwrap();
}

#[test]
fn a_server_with_another_certificate_is_refused() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let other = Identity::generate(&["localhost"]).unwrap();
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse().unwrap())
        .server(ServerOptions::new(identity))
        .start()
        .unwrap();
    let client = Endpoint::builder().start().unwrap();
    let options = ClientOptions::new(Trust::fingerprint(other.fingerprint()));
    let error = client
        .connect(server.local_addr(), "localhost", options)
        .wait_for(LIMIT)
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, ConnectError::Closed(CloseReason::Handshake(_))), "{error}");
}

#[test]
fn unusable_addresses_and_names_are_refused_at_once() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = Endpoint::builder().bind(address).start().unwrap_err();
    assert!(matches!(error, StartError::Bind { .. }), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");

    let any = Trust::dangerous_any();
    let v4 = Endpoint::builder().bind("127.0.0.1:0".parse().unwrap()).start().unwrap();
    let to: SocketAddr = "[::1]:9".parse().unwrap();
    let error = v4.connect(to, "x", ClientOptions::new(any.clone())).wait().unwrap_err();
    assert!(matches!(error, ConnectError::Family { .. }), "{error}");
    let error = v4.connect(address, "not a name!", ClientOptions::new(any)).wait().unwrap_err();
    assert_eq!(error, ConnectError::ServerName("not a name!".into()));
}

#[test]
fn a_connection_attempt_can_be_abandoned() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = Endpoint::builder().start().unwrap();
    let options = ClientOptions::new(Trust::dangerous_any());
    let connect = client.connect(silent.local_addr().unwrap(), "x", options);
    assert!(connect.wait_for(Duration::from_millis(300)).is_err());
    // The dropped future has closed the connection, so that the endpoint becomes idle.
    client.idle().wait_for(LIMIT).unwrap();
}

#[test]
fn the_fixed_rate_is_not_exceeded() {
    let transport = TransportConfig {
        congestion: CongestionAlgorithm::FixedRate { bits_per_second: 20_000_000 },
        ..TransportConfig::default()
    };
    let pair = pair_with("127.0.0.1:0", transport);
    pair.near.send(content(0, 1_000_000)).wait().unwrap();
    pair.near.finish().wait_for(LIMIT).unwrap().unwrap();
    let stats = pair.near.stats();
    let seconds = (stats.time - stats.established.unwrap()).as_secs_f64();
    // 8 Mbit at 20 Mbit/s. A slow machine may take longer, but no machine less.
    assert!(seconds > 0.37, "{seconds}");
    assert!(pair.far.recv().wait().unwrap().unwrap() == content(0, 1_000_000));
}

#[test]
fn writable_completes_when_the_send_buffer_has_room() {
    let transport = TransportConfig {
        send_budget: 1 << 20,
        receive_budget: 4 << 20,
        max_message_size: 1 << 20,
        ..TransportConfig::default()
    };
    let pair = pair_with("127.0.0.1:0", transport);
    pair.near.writable().wait_for(Duration::ZERO).unwrap().unwrap();
    let (mut sent, mut refused) = (0, 0);
    while refused < 20 {
        match pair.near.try_send(content(1, 100_000)) {
            Ok(()) => (sent, refused) = (sent + 1, 0),
            Err(SendError::Blocked(_)) => {
                refused += 1;
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    }
    // The receiver reads nothing, so that the send buffer stays full.
    assert!(pair.near.writable().wait_for(Duration::from_millis(50)).is_err());
    thread::scope(|scope| {
        scope.spawn(|| pair.near.writable().wait_for(LIMIT).unwrap().unwrap());
        for _ in 0..sent {
            pair.far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
        }
    });
    pair.near.try_send("room").unwrap();
    pair.far.close(1, "over");
    while pair.near.writable().wait_for(LIMIT).unwrap().is_ok() {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn terminate_frees_the_port_and_closes_the_connections() {
    let pair = pair();
    let address = pair.server.local_addr();
    pair.server.terminate(3, "bye").wait_for(LIMIT).unwrap();
    // The test still holds the endpoint and one of its connections.
    drop(UdpSocket::bind(address).unwrap());
    assert_eq!(
        pair.near.recv().wait_for(LIMIT).unwrap(),
        Err(RecvError::Closed(CloseReason::Peer { code: 3, reason: "bye".into() }))
    );
    assert!(matches!(pair.far.try_send("late"), Err(SendError::Closed(_))));
    assert_eq!(
        pair.server.accept().wait_for(LIMIT).unwrap().unwrap_err(),
        ConnectError::EndpointClosed
    );
    pair.server.terminate(0, "").wait_for(LIMIT).unwrap();
}

/// A client and a server that accepts no connections yet.
fn endpoints() -> (Endpoint, Endpoint, ClientOptions) {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let options = ClientOptions::new(Trust::fingerprint(identity.fingerprint()));
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse().unwrap())
        .server(ServerOptions::new(identity))
        .start()
        .unwrap();
    (Endpoint::builder().start().unwrap(), server, options)
}

#[test]
fn connections_closed_before_accept_keep_their_data() {
    let (client, server, options) = endpoints();
    let near = client.connect(server.local_addr(), "localhost", options);
    let near = near.wait_for(LIMIT).unwrap().unwrap();
    for message in ["first", "second"] {
        near.send(message).wait().unwrap();
    }
    near.finish().wait_for(LIMIT).unwrap().unwrap();
    near.close(9, "gone");
    client.idle().wait_for(LIMIT).unwrap();
    server.idle().wait_for(LIMIT).unwrap();

    let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
    let reason = CloseReason::Peer { code: 9, reason: "gone".into() };
    assert_eq!(far.close_reason(), Some(reason));
    for message in ["first", "second"] {
        assert_eq!(far.recv().wait().unwrap().unwrap(), message);
    }
    assert_eq!(far.recv().wait(), Ok(None));
    assert_eq!(far.stats().messages.received, 2);
    assert!(matches!(far.try_send("late"), Err(SendError::Closed(_))));
}

/// `MAX_UNACCEPTED` connections may wait to be accepted; one more is closed with a reason.
#[test]
fn unaccepted_connections_are_limited() {
    const WAITING: usize = 4_096;
    let (client, server, options) = endpoints();
    // With default receive budgets the client's endpoint has too little memory for all connections.
    let options =
        options.transport(TransportConfig { receive_budget: 0, ..TransportConfig::default() });
    let connect = || {
        let connecting = client.connect(server.local_addr(), "localhost", options.clone());
        connecting.wait_for(LIMIT).unwrap()
    };
    let mut held: Vec<Connection> = (0..WAITING).map(|_| connect().unwrap()).collect();
    // After a round trip of each, the server has processed them all.
    for near in &held {
        near.send("here").wait().unwrap();
        near.flush().wait_for(LIMIT).unwrap().unwrap();
    }
    // The close may arrive before the client reports the connection as established.
    let refusal = || match connect() {
        Err(ConnectError::Closed(CloseReason::Peer { reason, .. })) => reason,
        Err(other) => panic!("{other}"),
        Ok(near) => match near.recv().wait_for(LIMIT).unwrap() {
            Err(RecvError::Closed(CloseReason::Peer { reason, .. })) => reason,
            other => panic!("{other:?}"),
        },
    };
    assert_eq!(refusal(), "too many unaccepted connections");
    assert!(held.iter().all(|near| near.close_reason().is_none()), "open connections stay open");
    // Accepting a connection makes room for another; ending one does not.
    held.pop().unwrap().close(0, "");
    let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), "here");
    let near = connect().unwrap();
    near.send("here").wait().unwrap();
    near.flush().wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(refusal(), "too many unaccepted connections");
}
