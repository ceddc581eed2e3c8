//! The UDP socket: batched I/O with GRO and GSO, for both IP families.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bats_proto::{Received, Transmit};
use quinn_udp::{EcnCodepoint, RecvMeta, UdpSockRef, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket as RawSocket, Type};

use crate::clock::Clock;
use crate::driver::SocketOptions;
use crate::driver::icmp_errors::{self, UnreachablePort};
use crate::driver::parker::Readiness;
#[cfg(target_os = "linux")]
use crate::driver::steering;
use crate::kernel_memory::is_lack_of_memory;
use crate::log_limit::LogLimit;

/// Buffers per receive call, each for one datagram or for several that GRO has coalesced.
pub(super) const RECEIVE_BATCH: usize = 16;
/// Size of a receive buffer in bytes: the limit of GRO.
const GRO_BYTES: usize = 65_536;
/// Pause when the kernel has no memory for received datagrams.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);
/// Bursts sent between two receive calls.
const MAX_BURSTS: usize = 16;
/// Bytes of one burst.
const BURST_BYTES: usize = 65_000;
/// UDP payload that every path must support (RFC 9000, section 14).
const BASE_UDP_PAYLOAD: u16 = 1_200;
/// Requested socket buffers in bytes: at 10 Gbit/s they cover a delay of the thread of 6 ms.
const SOCKET_BUFFER: usize = 8 << 20;

/// A bound UDP socket.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: UdpSocket,
    /// Only the thread that has the turn uses it.
    state: Mutex<UdpSocketState>,
    /// Whether the socket is IPv6; it reaches IPv4 addresses as IPv4-mapped ones.
    is_ipv6: bool,
    /// DSCP of outgoing datagrams.
    dscp: u8,
    /// Whether long datagrams are fragmented.
    fragments: bool,
    /// A burst with GSO failed with EINVAL or EIO: because of GSO, or because of its address, its route or
    /// the MTU. What happens to the next datagram without GSO decides.
    gso_failed: AtomicBool,
    /// It failed as well, but `state` has taken the error for a lack of support of GSO and ECN.
    has_wrong_state: AtomicBool,
}

