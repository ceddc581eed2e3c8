//! Admission control: half-open handshakes by network prefix, memory by connection.

use core::net::IpAddr;
use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashSet;

use super::handle::ConnectionHandle;
use crate::remote::Remote;
use crate::wire::flow::NodeId;
use crate::wire::long_header::{CID_LEN, ORIGINAL_CID_LEN};

/// Limit of half-open handshakes. Each takes about 20 KiB, plus 70 KiB if its client sends data and
/// withholds the end of the handshake. They end after 10 s; a server that has more is under attack.
pub(super) const MAX_HALF_OPEN: usize = 4_096;
/// Limit of half-open handshakes from one /24 (IPv4) or /56 (IPv6), the usual size of one network,
/// so that one network cannot use all of them. Over relays each node has its own limit. Half of all:
/// thousands of clients behind one NAT may reconnect at the same time.
pub(super) const MAX_HALF_OPEN_PER_PREFIX: usize = MAX_HALF_OPEN / 2;
/// Half-open handshakes of a prefix from which its hosts must validate their addresses. Spoofed
/// addresses get no further than this; the rest is left to validated hosts.
pub(super) const RETRY_PER_PREFIX: usize = 32;
/// First flights that a server in PSK mode remembers, in about 0.6 MiB.
const MAX_FIRST_FLIGHTS: usize = 16_384;
/// A connection gets at most this fraction (1/n) of the memory that is not reserved.
const MEMORY_PARTS: u64 = 8;

/// The network that a client is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ClientNetwork {
    /// That of an address: its prefix, IPv4 as mapped IPv6.
    Prefix(u128),
    /// Over relays: its node. A node chooses its flows.
    Node(NodeId),
    /// In a direct flow: the neighbour, which the links have authenticated. Others cannot use up its limit.
    Neighbour(NodeId),
}

impl ClientNetwork {
    fn of(remote: Remote) -> Self {
        let address = match remote {
            Remote::Network(address) => address,
            Remote::Relays(key) if key.is_direct() => return Self::Neighbour(key.destination),
            Remote::Relays(key) => return Self::Node(key.destination),
        };
        let (bytes, bits) = match address.ip().to_canonical() {
            IpAddr::V4(ip) => (ip.to_ipv6_mapped(), 96 + 24),
            IpAddr::V6(ip) => (ip, 56),
        };
        Self::Prefix(bytes.to_bits() & (u128::MAX << (128 - bits)))
    }
}

/// Connections with incomplete handshakes.
#[derive(Debug, Default)]
pub(super) struct HalfOpen {
    networks: BTreeMap<ConnectionHandle, ClientNetwork>,
    counts: BTreeMap<ClientNetwork, usize>,
}

impl HalfOpen {
    fn count(&self, remote: Remote) -> usize {
        self.counts.get(&ClientNetwork::of(remote)).copied().unwrap_or(0)
    }

    /// Whether another half-open handshake from this network must be refused.
    pub(super) fn is_full(&self, remote: Remote) -> bool {
        self.networks.len() >= MAX_HALF_OPEN || self.count(remote) >= MAX_HALF_OPEN_PER_PREFIX
    }

    /// Whether another client from this network must validate its address first. A neighbour that opens a direct
    /// session has none.
    pub(super) fn requires_retry(&self, remote: Remote, retry_threshold: usize) -> bool {
        let is_busy =
            self.networks.len() >= retry_threshold || self.count(remote) >= RETRY_PER_PREFIX;
        is_busy && remote.direct_flow().is_none()
    }

    /// A handshake has started.
    pub(super) fn insert(&mut self, handle: ConnectionHandle, remote: Remote) {
        let network = ClientNetwork::of(remote);
        if self.networks.insert(handle, network).is_none() {
            *self.counts.entry(network).or_default() += 1;
        }
    }

    /// A handshake has completed or failed.
    pub(super) fn remove(&mut self, handle: ConnectionHandle) {
        let Some(network) = self.networks.remove(&handle) else { return };
        if let Some(count) = self.counts.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&network);
            }
        }
    }
}

/// Identifies a first flight: the connection IDs that its client chose for the server and for
/// itself.
pub(super) type Flight = ([u8; ORIGINAL_CID_LEN], [u8; CID_LEN]);

