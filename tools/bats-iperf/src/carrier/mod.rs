//! What carries the messages of a stream: an OpenBATS connection, or the kernel's TCP or UDP for
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
use crate::transport::Transport;

/// How often a wait looks for an interrupt.
const SLICE: Duration = Duration::from_millis(200);
/// An end that takes longer is worth a line of the log.
const SLOW: Duration = Duration::from_secs(3);
/// How long nothing may arrive while a sender waits for the end of its data.
const STALL: Duration = Duration::from_secs(10);
/// How long a sender waits for the end of its data in all.
const DRAIN: Duration = Duration::from_secs(60);
/// Bytes that may always wait in a connection.
const MIN_BACKLOG: u64 = 256 << 10;

/// What sockets of this side are bound to, where it is not left to the system.
#[derive(Clone, Debug, Default)]
pub(crate) struct Local {
    pub(crate) ip: Option<IpAddr>,
    /// The name of an interface.
    pub(crate) device: Option<String>,
    /// The code point of what they send.
    pub(crate) dscp: u8,
}

impl Local {
    /// Binds a socket to the interface, if one is named, and marks what it sends.
    pub(crate) fn prepare(&self, socket: &impl AsFd) -> Result<()> {
        self.mark(socket)?;
        let Some(device) = &self.device else { return Ok(()) };
        #[cfg(target_os = "linux")]
        return socket2::SockRef::from(socket)
            .bind_device(Some(device.as_bytes()))
            .with_context(|| format!("the interface {device} cannot be used"));
        #[cfg(not(target_os = "linux"))]
        {
            let _ = socket;
            bail!("sockets cannot be bound to the interface {device} on this system")
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
                // It reaches IPv4, too.
                socket2::Domain::IPV6 => {
                    socket.set_tclass_v6(field).and_then(|()| socket.set_tos_v4(field))
                }
                _ => socket.set_tos_v4(field),
            };
            marked.context("packets cannot be marked")
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = socket;
            bail!("packets cannot be marked on this system")
        }
    }
}

/// What came, if something did.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Received {
    Message(Bytes),
    /// The other side has sent its last message.
    End,
    /// Nothing came in time.
    Nothing,
}

/// How a connection stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    /// So much waits in it that more would only wait longer.
    pub(crate) is_backlogged: bool,
    /// Packets of the other side so far, while something waits for its acknowledgement.
    pub(crate) heard: Option<u64>,
}

/// One stream. Each direction is used by one thread.
#[derive(Debug)]
pub(crate) enum Pipe {
    Bats { connection: Connection, local: SocketAddr },
    Tcp(tcp::Pipe),
    Udp(udp::Pipe),
}

/// The time of a socket was over, or a signal came.
fn is_pause(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// The address that packets to `remote` leave from, where the endpoint has all of the host's.
fn local_towards(local: SocketAddr, remote: SocketAddr) -> SocketAddr {
    if !local.ip().is_unspecified() {
        return local;
    }
    let any: IpAddr = if remote.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    // Nothing is sent: the kernel only looks at its routes.
    let found = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(remote)?;
        socket.local_addr()
    });
    found.map_or(local, |found| SocketAddr::new(found.ip(), local.port()))
}

impl Pipe {
    /// A stream of OpenBATS.
    pub(crate) fn bats(connection: Connection) -> Self {
        let local = local_towards(connection.local_addr(), connection.remote_addr());
        Self::Bats { connection, local }
    }

