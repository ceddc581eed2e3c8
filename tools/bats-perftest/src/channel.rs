//! What a publisher sends to: a connection to one subscriber, or a UDP socket.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::pin::pin;
use std::time::Duration;

use anyhow::{Result, anyhow};
use bytes::Bytes;
use openbats::{Connection, Endpoint, Goal, Mode, TransportConfig, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};

use crate::clock::Clock;

/// Time without any packet after which a peer counts as dead.
pub(crate) const DEAD_AFTER: Duration = Duration::from_millis(2_500);
/// Interval of keep-alives.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// Longest time that a send waits before it returns to its caller.
const SEND_LIMIT: Duration = Duration::from_millis(200);
/// Bytes that an unreliable connection queues: more would expire there.
const BEST_EFFORT_BUDGET: usize = 1 << 20;
/// Pause until the kernel may have memory again.
const MEMORY_PAUSE: Duration = Duration::from_micros(50);
/// Longest UDP payload.
const MAX_DATAGRAM: usize = 65_507;

thread_local! {
    static RECEIVE_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_DATAGRAM]);
}

/// A path to one subscriber, or with multicast to all.
#[derive(Debug)]
pub(crate) enum Channel {
    Session(Connection),
    /// A socket. It is connected unless there is a group to send to.
    Datagrams {
        socket: UdpSocket,
        group: Option<SocketAddr>,
        busy_poll: Duration,
        /// Whether a send waits for room in the buffer of the socket.
        waits: bool,
    },
}

/// The result of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Done,
    /// The connection takes no more for now.
    Blocked,
}

impl Channel {
    /// Sends a message; waits for a moment if the connection takes no more. Calls `on_attempt` each
    /// time before it hands over the message.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn send(&self, message: &Bytes, mut on_attempt: impl FnMut()) -> Result<Sent> {
        match self {
            Self::Session(connection) => {
                let mut sending = pin!(connection.send(message.clone()));
                let sending = poll_fn(|context| {
                    on_attempt();
                    sending.as_mut().poll(context)
                });
                match sending.wait_for(SEND_LIMIT) {
                    Err(_) => Ok(Sent::Blocked),
                    Ok(result) => Ok(result.map(|()| Sent::Done)?),
                }
            }
            Self::Datagrams { socket, group, waits, .. } => {
                on_attempt();
                let flags = if *waits { SendFlags::empty() } else { SendFlags::DONTWAIT };
                let result = match group {
                    Some(group) => rustix::net::sendto(socket, message, flags, group),
                    None => rustix::net::send(socket, message, flags),
                };
                match result {
                    Ok(_) => Ok(Sent::Done),
                    Err(error) => datagram_error(&error.into()).map(|()| Sent::Done),
                }
            }
        }
    }

    /// Receives a message, if one arrives within `limit`.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn receive(&self, limit: Duration) -> Result<Option<Bytes>> {
        match self {
            Self::Session(connection) if limit.is_zero() => {
                match (connection.try_recv(), connection.close_reason()) {
                    (None, Some(reason)) => Err(anyhow!("connection closed: {reason}")),
                    (message, _) => Ok(message),
                }
            }
            Self::Session(connection) => match connection.recv().wait_for(limit) {
                Err(_) => Ok(None),
                Ok(Ok(Some(message))) => Ok(Some(message)),
                Ok(Ok(None)) => Err(anyhow!("the peer has finished")),
                Ok(Err(error)) => Err(error.into()),
            },
            Self::Datagrams { socket, busy_poll, .. } => {
                let flags = match limit.is_zero() {
                    true => RecvFlags::DONTWAIT,
                    false => {
                        socket.set_read_timeout(Some(limit))?;
                        poll_busily(socket, (*busy_poll).min(limit));
                        RecvFlags::empty()
                    }
                };
                // A new buffer of this size for each datagram would take longer than the system
                // takes to receive it.
                RECEIVE_BUFFER.with_borrow_mut(|buffer| {
                    match rustix::net::recv(socket, &mut buffer[..], flags) {
                        Ok((_, length)) => {
                            Ok(Some(Bytes::copy_from_slice(&buffer[..length.min(MAX_DATAGRAM)])))
                        }
                        Err(error) => receive_error(&error.into()).map(|()| None),
                    }
                })
            }
        }
    }

    /// Where messages go, for the user.
    pub(crate) fn destination(&self) -> String {
        let address = match self {
            Self::Session(connection) => Some(connection.remote_addr()),
            Self::Datagrams { group: Some(group), .. } => Some(*group),
            Self::Datagrams { socket, .. } => socket.peer_addr().ok(),
        };
        address.map_or_else(|| "a subscriber".to_owned(), |address| address.to_string())
    }

    pub(crate) fn is_raw(&self) -> bool {
        matches!(self, Self::Datagrams { .. })
    }

    /// Closes a connection that is not used, and says why.
    pub(crate) fn refuse(&self, reason: &str) {
        if let Self::Session(connection) = self {
            connection.close(1, reason);
        }
    }

    /// Waits until the messages sent have arrived, and closes the connection.
    pub(crate) fn close(&self) {
        if let Self::Session(connection) = self {
            let _ = connection.finish().wait_for(Duration::from_secs(1));
            connection.close(0, "");
        }
    }
}

