//! The state that the I/O thread and the application's calls share.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bats_proto::{CloseReason, ConnectionStats, Event, Mode};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::clock::Clock;
use crate::compress::{CompressionOffer, MessageCodec};
use crate::driver::{EndpointWaker, LazyPoller};
use crate::transport::{Handle, Transports};

/// Tasks that wait for the same event.
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

/// The application's view of a connection.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) established: bool,
    /// The negotiated mode, once established.
    pub(crate) mode: Mode,
    /// Messages arrive, or the connection ends.
    pub(crate) is_reliable: bool,
    /// This end's compression offer, and the negotiated codec once established.
    pub(crate) compression_offer: Option<CompressionOffer>,
    pub(crate) codec: Option<MessageCodec>,
    /// The application holds a [`Connection`](crate::Connection) to it, or will get one.
    pub(crate) is_held: bool,
    /// A message was refused because the send budget was used up, and no room has become free
    /// since.
    pub(crate) is_blocked: bool,
    /// The application has finished sending.
    pub(crate) is_finished: bool,
    pub(crate) end: Option<FinalState>,
    pub(crate) connecting: Wakers,
    pub(crate) reading: Wakers,
    pub(crate) writing: Wakers,
    pub(crate) finishing: Wakers,
}

/// The final state of a connection that has ended.
#[derive(Debug)]
pub(crate) struct FinalState {
    pub(crate) reason: CloseReason,
    /// Messages received in order and not yet taken by the application.
    pub(crate) messages: VecDeque<Bytes>,
    /// The peer had finished: `recv` returns `None` after the last message.
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

/// Limit of connections that wait to be accepted, ended ones included; more are closed at once. All
/// have completed their handshakes. After an outage thousands of clients may reconnect while the
/// application does something else.
const MAX_UNACCEPTED: usize = 4_096;

/// The close code for a peer whose message cannot be decoded.
const INVALID_MESSAGE: u64 = 1;

/// The state under the lock.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) endpoint: Transports,
    pub(crate) slots: BTreeMap<Handle, Slot>,
    /// Established by peers, not yet accepted by the application.
    pub(crate) accepted: VecDeque<(Handle, SocketAddr)>,
    /// The server's compression offer.
    compression_offer: Option<CompressionOffer>,
    /// Bytes that the connection of an untrusted peer may hold.
    untrusted_peer_budget: Option<usize>,
    /// Accepted connections whose peers the application has not marked as trusted.
    untrusted_peers: BTreeSet<Handle>,
    pub(crate) accepting: Wakers,
    pub(crate) idling: Wakers,
    /// Endpoints and connections that the application holds.
    pub(crate) handles: usize,
    /// [`Endpoint`](crate::Endpoint)s among the handles.
    pub(crate) endpoints: usize,
    /// The endpoint opens and accepts no connections.
    pub(crate) is_shut_down: bool,
    /// New connections of peers are closed; open ones stay open.
    pub(crate) refuses_new: bool,
    /// The I/O thread ends after one more iteration, regardless of open handles.
    pub(crate) is_terminated: bool,
    /// Tasks that wait for the end of the I/O thread.
    pub(crate) ending: Wakers,
    /// The I/O thread sleeps and must be woken for new work.
    pub(crate) is_asleep: bool,
    /// Why the I/O thread has ended.
    pub(crate) ended: Option<String>,
}

