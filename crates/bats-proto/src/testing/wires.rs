//! Wires between nodes with addresses: each datagram arrives after a delay, unless a test drops it.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use bats_types::Timestamp;

use super::{Application, Arrival, Delivery, Links, Node, Turn, World};
use crate::endpoint::{ConnectionHandle, Transmit};
use crate::event::Event;

/// A datagram that a node has sent.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The sender.
    pub from: usize,
    /// How it was sent.
    pub transmit: Transmit,
    /// Payload.
    pub bytes: Vec<u8>,
}

/// Wires between all nodes. Datagrams to other addresses are lost.
#[derive(Debug)]
pub struct Wires {
    /// The address of each node.
    addresses: Vec<SocketAddr>,
    /// Time from sending to arrival.
    pub delay: Duration,
    /// Datagrams arrive at node `.0` at multiples of `.1` only.
    pub slot: Option<(usize, Duration)>,
    /// Datagrams in flight, by arrival, in the order in which they were sent.
    in_flight: BTreeMap<(Timestamp, u64), Delivery>,
    count: u64,
    /// Number of datagrams to addresses of no node.
    pub unroutable: u64,
    /// All datagrams that nodes have sent in [`World::run`] and [`World::run_with`], those that were dropped
    /// included.
    pub sent: Vec<Sent>,
}

impl Wires {
    /// Loses all datagrams that are in flight.
    pub fn clear(&mut self) {
        self.in_flight.clear();
    }
}

impl Links for Wires {
    fn send(
        &mut self,
        now: Timestamp,
        from: usize,
        transmit: &Transmit,
        _segment: &[u8],
        bytes: Vec<u8>,
    ) {
        let to = self.addresses.iter().position(|address| *address == transmit.remote);
        let Some(to) = to else {
            self.unroutable += 1;
            return;
        };
        let mut at = now + self.delay;
        if let Some((_, slot)) = self.slot.filter(|slot| slot.0 == to) {
            at = Timestamp::from_nanos(at.as_nanos().next_multiple_of(slot.as_nanos() as u64));
        }
        self.count += 1;
        let (remote, local_ip) = (self.addresses[from], Some(transmit.remote.ip()));
        let delivery = Delivery { to, remote, local_ip, ecn: transmit.ecn, bytes };
        self.in_flight.insert((at, self.count), delivery);
    }

    fn receive(&mut self, now: Timestamp, _source: usize) -> Arrival {
        match self.in_flight.first_entry() {
            Some(first) if first.key().0 <= now => Arrival::Delivery(first.remove()),
            _ => Arrival::Idle,
        }
    }

    fn next(&mut self, _now: Timestamp) -> Option<Timestamp> {
        self.in_flight.first_key_value().map(|(key, _)| key.0)
    }
}

/// Notes what is sent, and drops the datagrams for which the filter returns true.
struct Filter<F> {
    sent: Vec<Sent>,
    drops: F,
}

impl<N, F: FnMut(usize, &mut Vec<u8>) -> bool> Application<N> for Filter<F> {
    fn lets_pass(&mut self, from: usize, transmit: &Transmit, bytes: &mut Vec<u8>) -> bool {
        self.sent.push(Sent { from, transmit: *transmit, bytes: bytes.clone() });
        !(self.drops)(from, bytes)
    }
}

impl<N: Node> World<Wires, N> {
    /// Nodes, each with its address, and wires between them. All that arrives at a time is handled before
    /// nodes are polled.
    pub fn wired(now: Timestamp, nodes: Vec<(SocketAddr, N)>, delay: Duration) -> Self {
        let (addresses, nodes): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
        let order = [Turn::Batch(0)].into_iter().chain((0..nodes.len()).map(Turn::Node)).collect();
        let (in_flight, sent) = (BTreeMap::new(), Vec::new());
        let wires =
            Wires { addresses, delay, slot: None, in_flight, count: 0, unroutable: 0, sent };
        Self::new(now, nodes, wires, order)
    }

    /// Polls all nodes, and advances the time by `time`.
    pub fn run(&mut self, time: Duration) {
        self.run_with(time, |_, _| false);
    }

    /// As [`World::run`], without the datagrams for which `drops` returns true. It gets the sender and the
    /// payload, which it may change.
    pub fn run_with(&mut self, time: Duration, drops: impl FnMut(usize, &mut Vec<u8>) -> bool) {
        let mut filter = Filter { sent: core::mem::take(&mut self.links.sent), drops };
        self.drive(time, &mut filter);
        self.links.sent = filter.sent;
    }

    /// A node gets a datagram at this time; it is polled when the world runs.
    pub fn inject(&mut self, to: usize, remote: SocketAddr, mut bytes: Vec<u8>) {
        let payload = &mut bytes[..];
        let local_ip = Some(self.links.addresses[to].ip());
        let received = crate::Received { remote, local_ip, ecn: 0, payload };
        self.nodes[to].handle(self.now, crate::Input::Datagram(received));
    }

    /// The first connection of a node that had this event.
    pub fn handle_of_event(&self, node: usize, wanted: &Event) -> Option<ConnectionHandle> {
        self.all(node, wanted).first().copied()
    }

    /// The connections of a node that had this event.
    pub fn all(&self, node: usize, wanted: &Event) -> Vec<ConnectionHandle> {
        let events = self.events.iter().filter(|(at, _, event)| *at == node && event == wanted);
        events.map(|(_, handle, _)| *handle).collect()
    }
}
