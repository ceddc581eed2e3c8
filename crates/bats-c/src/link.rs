//! What carries the messages of an established connection.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use openbats::{CloseReason, ConnectionStats, Mode, RecvError, SendError};

use crate::event::{Code, Failure};

/// Largest ideal length: programs of the original have buffers of 150,000 bytes.
const MOST_IDEAL: u32 = 150_000;
/// Symbols in a message of the ideal length: calls cost little beside so many packets.
const SYMBOLS_PER_MESSAGE: u32 = 100;
/// What a datagram of QUIC holds on every path, and more than programs of the original need.
const LEAST_DATAGRAM: u32 = 1_024;
/// Bytes of a packet that are not message data.
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
            // Over TCP a peer that goes without a word is seen to go, and over UDP the system may
            // say that there is nobody.
            CloseReason::Peer { .. } | CloseReason::Lost(_) | CloseReason::Refused => How::Peer,
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
pub(crate) struct Link(openbats::Connection);

impl Link {
    pub(crate) fn new(connection: openbats::Connection) -> Self {
        Self(connection)
    }

    pub(crate) fn try_send(
        &self,
        message: &[u8],
        deadline: Option<Duration>,
    ) -> Result<(), Refusal> {
        let message = Bytes::copy_from_slice(message);
        match deadline {
            Some(deadline) => self.0.try_send_within(message, deadline),
            None => self.0.try_send(message),
        }
        .map_err(refusal)
    }

    /// Sends when there is room.
    pub(crate) async fn send(&self, message: Bytes) -> Result<(), Failure> {
        self.0.send(message).await.map_err(|error| match refusal(error) {
            Refusal::Failed(failure) => failure,
            Refusal::Full => Failure::new(Code::SendFailed, "no room"),
        })
    }

    /// Whether what is sent arrives, and the sender learns that it has.
    pub(crate) fn is_reliable(&self) -> bool {
        self.0.is_reliable()
    }

    pub(crate) fn is_compressed(&self) -> bool {
        self.0.is_compressed()
    }

    pub(crate) async fn recv(&self) -> Incoming {
        match self.0.recv().await {
            Ok(Some(message)) => Incoming::Message(message),
            Ok(None) => Incoming::Finished,
            Err(RecvError::Closed(reason)) => Incoming::Lost(reason.into()),
            Err(error) => Incoming::Lost(Loss { how: How::Broken, text: error.to_string() }),
        }
    }

    /// A message that is there already.
    pub(crate) fn try_recv(&self) -> Option<Bytes> {
        self.0.try_recv()
    }

    /// Done when there is room after a refusal, or no hope of it.
    pub(crate) async fn writable(&self) {
        let _ = self.0.writable().await;
    }

    /// Done when the peer has everything; `false` if it will not get it.
    pub(crate) async fn flush(&self) -> bool {
        self.0.flush().await.is_ok()
    }

    /// Says that no more follows and waits until the peer has everything.
    pub(crate) async fn finish(&self) {
        let _ = self.0.finish().await;
    }

    pub(crate) fn close(&self) {
        self.0.close(0, "");
    }

    /// Whether the connection has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.close_reason().is_some()
    }

    pub(crate) fn stats(&self) -> ConnectionStats {
        self.0.stats()
    }

    pub(crate) fn remote(&self) -> SocketAddr {
        self.0.remote_addr()
    }

    /// The best size of one message now.
    pub(crate) fn ideal_length(&self) -> u32 {
        match self.0.mode() {
            Mode::Tcp => MOST_IDEAL,
            // A datagram of QUIC holds no more.
            Mode::Quic if !self.0.is_reliable() => {
                let longest = self.0.longest_message().and_then(|len| u32::try_from(len).ok());
                longest.unwrap_or(LEAST_DATAGRAM).clamp(LEAST_DATAGRAM, MOST_IDEAL)
            }
            // What passes an Ethernet without being cut.
            Mode::Udp if self.0.remote_addr().is_ipv4() => 1_472,
            Mode::Udp => 1_452,
            _ => ideal_length(self.0.stats().path_mtu),
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
