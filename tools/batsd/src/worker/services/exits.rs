//! The connections of an exit, with a share for each peer: idle connections cost a peer nothing, so without
//! shares two peers could take all of them.

use std::collections::BTreeMap;
use std::sync::Mutex;

use bats_node::NodeId;

use super::super::tunnel::lock;

/// Connections and sockets at a time for all peers.
pub(super) const MAX_EXITS: usize = 4_096;
/// Those of a peer: as many as its own programs may have (`MAX_CONNECTIONS`).
const MAX_OF_PEER: usize = MAX_EXITS / 4;

/// Number of connections for each peer that has any.
#[derive(Default)]
pub(super) struct Exits {
    open: Mutex<BTreeMap<NodeId, usize>>,
}

/// A connection that counts as long as this value exists.
pub(super) struct Permit<'a> {
    exits: &'a Exits,
    peer: NodeId,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut open = lock(&self.exits.open);
        match open.get_mut(&self.peer) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(open.remove(&self.peer)),
        }
    }
}

impl Exits {
    /// A permit for a connection of this peer; none at its limit or at that of all peers.
    pub(super) fn take(&self, peer: NodeId) -> Option<Permit<'_>> {
        let mut open = lock(&self.open);
        if open.values().sum::<usize>() >= MAX_EXITS {
            return None;
        }
        let count = open.get(&peer).map_or(1, |count| count + 1);
        if count > MAX_OF_PEER {
            return None;
        }
        open.insert(peer, count);
        drop(open);
        Some(Permit { exits: self, peer })
    }

    /// Connections of all peers.
    pub(super) fn open(&self) -> usize {
        lock(&self.open).values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> NodeId {
        NodeId([10, 0, 0, number].into())
    }

    #[test]
    fn a_peer_gets_a_quarter_of_the_places_and_all_peers_together_no_more_than_all() {
        let exits = Exits::default();
        let mut permits = Vec::new();
        for number in 1..=4 {
            permits.extend((0..MAX_OF_PEER).map(|_| exits.take(peer(number)).unwrap()));
            assert!(exits.take(peer(number)).is_none());
            assert_eq!(exits.open(), permits.len());
        }
        assert_eq!(exits.open(), MAX_EXITS);
        assert!(exits.take(peer(5)).is_none());
        drop(permits.pop());
        drop(exits.take(peer(4)).unwrap());
        let other = exits.take(peer(5)).unwrap();
        assert!(exits.take(peer(4)).is_none(), "its permit is taken");
        permits.clear();
        assert_eq!(exits.open(), 1);
        drop(other);
        assert!(lock(&exits.open).is_empty());
    }
}
