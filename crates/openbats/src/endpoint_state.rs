//! The state of an endpoint under its lock: its connections, the tasks that wait, and the state of its node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::task::Waker;
use std::time::Duration;

use bats_proto::{CloseReason, Event, Timestamp};

use crate::clock::Clock;
use crate::compress::CompressionOffer;
use crate::driver::Custody;
use crate::node::NodeState;
use crate::slot::{FinalState, SharedSlot, Slot};
use crate::transport::{Handle, Transports};
use crate::wakers::Wakers;

/// Limit of connections that wait to be accepted, ended ones included; more are closed at once. All
/// have completed their handshakes. After an outage thousands of clients may reconnect while the
/// application does something else.
const MAX_UNACCEPTED: usize = 4_096;

/// Connections of an endpoint up to which a thread of the application may serve the socket.
const MAX_CONNECTIONS_TO_LEAD: usize = 4;

/// Interval at which a node that is about to end looks for open sessions.
const END_INTERVAL: Duration = Duration::from_millis(20);

/// The close code for a peer whose message cannot be decoded.
const INVALID_MESSAGE: u64 = 1;

/// The state under the lock.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) endpoint: Transports,
    pub(crate) slots: BTreeMap<Handle, SharedSlot>,
    /// Established by peers, not yet accepted by the application. Sessions over relays have no address.
    pub(crate) accepted: VecDeque<(Handle, Option<SocketAddr>)>,
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

    /// Adds the slot of a new connection.
    pub(crate) fn add_slot(&mut self, handle: Handle, slot: Slot) {
        let slot = Slot { calls: self.endpoint.calls(handle), ..slot };
        self.slots.insert(handle, SharedSlot::new(slot));
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
                    peer_fingerprint: self.endpoint.peer_fingerprint(handle),
                    is_held: true,
                    ..Slot::default()
                };
                self.add_slot(handle, slot);
                let remote = self.endpoint.remote(handle);
                if self.untrusted_peer_budget.is_some() {
                    self.untrusted_peers.insert(handle);
                }
                self.accepted.push_back((handle, remote));
                self.accepting.drain_into(due);
            }
            Event::Closed(reason) => {
                self.untrusted_peers.remove(&handle);
                let Some(slot) = self.slots.get(&handle).cloned() else { return };
                let mut slot = slot.lock();
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
                // What the application may still take counts as received.
                let stats = self.endpoint.stats(clock.now(), handle).unwrap_or_default();
                slot.end = Some(FinalState {
                    reason,
                    messages,
                    finished: self.endpoint.is_finished(handle),
                    all_acknowledged: self.endpoint.is_all_acknowledged(handle),
                    stats,
                });
                slot.calls = None;
                slot.wake_all(due);
                if slot.is_link {
                    self.slots.remove(&handle);
                }
            }
            event => {
                let Some(slot) = self.slots.get(&handle) else { return };
                let slot = &mut *slot.lock();
                match event {
                    Event::Connected => {
                        slot.established = true;
                        slot.peer_fingerprint = self.endpoint.peer_fingerprint(handle);
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
        let Some(slot) = self.slots.get(&handle) else { return };
        let mut slot = slot.lock();
        slot.end = Some(FinalState {
            reason: reason.clone(),
            messages: VecDeque::new(),
            finished: false,
            all_acknowledged: self.endpoint.is_all_acknowledged(handle),
            stats: self.endpoint.stats(now, handle).unwrap_or_default(),
        });
        slot.calls = None;
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
    pub(crate) fn close_unreachable(&mut self, clock: &Clock) {
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
                .all(|(one, slot)| slot.lock().has_only_reader((*one == handle).then_some(waker)))
    }

    /// Whether no connections are left, closing ones included.
    pub(crate) fn is_idle(&self) -> bool {
        self.endpoint.connection_count() == 0
    }

    /// Wakes the tasks that wait for [`is_idle`](Self::is_idle) if it holds.
    pub(crate) fn check_idle(&mut self, due: &mut Vec<Waker>) {
        if self.is_idle() {
            self.idling.drain_into(due);
        }
    }

    // Nodes.

    /// Handles the event of a link, or refuses a session. Returns whether the event needs no further
    /// handling.
    fn takes_node_event(
        &mut self,
        now: Timestamp,
        handle: Handle,
        event: &Event,
        due: &mut Vec<Waker>,
    ) -> bool {
        let (Some(node), Handle::Packets(connection)) = (&mut self.node, handle) else {
            return false;
        };
        let packets = self.endpoint.packets();
        match packets.remote_node(connection) {
            Some(remote) => {
                let refused = node.refuse_session(now, packets, connection, (remote, event), due);
                let Some(reason) = refused else { return false };
                self.end_for(now, handle, &CloseReason::Handshake(reason), due);
                true
            }
            None => {
                let is_over = self.is_shut_down || self.refuses_new || self.endpoints == 0;
                node.on_link_event(now, packets, connection, (event, is_over), due);
                // The rest is for the session of the link, if there is one.
                !self.slots.contains_key(&handle)
            }
        }
    }

    /// Does the work that is due: opens links, reports events of the relay, closes the links of a node
    /// that ends.
    pub(crate) fn drive_node(&mut self, now: Timestamp, due: &mut Vec<Waker>) {
        let is_ending = self.handles == 0 || self.is_shut_down;
        let Some(node) = &mut self.node else { return };
        let packets = self.endpoint.packets();
        while let Some(event) = packets.poll_relay_event() {
            node.on_relay_event(event, due);
        }
        while let Some((handle, _)) = packets.poll_group_event() {
            if let Some(waiting) = node.groups.get_mut(&handle) {
                waiting.drain_into(due);
            }
        }
        if is_ending {
            // Sessions and senders to groups end first: their last packets go over the links.
            let awaits_senders = !self.is_shut_down && packets.has_group_senders();
            if packets.connection_count() <= node.links.connections() && !awaits_senders {
                node.close_all(now, packets, due);
            }
            node.next_check = (packets.connection_count() > 0).then(|| now + END_INTERVAL);
        } else if node.next_check.is_some_and(|at| at <= now) {
            node.check_links(now, packets, due);
        }
    }

    pub(crate) fn node_timeout(&self) -> Option<Timestamp> {
        self.node.as_ref()?.next_check
    }

    /// Closes all links at once. Returns whether there were any.
    pub(crate) fn close_links(&mut self, now: Timestamp) -> bool {
        let Some(node) = &mut self.node else { return false };
        let had_links = node.links.len() > 0;
        let mut due = Vec::new();
        node.close_all(now, self.endpoint.packets(), &mut due);
        due.into_iter().for_each(Waker::wake);
        had_links
    }
}
