//! Accepted connections of networks that have too many half-open ones.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use super::super::half_open::{NetworkCounts, network};

/// A queue in the order of arrival. Taking the next one costs the same however many wait: only networks that may have
/// room are looked at.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    /// Those of each network, with their places in the whole queue.
    networks: BTreeMap<u128, VecDeque<(u64, T)>>,
    /// The first places of the networks that may have room.
    candidates: BTreeSet<(u64, u128)>,
    next_place: u64,
    counts: NetworkCounts,
    #[cfg(test)]
    visits: u64,
}

impl<T> Waiting<T> {
    pub(super) fn new(counts: NetworkCounts) -> Self {
        Self {
            networks: BTreeMap::new(),
            candidates: BTreeSet::new(),
            next_place: 0,
            counts,
            #[cfg(test)]
            visits: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    /// Adds a connection of a network that has no room; returns whether its limits allow that.
    pub(super) fn push(&mut self, ip: IpAddr, connection: T) -> bool {
        if self.counts.is_full() || self.counts.is_network_full(ip) {
            return false;
        }
        self.counts.insert(ip);
        let queue = self.networks.entry(network(ip)).or_default();
        queue.push_back((self.next_place, connection));
        self.next_place += 1;
        true
    }

    /// A half-open connection of this address has ended.
    pub(super) fn on_room(&mut self, ip: IpAddr) {
        let network = network(ip);
        if let Some((place, _)) = self.networks.get(&network).and_then(VecDeque::front) {
            self.candidates.insert((*place, network));
        }
    }

    /// Takes the first connection whose network has room.
    pub(super) fn pop(&mut self, half_open: &NetworkCounts) -> Option<T> {
        while !half_open.is_full() {
            #[cfg(test)]
            {
                self.visits += 1;
            }
            let (_, network) = self.candidates.pop_first()?;
            if half_open.is_full_network(network) {
                // It is a candidate again when one of its half-open connections ends.
                continue;
            }
            let queue = self.networks.get_mut(&network)?;
            let (_, connection) = queue.pop_front()?;
            match queue.front() {
                Some((place, _)) => drop(self.candidates.insert((*place, network))),
                None => drop(self.networks.remove(&network)),
            }
            self.counts.remove_from(network);
            return Some(connection);
        }
        None
    }

    pub(super) fn clear(&mut self) {
        self.networks.clear();
        self.candidates.clear();
        self.counts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 6;
    const MAX_PER_NETWORK: usize = 3;

    fn ip(network: u8) -> IpAddr {
        [10, 0, network, 1].into()
    }

    /// The queue and the half-open connections, and the same by a scan of all that wait.
    struct Both {
        waiting: Waiting<u64>,
        half_open: NetworkCounts,
        scanned: VecDeque<(u8, u64)>,
        open: Vec<u8>,
        next: u64,
    }

    impl Both {
        fn has_room(&self, network: u8) -> bool {
            self.open.iter().filter(|&&open| open == network).count() < MAX_PER_NETWORK
        }

        fn start(&mut self, network: u8) {
            self.open.push(network);
            self.half_open.insert(ip(network));
        }

        fn arrive(&mut self, network: u8) {
            if self.open.len() == MAX {
                return;
            }
            if self.has_room(network) {
                return self.start(network);
            }
            assert!(self.waiting.push(ip(network), self.next));
            self.scanned.push_back((network, self.next));
            self.next += 1;
        }

        fn end(&mut self, at: usize) {
            let network = self.open.swap_remove(at);
            self.half_open.remove(ip(network));
            self.waiting.on_room(ip(network));
        }

        /// Starts those that may; every `fails`-th cannot be started.
        fn start_waiting(&mut self, fails: u64) {
            for _ in 0..self.scanned.len() {
                let (network, number) = self.scanned.pop_front().unwrap();
                if self.open.len() == MAX || !self.has_room(network) {
                    self.scanned.push_back((network, number));
                    continue;
                }
                assert_eq!(self.waiting.pop(&self.half_open), Some(number));
                if number % fails != 0 {
                    self.start(network);
                }
            }
            assert_eq!(self.waiting.pop(&self.half_open), None);
            assert_eq!(self.waiting.len(), self.scanned.len());
        }
    }

    #[test]
    fn connections_start_in_the_order_of_a_scan_of_all_that_wait() {
        for seed in 1..=200u64 {
            let mut state = seed;
            let mut random = |below: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as usize % below
            };
            let mut both = Both {
                waiting: Waiting::new(NetworkCounts::new(1_000, 1_000)),
                half_open: NetworkCounts::new(MAX, MAX_PER_NETWORK),
                scanned: VecDeque::new(),
                open: Vec::new(),
                next: 0,
            };
            for _ in 0..400 {
                match random(5) {
                    0..=2 => both.arrive(random(5) as u8),
                    // Newcomers may come between the end of a connection and the start of others.
                    3 if !both.open.is_empty() => both.end(random(both.open.len())),
                    _ => both.start_waiting(3 + seed % 5),
                }
            }
            both.start_waiting(3);
        }
    }

    #[test]
    fn ends_of_half_open_connections_cost_the_same_however_many_wait() {
        let visits = |number: u64| {
            let mut waiting = Waiting::new(NetworkCounts::new(10_000, 10_000));
            let mut half_open = NetworkCounts::new(MAX, MAX_PER_NETWORK);
            (0..MAX_PER_NETWORK).for_each(|_| half_open.insert(ip(1)));
            half_open.insert(ip(2));
            (0..number).for_each(|number| assert!(waiting.push(ip(1), number)));
            for number in 0..50 {
                // One of another network makes no room for those that wait.
                half_open.remove(ip(2));
                waiting.on_room(ip(2));
                assert_eq!(waiting.pop(&half_open), None);
                half_open.insert(ip(2));
                half_open.remove(ip(1));
                waiting.on_room(ip(1));
                assert_eq!(waiting.pop(&half_open), Some(number));
                half_open.insert(ip(1));
                assert_eq!(waiting.pop(&half_open), None);
            }
            waiting.visits
        };
        assert_eq!(visits(100), visits(5_000));
        assert!(visits(5_000) <= 50 * 5, "{}", visits(5_000));
    }

    #[test]
    fn waiting_connections_are_limited_and_counted_out() {
        let mut waiting = Waiting::new(NetworkCounts::new(3, 2));
        let half_open = NetworkCounts::new(MAX, MAX_PER_NETWORK);
        assert!(waiting.push(ip(1), 0) && waiting.push(ip(1), 1) && !waiting.push(ip(1), 2));
        assert!(waiting.push(ip(2), 3) && !waiting.push(ip(3), 4));
        assert_eq!(waiting.len(), 3);
        waiting.on_room(ip(1));
        assert_eq!(waiting.pop(&half_open), Some(0));
        assert!(waiting.push(ip(1), 5) && !waiting.push(ip(1), 6));
        waiting.clear();
        assert_eq!((waiting.len(), waiting.pop(&half_open)), (0, None));
        assert!(waiting.push(ip(1), 7));
    }
}
