//! The state that the I/O thread and the application's calls share.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Waker;
use std::time::Duration;

use bats_proto::{CloseReason, ConnectionStats, Event, Mode, Timestamp};
use bytes::Bytes;

use crate::channel_wakers::ChannelWakers;
use crate::clock::Clock;
use crate::compress::{CompressionOffer, MessageCodec};
use crate::driver::{Custody, EndpointWaker, LazyPoller, SocketTurn};
use crate::node::{NodeId, NodeState};
use crate::transport::{Handle, Transports};
use crate::wakers::Wakers;

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
    /// The other end of a session over relays that was accepted.
    pub(crate) remote_node: Option<NodeId>,
    /// The application holds a [`Connection`](crate::Connection) to it, or will get one.
    pub(crate) is_held: bool,
    /// Whether a message was refused because the send budget was used up, and no space has become free
    /// since.
    pub(crate) is_blocked: bool,
    /// Whether the application has finished sending.
    pub(crate) is_finished: bool,
    pub(crate) end: Option<FinalState>,
    pub(crate) connecting: Wakers,
    pub(crate) reading: Wakers,
    pub(crate) writing: Wakers,
    pub(crate) finishing: Wakers,
    pub(crate) channels: ChannelWakers,
}

impl Slot {
    /// Whether the task of `waker` alone waits for the connection, for a message; without one, no
    /// task does.
    fn has_only_reader(&self, waker: Option<&Waker>) -> bool {
        self.reading.has_only(waker)
            && [&self.connecting, &self.writing, &self.finishing]
                .iter()
                .all(|wakers| wakers.has_only(None))
            && self.channels.is_empty()
    }
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
        self.channels.wake_all(due);
    }
}

/// Limit of connections that wait to be accepted, ended ones included; more are closed at once. All
/// have completed their handshakes. After an outage thousands of clients may reconnect while the
/// application does something else.
const MAX_UNACCEPTED: usize = 4_096;

/// Connections of an endpoint up to which a thread of the application may serve the socket.
const MAX_CONNECTIONS_TO_LEAD: usize = 4;

/// Maximum number of bursts that the thread of a call sends.
const BURSTS_PER_CALL: usize = 2;

/// Longest time for a thread of the application to leave the socket of an endpoint that ends. It
/// leaves within microseconds unless a waker blocks it.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);

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
    pub(crate) custody: Custody,
    /// Why the I/O thread has ended.
    pub(crate) ended: Option<String>,
    /// Links and routes, if the endpoint is a node's.
    pub(crate) node: Option<Box<NodeState>>,
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
            custody: Custody::default(),
            ended: None,
            node: None,
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
        if self.takes_node_event(clock.now(), handle, &event, due) {
            return;
        }
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
                    remote_node: self.endpoint.remote_node(handle),
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
                    event => slot.channels.on_event(&event, due),
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
        let mut due = Vec::new();
        self.end_for(clock.now(), handle, &reason, &mut due);
        self.endpoint.close(clock.now(), handle, INVALID_MESSAGE, rule);
        due.into_iter().for_each(Waker::wake);
        reason
    }

    /// Ends the application's side of a connection that this end closes, with this reason.
    pub(crate) fn end_for(
        &mut self,
        now: Timestamp,
        handle: Handle,
        reason: &CloseReason,
        due: &mut Vec<Waker>,
    ) {
        let Some(slot) = self.slots.get_mut(&handle) else { return };
        slot.end = Some(FinalState {
            reason: reason.clone(),
            messages: VecDeque::new(),
            finished: false,
            all_acknowledged: self.endpoint.is_all_acknowledged(handle),
            stats: self.endpoint.stats(now, handle).unwrap_or_default(),
        });
        slot.wake_all(due);
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

    /// Whether only the task of `waker` waits for something of this endpoint: a message of this
    /// connection. Otherwise the I/O thread serves all of them.
    pub(crate) fn waits_alone(&self, handle: Handle, waker: &Waker) -> bool {
        self.slots.len() <= MAX_CONNECTIONS_TO_LEAD
            && self
                .slots
                .iter()
                .all(|(one, slot)| slot.has_only_reader((*one == handle).then_some(waker)))
    }

    /// Whether no connections are left, closing ones included.
    pub(crate) fn is_idle(&self) -> bool {
        self.endpoint.connection_count() == 0
    }
}

