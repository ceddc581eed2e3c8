//! Connections over TCP whose handshake is not done, by where they come from.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Connections that peers have begun and not greeted on; further ones wait in the kernel.
const MAX_HALF_OPEN: usize = 256;
/// Those of one /24 (IPv4) or /56 (IPv6), as many as the other modes give a network: it cannot take all
/// the places.
const MAX_OF_NETWORK: usize = 64;

/// Leading bits of an address, IPv4 mapped.
fn network(ip: IpAddr) -> u128 {
    let (bytes, bits) = match ip.to_canonical() {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped(), 96 + 24),
        IpAddr::V6(ip) => (ip, 56),
    };
    bytes.to_bits() & (u128::MAX << (128 - bits))
}

#[derive(Debug, Default)]
pub(super) struct HalfOpen {
    all: usize,
    networks: BTreeMap<u128, usize>,
}

impl HalfOpen {
    /// Whether no more are taken from the system.
    pub(super) fn is_full(&self) -> bool {
        self.all >= MAX_HALF_OPEN
    }

    /// Whether this network has its share.
    pub(super) fn is_crowded(&self, ip: IpAddr) -> bool {
        self.networks.get(&network(ip)).is_some_and(|count| *count >= MAX_OF_NETWORK)
    }

    pub(super) fn insert(&mut self, ip: IpAddr) {
        self.all += 1;
        *self.networks.entry(network(ip)).or_default() += 1;
    }

    /// Its handshake is done, or given up.
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
    fn a_network_has_its_share_and_leaves_others_theirs() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (own, near, other) in [
            ("10.0.0.1", "10.0.0.200", "10.0.1.1"),
            ("::ffff:10.0.0.1", "10.0.0.9", "10.0.1.1"),
            ("2001:db8:0:1::1", "2001:db8:0:ff::2", "2001:db8:0:100::1"),
        ] {
            let mut half_open = HalfOpen::default();
            for _ in 0..MAX_OF_NETWORK {
                assert!(!half_open.is_crowded(ip(near)), "{own}");
                half_open.insert(ip(own));
            }
            assert!(half_open.is_crowded(ip(near)) && !half_open.is_crowded(ip(other)), "{own}");
            half_open.remove(ip(near));
            assert!(!half_open.is_crowded(ip(own)), "{own}");
        }
    }

    #[test]
    fn all_networks_together_have_a_limit_and_nothing_is_left_behind() {
        let mut half_open = HalfOpen::default();
        let ips = (0..MAX_HALF_OPEN).map(|x| IpAddr::from([10, (x / 256) as u8, x as u8, 1]));
        for ip in ips.clone() {
            assert!(!half_open.is_full());
            half_open.insert(ip);
        }
        assert!(half_open.is_full());
        ips.for_each(|ip| half_open.remove(ip));
        // One that was not there.
        half_open.remove([10, 0, 0, 1].into());
        assert!(!half_open.is_full() && half_open.all == 0 && half_open.networks.is_empty());
    }
}
