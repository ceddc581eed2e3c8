//! The hosts of a lab and the namespaces, interfaces and addresses that they get.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use anyhow::{Context, Result};

use crate::namespace::{Namespaces, private_mounts};
use crate::netlink::{self, Socket, VethEnd};
use crate::processors;
use crate::state::{Home, Lab};

/// Most links in a row.
pub(crate) const MOST_HOPS: u32 = 16;

/// TCP is shown at its best: its windows may take 256 MiB. (Least, default, most.)
const TCP_MEMORY: &str = "4096 131072 268435456";

/// Which end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The one nearer to `a`.
    Left,
    /// The one nearer to `b`.
    Right,
}

/// The hosts in a row: `a`, the relays, `b`.
pub(crate) fn hosts(hops: u32) -> Vec<String> {
    let mut hosts = vec!["a".to_owned()];
    hosts.extend((1..hops).map(|number| format!("r{number}")));
    hosts.push("b".to_owned());
    hosts
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
pub(crate) fn namespaces(lab: &str, hops: u32) -> Vec<String> {
    let hosts = hosts(hops).into_iter().map(|host| namespace(lab, &host));
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

/// The address by which the other hosts know a host: `b` by its last link, the others by the
/// link to their right.
pub(crate) fn address_of(index: u32, hops: u32) -> IpAddr {
    if index == hops { address(hops, End::Right) } else { address(index + 1, End::Left) }
}

fn mac(hop: u32, end: End) -> [u8; 6] {
    // Locally administered.
    [0x02, 0xba, 0x75, 0x00, hop as u8, if end == End::Left { 1 } else { 2 }]
}

fn emulator_mac(hop: u32, end: End) -> [u8; 6] {
    [0x02, 0xba, 0x75, 0x01, hop as u8, if end == End::Left { 1 } else { 2 }]
}

/// Builds the namespaces of `lab` and joins each host with the emulator.
///
/// # Errors
/// The kernel's, with what was being done. What was made so far stays: remove the lab.
pub(crate) fn build(home: &Home, lab: &Lab) -> Result<()> {
    let namespaces = home.namespaces(&lab.name);
    let hosts = hosts(lab.hops);
    let emulator = emulator_namespace(&lab.name);
    write_hosts_file(home, lab, &hosts)?;
    namespaces.create(&emulator)?;
    namespaces.within(&emulator, || {
        // The emulator is a wire: it has no address and says nothing by itself.
        set("net/ipv6/conf/all/disable_ipv6", "1");
        set("net/ipv6/conf/default/disable_ipv6", "1");
        Ok(())
    })?;
    for (index, host) in hosts.iter().enumerate() {
        let name = namespace(&lab.name, host);
        namespaces.create(&name)?;
        namespaces.within(&name, || prepare_host(index > 0 && index + 1 < hosts.len()))?;
    }
    for hop in 1..=lab.hops {
        for end in [End::Left, End::Right] {
            join(&namespaces, lab, &hosts, hop, end)
                .with_context(|| format!("cannot build link {hop}"))?;
        }
    }
    for (index, host) in hosts.iter().enumerate() {
        namespaces
            .within(&namespace(&lab.name, host), || add_routes(index as u32, lab.hops))
            .with_context(|| format!("cannot set the routes of {host}"))?;
    }
    Ok(())
}

/// Settings of a host's kernel. Older kernels do not have all of them.
fn prepare_host(forwards: bool) -> Result<()> {
    set("net/ipv4/tcp_rmem", TCP_MEMORY);
    set("net/ipv4/tcp_wmem", TCP_MEMORY);
    // No run shall learn from the one before.
    set("net/ipv4/tcp_no_metrics_save", "1");
    set("net/ipv6/conf/all/accept_ra", "0");
    set("net/ipv6/conf/default/accept_ra", "0");
    set("net/ipv6/conf/default/router_solicitations", "0");
    set("net/ipv4/conf/all/rp_filter", "0");
    set("net/ipv4/conf/default/rp_filter", "0");
    if forwards {
        set("net/ipv4/ip_forward", "1");
        set("net/ipv6/conf/all/forwarding", "1");
    }
    let mut socket = Socket::route()?;
    netlink::set_up(&mut socket, "lo").context("cannot bring the loopback interface up")
}

/// Writes a setting of the calling thread's network namespace, if the kernel has it.
fn set(name: &str, value: &str) {
    let _ = fs::write(format!("/proc/sys/{name}"), value);
}

fn join(namespaces: &Namespaces, lab: &Lab, hosts: &[String], hop: u32, end: End) -> Result<()> {
    let (index, interface, other) = match end {
        End::Left => (hop - 1, "right", End::Right),
        End::Right => (hop, "left", End::Left),
    };
    let host = namespace(&lab.name, &hosts[index as usize]);
    let emulator = emulator_namespace(&lab.name);
    let (host_file, emulator_file) = (namespaces.open(&host)?, namespaces.open(&emulator)?);
    let wire = emulator_interface(hop, end);
    namespaces.within(&emulator, || {
        let mut socket = Socket::route()?;
        let near =
            VethEnd { name: &wire, mac: emulator_mac(hop, end), namespace: emulator_file.as_fd() };
        let far = VethEnd { name: interface, mac: mac(hop, end), namespace: host_file.as_fd() };
        netlink::create_veth(&mut socket, &near, &far, lab.mtu)
            .context("cannot make a veth pair")?;
        netlink::switch_offloads_off(&wire).context("cannot switch offloads off")?;
        Ok(netlink::set_up(&mut socket, &wire)?)
    })?;
    namespaces.within(&host, || {
        netlink::switch_offloads_off(interface).context("cannot switch offloads off")?;
        let mut socket = Socket::route()?;
        netlink::set_up(&mut socket, interface)?;
        let number = netlink::interface_index(interface)?;
        netlink::add_address(&mut socket, number, address(hop, end), 24)?;
        netlink::add_neighbour(&mut socket, number, address(hop, other), mac(hop, other))?;
        // A kernel without IPv6 makes a lab without it.
        if netlink::add_address(&mut socket, number, address6(hop, end), 64).is_ok() {
            netlink::add_neighbour(&mut socket, number, address6(hop, other), mac(hop, other))?;
        }
        // Without this the receiving host's input would run inside the emulator's send call.
        // Where it cannot be had the lab works, with a wire that stalls under load.
        let _ = steer_input(interface);
        Ok(())
    })
}

/// Lets the input of an interface run on the processors that the emulator does not use.
fn steer_input(interface: &str) -> io::Result<()> {
    let Some(mask) = processors::host_mask() else { return Ok(()) };
    private_mounts(None)?;
    fs::write(format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus"), mask)
}

fn add_routes(index: u32, hops: u32) -> Result<()> {
    let mut socket = Socket::route()?;
    for hop in 1..=hops {
        let (gateway, gateway6) = if hop < index {
            (address(index, End::Left), address6(index, End::Left))
        } else if hop > index + 1 {
            (address(index + 1, End::Right), address6(index + 1, End::Right))
        } else {
            continue;
        };
        let network = IpAddr::V4(Ipv4Addr::new(10, 77, hop as u8, 0));
        netlink::add_route(&mut socket, network, 24, gateway)?;
        let network6 = IpAddr::V6(Ipv6Addr::new(0xfd00, 0xba75, 0, hop as u16, 0, 0, 0, 0));
        // As with the addresses: without IPv6 the lab has IPv4 only.
        let _ = netlink::add_route(&mut socket, network6, 64, gateway6);
    }
    Ok(())
}

fn write_hosts_file(home: &Home, lab: &Lab, hosts: &[String]) -> Result<()> {
    let mut text = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
    for (index, host) in hosts.iter().enumerate() {
        let index = index as u32;
        let address6 = if index == lab.hops {
            address6(lab.hops, End::Right)
        } else {
            address6(index + 1, End::Left)
        };
        text.push_str(&format!("{} {host}\n{address6} {host}\n", address_of(index, lab.hops)));
    }
    let path = home.hosts_file(&lab.name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_has_relays_between_its_ends() {
        assert_eq!(hosts(1), ["a", "b"]);
        assert_eq!(hosts(3), ["a", "r1", "r2", "b"]);
        assert_eq!(namespaces("x", 1), ["x-a", "x-b", "x-emulator"]);
    }

    #[test]
    fn every_end_has_addresses_of_its_own() {
        let mut seen = Vec::new();
        for hop in 1..=MOST_HOPS {
            for end in [End::Left, End::Right] {
                seen.push((address(hop, end), address6(hop, end), mac(hop, end)));
                assert!(emulator_interface(hop, end).len() < 16);
            }
        }
        let count = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), count);
        assert_eq!(address_of(0, 3).to_string(), "10.77.1.1");
        assert_eq!(address_of(1, 3).to_string(), "10.77.2.1");
        assert_eq!(address_of(3, 3).to_string(), "10.77.3.2");
    }
}
