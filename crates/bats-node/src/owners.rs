//! The peer that owns each address in the tunnel. It is the routing table of the tunnel and the check of
//! sources at once, as the allowed IPs of WireGuard are.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::node_id::NodeId;

/// Two nodes claim a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixConflict {
    /// The prefix.
    pub prefix: IpNet,
    /// The nodes.
    pub nodes: (NodeId, NodeId),
}

impl fmt::Display for PrefixConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (one, other) = self.nodes;
        write!(f, "{} belongs to both {one} and {other}: give it to one of them", self.prefix)
    }
}

/// Prefixes and their owners. The longest prefix that contains an address decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// By address family and length, so that a look-up takes one step for each length in use.
    by_length: BTreeMap<(bool, u8), BTreeMap<IpAddr, NodeId>>,
}

impl Owners {
    pub(crate) fn add(&mut self, prefix: IpNet, node: NodeId) -> Result<(), PrefixConflict> {
        let prefix = prefix.trunc();
        let key = (prefix.addr().is_ipv6(), prefix.prefix_len());
        match self.by_length.entry(key).or_default().insert(prefix.network(), node) {
            Some(other) if other != node => Err(PrefixConflict { prefix, nodes: (other, node) }),
            _ => Ok(()),
        }
    }

    /// The node that owns an address.
    #[must_use]
    pub fn owner(&self, address: IpAddr) -> Option<NodeId> {
        let is_v6 = address.is_ipv6();
        let lengths = self.by_length.range((is_v6, 0)..=(is_v6, 128)).rev();
        for (&(_, length), owners) in lengths {
            let network = IpNet::new(address, length).ok()?.network();
            if let Some(&node) = owners.get(&network) {
                return Some(node);
            }
        }
        None
    }

    /// Whether a packet of this node may have this source address.
    #[must_use]
    pub fn may_send(&self, node: NodeId, source: IpAddr) -> bool {
        self.owner(source) == Some(node)
    }
}
