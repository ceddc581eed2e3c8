//! Where the peers of an endpoint are.

use core::net::{IpAddr, SocketAddr};

use crate::wire::flow::FlowKey;

/// Where a peer is: its packets come from there, and those to it go there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Remote {
    /// At an address of the network: the peer of a link.
    Network(SocketAddr),
    /// Beyond relays: the peer of an end-to-end session; or a neighbour: that of a direct session. The flow is the one
    /// that this node sends.
    Relays(FlowKey),
}

impl Remote {
    /// The peer's address, unless relays lead to it.
    pub(crate) fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Network(address) => Some(address),
            Self::Relays(_) => None,
        }
    }

    /// The flow to the peer, if relays lead to it.
    pub(crate) fn flow_key(self) -> Option<FlowKey> {
        match self {
            Self::Network(_) => None,
            Self::Relays(key) => Some(key),
        }
    }

    /// The flow of a direct session: only links with the neighbour transport it.
    pub(crate) fn direct_flow(self) -> Option<FlowKey> {
        self.flow_key().filter(|key| key.is_direct())
    }

    /// Whether relays lead to the peer.
    pub(crate) fn is_over_relays(self) -> bool {
        self.flow_key().is_some()
    }

    /// Whether both are addresses of the same host.
    pub(crate) fn is_same_host(self, other: Self) -> bool {
        let ip = |remote: Self| remote.address().map(|address| address.ip());
        ip(self).is_some_and(|own| ip(other) == Some(own))
    }

    /// What the tokens for a peer are bound to: its IP address, IPv4 as mapped IPv6, or the flow, which is shorter, so
    /// that no address is equal to it.
    pub(crate) fn host_bytes(self) -> Vec<u8> {
        match self {
            Self::Network(address) => match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            },
            Self::Relays(FlowKey { destination, source, flow }) => {
                [destination.0, source.0, flow].map(u32::to_be_bytes).concat()
            }
        }
    }
}

impl From<SocketAddr> for Remote {
    fn from(address: SocketAddr) -> Self {
        Self::Network(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::flow::NodeId;

    fn remote(address: &str) -> Remote {
        Remote::Network(address.parse().unwrap())
    }

    #[test]
    fn tokens_are_bound_to_a_host_or_to_a_flow() {
        let [host, port, other] =
            ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"].map(|address| remote(address).host_bytes());
        assert_eq!(host, port);
        assert_ne!(host, other);
        assert_eq!(host, remote("[::ffff:10.0.0.1]:3").host_bytes());
        let key = FlowKey { destination: NodeId(1), source: NodeId(2), flow: 3 };
        let flow = Remote::Relays(key).host_bytes();
        assert_eq!(flow, [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3]);
        assert_ne!(flow, Remote::Relays(key.reversed()).host_bytes());
    }

    #[test]
    fn only_addresses_have_hosts() {
        let flow = Remote::Relays(FlowKey { destination: NodeId(1), source: NodeId(2), flow: 3 });
        assert!(remote("10.0.0.1:1").is_same_host(remote("10.0.0.1:2")));
        assert!(!remote("10.0.0.1:1").is_same_host(remote("10.0.0.2:1")));
        assert!(!flow.is_same_host(remote("10.0.0.1:1")));
        assert!(!flow.is_same_host(flow));
    }
}
