//! Builds the network of a lab: its namespaces, interfaces, addresses and routes.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use anyhow::{Context, Result};

use crate::namespace::{Namespaces, private_mounts};
use crate::netlink::{self, Socket, VethEnd};
use crate::processors;
use crate::state::{Home, Lab};
use crate::topology::{
    End, Shape, address, address6, emulator_interface, emulator_mac, emulator_namespace, mac,
    namespace, path,
};

/// `tcp_rmem` and `tcp_wmem` of the hosts (min, default, max in bytes): up to 256 MiB, so that TCP
/// is not limited by its window.
const TCP_MEMORY: &str = "4096 131072 268435456";

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
