//! The data half of a connection: what its mode makes of messages and symbols.

mod incoming;
mod outgoing;

pub(super) use incoming::{Incoming, TimelyIncoming};
pub(super) use outgoing::Outgoing;

use crate::session::Inbox;

/// There once the peer's parameters are known.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
    /// Complete messages that the application has not taken.
    pub(super) inbox: Inbox,
    /// Largest message that the peer accepts.
    pub(super) peer_max_message: usize,
    /// What the peer's upper layer said.
    pub(super) peer_application: u8,
    /// Largest symbol that both ends agreed on.
    pub(super) max_symbol_size: usize,
}

/// What a flow had in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) symbols: u64,
    pub(super) messages: u64,
}