    /// Hands a message over; `false` when there was no room for it in time. After `deadline` it is
    /// of no use; the kernel's carriers do not know that.
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
            Self::Tcp(pipe) => pipe.send(&message, limit),
            Self::Udp(pipe) => pipe.send(&message, limit),
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
            Self::Tcp(pipe) => pipe.recv(limit),
            Self::Udp(pipe) => pipe.recv(limit),
        }
    }

    /// How the connection stands. The kernel's carriers have queues of a fixed size and do not tell.
    pub(crate) fn look(&self) -> Look {
        let Self::Bats { connection, .. } = self else { return Look::default() };
        // The last figures of a connection that is over would never change.
        if connection.close_reason().is_some() {
            return Look::default();
        }
        let stats = connection.stats();
        // What the path carries in 50 ms, beside what is under way.
        let soon = stats.delivery_bps / 8 / 20;
        let is_reliable = connection.mode().is_reliable();
        let most = if is_reliable {
            (2 * stats.cwnd_bytes).saturating_add(soon).max(MIN_BACKLOG)
        } else {
            // Nothing is under way here, and what waits for long is too old when it leaves.
            soon
        };
        let is_due = is_reliable && stats.send_buffer_bytes > 0;
        Look {
            is_backlogged: stats.send_buffer_bytes > most,
            heard: is_due.then_some(stats.packets_received),
        }
    }

    /// Why nothing more can be sent, if that is so: what has no connection cannot tell of the other
    /// side's end.
    pub(crate) fn end(&self) -> Option<String> {
        match self {
            Self::Bats { connection, .. } => Some(connection.close_reason()?.to_string()),
            Self::Tcp(pipe) => pipe.end(),
            Self::Udp(pipe) => pipe.end(),
        }
    }

    /// Says that no more messages follow, and waits until all have arrived or come to nothing.
    pub(crate) fn finish(&self) -> Result<()> {
        match self {
            Self::Bats { connection, .. } => finish(connection),
            Self::Tcp(pipe) => pipe.finish(DRAIN),
            Self::Udp(pipe) => pipe.finish(),
        }
    }

    pub(crate) fn close(&self, why: &str) {
        match self {
            Self::Bats { connection, .. } => connection.close(1, why),
            Self::Tcp(pipe) => pipe.close(),
            Self::Udp(pipe) => pipe.close(),
        }
    }

    /// The connection's figures, where it is one of OpenBATS.
    pub(crate) fn transport(&self) -> Option<Transport> {
        match self {
            Self::Bats { connection, .. } => Some(Transport::from(&connection.stats())),
            Self::Tcp(_) | Self::Udp(_) => None,
        }
    }

    /// Bytes of messages that have come in, where the connection is one of OpenBATS.
    pub(crate) fn bytes_received(&self) -> Option<u64> {
        match self {
            Self::Bats { connection, .. } => Some(connection.stats().message_bytes_received),
            Self::Tcp(_) | Self::Udp(_) => None,
        }
    }

    /// The connection's mode, where it is one of OpenBATS.
    pub(crate) fn mode(&self) -> Option<Mode> {
        match self {
            Self::Bats { connection, .. } => Some(connection.mode()),
            Self::Tcp(_) | Self::Udp(_) => None,
        }
    }

    /// Messages that the other side had sent when it came to its end, where messages may be missing
    /// and both sides count them.
    pub(crate) fn messages_sent_by_peer(&self) -> Option<u64> {
        match self {
            Self::Bats { connection, .. } if !connection.mode().is_reliable() => {
                let stats = connection.stats();
                Some(stats.messages_received.saturating_add(stats.messages_lost))
            }
            Self::Udp(pipe) => pipe.messages_sent_by_peer(),
            _ => None,
        }
    }

    /// Local and remote address.
    pub(crate) fn addresses(&self) -> (SocketAddr, SocketAddr) {
        match self {
            Self::Bats { connection, local } => (*local, connection.remote_addr()),
            Self::Tcp(pipe) => pipe.addresses(),
            Self::Udp(pipe) => pipe.addresses(),
        }
    }
}

/// Waits for the end as long as something moves.
fn finish(connection: &Connection) -> Result<()> {
    let clock = Clock::start();
    let (mut least, mut moved) = (u64::MAX, Duration::ZERO);
    let mut finishing = std::pin::pin!(connection.finish());
    loop {
        if let Ok(finished) = finishing.as_mut().wait_for(SLICE) {
            let took = clock.elapsed();
            if took > SLOW {
                let stats = connection.stats();
                tracing::debug!(remote = %connection.remote_addr(), ?took, ?moved, ?stats, "slow end");
            }
            return finished.context("the connection broke before all data had arrived");
        }
        let waiting = connection.stats().send_buffer_bytes;
        let now = clock.elapsed();
        if waiting < least {
            (least, moved) = (waiting, now);
        }
        if now - moved > STALL || now > DRAIN {
            bail!("{waiting} bytes had not arrived after {:.0} s", now.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_all_is_shown_as_the_one_in_use() {
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