/// The last [`MAX_FIRST_FLIGHTS`] first flights for which a server in PSK mode has started
/// handshakes. A replayed first flight must validate its address with a token. An attacker without
/// the key cannot seal the token.
#[derive(Debug, Default)]
pub(super) struct FirstFlights {
    recorded: FxHashSet<Flight>,
    order: VecDeque<Flight>,
}

impl FirstFlights {
    pub(super) fn contains(&self, flight: Flight) -> bool {
        self.recorded.contains(&flight)
    }

    /// Records a first flight; beyond the limit the oldest is dropped.
    pub(super) fn insert(&mut self, flight: Flight) {
        if !self.recorded.insert(flight) {
            return;
        }
        if self.order.len() >= MAX_FIRST_FLIGHTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.recorded.remove(&oldest);
        }
        self.order.push_back(flight);
    }
}

/// The memory ledger: bytes of received data that all connections together may hold.
///
/// A connection is charged for what it holds, and at least 256 KiB (`BASE_MEMORY`). Its limit, for which its
/// peer gets credit, may be more than there is: packets for which there is no memory count as lost.
/// Beyond the least memory with which it makes progress, a connection is charged only if as much
/// remains for every other connection, those that may still come included.
///
/// The base of a peer whose address is not validated is only reserved: it holds no data before its
/// handshake is complete.
///
#[derive(Debug)]
pub(super) struct MemoryLedger {
    budget: u64,
    charged: u64,
    reserved: u64,
    /// What the connections with less than their least memory lack, in sum.
    lacking: u64,
}

/// A connection in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Account {
    /// Bytes that it may hold now.
    pub(super) charged: usize,
    /// Bytes with which it makes progress.
    pub(super) least: usize,
}

impl Account {
    fn lacking(self) -> u64 {
        self.least.saturating_sub(self.charged) as u64
    }
}

impl MemoryLedger {
    pub(super) fn new(budget: u64) -> Self {
        Self { budget, charged: 0, reserved: 0, lacking: 0 }
    }

    /// Bytes charged to connections now.
    pub(super) fn charged(&self) -> u64 {
        self.charged
    }

    /// The memory that a connection which needs `least` and wants `wanted` bytes may expect, when
    /// `others` more connections may follow: at most an eighth of what is not kept for others.
    /// `None` if there is no room for a connection.
    pub(super) fn limit(&self, wanted: usize, least: usize, others: usize) -> Option<usize> {
        let free = self.budget.saturating_sub(self.charged);
        if free < least as u64 {
            return None;
        }
        let available = self.available(free, 0, least, others) / MEMORY_PARTS;
        Some(usize::try_from(available).unwrap_or(usize::MAX).max(least).min(wanted))
    }

    /// Bytes to charge a connection that wants `wanted` bytes. It is at least what it is charged now.
    pub(super) fn raise(&self, account: Account, wanted: usize, others: usize) -> usize {
        let Account { charged, least } = account;
        let free = self.budget.saturating_sub(self.charged) + charged as u64;
        let available = self.available(free, account.lacking(), least, others);
        let available = available.max(free.min(least as u64));
        usize::try_from(available).unwrap_or(usize::MAX).min(wanted).max(charged)
    }

    /// What is left of `free` bytes when the least memory is kept for all others, or half if that
    /// is not enough for all.
    fn available(&self, free: u64, own_lacking: u64, least: usize, others: usize) -> u64 {
        let least = least as u64;
        // Spoofed addresses must not keep out others: the least memory is there for everyone.
        let free = free.saturating_sub(self.reserved).max(free.min(least));
        let kept = (others as u64).saturating_mul(least);
        let kept = kept.saturating_add(self.lacking.saturating_sub(own_lacking));
        if kept <= free { free - kept } else { free / 2 }
    }

    /// Charges a connection.
    pub(super) fn add(&mut self, account: Account) {
        self.charged += account.charged as u64;
        self.lacking += account.lacking();
    }

    /// Removes the charge of a connection.
    pub(super) fn remove(&mut self, account: Account) {
        self.charged = self.charged.saturating_sub(account.charged as u64);
        self.lacking = self.lacking.saturating_sub(account.lacking());
    }

