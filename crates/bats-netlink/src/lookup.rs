//! Look-ups in the kernel's forwarding table.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use bats_node::{FibHop, FibRoute, NoRoute};
use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteNextHopFlags, RouteType, RouteVia,
};
use rustix::io::Errno;

use crate::change::family;
use crate::socket::Netlink;

/// Length of the prefix of an IPv4 host route.
const HOST: u8 = 32;
/// Most next hops of a route that are taken; others are left out.
const MAX_NEXT_HOPS: usize = 64;

/// The address of a route message.
pub(crate) fn address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

fn gateway(attributes: &[RouteAttribute]) -> Option<IpAddr> {
    attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(gateway) => address(gateway),
        // A gateway of another address family: `via inet6` of an IPv4 route.
        RouteAttribute::Via(RouteVia::Inet(gateway)) => Some((*gateway).into()),
        RouteAttribute::Via(RouteVia::Inet6(gateway)) => Some((*gateway).into()),
        _ => None,
    })
}

fn hops(message: &RouteMessage) -> Vec<FibHop> {
    let down = RouteFlags::Dead | RouteFlags::Linkdown;
    let one = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(interface) => Some(FibHop {
            gateway: gateway(&message.attributes),
            interface: *interface,
            is_up: !message.header.flags.intersects(down),
        }),
        _ => None,
    });
    let down = RouteNextHopFlags::Dead | RouteNextHopFlags::Linkdown;
    let several = message.attributes.iter().filter_map(|attribute| match attribute {
        RouteAttribute::MultiPath(hops) => Some(hops),
        _ => None,
    });
    let several = several.flatten().map(|hop| FibHop {
        gateway: gateway(&hop.attributes),
        interface: hop.interface_index,
        is_up: !hop.flags.intersects(down),
    });
    one.into_iter().chain(several).take(MAX_NEXT_HOPS).collect()
}

/// What a route message of the kernel says about the route to an address.
fn answer(message: &RouteMessage) -> Result<FibRoute, NoRoute> {
    match message.header.kind {
        RouteType::Unicast => {
            let prefix_length = message.header.destination_prefix_length;
            Ok(FibRoute { prefix_length, hops: hops(message) })
        }
        RouteType::Local => Err(NoRoute::Local),
        RouteType::Unreachable => Err(NoRoute::Unreachable),
        RouteType::BlackHole => Err(NoRoute::Blackhole),
        RouteType::Prohibit => Err(NoRoute::Prohibited),
        _ => Err(NoRoute::NotUnicast),
    }
}

/// The address of an IPv4 host route, if the message is about one that leads somewhere.
pub(crate) fn host_route(message: &RouteMessage) -> Option<Ipv4Addr> {
    let is_host = message.header.destination_prefix_length == HOST
        && message.header.kind == RouteType::Unicast;
    let to = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(to)) => Some(*to),
        _ => None,
    });
    to.filter(|_| is_host)
}

/// Destinations of IPv4 host routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostRoutes {
    /// The destinations.
    pub addresses: BTreeSet<Ipv4Addr>,
    /// Routes that were left out because of the limit.
    pub left_out: usize,
    /// Those of the addresses that count against the limit.
    others: usize,
}

impl HostRoutes {
    fn add(&mut self, host: Ipv4Addr, limit: usize, is_known: bool) {
        if self.addresses.contains(&host) {
            return;
        }
        if !is_known && self.others >= limit {
            self.left_out = self.left_out.saturating_add(1);
            return;
        }
        self.others = self.others.saturating_add(usize::from(!is_known));
        self.addresses.insert(host);
    }
}

/// An answer that cannot be read concerns one destination: it has no route, and the others have theirs.
fn unreadable_is_no_route(
    looked_up: io::Result<Result<FibRoute, NoRoute>>,
) -> io::Result<Result<FibRoute, NoRoute>> {
    match looked_up {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Err(NoRoute::Unreadable)),
        looked_up => looked_up,
    }
}

