//! Events of connections.

use crate::error::CloseReason;
use crate::session::channel::ChannelId;

/// An event of one connection.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A connection was accepted and is established (server side); the handle is new.
    Accepted,
    /// The connection is established (client side). If the server asked for this end's certificate, it
    /// has accepted it, which takes a round trip more.
    Connected,
    /// [`Endpoint::recv`](crate::Endpoint::recv) has at least one message, or the end of the
    /// peer's messages.
    Readable,
    /// [`Endpoint::send`](crate::Endpoint::send) has refused a message for lack of budget and would
    /// accept it now.
    Writable,
    /// Everything handed to `send` so far, and `finish` if it was called, has arrived at the peer.
    AllAcknowledged,
    /// An end-to-end session received a polluted symbol: a relay misbehaves or is broken. The
    /// symbol is not delivered; reliable modes request it again. Reported once; see
    /// [`CodingStats::symbols_polluted`](crate::CodingStats::symbols_polluted).
    PollutionDetected,
    /// The peer has opened a channel: [`Endpoint::accept_channel`](crate::Endpoint::accept_channel)
    /// returns at least one.
    ChannelIncoming,
    /// [`Endpoint::open_channel`](crate::Endpoint::open_channel) has opened none for lack of the
    /// peer's permission and would open one now.
    ChannelAvailable,
    /// [`Endpoint::read_channel`](crate::Endpoint::read_channel) has bytes, the end or a reset.
    ChannelReadable(ChannelId),
    /// [`Endpoint::write_channel`](crate::Endpoint::write_channel) has refused bytes for lack of room
    /// and would accept some now, or the peer stopped reading.
    ChannelWritable(ChannelId),
    /// The connection is closed; the handle is invalid after this event.
    Closed(CloseReason),
}
