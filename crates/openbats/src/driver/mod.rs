//! The I/O thread: one socket, one protocol core, deadlines in nanoseconds.

mod alarm;
mod marks;
mod poller;
mod socket;
mod unreachable;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use bats_proto::Input;
use bats_types::Timestamp;

pub(crate) use alarm::Alarm;
pub(crate) use marks::{MAX_DSCP, SocketOptions};
pub(crate) use poller::{Interest, Poller};
pub(crate) use socket::{Socket, canonical};

use crate::carrier::Output;
use crate::shared::Shared;
use socket::{Bursts, Readiness, ReceiveBuffers};

/// The timer slack asked of the system: the default of 50 us is a fifth of a pacing interval.
const TIMER_SLACK_NS: u64 = 1;
/// Least time to sleep: shorter deadlines are reached by looking again.
const SHORTEST_SLEEP: Duration = Duration::from_micros(5);

/// Starts the thread. It ends when nobody holds the endpoint or a connection of it any more and
/// the last connection has said its farewell.
pub(crate) fn start(shared: Arc<Shared>, socket: Socket) -> io::Result<()> {
    thread::Builder::new().name("openbats-io".into()).spawn(move || {
        let mut guard = EndGuard { shared: &shared, why: "the I/O thread panicked".into() };
        set_timer_slack();
        guard.why = match Driver::new(&shared, &socket).run() {
            Ok(()) => "all handles were dropped".into(),
            Err(error) => {
                tracing::error!(%error, "the I/O thread ends");
                error.to_string()
            }
        };
        // Who hears of the end may bind the address at once.
        drop(socket);
    })?;
    Ok(())
}

/// Tells everyone who waits, also after a panic.
struct EndGuard<'a> {
    shared: &'a Shared,
    why: String,
}

impl Drop for EndGuard<'_> {
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
    /// Where nobody listens, as the system said.
    closed_ports: Vec<SocketAddr>,
    /// Whom to wake once the lock is free.
    due: Vec<Waker>,
}

/// What the core wants next.
enum Next {
    /// More is ready to be sent at once.
    Now,
    /// Nothing before this time, or before something happens.
    Sleep(Option<Timestamp>),
    /// Nobody is left.
    End,
}

impl<'a> Driver<'a> {
    fn new(shared: &'a Shared, socket: &'a Socket) -> Self {
        Self {
            shared,
            socket,
            incoming: ReceiveBuffers::new(socket),
            outgoing: Bursts::new(),
            closed_ports: Vec::new(),
            due: Vec::new(),
        }
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            // Errors first: while one is pending, the next call would fail by it.
            self.closed_ports = self.socket.closed_ports();
            let received = self.socket.receive(&mut self.incoming)?;
            let next = self.turn();
            self.due.drain(..).for_each(Waker::wake);
            let all_sent = self.socket.send(&mut self.outgoing)?;
            match next {
                Next::End => return Ok(()),
                _ if !all_sent => {
                    if self.shared.lock().is_terminated {
                        return Ok(());
                    }
                    self.sleep(None, Readiness::ReadOrWrite)?;
                }
                Next::Sleep(until) if !received => self.sleep(until, Readiness::Read)?,
                // Something came in: more may wait, and a look is cheaper than a sleep.
                Next::Sleep(_) => self.shared.lock().is_asleep = false,
                Next::Now => {}
            }
        }
    }

    /// Hands what came in to the core and collects what it wants to send.
    fn turn(&mut self) -> Next {
        let clock = &self.shared.clock;
        let mut core = self.shared.lock();
        // Before anything else, as the answer to what was sent earlier.
        for closed in self.closed_ports.drain(..) {
            core.endpoint.handle_closed_port(closed);
        }
        for datagram in self.incoming.drain() {
            core.endpoint.handle(clock.now(), Input::Datagram(datagram));
        }
        core.endpoint.handle(clock.now(), Input::Timeout);
        core.check_strangers(clock);
        let next = loop {
            // What could not be sent goes first; there is room for more only behind it.
            let Some(buffer) = self.outgoing.room() else { break Next::Now };
            match core.endpoint.poll(clock.now(), buffer) {
                Output::Transmit(transmit) => self.outgoing.push(transmit),
                Output::Event(handle, event) => {
                    core.on_event(clock, handle, event, &mut self.due);
                }
                Output::Timeout(until) => break Next::Sleep(until),
            }
        };
        core.check_idle(&mut self.due);
        if matches!(next, Next::Sleep(_)) {
            if core.is_terminated {
                return Next::End;
            }
            if core.handles == 0 && core.is_idle() {
                return Next::End;
            }
            // From here on a call of the application rings the alarm.
            core.is_asleep = true;
        }
        next
    }

    fn sleep(&self, until: Option<Timestamp>, readiness: Readiness) -> io::Result<()> {
        let timeout = until.map(|until| until - self.shared.clock.now());
        if timeout.is_some_and(|timeout| timeout < SHORTEST_SLEEP) {
            return Ok(());
        }
        let rung = self.socket.wait(&self.shared.alarm, &self.shared.poller, timeout, readiness)?;
        if rung {
            self.shared.alarm.silence();
        }
        Ok(())
    }
}