impl Core {
    pub(crate) fn new(
        endpoint: Transports,
        compression_offer: Option<CompressionOffer>,
        untrusted_peer_budget: Option<usize>,
    ) -> Self {
        Self {
            endpoint,
            compression_offer,
            untrusted_peer_budget,
            untrusted_peers: BTreeSet::new(),
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

    /// Applies an event of the protocol to its connection and collects the wakers of waiting tasks
    /// in `due`.
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
                    self.endpoint.close(clock.now(), handle, 0, "too many unaccepted connections");
                    return;
                }
                if self.is_shut_down || self.refuses_new || self.endpoints == 0 {
                    self.endpoint.close(clock.now(), handle, 0, "not accepting");
                    return;
                }
                let mode = self.endpoint.mode(handle).unwrap_or_default();
                let compression_offer = self.compression_offer;
                let codec = compression_offer
                    .and_then(|offer| offer.negotiate(self.endpoint.peer_limits(handle)));
                let slot = Slot {
                    established: true,
                    mode,
                    is_reliable: self.endpoint.is_reliable(handle),
                    compression_offer,
                    codec,
                    is_held: true,
                    ..Slot::default()
                };
                self.slots.insert(handle, slot);
                let Some(remote) = self.endpoint.remote(handle) else { return };
                if self.untrusted_peer_budget.is_some() {
                    self.untrusted_peers.insert(handle);
                }
                self.accepted.push_back((handle, remote));
                self.accepting.drain_into(due);
            }
            Event::Closed(reason) => {
                self.untrusted_peers.remove(&handle);
                let stats = self.endpoint.stats(clock.now(), handle).unwrap_or_default();
                let Some(slot) = self.slots.get_mut(&handle) else { return };
                if !slot.is_held {
                    self.slots.remove(&handle);
                    return;
                }
                // The application's side has already ended it.
                if slot.end.is_some() {
                    return;
                }
                let mut messages = VecDeque::new();
                if reason != CloseReason::Local {
                    while let Some(message) = self.endpoint.recv(clock.now(), handle) {
                        messages.push_back(message);
                    }
                }
                slot.end = Some(FinalState {
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
                        let compression_offer = slot.compression_offer;
                        slot.codec = compression_offer
                            .and_then(|offer| offer.negotiate(self.endpoint.peer_limits(handle)));
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

    /// Closes a connection whose peer sent a message that cannot be decoded.
    pub(crate) fn close_for_violation(
        &mut self,
        clock: &Clock,
        handle: Handle,
        rule: &str,
    ) -> CloseReason {
        let reason = CloseReason::PeerMisbehaved(rule.to_owned());
        let (now, endpoint) = (clock.now(), &mut self.endpoint);
        let Some(slot) = self.slots.get_mut(&handle) else { return reason };
        let stats = endpoint.stats(now, handle).unwrap_or_default();
        let all_acknowledged = endpoint.is_all_acknowledged(handle);
        endpoint.close(now, handle, INVALID_MESSAGE, rule);
        slot.end = Some(FinalState {
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

    /// Marks a peer as trusted.
    pub(crate) fn trust_peer(&mut self, handle: Handle) {
        if self.untrusted_peers.remove(&handle) {
            self.endpoint.trust_peer(handle);
        }
    }

    /// Closes connections of untrusted peers that exceed their budget.
    pub(crate) fn check_untrusted_peers(&mut self, clock: &Clock) {
        let Some(budget) = self.untrusted_peer_budget else { return };
        let (endpoint, now) = (&mut self.endpoint, clock.now());
        self.untrusted_peers.retain(|&handle| {
            let is_within_budget = endpoint.receive_buffer_bytes(handle) <= budget;
            if !is_within_budget {
                endpoint.close(now, handle, 0, "receive limit of an untrusted peer exceeded");
            }
            is_within_budget
        });
    }

    /// Closes connections that the application can no longer accept.
    fn close_unreachable(&mut self, clock: &Clock) {
        if self.endpoints == 0 || self.is_shut_down {
            self.endpoint.stop_listening();
            while let Some((handle, _)) = self.accepted.pop_front() {
                self.slots.remove(&handle);
                self.endpoint.close(clock.now(), handle, 0, "not accepted");
            }
        }
    }

    /// Whether no connections are left, closing ones included.
    pub(crate) fn is_idle(&self) -> bool {
        self.endpoint.connection_count() == 0
    }
}

/// The whole state of an endpoint.
#[derive(Debug)]
pub(crate) struct Shared {
    core: Mutex<Core>,
    pub(crate) waker: EndpointWaker,
    /// Polls the sockets of TCP connections.
    pub(crate) poller: Arc<LazyPoller>,
    pub(crate) clock: Clock,
    pub(crate) local_addr: SocketAddr,
}

impl Shared {
    pub(crate) fn new(
        endpoint: Transports,
        (compression_offer, untrusted_peer_budget): (Option<CompressionOffer>, Option<usize>),
        poller: Arc<LazyPoller>,
        clock: Clock,
        local_addr: SocketAddr,
    ) -> Arc<Self> {
        let core = Mutex::new(Core::new(endpoint, compression_offer, untrusted_peer_budget));
        Arc::new(Self { core, waker: EndpointWaker::default(), poller, clock, local_addr })
    }

    /// Locks the state. After a panic in another thread the state is still consistent enough to
    /// report that the endpoint has ended.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call of the application and wakes the I/O thread if it sleeps.
    pub(crate) fn call<T>(&self, call: impl FnOnce(&mut Core, &Clock) -> T) -> T {
        let (result, asleep) = {
            let mut core = self.lock();
            let result = call(&mut core, &self.clock);
            (result, core::mem::take(&mut core.is_asleep))
        };
        if asleep {
            self.waker.wake();
        }
        result
    }

    /// Handles the drop of a connection's handle, or of an endpoint's if `connection` is `None`.
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

    /// Closes all connections and stops accepting.
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

    /// Asks the I/O thread to end after it has sent the pending packets once.
    pub(crate) fn terminate(&self) {
        self.call(|core, _| core.is_terminated = true);
    }

    /// Wakes all waiting tasks when the I/O thread ends.
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
    /// Wakes the tasks that wait for [`is_idle`](Self::is_idle) if it holds.
    pub(crate) fn check_idle(&mut self, due: &mut Vec<Waker>) {
        if self.is_idle() {
            self.idling.drain_into(due);
        }
    }
}
