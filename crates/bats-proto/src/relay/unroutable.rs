//! Limits how often a relay reports that no route leads to a node.

use core::time::Duration;
use std::collections::BTreeMap;

use bats_types::Timestamp;

use crate::wire::flow::NodeId;

/// Nodes for which a missing route is reported within an interval. Neighbours choose the
/// destinations, so that there may be any number of them.
pub const MAX_UNROUTABLE: usize = 64;
/// Least time between two reports for a node.
const INTERVAL: Duration = Duration::from_secs(1);

/// When a missing route was last reported.
#[derive(Debug, Default)]
pub(super) struct UnroutableLimit(BTreeMap<NodeId, Timestamp>);

impl UnroutableLimit {
    /// Whether to report that there is no route to this node.
    pub(super) fn allows(&mut self, now: Timestamp, destination: NodeId) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_routes_are_reported_once_a_second_for_a_limited_number_of_nodes() {
        let mut limit = UnroutableLimit::default();
        let start = Timestamp::from_millis(1_000);
        let count = |limit: &mut UnroutableLimit, now| {
            (0..1_000).filter(|&node| limit.allows(now, NodeId(node))).count()
        };
        assert_eq!(count(&mut limit, start), MAX_UNROUTABLE);
        assert_eq!(count(&mut limit, start + INTERVAL / 2), 0);
        assert_eq!(count(&mut limit, start + INTERVAL), MAX_UNROUTABLE);
    }
}
