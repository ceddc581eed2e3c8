//! A stream of messages over one of the transports: OpenBATS, or the kernel's TCP or UDP for
//! comparison.

pub(crate) mod tcp;
pub(crate) mod udp;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use openbats::{Connection, Mode, Wait};

use crate::clock::Clock;
use crate::transport_stats::TransportStats;

/// How often a wait checks for an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Pause until the kernel may have memory, or the interface room in its queue, again.
pub(crate) const MEMORY_PAUSE: Duration = Duration::from_micros(50);
/// A close that takes longer is logged.
const SLOW_CLOSE: Duration = Duration::from_secs(3);
/// Longest time without a received packet while a sender waits for its data to arrive. At 90 % loss one
/// of a hundred probes is answered, so an answer can take half a minute.
const DRAIN_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest total time that a sender waits for its data to arrive.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Minimum backlog limit of a reliable connection in bytes.
const MIN_BACKLOG: u64 = 256 << 10;

/// Local binding of sockets: the parts that the system does not choose.
#[derive(Clone, Debug, Default)]
pub(crate) struct Local {
    pub(crate) address: Option<SocketAddr>,
    /// The name of a network interface.
    pub(crate) device: Option<String>,
    /// The DSCP of packets sent.
    pub(crate) dscp: u8,
}

/// The address with this port. Link-local addresses keep their zone.
pub(crate) fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

impl Local {
    /// The address to bind a socket to that sends to `remote`, with any port.
    pub(crate) fn to_bind(&self, remote: SocketAddr) -> SocketAddr {
        let any: IpAddr = if remote.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        self.address.map_or((any, 0).into(), |address| with_port(address, 0))
    }

    /// Binds a socket to the interface, if given, and sets the DSCP.
    pub(crate) fn prepare(&self, socket: &impl AsFd) -> Result<()> {
        self.mark(socket)?;
        let Some(device) = &self.device else { return Ok(()) };
        #[cfg(target_os = "linux")]
        return socket2::SockRef::from(socket)
            .bind_device(Some(device.as_bytes()))
            .with_context(|| format!("cannot bind to the interface {device}"));
        #[cfg(not(target_os = "linux"))]
        {
            let _ = socket;
            bail!("cannot bind to the interface {device} on this system")
        }
    }

    fn mark(&self, socket: &impl AsFd) -> Result<()> {
        if self.dscp == 0 {
            return Ok(());
        }
        #[cfg(target_os = "linux")]
        {
            let (socket, field) = (socket2::SockRef::from(socket), u32::from(self.dscp) << 2);
            let marked = match socket.domain()? {
                // An IPv6 socket sends to IPv4 addresses, too.
                socket2::Domain::IPV6 => {
                    socket.set_tclass_v6(field).and_then(|()| socket.set_tos_v4(field))
                }
                _ => socket.set_tos_v4(field),
            };
            marked.context("cannot set the DSCP")
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = socket;
            bail!("cannot set the DSCP on this system")
        }
    }
}

/// Result of a receive.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Received {
    Message(Bytes),
    /// The peer has sent its last message.
    End,
    /// Nothing arrived in time.
    Nothing,
}

/// What is known about the path of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathState {
    /// Measured delivery rate in bits per second; 0 if it is not known yet.
    pub(crate) delivery_bps: u64,
    pub(crate) rtt: Duration,
    /// Bytes sent that are no longer in flight: the amount of data that the rate is based on.
    pub(crate) sent_bytes: u64,
}

/// State of the sending direction of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendState {
    /// The send buffer is so full that more data would only wait longer.
    pub(crate) is_backlogged: bool,
    /// Packets received from the peer so far, if data is waiting for its acknowledgement.
    pub(crate) peer_packets: Option<u64>,
    pub(crate) path: PathState,
}

/// A stream of messages. Each direction is used by one thread.
#[derive(Debug)]
pub(crate) enum DataStream {
    Bats { connection: Connection, local: SocketAddr },
    Tcp(tcp::DataStream),
    Udp(udp::DataStream),
}

/// Whether the error is a timeout of a socket or an interrupting signal.
fn is_retryable(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// Pauses after a call that found no kernel memory or a full queue of the interface, because the socket may stay
/// ready. Passes on errors that do not end by themselves.
fn wait_after(error: std::io::Error) -> std::io::Result<()> {
    if openbats::is_lack_of_memory(&error) {
        std::thread::sleep(MEMORY_PAUSE);
    } else if !is_retryable(&error) {
        return Err(error);
    }
    Ok(())
}

/// The local address of packets to `remote`, if the endpoint is bound to the unspecified address.
fn local_towards(local: SocketAddr, remote: SocketAddr) -> SocketAddr {
    if !local.ip().is_unspecified() {
        return local;
    }
    let any: IpAddr = if remote.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    // Sends nothing: connecting a UDP socket only looks up the route.
    let found = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(remote)?;
        socket.local_addr()
    });
    found.map_or(local, |found| with_port(found, local.port()))
}

