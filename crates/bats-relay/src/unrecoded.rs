//! Packets that are forwarded without recoding.

use std::collections::VecDeque;

use bats_wire::short_header::PacketKind;

use super::rate_limit::LimitGroup;

/// Bytes that the allocator takes for a block, in addition.
const ALLOCATION: usize = 16;

/// A packet that is forwarded without recoding.
#[derive(Debug)]
pub(super) struct Unrecoded {
    pub(super) kind: PacketKind,
    pub(super) hop_limit: u8,
    /// The limit of the neighbour that it came from.
    pub(super) limit: Option<LimitGroup>,
    pub(super) bytes: Vec<u8>,
}

impl Unrecoded {
    /// Memory of a packet with so many bytes.
    pub(super) fn cost(len: usize) -> usize {
        len + size_of::<Self>() + ALLOCATION
    }
}

/// The packets of a flow that wait to be forwarded without recoding.
#[derive(Debug, Default)]
pub(super) struct UnrecodedQueue {
    packets: VecDeque<Unrecoded>,
    bytes: usize,
}

impl UnrecodedQueue {
    pub(super) fn push_back(&mut self, packet: Unrecoded) {
        self.bytes += Unrecoded::cost(packet.bytes.len());
        self.packets.push_back(packet);
    }

    pub(super) fn pop_front(&mut self) -> Option<Unrecoded> {
        let packet = self.packets.pop_front()?;
        self.bytes -= Unrecoded::cost(packet.bytes.len());
        Some(packet)
    }

    pub(super) fn front(&self) -> Option<&Unrecoded> {
        self.packets.front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Memory of all packets.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
