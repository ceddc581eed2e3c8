//! Whom an endpoint lets in: half-open handshakes by where they come from, memory by connection.

use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashSet;

use super::{ConnectionHandle, relay_node};
use crate::wire::long_header::{CID_LEN, ORIGINAL_CID_LEN};

/// Half-open handshakes at once: each takes some 20 KiB, and 70 more if its client
/// sends data and withholds the end of the handshake; it ends after 10 s, and a server that needs more of
/// them is flooded.
pub(super) const MAX_HALF_OPEN: usize = 4_096;
/// Half-open handshakes at once from one /24 (IPv4) or /56 (IPv6), what one network is given: it
/// cannot take all the places. Across relays each node counts for itself.
pub(super) const MAX_HALF_OPEN_PER_PREFIX: usize = 64;
/// Half-open handshakes of a prefix from which on its hosts must prove their addresses. Whoever
/// makes up addresses gets this far at most, and the rest is left to those who are there.
pub(super) const RETRY_PER_PREFIX: usize = MAX_HALF_OPEN_PER_PREFIX / 2;
/// First flights that a closed server remembers, in some 0.6 MiB.
const MAX_FLIGHTS: usize = 16_384;
/// A connection gets at most one part in so many of the memory that is not set aside.
const MEMORY_PARTS: u64 = 8;

/// Where an address belongs to: as many leading bits as one network is given, IPv4 mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Prefix(u128);

impl Prefix {
    fn of(address: SocketAddr) -> Self {
        let (bytes, bits) = match address.ip().to_canonical() {
            IpAddr::V4(ip) => (ip.to_ipv6_mapped(), 96 + 24),
            // The rest names the flow.
            IpAddr::V6(ip) if relay_node::is_carried(address) => (ip, 96),
            IpAddr::V6(ip) => (ip, 56),
        };
        Self(bytes.to_bits() & (u128::MAX << (128 - bits)))
    }
}

/// Connections of peers whose handshakes are not done.
#[derive(Debug, Default)]
pub(super) struct HalfOpen {
    prefixes: BTreeMap<ConnectionHandle, Prefix>,
    counts: BTreeMap<Prefix, usize>,
}

impl HalfOpen {
    fn count(&self, remote: SocketAddr) -> usize {
        self.counts.get(&Prefix::of(remote)).copied().unwrap_or(0)
    }

    /// Whether another one from there is one too many, whatever it proves.
    pub(super) fn is_full(&self, remote: SocketAddr) -> bool {
        self.prefixes.len() >= MAX_HALF_OPEN || self.count(remote) >= MAX_HALF_OPEN_PER_PREFIX
    }

    /// Whether another one from there must prove its address first.
    pub(super) fn is_busy(&self, remote: SocketAddr, retry_threshold: usize) -> bool {
        self.prefixes.len() >= retry_threshold || self.count(remote) >= RETRY_PER_PREFIX
    }

    /// A handshake has begun.
    pub(super) fn insert(&mut self, handle: ConnectionHandle, remote: SocketAddr) {
        let prefix = Prefix::of(remote);
        if self.prefixes.insert(handle, prefix).is_none() {
            *self.counts.entry(prefix).or_default() += 1;
        }
    }

    /// It is done, or given up.
    pub(super) fn remove(&mut self, handle: ConnectionHandle) {
        let Some(prefix) = self.prefixes.remove(&handle) else { return };
        if let Some(count) = self.counts.get_mut(&prefix) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&prefix);
            }
        }
    }
}

/// What names a first flight: the connection IDs that its client invented for the server and for itself.
type Flight = ([u8; ORIGINAL_CID_LEN], [u8; CID_LEN]);

/// First flights of which a closed server has begun handshakes, the last [`MAX_FLIGHTS`]. Whoever
/// records one and sends it again, from whatever address, must prove that address; it cannot, as it
/// has no keys to seal the token with.
#[derive(Debug, Default)]
pub(super) struct Flights {
    known: FxHashSet<Flight>,
    order: VecDeque<Flight>,
}

impl Flights {
    pub(super) fn contains(&self, flight: Flight) -> bool {
        self.known.contains(&flight)
    }

    /// The oldest makes room.
    pub(super) fn insert(&mut self, flight: Flight) {
        if !self.known.insert(flight) {
            return;
        }
        if self.order.len() >= MAX_FLIGHTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(flight);
    }
}

/// Bytes that peers may have this endpoint hold, all connections together. A connection is given
/// its part when it begins, because its credit is a promise that cannot be taken back.
#[derive(Debug)]
pub(super) struct Memory {
    budget: u64,
    promised: u64,
}

impl Memory {
    pub(super) fn new(budget: u64) -> Self {
        Self { budget, promised: 0 }
    }

    /// Bytes promised to peers now.
    pub(super) fn promised(&self) -> u64 {
        self.promised
    }

    /// The part of a connection that wants `wanted` bytes and cannot do with less than `least`,
    /// while so many `others` may come: for each of them `least` is set aside, or half of what is free
    /// if that is not enough for all of them. `None` if there is no room for it.
    pub(super) fn grant(&self, wanted: usize, least: usize, others: usize) -> Option<usize> {
        let free = self.budget.checked_sub(self.promised)?;
        let (wanted, least, others) = (wanted as u64, least as u64, others as u64);
        if free < least {
            return None;
        }
        let for_others = others.saturating_mul(least);
        let for_others = if for_others <= free { for_others } else { free / 2 };
        let share = (free - for_others) / MEMORY_PARTS;
        usize::try_from(share.max(least).min(wanted)).ok()
    }

