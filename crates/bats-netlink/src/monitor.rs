//! Changes that the kernel reports.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};

use ipnet::IpNet;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::route::RouteAttribute;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::Socket;
use rustix::io::Errno;

use crate::lookup::{address, host_route};
use crate::socket::{MAX_DATAGRAM, TRUNC, connect, messages};

// linux/rtnetlink.h
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
/// Groups of the kernel's notifications: LINK, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE,
/// IPV6_RULE, NEXTHOP.
const GROUPS: [u32; 8] = [1, 5, 7, 8, 9, 11, 19, 32];
/// Most datagrams of one call of [`Monitor::read`]: the caller decides what follows.
const MAX_DATAGRAMS: usize = 256;

/// A change in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A route to this network was added, changed or removed.
    Route(IpNet),
    /// As `Route`, for an IPv4 host route that leads somewhere.
    HostRoute(Ipv4Addr),
    /// An interface changed: the kernel removes routes over it without a notification of their own.
    Link,
    /// Addresses, rules or nexthop objects changed.
    Other,
    /// The kernel has dropped notifications, because they were not read in time: anything may have changed.
    Lost,
}

/// A socket that receives the kernel's notifications.
pub struct Monitor {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Monitor {
    /// Opens a socket; it needs no privileges.
    ///
    /// # Errors
    /// The process may open no such socket, or the kernel lacks one of the groups.
    pub fn open() -> io::Result<Self> {
        let socket = connect()?;
        for group in GROUPS {
            match socket.add_membership(group) {
                // Kernels before 5.3 have no nexthop objects.
                Err(error) if group != GROUPS[7] => return Err(error),
                _ => {}
            }
        }
        socket.set_non_blocking(true)?;
        Ok(Self { socket, buffer: Vec::with_capacity(MAX_DATAGRAM) })
    }

    /// The changes that wait, without blocking; empty if there are none. A caller that got some calls it
    /// again: it reads at most 256 datagrams.
    ///
    /// # Errors
    /// The error of the kernel. Lost notifications are no error but a change.
    pub fn read(&mut self) -> io::Result<Vec<Change>> {
        let mut changes = Vec::new();
        for _ in 0..MAX_DATAGRAMS {
            self.buffer.clear();
            match self.socket.recv(&mut self.buffer, TRUNC) {
                Ok(length) if length > self.buffer.len() => changes.push(Change::Lost),
                Ok(_) => {
                    changes.extend(messages(&self.buffer).map(|(kind, bytes)| change(kind, bytes)))
                }
                Err(error) => match Failure::of(error)? {
                    Failure::Empty => break,
                    Failure::Lost => changes.push(Change::Lost),
                    Failure::Interrupted => {}
                },
            }
        }
        Ok(changes)
    }
}

/// Why there is no notification.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    Empty,
    /// The kernel had no memory or no room for a notification.
    Lost,
    Interrupted,
}

