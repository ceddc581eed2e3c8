//! Discovery on the local network: subscribers multicast where they are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use socket2::{Domain, Protocol, Socket, Type};

use crate::candidates::Candidates;
use crate::cli::Common;
use crate::clock::now_ns;
use crate::ports;
use crate::wire::{Announcement, Control};

/// Group of the original's announcements.
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 1, 100);
/// Its counterpart. The scope is the site, so that announcements come from an address that connections can
/// be made to, not from a link-local one; the hop limit keeps them on the link.
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0xefff, 0x0164);
/// Interval of announcements.
pub(crate) const INTERVAL: Duration = Duration::from_millis(200);
/// Announcements read at once.
const MAX_READ: usize = 256;

/// An interface that announcements use: by an address, or over IPv6 by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interface {
    V4(Ipv4Addr),
    V6(u32),
}

impl Interface {
    fn select(self, socket: &Socket) -> std::io::Result<()> {
        match self {
            Self::V4(ip) => socket.set_multicast_if_v4(&ip),
            Self::V6(index) => socket.set_multicast_if_v6(index),
        }
    }

    fn join(self, socket: &UdpSocket) -> std::io::Result<()> {
        match self {
            Self::V4(ip) => socket.join_multicast_v4(&GROUP, &ip),
            Self::V6(index) => socket.join_multicast_v6(&GROUP_V6, index),
        }
    }
}

/// The interfaces that announcements use: that of `-nic`, or all of the IP family.
fn interfaces(options: &Common) -> Vec<Interface> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    if options.ipv6 {
        // The group has a route on interfaces with multicast only, and they have several addresses.
        let with_group = InterfaceFlags::IFF_MULTICAST | InterfaceFlags::IFF_UP;
        let mut found: Vec<u32> = all
            .filter(|interface| interface.flags.contains(with_group))
            .filter(|interface| {
                let address = interface.address.as_ref().and_then(|all| all.as_sockaddr_in6());
                address.is_some_and(|v6| options.nic.is_none_or(|nic| nic == IpAddr::V6(v6.ip())))
            })
            .filter_map(|interface| if_nametoindex(interface.interface_name.as_str()).ok())
            .collect();
        found.sort_unstable();
        found.dedup();
        return found.into_iter().map(Interface::V6).collect();
    }
    if let Some(IpAddr::V4(ip)) = options.nic {
        return vec![Interface::V4(ip)];
    }
    let mut found: Vec<Ipv4Addr> =
        all.filter_map(|interface| Some(interface.address?.as_sockaddr_in()?.ip())).collect();
    // Loopback first: the shortest path to a peer on this host.
    found.sort_by_key(|ip| !ip.is_loopback());
    found.dedup();
    found.into_iter().map(Interface::V4).collect()
}

/// The group that subscribers announce themselves to.
fn group(options: &Common) -> Result<SocketAddr> {
    let ip = if options.ipv6 { GROUP_V6.into() } else { GROUP.into() };
    Ok(SocketAddr::new(ip, ports::announcements(options.domain)?))
}

/// Announces a subscriber.
#[derive(Debug)]
pub(crate) struct Announcer {
    socket: Socket,
    message: Vec<u8>,
    interfaces: Vec<Interface>,
    group: SocketAddr,
    /// Publishers that are addressed one by one.
    peers: Vec<SocketAddr>,
}

impl Announcer {
    /// # Errors
    /// The socket cannot be opened.
    pub(crate) fn new(options: &Common, announcement: Announcement) -> Result<Self> {
        let opened = || -> Result<Socket> {
            let ip = options.bind_ip();
            let socket = Socket::new(
                Domain::for_address(SocketAddr::new(ip, 0)),
                Type::DGRAM,
                Some(Protocol::UDP),
            )?;
            socket.bind(&SocketAddr::new(ip, 0).into())?;
            if ip.is_ipv4() {
                socket.set_multicast_ttl_v4(1)?;
                socket.set_multicast_loop_v4(true)?;
            } else {
                socket.set_multicast_hops_v6(1)?;
                socket.set_multicast_loop_v6(true)?;
            }
            Ok(socket)
        };
        let mut peers = Vec::new();
        for peer in &options.peers {
            let ids = match peer.id {
                Some(id) => id..id.saturating_add(1),
                None => 0..options.peers_expected as u32,
            };
            for id in ids {
                if let Some(port) = ports::publisher(options.domain, id)? {
                    peers.push(SocketAddr::new(peer.ip, port));
                }
            }
        }
        if options.ipv6 && options.nic.is_none_or(|nic| nic.is_loopback()) {
            // The loopback interface has no multicast over IPv6.
            for id in 0..ports::LISTENING_PUBLISHERS {
                let port = ports::publisher(options.domain, id)?;
                peers.extend(port.map(|port| SocketAddr::from((Ipv6Addr::LOCALHOST, port))));
            }
        }
        Ok(Self {
            socket: opened().context("cannot announce this subscriber")?,
            message: Control::Announcement(announcement).encode(),
            interfaces: interfaces(options),
            group: group(options)?,
            peers,
        })
    }

    /// Announces once. Errors are ignored: an interface can be down now and up later.
    pub(crate) fn announce(&self) {
        for interface in &self.interfaces {
            if interface.select(&self.socket).is_ok() {
                let _ = self.socket.send_to(&self.message, &self.group.into());
            }
        }
        for &peer in &self.peers {
            let _ = self.socket.send_to(&self.message, &peer.into());
        }
    }
}

/// Collects the announcements of subscribers.
#[derive(Debug)]
pub(crate) struct Listener {
    sockets: Vec<UdpSocket>,
    domain: u32,
    known: Candidates,
}

