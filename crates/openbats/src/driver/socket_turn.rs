//! The socket of an endpoint and the state of its turns, for the thread that has the turn.

use std::io;
use std::sync::Arc;
use std::task::Waker;

use bats_types::Timestamp;

use super::socket::Bursts;
use super::{Interest, Sockets, ThreadWaker};
use crate::clock::Clock;
use crate::endpoint_state::Core;
use crate::transport::Output;
use crate::work::SharedWork;

/// State of a turn. It has a lock of its own, which is taken before that of the core.
#[derive(Debug)]
pub(crate) struct SocketTurn {
    pub(super) socket: Arc<Sockets>,
    pub(super) outgoing: Bursts,
    /// Socket events that the I/O thread waits for.
    pub(super) interest: Interest,
    /// Ends the wait of a leader; set when the first leader waits.
    lead_event: Option<Arc<ThreadWaker>>,
}

impl SocketTurn {
    pub(super) fn new(socket: Sockets) -> Self {
        let (outgoing, interest) = (Bursts::new(), Interest::Read);
        Self { socket: Arc::new(socket), outgoing, interest, lead_event: None }
    }

    /// Hands the packets of all threads of the endpoint to the first.
    #[cfg(test)]
    pub(crate) fn steer_to_first(&self) {
        self.socket.steer_to_first();
    }

    /// The event that ends the wait of a leader.
    pub(super) fn lead_event(&mut self) -> io::Result<Arc<ThreadWaker>> {
        let event = match self.lead_event.take() {
            Some(event) => event,
            None => Arc::new(ThreadWaker::new()?),
        };
        Ok(Arc::clone(self.lead_event.insert(event)))
    }

    /// Sends what was collected; returns `false` if the send buffer of the socket is full.
    pub(crate) fn send(&mut self) -> io::Result<bool> {
        self.socket.send(&mut self.outgoing)
    }

    /// Does what calls have left, and collects at most `limit` bursts to send and the tasks to wake. `is_turn`: the
    /// timers that are due were handled. Returns whether more is to be sent.
    pub(crate) fn collect(
        &mut self,
        (core, left): (&mut Core, &SharedWork),
        clock: &Clock,
        limit: usize,
        is_turn: bool,
        due: &mut Vec<Waker>,
    ) -> bool {
        left.apply(core);
        core.custody.taken = Default::default();
        let (mut bursts, mut has_events, mut now) = (0, false, clock.now());
        let mut looks_again = true;
        loop {
            // Unsent packets go first; without free buffers, send before polling for more.
            let Some(buffer) = self.outgoing.room().filter(|_| bursts < limit) else { return true };
            match core.endpoint.poll(now, buffer) {
                Output::Transmit(transmit) => {
                    self.outgoing.push(transmit);
                    bursts += 1;
                    // A burst takes long enough to make the next one due.
                    now = clock.now();
                }
                Output::Event(handle, event) => {
                    has_events = true;
                    core.on_event(clock, handle, event, due);
                }
                Output::Timeout(_) if core.is_terminated && core.close_links(now) => {}
                // Once: calls that come all the time must not keep this turn from its end. What they leave now is done
                // when the core is unlocked.
                Output::Timeout(_) if looks_again && left.apply(core) => {
                    core.custody.taken = Default::default();
                    (looks_again, now) = (false, clock.now());
                }
                Output::Timeout(until) => {
                    let until = Timestamp::earlier(until, core.node_timeout());
                    if is_turn {
                        core.custody.end_turn(until, now, has_events || bursts > 0);
                    } else {
                        core.custody.set_deadline(until, now);
                    }
                    return false;
                }
            }
        }
    }
}
