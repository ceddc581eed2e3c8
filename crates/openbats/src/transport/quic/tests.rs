//! Connections of an endpoint together: limits, timers and routing of datagrams.

use bats_proto::CloseReason;

use super::settings::MAX_WINDOW;
use super::*;

#[test]
fn the_queue_of_responses_is_bounded() {
    let mut quic = Quic::new(Clock::new(), [7; 32], None, false, None).unwrap();
    let destination = ([127, 0, 0, 1], 9).into();
    let transmit = || quinn_proto::Transmit {
        destination,
        ecn: None,
        size: 3,
        segment_size: None,
        src_ip: None,
    };
    for number in 0..=MAX_RESPONSES {
        assert_eq!(quic.counters().answers_dropped, 0, "{number}");
        quic.queue_response(transmit(), vec![1, 2, 3]);
    }
    assert_eq!((quic.responses.len(), quic.counters().answers_dropped), (MAX_RESPONSES, 1));
    let sent = quic.poll(Timestamp::ZERO, &mut Vec::new());
    assert!(matches!(sent, Output::Transmit(transmit) if transmit.remote == destination));
    quic.queue_response(transmit(), vec![1, 2, 3]);
    assert_eq!((quic.responses.len(), quic.counters().answers_dropped), (MAX_RESPONSES, 1));
}

/// Polls until the next timeout; also returns why a connection was closed.
fn drain(quic: &mut Quic, now: Timestamp) -> (Option<Timestamp>, Option<(u64, CloseReason)>) {
    let (mut closed, mut buffer) = (None, Vec::with_capacity(65_536));
    loop {
        match quic.poll(now, &mut buffer) {
            Output::Event(id, bats_proto::Event::Closed(reason)) => closed = Some((id, reason)),
            Output::Timeout(next) => return (next, closed),
            _ => {}
        }
    }
}

#[test]
fn connection_with_a_stuck_timer_is_closed_with_an_internal_error() {
    let mut quic = Quic::new(Clock::new(), [7; 32], None, false, None).unwrap();
    let config = config();
    let (now, to) = (Timestamp::from_millis(1_000), ([127, 0, 0, 1], 9).into());
    let [stuck, other] = [0; 2].map(|_| quic.connect(now, to, "server", &config, false).unwrap());
    let (next, closed) = drain(&mut quic, now);
    assert!(next.is_some_and(|at| at > now) && closed.is_none(), "{next:?} {closed:?}");

    quic.connections.get_mut(&stuck).unwrap().stuck = Some(now);
    quic.dirty.insert(stuck);
    let (mut next, mut closed) = drain(&mut quic, now);
    let mut handled = 0;
    while closed.is_none() && next.is_some_and(|at| at <= now) {
        handled += 1;
        assert!(handled < 100, "the endpoint spins");
        quic.handle_timeout(now);
        (next, closed) = drain(&mut quic, now);
    }
    let (id, reason) = closed.expect("the connection was closed");
    assert!(matches!(reason, CloseReason::Internal(_)), "{reason:?}");
    assert_eq!((id, quic.counters().timers_stuck), (stuck, 1));
    for _ in 0..100 {
        quic.handle_timeout(now);
        drain(&mut quic, now);
    }
    assert!(!quic.connections.contains_key(&stuck), "a closed one that is stuck is removed");
    assert!(quic.connections.get(&other).is_some_and(|other| !other.session.is_closed()));
    assert!(drain(&mut quic, now).0.is_some_and(|at| at > now));
}

fn config() -> ClientConfig {
    ClientConfig {
        trust: bats_proto::PeerTrust::DangerousAcceptAny,
        identity: None,
        transport: Arc::new(TransportConfig { mode: Mode::Quic, ..TransportConfig::default() }),
    }
}

fn server() -> Quic {
    let config = ServerConfig {
        identity: bats_proto::crypto::generate_identity(&["server".to_owned()]).unwrap(),
        client_trust: None,
        transport: config().transport,
        retry_threshold: usize::MAX,
        max_connections: 100,
    };
    Quic::new(Clock::new(), [8; 32], Some(&config), false, None).unwrap()
}

