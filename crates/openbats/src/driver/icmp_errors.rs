//! ICMP "port unreachable" errors of a socket: the error queue of ip(7), `IP_RECVERR`.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};

use smallvec::SmallVec;

#[cfg(target_os = "linux")]
use {
    nix::sys::socket::{
        ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
    },
    std::os::fd::AsRawFd,
};

/// Errors read per call, so that a flood of them does not block the I/O thread.
const MAX_ERRORS_PER_CALL: usize = 16;

/// Bytes of a datagram that are read from its error: the headers with the connection IDs.
const QUOTED_BYTES: usize = 64;

/// A port of a peer that is unreachable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnreachablePort {
    pub(crate) remote: SocketAddr,
    /// Beginning of the UDP payload of the datagram, as far as the error quotes it.
    pub(crate) quoted: SmallVec<[u8; QUOTED_BYTES]>,
}

/// Enables the error queue.
pub(super) fn enable(socket: &UdpSocket, is_ipv6: bool) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        // An IPv6 socket also sends IPv4, with the IPv4 options.
        setsockopt(socket, sockopt::Ipv4RecvErr, &true)?;
        if is_ipv6 {
            setsockopt(socket, sockopt::Ipv6RecvErr, &true)?;
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, is_ipv6);
    Ok(())
}

/// Allows fragmentation of long datagrams.
pub(super) fn allow_fragmentation(socket: &UdpSocket, is_ipv6: bool) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::net::sockopt::{
            Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
        };
        set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::DONT)?;
        if is_ipv6 {
            set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::DONT)?;
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, is_ipv6);
    Ok(())
}

/// Reads the error queue; returns the unreachable ports and drops other errors.
pub(super) fn unreachable_ports(socket: &UdpSocket) -> Vec<UnreachablePort> {
    let mut closed = Vec::new();
    #[cfg(target_os = "linux")]
    for _ in 0..MAX_ERRORS_PER_CALL {
        let mut payload = [0; QUOTED_BYTES];
        let mut slices = [IoSliceMut::new(&mut payload)];
        let mut control = [0; 512];
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let Ok(received) =
            recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut slices, Some(&mut control), flags)
        else {
            break;
        };
        let is_closed = received.cmsgs().is_ok_and(|mut messages| {
            messages.any(|message| match message {
                ControlMessageOwned::Ipv4RecvErr(error, _)
                | ControlMessageOwned::Ipv6RecvErr(error, _) => i32::try_from(error.ee_errno)
                    .is_ok_and(|code| code == rustix::io::Errno::CONNREFUSED.raw_os_error()),
                _ => false,
            })
        });
        let Some(address) = received.address.filter(|_| is_closed) else { continue };
        let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::from((v4.ip(), v4.port())));
        let v6 = address.as_sockaddr_in6().map(|v6| SocketAddr::from((v6.ip(), v6.port())));
        let length = received.bytes.min(QUOTED_BYTES);
        if let Some(remote) = v4.or(v6).map(super::canonical) {
            closed.push(UnreachablePort { remote, quoted: payload[..length].into() });
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, MAX_ERRORS_PER_CALL);
    closed
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn unreachable_ports_are_read_in_batches() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        enable(&socket, false).unwrap();
        let unused = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut sent = 0;
        // The pending error of an earlier datagram makes the next send fail.
        while sent < MAX_ERRORS_PER_CALL + 1 {
            sent += usize::from(socket.send_to(&[7], unused).is_ok());
        }
        std::thread::sleep(Duration::from_millis(20));
        let error = || UnreachablePort { remote: unused, quoted: [7].into_iter().collect() };
        assert_eq!(unreachable_ports(&socket).len(), MAX_ERRORS_PER_CALL);
        assert_eq!(unreachable_ports(&socket), [error()]);
    }

    #[test]
    fn an_unreachable_port_is_reported_with_its_address_in_both_families() {
        for (from, to) in
            [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "::ffff:127.0.0.1")]
        {
            let socket = UdpSocket::bind(from).unwrap();
            socket.set_nonblocking(true).unwrap();
            enable(&socket, !from.starts_with('1')).unwrap();
            allow_fragmentation(&socket, !from.starts_with('1')).unwrap();
            let unused = {
                let ip = to.trim_start_matches("::ffff:");
                UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap()
            };
            assert_eq!(unreachable_ports(&socket), []);
            let to: std::net::IpAddr = to.parse().unwrap();
            // Longer than the MTU of any interface.
            assert_eq!(socket.send_to(&[7; 65_507], (to, unused.port())).unwrap(), 65_507);
            let mut closed = Vec::new();
            for _ in 0..1_000 {
                closed.extend(unreachable_ports(&socket));
                if !closed.is_empty() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(closed.len(), 1, "{from}");
            assert_eq!(closed[0].remote, unused, "{from}");
            assert!(closed[0].quoted.iter().all(|byte| *byte == 7), "{from}");
        }
    }
}
