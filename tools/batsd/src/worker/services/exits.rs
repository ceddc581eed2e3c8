//! The connections of an exit. Idle ones cost a peer nothing, so each peer has a share that the others cannot
//! take: half of the places, divided equally. The other half is for all.

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
    /// A permit for a connection of this one of `peers` peers; none at its limit, and none beyond its share if
    /// the places for all are taken. Connections go on after a reload with more peers, so a new peer gets its
    /// whole share only when enough of them have ended.
    pub(super) fn take(&self, peer: NodeId, peers: usize) -> Option<Permit<'_>> {
        let share = MAX_EXITS / 2 / peers.max(1);
        let common = MAX_EXITS.saturating_sub(share.saturating_mul(peers));
        let mut open = lock(&self.open);
        if open.values().sum::<usize>() >= MAX_EXITS {
            return None;
        }
        let count = open.get(&peer).map_or(1, |count| count + 1);
        if count > MAX_OF_PEER {
            return None;
        }
        let beyond = || open.values().map(|count| count.saturating_sub(share)).sum::<usize>();
        if count > share && beyond() >= common {
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
            permits.extend((0..MAX_OF_PEER).map(|_| exits.take(peer(number), 4).unwrap()));
            assert!(exits.take(peer(number), 4).is_none());
            assert_eq!(exits.open(), permits.len());
        }
        assert_eq!(exits.open(), MAX_EXITS);
        // A reload has added a fifth peer: no place is free for its share yet.
        assert!(exits.take(peer(5), 5).is_none());
        drop(permits.pop());
        drop(exits.take(peer(4), 4).unwrap());
        let other = exits.take(peer(5), 5).unwrap();
        assert!(exits.take(peer(4), 5).is_none(), "its permit is taken");
        permits.clear();
        assert_eq!(exits.open(), 1);
        drop(other);
        assert!(lock(&exits.open).is_empty());
    }
    /// Takes places of a peer until it gets none.
    fn take_all(exits: &Exits, number: u8, peers: usize) -> Vec<Permit<'_>> {
        std::iter::from_fn(|| exits.take(peer(number), peers)).collect()
    }

    #[test]
    fn four_peers_that_take_all_they_get_leave_a_fifth_its_share() {
        const SHARE: usize = MAX_EXITS / 2 / 5;
        let exits = Exits::default();
        let mut greedy: Vec<_> = (1..=4).map(|number| take_all(&exits, number, 5)).collect();
        assert_eq!(exits.open(), MAX_EXITS - SHARE);
        assert!(greedy.iter().all(|permits| permits.len() >= SHARE));
        let fifth = take_all(&exits, 5, 5);
        assert_eq!(fifth.len(), SHARE);
        assert_eq!(exits.open(), MAX_EXITS);
        // A place for all that is given up is for any peer, one of a share for its peer only.
        drop(greedy[3].pop());
        let more = exits.take(peer(5), 5).unwrap();
        assert!(exits.take(peer(4), 5).is_none());
        drop((more, fifth));
        let again = take_all(&exits, 4, 5);
        assert_eq!(again.len(), 1);
        assert_eq!(take_all(&exits, 5, 5).len(), SHARE);
    }

    #[test]
    fn each_of_the_most_peers_has_a_share() {
        const PEERS: u16 = 1_024;
        let exits = Exits::default();
        let id = |number: u16| NodeId((0x0a00_0000 | u32::from(number)).into());
        let greedy: Vec<_> = (0..8)
            .flat_map(|number| {
                std::iter::from_fn(|| exits.take(id(number), usize::from(PEERS)))
                    .collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(greedy.len(), MAX_EXITS / 2 + 8 * 2);
        let others: Vec<_> = (8..PEERS)
            .flat_map(|number| [number; 2])
            .map(|number| exits.take(id(number), usize::from(PEERS)))
            .collect();
        assert!(others.iter().all(Option::is_some));
        assert_eq!(exits.open(), MAX_EXITS);
    }
}
