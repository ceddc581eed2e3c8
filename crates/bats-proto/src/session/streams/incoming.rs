//! The receiving direction: decodes packets into symbols, reassembles messages, reports gaps.

use core::time::Duration;

use bats_types::Timestamp;

use super::mode::Receiving;
use super::rateless::RatelessIncoming;
use super::reliable::ReliableIncoming;
use super::taken::{Taken, TakenEarly};
use super::timely::TimelyIncoming;
use super::totals::Totals;
use crate::crypto::SymbolKey;
use crate::flow::{FlowError, ReceiverCounters, ResidualStats};
use crate::session::channel::Channels;
use crate::session::{Inbox, SessionError};
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;

/// The receiving direction of a session, by mode.
#[derive(Debug)]
pub(in crate::session) enum Incoming {
    /// BRTP.
    Reliable(ReliableIncoming),
    /// BRCTP.
    Rateless(RatelessIncoming),
    /// BTP and TRANSPARENT.
    Timely(TimelyIncoming),
}

/// Calls a method of the mode. The call is static: no call on the path of a packet is dynamic (ADR 0028).
macro_rules! in_mode {
    ($direction:expr, |$mode:ident| $call:expr) => {
        match $direction {
            Incoming::Reliable($mode) => $call,
            Incoming::Rateless($mode) => $call,
            Incoming::Timely($mode) => $call,
        }
    };
}

// A method that is not passed on would have its default in every mode.
#[deny(clippy::missing_trait_methods)]
impl Receiving for Incoming {
    fn trim(&mut self) {
        in_mode!(self, |mode| mode.trim())
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn on_packet(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        payload: &[u8],
        rtt: Duration,
    ) -> Result<(), FlowError> {
        in_mode!(self, |mode| mode.on_packet(now, kind, payload, rtt))
    }

    fn take(
        &mut self,
        inbox: &mut Inbox,
        channels: Option<&mut Channels>,
        room: (usize, bool),
        open: Option<&mut SymbolKey>,
    ) -> Result<Taken, SessionError> {
        in_mode!(self, |mode| mode.take(inbox, channels, room, open))
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn take_early(
        &mut self,
        payload: &[u8],
        inbox: &mut Inbox,
        budget: usize,
    ) -> Result<TakenEarly, SessionError> {
        in_mode!(self, |mode| mode.take_early(payload, inbox, budget))
    }

    fn record_early(&mut self, delivered: u32) {
        in_mode!(self, |mode| mode.record_early(delivered))
    }

    fn feedback_at(&self) -> Option<Timestamp> {
        in_mode!(self, |mode| mode.feedback_at())
    }

    fn feedback(&mut self, now: Timestamp, rtt: Duration) -> Option<RankFeedback> {
        in_mode!(self, |mode| mode.feedback(now, rtt))
    }

    fn raise_budget(&mut self, bytes: usize) {
        in_mode!(self, |mode| mode.raise_budget(bytes))
    }

    fn has_ready(&self) -> bool {
        in_mode!(self, |mode| mode.has_ready())
    }

    fn holds_blocks(&self, inbox: &Inbox) -> Option<bool> {
        in_mode!(self, |mode| mode.holds_blocks(inbox))
    }

    fn growth(&self) -> usize {
        in_mode!(self, |mode| mode.growth())
    }

    fn bytes_missing(&self) -> usize {
        in_mode!(self, |mode| mode.bytes_missing())
    }

    fn free_some(&mut self, inbox: &mut Inbox) -> bool {
        in_mode!(self, |mode| mode.free_some(inbox))
    }

    fn update_credit(
        &mut self,
        now: Timestamp,
        rtt: Duration,
        inbox: &Inbox,
        elsewhere: Option<usize>,
    ) -> bool {
        in_mode!(self, |mode| mode.update_credit(now, rtt, inbox, elsewhere))
    }

    fn credit(&mut self) -> Option<u64> {
        in_mode!(self, |mode| mode.credit())
    }

    fn on_end(&mut self, totals: Totals, until: Timestamp) {
        in_mode!(self, |mode| mode.on_end(totals, until))
    }

    fn next_timeout(&self) -> Option<Timestamp> {
        in_mode!(self, |mode| mode.next_timeout())
    }

    fn on_timeout(&mut self, now: Timestamp) {
        in_mode!(self, |mode| mode.on_timeout(now))
    }

    fn on_closed(&mut self) {
        in_mode!(self, |mode| mode.on_closed())
    }

    fn is_finished(&self) -> bool {
        in_mode!(self, |mode| mode.is_finished())
    }

    fn bytes_held(&self) -> usize {
        in_mode!(self, |mode| mode.bytes_held())
    }

    fn counters(&self) -> ReceiverCounters {
        in_mode!(self, |mode| mode.counters())
    }

    fn residual(&self) -> ResidualStats {
        in_mode!(self, |mode| mode.residual())
    }

    fn set_feedback_delay(&mut self, delay: Duration) {
        in_mode!(self, |mode| mode.set_feedback_delay(delay))
    }

    fn seals_blocks(&self) -> bool {
        in_mode!(self, |mode| mode.seals_blocks())
    }

    fn seen_end(&self) -> Option<u64> {
        in_mode!(self, |mode| mode.seen_end())
    }

    fn source<'a>(&self, payload: &'a [u8]) -> Option<(u64, &'a [u8])> {
        in_mode!(self, |mode| mode.source(payload))
    }
}
