//! The I/O thread: drives one socket and one protocol core, with timers in nanoseconds.

mod icmp_errors;
mod poller;
mod socket;
mod socket_options;
mod thread_waker;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use bats_proto::Input;
use bats_types::Timestamp;

pub(crate) use poller::{Interest, Poller};
pub(crate) use socket::{Socket, canonical};
pub(crate) use socket_options::{MAX_DSCP, SocketOptions};
pub(crate) use thread_waker::ThreadWaker;

use crate::shared::Shared;
use crate::transport::Output;
use socket::{Bursts, Readiness, ReceiveBuffers};

/// Timer slack requested from the system: the default of 50 us is a fifth of a pacing interval.
const TIMER_SLACK_NS: u64 = 1;
/// Shortest sleep: the loop polls for earlier deadlines.
const SHORTEST_SLEEP: Duration = Duration::from_micros(5);

/// Starts the I/O thread. It ends when all handles of the endpoint and its connections are dropped
/// and the last connection has ended.
pub(crate) fn start(shared: Arc<Shared>, socket: Socket) -> io::Result<()> {
    thread::Builder::new().name("openbats-io".into()).spawn(move || {
        let mut guard = EndNotifier { shared: &shared, why: "the I/O thread panicked".into() };
        set_timer_slack();
        guard.why = match Driver::new(&shared, &socket).run() {
            Ok(()) => "all handles were dropped".into(),
            Err(error) => {
                tracing::error!(%error, "the I/O thread ends");
                error.to_string()
            }
        };
        // Tasks that are notified of the end can bind the address at once.
        drop(socket);
    })?;
    Ok(())
}

/// Notifies all waiting tasks when the thread ends, also after a panic.
struct EndNotifier<'a> {
    shared: &'a Shared,
    why: String,
}

impl Drop for EndNotifier<'_> {
    fn drop(&mut self) {
        self.shared.on_ended(std::mem::take(&mut self.why));
    }
}

fn set_timer_slack() {
    #[cfg(target_os = "linux")]
    if let Err(error) =
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(TIMER_SLACK_NS))
    {
        tracing::debug!(%error, "timers stay coarse");
    }
}

struct Driver<'a> {
    shared: &'a Shared,
    socket: &'a Socket,
    incoming: ReceiveBuffers,
    outgoing: Bursts,
    /// Remote addresses for which the system reported an unreachable port.
    unreachable_ports: Vec<SocketAddr>,
    /// Tasks to wake once the lock is released.
    due: Vec<Waker>,
}

/// The next step of the loop.
enum NextStep {
    /// Poll again at once: more packets are ready to be sent.
    Now,
    /// Sleep until this time or the next I/O event.
    Sleep(Option<Timestamp>),
    /// End the thread: no handles and no connections are left.
    Finish,
}

impl<'a> Driver<'a> {
    fn new(shared: &'a Shared, socket: &'a Socket) -> Self {
        Self {
            shared,
            socket,
            incoming: ReceiveBuffers::new(socket),
            outgoing: Bursts::new(),
            unreachable_ports: Vec::new(),
            due: Vec::new(),
        }
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            // Read pending errors first: otherwise they make the next call fail.
            self.unreachable_ports = self.socket.unreachable_ports();
            let received = self.socket.receive(&mut self.incoming)?;
            let next = self.process();
            self.due.drain(..).for_each(Waker::wake);
            let all_sent = self.socket.send(&mut self.outgoing)?;
            match next {
                NextStep::Finish => return Ok(()),
                _ if !all_sent => {
                    if self.shared.lock().is_terminated {
                        return Ok(());
                    }
                    self.sleep(None, Readiness::ReadOrWrite)?;
                }
                NextStep::Sleep(until) if !received => self.sleep(until, Readiness::Read)?,
                // More packets may follow: polling is cheaper than sleeping.
                NextStep::Sleep(_) => self.shared.lock().is_asleep = false,
                NextStep::Now => {}
            }
        }
    }

    /// Passes received packets to the core and collects the packets to send.
    fn process(&mut self) -> NextStep {
        let clock = &self.shared.clock;
        let mut core = self.shared.lock();
        // Before the received datagrams: the errors answer packets sent earlier.
        for closed in self.unreachable_ports.drain(..) {
            core.endpoint.handle_unreachable_port(closed);
        }
        for datagram in self.incoming.drain() {
            core.endpoint.handle(clock.now(), Input::Datagram(datagram));
        }
        core.endpoint.handle(clock.now(), Input::Timeout);
        core.check_untrusted_peers(clock);
        let next = loop {
            // Unsent packets go first; without free buffers, send before polling for more.
            let Some(buffer) = self.outgoing.room() else { break NextStep::Now };
            match core.endpoint.poll(clock.now(), buffer) {
                Output::Transmit(transmit) => self.outgoing.push(transmit),
                Output::Event(handle, event) => {
                    core.on_event(clock, handle, event, &mut self.due);
                }
                Output::Timeout(until) => break NextStep::Sleep(until),
            }
        };
        core.check_idle(&mut self.due);
        if matches!(next, NextStep::Sleep(_)) {
            if core.is_terminated {
                return NextStep::Finish;
            }
            if core.handles == 0 && core.is_idle() {
                return NextStep::Finish;
            }
            // From here on calls of the application wake the thread.
            core.is_asleep = true;
        }
        next
    }

    fn sleep(&self, until: Option<Timestamp>, readiness: Readiness) -> io::Result<()> {
        let timeout = until.map(|until| until - self.shared.clock.now());
        if timeout.is_some_and(|timeout| timeout < SHORTEST_SLEEP) {
            return Ok(());
        }
        let woken =
            self.socket.wait(&self.shared.thread_waker, &self.shared.poller, timeout, readiness)?;
        if woken {
            self.shared.thread_waker.reset();
        }
        Ok(())
    }
}