/// Waits for at most `limit` until a datagram has arrived at one of the sockets.
pub(crate) fn wait_for_datagram(channels: &[Channel], limit: Duration) {
    let mut files: Vec<PollFd<'_>> = channels
        .iter()
        .filter_map(|channel| match channel {
            Channel::Datagrams { socket, .. } => Some(PollFd::new(socket, PollFlags::IN)),
            Channel::Session(_) => None,
        })
        .collect();
    // Whatever ends the wait, the caller looks.
    let _ = Timespec::try_from(limit).map(|limit| poll(&mut files, Some(&limit)));
}

/// Waits for at most `limit` until a datagram has arrived; returns whether one has.
pub(crate) fn wait_to_read(socket: &UdpSocket, limit: Duration) -> bool {
    let Ok(limit) = Timespec::try_from(limit) else { return false };
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit)).is_ok_and(|count| count > 0)
}

/// Looks for a datagram for at most `limit`, without a sleep.
pub(crate) fn poll_busily(socket: &UdpSocket, limit: Duration) {
    if limit.is_zero() {
        return;
    }
    let clock = Clock::start();
    while clock.elapsed() < limit && !wait_to_read(socket, Duration::ZERO) {
        std::hint::spin_loop();
    }
}

/// Passes on errors of a socket that do not mean a lost datagram or a time limit. That a port, a host or
/// a network is unreachable is no error: the peer may not have started yet, and keep-alives find one
/// that died.
/// Lack of kernel memory loses a datagram that is sent, and delays one that is received.
pub(crate) fn datagram_error(error: &std::io::Error) -> Result<()> {
    match error.kind() {
        ErrorKind::WouldBlock
        | ErrorKind::TimedOut
        | ErrorKind::ConnectionRefused
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable
        | ErrorKind::NetworkDown
        | ErrorKind::Interrupted => Ok(()),
        _ if openbats::is_lack_of_memory(error) => Ok(()),
        _ => Err(anyhow!("UDP socket: {error}")),
    }
}

/// As [`datagram_error`], after a receive call.
pub(crate) fn receive_error(error: &std::io::Error) -> Result<()> {
    if openbats::is_lack_of_memory(error) {
        // The datagram stays queued, so the next call would fail at once.
        std::thread::sleep(MEMORY_PAUSE);
    }
    datagram_error(error)
}

/// The configuration of connections at both ends.
pub(crate) fn transport_config(mode: Mode, goal: Goal) -> TransportConfig {
    let mut config = TransportConfig {
        mode,
        goal,
        idle_timeout: DEAD_AFTER,
        keep_alive: Some(KEEP_ALIVE),
        handshake_timeout: Duration::from_secs(1),
        ..TransportConfig::default()
    };
    if !mode.is_reliable() {
        config.send_budget = BEST_EFFORT_BUDGET;
    }
    config
}

/// Closes an endpoint after its last packets.
pub(crate) fn close_endpoint(endpoint: &Endpoint) {
    endpoint.shut_down(0, "");
    let _ = endpoint.idle().wait_for(Duration::from_millis(500));
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn a_host_that_is_not_up_yet_ends_no_test() {
        for code in [Errno::ECONNREFUSED, Errno::EHOSTUNREACH, Errno::ENETUNREACH, Errno::ENETDOWN]
        {
            assert!(datagram_error(&code.into()).is_ok(), "{code}");
        }
    }

    #[test]
    fn lack_of_kernel_memory_ends_no_test() {
        for code in [Errno::ENOBUFS, Errno::ENOMEM, Errno::EAGAIN] {
            assert!(datagram_error(&code.into()).is_ok(), "{code}");
            assert!(receive_error(&code.into()).is_ok(), "{code}");
        }
        for code in [Errno::EMSGSIZE, Errno::EBADF] {
            assert!(datagram_error(&code.into()).is_err(), "{code}");
            assert!(receive_error(&code.into()).is_err(), "{code}");
        }
    }
}