impl Failure {
    fn of(error: io::Error) -> io::Result<Self> {
        match Errno::from_io_error(&error) {
            Some(Errno::AGAIN) => Ok(Self::Empty),
            Some(Errno::NOBUFS | Errno::NOMEM) => Ok(Self::Lost),
            Some(Errno::INTR) => Ok(Self::Interrupted),
            _ => Err(error),
        }
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn change(kind: u16, bytes: &[u8]) -> Change {
    match kind {
        RTM_NEWROUTE | RTM_DELROUTE => route(bytes).unwrap_or(Change::Lost),
        RTM_NEWLINK | RTM_DELLINK => Change::Link,
        _ => Change::Other,
    }
}

/// The destination of a route message.
fn route(bytes: &[u8]) -> Option<Change> {
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes).ok()?;
    let NetlinkPayload::InnerMessage(
        RouteNetlinkMessage::NewRoute(message) | RouteNetlinkMessage::DelRoute(message),
    ) = message.payload
    else {
        return None;
    };
    if let Some(host) = host_route(&message) {
        return Some(Change::HostRoute(host));
    }
    let to = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(to) => address(to),
        _ => None,
    });
    let all = match message.header.address_family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        _ => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let net = IpNet::new(to.unwrap_or(all), message.header.destination_prefix_length);
    Some(Change::Route(net.ok()?))
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::route::{RouteMessage, RouteType};

    use super::*;

    #[test]
    fn lack_of_kernel_memory_means_lost_notifications() {
        let of = |code: Errno| Failure::of(code.into()).map_err(|error| error.raw_os_error());
        for code in [Errno::NOBUFS, Errno::NOMEM] {
            assert_eq!(of(code), Ok(Failure::Lost), "{code}");
        }
        assert_eq!(of(Errno::AGAIN), Ok(Failure::Empty));
        assert_eq!(of(Errno::INTR), Ok(Failure::Interrupted));
        assert_eq!(of(Errno::BADF), Err(Some(Errno::BADF.raw_os_error())));
    }

    #[test]
    fn datagrams_beyond_128_kib_are_lost_and_those_before_are_read() {
        use netlink_sys::SocketAddr;
        use netlink_sys::protocols::NETLINK_USERSOCK;
        let mut socket = Socket::new(NETLINK_USERSOCK).unwrap();
        let address = socket.bind_auto().unwrap();
        socket.set_non_blocking(true).unwrap();
        let mut monitor = Monitor { socket, buffer: Vec::with_capacity(MAX_DATAGRAM) };
        let mut sender = Socket::new(NETLINK_USERSOCK).unwrap();
        sender.bind_auto().unwrap();
        let to = SocketAddr::new(address.port_number(), 0);
        for (length, change) in [(128 << 10, Change::Other), ((128 << 10) + 1, Change::Lost)] {
            // One message without a content; what follows it is none.
            let mut bytes = 16u32.to_ne_bytes().to_vec();
            bytes.resize(length, 0);
            sender.send_to(&bytes, &to, 0).unwrap();
            assert_eq!(monitor.read().unwrap(), [change], "{length}");
        }
    }

    fn message(to: Option<&str>, length: u8, kind: RouteType) -> Vec<u8> {
        let mut route = RouteMessage::default();
        let to: Option<IpAddr> = to.map(|to| to.parse().unwrap());
        route.header.address_family = match to {
            Some(IpAddr::V4(_)) => AddressFamily::Inet,
            _ => AddressFamily::Inet6,
        };
        route.header.destination_prefix_length = length;
        route.header.kind = kind;
        route.attributes =
            to.map(|to| RouteAttribute::Destination(to.into())).into_iter().collect();
        let mut packet = NetlinkMessage::from(RouteNetlinkMessage::NewRoute(route));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        bytes
    }

    #[test]
    fn messages_become_changes_and_broken_ones_a_loss() {
        let net = |text: &str| Change::Route(text.parse().unwrap());
        for (to, length, kind, wanted) in [
            (
                Some("10.255.0.7"),
                32,
                RouteType::Unicast,
                Change::HostRoute(Ipv4Addr::new(10, 255, 0, 7)),
            ),
            (Some("10.255.0.7"), 32, RouteType::Unreachable, net("10.255.0.7/32")),
            (Some("10.255.0.0"), 16, RouteType::Unicast, net("10.255.0.0/16")),
            (Some("fd66::"), 64, RouteType::Unicast, net("fd66::/64")),
            (None, 0, RouteType::Unicast, net("::/0")),
            (Some("10.255.0.0"), 77, RouteType::Unicast, Change::Lost),
        ] {
            let bytes = message(to, length, kind);
            assert_eq!(change(RTM_NEWROUTE, &bytes), wanted);
            for end in 0..bytes.len() {
                // Whatever is left of it, nothing panics.
                change(RTM_DELROUTE, &bytes[..end]);
            }
            assert_eq!(change(RTM_NEWROUTE, &bytes[..20]), Change::Lost);
        }
        assert_eq!(change(RTM_DELLINK, &[]), Change::Link);
        assert_eq!(change(104, &[]), Change::Other, "a nexthop object");
    }

    #[test]
    fn a_monitor_without_changes_does_not_block() {
        let mut monitor = Monitor::open().unwrap();
        monitor.read().unwrap();
    }
}
