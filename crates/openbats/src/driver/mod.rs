//! Drives sockets and protocol cores on I/O threads, with timers in nanoseconds.

mod icmp_errors;
mod io_thread;
mod poller;
mod socket;
mod socket_options;
mod thread_waker;

use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bats_proto::Input;

use icmp_errors::UnreachablePort;
pub use io_thread::IoThreads;
pub(crate) use io_thread::{EndpointWaker, IoThread};
pub(crate) use poller::{Interest, LazyPoller, Poller};
pub(crate) use socket::{Socket, canonical};
pub(crate) use socket_options::{MAX_DSCP, SocketOptions};
pub(crate) use thread_waker::ThreadWaker;

use crate::shared::Shared;
use crate::transport::Output;
use socket::{Bursts, ReceiveBuffers};

/// Starts to drive an endpoint: on one of `threads`, or on a thread of its own. This ends when all
/// handles of the endpoint and its connections are dropped and the last connection has ended.
pub(crate) fn start(
    shared: Arc<Shared>,
    socket: Socket,
    threads: Option<&IoThreads>,
) -> io::Result<()> {
    let driver = Driver {
        shared,
        socket,
        outgoing: Bursts::new(),
        unreachable_ports: Vec::new(),
        due: Vec::new(),
    };
    match threads {
        Some(threads) => threads.attach(driver),
        None => IoThread::start(driver).map(drop),
    }
}

/// The I/O of one endpoint.
#[derive(Debug)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
    socket: Socket,
    outgoing: Bursts,
    /// Errors that the system reported since the last turn.
    unreachable_ports: Vec<UnreachablePort>,
    /// Tasks to wake once the lock is released.
    due: Vec<Waker>,
}

/// When an endpoint needs its next turn.
enum Next {
    /// At once: more packets are ready to be sent or received.
    Now,
    /// After this time or with the next I/O event.
    Sleep(Option<Duration>),
    /// When the socket is writable.
    SleepUntilWritable,
    /// Never: no handles and no connections are left.
    Finish,
}

impl Driver {
    /// Receives, processes and sends once.
    fn turn(&mut self, incoming: &mut ReceiveBuffers) -> io::Result<Next> {
        // Read pending errors first: otherwise they make the next call fail.
        self.unreachable_ports = self.socket.unreachable_ports();
        let received = self.socket.receive(incoming)?;
        let next = self.process(incoming);
        self.due.drain(..).for_each(Waker::wake);
        let all_sent = self.socket.send(&mut self.outgoing)?;
        Ok(match next {
            Next::Finish => Next::Finish,
            _ if !all_sent => match self.shared.lock().is_terminated {
                true => Next::Finish,
                false => Next::SleepUntilWritable,
            },
            // More packets may follow: polling is cheaper than sleeping.
            Next::Sleep(_) if received => {
                self.shared.lock().is_asleep = false;
                Next::Now
            }
            next => next,
        })
    }

    /// Passes received packets to the core and collects the packets to send.
    fn process(&mut self, incoming: &mut ReceiveBuffers) -> Next {
        let clock = &self.shared.clock;
        let mut core = self.shared.lock();
        // Before the received datagrams: the errors answer packets sent earlier.
        for error in self.unreachable_ports.drain(..) {
            core.endpoint.handle_unreachable_port(clock.now(), error.remote, &error.quoted);
        }
        for datagram in incoming.drain() {
            core.endpoint.handle(clock.now(), Input::Datagram(datagram));
        }
        core.endpoint.handle(clock.now(), Input::Timeout);
        core.check_untrusted_peers(clock);
        let next = loop {
            // Unsent packets go first; without free buffers, send before polling for more.
            let Some(buffer) = self.outgoing.room() else { break Next::Now };
            match core.endpoint.poll(clock.now(), buffer) {
                Output::Transmit(transmit) => self.outgoing.push(transmit),
                Output::Event(handle, event) => {
                    core.on_event(clock, handle, event, &mut self.due);
                }
                Output::Timeout(until) => {
                    let now = clock.now();
                    break Next::Sleep(until.map(|until| until - now));
                }
            }
        };
        core.check_idle(&mut self.due);
        if matches!(next, Next::Sleep(_)) {
            if core.is_terminated || core.handles == 0 && core.is_idle() {
                return Next::Finish;
            }
            // From here on calls of the application wake the thread.
            core.is_asleep = true;
        }
        next
    }

    /// Ends the endpoint and notifies all waiting tasks.
    fn end(self, why: String) {
        // Tasks that are notified of the end can bind the address at once.
        drop(self.socket);
        self.shared.on_ended(why);
    }
}
