//! Turns of I/O threads one by one: what waits in the socket is read before timers are handled.

use std::net::Ipv4Addr;
use std::task::{Context, Poll, Waker};

use super::super::Parker;
use super::*;
use crate::{ClientOptions, Connection, Endpoint, Identity, ServerOptions, Trust};

const MS: Duration = Duration::from_millis(1);
/// Longer than a probe timeout over loopback, in milliseconds.
const LONG: u32 = 500;

/// An I/O thread whose turns the test gives.
fn unstarted() -> (Arc<IoThread>, IoThreads) {
    let thread = Arc::new(IoThread {
        inbox: Mutex::default(),
        waker: ThreadWaker::new().unwrap(),
        poller: Poller::new().unwrap(),
    });
    let threads = IoThreads::new(NonZeroUsize::MIN);
    threads.0.threads.lock().unwrap().push(Arc::downgrade(&thread));
    (thread, threads)
}

/// Gives the only endpoint a turn.
fn give_turn(turns: &mut Turns<'_>) {
    assert!(turns.take_inbox());
    turns.turn(0);
}

/// Gives turns to both ends for `times` milliseconds.
fn exchange(ends: &mut [Turns<'_>; 2], times: u32) {
    for _ in 0..times {
        ends.iter_mut().for_each(give_turn);
        thread::sleep(MS);
    }
}

fn ready<T>(ends: &mut [Turns<'_>; 2], future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
        exchange(ends, 1);
    }
}

/// Runs `test` with both ends, the client first, and the client's connection, in which no packet awaits an answer.
fn with_connection(test: impl FnOnce(&mut [Turns<'_>; 2], &Connection)) {
    let [(client_thread, client_threads), (server_thread, server_threads)] =
        [unstarted(), unstarted()];
    let mut ends = [Turns::new(&client_thread), Turns::new(&server_thread)];
    let identity = Identity::generate(&["server"]).unwrap();
    let options = ClientOptions::new(Trust::fingerprint(identity.fingerprint()));
    let local = (Ipv4Addr::LOCALHOST, 0).into();
    let server = Endpoint::builder().bind(local).io_threads(&server_threads);
    let server = server.server(ServerOptions::new(identity)).start().unwrap();
    let client = Endpoint::builder().bind(local).io_threads(&client_threads).start().unwrap();
    let connecting = client.connect(server.local_addr(), "server", options);
    let connection = ready(&mut ends, connecting).unwrap();
    let accepted = ready(&mut ends, server.accept()).unwrap();
    // The search for the path MTU, and RTT samples without it.
    for _ in 0..20 {
        ready(&mut ends, connection.send(vec![1; 100])).unwrap();
        exchange(&mut ends, 5);
    }
    assert_eq!(connection.stats().congestion.in_flight_bytes, 0);
    test(&mut ends, &connection);
    drop((accepted, client, server));
}

/// Sends a message, to which the other end's answer waits in the socket. Returns a time before the answer.
fn send_and_let_answer(ends: [&mut Turns<'_>; 2], connection: &Connection) -> Timestamp {
    let [client, server] = ends;
    let mut sending = std::pin::pin!(connection.send(vec![2; 100]));
    let sent = sending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(sent, Poll::Ready(Ok(()))), "there is room");
    // Sends what is left, and arms the timers.
    give_turn(client);
    let read_at = client.places[&0].driver.shared.clock.now();
    for _ in 0..20 {
        give_turn(server);
        thread::sleep(MS);
    }
    assert!(connection.stats().congestion.in_flight_bytes > 0, "the answer is not read");
    read_at
}

#[test]
fn answers_that_a_leader_has_not_read_are_read_before_a_probe_timeout() {
    with_connection(|[client, server], connection| {
        let shared = client.places[&0].driver.shared.clone();
        // A leader that does not run.
        shared.lock().custody.begin(Parker::of_this_thread().shared());
        let before = connection.stats();
        send_and_let_answer([client, server], connection);
        for _ in 0..LONG {
            assert!(client.take_inbox());
            if shared.lock().custody.io_has_work(shared.clock.now()) {
                client.turn(0);
            }
            if connection.stats().packets.received > before.packets.received {
                break;
            }
            thread::sleep(MS);
        }
        shared.lock().custody.hand_back();
        let after = connection.stats();
        assert!(after.packets.received > before.packets.received, "the answer was read");
        assert_eq!(after.congestion.probe_timeouts, before.congestion.probe_timeouts);
    });
}

#[test]
fn a_timer_that_expires_after_the_socket_was_read_is_not_handled_before_it_is_read_again() {
    with_connection(|[client, server], connection| {
        let before = connection.stats();
        let mut incoming = ReceiveBuffers::new(RECEIVE_BATCH);
        let read_at = send_and_let_answer([client, server], connection);
        // The thread does not run.
        thread::sleep(MS * LONG);
        let driver = &mut client.places.get_mut(&0).unwrap().driver;
        let shared = driver.shared.clone();
        let mut guard = shared.lock_socket();
        driver.process(guard.as_mut().unwrap(), &mut incoming, (false, read_at));
        drop(guard);
        assert_eq!(connection.stats().packets.received, before.packets.received);
        assert_eq!(connection.stats().congestion.probe_timeouts, before.congestion.probe_timeouts);
        give_turn(client);
        let after = connection.stats();
        assert!(after.packets.received > before.packets.received, "the answer was read");
        assert_eq!(after.congestion.probe_timeouts, before.congestion.probe_timeouts);
    });
}
