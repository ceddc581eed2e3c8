//! Packets on the links of the arena.

use bats_netem::Payload;
use bats_types::Timestamp;

use crate::packet::Body;

/// A packet of one of the flows.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    /// Number of the flow.
    pub(super) flow: usize,
    /// When the host sent it.
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