    /// So many bytes were promised to a connection.
    pub(super) fn promise(&mut self, bytes: usize) {
        self.promised += bytes as u64;
    }

    /// A connection that had so many is gone.
    pub(super) fn release(&mut self, bytes: usize) {
        self.promised = self.promised.saturating_sub(bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(half_open: &mut HalfOpen, from: u64, address: impl Fn(u64) -> SocketAddr, count: u64) {
        for number in 0..count {
            half_open.insert(ConnectionHandle(from + number), address(number));
        }
    }

    fn v4(network: u64, host: u64) -> SocketAddr {
        SocketAddr::from(([10, (network >> 8) as u8, network as u8, host as u8], 4_000))
    }

    fn v6(network: u64, host: u64) -> SocketAddr {
        let ip = (0x2001_0db8_u128 << 96) | u128::from(network) << 72 | u128::from(host);
        SocketAddr::from((core::net::Ipv6Addr::from_bits(ip), 4_000))
    }

    #[test]
    fn a_prefix_has_its_limits_and_leaves_others_alone() {
        for address in [v4, v6] {
            let mut half_open = HalfOpen::default();
            let (retry, limit) = (RETRY_PER_PREFIX as u64, MAX_HALF_OPEN_PER_PREFIX as u64);
            fill(&mut half_open, 0, |host| address(1, host), retry - 1);
            assert!(!half_open.is_busy(address(1, 200), usize::MAX), "at the limit");
            fill(&mut half_open, retry - 1, |host| address(1, host + 100), 1);
            assert!(half_open.is_busy(address(1, 200), usize::MAX), "beyond it");
            fill(&mut half_open, retry, |host| address(1, host), limit - retry - 1);
            assert!(!half_open.is_full(address(1, 200)), "at the limit");
            fill(&mut half_open, limit - 1, |host| address(1, host), 1);
            assert!(half_open.is_full(address(1, 200)), "beyond it");
            assert!(!half_open.is_full(address(2, 200)) && !half_open.is_busy(address(2, 1), 65));
            half_open.remove(ConnectionHandle(7));
            half_open.remove(ConnectionHandle(7));
            assert!(!half_open.is_full(address(1, 200)));
            (0..limit).for_each(|handle| half_open.remove(ConnectionHandle(handle)));
            assert!(half_open.counts.is_empty() && half_open.prefixes.is_empty());
        }
    }

    #[test]
    fn all_prefixes_together_have_a_limit_too() {
        let mut half_open = HalfOpen::default();
        fill(&mut half_open, 0, |n| v4(n, 1), MAX_HALF_OPEN as u64 - 1);
        assert!(!half_open.is_full(v4(5_000, 1)), "at the limit");
        fill(&mut half_open, MAX_HALF_OPEN as u64, |_| v4(4_999, 1), 1);
        assert!(half_open.is_full(v4(5_000, 1)), "beyond it");
    }

    #[test]
    fn mapped_addresses_count_as_what_they_are_and_nodes_for_themselves() {
        let mapped = SocketAddr::from((core::net::Ipv4Addr::new(10, 0, 1, 9).to_ipv6_mapped(), 1));
        assert_eq!(Prefix::of(mapped), Prefix::of(v4(1, 200)));
        assert_ne!(Prefix::of(v6(1, 1)), Prefix::of(v6(2, 1)));
        let session = |node, flow| relay_node::address(crate::wire::flow::NodeId(node), flow);
        assert_ne!(Prefix::of(session(1, 1)), Prefix::of(session(2, 1)));
        assert_eq!(Prefix::of(session(1, 1)), Prefix::of(session(1, 2)));
    }

    #[test]
    fn the_newest_flights_are_remembered() {
        let flight = |number: usize| ((number as u64).to_be_bytes(), [0; CID_LEN]);
        let mut flights = Flights::default();
        for number in 0..MAX_FLIGHTS {
            flights.insert(flight(number));
            flights.insert(flight(number));
        }
        assert!(flights.contains(flight(0)), "at the limit");
        assert!(!flights.contains((flight(0).0, [1; CID_LEN])));
        flights.insert(flight(MAX_FLIGHTS));
        assert!(!flights.contains(flight(0)), "beyond it");
        assert!(flights.contains(flight(1)) && flights.contains(flight(MAX_FLIGHTS)));
        assert_eq!((flights.known.len(), flights.order.len()), (MAX_FLIGHTS, MAX_FLIGHTS));
    }

    #[test]
    fn promises_never_sum_above_the_budget() {
        const LEAST: usize = 3 << 20;
        for (budget, others) in [(1_u64 << 30, 10_000), (1 << 30, 0), (40 << 30, 10_000)] {
            let mut memory = Memory::new(budget);
            let (mut connections, mut last) = (0, usize::MAX);
            while let Some(granted) = memory.grant(
                192 << 20,
                LEAST,
                (others - 1_usize.min(others)).saturating_sub(connections),
            ) {
                assert!((LEAST..=192 << 20).contains(&granted));
                assert!(granted <= last, "newer connections get no more");
                memory.promise(granted);
                assert!(memory.promised() <= budget);
                (connections, last) = (connections + 1, granted);
            }
            assert!(budget - memory.promised() < LEAST as u64, "refused only when all is gone");
            assert_eq!(last, LEAST);
            if budget == 40 << 30 {
                assert!(connections >= 10_000, "{connections} of those that were to have room");
            }
            memory.release(LEAST);
            assert_eq!(memory.grant(192 << 20, LEAST, 0), Some(LEAST));
        }
    }
}
