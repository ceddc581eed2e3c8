//! Socket options: the network interface of the socket, and the DSCP and the interface of each packet.
//!
//! The DSCP (RFC 2474) is the upper six bits of the TOS or traffic class field; the lower two are
//! the ECN bits (RFC 3168), which differ between datagrams. `quinn-udp` sets the whole field with
//! DSCP 0 and names no interface, so that datagrams with another DSCP or an interface are sent without
//! it.

use std::io;

#[cfg(target_os = "linux")]
pub(super) use linux::send;
use socket2::Socket as RawSocket;

/// The largest DSCP.
pub(crate) const MAX_DSCP: u8 = 63;

/// Options of the endpoint's sockets.
#[derive(Clone, Debug, Default)]
pub(crate) struct SocketOptions {
    /// The only network interface to use.
    pub(crate) device: Option<String>,
    /// The DSCP of outgoing packets, 0 to [`MAX_DSCP`].
    pub(crate) dscp: u8,
    /// Whether other sockets of this endpoint have the same address.
    pub(crate) shares_port: bool,
}

impl SocketOptions {
    /// Applies the options; to be called before the socket is bound.
    pub(crate) fn apply(&self, socket: &RawSocket, is_ipv6: bool) -> io::Result<()> {
        self.bind_device(socket)?;
        if self.shares_port {
            rustix::net::sockopt::set_socket_reuseport(socket, true)?;
        }
        self.set_dscp(socket, is_ipv6)
    }