impl Listener {
    /// # Errors
    /// The multicast port is in use by a program that does not share it.
    pub(crate) fn new(options: &Common) -> Result<Self> {
        let mut sockets = Vec::new();
        let group = group(options)?;
        let join = || -> Result<UdpSocket> {
            let socket = multicast_socket(group)?;
            for interface in interfaces(options) {
                // An interface without multicast is not an error: others may have it.
                let _ = interface.join(&socket);
            }
            Ok(socket)
        };
        let port = group.port();
        sockets.push(join().with_context(|| format!("cannot listen on UDP port {port}"))?);
        if let Some(port) = ports::publisher(options.domain, options.id)? {
            let address = SocketAddr::new(options.bind_ip(), port);
            match socket(address, false) {
                Ok(socket) => sockets.push(socket),
                // Loopback has no multicast over IPv6: nothing would ever be found.
                Err(error) if address.is_ipv6() && address.ip().is_loopback() => {
                    return Err(error.context(format!("cannot listen on UDP port {port}")));
                }
                // Another publisher with the same id may have it: multicast still works.
                Err(_) => {}
            }
        }
        Ok(Self { sockets, domain: options.domain, known: Candidates::default() })
    }

    /// Reads the announcements that have arrived; returns the addresses to try now, at most `most`.
    pub(crate) fn addresses(&mut self, most: usize) -> Vec<SocketAddr> {
        let mut buffer = [0; 256];
        let now = now_ns();
        for socket in &self.sockets {
            for _ in 0..MAX_READ {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else { break };
                let Some(Control::Announcement(announcement)) =
                    Control::of_message(&buffer[..length])
                else {
                    continue;
                };
                // The port follows from the id, so a host can have only so many subscribers.
                let port = ports::subscriber(self.domain, announcement.subscriber).ok();
                // Connections to link-local addresses are not supported; the subscriber may have others.
                let is_link_local =
                    matches!(from.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
                if announcement.domain == self.domain
                    && port == Some(announcement.port)
                    && !is_link_local
                {
                    self.known.announced(SocketAddr::new(from.ip(), announcement.port), now);
                }
            }
        }
        self.known.due(now, most)
    }

    /// Notes that a subscriber did not answer.
    pub(crate) fn failed(&mut self, address: SocketAddr) {
        self.known.failed(address, now_ns());
    }
}

/// A socket on the port of a group, which several processes of this host share, without a read limit.
pub(crate) fn multicast_socket(group: SocketAddr) -> Result<UdpSocket> {
    let any: IpAddr = match group {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    socket(SocketAddr::new(any, group.port()), true)
}

/// A socket that does not block; one for IPv6 receives nothing over IPv4.
fn socket(address: SocketAddr, is_shared: bool) -> Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(is_shared)?;
    if address.is_ipv6() {
        // A publisher over IPv4 may have the same port.
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse_line};

    fn options(line: &str) -> Common {
        match parse_line(line).unwrap() {
            Command::Publish(options) => options.common,
            Command::Subscribe(options) => options.common,
            other => panic!("{other:?}"),
        }
    }

    /// A domain that no other test has, nor another run of the tests, while the socket exists: it holds the port of a
    /// subscriber that no test uses. The domains are none of those of the tests of whole programs, and their ports
    /// are no ephemeral ones.
    fn domain() -> (u32, UdpSocket) {
        let reserve = |domain| {
            let port = ports::subscriber(domain, 50).ok()?;
            let reserved = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
            Some((domain, reserved))
        };
        [0, 1].into_iter().chain(216..=231).find_map(reserve).expect("a free domain")
    }

    /// The addresses that a publisher finds when a subscriber has announced itself.
    fn found(line: &str) -> Vec<IpAddr> {
        let (domain, _reserved) = domain();
        let listener = options(&format!("-pub -domain {domain} {line}"));
        let mut listener = Listener::new(&listener).unwrap();
        let subscriber = options(&format!("-sub -domain {domain} {line}"));
        let port = ports::subscriber(domain, 0).unwrap();
        let announcement = Announcement { domain, port, ..Announcement::default() };
        let announcer = Announcer::new(&subscriber, announcement).unwrap();
        // A datagram to this host is there after the send, unless it is dropped.
        let mut found = Vec::new();
        for _ in 0..100 {
            announcer.announce();
            found = listener.addresses(16).iter().map(SocketAddr::ip).collect();
            if !found.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        found
    }

    #[test]
    fn announcements_are_heard_on_the_loopback_interface_of_both_families() {
        assert_eq!(found("-nic 127.0.0.1"), [IpAddr::from(Ipv4Addr::LOCALHOST)]);
        let ipv6 = found("-transport UDPv6 -nic ::1");
        assert_eq!(ipv6, [IpAddr::from(Ipv6Addr::LOCALHOST)]);
    }

    #[test]
    fn announcements_over_ipv6_use_the_group_and_come_from_a_usable_address() {
        // All that this host has.
        let usable = nix::ifaddrs::getifaddrs().unwrap().filter_map(|interface| {
            let ip = interface.address?.as_sockaddr_in6()?.ip();
            let group = InterfaceFlags::IFF_MULTICAST | InterfaceFlags::IFF_UP;
            let has_group = interface.flags.contains(group);
            (has_group && !ip.is_unicast_link_local()).then_some(ip)
        });
        let usable: Vec<_> = usable.collect();
        if usable.is_empty() {
            // Without the test's capture of output.
            let _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                b"SKIPPED group of IPv6, also with OPENBATS_NO_SKIP=1: no interface has an address\n",
            );
        }
        for ip in usable {
            let line = format!("-transport UDPv6 -nic {ip}");
            assert_eq!(found(&line), [IpAddr::from(ip)]);
        }
        assert!(found("-transport UDPv6").contains(&Ipv6Addr::LOCALHOST.into()));
    }
}
