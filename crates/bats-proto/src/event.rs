//! What an endpoint tells its driver about its connections.

use crate::error::CloseReason;

/// Something that happened on one connection.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A peer's connection is established (server side); the handle is new.
    Accepted,
    /// The handshake is done and data may flow (client side).
    Connected,
    /// [`Endpoint::recv`](crate::Endpoint::recv) has at least one message, or the end of the
    /// peer's messages.
    Readable,
    /// [`Endpoint::send`](crate::Endpoint::send) had refused a message for want of budget and
    /// would accept one now.
    Writable,
    /// Everything handed to `send` so far, and `finish` if it was called, has arrived at the peer.
    AllAcknowledged,
    /// A session across relays has received a symbol that was altered on the way: a relay lies or is
    /// broken. It is not delivered, and asked for again. Told once; see
    /// [`ConnectionStats::symbols_altered`](crate::ConnectionStats::symbols_altered).
    Altered,
    /// The connection is over; the handle is dead after this event.
    Closed(CloseReason),
}
