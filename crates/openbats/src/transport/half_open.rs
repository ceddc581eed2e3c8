//! Limits of half-open connections of TCP and QUIC, and of those of TCP that wait for a handshake: in total, and per network.

use std::collections::BTreeMap;
use std::net::IpAddr;

use rustix::process::{Resource, getrlimit};

/// TCP: incoming connections whose handshake is not complete; further ones wait in the kernel.
const MAX_HALF_OPEN: usize = 256;
/// TCP: half-open connections of one /24 (IPv4) or /56 (IPv6) network, so that a network cannot use up
/// all of them. Its further connections wait.
const MAX_PER_NETWORK: usize = 64;
/// Connections of full networks that wait for their handshakes; further ones are closed. At most
/// half of the descriptors that the process may open, so that some are left for everything else.
const MAX_WAITING: usize = 2_048;

fn max_waiting(descriptors: Option<u64>) -> usize {
    let half = descriptors.and_then(|limit| usize::try_from(limit / 2).ok());
    half.map_or(MAX_WAITING, |half| half.min(MAX_WAITING))
}

/// The network prefix of an address; IPv4 addresses are IPv4-mapped.
pub(super) fn network(ip: IpAddr) -> u128 {
    let (bytes, bits) = match ip.to_canonical() {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped(), 96 + 24),
        IpAddr::V6(ip) => (ip, 56),
    };
    bytes.to_bits() & (u128::MAX << (128 - bits))
}

/// Counts connections, in total and per network.
#[derive(Debug)]
pub(super) struct NetworkCounts {
    all: usize,
    networks: BTreeMap<u128, usize>,
    max: usize,
    max_per_network: usize,
}

impl NetworkCounts {
    pub(super) fn new(max: usize, max_per_network: usize) -> Self {
        Self { all: 0, networks: BTreeMap::new(), max, max_per_network }
    }

    /// Of TCP connections whose handshake is not complete.
    pub(super) fn half_open() -> Self {
        Self::new(MAX_HALF_OPEN, MAX_PER_NETWORK)
    }

    /// Of connections that wait for a handshake. A network may have three quarters of them.
    pub(super) fn waiting() -> Self {
        let max = max_waiting(getrlimit(Resource::Nofile).current);
        Self::new(max, max - max / 4)
    }

    /// Whether the total limit is reached.
    pub(super) fn is_full(&self) -> bool {
        self.all >= self.max
    }

    /// Whether the limit of this network is reached.
    pub(super) fn is_network_full(&self, ip: IpAddr) -> bool {
        self.is_full_network(network(ip))
    }

    /// As [`Self::is_network_full`], for the prefix of a network.
    pub(super) fn is_full_network(&self, network: u128) -> bool {
        self.networks.get(&network).is_some_and(|count| *count >= self.max_per_network)
    }

    pub(super) fn len(&self) -> usize {
        self.all
    }

    pub(super) fn clear(&mut self) {
        self.all = 0;
        self.networks.clear();
    }

    pub(super) fn insert(&mut self, ip: IpAddr) {
        self.all += 1;
        *self.networks.entry(network(ip)).or_default() += 1;
    }

    /// Counts a connection out after its handshake, or when it is given up.
    pub(super) fn remove(&mut self, ip: IpAddr) {
        self.remove_from(network(ip));
    }

    /// As [`Self::remove`], for the prefix of a network.
    pub(super) fn remove_from(&mut self, network: u128) {
        let Some(count) = self.networks.get_mut(&network) else { return };
        *count -= 1;
        if *count == 0 {
            self.networks.remove(&network);
        }
        self.all -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_open_connections_of_a_network_are_limited() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (own, near, other) in [
            ("10.0.0.1", "10.0.0.200", "10.0.1.1"),
            ("::ffff:10.0.0.1", "10.0.0.9", "10.0.1.1"),
            ("2001:db8:0:1::1", "2001:db8:0:ff::2", "2001:db8:0:100::1"),
        ] {
            let mut half_open = NetworkCounts::half_open();
            for _ in 0..MAX_PER_NETWORK {
                assert!(!half_open.is_network_full(ip(near)), "{own}");
                half_open.insert(ip(own));
            }
            assert!(
                half_open.is_network_full(ip(near)) && !half_open.is_network_full(ip(other)),
                "{own}"
            );
            half_open.remove(ip(near));
            assert!(!half_open.is_network_full(ip(own)), "{own}");
        }
    }

    #[test]
    fn half_open_connections_are_limited_and_removed() {
        let mut half_open = NetworkCounts::half_open();
        let ips = (0..MAX_HALF_OPEN).map(|x| IpAddr::from([10, (x / 256) as u8, x as u8, 1]));
        for ip in ips.clone() {
            assert!(!half_open.is_full());
            half_open.insert(ip);
        }
        assert!(half_open.is_full());
        ips.for_each(|ip| half_open.remove(ip));
        // An address that was not counted.
        half_open.remove([10, 0, 0, 1].into());
        assert!(!half_open.is_full() && half_open.all == 0 && half_open.networks.is_empty());
    }

    #[test]
    fn waiting_connections_leave_half_of_the_descriptors_and_a_network_leaves_a_quarter() {
        let limits = [None, Some(1 << 40), Some(1_024), Some(0)];
        assert_eq!(limits.map(max_waiting), [2_048, 2_048, 512, 0]);
        let mut waiting = NetworkCounts::waiting();
        let max = max_waiting(getrlimit(Resource::Nofile).current);
        let (one, other) = ([10, 0, 0, 1].into(), [10, 0, 1, 1].into());
        while !waiting.is_network_full(one) {
            waiting.insert(one);
        }
        assert_eq!(waiting.all, max - max / 4);
        while !waiting.is_full() {
            assert!(!waiting.is_network_full(other));
            waiting.insert(other);
        }
        assert_eq!(waiting.all, max);
    }
}
