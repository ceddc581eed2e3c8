//! Packets and reports that a link transports for the relay of its node.

use std::collections::VecDeque;

use bats_types::Timestamp;

use crate::relay::LinkView;
use crate::wire::batch_rank::BatchRank;
use crate::wire::short_header::PacketKind;

/// Packets and reports that wait for the endpoint: as many as one datagram can hold, because the
/// endpoint fetches them after each datagram.
const MAX_RELAY_INPUTS: usize = 256;

/// Where a link gets the packets that it transports for the relay.
pub(crate) trait PacketSource {
    /// Writes the next payload, including the flow header, to `out`; `number` is the packet number.
    fn pull(
        &mut self,
        now: Timestamp,
        view: &LinkView,
        number: u64,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind>;

    /// Whether [`PacketSource::pull`] would return another packet.
    fn has_more(&mut self, now: Timestamp) -> bool;

    /// Whether packets wait for the link, including those that wait for the next node's credit.
    fn has_backlog(&mut self) -> bool;

    /// The next report for the neighbour; `mark` is the largest packet number received.
    fn next_report(&mut self, now: Timestamp, mark: u64) -> Option<BatchRank>;

    /// Whether a report is due.
    fn has_report(&self) -> bool;
}

/// A packet or report that a link received for the relay.
#[derive(Debug)]
pub(crate) enum RelayInput {
    Packet(PacketKind, Vec<u8>),
    Report(BatchRank),
}

/// State of a link that transports packets for the relay.
#[derive(Debug, Default)]
pub(super) struct Relayed {
    is_admitted: bool,
    /// The packet source had a packet when last asked, or has signalled one since.
    is_ready: bool,
    /// The link's own session has sent the last packet, so the source has the next turn.
    has_next_turn: bool,
    inputs: VecDeque<RelayInput>,
    /// Packets and reports for the relay from a peer that is not admitted, or too many.
    refused: u64,
}

impl Relayed {
    /// Allows the link to transport packets for the relay.
    pub(super) fn admit(&mut self) {
        self.is_admitted = true;
    }

    pub(super) fn is_admitted(&self) -> bool {
        self.is_admitted
    }

    /// The packet source has a packet for this link, or has none.
    pub(super) fn set_ready(&mut self, is_ready: bool) {
        self.is_ready = is_ready;
    }

    /// Whether the packet source may have a packet.
    pub(super) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Sets whether the packet source comes before the link's own session next time.
    pub(super) fn set_next_turn(&mut self, has_next_turn: bool) {
        self.has_next_turn = has_next_turn;
    }

    /// Whether the packet source comes before the link's own session.
    pub(super) fn has_next_turn(&self) -> bool {
        self.has_next_turn
    }

    /// Keeps a packet or report for the endpoint.
    pub(super) fn push(&mut self, input: RelayInput) {
        if self.is_admitted && self.inputs.len() < MAX_RELAY_INPUTS {
            self.inputs.push_back(input);
        } else {
            self.refused += 1;
        }
    }

    /// Takes the next packet or report.
    pub(super) fn pop(&mut self) -> Option<RelayInput> {
        self.inputs.pop_front()
    }

    /// Packets and reports that were refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_kept_for_an_admitted_peer_up_to_the_limit() {
        let mut relayed = Relayed::default();
        let packet = || RelayInput::Packet(PacketKind::Source, vec![1]);
        relayed.push(packet());
        assert_eq!((relayed.refused(), relayed.pop().is_some()), (1, false));
        relayed.admit();
        (0..=MAX_RELAY_INPUTS).for_each(|_| relayed.push(packet()));
        assert_eq!(relayed.refused(), 2);
        assert_eq!(core::iter::from_fn(|| relayed.pop()).count(), MAX_RELAY_INPUTS);
    }
}
