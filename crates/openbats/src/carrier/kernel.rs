//! What the kernel knows of a TCP connection: sock_diag(7), `struct tcp_info` of
//! `include/uapi/linux/tcp.h`.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use bats_proto::ConnectionStats;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const INET_DIAG_INFO: u16 = 2;
const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// `struct inet_diag_req_v2`.
const REQUEST: usize = 56;
/// `struct inet_diag_msg`.
const ANSWER: usize = 72;

/// Asks the kernel.
#[derive(Debug)]
pub(super) struct Kernel(OwnedFd);

impl Kernel {
    pub(super) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let family = AddressFamily::NETLINK;
        Ok(Self(socket_with(family, SocketType::DGRAM, flags, Some(SOCK_DIAG))?))
    }

    /// Adds what the kernel knows of this connection; what it does not know stays as it is.
    pub(super) fn complete(&self, socket: &TcpStream, stats: &mut ConnectionStats) {
        let (Ok(local), Ok(remote)) = (socket.local_addr(), socket.peer_addr()) else { return };
        let mut answer = [0; 1_024];
        // A kernel without diagnosis tells nothing, which is no error of the connection.
        let Ok(len) = self.ask(&request(local, remote), &mut answer) else { return };
        if let Some(info) = answer.get(..len).and_then(info_of) {
            apply(info, stats);
        }
    }

    fn ask(&self, request: &[u8], answer: &mut [u8]) -> io::Result<usize> {
        // An answer that an earlier question did not fetch would be taken for this one's.
        while recv(&self.0, &mut *answer, RecvFlags::empty()).is_ok() {}
        sendto(&self.0, request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        // The kernel has answered before the call returns.
        Ok(recv(&self.0, answer, RecvFlags::empty())?.0)
    }
}

fn request(local: SocketAddr, remote: SocketAddr) -> [u8; HEADER + REQUEST] {
    let mut bytes = [0; HEADER + REQUEST];
    bytes[..4].copy_from_slice(&((HEADER + REQUEST) as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    let request = &mut bytes[HEADER..];
    request[0] = if local.is_ipv4() { AF_INET } else { AF_INET6 };
    request[1] = IPPROTO_TCP;
    request[2] = 1 << (INET_DIAG_INFO - 1);
    // In every state.
    request[4..8].fill(0xff);
    request[8..10].copy_from_slice(&local.port().to_be_bytes());
    request[10..12].copy_from_slice(&remote.port().to_be_bytes());
    for (at, ip) in [(12, local.ip()), (28, remote.ip())] {
        match ip {
            IpAddr::V4(ip) => request[at..at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => request[at..at + 16].copy_from_slice(&ip.octets()),
        }
    }
    // Of any interface (44..48); no cookie.
    request[48..].fill(0xff);
    bytes
}

/// The `tcp_info` of an answer.
fn info_of(answer: &[u8]) -> Option<&[u8]> {
    let short = |bytes: &[u8]| Some(u16::from_ne_bytes(bytes.try_into().ok()?));
    if short(answer.get(4..6)?)? != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let mut attributes = answer.get(HEADER + ANSWER..)?;
    loop {
        let (len, kind) = (short(attributes.get(..2)?)?, short(attributes.get(2..4)?)?);
        let content = attributes.get(4..usize::from(len))?;
        if kind == INET_DIAG_INFO {
            return Some(content);
        }
        attributes = attributes.get(usize::from(len).next_multiple_of(4)..)?;
    }
}

fn apply(info: &[u8], stats: &mut ConnectionStats) {
    // An older kernel's structure is shorter: what it does not have is nothing.
    let number = |at: usize| {
        let bytes = info.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u64::from(bytes.map_or(0, u32::from_ne_bytes))
    };
    let long = |at: usize| {
        let bytes = info.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    };
    let segment = number(16);
    stats.path_mtu = u16::try_from(segment).unwrap_or(u16::MAX);
    stats.in_flight_bytes = number(24) * segment;
    stats.smoothed_rtt = Duration::from_micros(number(68));
    stats.cwnd_bytes = number(80) * segment;
    stats.packets_lost = number(100);
    stats.pacing_bps = match long(104) {
        u64::MAX => u64::MAX,
        bytes => bytes.saturating_mul(8),
    };
    stats.packets_sent = number(136);
    stats.packets_received = number(140);
    stats.min_rtt = match number(148) {
        // Not measured yet.
        0xffff_ffff => Duration::ZERO,
        micros => Duration::from_micros(micros),
    };
    let data_segments = number(156);
    stats.source_packets_sent = data_segments.saturating_sub(number(100));
    stats.top_up_packets_sent = number(100);
    if data_segments > 0 {
        stats.loss_estimate = (number(100) as f64 / data_segments as f64).min(1.0);
    }
    stats.delivery_bps = long(160).saturating_mul(8);
    stats.ecn_ce = number(196);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_kernel_tells_of_both_ends_in_both_families() {
        let kernel = Kernel::open().unwrap();
        for (listen, connect) in
            [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")]
        {
            let listener = TcpListener::bind(listen).unwrap();
            let port = listener.local_addr().unwrap().port();
            let mut near = TcpStream::connect((connect, port)).unwrap();
            let (mut far, _) = listener.accept().unwrap();
            near.write_all(&[7; 100_000]).unwrap();
            far.read_exact(&mut [0; 100_000]).unwrap();
            for end in [&near, &far] {
                let mut stats = ConnectionStats::default();
                kernel.complete(end, &mut stats);
                assert!(stats.cwnd_bytes > 1_000 && stats.path_mtu > 500, "{listen}: {stats:?}");
                assert!(stats.packets_sent > 0 && stats.packets_received > 0, "{stats:?}");
                assert!(stats.smoothed_rtt > Duration::ZERO, "{listen}: {stats:?}");
                assert!(stats.loss_estimate < 0.5, "{stats:?}");
            }
        }
    }

    #[test]
    fn answers_of_any_shape_are_read_or_left() {
        assert_eq!(info_of(&[0; 10]), None);
        let mut answer = vec![0; HEADER + ANSWER];
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        assert_eq!(info_of(&answer), None);
        for (len, kind, found) in [(3, 2, false), (0, 0, false), (4, 2, true), (9, 2, false)] {
            let mut answer = answer.clone();
            answer.extend_from_slice(&u16::to_ne_bytes(len));
            answer.extend_from_slice(&u16::to_ne_bytes(kind));
            assert_eq!(info_of(&answer).is_some(), found, "{len} {kind}");
        }
        let mut stats = ConnectionStats::default();
        apply(&[], &mut stats);
        assert_eq!(stats, ConnectionStats::default());
    }
}
