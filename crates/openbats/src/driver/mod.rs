//! Drives sockets and protocol cores on I/O threads, with timers in nanoseconds.

mod custody;
mod endpoint_driver;
mod endpoint_waker;
mod icmp_errors;
mod io_thread;
mod lead;
mod parker;
mod poller;
mod socket;
mod socket_options;
mod socket_turn;
mod sockets;
#[cfg(target_os = "linux")]
mod steering;
mod thread_waker;
mod timers;

use std::io;
use std::sync::Arc;

pub(crate) use custody::Custody;
use endpoint_driver::Driver;
pub(crate) use endpoint_waker::EndpointWaker;
pub(crate) use icmp_errors::UnreachablePort;
use io_thread::IoThread;
pub use io_thread::IoThreads;
pub(crate) use lead::Candidate;
pub(crate) use parker::Parker;
pub(crate) use poller::{Interest, LazyPoller, Poller};
pub(crate) use socket::{Socket, canonical};
pub(crate) use socket_options::{MAX_DSCP, SocketOptions};
pub(crate) use socket_turn::SocketTurn;
pub(crate) use sockets::Sockets;
pub(crate) use thread_waker::ThreadWaker;

use crate::shared::Shared;

/// Starts to drive an endpoint: on one of `threads`, or on a thread of its own. This ends when all
/// handles of the endpoint and its connections are dropped and the last connection has ended.
pub(crate) fn start(
    shared: Arc<Shared>,
    socket: Sockets,
    threads: Option<&IoThreads>,
) -> io::Result<()> {
    *shared.lock_socket() = Some(SocketTurn::new(socket));
    let driver = Driver::new(shared);
    match threads {
        Some(threads) => threads.attach(driver),
        None => IoThread::start(driver).map(drop),
    }
}