    fn bind_device(&self, socket: &RawSocket) -> io::Result<()> {
        let Some(device) = &self.device else { return Ok(()) };
        #[cfg(target_os = "linux")]
        return socket.bind_device(Some(device.as_bytes())).map_err(|error| {
            io::Error::new(error.kind(), format!("the interface {device} cannot be used: {error}"))
        });
        #[cfg(not(target_os = "linux"))]
        {
            let _ = socket;
            Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("sockets cannot be bound to the interface {device} on this system"),
            ))
        }
    }

    fn set_dscp(&self, socket: &RawSocket, is_ipv6: bool) -> io::Result<()> {
        if self.dscp == 0 {
            return Ok(());
        }
        #[cfg(target_os = "linux")]
        {
            let field = u32::from(self.dscp) << 2;
            if is_ipv6 {
                socket.set_tclass_v6(field)?;
            }
            // An IPv6 socket may also send IPv4.
            socket.set_tos_v4(field)
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (socket, is_ipv6);
            Err(io::Error::new(io::ErrorKind::Unsupported, "no DSCP on this system"))
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io::{self, IoSlice};
    use std::net::{IpAddr, UdpSocket};
    use std::num::NonZeroU32;
    use std::os::fd::AsRawFd;

    use nix::errno::Errno;
    use nix::libc;
    use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};

    /// Sends datagrams with this DSCP and their own ECN bits, only through this interface if there is one.
    pub(crate) fn send(
        socket: &UdpSocket,
        datagrams: &quinn_udp::Transmit<'_>,
        dscp: u8,
        interface: Option<NonZeroU32>,
    ) -> io::Result<()> {
        let send_once = |datagrams: &_| send_once(socket, datagrams, dscp, interface);
        match send_once(datagrams) {
            // The interface does not support GSO.
            Err(Errno::EIO | Errno::EINVAL) if datagrams.segment_size.is_some() => {
                let length = datagrams.segment_size.unwrap_or(usize::MAX).max(1);
                for contents in datagrams.contents.chunks(length) {
                    let single = quinn_udp::Transmit { contents, segment_size: None, ..*datagrams };
                    send_once(&single)?;
                }
                Ok(())
            }
            other => Ok(other?),
        }
    }

    fn send_once(
        socket: &UdpSocket,
        datagrams: &quinn_udp::Transmit<'_>,
        dscp: u8,
        interface: Option<NonZeroU32>,
    ) -> Result<(), Errno> {
        let to = datagrams.destination;
        let field = dscp << 2 | datagrams.ecn.map_or(0, |ecn| ecn as u8);
        let class = i32::from(field);
        let segment = datagrams.segment_size.and_then(|size| u16::try_from(size).ok());
        let is_ipv4 = to.ip().to_canonical().is_ipv4();
        let mut messages = vec![match is_ipv4 {
            true => ControlMessage::Ipv4Tos(&field),
            false => ControlMessage::Ipv6TClass(&class),
        }];
        if let Some(segment) = &segment {
            messages.push(ControlMessage::UdpGsoSegments(segment));
        }
        let index = interface.map_or(0, NonZeroU32::get);
        let from = datagrams.src_ip.map(|ip| ip.to_canonical());
        let (mut from_v4, mut from_v6) = (
            libc::in_pktinfo {
                ipi_ifindex: index.try_into().map_err(|_| Errno::ENODEV)?,
                ipi_spec_dst: libc::in_addr { s_addr: 0 },
                ipi_addr: libc::in_addr { s_addr: 0 },
            },
            libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr { s6_addr: [0; 16] },
                ipi6_ifindex: index,
            },
        );
        match from {
            Some(IpAddr::V4(ip)) => from_v4.ipi_spec_dst.s_addr = u32::from_ne_bytes(ip.octets()),
            // With a source address of IPv6, Linux only prefers the interface: a route of a better metric
            // over another one wins (`ip6_route_output_flags`). Without one it takes an address of the
            // interface.
            Some(IpAddr::V6(ip)) if interface.is_none() => from_v6.ipi6_addr.s6_addr = ip.octets(),
            _ => {}
        }
        if from.is_some() || interface.is_some() {
            messages.push(match is_ipv4 {
                true => ControlMessage::Ipv4PacketInfo(&from_v4),
                false => ControlMessage::Ipv6PacketInfo(&from_v6),
            });
        }
        let contents = [IoSlice::new(datagrams.contents)];
        let to = SockaddrStorage::from(to);
        let flags = MsgFlags::MSG_DONTWAIT;
        sendmsg(socket.as_raw_fd(), &contents, &messages, flags, Some(&to)).map(|_| ())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use bats_proto::Transmit;

    use super::super::socket::{Bursts, ReceiveBuffers, Socket};
    use super::*;

    /// Datagrams for the loopback interface and for one that does not exist, in both families: with GSO and
    /// ECN bits, and with a local address.
    #[test]
    fn datagrams_leave_through_their_interface_or_are_lost() {
        let loopback = NonZeroU32::new(nix::net::if_::if_nametoindex("lo").unwrap());
        let missing = NonZeroU32::new(1 << 30);
        for (server, client) in
            [("127.0.0.1:0", "127.0.0.1:0"), ("[::1]:0", "[::]:0"), ("127.0.0.1:0", "[::]:0")]
        {
            let bind = |at: &str| Socket::bind(at.parse().unwrap(), &SocketOptions::default());
            let (receiver, sender) = (bind(server).unwrap(), bind(client).unwrap());
            let remote = receiver.local_addr().unwrap();
            let mut bursts = Bursts::new();
            for (length, interface, has_local) in [
                (2_500, missing, false),
                (2_500, loopback, true),
                (100, missing, true),
                (101, loopback, false),
                (102, None, true),
            ] {
                bursts.room().unwrap().resize(length, 7);
                let local_ip = has_local.then_some(remote.ip());
                let (segment_size, len) = (1_000, length);
                bursts.push(Transmit { remote, local_ip, interface, ecn: 2, segment_size, len });
            }
            assert!(sender.send(&mut bursts).unwrap(), "errors concern their datagrams alone");
            let mut buffers = ReceiveBuffers::new(4);
            let mut sizes = Vec::new();
            for _ in 0..1_000 {
                if !receiver.receive(&mut buffers).unwrap() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                for received in buffers.drain() {
                    assert_eq!(received.ecn, 2, "{server} {client}");
                    sizes.push(received.payload.len());
                }
                if sizes.last() == Some(&102) {
                    break;
                }
            }
            assert_eq!(sizes, [1_000, 1_000, 500, 101, 102], "{server} {client}");
        }
    }
}
