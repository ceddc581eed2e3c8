//! The connections of a transport that may have output, which take turns.

use std::collections::BTreeSet;

/// Identifiers of connections that may have output. If the lowest one always came first, a connection with much data to
/// send would hold up all others whenever the socket or the processor is the bottleneck: each turn of the endpoint ends
/// when its buffers are full, and the next one would begin with the same connection.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    ready: BTreeSet<u64>,
    /// Identifier at which the next search begins.
    cursor: u64,
}

impl RoundRobin {
    pub(super) fn insert(&mut self, id: u64) {
        self.ready.insert(id);
    }

    /// The connection has no more output.
    pub(super) fn remove(&mut self, id: u64) {
        self.ready.remove(&id);
    }

    /// The connection whose turn it is.
    pub(super) fn current(&self) -> Option<u64> {
        let next = self.ready.range(self.cursor..).next();
        next.or_else(|| self.ready.first()).copied()
    }

    /// This connection had output: all others come before it again.
    pub(super) fn on_output(&mut self, id: u64) {
        self.cursor = id.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_connections_take_turns() {
        let mut turns = RoundRobin::default();
        assert_eq!(turns.current(), None);
        [3, 1, 7].into_iter().for_each(|id| turns.insert(id));
        let served = |turns: &mut RoundRobin, count| -> Vec<u64> {
            let serve = |_| {
                let id = turns.current().unwrap();
                turns.on_output(id);
                id
            };
            (0..count).map(serve).collect()
        };
        assert_eq!(served(&mut turns, 5), [1, 3, 7, 1, 3]);
        // The one whose turn it is has nothing more.
        turns.remove(7);
        turns.insert(2);
        assert_eq!(served(&mut turns, 4), [1, 2, 3, 1]);
    }
}