impl Netlink {
    fn look_up(&mut self, to: IpAddr, flags: RouteFlags) -> io::Result<Result<FibRoute, NoRoute>> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(to);
        message.header.destination_prefix_length = if to.is_ipv4() { HOST } else { 128 };
        message.header.flags = flags;
        message.attributes = vec![RouteAttribute::Destination(to.into())];
        let looked_up =
            self.request(RouteNetlinkMessage::GetRoute(message), 0, |message| match message {
                Some(RouteNetlinkMessage::NewRoute(message)) => Some(answer(&message)),
                _ => None,
            });
        // The kernel answers with the error that a packet to the address would get.
        match looked_up.as_ref().err().and_then(Errno::from_io_error) {
            // The kernel has no routes of this address family, as without IPv6.
            Some(Errno::NETUNREACH | Errno::OPNOTSUPP | Errno::AFNOSUPPORT) => {
                Ok(Err(NoRoute::Missing))
            }
            Some(Errno::HOSTUNREACH) => Ok(Err(NoRoute::Unreachable)),
            Some(Errno::ACCESS) => Ok(Err(NoRoute::Prohibited)),
            Some(Errno::INVAL) => Ok(Err(NoRoute::Blackhole)),
            _ => unreadable_is_no_route(looked_up),
        }
    }

    /// The route that the kernel uses for an address, after rules, metrics and prefixes, with all its next
    /// hops (`ip route get fibmatch`).
    ///
    /// # Errors
    /// The kernel does not answer; an answer that there is no route is none.
    pub fn route_to(&mut self, to: IpAddr) -> io::Result<Result<FibRoute, NoRoute>> {
        let route = self.look_up(to, RouteFlags::FibMatch)?;
        match route {
            // With net.ipv4.nexthop_compat_mode=0 a route of a nexthop object has only its number. What a
            // packet would use says more.
            Ok(route) if route.hops.is_empty() => {
                let used = self.look_up(to, RouteFlags::default())?;
                Ok(used.map(|used| FibRoute { hops: used.hops, ..route }))
            }
            route => Ok(route),
        }
    }

    /// The destinations of IPv4 host routes in all tables: the known ones, and at most so many others.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn host_routes(
        &mut self,
        limit: usize,
        is_known: impl Fn(Ipv4Addr) -> bool,
    ) -> io::Result<HostRoutes> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(Ipv4Addr::UNSPECIFIED.into());
        let mut hosts = HostRoutes::default();
        self.request(RouteNetlinkMessage::GetRoute(message), NLM_F_DUMP, |message| {
            let Some(message) = message else { return Some(()) };
            if let RouteNetlinkMessage::NewRoute(message) = message
                && let Some(host) = host_route(&message)
            {
                hosts.add(host, limit, is_known(host));
            }
            None
        })?;
        Ok(hosts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers_about_addresses_of_this_host() {
        let mut netlink = Netlink::open().unwrap();
        assert_eq!(netlink.route_to([127, 0, 0, 1].into()).unwrap(), Err(NoRoute::Local));
        let broadcast = netlink.route_to([255, 255, 255, 255].into()).unwrap();
        assert!(broadcast.is_err() || broadcast.is_ok_and(|route| !route.hops.is_empty()));
        assert!(netlink.host_routes(0, |_| false).unwrap().addresses.is_empty());
        assert!(netlink.host_routes(7, |_| false).unwrap().addresses.len() <= 7);
    }

    #[test]
    fn known_host_routes_do_not_count_against_the_limit() {
        let mut hosts = HostRoutes::default();
        for last in [1, 2, 3, 4, 1, 9] {
            hosts.add(Ipv4Addr::new(10, 0, 0, last), 2, last == 9);
        }
        let last = hosts.addresses.iter().map(|address| address.octets()[3]).collect::<Vec<_>>();
        assert_eq!((last, hosts.left_out), (vec![1, 2, 9], 2));
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_no_route() {
        let error = |kind: io::ErrorKind| unreadable_is_no_route(Err(kind.into()));
        assert_eq!(error(io::ErrorKind::InvalidData).unwrap(), Err(NoRoute::Unreadable));
        assert!(error(io::ErrorKind::TimedOut).is_err());
    }
}
