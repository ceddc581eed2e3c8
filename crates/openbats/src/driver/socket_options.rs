//! Socket options: the network interface, and the DSCP of each packet.
//!
//! The DSCP (RFC 2474) is the upper six bits of the TOS or traffic class field; the lower two are
//! the ECN bits (RFC 3168), which differ between datagrams. `quinn-udp` sets the whole field with
//! DSCP 0, so that datagrams with another DSCP are sent without it.

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
}

impl SocketOptions {
    /// Applies the options; to be called before the socket is bound.
    pub(crate) fn apply(&self, socket: &RawSocket, is_ipv6: bool) -> io::Result<()> {
        self.bind_device(socket)?;
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
    use std::os::fd::AsRawFd;

    use nix::errno::Errno;
    use nix::libc;
    use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};

    /// Sends datagrams with this DSCP and their own ECN bits.
    pub(crate) fn send(
        socket: &UdpSocket,
        datagrams: &quinn_udp::Transmit<'_>,
        dscp: u8,
    ) -> io::Result<()> {
        match send_once(socket, datagrams, dscp) {
            // The interface does not support GSO.
            Err(Errno::EIO | Errno::EINVAL) if datagrams.segment_size.is_some() => {
                let length = datagrams.segment_size.unwrap_or(usize::MAX).max(1);
                for contents in datagrams.contents.chunks(length) {
                    let single = quinn_udp::Transmit { contents, segment_size: None, ..*datagrams };
                    send_once(socket, &single, dscp)?;
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
        let (mut from_v4, mut from_v6) = (
            libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr { s_addr: 0 },
                ipi_addr: libc::in_addr { s_addr: 0 },
            },
            libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: [0; 16] }, ipi6_ifindex: 0 },
        );
        match datagrams.src_ip {
            Some(IpAddr::V4(ip)) => {
                from_v4.ipi_spec_dst.s_addr = u32::from_ne_bytes(ip.octets());
                messages.push(ControlMessage::Ipv4PacketInfo(&from_v4));
            }
            Some(IpAddr::V6(ip)) => {
                from_v6.ipi6_addr.s6_addr = ip.octets();
                messages.push(ControlMessage::Ipv6PacketInfo(&from_v6));
            }
            None => {}
        }
        let contents = [IoSlice::new(datagrams.contents)];
        let to = SockaddrStorage::from(to);
        let flags = MsgFlags::MSG_DONTWAIT;
        sendmsg(socket.as_raw_fd(), &contents, &messages, flags, Some(&to)).map(|_| ())
    }
}
