//! What the I/O thread and the application's calls share.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bats_proto::{CloseReason, ConnectionStats, Event, Mode};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::carrier::{Handle, Transports};
use crate::clock::Clock;
use crate::compress::{CompressionOffer, Packing};
use crate::driver::{Alarm, Poller};

/// Tasks that wait for one thing.
#[derive(Debug, Default)]
pub(crate) struct Wakers(SmallVec<[Waker; 1]>);

impl Wakers {
    pub(crate) fn register(&mut self, waker: &Waker) {
        if !self.0.iter().any(|known| known.will_wake(waker)) {
            self.0.push(waker.clone());
        }
    }

    fn drain_into(&mut self, due: &mut Vec<Waker>) {
        due.extend(self.0.drain(..));
    }
}

/// A connection as the application sees it.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) established: bool,
    /// What both ends agreed on, once established.
    pub(crate) mode: Mode,
    /// What is sent arrives, or the connection ends.
    pub(crate) is_reliable: bool,
    /// What this end wants of compression, and what came of it once established.
    pub(crate) wish: Option<CompressionOffer>,
    pub(crate) packing: Option<Packing>,
    /// The application holds a [`Connection`](crate::Connection) of it, or will.
    pub(crate) is_held: bool,
    /// A message was refused for want of budget, and there has been no room since.
    pub(crate) is_blocked: bool,
    /// The application has said that it sends no more.
    pub(crate) is_finished: bool,
    pub(crate) end: Option<End>,
    pub(crate) connecting: Wakers,
    pub(crate) reading: Wakers,
    pub(crate) writing: Wakers,
    pub(crate) finishing: Wakers,
}

/// What remains of a connection that is over.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) reason: CloseReason,
    /// Messages that had arrived in order and were not taken yet.
    pub(crate) messages: VecDeque<Bytes>,
    /// The peer had finished: after the messages comes an orderly end.
    pub(crate) finished: bool,
    pub(crate) all_acknowledged: bool,
    pub(crate) stats: ConnectionStats,
}

impl Slot {
    fn wake_all(&mut self, due: &mut Vec<Waker>) {
        for wakers in
            [&mut self.connecting, &mut self.reading, &mut self.writing, &mut self.finishing]
        {
            wakers.drain_into(due);
        }
    }
}

/// Connections that wait to be accepted, ended ones among them; more are closed at once.
const MAX_UNACCEPTED: usize = 256;

/// The code with which a peer is left whose message cannot be unpacked.
const BROKEN_MESSAGE: u64 = 1;

/// The state under the lock.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) endpoint: Transports,
    pub(crate) slots: BTreeMap<Handle, Slot>,
    /// Established by peers, not yet accepted by the application.
    pub(crate) accepted: VecDeque<(Handle, SocketAddr)>,
    /// What the server wants of compression.
    wish: Option<CompressionOffer>,
    /// Bytes that a connection of a peer may hold before the application vouches for it.
    stranger_budget: Option<usize>,
    /// Those for which it has not.
    strangers: BTreeSet<Handle>,
    pub(crate) accepting: Wakers,
    pub(crate) idling: Wakers,
    /// Endpoints and connections that the application holds.
    pub(crate) handles: usize,
    /// [`Endpoint`](crate::Endpoint)s among them.
    pub(crate) endpoints: usize,
    /// No new connections.
    pub(crate) is_shut_down: bool,
    /// Peers' new connections are closed; those there are live on.
    pub(crate) refuses_new: bool,
    /// The I/O thread ends after one more turn, whoever holds what.
    pub(crate) is_terminated: bool,
    /// Wait for the end of the I/O thread.
    pub(crate) ending: Wakers,
    /// The I/O thread sleeps and must be woken for anything new.
    pub(crate) is_asleep: bool,
    /// The I/O thread has ended, for this reason.
    pub(crate) ended: Option<String>,
}

impl Core {
    pub(crate) fn new(
        endpoint: Transports,
        wish: Option<CompressionOffer>,
        stranger_budget: Option<usize>,
    ) -> Self {
        Self {
            endpoint,
            wish,
            stranger_budget,
            strangers: BTreeSet::new(),
            slots: BTreeMap::new(),
            accepted: VecDeque::new(),
            accepting: Wakers::default(),
            idling: Wakers::default(),
            handles: 0,
            endpoints: 0,
            is_shut_down: false,
            refuses_new: false,
            is_terminated: false,
            ending: Wakers::default(),
            is_asleep: false,
            ended: None,
        }
    }

