//! A connection for whose socket the kernel has no memory is kept, and waits for its timer alone.

use rustix::event::{PollFd, PollFlags, poll};

use super::connection::MEMORY_PAUSE;
use super::stuck_timers_tests::{NOW, clients, drain};

#[test]
fn connection_without_kernel_memory_waits_for_its_timer_also_if_the_socket_has_an_error() {
    let (mut tcp, listener, [id]) = clients();
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
    assert_eq!(drain(&mut tcp, NOW), (Some(until), None));
    // It has not read the hello, so the kernel sends a reset.
    drop(far);
    poll(&mut [PollFd::new(&tcp.connections[&id].socket, PollFlags::empty())], None).unwrap();
    let mut reported = Vec::new();
    for _ in 0..10 {
        tcp.poller.ready(&mut reported).unwrap();
    }
    assert!(reported.len() <= 1, "the I/O thread would spin");
    tcp.on_ready(NOW, id);
    assert_eq!(drain(&mut tcp, NOW), (Some(until), None));

    tcp.handle_timers(until);
    assert!(drain(&mut tcp, until).1.is_none(), "writing meets no error before reading");
    tcp.poll_sockets(until);
    assert!(drain(&mut tcp, until).1.is_some(), "the reset is found");
}
