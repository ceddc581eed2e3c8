//! Transport bindings: modes TCP, QUIC and UDP with the same API.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use openbats::{
    ClientOptions, CloseReason, CongestionAlgorithm, ConnectError, Connection, Endpoint,
    Fingerprint, Identity, Mode, RecvError, SendError, ServerOptions, StartError, TransportConfig,
    Trust, Wait,
};

const LIMIT: Duration = Duration::from_secs(20);
const BOTH: [Mode; 2] = [Mode::Tcp, Mode::Quic];

fn server(mode: Mode, options: impl FnOnce(ServerOptions) -> ServerOptions) -> (Endpoint, Trust) {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let trust = Trust::fingerprint(identity.fingerprint());
    let options = options(ServerOptions::new(identity).modes([mode]));
    let server = Endpoint::builder().bind("127.0.0.1:0".parse().unwrap()).server(options);
    (server.start().unwrap(), trust)
}

fn try_connect(to: SocketAddr, options: ClientOptions) -> Result<Connection, ConnectError> {
    let client = Endpoint::builder().start().unwrap();
    client.connect(to, "localhost", options).wait_for(LIMIT).unwrap()
}

struct Pair {
    server: Endpoint,
    near: Connection,
    far: Connection,
}

fn pair(mode: Mode, transport: TransportConfig) -> Pair {
    let (server, trust) = server(mode, |options| options.transport(transport.clone()));
    let options = ClientOptions::new(trust).transport(transport).mode(mode);
    let near = try_connect(server.local_addr(), options).unwrap();
    let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
    Pair { server, near, far }
}

fn message(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|place| (place.wrapping_mul(number | 1) >> 3) as u8).collect()
}

fn next(connection: &Connection) -> Result<Option<Vec<u8>>, RecvError> {
    let message = connection.recv().wait_for(LIMIT).unwrap();
    message.map(|message| message.map(|bytes| bytes.to_vec()))
}

