//! Packets on the links of the arena.

use bats_netem::Payload;
use bats_types::Timestamp;

use crate::packet::Body;

/// A packet of one of the flows.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    /// The flow's number.
    pub(super) flow: usize,
    /// Whether it goes in the direction of the flow's data.
    pub(super) is_data: bool,
    /// Number of hops of its route that it has crossed.
    pub(super) position: usize,
    /// When its host sent it.
    pub(super) sent: Timestamp,
    /// Its content.
    pub(super) body: Body,
}

impl Payload for Packet {
    fn len(&self) -> usize {
        self.body.len()
    }

    fn corrupt(&mut self, at: usize, flip: u8) {
        self.body.corrupt(at, flip);
    }

    fn mark(&mut self) {
        self.body.mark();
    }

    fn flow(&self) -> u64 {
        self.flow as u64
    }

    fn is_ect(&self) -> bool {
        self.body.is_ect()
    }
}
