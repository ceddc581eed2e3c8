//! Limits of half-open TCP connections: in total, and per network.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Incoming connections whose handshake is not complete; further ones wait in the kernel.
const MAX_HALF_OPEN: usize = 256;
/// Half-open connections of one /24 (IPv4) or /56 (IPv6) network, so that a network cannot use up
/// all of them. Its further connections wait.
const MAX_PER_NETWORK: usize = 64;
/// Connections of full networks that wait for their handshakes; further ones are closed.
pub(super) const MAX_WAITING: usize = 2_048;

/// The network prefix of an address; IPv4 addresses are IPv4-mapped.
fn network(ip: IpAddr) -> u128 {
    let (bytes, bits) = match ip.to_canonical() {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped(), 96 + 24),
        IpAddr::V6(ip) => (ip, 56),
    };
    bytes.to_bits() & (u128::MAX << (128 - bits))
}

#[derive(Debug, Default)]
/// Counts half-open connections, in total and per network.
pub(super) struct HalfOpen {
    all: usize,
    networks: BTreeMap<u128, usize>,
}

impl HalfOpen {
    /// Whether the total limit is reached.
    pub(super) fn is_full(&self) -> bool {
        self.all >= MAX_HALF_OPEN
    }

    /// Whether the limit of this network is reached.
    pub(super) fn is_network_full(&self, ip: IpAddr) -> bool {
        self.networks.get(&network(ip)).is_some_and(|count| *count >= MAX_PER_NETWORK)
    }

    pub(super) fn insert(&mut self, ip: IpAddr) {
        self.all += 1;
        *self.networks.entry(network(ip)).or_default() += 1;
    }

    /// Counts a connection out after its handshake, or when it is given up.
    pub(super) fn remove(&mut self, ip: IpAddr) {
        let network = network(ip);
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
            let mut half_open = HalfOpen::default();
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
        let mut half_open = HalfOpen::default();
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
}