/// The close reason of a connection on which no more messages arrive.
fn end_of(connection: &Connection) -> CloseReason {
    match next(connection) {
        Err(RecvError::Closed(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

/// Lengths around those of frames and TLS records, and one of many records.
fn length(number: usize) -> usize {
    match number % 50 {
        0 => 0,
        1 => 65_535 + number % 3,
        2 => 1_000_000,
        _ => (number * 37) % 3_000,
    }
}

#[test]
fn messages_arrive_once_and_in_order_in_both_directions() {
    const MESSAGES: usize = 500;
    for mode in BOTH {
        let Pair { near, far, .. } = pair(mode, TransportConfig::default());
        assert_eq!((near.mode(), far.mode()), (mode, mode));
        thread::scope(|scope| {
            for (from, to) in [(&near, &far), (&far, &near)] {
                scope.spawn(move || {
                    for number in 0..MESSAGES {
                        let message = message(number, length(number));
                        // The deadline is ignored, because the mode is reliable.
                        let sent = from.send_within(message, Duration::from_millis(1));
                        sent.wait_for(LIMIT).unwrap().unwrap();
                    }
                    from.finish().wait_for(LIMIT).unwrap().unwrap();
                    assert!(matches!(from.try_send("late"), Err(SendError::Finished)));
                });
                scope.spawn(move || {
                    for number in 0..MESSAGES {
                        let bytes = next(to).unwrap().unwrap();
                        assert!(bytes == message(number, length(number)), "message {number}");
                    }
                    assert_eq!(next(to).unwrap(), None);
                });
            }
        });
        let total: usize = (0..MESSAGES).map(length).sum();
        for stats in [near.stats(), far.stats()] {
            assert_eq!((stats.messages.sent, stats.messages.received), (500, 500));
            assert_eq!(stats.messages.bytes_sent, total as u64);
            assert_eq!(stats.messages.bytes_received, total as u64);
            assert!(
                stats.packets.bytes_sent > total as u64
                    && stats.packets.bytes_received > total as u64
            );
            assert_eq!((stats.buffers.send_bytes, stats.buffers.receive_bytes), (0, 0));
            assert_eq!((stats.messages.lost, stats.messages.expired), (0, 0));
            assert!(stats.established.is_some());
            #[cfg(target_os = "linux")]
            {
                assert!(
                    stats.path.smoothed_rtt > Duration::ZERO && stats.congestion.cwnd_bytes > 0,
                    "{stats:?}"
                );
                assert!(stats.packets.sent > 100 && stats.packets.received > 100, "{stats:?}");
            }
        }
    }
}

/// What `finish` has confirmed stays delivered after a close.
#[test]
fn finish_returns_after_the_peer_knows_the_end() {
    for mode in BOTH {
        for round in 0..10 {
            let Pair { near, far, .. } = pair(mode, TransportConfig::default());
            near.send(message(round, length(round))).wait_for(LIMIT).unwrap().unwrap();
            near.flush().wait_for(LIMIT).unwrap().unwrap();
            near.finish().wait_for(LIMIT).unwrap().unwrap();
            near.close(7, "done");
            assert!(next(&far).unwrap().unwrap() == message(round, length(round)));
            assert_eq!(next(&far).unwrap(), None);
            assert_eq!(end_of(&near), CloseReason::Local);
            assert_eq!(near.close_reason(), Some(CloseReason::Local));
        }
    }
}

#[test]
fn a_close_has_code_and_text() {
    for mode in BOTH {
        let Pair { near, far, .. } = pair(mode, TransportConfig::default());
        near.close(7, "enough");
        let reason = CloseReason::Peer { code: 7, reason: "enough".into() };
        assert_eq!(next(&far), Err(RecvError::Closed(reason.clone())));
        assert_eq!(far.close_reason(), Some(reason));
        assert!(matches!(far.send("x").wait(), Err(SendError::Closed(_))));
    }
}

#[test]
fn a_receiver_that_reads_nothing_blocks_the_sender() {
    for mode in BOTH {
        let small = TransportConfig { receive_budget: 4 << 20, ..TransportConfig::default() };
        let Pair { near, far, .. } = pair(mode, small);
        let message = vec![7; 100_000];
        let mut sent = 0;
        for _ in 0..400 {
            match near.try_send(message.clone()) {
                Ok(()) => sent += 1,
                Err(SendError::Blocked(_)) => thread::sleep(Duration::from_millis(5)),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(far.stats().buffers.receive_bytes <= 5 << 20, "{:?}", far.stats());
        assert!((40..200).contains(&sent), "{sent}");
        assert!(near.writable().wait_for(Duration::from_millis(50)).is_err());
        thread::scope(|scope| {
            scope.spawn(|| {
                near.writable().wait_for(LIMIT).unwrap().unwrap();
                near.finish().wait_for(LIMIT).unwrap().unwrap();
            });
            for _ in 0..sent {
                assert!(next(&far).unwrap().unwrap() == message);
            }
            assert_eq!(next(&far).unwrap(), None);
        });
    }
}

#[test]
fn untrusted_and_unreachable_servers_are_reported() {
    for mode in BOTH {
        let (server, _) = server(mode, |options| options);
        let other = Trust::fingerprint(Fingerprint([7; 32]));
        let options = ClientOptions::new(other).mode(mode);
        let refused = try_connect(server.local_addr(), options).unwrap_err();
        assert!(matches!(refused, ConnectError::Closed(CloseReason::Handshake(_))), "{refused}");
    }
    let trust = Trust::fingerprint(Fingerprint([7; 32]));

    // A port without a listener.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = ClientOptions::new(trust.clone()).mode(Mode::Tcp);
    let refused = try_connect(free, options.clone()).unwrap_err();
    assert_eq!(refused, ConnectError::Closed(CloseReason::Refused));

    // An address that does not answer.
    let unresponsive = UdpSocket::bind("127.0.0.1:0").unwrap();
    let transport =
        TransportConfig { idle_timeout: Duration::from_millis(300), ..TransportConfig::default() };
    let quic = ClientOptions::new(trust.clone()).transport(transport).mode(Mode::Quic);
    let timed_out = try_connect(unresponsive.local_addr().unwrap(), quic).unwrap_err();
    assert_eq!(timed_out, ConnectError::Closed(CloseReason::HandshakeTimeout));

    // A listener that accepts and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let transport =
        TransportConfig { idle_timeout: Duration::from_millis(300), ..TransportConfig::default() };
    let short_timeout = options.transport(transport).mode(Mode::Tcp);
    let timed_out = try_connect(silent.local_addr().unwrap(), short_timeout.clone()).unwrap_err();
    assert_eq!(timed_out, ConnectError::Closed(CloseReason::HandshakeTimeout));

    // A listener of another protocol.
    let other_protocol = silent.local_addr().unwrap();
    let mail_server = thread::spawn(move || {
        // The first is the connection from above, in the queue of the kernel.
        for _ in 0..2 {
            let (mut stream, _) = silent.accept().unwrap();
            let _ = stream.write_all(b"220 mail.example ESMTP\r\n");
            let _ = stream.read(&mut [0; 1_000]);
        }
    });
    let refused = try_connect(other_protocol, short_timeout).unwrap_err();
    assert!(matches!(refused, ConnectError::Closed(CloseReason::Handshake(_))), "{refused}");
    mail_server.join().unwrap();
}

#[test]
fn a_server_accepts_only_the_modes_that_it_offers() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let trust = Trust::fingerprint(identity.fingerprint());
    let start = |modes: &[Mode]| {
        Endpoint::builder()
            .bind("127.0.0.1:0".parse().unwrap())
            .server(ServerOptions::new(identity.clone()).modes(modes.iter().copied()))
            .start()
            .unwrap()
    };
    let options = |mode| ClientOptions::new(trust.clone()).mode(mode);
    // Modes of several transports on one port.
    let both = start(&[Mode::Brtp, Mode::Tcp, Mode::Quic, Mode::Btp]);
    for mode in [Mode::Tcp, Mode::Brtp, Mode::Quic, Mode::Btp, Mode::Quic, Mode::Tcp] {
        let near = try_connect(both.local_addr(), options(mode)).unwrap();
        let far = both.accept().wait_for(LIMIT).unwrap().unwrap();
        assert_eq!((near.mode(), far.mode()), (mode, mode));
        assert_eq!(near.peer_fingerprint(), Some(identity.fingerprint()));
        assert_eq!(near.remote_addr(), both.local_addr());
    }
    let without = start(&[Mode::Brtp]);
    let refused = try_connect(without.local_addr(), options(Mode::Tcp)).unwrap_err();
    assert_eq!(refused, ConnectError::Closed(CloseReason::Refused));
    let refused = try_connect(without.local_addr(), options(Mode::Quic)).unwrap_err();
    assert_eq!(refused, ConnectError::Closed(CloseReason::Version));
    let only = start(&[Mode::Tcp]);
    let reason = match try_connect(only.local_addr(), options(Mode::Brtp)) {
        Err(ConnectError::Closed(reason)) => reason,
        Err(error) => panic!("{error}"),
        Ok(near) => end_of(&near),
    };
    assert!(reason.to_string().contains("mode 1 is not offered here"), "{reason}");
}

#[test]
fn invalid_data_and_idle_timeouts_close_half_open_connections() {
    let short_timeout =
        TransportConfig { idle_timeout: Duration::from_millis(500), ..TransportConfig::default() };
    let (server, trust) =
        server(Mode::Tcp, |options| options.transport(short_timeout).modes([Mode::Tcp]));
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff, 0, 0], &[]] {
        let mut stream = TcpStream::connect(server.local_addr()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(garbage).unwrap();
        let mut answer = Vec::new();
        // At most an alert, then the end of the stream.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() < 100, "{}", answer.len());
    }
    // Idle unauthenticated peers beyond the limits delay others at most until their deadline, and
    // those of one network do not affect other networks.
    let idle_peers: Vec<TcpStream> =
        (0..300).map(|x| connect_from([127, 0, 5 + x as u8 % 5, 1], &server)).collect();
    let near = try_connect(server.local_addr(), ClientOptions::new(trust).mode(Mode::Tcp)).unwrap();
    let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
    near.send("after all").wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(next(&far).unwrap().unwrap(), b"after all");
    drop(idle_peers);
}

fn connect_from(ip: [u8; 4], server: &Endpoint) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((ip, 0)).into()).unwrap();
    socket.connect(&server.local_addr().into()).unwrap();
    socket.into()
}

/// Idle peers of one network use at most 64 half-open connections.
#[test]
fn a_network_cannot_use_all_half_open_connections() {
    let (server, trust) = server(Mode::Tcp, |options| options.modes([Mode::Tcp]));
    let mut idle_peers: Vec<TcpStream> =
        (0..64).map(|_| connect_from([127, 0, 9, 1], &server)).collect();
    // The next ones of the network wait.
    let waiting: Vec<TcpStream> =
        (0..10).map(|_| connect_from([127, 0, 9, 200], &server)).collect();
    idle_peers.extend((0..64).map(|_| connect_from([127, 0, 10, 1], &server)));
    let near = try_connect(server.local_addr(), ClientOptions::new(trust).mode(Mode::Tcp)).unwrap();
    let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
    near.send("from elsewhere").wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(next(&far).unwrap().unwrap(), b"from elsewhere");
    assert_eq!(server.stats().connections_refused, 0);
    assert_eq!(server.stats().handshakes_started, 64 + 64 + 1, "those that wait have none");
    // The handshakes of the waiting ones start when others end.
    drop(idle_peers);
    for _ in 0..4_000 {
        if server.stats().handshakes_started == 64 + 64 + 1 + waiting.len() as u64 {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("{:?}", server.stats());
}

#[test]
fn quic_sends_retry_above_the_half_open_threshold() {
    for (threshold, retries) in [(0, 1), (1, 0)] {
        let (server, trust) = server(Mode::Quic, |options| options.retry_threshold(threshold));
        let options = ClientOptions::new(trust).mode(Mode::Quic);
        let _near = try_connect(server.local_addr(), options).unwrap();
        assert_eq!(server.stats().retries_sent, retries);
    }
}

#[test]
fn connections_beyond_the_limit_are_refused_and_counted() {
    for mode in BOTH {
        let (server, trust) = server(mode, |options| options.max_connections(2));
        let options = ClientOptions::new(trust).mode(mode);
        let held: Vec<Connection> = (0..2)
            .map(|_| {
                let _near = try_connect(server.local_addr(), options.clone()).unwrap();
                (_near, server.accept().wait_for(LIMIT).unwrap().unwrap())
            })
            .flat_map(|(near, far)| [near, far])
            .collect();
        let refused = try_connect(server.local_addr(), options.clone()).unwrap_err();
        assert_eq!(refused, ConnectError::Closed(CloseReason::Refused));
        assert_eq!(server.stats().connections_refused, 1);
        drop(held);
        // New connections are accepted once the old ones have drained.
        assert!((0..500).any(|_| {
            thread::sleep(Duration::from_millis(20));
            try_connect(server.local_addr(), options.clone()).is_ok()
        }));
    }
}

#[test]
fn the_port_is_used_for_udp_and_tcp_and_freed_at_the_end() {
    let (server, _) = server(Mode::Tcp, |options| options);
    let address = server.local_addr();
    assert!(TcpListener::bind(address).is_err() && UdpSocket::bind(address).is_err());
    server.stop_accepting();
    // The system refuses connections.
    assert!((0..1_000).any(|_| TcpStream::connect(address).is_err()));
    server.terminate(0, "").wait_for(LIMIT).unwrap();
    let _udp = UdpSocket::bind(address).unwrap();
    drop(TcpListener::bind(address).unwrap());
    // A server that cannot bind the TCP port reports it.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let identity = Identity::generate(&["localhost"]).unwrap();
    let failed = Endpoint::builder()
        .bind(taken.local_addr().unwrap())
        .server(ServerOptions::new(identity).modes([Mode::Tcp]))
        .start();
    assert!(matches!(failed, Err(StartError::BindTcp { .. })), "{failed:?}");
}

/// A TCP proxy for one connection, which it resets on request.
fn breakable_proxy(to: SocketAddr) -> (SocketAddr, std::sync::mpsc::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(to).unwrap();
        for (mut from, mut to) in [
            (near.try_clone().unwrap(), far.try_clone().unwrap()),
            (far.try_clone().unwrap(), near.try_clone().unwrap()),
        ] {
            thread::spawn(move || std::io::copy(&mut from, &mut to));
        }
        let _ = receiver.recv();
        let _ = near.shutdown(std::net::Shutdown::Both);
        let _ = far.shutdown(std::net::Shutdown::Both);
    });
    (address, sender)
}

#[test]
fn a_broken_tcp_connection_is_reported_at_both_ends_after_the_data() {
    let (server, trust) = server(Mode::Tcp, |options| options);
    let (proxy, break_signal) = breakable_proxy(server.local_addr());
    let near = try_connect(proxy, ClientOptions::new(trust).mode(Mode::Tcp)).unwrap();
    let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
    near.send("first").wait_for(LIMIT).unwrap().unwrap();
    near.flush().wait_for(LIMIT).unwrap().unwrap();
    break_signal.send(()).unwrap();
    assert_eq!(next(&far).unwrap().unwrap(), b"first");
    for end in [&near, &far] {
        let reason = end_of(end);
        assert!(matches!(reason, CloseReason::Lost(_)), "{reason}");
    }
}

#[test]
fn dropped_connections_close_without_waiting() {
    for mode in BOTH {
        let Pair { server, near, far } = pair(mode, TransportConfig::default());
        near.send("x").wait_for(LIMIT).unwrap().unwrap();
        near.flush().wait_for(LIMIT).unwrap().unwrap();
        drop(near);
        assert_eq!(next(&far).unwrap().unwrap(), b"x");
        assert!(matches!(next(&far), Err(RecvError::Closed(CloseReason::Peer { code: 0, .. }))));
        drop(far);
        server.shut_down(0, "");
        server.idle().wait_for(LIMIT).unwrap();
    }
}

#[test]
fn plain_udp_sends_each_message_in_a_datagram() {
    let (server, trust) = server(Mode::Udp, |options| options);
    let address = server.local_addr();
    let options = ClientOptions::new(trust).mode(Mode::Udp);
    let client = Endpoint::builder().start().unwrap();
    let connect = |options| client.connect(address, "localhost", options).wait_for(LIMIT).unwrap();
    let near = connect(options.clone()).unwrap();
    // Datagrams of two connections to one address could not be distinguished.
    assert!(matches!(connect(options.clone()), Err(ConnectError::Configuration(_))));
    let sizes = [0, 1, 1_472, 700, 0, 1_000];
    for (number, size) in sizes.into_iter().enumerate() {
        near.send(message(number, size)).wait_for(LIMIT).unwrap().unwrap();
    }
    let refused = near.try_send(message(0, 1_473));
    assert_eq!(refused, Err(SendError::TooLarge { size: 1_473, limit: 1_472 }));
    let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
    assert_eq!((near.mode(), far.mode()), (Mode::Udp, Mode::Udp));
    assert_eq!((near.peer_fingerprint(), far.remote_addr().ip()), (None, address.ip()));
    for (number, size) in sizes.into_iter().enumerate() {
        assert!(next(&far).unwrap().unwrap() == message(number, size), "{number}");
    }
    // The other direction, and a peer that is a plain UDP socket.
    far.send("back").wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(next(&near).unwrap().unwrap(), b"back");
    let plain_socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    plain_socket.send_to(b"plain", address).unwrap();
    let plain = server.accept().wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(next(&plain).unwrap().unwrap(), b"plain");
    plain.send("answer").wait_for(LIMIT).unwrap().unwrap();
    let mut bytes = [0; 100];
    assert_eq!(plain_socket.recv(&mut bytes).unwrap(), 6);
    assert_eq!(&bytes[..6], b"answer");

    near.finish().wait_for(LIMIT).unwrap().unwrap();
    assert!(matches!(near.try_send("late"), Err(SendError::Finished)));
    let (near, far) = (near.stats(), far.stats());
    assert_eq!((near.messages.sent, near.packets.sent), (6, 6));
    assert_eq!((far.messages.received, far.packets.bytes_received), (6, near.packets.bytes_sent));
}

#[test]
fn plain_udp_does_not_share_a_port_with_other_modes() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let start = |modes: [Mode; 2]| {
        Endpoint::builder()
            .bind("127.0.0.1:0".parse().unwrap())
            .server(ServerOptions::new(identity.clone()).modes(modes))
            .start()
    };
    for other in [Mode::Brtp, Mode::Tcp, Mode::Quic] {
        let refused = start([Mode::Udp, other]);
        assert!(matches!(refused, Err(StartError::Configuration(_))), "{refused:?}");
    }
    let short_timeout =
        TransportConfig { idle_timeout: Duration::from_millis(300), ..TransportConfig::default() };
    let (server, trust) = server(Mode::Udp, |options| options);
    // Packets of a handshake get no answer.
    let options = ClientOptions::new(trust).transport(short_timeout);
    let timed_out = try_connect(server.local_addr(), options.clone()).unwrap_err();
    assert!(matches!(timed_out, ConnectError::Closed(_)), "{timed_out}");
    let unresponsive = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let near = try_connect(unresponsive, options.mode(Mode::Udp)).unwrap();
    near.send("x").wait_for(LIMIT).unwrap().unwrap();
    // The system reports that no process has the port.
    assert_eq!(end_of(&near), CloseReason::Refused);
}

#[test]
fn quic_supports_bbr_and_cubic_and_reports_them() {
    let with = |congestion| TransportConfig { congestion, ..TransportConfig::default() };
    for (congestion, state) in
        [(CongestionAlgorithm::Ltcc, "quic bbr"), (CongestionAlgorithm::Cubic, "quic cubic")]
    {
        let Pair { near, far, .. } = pair(Mode::Quic, with(congestion));
        assert_eq!(near.stats().congestion.controller_state, state);
        assert_eq!(far.stats().congestion.controller_state, state);
    }
    for congestion in [
        CongestionAlgorithm::Gcc,
        CongestionAlgorithm::None,
        CongestionAlgorithm::FixedRate { bits_per_second: 1_000_000 },
    ] {
        let identity = Identity::generate(&["localhost"]).unwrap();
        let options = ServerOptions::new(identity).transport(with(congestion));
        let start = |modes: &[Mode]| {
            let options = options.clone().modes(modes.iter().copied());
            Endpoint::builder().bind(([127, 0, 0, 1], 0).into()).server(options).start()
        };
        let Err(StartError::Configuration(text)) = start(&[Mode::Quic]) else { panic!("started") };
        assert!(text.contains("BBR and CUBIC"), "{text}");
        // With other modes, the controller applies to those.
        let server = start(&[Mode::Brtp, Mode::Quic]).unwrap();
        let connect = |congestion| {
            let options = ClientOptions::new(Trust::dangerous_any());
            let options = options.transport(with(congestion)).mode(Mode::Quic);
            try_connect(server.local_addr(), options)
        };
        let Err(ConnectError::Configuration(text)) = connect(congestion) else {
            panic!("connected")
        };
        assert!(text.contains("BBR and CUBIC"), "{text}");
        let _near = connect(CongestionAlgorithm::Ltcc).unwrap();
        let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(far.stats().congestion.controller_state, "quic cubic");
    }
}

#[test]
fn an_endpoint_can_be_bound_to_an_interface() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let start = |interface: &str| {
        let options = ServerOptions::new(identity.clone()).modes([Mode::Brtp, Mode::Tcp]);
        Endpoint::builder()
            .bind(([127, 0, 0, 1], 0).into())
            .bind_device(interface)
            .server(options)
            .start()
    };
    let error = start("nosuch0").unwrap_err().to_string();
    assert!(error.contains("the interface nosuch0 cannot be used"), "{error}");
    let server = start("lo").unwrap();
    let client = Endpoint::builder().bind_device("lo").start().unwrap();
    for mode in [Mode::Brtp, Mode::Tcp] {
        let options = ClientOptions::new(Trust::dangerous_any()).mode(mode);
        let near = client.connect(server.local_addr(), "localhost", options);
        let near = near.wait_for(LIMIT).unwrap().unwrap();
        let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
        near.send(message(1, 1_000)).wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(next(&far).unwrap(), Some(message(1, 1_000)), "{mode:?}");
    }
}
