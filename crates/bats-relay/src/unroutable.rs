//! Packets for nodes to which a relay has no route: which of them the relay reports by an event, and
//! for which it sends NO_ROUTE to the source.

use bats_types::Timestamp;

use super::unroutable_limit::UnroutableLimit;
use bats_wire::flow::{FlowKey, NodeId};
use bats_wire::no_route::NoRoute;
use bats_wire::short_header::PacketKind;

/// Events that wait for the owner of the relay. Neighbours cause the reports of missing routes.
const MAX_EVENTS: usize = 1_024;

/// Limits what a relay reports of missing routes.
#[derive(Debug, Default)]
pub(super) struct UnroutableReports {
    events: UnroutableLimit<NodeId>,
    /// By destination and source.
    no_route_hints: UnroutableLimit<(NodeId, NodeId)>,
}

impl UnroutableReports {
    /// Whether to report that no route leads to a node, by an event in addition to those that wait.
    pub(super) fn allows_event(
        &mut self,
        now: Timestamp,
        destination: NodeId,
        waiting: usize,
    ) -> bool {
        waiting < MAX_EVENTS && self.events.allows(now, destination)
    }

    /// The NO_ROUTE packet, and the flow from the node `here` that it belongs to, for a packet that
    /// was dropped there. `payload` is what followed the flow header.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn no_route(
        &mut self,
        now: Timestamp,
        here: NodeId,
        key: FlowKey,
        kind: PacketKind,
        payload: &[u8],
    ) -> Option<(FlowKey, Vec<u8>)> {
        let (destination, source) = (key.destination, key.source);
        // A quotation of a coded packet would not prove that a session sent it. A NO_ROUTE packet is
        // not answered.
        if kind != PacketKind::Control
            || source == here
            || NoRoute::decode(payload).is_some()
            || !self.no_route_hints.allows(now, (destination, source))
        {
            return None;
        }
        let back = FlowKey { destination: source, source: here, flow: key.flow };
        Some((back, NoRoute { destination, quoted: payload }.encode()))
    }
}