impl DataStream {
    /// A stream over an OpenBATS connection.
    pub(crate) fn bats(connection: Connection) -> Self {
        let local = local_towards(connection.local_addr(), connection.remote_addr());
        Self::Bats { connection, local }
    }

    /// Sends a message; `false` if there was no room for it within `limit`. After `deadline` the
    /// message expires; the kernel's transports ignore that.
    pub(crate) fn send(
        &self,
        message: Bytes,
        limit: Duration,
        deadline: Option<Duration>,
    ) -> Result<bool> {
        match self {
            Self::Bats { connection, .. } => {
                let sent = match deadline {
                    Some(deadline) => connection.send_within(message, deadline).wait_for(limit),
                    None => connection.send(message).wait_for(limit),
                };
                match sent {
                    Ok(sent) => sent.map(|()| true).context("cannot send"),
                    Err(_) => Ok(false),
                }
            }
            Self::Tcp(data_stream) => data_stream.send(&message, limit),
            Self::Udp(data_stream) => data_stream.send(&message, limit),
        }
    }

    pub(crate) fn recv(&self, limit: Duration) -> Result<Received> {
        match self {
            Self::Bats { connection, .. } => match connection.recv().wait_for(limit) {
                Ok(Ok(Some(message))) => Ok(Received::Message(message)),
                Ok(Ok(None)) => Ok(Received::End),
                Ok(Err(error)) => Err(error).context("cannot receive"),
                Err(_) => Ok(Received::Nothing),
            },
            Self::Tcp(data_stream) => data_stream.recv(limit),
            Self::Udp(data_stream) => data_stream.recv(limit),
        }
    }

    /// State of the sending direction. The kernel's transports have queues of a fixed size and do
    /// not report it.
    pub(crate) fn send_state(&self) -> SendState {
        let Self::Bats { connection, .. } = self else { return SendState::default() };
        // A closed connection has no current statistics.
        if connection.close_reason().is_some() {
            return SendState::default();
        }
        let stats = connection.stats();
        let path = PathState {
            delivery_bps: stats.congestion.delivery_bps,
            rtt: stats.path.smoothed_rtt,
            sent_bytes: stats.packets.bytes_sent.saturating_sub(stats.congestion.in_flight_bytes),
        };
        // What the path delivers in 50 ms, in addition to the data in flight.
        let short_term = stats.congestion.delivery_bps / 8 / 20;
        let is_reliable = connection.mode().is_reliable();
        let backlog_limit = if is_reliable {
            (2 * stats.congestion.cwnd_bytes).saturating_add(short_term).max(MIN_BACKLOG)
        } else {
            // The buffer contains no data in flight, and messages that wait longer expire. The
            // first rates are guesses: do not queue more than has been sent so far.
            short_term.min(path.sent_bytes)
        };
        let awaits_ack = is_reliable && stats.buffers.send_bytes > 0;
        SendState {
            is_backlogged: stats.buffers.send_bytes > backlog_limit,
            peer_packets: awaits_ack.then_some(stats.packets.received),
            path,
        }
    }

    /// Why nothing more can be sent, if so. Transports without a connection cannot detect that the
    /// peer has gone.
    pub(crate) fn end_reason(&self) -> Option<String> {
        match self {
            Self::Bats { connection, .. } => Some(connection.close_reason()?.to_string()),
            Self::Tcp(data_stream) => data_stream.end_reason(),
            Self::Udp(data_stream) => data_stream.end_reason(),
        }
    }

    /// Signals the end of messages, and waits until all have arrived or expired.
    pub(crate) fn finish(&self) -> Result<()> {
        match self {
            Self::Bats { connection, .. } => finish(connection),
            Self::Tcp(data_stream) => data_stream.finish(DRAIN_TIMEOUT),
            Self::Udp(data_stream) => data_stream.finish(),
        }
    }

    pub(crate) fn close(&self, why: &str) {
        match self {
            Self::Bats { connection, .. } => connection.close(1, why),
            Self::Tcp(data_stream) => data_stream.close(),
            Self::Udp(data_stream) => data_stream.close(),
        }
    }

    /// Statistics of the connection, if the transport is OpenBATS.
    pub(crate) fn transport_stats(&self) -> Option<TransportStats> {
        match self {
            Self::Bats { connection, .. } => Some(TransportStats::from(&connection.stats())),
            Self::Tcp(_) | Self::Udp(_) => None,
        }
    }

