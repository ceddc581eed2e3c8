//! A connection for whose socket the kernel has no memory is kept, and waits for its timer alone.

use bats_proto::{Mode, PeerTrust, TransportConfig};
use rustix::event::{PollFd, PollFlags, poll};

use super::connection::MEMORY_PAUSE;
use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_000);

/// Polls until the next timeout; also returns whether a connection was closed.
fn drain(tcp: &mut Tcp, now: Timestamp) -> (Option<Timestamp>, bool) {
    let mut is_closed = false;
    loop {
        match tcp.poll(now) {
            Ok((_, event)) => is_closed |= matches!(event, Event::Closed(_)),
            Err(next) => return (next, is_closed),
        }
    }
}

#[test]
fn connection_without_kernel_memory_waits_for_its_timer_also_if_the_socket_has_an_error() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let options = (None, SocketOptions::default());
    let mut tcp = Tcp::new(Arc::new(LazyPoller::default()), None, options).unwrap();
    let config = ClientConfig {
        trust: PeerTrust::DangerousAcceptAny,
        identity: None,
        transport: Arc::new(TransportConfig { mode: Mode::Tcp, ..TransportConfig::default() }),
    };
    let id = tcp.connect(NOW, to, "server", &config).unwrap();
    let (far, _) = listener.accept().unwrap();
    drain(&mut tcp, NOW);
    while tcp.connections[&id].is_connecting {
        tcp.poll_sockets(NOW);
    }
    drain(&mut tcp, NOW);
    // The client's hello.
    assert!(far.peek(&mut [0]).unwrap() == 1);

    tcp.connections.get_mut(&id).unwrap().pause(NOW);
    tcp.dirty.insert(id);
    let until = NOW + MEMORY_PAUSE;
    assert_eq!(drain(&mut tcp, NOW), (Some(until), false));
    // It has not read the hello, so the kernel sends a reset.
    drop(far);
    poll(&mut [PollFd::new(&tcp.connections[&id].socket, PollFlags::empty())], None).unwrap();
    let mut reported = Vec::new();
    for _ in 0..10 {
        tcp.poller.ready(&mut reported).unwrap();
    }
    assert!(reported.len() <= 1, "the I/O thread would spin");
    tcp.on_ready(NOW, id);
    assert_eq!(drain(&mut tcp, NOW), (Some(until), false));

    tcp.handle_timers(until);
    assert!(!drain(&mut tcp, until).1, "writing meets no error before reading");
    tcp.poll_sockets(until);
    assert!(drain(&mut tcp, until).1, "the reset is found");
}
