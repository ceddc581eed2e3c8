//! A TCP connection with a timer that stays due is closed and does not block the endpoint.

use bats_proto::{CloseReason, Event, PeerTrust, TransportConfig};

use super::*;

pub(super) const NOW: Timestamp = Timestamp::from_millis(1_000);

/// Polls until the next timeout; also returns why a connection was closed.
pub(super) fn drain(
    tcp: &mut Tcp,
    now: Timestamp,
) -> (Option<Timestamp>, Option<(u64, CloseReason)>) {
    let mut closed = None;
    loop {
        match tcp.poll(now, &mut Vec::new()) {
            Output::Event(id, Event::Closed(reason)) => closed = Some((id, reason)),
            Output::Event(..) => {}
            Output::Transmit(_) => panic!("the kernel sends"),
            Output::Timeout(next) => return (next, closed),
        }
    }
}

/// Connections that begin, and the listener that they go to.
pub(super) fn clients<const COUNT: usize>() -> (Tcp, TcpListener, [u64; COUNT]) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let options = (None, SocketOptions::default());
    let mut tcp = Tcp::new(Arc::new(LazyPoller::default()), None, options).unwrap();
    let config = ClientConfig {
        trust: PeerTrust::DangerousAcceptAny,
        identity: None,
        transport: Arc::new(TransportConfig { mode: Mode::Tcp, ..TransportConfig::default() }),
    };
    let ids = [0; COUNT].map(|_| tcp.connect(NOW, to, "server", &config).unwrap());
    (tcp, listener, ids)
}

#[test]
fn connection_with_a_stuck_timer_is_closed_with_an_internal_error() {
    let (mut tcp, _listener, [stuck, other]) = clients();
    let (next, closed) = drain(&mut tcp, NOW);
    assert!(next.is_some_and(|at| at > NOW) && closed.is_none(), "{next:?} {closed:?}");

    tcp.connections.get_mut(&stuck).unwrap().stuck = Some(NOW);
    tcp.dirty.insert(stuck);
    let (mut next, mut closed) = drain(&mut tcp, NOW);
    let mut handled = 0;
    while closed.is_none() && next.is_some_and(|at| at <= NOW) {
        handled += 1;
        assert!(handled < 100, "the endpoint spins");
        tcp.handle_timers(NOW);
        (next, closed) = drain(&mut tcp, NOW);
    }
    let (id, reason) = closed.expect("the connection was closed");
    assert!(matches!(reason, CloseReason::Internal(_)), "{reason:?}");
    assert_eq!((id, tcp.counters().timers_stuck), (stuck, 1));
    for _ in 0..100 {
        tcp.handle_timers(NOW);
        drain(&mut tcp, NOW);
    }
    assert!(!tcp.connections.contains_key(&stuck), "a closed one that is stuck is removed");
    assert!(tcp.session(other).is_some_and(|session| !session.is_closed()));
    assert!(drain(&mut tcp, NOW).0.is_some_and(|at| at > NOW));
}
