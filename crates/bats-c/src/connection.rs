//! An established connection of `openbats`, with the results that sessions need.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use openbats::{CloseReason, ConnectionStats, Fingerprint, Mode, RecvError, SendError};

use crate::event::{Code, Failure};

/// Maximum ideal length in bytes: programs of the original SDK have buffers of this size.
const MAX_IDEAL_LENGTH: u32 = 150_000;
/// Symbols in a message of the ideal length, enough to make the cost of a call small.
const SYMBOLS_PER_MESSAGE: u32 = 100;
/// Bytes that fit in a QUIC datagram on every path; more than programs of the original SDK need.
const MIN_DATAGRAM: u32 = 1_024;
/// Bytes of a packet in addition to message data.
const PACKET_OVERHEAD: u32 = 64;

/// Result of a receive.
#[derive(Debug)]
pub(crate) enum Incoming {
    Message(Bytes),
    /// The peer has finished sending.
    Finished,
    Closed(CloseCause),
}

/// Why a connection ended.
#[derive(Clone, Debug)]
pub(crate) struct CloseCause {
    pub(crate) kind: CloseKind,
    pub(crate) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseKind {
    /// This side closed it.
    Local,
    /// The peer closed it, or became unreachable.
    Peer,
    /// The idle time-out expired.
    Idle,
    /// The handshake timed out.
    TimedOut,
    /// Any other error.
    /// The file of known servers has another certificate, or cannot be used.
    Untrusted,
    Error,
}

impl From<CloseReason> for CloseCause {
    fn from(reason: CloseReason) -> Self {
        let kind = match &reason {
            CloseReason::Local => CloseKind::Local,
            // TCP reports a peer that disappears without a close, and ICMP may report a closed UDP
            // port.
            CloseReason::Peer { .. } | CloseReason::Lost(_) | CloseReason::Refused => {
                CloseKind::Peer
            }
            CloseReason::IdleTimeout(_) => CloseKind::Idle,
            CloseReason::HandshakeTimeout => CloseKind::TimedOut,
            _ => CloseKind::Error,
        };
        Self { kind, text: reason.to_string() }
    }
}

/// Why a message was not accepted.
#[derive(Debug)]
pub(crate) enum Rejection {
    Full,
    Failed(Failure),
}

fn rejection(error: SendError) -> Rejection {
    let code = match &error {
        SendError::Blocked(_) => return Rejection::Full,
        SendError::Closed(_) | SendError::Finished => Code::ConnectionClosed,
        SendError::TooLarge { .. } => Code::InvalidParam,
        _ => Code::SendFailed,
    };
    Rejection::Failed(Failure::new(code, error.to_string()))
}

/// An established connection of any mode.
#[derive(Clone)]
pub(crate) struct Connection(openbats::Connection);

impl Connection {
    pub(crate) fn new(connection: openbats::Connection) -> Self {
        Self(connection)
    }

    pub(crate) fn try_send(
        &self,
        message: &[u8],
        deadline: Option<Duration>,
    ) -> Result<(), Rejection> {
        let message = Bytes::copy_from_slice(message);
        match deadline {
            Some(deadline) => self.0.try_send_within(message, deadline),
            None => self.0.try_send(message),
        }
        .map_err(rejection)
    }

    /// Sends a message, and waits for space in the send buffer.
    pub(crate) async fn send(&self, message: Bytes) -> Result<(), Failure> {
        self.0.send(message).await.map_err(|error| match rejection(error) {
            Rejection::Failed(failure) => failure,
            Rejection::Full => Failure::new(Code::SendFailed, "the send buffer is full"),
        })
    }

    /// Whether the mode is reliable and reports acknowledgements.
    pub(crate) fn is_reliable(&self) -> bool {
        self.0.is_reliable()
    }

    pub(crate) fn peer_fingerprint(&self) -> Option<Fingerprint> {
        self.0.peer_fingerprint()
    }

    pub(crate) fn is_compressed(&self) -> bool {
        self.0.is_compressed()
    }

    pub(crate) async fn recv(&self) -> Incoming {
        match self.0.recv().await {
            Ok(Some(message)) => Incoming::Message(message),
            Ok(None) => Incoming::Finished,
            Err(RecvError::Closed(reason)) => Incoming::Closed(reason.into()),
            Err(error) => {
                Incoming::Closed(CloseCause { kind: CloseKind::Error, text: error.to_string() })
            }
        }
    }

    /// A message that has already arrived.
    pub(crate) fn try_recv(&self) -> Option<Bytes> {
        self.0.try_recv()
    }

    /// Waits until the send buffer has space after a refused message, or the connection has ended.
    pub(crate) async fn writable(&self) {
        let _ = self.0.writable().await;
    }

    /// Waits until the peer has acknowledged everything; `false` if the connection has ended
    /// before.
    pub(crate) async fn flush(&self) -> bool {
        self.0.flush().await.is_ok()
    }

    /// Finishes sending, and waits until the peer has acknowledged everything.
    pub(crate) async fn finish(&self) {
        let _ = self.0.finish().await;
    }

    pub(crate) async fn open_channel(&self) -> Result<openbats::Channel, openbats::ChannelError> {
        self.0.open_channel().await
    }

    pub(crate) async fn accept_channel(&self) -> Result<openbats::Channel, openbats::ChannelError> {
        self.0.accept_channel().await
    }

    pub(crate) fn close(&self) {
        self.0.close(0, "");
    }

    /// Whether the connection is closed.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.close_reason().is_some()
    }

    pub(crate) fn stats(&self) -> ConnectionStats {
        self.0.stats()
    }

    pub(crate) fn remote(&self) -> SocketAddr {
        self.0.remote_addr()
    }

    /// The best message size now, in bytes.
    pub(crate) fn ideal_length(&self) -> u32 {
        match self.0.mode() {
            Mode::Tcp => MAX_IDEAL_LENGTH,
            // A message must fit in one QUIC datagram.
            Mode::Quic if !self.0.is_reliable() => {
                let longest = self.0.longest_message().and_then(|len| u32::try_from(len).ok());
                longest.unwrap_or(MIN_DATAGRAM).clamp(MIN_DATAGRAM, MAX_IDEAL_LENGTH)
            }
            // Largest UDP payload without IP fragmentation on Ethernet.
            Mode::Udp if self.0.remote_addr().is_ipv4() => 1_472,
            Mode::Udp => 1_452,
            _ => ideal_length(self.0.stats().path.mtu),
        }
    }
}

fn ideal_length(path_mtu: u16) -> u32 {
    let symbol = u32::from(path_mtu).saturating_sub(PACKET_OVERHEAD).max(1_000);
    (symbol * SYMBOLS_PER_MESSAGE).min(MAX_IDEAL_LENGTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ideal_length_fits_the_buffers_of_programs_of_the_original_sdk() {
        for mtu in [0, 576, 1_200, 1_252, 1_472, 9_000, u16::MAX] {
            let length = ideal_length(mtu);
            assert!(length > 361 && length <= 150_000, "{mtu}: {length}");
        }
        assert_eq!(ideal_length(1_472), 140_800);
    }
}
