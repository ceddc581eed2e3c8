//! Discovery on the local network: subscribers multicast where they are.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};

use crate::candidates::Candidates;
use crate::cli::Common;
use crate::clock::now_ns;
use crate::ports;
use crate::wire::{Announcement, Control};

/// Group of the original's announcements.
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 1, 100);
/// Interval of announcements.
pub(crate) const INTERVAL: Duration = Duration::from_millis(200);
/// Announcements read at once.
const MAX_READ: usize = 256;

/// Addresses of the interfaces that announcements use: that of `-nic`, or all of IPv4.
fn interfaces(options: &Common) -> Vec<Ipv4Addr> {
    match options.nic {
        Some(IpAddr::V4(ip)) => vec![ip],
        Some(IpAddr::V6(_)) => Vec::new(),
        None => {
            let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
            let mut found: Vec<Ipv4Addr> = all
                .filter_map(|interface| Some(interface.address?.as_sockaddr_in()?.ip()))
                .collect();
            // Loopback first: the shortest path to a peer on this host.
            found.sort_by_key(|ip| !ip.is_loopback());
            found.dedup();
            found
        }
    }
}

/// Announces a subscriber.
#[derive(Debug)]
pub(crate) struct Announcer {
    socket: Socket,
    message: Vec<u8>,
    interfaces: Vec<Ipv4Addr>,
    group: SocketAddr,
    /// Publishers of `-peer`.
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
        Ok(Self {
            socket: opened().context("cannot announce this subscriber")?,
            message: Control::Announcement(announcement).encode(),
            interfaces: if options.ipv6 { Vec::new() } else { interfaces(options) },
            group: SocketAddr::new(GROUP.into(), ports::announcements(options.domain)?),
            peers,
        })
    }

    /// Announces once. Errors are ignored: an interface can be down now and up later.
    pub(crate) fn announce(&self) {
        for interface in &self.interfaces {
            if self.socket.set_multicast_if_v4(interface).is_ok() {
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
        if !options.ipv6 {
            let port = ports::announcements(options.domain)?;
            let join = || -> Result<UdpSocket> {
                let socket = multicast_socket(port)?;
                for interface in interfaces(options) {
                    // An interface without multicast is not an error: others may have it.
                    let _ = socket.join_multicast_v4(&GROUP, &interface);
                }
                Ok(socket)
            };
            sockets.push(join().with_context(|| format!("cannot listen on UDP port {port}"))?);
        }
        if let Some(port) = ports::publisher(options.domain, options.id)? {
            // Another publisher with the same id may have it: multicast still works.
            if let Ok(socket) = UdpSocket::bind((options.bind_ip(), port)) {
                socket.set_nonblocking(true).context("cannot receive announcements")?;
                sockets.push(socket);
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
                if announcement.domain == self.domain && port == Some(announcement.port) {
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

/// A socket on a port that several processes of this host share, without a read limit.
pub(crate) fn multicast_socket(port: u16) -> Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}
