//! Addresses of end-to-end sessions.
//!
//! The peer of an end-to-end session has an address from the discard prefix (RFC 6666), to which no
//! network delivers. The address encodes the peer's node and the flow, so that the endpoint can
//! treat end-to-end packets as datagrams.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::wire::flow::NodeId;

/// First 64 bits of the addresses of end-to-end sessions: the discard prefix 100::/64.
const PREFIX: [u16; 4] = [0x0100, 0, 0, 0];
/// Port of these addresses.
const PORT: u16 = 1;

/// The address that represents the peer of an end-to-end session.
pub(in crate::endpoint) fn address(peer: NodeId, flow: u32) -> SocketAddr {
    let [a, b, c, d] = PREFIX;
    let (node, half) = (peer.0, |x: u32| ((x >> 16) as u16, x as u16));
    let ((e, f), (g, h)) = (half(node), half(flow));
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), PORT)
}

/// The peer and the flow that an address represents.
pub(super) fn parse(address: SocketAddr) -> Option<(NodeId, u32)> {
    let IpAddr::V6(ip) = address.ip() else { return None };
    let [a, b, c, d, e, f, g, h] = ip.segments();
    let join = |high: u16, low: u16| u32::from(high) << 16 | u32::from(low);
    ([a, b, c, d] == PREFIX).then(|| (NodeId(join(e, f)), join(g, h)))
}

/// Whether an address represents an end-to-end session. Datagrams from the network must not use
/// one.
pub(in crate::endpoint) fn is_relayed_address(address: SocketAddr) -> bool {
    parse(address).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_addresses_differ_from_network_addresses() {
        let made = address(NodeId(0x0102_0304), 0xa0b0_c0d0);
        assert_eq!(made.to_string(), "[100::102:304:a0b0:c0d0]:1");
        assert_eq!(parse(made), Some((NodeId(0x0102_0304), 0xa0b0_c0d0)));
        for other in ["10.0.0.1:5", "[101::1]:1", "[::ffff:10.0.0.1]:4", "[100:0:0:1::1]:1"] {
            assert!(!is_relayed_address(other.parse().unwrap()), "{other}");
        }
    }
}
