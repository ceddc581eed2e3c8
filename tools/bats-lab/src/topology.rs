//! Topology of a lab: hosts, links and paths, and the names and addresses that follow from them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// Maximum number of links.
pub(crate) const MAX_HOPS: u32 = 16;

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The end nearer to `a`.
    Left,
    /// The end nearer to `b`.
    Right,
}

/// Hosts and the links between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    /// Names of the hosts.
    pub(crate) hosts: Vec<String>,
    /// Indices of the hosts at the left and right end of each link.
    pub(crate) edges: Vec<(u32, u32)>,
}

impl Shape {
    /// A chain: `a`, the relays `r1`, `r2`, ..., `b`.
    pub(crate) fn chain(hops: u32) -> Self {
        let mut hosts = vec!["a".to_owned()];
        hosts.extend((1..hops).map(|number| format!("r{number}")));
        hosts.push("b".to_owned());
        Self { hosts, edges: (0..hops).map(|hop| (hop, hop + 1)).collect() }
    }

    /// Hosts `h0`, `h1`, ... with arbitrary links.
    pub(crate) fn mesh(nodes: u32, edges: Vec<(u32, u32)>) -> Self {
        Self { hosts: (0..nodes).map(|node| format!("h{node}")).collect(), edges }
    }

    /// Number of links.
    pub(crate) fn hops(&self) -> u32 {
        self.edges.len() as u32
    }

    /// The link end whose address identifies a host: on a link to its right, if there is one.
    fn primary_link_end(&self, host: u32) -> Option<(u32, End)> {
        let at = |end: End| {
            let found = self
                .edges
                .iter()
                .position(|&(left, right)| host == if end == End::Left { left } else { right });
            found.map(|index| (index as u32 + 1, end))
        };
        at(End::Left).or_else(|| at(End::Right))
    }

    /// The IPv4 address that identifies a host.
    pub(crate) fn address_of(&self, host: u32) -> IpAddr {
        let link_end = self.primary_link_end(host);
        link_end.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |(hop, end)| address(hop, end))
    }

    /// The IPv6 address that identifies a host.
    pub(crate) fn address6_of(&self, host: u32) -> IpAddr {
        let link_end = self.primary_link_end(host);
        link_end.map_or(IpAddr::V6(Ipv6Addr::LOCALHOST), |(hop, end)| address6(hop, end))
    }

    /// The name of the interface of a link at an end of it.
    pub(crate) fn interface(&self, hop: u32, end: End) -> String {
        let is_chain = self.hosts.first().is_some_and(|host| host == "a");
        match end {
            End::Left if is_chain => "right".to_owned(),
            End::Right if is_chain => "left".to_owned(),
            _ => format!("link{hop}"),
        }
    }
}

/// The links of the shortest path between two hosts: indices from 0, and whether each is taken from
/// left to right.
pub(crate) fn path(edges: &[(u32, u32)], from: u32, to: u32) -> Option<Vec<(usize, bool)>> {
    let mut reached = std::collections::BTreeMap::from([(from, None)]);
    let mut next = std::collections::VecDeque::from([from]);
    while let Some(host) = next.pop_front() {
        if host == to {
            break;
        }
        for (index, &(left, right)) in edges.iter().enumerate() {
            let (other, forward) = if left == host {
                (right, true)
            } else if right == host {
                (left, false)
            } else {
                continue;
            };
            reached.entry(other).or_insert_with(|| {
                next.push_back(other);
                Some((host, index, forward))
            });
        }
    }
    let mut path = Vec::new();
    let mut at = to;
    while let Some((before, index, forward)) = *reached.get(&at)? {
        path.push((index, forward));
        at = before;
    }
    path.reverse();
    Some(path)
}

/// The namespace of a host.
pub(crate) fn namespace(lab: &str, host: &str) -> String {
    format!("{lab}-{host}")
}

/// The namespace of the emulator.
pub(crate) fn emulator_namespace(lab: &str) -> String {
    namespace(lab, "emulator")
}

/// All namespaces of a lab.
pub(crate) fn namespaces(lab: &str, shape: &Shape) -> Vec<String> {
    let hosts = shape.hosts.iter().map(|host| namespace(lab, host));
    hosts.chain([emulator_namespace(lab)]).collect()
}

/// The emulator's interface at an end of the link `hop`, counted from 1.
pub(crate) fn emulator_interface(hop: u32, end: End) -> String {
    match end {
        End::Left => format!("hop{hop}left"),
        End::Right => format!("hop{hop}right"),
    }
}

/// The IPv4 address of the host at an end of the link `hop`.
pub(crate) fn address(hop: u32, end: End) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 77, hop as u8, if end == End::Left { 1 } else { 2 }))
}

/// The IPv6 address of the host at an end of the link `hop`.
pub(crate) fn address6(hop: u32, end: End) -> IpAddr {
    let last = if end == End::Left { 1 } else { 2 };
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xba75, 0, hop as u16, 0, 0, 0, last))
}

/// The hardware address of the host at an end of the link `hop`.
pub(crate) fn mac(hop: u32, end: End) -> [u8; 6] {
    // Locally administered address.
    [0x02, 0xba, 0x75, 0x00, hop as u8, if end == End::Left { 1 } else { 2 }]
}

/// The hardware address of the emulator at an end of the link `hop`.
pub(crate) fn emulator_mac(hop: u32, end: End) -> [u8; 6] {
    [0x02, 0xba, 0x75, 0x01, hop as u8, if end == End::Left { 1 } else { 2 }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_has_relays_between_its_ends() {
        assert_eq!(Shape::chain(1).hosts, ["a", "b"]);
        assert_eq!(Shape::chain(3).hosts, ["a", "r1", "r2", "b"]);
        assert_eq!(namespaces("x", &Shape::chain(1)), ["x-a", "x-b", "x-emulator"]);
    }

    #[test]
    fn every_link_end_has_distinct_addresses() {
        let mut seen = Vec::new();
        for hop in 1..=MAX_HOPS {
            for end in [End::Left, End::Right] {
                seen.push((address(hop, end), address6(hop, end), mac(hop, end)));
                assert!(emulator_interface(hop, end).len() < 16);
            }
        }
        let count = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), count);
        let chain = Shape::chain(3);
        assert_eq!(chain.address_of(0).to_string(), "10.77.1.1");
        assert_eq!(chain.address_of(1).to_string(), "10.77.2.1");
        assert_eq!(chain.address_of(3).to_string(), "10.77.3.2");
    }

    #[test]
    fn path_has_the_fewest_links() {
        // A square with a diagonal, and a tail.
        let edges = [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)];
        assert_eq!(path(&edges, 0, 4), Some(vec![(3, true), (4, true)]));
        assert_eq!(path(&edges, 4, 2), Some(vec![(4, false), (2, false)]));
        assert_eq!(path(&edges, 1, 1), Some(vec![]));
        assert_eq!(path(&edges, 0, 9), None);
    }
}
