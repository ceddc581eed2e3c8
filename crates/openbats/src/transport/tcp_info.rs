//! Statistics of the kernel's TCP connections: sock_diag(7), `struct tcp_info` of
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
const REPLY: usize = 72;

/// A netlink socket for queries to sock_diag(7).
#[derive(Debug)]
pub(super) struct SockDiag(OwnedFd);

impl SockDiag {
    pub(super) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let family = AddressFamily::NETLINK;
        Ok(Self(socket_with(family, SocketType::DGRAM, flags, Some(SOCK_DIAG))?))
    }

    /// Fills in the kernel's statistics of this connection; the other fields stay unchanged.
    pub(super) fn fill(&self, socket: &TcpStream, stats: &mut ConnectionStats) {
        let (Ok(local), Ok(remote)) = (socket.local_addr(), socket.peer_addr()) else { return };
        let mut reply = [0; 1_024];
        // Without sock_diag in the kernel the statistics stay incomplete; the connection works.
        let Ok(len) = self.query(&request(local, remote), &mut reply) else { return };
        if let Some(info) = reply.get(..len).and_then(tcp_info) {
            apply(info, stats);
        }
    }

    fn query(&self, request: &[u8], reply: &mut [u8]) -> io::Result<usize> {
        // Discard replies to earlier queries that were not read.
        while recv(&self.0, &mut *reply, RecvFlags::empty()).is_ok() {}
        sendto(&self.0, request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        // The kernel has replied before the call returns.
        Ok(recv(&self.0, reply, RecvFlags::empty())?.0)
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
    // TCP states: all.
    request[4..8].fill(0xff);
    request[8..10].copy_from_slice(&local.port().to_be_bytes());
    request[10..12].copy_from_slice(&remote.port().to_be_bytes());
    for (at, ip) in [(12, local.ip()), (28, remote.ip())] {
        match ip {
            IpAddr::V4(ip) => request[at..at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => request[at..at + 16].copy_from_slice(&ip.octets()),
        }
    }
    // Any interface (44..48), no cookie.
    request[48..].fill(0xff);
    bytes
}

/// Finds the `tcp_info` in a reply.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn tcp_info(reply: &[u8]) -> Option<&[u8]> {
    let short = |bytes: &[u8]| Some(u16::from_ne_bytes(bytes.try_into().ok()?));
    if short(reply.get(4..6)?)? != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let mut attributes = reply.get(HEADER + REPLY..)?;
    loop {
        let (len, kind) = (short(attributes.get(..2)?)?, short(attributes.get(2..4)?)?);
        let content = attributes.get(4..usize::from(len))?;
        if kind == INET_DIAG_INFO {
            return Some(content);
        }
        attributes = attributes.get(usize::from(len).next_multiple_of(4)..)?;
    }
}

#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn apply(info: &[u8], stats: &mut ConnectionStats) {
    // The structure of an older kernel is shorter; missing fields count as 0.
    let number = |at: usize| {
        let bytes = info.get(at..).and_then(|bytes| bytes.first_chunk());
        u64::from(bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes)))
    };
    let long = |at: usize| {
        let bytes = info.get(at..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    };
    let segment = number(16);
    stats.path.mtu = u16::try_from(segment).unwrap_or(u16::MAX);
    stats.congestion.in_flight_bytes = number(24).saturating_mul(segment);
    stats.path.smoothed_rtt = Duration::from_micros(number(68));
    stats.congestion.cwnd_bytes = number(80).saturating_mul(segment);
    stats.packets.lost = number(100);
    stats.congestion.pacing_bps = match long(104) {
        u64::MAX => u64::MAX,
        bytes => bytes.saturating_mul(8),
    };
    stats.packets.sent = number(136);
    stats.packets.received = number(140);
    stats.path.min_rtt = match number(148) {
        // The kernel has no RTT sample yet.
        0xffff_ffff => Duration::ZERO,
        micros => Duration::from_micros(micros),
    };
    let data_segments = number(156);
    stats.coding.source_packets_sent = data_segments.saturating_sub(number(100));
    stats.coding.top_up_packets_sent = number(100);
    if data_segments > 0 {
        stats.path.loss_estimate = (number(100) as f64 / data_segments as f64).min(1.0);
    }
    stats.congestion.delivery_bps = long(160).saturating_mul(8);
    stats.congestion.ecn_ce = number(196);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn statistics_are_filled_for_both_ends_in_both_families() {
        let diag = SockDiag::open().unwrap();
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
                diag.fill(end, &mut stats);
                assert!(
                    stats.congestion.cwnd_bytes > 1_000 && stats.path.mtu > 500,
                    "{listen}: {stats:?}"
                );
                assert!(stats.packets.sent > 0 && stats.packets.received > 0, "{stats:?}");
                assert!(stats.path.smoothed_rtt > Duration::ZERO, "{listen}: {stats:?}");
                assert!(stats.path.loss_estimate < 0.5, "{stats:?}");
            }
        }
    }

    #[test]
    fn malformed_replies_are_ignored() {
        assert_eq!(tcp_info(&[0; 10]), None);
        let mut reply = vec![0; HEADER + REPLY];
        reply[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        assert_eq!(tcp_info(&reply), None);
        for (len, kind, found) in [(3, 2, false), (0, 0, false), (4, 2, true), (9, 2, false)] {
            let mut reply = reply.clone();
            reply.extend_from_slice(&u16::to_ne_bytes(len));
            reply.extend_from_slice(&u16::to_ne_bytes(kind));
            assert_eq!(tcp_info(&reply).is_some(), found, "{len} {kind}");
        }
        let mut stats = ConnectionStats::default();
        apply(&[], &mut stats);
        assert_eq!(stats, ConnectionStats::default());
    }
}
