//! The TUN device with its addresses, and the kernel's routes to the peers' prefixes.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::collections::BTreeSet;
use std::io;

use anyhow::{Context, bail};
use bats_netlink::Netlink;
use bats_node::{Plan, is_link_local, link_local};
use bats_tun::Tun;
use ipnet::{IpNet, Ipv6Net};

use crate::config::TunConfig;
use crate::ending;

/// Packets that the device itself queues. FQ-CoDel runs in user space; with its default of 500 the
/// device would drop bursts before they reach FQ-CoDel.
const QUEUE: u32 = 10_000;

/// The device. It exists as long as the keeper.
pub(super) struct Device {
    pub(super) tun: Tun,
    config: TunConfig,
    index: u32,
    netlink: Netlink,
    addresses: BTreeSet<IpNet>,
    routes: BTreeSet<IpNet>,
}

/// Length of the prefix of link-local addresses (RFC 4291 section 2.5.6).
const LINK_LOCAL: u8 = 64;

/// The addresses of the device.
fn addresses_for(config: &TunConfig, plan: &Plan) -> BTreeSet<IpNet> {
    let own = config.link_local.then(|| Ipv6Net::new_assert(link_local(plan.id), LINK_LOCAL));
    config.addresses.iter().copied().chain(own.map(IpNet::from)).collect()
}

/// The prefixes that need a route: those that no address of the device covers already.
fn routes_for(config: &TunConfig, plan: &Plan) -> BTreeSet<IpNet> {
    let is_connected = |net: &IpNet| config.addresses.iter().any(|own| own.trunc() == *net);
    let prefixes = plan.peers.values().flat_map(|peer| peer.prefixes.iter().copied());
    prefixes.filter(|net| !is_connected(net)).collect()
}

impl Device {
    pub(super) fn open(config: &TunConfig, plan: &Plan) -> anyhow::Result<Self> {
        let name = &config.name;
        let tun = ending::retry(|| Ok(Tun::open(name)?)).map_err(|error| {
            let advice = match error.downcast_ref().map(io::Error::kind) {
                Some(io::ErrorKind::PermissionDenied) => {
                    "it needs CAP_NET_ADMIN: run batsd as root, or remove [tun] from the file"
                }
                Some(io::ErrorKind::ResourceBusy) => {
                    "another program uses this name: choose another one"
                }
                Some(io::ErrorKind::NotFound) => "the kernel has no /dev/net/tun: `modprobe tun`",
                _ => "",
            };
            anyhow::anyhow!("cannot make the TUN device {name}: {error}. {advice}")
        })?;
        let index = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex"));
        let index = match index.ok().and_then(|text| text.trim().parse().ok()) {
            Some(index) => index,
            // /sys shows the namespace in which it was mounted; ask the kernel instead, by any socket.
            None => {
                let socket = std::os::unix::net::UnixDatagram::unbound()?;
                rustix::net::netdevice::name_to_index(&socket, name)
                    .with_context(|| format!("cannot find the index of {name}"))?
            }
        };
        let mut netlink = Netlink::open().context("cannot open a netlink socket")?;
        let (addresses, routes) = (BTreeSet::new(), BTreeSet::new());
        if config.link_local {
            // A kernel without IPv6 makes no address either.
            let _ = netlink.disable_link_local(index);
        }
        let mut device = Self { tun, config: config.clone(), index, netlink, addresses, routes };
        device.apply(config, plan)?;
        Ok(device)
    }

    /// Applies the differences to the present state of the device.
    pub(super) fn apply(&mut self, config: &TunConfig, plan: &Plan) -> anyhow::Result<()> {
        if config.name != self.config.name {
            bail!("the name of the TUN device can change only by a restart of batsd");
        }
        let index = self.index;
        self.netlink
            .set_link(index, config.mtu, QUEUE)
            .with_context(|| format!("cannot bring {} up with MTU {}", config.name, config.mtu))?;
        let addresses = addresses_for(config, plan);
        let routes = routes_for(config, plan);
        for route in self.routes.difference(&routes).copied().collect::<Vec<_>>() {
            // The kernel may have removed it with an address.
            let _ = self.netlink.remove_route(index, route);
            self.routes.remove(&route);
        }
        for address in self.addresses.difference(&addresses).copied().collect::<Vec<_>>() {
            let _ = self.netlink.remove_address(index, address);
            self.addresses.remove(&address);
        }
        for address in addresses.difference(&self.addresses).copied().collect::<Vec<_>>() {
            match self.netlink.add_address(index, address) {
                // A host without IPv6 has the rest of the tunnel.
                Err(error) if is_link_local(address.addr()) => {
                    eprintln!("batsd: no link-local address for {}: {error}", config.name);
                    continue;
                }
                added => added.with_context(|| {
                    format!("cannot add the address {address} to {}", config.name)
                })?,
            }
            self.addresses.insert(address);
        }
        for route in routes.difference(&self.routes).copied().collect::<Vec<_>>() {
            self.netlink.add_route(index, route).with_context(|| {
                format!(
                    "cannot add the route to {route} over {}: `ip route get` shows who has it",
                    config.name
                )
            })?;
            self.routes.insert(route);
        }
        self.config = config.clone();
        Ok(())
    }
}
