//! Topology of a lab: hosts, namespaces, interfaces, addresses and routes.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::namespace::{Namespaces, private_mounts};
use crate::netlink::{self, Socket, VethEnd};
use crate::processors;
use crate::state::{Home, Lab};

/// Maximum number of links.
pub(crate) const MAX_HOPS: u32 = 16;

/// `tcp_rmem` and `tcp_wmem` of the hosts (min, default, max in bytes): up to 256 MiB, so that TCP
/// is not limited by its window.
const TCP_MEMORY: &str = "4096 131072 268435456";

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
    fn address6_of(&self, host: u32) -> IpAddr {
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

fn mac(hop: u32, end: End) -> [u8; 6] {
    // Locally administered address.
    [0x02, 0xba, 0x75, 0x00, hop as u8, if end == End::Left { 1 } else { 2 }]
}

fn emulator_mac(hop: u32, end: End) -> [u8; 6] {
    [0x02, 0xba, 0x75, 0x01, hop as u8, if end == End::Left { 1 } else { 2 }]
}

/// Builds the namespaces of `lab`. Connects each host to the emulator, or the hosts to each other
/// if the lab has no emulator.
///
/// # Errors
/// Errors of the kernel, with the step that failed. Partial state remains: remove the lab.
pub(crate) fn build(home: &Home, lab: &Lab) -> Result<()> {
    let namespaces = home.namespaces(&lab.name);
    let shape = &lab.shape;
    write_hosts_file(home, lab)?;
    if lab.is_emulated {
        let emulator = emulator_namespace(&lab.name);
        namespaces.create(&emulator)?;
        namespaces.within(&emulator, || {
            // The emulator acts as a wire: it has no address and must not send packets by itself.
            set_sysctl("net/ipv6/conf/all/disable_ipv6", "1");
            set_sysctl("net/ipv6/conf/default/disable_ipv6", "1");
            Ok(())
        })?;
    }
    for (index, host) in shape.hosts.iter().enumerate() {
        let name = namespace(&lab.name, host);
        namespaces.create(&name)?;
        let index = index as u32;
        let links = shape.edges.iter().filter(|edge| edge.0 == index || edge.1 == index).count();
        namespaces.within(&name, || prepare_host(links > 1))?;
    }
    for hop in 1..=shape.hops() {
        let joined = if lab.is_emulated {
            connect_to_emulator(&namespaces, lab, hop, End::Left)
                .and_then(|()| connect_to_emulator(&namespaces, lab, hop, End::Right))
        } else {
            connect_directly(&namespaces, lab, hop)
        };
        joined.with_context(|| format!("cannot build link {hop}"))?;
    }
    for (index, host) in shape.hosts.iter().enumerate() {
        namespaces
            .within(&namespace(&lab.name, host), || add_routes(index as u32, shape))
            .with_context(|| format!("cannot set the routes of {host}"))?;
    }
    Ok(())
}

/// Configures the kernel of a host. Older kernels lack some of the settings.
fn prepare_host(forwards: bool) -> Result<()> {
    set_sysctl("net/ipv4/tcp_rmem", TCP_MEMORY);
    set_sysctl("net/ipv4/tcp_wmem", TCP_MEMORY);
    // Runs must not reuse TCP metrics of earlier runs.
    set_sysctl("net/ipv4/tcp_no_metrics_save", "1");
    set_sysctl("net/ipv6/conf/all/accept_ra", "0");
    set_sysctl("net/ipv6/conf/default/accept_ra", "0");
    set_sysctl("net/ipv6/conf/default/router_solicitations", "0");
    set_sysctl("net/ipv4/conf/all/rp_filter", "0");
    set_sysctl("net/ipv4/conf/default/rp_filter", "0");
    if forwards {
        set_sysctl("net/ipv4/ip_forward", "1");
        set_sysctl("net/ipv6/conf/all/forwarding", "1");
    }
    let mut socket = Socket::route()?;
    netlink::set_up(&mut socket, "lo").context("cannot bring the loopback interface up")
}

/// Writes a sysctl of the network namespace of the calling thread, if the kernel has it.
fn set_sysctl(name: &str, value: &str) {
    let _ = fs::write(format!("/proc/sys/{name}"), value);
}

/// The namespace of the host at one end of a link.
fn host_at(lab: &Lab, hop: u32, end: End) -> Result<String> {
    let edge = lab.shape.edges.get(hop as usize - 1).context("no such link")?;
    let index = if end == End::Left { edge.0 } else { edge.1 };
    let host = lab.shape.hosts.get(index as usize).context("no such host")?;
    Ok(namespace(&lab.name, host))
}

fn connect_to_emulator(namespaces: &Namespaces, lab: &Lab, hop: u32, end: End) -> Result<()> {
    let interface = &lab.shape.interface(hop, end);
    let host = host_at(lab, hop, end)?;
    let emulator = emulator_namespace(&lab.name);
    let (host_file, emulator_file) = (namespaces.open(&host)?, namespaces.open(&emulator)?);
    let wire = emulator_interface(hop, end);
    namespaces.within(&emulator, || {
        let mut socket = Socket::route()?;
        let near =
            VethEnd { name: &wire, mac: emulator_mac(hop, end), namespace: emulator_file.as_fd() };
        let far = VethEnd { name: interface, mac: mac(hop, end), namespace: host_file.as_fd() };
        netlink::create_veth(&mut socket, &near, &far, lab.mtu)
            .context("cannot create a veth pair")?;
        netlink::disable_offloads(&wire).context("cannot disable offloads")?;
        Ok(netlink::set_up(&mut socket, &wire)?)
    })?;
    namespaces.within(&host, || configure(interface, hop, end))
}

/// Connects two hosts without an emulator between them.
fn connect_directly(namespaces: &Namespaces, lab: &Lab, hop: u32) -> Result<()> {
    let ends = [End::Left, End::Right];
    let names = ends.map(|end| lab.shape.interface(hop, end));
    let hosts = [host_at(lab, hop, End::Left)?, host_at(lab, hop, End::Right)?];
    let files = [namespaces.open(&hosts[0])?, namespaces.open(&hosts[1])?];
    namespaces.within(&hosts[0], || {
        let mut socket = Socket::route()?;
        let [near, far] = [0, 1].map(|index| VethEnd {
            name: &names[index],
            mac: mac(hop, ends[index]),
            namespace: files[index].as_fd(),
        });
        netlink::create_veth(&mut socket, &near, &far, lab.mtu).context("cannot create a veth pair")
    })?;
    for (index, end) in ends.into_iter().enumerate() {
        namespaces.within(&hosts[index], || configure(&names[index], hop, end))?;
    }
    Ok(())
}

/// Configures the interface of a host: offloads, addresses, neighbour entry.
fn configure(interface: &str, hop: u32, end: End) -> Result<()> {
    let other = if end == End::Left { End::Right } else { End::Left };
    {
        netlink::disable_offloads(interface).context("cannot disable offloads")?;
        let mut socket = Socket::route()?;
        netlink::set_up(&mut socket, interface)?;
        let number = netlink::interface_index(interface)?;
        netlink::add_address(&mut socket, number, address(hop, end), 24)?;
        netlink::add_neighbour(&mut socket, number, address(hop, other), mac(hop, other))?;
        // Without IPv6 in the kernel the lab has IPv4 only.
        if netlink::add_address(&mut socket, number, address6(hop, end), 64).is_ok() {
            netlink::add_neighbour(&mut socket, number, address6(hop, other), mac(hop, other))?;
        }
        // Otherwise the packet input of the receiving host runs inside the send call of the
        // emulator. If it fails the lab still works, but the emulator stalls under load.
        let _ = steer_input(interface);
    }
    Ok(())
}

/// Steers the packet input of an interface (RPS) to the processors that the emulator does not use.
fn steer_input(interface: &str) -> io::Result<()> {
    let Some(mask) = processors::host_mask() else { return Ok(()) };
    private_mounts(None)?;
    fs::write(format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus"), mask)
}

fn add_routes(host: u32, shape: &Shape) -> Result<()> {
    let mut socket = Socket::route()?;
    for (hop, &(left, right)) in (1..).zip(&shape.edges) {
        if left == host || right == host {
            continue;
        }
        let paths = [left, right].into_iter().filter_map(|end| path(&shape.edges, host, end));
        let Some(shortest) = paths.min_by_key(Vec::len) else { continue };
        let Some(&(first, forward)) = shortest.first() else { continue };
        let (near, end) = (first as u32 + 1, if forward { End::Right } else { End::Left });
        let (gateway, gateway6) = (address(near, end), address6(near, end));
        let network = IpAddr::V4(Ipv4Addr::new(10, 77, hop as u8, 0));
        netlink::add_route(&mut socket, network, 24, gateway)?;
        let network6 = IpAddr::V6(Ipv6Addr::new(0xfd00, 0xba75, 0, hop as u16, 0, 0, 0, 0));
        // Without IPv6 in the kernel the lab has IPv4 only.
        let _ = netlink::add_route(&mut socket, network6, 64, gateway6);
    }
    Ok(())
}

fn write_hosts_file(home: &Home, lab: &Lab) -> Result<()> {
    let mut text = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
    for (index, host) in (0..).zip(&lab.shape.hosts) {
        let (four, six) = (lab.shape.address_of(index), lab.shape.address6_of(index));
        text.push_str(&format!("{four} {host}\n{six} {host}\n"));
    }
    let path = home.hosts_file(&lab.name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
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