    /// Whether `bytes` more can be charged.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.budget.saturating_sub(self.charged) >= bytes as u64
    }

    /// Records `bytes` reserved for a peer whose address is not validated.
    pub(super) fn reserve(&mut self, bytes: usize) {
        self.reserved += bytes as u64;
    }

    /// Ends the reservation of `bytes`.
    pub(super) fn cancel(&mut self, bytes: usize) {
        self.reserved = self.reserved.saturating_sub(bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::flow::FlowKey;

    fn fill(half_open: &mut HalfOpen, from: u64, address: impl Fn(u64) -> Remote, count: u64) {
        for number in 0..count {
            half_open.insert(ConnectionHandle(from + number), address(number));
        }
    }

    fn v4(network: u64, host: u64) -> Remote {
        let ip = [10, (network >> 8) as u8, network as u8, host as u8];
        Remote::Network((ip, 4_000).into())
    }

    fn v6(network: u64, host: u64) -> Remote {
        let ip = (0x2001_0db8_u128 << 96) | u128::from(network) << 72 | u128::from(host);
        Remote::Network((core::net::Ipv6Addr::from_bits(ip), 4_000).into())
    }

    #[test]
    fn one_prefix_is_limited_without_affecting_others() {
        for address in [v4, v6] {
            let mut half_open = HalfOpen::default();
            let (retry, limit) = (RETRY_PER_PREFIX as u64, MAX_HALF_OPEN_PER_PREFIX as u64);
            fill(&mut half_open, 0, |host| address(1, host), retry - 1);
            assert!(!half_open.requires_retry(address(1, 200), usize::MAX), "at the limit");
            fill(&mut half_open, retry - 1, |host| address(1, host + 100), 1);
            assert!(half_open.requires_retry(address(1, 200), usize::MAX), "beyond it");
            fill(&mut half_open, retry, |host| address(1, host), limit - retry - 1);
            assert!(!half_open.is_full(address(1, 200)), "at the limit");
            fill(&mut half_open, limit - 1, |host| address(1, host), 1);
            assert!(half_open.is_full(address(1, 200)), "beyond it");
            let above_all = limit as usize + 1;
            assert!(!half_open.is_full(address(2, 200)));
            assert!(!half_open.requires_retry(address(2, 1), above_all));
            half_open.remove(ConnectionHandle(7));
            half_open.remove(ConnectionHandle(7));
            assert!(!half_open.is_full(address(1, 200)));
            (0..limit).for_each(|handle| half_open.remove(ConnectionHandle(handle)));
            assert!(half_open.counts.is_empty() && half_open.networks.is_empty());
        }
    }

    #[test]
    fn half_open_handshakes_have_a_total_limit() {
        let mut half_open = HalfOpen::default();
        fill(&mut half_open, 0, |n| v4(n, 1), MAX_HALF_OPEN as u64 - 1);
        assert!(!half_open.is_full(v4(5_000, 1)), "at the limit");
        fill(&mut half_open, MAX_HALF_OPEN as u64, |_| v4(4_999, 1), 1);
        assert!(half_open.is_full(v4(5_000, 1)), "beyond it");
    }

    #[test]
    fn mapped_addresses_count_as_ipv4_and_relay_nodes_separately() {
        let ip = core::net::Ipv4Addr::new(10, 0, 1, 9).to_ipv6_mapped();
        let mapped = Remote::Network((ip, 1).into());
        assert_eq!(ClientNetwork::of(mapped), ClientNetwork::of(v4(1, 200)));
        assert_ne!(ClientNetwork::of(v6(1, 1)), ClientNetwork::of(v6(2, 1)));
        let session = |node, flow| {
            Remote::Relays(FlowKey { destination: NodeId(node), source: NodeId(9), flow })
        };
        assert_ne!(ClientNetwork::of(session(1, 1)), ClientNetwork::of(session(2, 1)));
        assert_eq!(ClientNetwork::of(session(1, 1)), ClientNetwork::of(session(1, 2)));
        assert_ne!(ClientNetwork::of(session(1, 1)), ClientNetwork::of(session(1, 1 << 31)));
    }

    #[test]
    fn newest_first_flights_are_remembered_up_to_the_limit() {
        let flight = |number: usize| ((number as u64).to_be_bytes(), [0; CID_LEN]);
        let mut first_flights = FirstFlights::default();
        for number in 0..MAX_FIRST_FLIGHTS {
            first_flights.insert(flight(number));
            first_flights.insert(flight(number));
        }
        assert!(first_flights.contains(flight(0)), "at the limit");
        assert!(!first_flights.contains((flight(0).0, [1; CID_LEN])));
        first_flights.insert(flight(MAX_FIRST_FLIGHTS));
        assert!(!first_flights.contains(flight(0)), "beyond it");
        assert!(
            first_flights.contains(flight(1)) && first_flights.contains(flight(MAX_FIRST_FLIGHTS))
        );
        assert_eq!(
            (first_flights.recorded.len(), first_flights.order.len()),
            (MAX_FIRST_FLIGHTS, MAX_FIRST_FLIGHTS)
        );
    }

    const BASE: usize = 256 << 10;
    const LEAST: usize = 3 << 20;

    fn account(charged: usize) -> Account {
        Account { charged, least: LEAST }
    }

    #[test]
    fn connections_are_accepted_while_one_of_them_could_have_the_least_memory() {
        let mut memory = MemoryLedger::new(64 << 20);
        let mut connections = 0;
        while memory.limit(192 << 20, LEAST, 0).is_some() {
            memory.add(account(BASE));
            connections += 1;
        }
        assert_eq!(connections, (64 << 20) / BASE - LEAST / BASE + 1);
        assert!(memory.charged() <= 64 << 20);
        memory.remove(account(BASE));
        assert_eq!(memory.limit(192 << 20, LEAST, 0), Some(LEAST));
    }

    /// With room for all, the least memory of every connection is there whatever others are charged.
    #[test]
    fn the_least_memory_is_kept_for_others() {
        const OTHERS: usize = 100;
        let mut memory = MemoryLedger::new((OTHERS as u64 + 40) * LEAST as u64);
        let mut accounts = vec![account(BASE); OTHERS / 2];
        accounts.iter().for_each(|&account| memory.add(account));
        let raise = |memory: &mut MemoryLedger, own: &mut Account, wanted| {
            let charged = memory.raise(*own, wanted, OTHERS / 2);
            memory.remove(*own);
            own.charged = charged;
            memory.add(*own);
            charged
        };
        for own in accounts.iter_mut().take(10) {
            raise(&mut memory, own, usize::MAX);
        }
        for own in &mut accounts {
            assert!(raise(&mut memory, own, LEAST) >= LEAST);
        }
        assert!(memory.has_room(OTHERS / 2 * LEAST));
        let charged = accounts.iter().map(|account| account.charged as u64).sum();
        assert_eq!(memory.charged(), charged);
        accounts.iter().for_each(|&account| memory.remove(account));
        assert_eq!((memory.charged(), memory.lacking), (0, 0));
    }

    proptest! {
        /// Whatever connections want, come, end and give back, the charges stay within the budget.
        #[test]
        fn charges_never_exceed_the_budget(
            budget in 1_u64 << 20..1 << 34,
            steps in prop::collection::vec((0_usize..40, 0_usize..256 << 20), 1..200),
        ) {
            let mut memory = MemoryLedger::new(budget);
            let mut accounts: Vec<Account> = Vec::new();
            for (number, wanted) in steps {
                match accounts.get(number).copied() {
                    None if memory.limit(wanted.max(LEAST), LEAST, 30).is_some() => {
                        memory.add(account(BASE));
                        accounts.push(account(BASE));
                    }
                    None => {}
                    Some(own) if wanted % 5 == 0 => {
                        memory.remove(own);
                        accounts.swap_remove(number);
                    }
                    Some(own) => {
                        let wanted = wanted.max(BASE);
                        let charged = match wanted < own.charged {
                            true => wanted,
                            false => memory.raise(own, wanted, 30),
                        };
                        memory.remove(own);
                        memory.add(account(charged));
                        accounts[number] = account(charged);
                    }
                }
                prop_assert!(memory.charged() <= budget);
                prop_assert_eq!(
                    memory.charged(),
                    accounts.iter().map(|own| own.charged as u64).sum::<u64>()
                );
                prop_assert_eq!(memory.lacking, accounts.iter().map(|own| own.lacking()).sum::<u64>());
            }
        }
    }
}
