//! What carries the messages of an established connection.

pub(crate) mod udp;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openbats::{CloseReason, ConnectionStats, Mode, RecvError, SendError};

use crate::event::{Code, Failure};

/// Largest ideal length: programs of the original have buffers of 150,000 octets.
const MOST_IDEAL: u32 = 150_000;
/// Symbols in a message of the ideal length: calls cost little beside so many packets.
const SYMBOLS_PER_MESSAGE: u32 = 100;
/// What a datagram of QUIC holds on every path, and more than programs of the original need.
const LEAST_DATAGRAM: u32 = 1_024;
/// Octets of a packet that are not message data.
const PACKET_OVERHEAD: u32 = 64;

/// The next of what comes in.
#[derive(Debug)]
pub(crate) enum Incoming {
    Message(Bytes),
    /// The peer said that it sends no more.
    Finished,
    Lost(Loss),
}

/// How a connection ended.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    pub(crate) how: How,
    pub(crate) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// This side closed it.
    Here,
    /// The peer closed it.
    Peer,
    /// Nothing was heard for the idle time-out.
    Idle,
    /// The handshake did not finish in time.
    TimedOut,
    /// Something broke.
    Broken,
}

impl From<CloseReason> for Loss {
    fn from(reason: CloseReason) -> Self {
        let how = match &reason {
            CloseReason::Local => How::Here,
            // Over TCP a peer that goes without a word is seen to go.
            CloseReason::Peer { .. } | CloseReason::Lost(_) => How::Peer,
            CloseReason::IdleTimeout(_) => How::Idle,
            CloseReason::HandshakeTimeout => How::TimedOut,
            _ => How::Broken,
        };
        Self { how, text: reason.to_string() }
    }
}

/// Why a message was not taken.
#[derive(Debug)]
pub(crate) enum Refusal {
    Full,
    Failed(Failure),
}

fn refusal(error: SendError) -> Refusal {
    let code = match &error {
        SendError::Blocked(_) => return Refusal::Full,
        SendError::Closed(_) | SendError::Finished => Code::ConnectionClosed,
        SendError::TooLarge { .. } => Code::InvalidParam,
        _ => Code::SendFailed,
    };
    Refusal::Failed(Failure::new(code, error.to_string()))
}

/// An established connection of one of the modes.
#[derive(Clone)]
pub(crate) enum Link {
    /// All modes but 11.
    Bats(openbats::Connection),
    Udp(Arc<udp::Udp>),
}

impl Link {
    pub(crate) fn try_send(
        &self,
        message: &[u8],
        deadline: Option<Duration>,
    ) -> Result<(), Refusal> {
        match self {
            Self::Bats(connection) => {
                let message = Bytes::copy_from_slice(message);
                match deadline {
                    Some(deadline) => connection.try_send_within(message, deadline),
                    None => connection.try_send(message),
                }
                .map_err(refusal)
            }
            // It leaves now or never.
            Self::Udp(udp) => udp.try_send(message),
        }
    }

    /// Sends when there is room.
    pub(crate) async fn send(&self, message: Bytes) -> Result<(), Failure> {
        match self {
            Self::Bats(connection) => {
                connection.send(message).await.map_err(|error| match refusal(error) {
                    Refusal::Failed(failure) => failure,
                    Refusal::Full => Failure::new(Code::SendFailed, "no room"),
                })
            }
            Self::Udp(_) => Err(Failure::new(Code::SendFailed, "not a reliable mode")),
        }
    }

    /// Whether what is sent arrives, and the sender learns that it has.
    pub(crate) fn is_reliable(&self) -> bool {
        match self {
            Self::Bats(connection) => connection.is_reliable(),
            Self::Udp(_) => false,
        }
    }

    pub(crate) fn is_compressed(&self) -> bool {
        match self {
            Self::Bats(connection) => connection.is_compressed(),
            Self::Udp(_) => false,
        }
    }

    pub(crate) async fn recv(&self) -> Incoming {
        match self {
            Self::Bats(connection) => match connection.recv().await {
                Ok(Some(message)) => Incoming::Message(message),
                Ok(None) => Incoming::Finished,
                Err(RecvError::Closed(reason)) => Incoming::Lost(reason.into()),
                Err(error) => Incoming::Lost(Loss { how: How::Broken, text: error.to_string() }),
            },
            Self::Udp(udp) => udp.recv().await,
        }
    }

    /// A message that is there already.
    pub(crate) fn try_recv(&self) -> Option<Bytes> {
        match self {
            Self::Bats(connection) => connection.try_recv(),
            Self::Udp(udp) => udp.try_recv(),
        }
    }

    /// Done when there is room after a refusal, or no hope of it.
    pub(crate) async fn writable(&self) {
        match self {
            Self::Bats(connection) => drop(connection.writable().await),
            Self::Udp(udp) => udp.writable().await,
        }
    }

    /// Done when the peer has everything; `false` if it will not get it.
    pub(crate) async fn flush(&self) -> bool {
        match self {
            Self::Bats(connection) => connection.flush().await.is_ok(),
            Self::Udp(_) => true,
        }
    }

    /// Says that no more follows and waits until the peer has everything.
    pub(crate) async fn finish(&self) {
        match self {
            Self::Bats(connection) => drop(connection.finish().await),
            Self::Udp(_) => {}
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::Bats(connection) => connection.close(0, ""),
            Self::Udp(udp) => udp.close(),
        }
    }

    /// Whether the connection has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        match self {
            Self::Bats(connection) => connection.close_reason().is_some(),
            Self::Udp(udp) => udp.has_ended(),
        }
    }

    pub(crate) fn stats(&self) -> ConnectionStats {
        match self {
            Self::Bats(connection) => connection.stats(),
            Self::Udp(udp) => udp.stats(),
        }
    }

    pub(crate) fn remote(&self) -> SocketAddr {
        match self {
            Self::Bats(connection) => connection.remote_addr(),
            Self::Udp(udp) => udp.remote,
        }
    }

    /// The best size of one message now.
    pub(crate) fn ideal_length(&self) -> u32 {
        match self {
            Self::Bats(connection) if connection.mode() == Mode::Tcp => MOST_IDEAL,
            // A datagram of QUIC holds no more.
            Self::Bats(connection)
                if connection.mode() == Mode::Quic && !connection.is_reliable() =>
            {
                let longest = connection.longest_message().and_then(|len| u32::try_from(len).ok());
                longest.unwrap_or(LEAST_DATAGRAM).clamp(LEAST_DATAGRAM, MOST_IDEAL)
            }
            Self::Bats(connection) => ideal_length(connection.stats().path_mtu),
            Self::Udp(udp) => udp.ideal_length(),
        }
    }
}

fn ideal_length(path_mtu: u16) -> u32 {
    let symbol = u32::from(path_mtu).saturating_sub(PACKET_OVERHEAD).max(1_000);
    (symbol * SYMBOLS_PER_MESSAGE).min(MOST_IDEAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ideal_length_is_what_programs_of_the_original_can_bear() {
        for mtu in [0, 576, 1_200, 1_252, 1_472, 9_000, u16::MAX] {
            let length = ideal_length(mtu);
            assert!(length > 361 && length <= 150_000, "{mtu}: {length}");
        }
        assert_eq!(ideal_length(1_472), 140_800);
    }
}
