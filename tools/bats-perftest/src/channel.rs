//! What a publisher sends to: a connection to one subscriber, or a UDP socket.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Result, anyhow};
use bytes::Bytes;
use openbats::{Connection, Endpoint, Goal, Mode, TransportConfig, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

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
    /// Sends a message; waits for a moment if the connection takes no more.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn send(&self, message: &Bytes) -> Result<Sent> {
        match self {
            Self::Session(connection) => {
                match connection.send(message.clone()).wait_for(SEND_LIMIT) {
                    Err(_) => Ok(Sent::Blocked),
                    Ok(result) => Ok(result.map(|()| Sent::Done)?),
                }
            }
            Self::Datagrams { socket, group, .. } => {
                let result = match group {
                    Some(group) => socket.send_to(message, group),
                    None => socket.send(message),
                };
                match result {
                    Ok(_) => Ok(Sent::Done),
                    Err(error) => datagram_error(&error).map(|()| Sent::Done),
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
            Self::Session(connection) => {
                // Without the set-up of a wait: most messages of a test have arrived already.
                if let Some(message) = connection.try_recv() {
                    return Ok(Some(message));
                }
                if limit.is_zero() {
                    return match connection.close_reason() {
                        Some(reason) => Err(anyhow!("connection closed: {reason}")),
                        None => Ok(None),
                    };
                }
                match connection.recv().wait_for(limit) {
                    Err(_) => Ok(None),
                    Ok(Ok(Some(message))) => Ok(Some(message)),
                    Ok(Ok(None)) => Err(anyhow!("the peer has finished")),
                    Ok(Err(error)) => Err(error.into()),
                }
            }
            Self::Datagrams { socket, busy_poll, .. } => {
                socket.set_read_timeout(Some(limit.max(Duration::from_micros(1))))?;
                poll_busily(socket, (*busy_poll).min(limit));
                // A new buffer of this size for each datagram would take longer than the system
                // takes to receive it.
                RECEIVE_BUFFER.with_borrow_mut(|buffer| match socket.recv(buffer) {
                    Ok(length) => Ok(Some(Bytes::copy_from_slice(&buffer[..length]))),
                    Err(error) => receive_error(&error).map(|()| None),
                })
            }
        }
    }

    pub(crate) fn is_raw(&self) -> bool {
        matches!(self, Self::Datagrams { .. })
    }

    /// Waits until the messages sent have arrived, and closes the connection.
    pub(crate) fn close(&self) {
        if let Self::Session(connection) = self {
            let _ = connection.finish().wait_for(Duration::from_secs(1));
            connection.close(0, "");
        }
    }
}

/// Looks for a datagram for at most `limit`, without a sleep.
pub(crate) fn poll_busily(socket: &UdpSocket, limit: Duration) {
    if limit.is_zero() {
        return;
    }
    let clock = Clock::start();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    while clock.elapsed() < limit {
        let mut files = [PollFd::new(socket, PollFlags::IN)];
        if poll(&mut files, Some(&now)).is_ok_and(|count| count > 0) {
            return;
        }
        std::hint::spin_loop();
    }
}

/// Passes on errors of a socket that do not mean a lost datagram or a time limit. That a port is
/// unreachable is no error: the peer may not have started yet, and keep-alives find one that died.
/// Lack of kernel memory loses a datagram that is sent, and delays one that is received.
pub(crate) fn datagram_error(error: &std::io::Error) -> Result<()> {
    match error.kind() {
        ErrorKind::WouldBlock
        | ErrorKind::TimedOut
        | ErrorKind::ConnectionRefused
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
    fn lack_of_kernel_memory_ends_no_test() {
        for code in [Errno::ENOBUFS, Errno::ENOMEM, Errno::EAGAIN, Errno::ECONNREFUSED] {
            assert!(datagram_error(&code.into()).is_ok(), "{code}");
            assert!(receive_error(&code.into()).is_ok(), "{code}");
        }
        for code in [Errno::EMSGSIZE, Errno::EBADF] {
            assert!(datagram_error(&code.into()).is_err(), "{code}");
            assert!(receive_error(&code.into()).is_err(), "{code}");
        }
    }
}
