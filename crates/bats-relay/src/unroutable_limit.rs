//! Limits how often missing routes are reported.

use core::time::Duration;
use std::collections::BTreeMap;

use bats_types::Timestamp;

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
