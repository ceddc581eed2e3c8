//! Statistics of a relay: what it holds and has sent, by flow and by link.

use core::time::Duration;

use bats_types::Timestamp;

use super::flow::Flow;
use super::link::Link;
use super::outbound::Outbound;
use bats_wire::flow::FlowKey;

/// A flow at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowStatus {
    /// Source, destination and flow ID.
    pub key: FlowKey,
    /// Packets received from links, end-to-end packets included.
    pub packets_received: u64,
    /// Their bytes behind the flow header.
    pub bytes_received: u64,
    /// Coded packets sent to the next nodes, recoded ones included.
    pub packets_sent: u64,
    /// Their bytes behind the flow header.
    pub bytes_sent: u64,
    /// Packets that wait for their first transmission.
    pub queued: u64,
    /// Bytes of payloads held for transmission and repair.
    pub bytes_held: u64,
    /// Packets forwarded that no report of the next nodes has counted yet: in flight, or lost.
    pub unreported: u64,
    /// Time since the last packet from a link or a session.
    pub idle: Duration,
}

/// The packets that a relay has to send over a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkQueue {
    /// Flows that use the link.
    pub flows: u64,
    /// Coded packets that wait for their first transmission.
    pub queued: u64,
    /// Bytes of payloads held for transmission and repair.
    pub bytes_held: u64,
    /// End-to-end packets that wait.
    pub end_to_end_queued: u64,
    /// Whether the link is avoided because most packets from it were non-innovative.
    pub demoted: bool,
}

impl Flow {
    pub(super) fn status(&self, key: FlowKey, now: Timestamp) -> FlowStatus {
        let outbound = || self.outbound.values().chain(&self.unrouted);
        let queued: usize = outbound().map(|outbound| outbound.queued()).sum();
        FlowStatus {
            key,
            packets_received: self.received.packets,
            bytes_received: self.received.bytes,
            packets_sent: self.sent.packets,
            bytes_sent: self.sent.bytes,
            queued: (queued + self.unrecoded.len()) as u64,
            bytes_held: self.bytes() as u64,
            unreported: outbound().map(|outbound| outbound.unreported()).sum(),
            idle: now - self.last_used,
        }
    }
}

impl LinkQueue {
    /// The packets for a link, of which flows have those in `outbounds`.
    pub(super) fn new<'a>(link: &Link, outbounds: impl Iterator<Item = &'a Outbound>) -> Self {
        let mut queue = Self {
            end_to_end_queued: link.opaque.len() as u64,
            demoted: link.demoted,
            ..Self::default()
        };
        for outbound in outbounds {
            queue.flows += 1;
            queue.queued += outbound.queued() as u64;
            queue.bytes_held += outbound.bytes() as u64;
        }
        queue
    }
}
