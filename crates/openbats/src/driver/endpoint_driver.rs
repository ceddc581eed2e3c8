//! The turns of one endpoint on its I/O thread.

use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bats_proto::{Input, Received};
use bats_types::Timestamp;

use super::Interest;
use super::icmp_errors::UnreachablePort;
use super::socket::ReceiveBuffers;
use super::socket_turn::SocketTurn;
use super::timers::timers_until;
use crate::shared::Shared;
use crate::siblings::Passed;

/// The I/O of one endpoint.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) shared: Arc<Shared>,
    /// Errors that the system reported since the last turn.
    unreachable_ports: Vec<UnreachablePort>,
    /// Tasks to wake once the lock is released.
    due: Vec<Waker>,
}

/// When an endpoint needs its next turn.
pub(super) enum Next {
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
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, unreachable_ports: Vec::new(), due: Vec::new() }
    }

    /// Receives, processes and sends once. `is_by_timer`: nothing but the time has changed since the last turn.
    pub(super) fn turn(
        &mut self,
        incoming: &mut ReceiveBuffers,
        is_by_timer: bool,
    ) -> io::Result<Next> {
        if is_by_timer && let Some(next) = self.skipped_turn() {
            return Ok(next);
        }
        let shared = Arc::clone(&self.shared);
        let mut guard = shared.lock_socket();
        let Some(turn) = guard.as_mut() else { return Ok(Next::Finish) };
        let read_at = shared.clock.now();
        // Another thread that serves the socket may not have run for long. Before a timer is handled, what waits
        // is read here: an acknowledgement among it stops the probe timer.
        let reads = shared.lock().custody.io_has_work(read_at);
        // Read pending errors first: otherwise they make the next call fail.
        self.unreachable_ports = turn.socket.unreachable_ports();
        let received = reads && turn.socket.receive(incoming)?;
        let (next, interest) = self.process(turn, incoming, (received, read_at));
        let sent = turn.socket.send(&mut turn.outgoing);
        if !self.due.is_empty() {
            // A waker may run its task, which may call this endpoint.
            drop(guard);
            self.due.drain(..).for_each(Waker::wake);
            guard = shared.lock_socket();
        }
        let Some(turn) = guard.as_mut() else { return Ok(Next::Finish) };
        let all_sent = sent?;
        let next = match next {
            Next::Finish => return Ok(Next::Finish),
            _ if !all_sent => match self.shared.lock().is_terminated {
                true => return Ok(Next::Finish),
                false => Next::SleepUntilWritable,
            },
            // More packets may follow: polling is cheaper than sleeping.
            Next::Sleep(_) if received => {
                self.shared.lock().is_asleep = false;
                Next::Now
            }
            next => next,
        };
        let interest = match next {
            Next::SleepUntilWritable => Interest::ReadWrite,
            _ => interest,
        };
        shared.waker.watch(turn, interest)?;
        Ok(next)
    }

    /// When the next turn is, if there is nothing to do in this one: a thread of the application serves the
    /// socket. Such a thread would wait for the locks of a whole turn.
    fn skipped_turn(&self) -> Option<Next> {
        let mut core = self.shared.lock();
        let now = self.shared.clock.now();
        if !core.is_asleep || core.custody.io_has_work(now) {
            return None;
        }
        // The socket events stay as they are: none while it is served.
        let (_, until) = core.custody.io_sleeps(now);
        Some(Next::Sleep(until.map(|until| until - now)))
    }

    /// Passes packets to the core that were received, if any, after `read_at`, and collects the packets to send.
    pub(super) fn process(
        &mut self,
        turn: &mut SocketTurn,
        incoming: &mut ReceiveBuffers,
        (received, read_at): (bool, Timestamp),
    ) -> (Next, Interest) {
        let clock = &self.shared.clock;
        let mut core = self.shared.lock();
        // Before the received datagrams: the errors answer packets sent earlier.
        let siblings = &self.shared.siblings;
        for error in self.unreachable_ports.drain(..) {
            siblings.pass_error(&error);
            core.endpoint.handle_unreachable_port(clock.now(), error.remote, &error.quoted);
        }
        for datagram in incoming.drain() {
            if let Some(datagram) = siblings.keep_or_pass(datagram) {
                core.endpoint.handle(clock.now(), Input::Datagram(datagram));
            }
        }
        for passed in siblings.drain() {
            match passed {
                Passed::Datagram { remote, local_ip, ecn, mut payload } => {
                    let payload = &mut payload;
                    let datagram = Received { remote, local_ip, ecn, payload };
                    core.endpoint.handle(clock.now(), Input::Datagram(datagram));
                }
                Passed::UnreachablePort(error) => {
                    let UnreachablePort { remote, quoted } = error;
                    core.endpoint.handle_unreachable_port(clock.now(), remote, &quoted);
                }
            }
        }
        core.endpoint.handle(timers_until(read_at, clock.now()), Input::Timeout);
        core.check_untrusted_peers(clock);
        core.drive_node(clock.now(), &mut self.due);
        let has_more =
            turn.collect((&mut core, self.shared.left()), clock, usize::MAX, true, &mut self.due);
        if received {
            core.custody.on_received();
        }
        core.check_idle(&mut self.due);
        let now = clock.now();
        let (interest, until) = core.custody.io_sleeps(now);
        if has_more {
            return (Next::Now, interest);
        }
        if core.is_terminated || core.handles == 0 && core.is_idle() {
            return (Next::Finish, interest);
        }
        // From here on calls of the application wake the thread.
        core.is_asleep = true;
        (Next::Sleep(until.map(|until| until - now)), interest)
    }

    /// Ends the endpoint and notifies all waiting tasks.
    pub(super) fn end(self, why: String) {
        self.shared.stop_leader();
        // Tasks that are notified of the end can bind the address at once.
        drop(self.shared.lock_socket().take());
        self.shared.on_ended(why);
    }
}
