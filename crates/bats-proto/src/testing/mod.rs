//! Endpoints in virtual time, for simulators and tests: one loop that advances the time, calls the endpoints
//! and delivers their datagrams. What carries the datagrams, and what applications do at events, are traits.
//! Not part of the API.

mod links;
mod wires;

use core::time::Duration;

use bats_types::Timestamp;

use crate::endpoint::{ConnectionHandle, Endpoint, Input, Output, Received, Transmit};
use crate::event::Event;

pub use links::{Arrival, Delivery, Links};
pub use wires::{Sent, Wires};

/// See [`World::max_work`]. A sender without congestion control may send its whole buffer at once, some
/// 100,000 packets.
const MAX_WORK: u32 = 4_000_000;
/// Capacity of the buffer that nodes are polled with: a burst.
const BURST_BYTES: usize = 65_536;
/// Maximum number of datagram buffers kept for reuse.
const MAX_SPARE: usize = 4_096;

/// What a world calls: an endpoint, or something around one.
pub trait Node {
    /// See [`Endpoint::handle`].
    fn handle(&mut self, now: Timestamp, input: Input<'_>);

    /// See [`Endpoint::poll`].
    fn poll(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Output;
}

impl Node for Endpoint {
    fn handle(&mut self, now: Timestamp, input: Input<'_>) {
        Self::handle(self, now, input);
    }

    fn poll(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Output {
        Self::poll(self, now, buffer)
    }
}

/// Acts at the events of nodes, while they are polled.
pub trait Application<N = Endpoint> {
    /// An event of `node`, which is number `index`. Returns true to pass it to the caller of [`World::step`].
    fn on_event(
        &mut self,
        _now: Timestamp,
        (_index, _node): (usize, &mut N),
        _handle: ConnectionHandle,
        _event: &Event,
    ) -> bool {
        true
    }

    /// Node `from` sends a datagram, which may be changed here. False if it is lost at once.
    fn lets_pass(&mut self, _from: usize, _transmit: &Transmit, _bytes: &mut Vec<u8>) -> bool {
        true
    }
}

/// A place for a node, which may be empty.
impl<N: Node> Node for Option<N> {
    fn handle(&mut self, now: Timestamp, input: Input<'_>) {
        if let Some(node) = self {
            node.handle(now, input);
        }
    }

    fn poll(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Output {
        self.as_mut().map_or(Output::Timeout(None), |node| node.poll(now, buffer))
    }
}

/// Applications outside of the world: the caller of [`World::step`] gets all events.
impl<N> Application<N> for () {}

/// One part of a round.
#[derive(Clone, Copy, Debug)]
pub enum Turn {
    /// A node, when it is due.
    Node(usize),
    /// All that arrives now from a source of the links; a node is polled after each datagram.
    Source(usize),
    /// The same, but the nodes are due at their own turns, after all datagrams, as with a driver that reads many
    /// of them at once.
    Batch(usize),
}

/// Nodes, what carries datagrams between them, and the time.
#[derive(Debug)]
pub struct World<C, N = Endpoint> {
    /// The virtual time.
    pub now: Timestamp,
    /// The nodes. Call [`World::wake`] after changing one.
    pub nodes: Vec<N>,
    /// What carries the datagrams.
    pub links: C,
    /// Events that the caller has not taken: (node, connection, event).
    pub events: Vec<(usize, ConnectionHandle, Event)>,
    /// Maximum rounds and polls of nodes at one point in virtual time; more indicate an infinite loop.
    pub max_work: u32,
    /// The order of what happens at the same time: each round gives these a turn.
    order: Vec<Turn>,
    wake_at: Vec<Option<Timestamp>>,
    /// Rounds and polls since the time last advanced.
    work: u32,
    buffer: Vec<u8>,
    spare: Vec<Vec<u8>>,
}

impl<C: Links, N: Node> World<C, N> {
    /// Nodes that are all due at the start.
    pub fn new(now: Timestamp, nodes: Vec<N>, links: C, order: Vec<Turn>) -> Self {
        Self {
            now,
            wake_at: vec![Some(now); nodes.len()],
            nodes,
            links,
            events: Vec::new(),
            max_work: MAX_WORK,
            order,
            work: 0,
            buffer: Vec::with_capacity(BURST_BYTES),
            spare: Vec::new(),
        }
    }

    /// Schedules a node to be polled now, after it was changed.
    pub fn wake(&mut self, node: usize) {
        self.wake_at[node] = Some(self.now);
    }

    /// When a node is polled next at the latest.
    pub fn next_timeout(&self, node: usize) -> Option<Timestamp> {
        self.wake_at[node]
    }

    /// Delivers a datagram at this time, and polls its receiver.
    pub fn arrive(&mut self, delivery: Delivery, application: &mut impl Application<N>) {
        let to = self.deliver(delivery);
        self.settle(to, application);
    }

    /// Polls a node, after it was changed, until it is idle.
    pub fn settle(&mut self, node: usize, application: &mut impl Application<N>) {
        self.work = 0;
        self.poll(node, application);
    }

    /// Advances the time until the caller gets an event (returns true) or until `until` (returns false).
    ///
    /// # Panics
    ///
    /// If there is an infinite amount of work at one point in virtual time.
    pub fn step(&mut self, until: Timestamp, application: &mut impl Application<N>) -> bool {
        loop {
            let before = self.events.len();
            while self.round(application) {}
            if self.events.len() > before || self.links.is_waiting() {
                return true;
            }
            let next = self.next_time().filter(|at| *at <= until);
            self.set_time(next.unwrap_or(until));
            if next.is_none() {
                return false;
            }
        }
    }

    /// Sets the clock to `to`, unless it is later. Nothing is called, whatever is due before.
    pub fn advance(&mut self, to: Timestamp) {
        self.set_time(to);
        self.work = 0;
    }

    fn set_time(&mut self, to: Timestamp) {
        if to > self.now {
            (self.now, self.work) = (to, 0);
        }
    }

    /// Polls all nodes, as after changes, and advances the time by `time`. Links with something that waits for the
    /// caller need [`World::step`].
    ///
    /// # Panics
    ///
    /// If there is an infinite amount of work at one point in virtual time.
    pub fn drive(&mut self, time: Duration, application: &mut impl Application<N>) {
        let end = self.now + time;
        self.wake_at.fill(Some(self.now));
        while self.step(end, application) {}
    }

    /// Gives each node and source one turn. Whether something was due.
    ///
    /// # Panics
    ///
    /// If there is an infinite amount of work at one point in virtual time.
    pub fn round(&mut self, application: &mut impl Application<N>) -> bool {
        self.count_work("rounds");
        let mut is_busy = false;
        for index in 0..self.order.len() {
            let turn = self.order[index];
            match turn {
                Turn::Node(node) => {
                    if self.wake_at[node].is_some_and(|at| at <= self.now) {
                        is_busy = true;
                        self.nodes[node].handle(self.now, Input::Timeout);
                        self.poll(node, application);
                    }
                }
                Turn::Source(source) | Turn::Batch(source) => loop {
                    self.count_work("arrivals");
                    match self.links.receive(self.now, source) {
                        Arrival::Delivery(delivery) => {
                            let to = self.deliver(delivery);
                            match turn {
                                Turn::Batch(_) => self.wake(to),
                                _ => self.poll(to, application),
                            }
                        }
                        Arrival::Progress => {}
                        Arrival::Idle => break,
                    }
                    is_busy = true;
                },
            }
        }
        is_busy
    }

    /// When a timer of a node expires or something arrives, after all that is due now.
    pub fn next_time(&mut self) -> Option<Timestamp> {
        let arrival = self.links.next(self.now);
        self.wake_at.iter().copied().chain([arrival]).flatten().min()
    }

    /// Delivers a datagram now. Returns its receiver.
    fn deliver(&mut self, delivery: Delivery) -> usize {
        let Delivery { to, remote, local_ip, ecn, mut bytes } = delivery;
        let received = Received { remote, local_ip, ecn, payload: &mut bytes };
        self.nodes[to].handle(self.now, Input::Datagram(received));
        if self.spare.len() < MAX_SPARE {
            self.spare.push(bytes);
        }
        to
    }

    fn poll(&mut self, node: usize, application: &mut impl Application<N>) {
        loop {
            self.count_work("outputs of a node");
            match self.nodes[node].poll(self.now, &mut self.buffer) {
                Output::Transmit(transmit) => {
                    assert_eq!(
                        transmit.len,
                        self.buffer.len(),
                        "node {node} sends all that it has written"
                    );
                    assert!(
                        self.buffer.capacity() >= BURST_BYTES,
                        "node {node} leaves the buffer its capacity, which bounds a burst"
                    );
                    for segment in self.buffer.chunks(transmit.segment_size) {
                        let mut bytes = self.spare.pop().unwrap_or_default();
                        bytes.clear();
                        bytes.extend_from_slice(segment);
                        if application.lets_pass(node, &transmit, &mut bytes) {
                            self.links.send(self.now, node, &transmit, segment, bytes);
                        }
                    }
                }
                Output::Event(handle, event) => {
                    let own = (node, &mut self.nodes[node]);
                    if application.on_event(self.now, own, handle, &event) {
                        self.events.push((node, handle, event));
                    }
                }
                Output::Timeout(at) => {
                    self.wake_at[node] = at;
                    return;
                }
            }
        }
    }

    fn count_work(&mut self, what: &str) {
        self.work += 1;
        let now = self.now;
        assert!(
            self.work < self.max_work,
            "virtual time does not advance at {now:?}: too many {what}"
        );
    }
}