/// The first datagram of a client.
fn first_flight(now: Timestamp) -> Vec<u8> {
    let mut client = Quic::new(Clock::new(), [9; 32], None, false, None).unwrap();
    client.connect(now, ([127, 0, 0, 1], 9).into(), "server", &config(), false).unwrap();
    let mut buffer = Vec::with_capacity(65_536);
    let output = client.poll(now, &mut buffer);
    assert!(matches!(output, Output::Transmit(transmit) if transmit.len == buffer.len()));
    buffer
}

fn receive(quic: &mut Quic, now: Timestamp, remote: SocketAddr, datagram: &[u8]) {
    let payload = &mut datagram.to_vec()[..];
    quic.handle_datagram(now, &Received { remote, local_ip: None, ecn: 0, payload });
}

#[test]
fn only_clients_take_version_negotiation_and_only_from_their_servers() {
    let negotiation = [0x80, 0, 0, 0, 0, 0, 0];
    let now = Timestamp::from_millis(1_000);
    let addresses: [SocketAddr; 3] = [1, 2, 3].map(|host| ([10, 0, 0, host], 9).into());
    let mut quic = server();
    receive(&mut quic, now, addresses[0], &first_flight(now));
    assert_eq!(quic.connection_count(), 1);
    assert!(!quic.wants(addresses[0], &negotiation), "from a client");
    let ids = [0, 0, 1].map(|server| {
        quic.connect(now, addresses[1 + server], "server", &config(), false).unwrap()
    });
    let wanted = |quic: &Quic| addresses.map(|from| quic.wants(from, &negotiation));
    for (closed, expected) in
        ids.into_iter().zip([[false, true, true], [false, true, true], [false, false, true]])
    {
        assert_eq!(wanted(&quic), expected);
        quic.remove(closed);
    }
    assert_eq!(wanted(&quic), [false; 3]);
    assert_eq!((quic.addresses.len(), quic.by_handle.len()), (1, 1));
}

#[test]
fn half_open_handshakes_are_limited_in_all_and_for_each_network() {
    let mut quic = server();
    let now = quic.clock.now();
    quic.half_open = NetworkCounts::new(6, 4);
    let address = |network, host| SocketAddr::from(([10, 0, network, host], 9));
    // Each from another client: the same flight would belong to the same connection.
    let arrive = |quic: &mut Quic, from| {
        receive(quic, now, from, &first_flight(now));
        (quic.connection_count(), quic.counters().half_open_refused)
    };
    for host in 1..=4 {
        assert_eq!(arrive(&mut quic, address(1, host)), (usize::from(host), 0));
    }
    assert_eq!(arrive(&mut quic, address(1, 5)), (4, 1), "its network has four");
    assert_eq!(arrive(&mut quic, address(2, 1)), (5, 1));
    assert_eq!(arrive(&mut quic, address(2, 2)), (6, 1));
    assert_eq!(arrive(&mut quic, address(3, 1)), (6, 2), "there are six");
    // None completes its handshake.
    for second in 1..30 {
        drain(&mut quic, now + Duration::from_secs(second));
        quic.handle_timeout(now + Duration::from_secs(second));
    }
    assert_eq!((quic.connection_count(), quic.half_open.len()), (0, 0));
    assert_eq!(arrive(&mut quic, address(3, 1)), (1, 2));
}

#[test]
fn datagrams_longer_than_announced_are_ignored() {
    let mut quic = server();
    let now = quic.clock.now();
    let from = ([10, 0, 0, 1], 9).into();
    let mut flight = first_flight(now);
    flight.resize(usize::from(MAX_UDP_PAYLOAD) + 1, 0);
    receive(&mut quic, now, from, &flight);
    assert_eq!(quic.connection_count(), 0);
    flight.pop();
    receive(&mut quic, now, from, &flight);
    assert_eq!(quic.connection_count(), 1);
}

#[test]
fn the_window_follows_the_receive_budget_within_bounds() {
    assert_eq!(window(1), (1u32 << 16).into());
    assert_eq!(window(1 << 20), (1u32 << 20).into());
    for more in [MAX_WINDOW as usize, MAX_WINDOW as usize + 1, usize::MAX] {
        assert_eq!(window(more), MAX_WINDOW.into());
    }
}
