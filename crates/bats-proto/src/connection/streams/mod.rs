//! Sending and receiving of messages, by mode.

mod incoming;
mod outgoing;
mod totals;

use bats_types::Timestamp;

pub(super) use incoming::{HandedUp, Incoming, TimelyIncoming};
pub(super) use outgoing::Outgoing;
pub(super) use totals::Totals;

use crate::crypto::SymbolKey;
use crate::flow::PathView;
use crate::session::channel::Channels;
use crate::session::{Inbox, SessionError};
use crate::wire::short_header::PacketKind;
use incoming::Taken;

/// Both directions of a connection; created when the peer's parameters are known.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
    /// Set in mode BRTP if both ends have channels.
    pub(super) channels: Option<Box<Channels>>,
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

impl Streams {
    /// Whether there is data to send.
    pub(super) fn has_data(&self) -> bool {
        self.outgoing.has_data() || self.channels.as_ref().is_some_and(|c| c.is_sendable())
    }

    /// Whether every message and every byte of the channels is acknowledged or expired.
    pub(super) fn is_all_acknowledged(&self) -> bool {
        let is_queued = |channels: &Channels| channels.is_sendable() || channels.queued_bytes() > 0;
        self.outgoing.is_all_acknowledged()
            && !self.channels.as_ref().is_some_and(|channels| is_queued(channels))
    }

    /// See [`Outgoing::poll`].
    pub(super) fn poll(
        &mut self,
        now: Timestamp,
        symbol_size: usize,
        path: &PathView,
        seal: Option<&mut SymbolKey>,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        let channels = self.channels.as_deref_mut();
        self.outgoing.poll(now, symbol_size, path, channels, seal, out)
    }

    /// See [`Incoming::take`].
    pub(super) fn take(
        &mut self,
        room: (usize, bool),
        open: Option<&mut SymbolKey>,
    ) -> Result<Taken, SessionError> {
        let channels = self.channels.as_deref_mut();
        let taken = self.incoming.take(&mut self.inbox, channels, room, open)?;
        if let Some(channels) = &self.channels {
            self.outgoing.set_message_credit(channels.message_credit());
        }
        Ok(taken)
    }
}
