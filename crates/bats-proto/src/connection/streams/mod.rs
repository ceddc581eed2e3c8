//! Sending and receiving of messages, by mode.

mod incoming;
mod outgoing;

pub(super) use incoming::{Incoming, TimelyIncoming};
pub(super) use outgoing::Outgoing;

use crate::session::Inbox;

/// Both directions of a connection; created when the peer's parameters are known.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
    /// Complete messages that the application has not taken.
    pub(super) inbox: Inbox,
    /// Largest message that the peer accepts.
    pub(super) peer_max_message: usize,
    /// Bits from the peer's upper layer; see
    /// [`TransportConfig::application`](crate::TransportConfig::application).
    pub(super) peer_application: u8,
    /// Largest symbol in bytes that both ends accept.
    pub(super) max_symbol_size: usize,
}

/// Totals of a finished flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) symbols: u64,
    pub(super) messages: u64,
}