impl Socket {
    /// Binds `address`; an unspecified IPv6 address also serves IPv4.
    pub(crate) fn bind(address: SocketAddr, options: &SocketOptions) -> io::Result<Self> {
        let socket =
            RawSocket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        options.apply(&socket, address.is_ipv6())?;
        if address.is_ipv6() {
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        socket.bind(&address.into())?;
        Ok(Self { dscp: options.dscp, ..Self::from_std(socket.into())? })
    }

    /// Binds any free port, of both IP families if the system has both.
    pub(crate) fn bind_any(options: &SocketOptions) -> io::Result<Self> {
        Self::bind((Ipv6Addr::UNSPECIFIED, 0).into(), options)
            .or_else(|_| Self::bind(([0, 0, 0, 0], 0).into(), options))
    }

    /// From now on sockets that share their port can be bound to the address of this one.
    pub(crate) fn share_port(&self) -> io::Result<()> {
        Ok(rustix::net::sockopt::set_socket_reuseport(&self.socket, true)?)
    }

    /// Hands packets to one of the `count` sockets of this address, in the order in which they were bound: to that whose
    /// number is the first byte of the destination connection ID modulo `count`.
    pub(crate) fn steer(&self, count: usize) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        return steering::attach(&self.socket, count);
        #[cfg(not(target_os = "linux"))]
        {
            let _ = count;
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn from_std(socket: UdpSocket) -> io::Result<Self> {
        let is_ipv6 = socket.local_addr()?.is_ipv6();
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        enlarge_buffers(&socket);
        disable_timestamps(&socket);
        icmp_errors::enable(&socket, is_ipv6)?;
        Ok(Self {
            socket,
            state: Mutex::new(state),
            is_ipv6,
            dscp: 0,
            fragments: false,
            gso_failed: AtomicBool::new(false),
            has_wrong_state: AtomicBool::new(false),
        })
    }

    /// Finds out again which options the system supports. Otherwise a source address that was removed
    /// for a moment would end the use of GSO and ECN.
    fn renew_state(&self) -> io::Result<()> {
        *self.lock_state() = UdpSocketState::new(UdpSockRef::from(&self.socket))?;
        self.has_wrong_state.store(false, Ordering::Relaxed);
        disable_timestamps(&self.socket);
        if self.fragments {
            icmp_errors::allow_fragmentation(&self.socket, self.is_ipv6)?;
        }
        Ok(())
    }

    /// Dedicates the socket to mode UDP: long datagrams are fragmented.
    pub(crate) fn dedicate_to_mode_udp(&mut self) -> io::Result<()> {
        self.fragments = true;
        icmp_errors::allow_fragmentation(&self.socket, self.is_ipv6)
    }

    /// Ports that were reported as unreachable since the last call.
    pub(super) fn unreachable_ports(&self) -> Vec<UnreachablePort> {
        icmp_errors::unreachable_ports(&self.socket)
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Receives one batch; returns `false` if there was none.
    pub(crate) fn receive(&self, buffers: &mut ReceiveBuffers) -> io::Result<bool> {
        // A thread of the application has fewer than the I/O thread.
        let count = buffers.bytes.len() / GRO_BYTES;
        let mut slices: [IoSliceMut<'_>; RECEIVE_BATCH] = {
            let mut gro_buffers = buffers.bytes.chunks_exact_mut(GRO_BYTES);
            std::array::from_fn(|_| IoSliceMut::new(gro_buffers.next().unwrap_or_default()))
        };
        let slices = &mut slices[..count];
        let result = self.lock_state().recv((&self.socket).into(), slices, &mut buffers.metas);
        buffers.count = 0;
        match result {
            Ok(count) => {
                buffers.count = count;
                Ok(count > 0)
            }
            Err(error) if is_transient(&error) => Ok(false),
            Err(error) if is_lack_of_memory(&error) => {
                // The datagram stays queued, so waiting for readiness would return at once.
                if let Some(others) = buffers.log.allow(buffers.clock.now()) {
                    tracing::warn!(%error, others, "no kernel memory to receive datagrams");
                }
                std::thread::sleep(MEMORY_PAUSE);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether packets or errors are there; `None` if neither.
    pub(super) fn readiness(&self) -> Option<Readiness> {
        let mut files = [PollFd::new(&self.socket, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_ready = poll(&mut files, Some(&now)).is_ok_and(|count| count > 0);
        is_ready.then(|| Readiness::new(files[0].revents()))
    }

    /// Sends the bursts; returns `false` if the send buffer of the socket is full.
    pub(crate) fn send(&self, bursts: &mut Bursts) -> io::Result<bool> {
        while bursts.front().is_some() {
            if !self.send_next(bursts)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends the next burst, or its first part if the system refuses a datagram of it; returns
    /// `false` if the send buffer of the socket is full.
    pub(super) fn send_next(&self, bursts: &mut Bursts) -> io::Result<bool> {
        let Some((transmit, bytes)) = bursts.front() else { return Ok(true) };
        if self.has_wrong_state.load(Ordering::Relaxed)
            && let Err(error) = self.renew_state()
        {
            tracing::debug!(%error, "options of the socket stay off");
        }
        // Errors of bursts that GSO splits may be errors of GSO.
        let is_single = bytes.len() <= transmit.segment_size || self.max_gso_segments() <= 1;
        match self.send_burst(&transmit, bytes) {
            Ok(()) => {
                self.gso_failed.fetch_and(!is_single, Ordering::Relaxed);
                bursts.pop();
            }
            Err((sent, error)) if error.kind() == io::ErrorKind::WouldBlock => {
                bursts.consume(sent);
                return Ok(false);
            }
            Err((sent, error)) => {
                // A datagram that the system refuses (too large for the interface, no route at
                // the moment) counts as lost in the network.
                let consumed = (sent + transmit.segment_size).min(bytes.len());
                self.on_send_error(&error, is_single);
                let advice = advice(&error, consumed - sent);
                if let Some(others) = bursts.log.allow(bursts.clock.now()) {
                    let remote = transmit.remote;
                    match advice {
                        Some(advice) => {
                            tracing::warn!(%error, %remote, others, "datagram not sent: {advice}");
                        }
                        None => tracing::debug!(%error, %remote, others, "datagram not sent"),
                    }
                }
                bursts.consume(consumed);
                bursts.pop_if_empty();
            }
        }
        Ok(true)
    }

    fn lock_state(&self) -> MutexGuard<'_, UdpSocketState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn max_gso_segments(&self) -> usize {
        self.lock_state().max_gso_segments()
    }

    fn on_send_error(&self, error: &io::Error, is_single: bool) {
        let is_doubtful = is_invalid(error);
        let had_failed = self.gso_failed.swap(is_doubtful && !is_single, Ordering::Relaxed);
        if is_single && (is_doubtful || had_failed) {
            self.has_wrong_state.store(true, Ordering::Relaxed);
        }
    }

    /// On error also returns the number of bytes sent before it.
    fn send_burst(&self, transmit: &Transmit, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
        // The system may have found out that the interface does not support GSO.
        let step = transmit.segment_size * self.max_gso_segments().max(1);
        let mut sent = 0;
        // An empty datagram is sent, too.
        let empty = bytes.is_empty().then_some(bytes);
        for contents in bytes.chunks(step.max(1)).chain(empty) {
            let datagrams = quinn_udp::Transmit {
                destination: self.map(transmit.remote),
                ecn: EcnCodepoint::from_bits(transmit.ecn),
                contents,
                segment_size: (contents.len() > transmit.segment_size)
                    .then_some(transmit.segment_size),
                src_ip: transmit.local_ip.map(|ip| self.map_ip(ip)),
            };
            let send = || self.send_datagrams(&datagrams, transmit.interface);
            let result = match send() {
                // The error belongs to an earlier datagram, perhaps to another peer; this one was
                // not sent.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => send(),
                other => other,
            };
            match result {
                Ok(()) => sent += contents.len(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err((sent, error)),
            }
        }
        Ok(())
    }

    fn send_datagrams(
        &self,
        datagrams: &quinn_udp::Transmit<'_>,
        interface: Option<NonZeroU32>,
    ) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if self.dscp > 0 || interface.is_some() {
            return super::socket_options::send(&self.socket, datagrams, self.dscp, interface);
        }
        #[cfg(not(target_os = "linux"))]
        if interface.is_some() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.lock_state().try_send((&self.socket).into(), datagrams)
    }

    fn map(&self, address: SocketAddr) -> SocketAddr {
        match (self.is_ipv6, address) {
            (true, SocketAddr::V4(v4)) => {
                SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into()
            }
            _ => address,
        }
    }

    /// IPv4-mapped source addresses are passed as IPv4, because the control message differs.
    fn map_ip(&self, ip: IpAddr) -> IpAddr {
        match (self.is_ipv6, ip) {
            (true, IpAddr::V4(v4)) => v4.to_ipv6_mapped().into(),
            _ => ip,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Converts IPv4-mapped IPv6 addresses to IPv4. Only link-local addresses keep a zone, because the
/// system reports one for them alone, and without flow labels addresses compare equal.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into()
        }
        _ => SocketAddr::new(address.ip().to_canonical(), address.port()),
    }
}

/// Whether the error of a receive call concerns an earlier datagram, the network, or this call only. ICMP
/// errors of all kinds appear as such errors, and they are not authenticated: an endpoint ends only when
/// its socket is unusable.
fn is_transient(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    !matches!(
        code,
        Some(
            Errno::BADF
                | Errno::NOTSOCK
                | Errno::FAULT
                | Errno::INVAL
                | Errno::NOMEM
                | Errno::NOBUFS
        )
    )
}

/// Whether an error of sending means an invalid argument, as for a source address that was removed and
/// for an unsupported option.
fn is_invalid(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::INVAL | Errno::IO))
}

/// What the user can do about a datagram of `size` bytes that this host does not send, if it is not an
/// error that ends by itself. Larger datagrams are probes of the path MTU.
fn advice(error: &io::Error, size: usize) -> Option<&'static str> {
    use rustix::io::Errno;
    match Errno::from_raw_os_error(error.raw_os_error()?) {
        Errno::MSGSIZE if size <= usize::from(BASE_UDP_PAYLOAD) => {
            Some("raise the MTU of the interface to at least 1280 bytes")
        }
        Errno::PERM | Errno::ACCESS => {
            Some("a firewall or a route of this host prohibits it; see nft(8) and ip-route(8)")
        }
        _ => None,
    }
}

/// Disables the receive time stamps that `quinn-udp` 0.6 enables: they are not used, and its
/// control buffer is 16 bytes too short for them together with addresses and ECN bits of coalesced
/// datagrams, so that the ECN bits are lost.
fn disable_timestamps(socket: &UdpSocket) {
    #[cfg(target_os = "linux")]
    {
        use nix::sys::socket::{setsockopt, sockopt};
        if let Err(error) = setsockopt(socket, sockopt::ReceiveTimestampns, &false) {
            tracing::debug!(%error, "ECN marks of datagrams coalesced by GRO may be lost");
        }
    }
}

fn enlarge_buffers(socket: &UdpSocket) {
    let raw = socket2::SockRef::from(socket);
    // Errors are ignored: smaller buffers work, and losses show in the statistics.
    #[cfg(target_os = "linux")]
    let forced =
        rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER).is_ok();
    #[cfg(not(target_os = "linux"))]
    let forced = false;
    if !forced {
        let _ = raw.set_recv_buffer_size(SOCKET_BUFFER);
    }
    let _ = raw.set_send_buffer_size(SOCKET_BUFFER);
    if let Ok(size) = raw.recv_buffer_size()
        && size < SOCKET_BUFFER / 4
    {
        tracing::info!(size, "small receive buffer: raise net.core.rmem_max for fast links");
    }
}

/// Buffers of one receive call.
pub(crate) struct ReceiveBuffers {
    bytes: Vec<u8>,
    metas: [RecvMeta; RECEIVE_BATCH],
    count: usize,
    clock: Clock,
    log: LogLimit,
}

impl ReceiveBuffers {
    /// This number of buffers, at most [`RECEIVE_BATCH`].
    pub(crate) fn new(count: usize) -> Self {
        Self {
            bytes: vec![0; count.min(RECEIVE_BATCH) * GRO_BYTES],
            metas: [RecvMeta::default(); RECEIVE_BATCH],
            count: 0,
            clock: Clock::new(),
            log: LogLimit::default(),
        }
    }

    /// Returns each datagram of the batch once.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Received<'_>> {
        let count = std::mem::take(&mut self.count);
        let gro_buffers = self.bytes.chunks_exact_mut(GRO_BYTES);
        gro_buffers.zip(&self.metas[..count]).flat_map(|(gro_buffer, meta)| {
            let (remote, local_ip) =
                (canonical(meta.addr), meta.dst_ip.map(|ip| ip.to_canonical()));
            let ecn = meta.ecn.map_or(0, |ecn| ecn as u8);
            let len = meta.len.min(GRO_BYTES);
            // An empty datagram is received, too.
            let empty: Option<&mut [u8]> = (len == 0).then_some(&mut []);
            let payloads = gro_buffer[..len].chunks_mut(meta.stride.max(1)).chain(empty);
            payloads.map(move |payload| Received { remote, local_ip, ecn, payload })
        })
    }
}

/// Queue of bursts to send, in reused buffers. A burst is the payload of one GSO send.
#[derive(Debug)]
pub(crate) struct Bursts {
    buffers: Vec<(Vec<u8>, Option<Transmit>)>,
    /// First unsent burst, bytes of it already sent, and first free buffer.
    first: usize,
    consumed: usize,
    free: usize,
    clock: Clock,
    log: LogLimit,
}

impl Bursts {
    pub(crate) fn new() -> Self {
        let buffers = (0..MAX_BURSTS).map(|_| (Vec::with_capacity(BURST_BYTES), None)).collect();
        let (clock, log) = (Clock::new(), LogLimit::default());
        Self { buffers, first: 0, consumed: 0, free: 0, clock, log }
    }

    /// Returns the buffer for the next burst, or `None` if all are in use.
    pub(crate) fn room(&mut self) -> Option<&mut Vec<u8>> {
        if self.first == self.free {
            (self.first, self.free, self.consumed) = (0, 0, 0);
        }
        self.buffers.get_mut(self.free).map(|(buffer, _)| buffer)
    }

    /// Whether everything was sent.
    pub(super) fn is_empty(&self) -> bool {
        self.first == self.free
    }

    /// Queues the burst that was written into the buffer from [`room`](Self::room).
    pub(crate) fn push(&mut self, transmit: Transmit) {
        if let Some((_, slot)) = self.buffers.get_mut(self.free) {
            *slot = Some(transmit);
            self.free += 1;
        }
    }

    fn front(&self) -> Option<(Transmit, &[u8])> {
        if self.first == self.free {
            return None;
        }
        let (buffer, transmit) = &self.buffers[self.first];
        transmit.map(|transmit| (transmit, &buffer[self.consumed..]))
    }

    /// What is sent next.
    pub(super) fn next_transmit(&self) -> Option<Transmit> {
        self.front().map(|(transmit, _)| transmit)
    }

    /// Drops the burst that is next.
    pub(super) fn discard_next(&mut self) {
        self.pop();
    }

    fn pop(&mut self) {
        self.first += 1;
        self.consumed = 0;
    }

    fn consume(&mut self, bytes: usize) {
        self.consumed += bytes;
    }

    fn pop_if_empty(&mut self) {
        if self.front().is_some_and(|(_, bytes)| bytes.is_empty()) {
            self.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn transmit(segment_size: usize, len: usize) -> Transmit {
        let remote = ([127, 0, 0, 1], 9).into();
        Transmit { remote, local_ip: None, interface: None, ecn: 0, segment_size, len }
    }

    #[test]
    fn bursts_are_sent_in_order_and_buffers_are_reused() {
        let mut bursts = Bursts::new();
        for round in 0..3 {
            let mut filled = 0u8;
            while let Some(buffer) = bursts.room() {
                assert!(buffer.capacity() >= BURST_BYTES);
                buffer.clear();
                buffer.extend_from_slice(&[filled, round]);
                bursts.push(transmit(1, 2));
                filled += 1;
            }
            assert_eq!(usize::from(filled), MAX_BURSTS);
            for expected in 0..filled {
                assert_eq!(bursts.front().unwrap().1, [expected, round]);
                bursts.consume(1);
                assert_eq!(bursts.front().unwrap().1, [round]);
                bursts.consume(1);
                bursts.pop_if_empty();
            }
            assert!(bursts.front().is_none());
        }
    }

    #[test]
    fn datagrams_keep_their_boundaries_in_both_families() {
        for (server, client) in [
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("[::1]:0", "[::1]:0"),
            ("[::]:0", "127.0.0.1:0"),
            ("127.0.0.1:0", "[::]:0"),
        ] {
            let receiver =
                Socket::bind(server.parse().unwrap(), &SocketOptions::default()).unwrap();
            let sender = Socket::bind(client.parse().unwrap(), &SocketOptions::default()).unwrap();
            let port = receiver.local_addr().unwrap().port();
            let ip: IpAddr = if server == "[::1]:0" {
                Ipv6Addr::LOCALHOST.into()
            } else {
                [127, 0, 0, 1].into()
            };
            let mut bursts = Bursts::new();
            let buffer = bursts.room().unwrap();
            (0..2_500u32).for_each(|byte| buffer.push(byte as u8));
            bursts.push(Transmit { remote: (ip, port).into(), ecn: 2, ..transmit(1_000, 2_500) });
            assert!(sender.send(&mut bursts).unwrap());

            let mut buffers = ReceiveBuffers::new(RECEIVE_BATCH);
            let mut sizes = Vec::new();
            for _ in 0..1_000 {
                if !receiver.receive(&mut buffers).unwrap() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                for received in buffers.drain() {
                    assert_eq!(received.remote.ip(), ip, "{server} {client}");
                    assert_eq!(received.ecn, 2, "{server} {client}");
                    sizes.push(received.payload.len());
                }
                if sizes.len() == 3 {
                    break;
                }
            }
            assert_eq!(sizes, [1_000, 1_000, 500], "{server} {client}");
        }
    }

    /// Checks the whole field, DSCP and ECN, of single and of coalesced datagrams.
    #[test]
    #[cfg(target_os = "linux")]
    fn dscp_is_set_and_ecn_bits_are_kept() {
        use std::os::fd::AsRawFd;

        use nix::sys::socket::{
            ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
        };
        let options = SocketOptions { dscp: 46, ..SocketOptions::default() };
        for (server, client, local) in [
            ("127.0.0.1:0", "127.0.0.1:0", None),
            ("[::1]:0", "[::1]:0", Some("::1")),
            ("127.0.0.1:0", "[::]:0", Some("127.0.0.1")),
            ("[::1]:0", "[::]:0", None),
        ] {
            let receiver = UdpSocket::bind(server).unwrap();
            receiver.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            match server.starts_with('[') {
                true => setsockopt(&receiver, sockopt::Ipv6RecvTClass, &true).unwrap(),
                false => setsockopt(&receiver, sockopt::IpRecvTos, &true).unwrap(),
            }
            let sender = Socket::bind(client.parse().unwrap(), &options).unwrap();
            let remote = receiver.local_addr().unwrap();
            let local_ip = local.map(|ip: &str| ip.parse().unwrap());
            let mut bursts = Bursts::new();
            for (ecn, length) in [(0, 100), (2, 2_500)] {
                let buffer = bursts.room().unwrap();
                buffer.clear();
                buffer.resize(length, 7);
                bursts.push(Transmit { remote, local_ip, ecn, ..transmit(1_000, length) });
            }
            assert!(sender.send(&mut bursts).unwrap());
            let mut found = Vec::new();
            for _ in 0..4 {
                let mut bytes = [0; 2_000];
                let mut slices = [IoSliceMut::new(&mut bytes)];
                let mut space = nix::cmsg_space!(i32);
                let received = recvmsg::<SockaddrStorage>(
                    receiver.as_raw_fd(),
                    &mut slices,
                    Some(&mut space),
                    MsgFlags::empty(),
                )
                .unwrap();
                let field = received.cmsgs().unwrap().find_map(|message| match message {
                    ControlMessageOwned::Ipv4Tos(field) => Some(i32::from(field)),
                    ControlMessageOwned::Ipv6TClass(field) => Some(field),
                    _ => None,
                });
                found.push((received.bytes, field.unwrap()));
            }
            let marked = [(100, 184), (1_000, 186), (1_000, 186), (500, 186)];
            assert_eq!(found, marked, "{server} {client}");
        }
    }

    #[test]
    fn lack_of_kernel_memory_is_no_fatal_error() {
        use rustix::io::Errno;
        for code in [Errno::NOMEM, Errno::NOBUFS] {
            assert!(is_lack_of_memory(&io::Error::from_raw_os_error(code.raw_os_error())));
        }
        for code in [Errno::AGAIN, Errno::BADF] {
            assert!(!is_lack_of_memory(&io::Error::from_raw_os_error(code.raw_os_error())));
        }
    }
}
