//! Packets for nodes to which a relay has no route: the relay reports an event, and sends NO_ROUTE to
//! the source.

use bats_types::Timestamp;

use super::{Relay, RelayEvent};
use bats_wire::flow::{FlowHeader, FlowKey};
use bats_wire::no_route::NoRoute;
use bats_wire::short_header::PacketKind;

/// Events that wait for the owner of the relay. Neighbours cause the reports of missing routes.
const MAX_EVENTS: usize = 1_024;

impl Relay {
    /// A packet is dropped because no route leads to its destination. `payload` is what follows the
    /// flow header.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn on_unroutable(
        &mut self,
        now: Timestamp,
        key: FlowKey,
        kind: PacketKind,
        payload: &[u8],
    ) {
        self.stats.dropped.unroutable = self.stats.dropped.unroutable.saturating_add(1);
        let (destination, here) = (key.destination, self.config.node);
        if self.events.len() < MAX_EVENTS && self.unroutable.allows(now, destination) {
            self.events.push_back(RelayEvent::Unroutable(destination));
        }
        // A quotation of a coded packet would not prove that a session sent it. A NO_ROUTE packet is
        // not answered.
        if kind != PacketKind::Control
            || key.source == here
            || NoRoute::decode(payload).is_some()
            || !self.no_route_hints.allows(now, (destination, key.source))
        {
            return;
        }
        let back = FlowKey { destination: key.source, source: here, flow: key.flow };
        if let Some(link) = self.route(back.destination) {
            let header =
                FlowHeader { key: back, hop_limit: self.config.hop_limit.saturating_sub(1) };
            let hint = NoRoute { destination, quoted: payload }.encode();
            self.push_opaque(now, Some(link), header, &hint);
            self.stats.no_route_sent = self.stats.no_route_sent.saturating_add(1);
        }
    }
}
