//! What a socket is told of ports where nobody listens: the error queue of ip(7), `IP_RECVERR`.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};

#[cfg(target_os = "linux")]
use {
    nix::sys::socket::{
        ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
    },
    std::os::fd::AsRawFd,
};

/// Errors read at a time, so that nobody can keep the I/O thread busy with them.
const MOST_AT_ONCE: usize = 16;

/// Lets a socket cut long datagrams into fragments and hear of closed ports.
pub(super) fn prepare(socket: &UdpSocket, is_ipv6: bool) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::net::sockopt::{
            Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
        };
        // An IPv6 socket carries IPv4, too, by the options of that.
        set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::DONT)?;
        setsockopt(socket, sockopt::Ipv4RecvErr, &true)?;
        if is_ipv6 {
            set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::DONT)?;
            setsockopt(socket, sockopt::Ipv6RecvErr, &true)?;
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, is_ipv6);
    Ok(())
}

/// Takes what the error queue holds, other errors included; the addresses of closed ports.
pub(super) fn closed_ports(socket: &UdpSocket) -> Vec<SocketAddr> {
    let mut closed = Vec::new();
    #[cfg(target_os = "linux")]
    for _ in 0..MOST_AT_ONCE {
        // Of the datagram that came back nothing is of interest but where it went.
        let mut nothing = [0; 1];
        let mut slices = [IoSliceMut::new(&mut nothing)];
        let mut control = [0; 512];
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let Ok(told) =
            recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut slices, Some(&mut control), flags)
        else {
            break;
        };
        let is_closed = told.cmsgs().is_ok_and(|mut messages| {
            messages.any(|message| match message {
                ControlMessageOwned::Ipv4RecvErr(error, _)
                | ControlMessageOwned::Ipv6RecvErr(error, _) => i32::try_from(error.ee_errno)
                    .is_ok_and(|code| code == rustix::io::Errno::CONNREFUSED.raw_os_error()),
                _ => false,
            })
        });
        let Some(address) = told.address.filter(|_| is_closed) else { continue };
        let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::from((v4.ip(), v4.port())));
        let v6 = address.as_sockaddr_in6().map(|v6| SocketAddr::from((v6.ip(), v6.port())));
        closed.extend(v4.or(v6).map(super::canonical));
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, MOST_AT_ONCE);
    closed
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn news_of_closed_ports_is_read_some_at_a_time() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        prepare(&socket, false).unwrap();
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut sent = 0;
        // What is told of an earlier one makes the next fail.
        while sent < MOST_AT_ONCE + 1 {
            sent += usize::from(socket.send_to(&[7], nobody).is_ok());
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(closed_ports(&socket), vec![nobody; MOST_AT_ONCE]);
        assert_eq!(closed_ports(&socket), [nobody]);
    }

    #[test]
    fn a_closed_port_is_told_by_its_address_in_both_families() {
        for (from, to) in
            [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "::ffff:127.0.0.1")]
        {
            let socket = UdpSocket::bind(from).unwrap();
            socket.set_nonblocking(true).unwrap();
            prepare(&socket, !from.starts_with('1')).unwrap();
            let nobody = {
                let ip = to.trim_start_matches("::ffff:");
                UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap()
            };
            assert_eq!(closed_ports(&socket), []);
            let to: std::net::IpAddr = to.parse().unwrap();
            // Longer than any interface lets through in one piece.
            assert_eq!(socket.send_to(&[7; 65_507], (to, nobody.port())).unwrap(), 65_507);
            let mut closed = Vec::new();
            for _ in 0..1_000 {
                closed.extend(closed_ports(&socket));
                if !closed.is_empty() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(closed, [nobody], "{from}");
        }
    }
}