    /// The connection, if the transport is OpenBATS.
    pub(crate) fn connection(&self) -> Option<&Connection> {
        match self {
            Self::Bats { connection, .. } => Some(connection),
            Self::Tcp(_) | Self::Udp(_) => None,
        }
    }

    /// Message bytes received, if the transport is OpenBATS.
    pub(crate) fn bytes_received(&self) -> Option<u64> {
        match self {
            Self::Bats { connection, .. } => Some(connection.stats().messages.bytes_received),
            Self::Tcp(_) | Self::Udp(_) => None,
        }
    }

    /// The mode of the connection, if the transport is OpenBATS.
    pub(crate) fn mode(&self) -> Option<Mode> {
        match self {
            Self::Bats { connection, .. } => Some(connection.mode()),
            Self::Tcp(_) | Self::Udp(_) => None,
        }
    }

    /// The number of messages that the peer had sent at its end, if messages may be lost and both
    /// sides count them.
    pub(crate) fn messages_sent_by_peer(&self) -> Option<u64> {
        match self {
            Self::Bats { connection, .. } if !connection.mode().is_reliable() => {
                let stats = connection.stats();
                Some(stats.messages.received.saturating_add(stats.messages.lost))
            }
            Self::Udp(data_stream) => data_stream.messages_sent_by_peer(),
            _ => None,
        }
    }

    /// Local and remote address.
    pub(crate) fn addresses(&self) -> (SocketAddr, SocketAddr) {
        match self {
            Self::Bats { connection, local } => (*local, connection.remote_addr()),
            Self::Tcp(data_stream) => data_stream.addresses(),
            Self::Udp(data_stream) => data_stream.addresses(),
        }
    }
}

/// Bytes of messages that have not arrived as far as known. The send buffer also counts what the
/// messages need in addition, so it can hold more than was handed over.
fn undelivered(stats: &openbats::ConnectionStats) -> u64 {
    stats.buffers.send_bytes.min(stats.messages.bytes_sent)
}

/// Waits for the end as long as there is progress.
fn finish(connection: &Connection) -> Result<()> {
    let clock = Clock::start();
    let (mut min_waiting, mut last_progress) = (u64::MAX, Duration::ZERO);
    let mut packets_received = 0;
    let mut finishing = std::pin::pin!(connection.finish());
    loop {
        if let Ok(finished) = finishing.as_mut().wait_for(POLL_INTERVAL) {
            let took = clock.elapsed();
            if took > SLOW_CLOSE {
                let stats = connection.stats();
                tracing::debug!(
                    remote = %connection.remote_addr(), ?took, ?last_progress, ?stats, "slow close"
                );
            }
            return finished.context("the connection failed before all data had arrived");
        }
        let stats = connection.stats();
        let waiting = undelivered(&stats);
        let now = clock.elapsed();
        // Under heavy loss the peer can report innovative packets for long before a message is
        // complete.
        if waiting < min_waiting || stats.packets.received > packets_received {
            (min_waiting, packets_received) = (waiting.min(min_waiting), stats.packets.received);
            last_progress = now;
        }
        if now - last_progress > DRAIN_STALL_TIMEOUT || now > DRAIN_TIMEOUT {
            bail!("{waiting} bytes had not arrived after {:.0} s", now.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_kernel_memory_ends_no_stream() {
        use nix::errno::Errno;
        let ends = |code: Errno| wait_after(std::io::Error::from(code)).is_err();
        for code in [Errno::ENOBUFS, Errno::ENOMEM, Errno::EAGAIN, Errno::EINTR] {
            assert!(!ends(code), "{code}");
        }
        for code in [Errno::ECONNREFUSED, Errno::EMSGSIZE, Errno::EBADF] {
            assert!(ends(code), "{code}");
        }
    }

    #[test]
    fn undelivered_bytes_never_exceed_sent_bytes() {
        let of = |send_buffer_bytes: u64, message_bytes_sent: u64| {
            let mut stats = openbats::ConnectionStats::default();
            stats.buffers.send_bytes = send_buffer_bytes;
            stats.messages.bytes_sent = message_bytes_sent;
            undelivered(&stats)
        };
        assert_eq!((of(1_200, 1_000), of(300, 1_000), of(0, 0)), (1_000, 300, 0));
    }

    #[test]
    fn an_unspecified_local_address_is_reported_as_the_one_in_use() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (local, remote, shown) in [
            ("0.0.0.0:7", "127.0.0.1:9", "127.0.0.1:7"),
            ("[::]:7", "127.0.0.1:9", "127.0.0.1:7"),
            ("[::]:7", "[::1]:9", "[::1]:7"),
            ("127.0.0.2:7", "127.0.0.1:9", "127.0.0.2:7"),
        ] {
            assert_eq!(local_towards(address(local), address(remote)), address(shown), "{local}");
        }
    }
}