    /// Notes what the core says of a connection; who waited for it is put into `due`.
    pub(crate) fn on_event(
        &mut self,
        clock: &Clock,
        handle: Handle,
        event: Event,
        due: &mut Vec<Waker>,
    ) {
        match event {
            Event::Accepted => {
                if self.accepted.len() >= MAX_UNACCEPTED {
                    self.endpoint.close(clock.now(), handle, 0, "too many wait to be accepted");
                    return;
                }
                if self.is_shut_down || self.refuses_new || self.endpoints == 0 {
                    self.endpoint.close(clock.now(), handle, 0, "not accepting");
                    return;
                }
                let mode = self.endpoint.mode(handle).unwrap_or_default();
                let wish = self.wish;
                let packing = wish.and_then(|wish| wish.agree(self.endpoint.peer_limits(handle)));
                let slot = Slot {
                    established: true,
                    mode,
                    is_reliable: self.endpoint.is_reliable(handle),
                    wish,
                    packing,
                    is_held: true,
                    ..Slot::default()
                };
                self.slots.insert(handle, slot);
                let Some(remote) = self.endpoint.remote(handle) else { return };
                if self.stranger_budget.is_some() {
                    self.strangers.insert(handle);
                }
                self.accepted.push_back((handle, remote));
                self.accepting.drain_into(due);
            }
            Event::Closed(reason) => {
                self.strangers.remove(&handle);
                let stats = self.endpoint.stats(clock.now(), handle).unwrap_or_default();
                let Some(slot) = self.slots.get_mut(&handle) else { return };
                if !slot.is_held {
                    self.slots.remove(&handle);
                    return;
                }
                // Ended by the application's side of it already.
                if slot.end.is_some() {
                    return;
                }
                let mut messages = VecDeque::new();
                if reason != CloseReason::Local {
                    while let Some(message) = self.endpoint.recv(clock.now(), handle) {
                        messages.push_back(message);
                    }
                }
                slot.end = Some(End {
                    reason,
                    messages,
                    finished: self.endpoint.is_finished(handle),
                    all_acknowledged: self.endpoint.is_all_acknowledged(handle),
                    stats,
                });
                slot.wake_all(due);
            }
            event => {
                let Some(slot) = self.slots.get_mut(&handle) else { return };
                match event {
                    Event::Connected => {
                        slot.established = true;
                        slot.is_reliable = self.endpoint.is_reliable(handle);
                        let wish = slot.wish;
                        slot.packing =
                            wish.and_then(|wish| wish.agree(self.endpoint.peer_limits(handle)));
                        slot.mode = self.endpoint.mode(handle).unwrap_or_default();
                        slot.connecting.drain_into(due);
                    }
                    Event::Readable => slot.reading.drain_into(due),
                    Event::Writable => {
                        slot.is_blocked = false;
                        slot.writing.drain_into(due);
                    }
                    Event::AllAcknowledged => slot.finishing.drain_into(due),
                    _ => {}
                }
            }
        }
    }

    /// Ends a connection whose peer sent what cannot be read.
    pub(crate) fn condemn(&mut self, clock: &Clock, handle: Handle, rule: &str) -> CloseReason {
        let reason = CloseReason::PeerMisbehaved(rule.to_owned());
        let (now, endpoint) = (clock.now(), &mut self.endpoint);
        let Some(slot) = self.slots.get_mut(&handle) else { return reason };
        let stats = endpoint.stats(now, handle).unwrap_or_default();
        let all_acknowledged = endpoint.is_all_acknowledged(handle);
        endpoint.close(now, handle, BROKEN_MESSAGE, rule);
        slot.end = Some(End {
            reason: reason.clone(),
            messages: VecDeque::new(),
            finished: false,
            all_acknowledged,
            stats,
        });
        let mut due = Vec::new();
        slot.wake_all(&mut due);
        due.into_iter().for_each(Waker::wake);
        reason
    }

    /// The application vouches for a peer.
    pub(crate) fn trust_peer(&mut self, handle: Handle) {
        if self.strangers.remove(&handle) {
            self.endpoint.trust_peer(handle);
        }
    }

    /// Closes connections of strangers that hold more than they may.
    pub(crate) fn check_strangers(&mut self, clock: &Clock) {
        let Some(budget) = self.stranger_budget else { return };
        let (endpoint, now) = (&mut self.endpoint, clock.now());
        self.strangers.retain(|&handle| {
            let is_modest = endpoint.receive_buffer_bytes(handle) <= budget;
            if !is_modest {
                endpoint.close(now, handle, 0, "more than a stranger may send");
            }
            is_modest
        });
    }