/// Work that a call of the application may leave to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FollowUp {
    Nothing,
    /// A control packet may be due.
    Poll,
    /// A message is to be sent.
    Send,
    /// The I/O thread must handle it.
    Wake,
}

/// The whole state of an endpoint.
#[derive(Debug)]
pub(crate) struct Shared {
    core: Mutex<Core>,
    /// The socket, from the start of the I/O thread to its end. Locked before the core.
    socket: Mutex<Option<SocketTurn>>,
    /// A thread of the application has stopped serving the socket.
    pub(crate) lead_ended: Condvar,
    /// Time for which a blocked receiver polls for packets before it sleeps.
    pub(crate) busy_poll: Duration,
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
        (clock, busy_poll): (Clock, Duration),
        local_addr: SocketAddr,
    ) -> Arc<Self> {
        let core = Mutex::new(Core::new(endpoint, compression_offer, untrusted_peer_budget));
        Arc::new(Self {
            core,
            socket: Mutex::new(None),
            lead_ended: Condvar::new(),
            busy_poll,
            waker: EndpointWaker::default(),
            poller,
            clock,
            local_addr,
        })
    }

    /// Locks the state. After a panic in another thread the state is still consistent enough to
    /// report that the endpoint has ended.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_socket(&self) -> MutexGuard<'_, Option<SocketTurn>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the socket unless another thread has its turn.
    fn try_lock_socket(&self) -> Option<MutexGuard<'_, Option<SocketTurn>>> {
        match self.socket.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Locks the socket unless the lock may take long.
    pub(crate) fn lock_socket_soon(&self) -> Option<MutexGuard<'_, Option<SocketTurn>>> {
        if let Some(guard) = self.try_lock_socket() {
            return Some(guard);
        }
        let is_led = self.lock().custody.is_led();
        is_led.then(|| self.lock_socket())
    }

    /// Runs a call of the application that sends or reads a message. If the I/O thread sleeps, this
    /// thread sends the resulting packets at once or wakes the I/O thread.
    pub(crate) fn call_inline<T>(
        &self,
        call: impl FnOnce(&mut Core, &Clock) -> (T, FollowUp),
    ) -> T {
        let mut guard = self.lock_socket_soon();
        let mut core = self.lock();
        let (result, follow_up) = call(&mut core, &self.clock);
        if follow_up == FollowUp::Send {
            core.custody.on_send(std::thread::current().id());
        }
        if !core.is_asleep || follow_up == FollowUp::Nothing {
            return result;
        }
        let turn = guard.as_mut().and_then(|guard| guard.as_mut());
        let may_send = match follow_up {
            FollowUp::Nothing | FollowUp::Wake => false,
            FollowUp::Poll => true,
            FollowUp::Send => core.custody.may_send(self.clock.now()),
        };
        let Some(turn) = turn.filter(|_| may_send) else {
            core.is_asleep = false;
            drop((core, guard));
            self.waker.wake();
            return result;
        };
        let mut due = Vec::new();
        let has_more = turn.collect(&mut core, &self.clock, BURSTS_PER_CALL, false, &mut due);
        let must_wake = core.custody.must_wake_io(self.clock.now()) || has_more;
        drop(core);
        // The I/O thread handles errors.
        let all_sent = matches!(turn.send(), Ok(true));
        drop(guard);
        // A waker may run its task, which may call this endpoint.
        due.into_iter().for_each(Waker::wake);
        if must_wake || !all_sent {
            self.waker.wake();
        }
        result
    }

    /// Makes a thread of the application leave the socket permanently.
    pub(crate) fn stop_leader(&self) {
        let mut core = self.lock();
        core.custody.stop();
        let waits = self
            .lead_ended
            .wait_timeout_while(core, LEAVE_LIMIT, |core| core.custody.is_led_now())
            .unwrap_or_else(PoisonError::into_inner);
        drop(waits);
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
            if let Some(node) = &mut core.node {
                node.wake_all(&mut due);
            }
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
        if let Some(node) = &mut core.node {
            node.wake_all(&mut due);
        }
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
