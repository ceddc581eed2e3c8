//! Link-local addresses and multicast groups inside the tunnel, for routing daemons that run over it: only
//! neighbours exchange such packets.
//!
//! The link-local address of a node follows from its ID, so no node has to learn it, and a
//! neighbour can use no other one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::node_id::NodeId;

/// Protocol numbers: IGMP, ICMPv6, and the headers of IPv6 that a payload may follow.
const IGMP: u8 = 2;
const ICMPV6: u8 = 58;
const EXTENSIONS: [u8; 9] = [0, 43, 44, 50, 51, 60, 135, 139, 140];
/// Types of ICMPv6: multicast listener discovery (RFC 3810), neighbour discovery (RFC 4861).
const MLD: [u8; 4] = [130, 131, 132, 143];
const NEIGHBOUR_DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;

/// The link-local address of a node on its TUN device: the interface ID of RFC 5214 section 6.1, with the ID
/// of the node as the IPv4 address. `fe80::5efe:10.255.0.1` is that of node 10.255.0.1.
#[must_use]
pub fn link_local(node: NodeId) -> Ipv6Addr {
    let [a, b, c, d] = node.0.octets();
    let pair = |high, low| u16::from_be_bytes([high, low]);
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0x5efe, pair(a, b), pair(c, d))
}

/// Where a packet goes that is not routed by prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// To the neighbour with this ID.
    Neighbour(NodeId),
    /// To all neighbours.
    Neighbours,
    /// To none: no node has this link-local address.
    NoNode,
}

/// Whether a destination is link-local, and who gets the packet; `None` if its prefix decides.
#[must_use]
pub fn local(destination: IpAddr) -> Option<Local> {
    match destination {
        // RFC 5771 section 4: the Local Network Control Block.
        IpAddr::V4(address) => (address.octets()[..3] == [224, 0, 0]).then_some(Local::Neighbours),
        IpAddr::V6(address) if address.is_multicast() => {
            (address.segments()[0] & 0xf == 2).then_some(Local::Neighbours)
        }
        IpAddr::V6(address) if address.is_unicast_link_local() => {
            let [.., a, b, c, d] = address.octets();
            let node = NodeId(Ipv4Addr::new(a, b, c, d));
            let is_derived = link_local(node) == address;
            Some(if is_derived { Local::Neighbour(node) } else { Local::NoNode })
        }
        IpAddr::V6(_) => None,
    }
}

/// Whether this is a link-local address of IPv6.
#[must_use]
pub fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Whether a packet with a link-local address may pass, by its source, the protocol after the extension headers
/// that were parsed, whether it is a fragment, and the first byte of its payload.
///
/// Neighbour discovery may not: the device needs none, and a neighbour could become a router of this host
/// by it (RFC 4861 section 6). Listener reports have no reader, because all neighbours get all groups.
#[must_use]
pub fn may_pass(source: IpAddr, protocol: u8, is_fragment: bool, first: Option<u8>) -> bool {
    if source.is_unspecified() || source.is_multicast() || protocol == IGMP {
        return false;
    }
    if source.is_ipv4() {
        return true;
    }
    match protocol {
        // What follows headers that were not parsed is not known.
        protocol if EXTENSIONS.contains(&protocol) => false,
        ICMPV6 => {
            let is_allowed = |kind| !MLD.contains(&kind) && !NEIGHBOUR_DISCOVERY.contains(&kind);
            !is_fragment && first.is_some_and(is_allowed)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(Ipv4Addr::new(10, 255, 0, 1));

    #[test]
    fn addresses_follow_from_ids_and_lead_back() {
        let address = link_local(NODE);
        assert_eq!(address, "fe80::5efe:10.255.0.1".parse::<Ipv6Addr>().unwrap());
        assert_eq!(local(address.into()), Some(Local::Neighbour(NODE)));
        for (text, wanted) in [
            ("fe80::5eff:10.255.0.1", Some(Local::NoNode)),
            ("fe80::1:0:5efe:10.255.0.1", Some(Local::NoNode)),
            ("fe80::1", Some(Local::NoNode)),
            ("ff02::1:6", Some(Local::Neighbours)),
            ("ff12::1", Some(Local::Neighbours)),
            ("ff05::2", None),
            ("fd66::1", None),
            ("224.0.0.5", Some(Local::Neighbours)),
            ("224.0.1.5", None),
            ("239.1.2.3", None),
            ("10.66.0.1", None),
        ] {
            assert_eq!(local(text.parse().unwrap()), wanted, "{text}");
        }
    }

    #[test]
    fn neighbour_discovery_and_what_may_hide_it_does_not_pass() {
        let source = IpAddr::V6(link_local(NODE));
        for kind in [130, 133, 134, 135, 136, 137, 143] {
            assert!(!may_pass(source, ICMPV6, false, Some(kind)), "{kind}");
        }
        assert!(may_pass(source, ICMPV6, false, Some(128)), "echo request");
        assert!(!may_pass(source, ICMPV6, true, Some(128)), "the type is in another fragment");
        assert!(!may_pass(source, ICMPV6, false, None));
        assert!(!may_pass(source, 60, false, Some(58)), "more headers than were parsed");
        assert!(!may_pass("10.66.0.1".parse().unwrap(), IGMP, false, None));
        assert!(!may_pass("::".parse().unwrap(), 17, false, None));
        for protocol in [17, 89] {
            assert!(may_pass(source, protocol, false, None));
            assert!(may_pass("10.66.0.1".parse().unwrap(), protocol, false, None));
        }
    }
}