    /// Closes everything that the application can no longer reach.
    fn close_unreachable(&mut self, clock: &Clock) {
        if self.endpoints == 0 || self.is_shut_down {
            self.endpoint.stop_listening();
            while let Some((handle, _)) = self.accepted.pop_front() {
                self.slots.remove(&handle);
                self.endpoint.close(clock.now(), handle, 0, "not accepted");
            }
        }
    }

    /// Whether nothing is left to be done for anybody.
    pub(crate) fn is_idle(&self) -> bool {
        self.endpoint.connection_count() == 0
    }
}

/// Everything of an endpoint.
#[derive(Debug)]
pub(crate) struct Shared {
    core: Mutex<Core>,
    pub(crate) alarm: Alarm,
    /// The sockets of connections over TCP.
    pub(crate) poller: Arc<Poller>,
    pub(crate) clock: Clock,
    pub(crate) local_addr: SocketAddr,
}

impl Shared {
    pub(crate) fn new(
        endpoint: Transports,
        (wish, stranger_budget): (Option<CompressionOffer>, Option<usize>),
        poller: Arc<Poller>,
        clock: Clock,
        local_addr: SocketAddr,
    ) -> io::Result<Arc<Self>> {
        let core = Mutex::new(Core::new(endpoint, wish, stranger_budget));
        Ok(Arc::new(Self { core, alarm: Alarm::new()?, poller, clock, local_addr }))
    }

    /// The lock. A thread that panicked under it leaves a state that is still consistent enough
    /// to say that the endpoint has ended.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call of the application that may give the I/O thread something to do.
    pub(crate) fn call<T>(&self, call: impl FnOnce(&mut Core, &Clock) -> T) -> T {
        let (result, asleep) = {
            let mut core = self.lock();
            let result = call(&mut core, &self.clock);
            (result, core::mem::take(&mut core.is_asleep))
        };
        if asleep {
            self.alarm.ring();
        }
        result
    }

    /// An application's handle is gone; `connection` names which, unless it was the endpoint's.
    pub(crate) fn on_dropped(&self, connection: Option<Handle>) {
        self.call(|core, clock| {
            core.handles -= 1;
            match connection {
                Some(handle) => {
                    if let Some(slot) = core.slots.get_mut(&handle) {
                        slot.is_held = false;
                        if slot.end.is_some() {
                            core.slots.remove(&handle);
                        } else {
                            core.endpoint.close(clock.now(), handle, 0, "");
                        }
                    }
                }
                None => core.endpoints -= 1,
            }
            core.close_unreachable(clock);
        });
    }

    /// Ends everything orderly, if it has not ended yet.
    pub(crate) fn shut_down(&self, code: u64, reason: &str) {
        self.call(|core, clock| {
            core.is_shut_down = true;
            core.endpoint.stop_listening();
            core.close_unreachable(clock);
            let open: Vec<_> = core
                .slots
                .iter()
                .filter(|(_, slot)| slot.end.is_none())
                .map(|(handle, _)| *handle)
                .collect();
            for handle in open {
                core.endpoint.close(clock.now(), handle, code, reason);
            }
            let mut due = Vec::new();
            core.accepting.drain_into(&mut due);
            due.into_iter().for_each(Waker::wake);
        });
    }

    /// Asks the I/O thread to end as soon as the peers have been told once.
    pub(crate) fn terminate(&self) {
        self.call(|core, _| core.is_terminated = true);
    }

    /// The I/O thread ends: whoever waits must know.
    pub(crate) fn on_ended(&self, why: String) {
        let mut due = Vec::new();
        let mut core = self.lock();
        for slot in core.slots.values_mut() {
            slot.wake_all(&mut due);
        }
        core.accepting.drain_into(&mut due);
        core.idling.drain_into(&mut due);
        core.ending.drain_into(&mut due);
        core.endpoint.abandon();
        core.ended = Some(why);
        drop(core);
        due.into_iter().for_each(Waker::wake);
    }
}

impl Core {
    /// Wakes who waits for idleness, if it has come.
    pub(crate) fn check_idle(&mut self, due: &mut Vec<Waker>) {
        if self.is_idle() {
            self.idling.drain_into(due);
        }
    }
}
