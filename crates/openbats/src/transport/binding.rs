//! The interface of a transport binding: what the application does with its connections, and what it outputs.

use std::net::SocketAddr;
use std::time::Duration;

use bats_proto::{ConnectionStats, Event, Mode, PeerLimits, SendError, Timestamp, Transmit};
use bytes::Bytes;

use crate::slot::RemoteNode;

/// What the I/O thread must do next; `Id` identifies a connection.
#[derive(Debug)]
pub(crate) enum Output<Id> {
    Transmit(Transmit),
    Event(Id, Event),
    Timeout(Option<Timestamp>),
}

impl<Id> Output<Id> {
    /// The same, with the connection identified by what `handle` returns.
    pub(super) fn with_handle<T>(self, handle: impl FnOnce(Id) -> T) -> Output<T> {
        match self {
            Self::Transmit(transmit) => Output::Transmit(transmit),
            Self::Event(id, event) => Output::Event(handle(id), event),
            Self::Timeout(at) => Output::Timeout(at),
        }
    }
}

/// The connections of one transport binding: its output and the calls for a connection. What comes in (datagrams,
/// timers, errors) differs between the bindings, and [`Transports`](super::Transports) hands it out.
pub(super) trait Transport {
    /// Identifies a connection of this binding.
    type Id;

    /// Returns the next datagram, event or timeout.
    fn poll(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Output<Self::Id>;

    /// Accepts a message for sending. Connections that deliver reliably ignore the deadline; without one, that of
    /// the configuration applies.
    fn send(
        &mut self,
        now: Timestamp,
        id: Self::Id,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<(), SendError>;

    /// Ends the messages of this end.
    fn finish(&mut self, now: Timestamp, id: Self::Id) -> Result<(), SendError>;

    /// The next message that has arrived, if there is one.
    fn recv(&mut self, now: Timestamp, id: Self::Id) -> Option<Bytes>;

    /// Whether the peer has finished and the application has taken every message.
    fn is_finished(&self, id: Self::Id) -> bool;

    /// Whether nothing is left to send or repair; without acknowledgements (UDP) whether everything was sent.
    fn is_all_acknowledged(&self, id: Self::Id) -> bool;

    /// Closes a connection with an application's code and text for the peer, as far as the binding transports them.
    fn close(&mut self, now: Timestamp, id: Self::Id, code: u64, reason: &str);

    /// Statistics; `None` if the connection is unknown.
    fn stats(&self, now: Timestamp, id: Self::Id) -> Option<ConnectionStats>;

    /// Received bytes that the application has not taken.
    fn receive_buffer_bytes(&self, id: Self::Id) -> usize;

    /// Marks a peer as trusted.
    fn trust_peer(&mut self, _id: Self::Id) {}

    fn remote(&self, id: Self::Id) -> Option<SocketAddr>;

    /// The other end of a session between nodes.
    fn remote_node(&self, _id: Self::Id) -> Option<RemoteNode> {
        None
    }

    /// The connection's local address, if it can differ from the endpoint's.
    fn local(&self, _id: Self::Id) -> Option<SocketAddr> {
        None
    }

    fn mode(&self, id: Self::Id) -> Option<Mode>;

    /// The peer's limits, if it has stated them.
    fn peer_limits(&self, id: Self::Id) -> Option<PeerLimits>;

    /// Size in bytes of the longest datagram that can be sent now, if messages of a reliable mode go as datagrams.
    fn longest_datagram(&self, id: Self::Id) -> Option<usize>;

    /// The fingerprint of the peer's certificate, if it has sent one.
    fn peer_fingerprint(&self, id: Self::Id) -> Option<[u8; 32]>;

    fn connection_count(&self) -> usize;
}
