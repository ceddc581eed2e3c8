//! Packets for nodes to which a relay has no route: the relay reports an event, and sends NO_ROUTE to
//! the source.

use core::time::Duration;
use std::collections::BTreeMap;

use bats_types::Timestamp;

use super::{Relay, RelayEvent};
use bats_wire::flow::{FlowHeader, FlowKey};
use bats_wire::no_route::NoRoute;
use bats_wire::short_header::PacketKind;

/// Events that wait for the owner of the relay. Neighbours cause the reports of missing routes.
const MAX_EVENTS: usize = 1_024;

/// Nodes for which a missing route is reported within an interval. Neighbours choose the
/// destinations, so their number is not limited.
pub const MAX_UNROUTABLE: usize = 64;
/// Least time between two reports for a node.
const INTERVAL: Duration = Duration::from_secs(1);

/// When a missing route was last reported, by the key of the limit: a node, or a pair of nodes.
#[derive(Debug)]
pub(super) struct UnroutableLimit<Key>(BTreeMap<Key, Timestamp>);

impl<Key> Default for UnroutableLimit<Key> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<Key: Ord> UnroutableLimit<Key> {
    /// Whether to report this missing route.
    pub(super) fn allows(&mut self, now: Timestamp, destination: Key) -> bool {
        if self.0.get(&destination).is_some_and(|&at| now < at + INTERVAL) {
            return false;
        }
        if self.0.len() >= MAX_UNROUTABLE {
            self.0.retain(|_, at| now < *at + INTERVAL);
        }
        if self.0.len() >= MAX_UNROUTABLE {
            return false;
        }
        self.0.insert(destination, now);
        true
    }
}

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
        self.stats.unroutable = self.stats.unroutable.saturating_add(1);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_routes_are_reported_once_a_second_for_a_limited_number_of_nodes() {
        let mut limit = UnroutableLimit::<u32>::default();
        let start = Timestamp::from_millis(1_000);
        let count = |limit: &mut UnroutableLimit<u32>, now| {
            (0..1_000).filter(|&node| limit.allows(now, node)).count()
        };
        assert_eq!(count(&mut limit, start), MAX_UNROUTABLE);
        assert_eq!(count(&mut limit, start + INTERVAL / 2), 0);
        assert_eq!(count(&mut limit, start + INTERVAL), MAX_UNROUTABLE);
    }

    #[test]
    fn missing_route_is_reported_again_exactly_after_the_interval() {
        let start = Timestamp::from_millis(1_000);
        let before = (start + INTERVAL).saturating_sub(Duration::from_nanos(1));
        for full in [false, true] {
            let mut limit = UnroutableLimit::<u32>::default();
            assert!(limit.allows(start, 7));
            let others = if full { MAX_UNROUTABLE as u32 - 1 } else { 5 };
            (100..100 + others).for_each(|node| assert!(limit.allows(start, node)));
            assert!(!limit.allows(before, 7));
            assert_eq!(limit.allows(before, 8), !full);
            assert!(limit.allows(start + INTERVAL, 7));
            assert!(!limit.allows(start + INTERVAL, 7));
            assert!(limit.allows(start + INTERVAL, 9));
        }
    }
}
