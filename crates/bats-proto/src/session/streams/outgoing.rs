//! The sending direction: cuts messages into symbols and makes repairs after feedback.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::mode::Sending;
use super::rateless::RatelessOutgoing;
use super::reliable::ReliableOutgoing;
use super::timely::TimelyOutgoing;
use super::totals::Totals;
use crate::crypto::SymbolKey;
use crate::flow::{FlowError, PathView, SenderCounters};
use crate::session::channel::Channels;
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;

/// The sending direction of a session, by mode.
#[derive(Debug)]
pub(in crate::session) enum Outgoing {
    /// BRTP: reliable and ordered.
    Reliable(ReliableOutgoing),
    /// BRCTP: reliable and ordered, coded in blocks.
    Rateless(RatelessOutgoing),
    /// BTP and TRANSPARENT: messages with deadlines.
    Timely(TimelyOutgoing),
}

/// Calls a method of the mode. The call is static: no call on the path of a packet is dynamic (ADR 0028).
macro_rules! in_mode {
    ($direction:expr, |$mode:ident| $call:expr) => {
        match $direction {
            Outgoing::Reliable($mode) => $call,
            Outgoing::Rateless($mode) => $call,
            Outgoing::Timely($mode) => $call,
        }
    };
}

// A method that is not passed on would have its default in every mode.
#[deny(clippy::missing_trait_methods)]
impl Sending for Outgoing {
    fn is_finished(&self) -> bool {
        in_mode!(self, |mode| mode.is_finished())
    }

    fn trim(&mut self) {
        in_mode!(self, |mode| mode.trim())
    }

    fn finish(&mut self) {
        in_mode!(self, |mode| mode.finish())
    }

    fn end(&self) -> Option<Totals> {
        in_mode!(self, |mode| mode.end())
    }

    fn set_message_credit(&mut self, credit: u64) {
        in_mode!(self, |mode| mode.set_message_credit(credit))
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn push(&mut self, message: Bytes, expires: Timestamp) {
        in_mode!(self, |mode| mode.push(message, expires))
    }

    fn skip(&mut self, count: u64) {
        in_mode!(self, |mode| mode.skip(count))
    }

    fn queued_bytes(&self) -> usize {
        in_mode!(self, |mode| mode.queued_bytes())
    }

    fn flow_bytes(&self) -> usize {
        in_mode!(self, |mode| mode.flow_bytes())
    }

    fn bytes_held(&self) -> usize {
        in_mode!(self, |mode| mode.bytes_held())
    }

    fn waiting_bytes(&self) -> usize {
        in_mode!(self, |mode| mode.waiting_bytes())
    }

    fn unsent_bytes(&self) -> usize {
        in_mode!(self, |mode| mode.unsent_bytes())
    }

    fn set_link(&mut self, link: Option<u64>) {
        in_mode!(self, |mode| mode.set_link(link))
    }

    fn has_assigned(&self, link: u64) -> bool {
        in_mode!(self, |mode| mode.has_assigned(link))
    }

    fn release_assigned(&mut self, link: u64) {
        in_mode!(self, |mode| mode.release_assigned(link))
    }

    fn on_end_acknowledged(&mut self) {
        in_mode!(self, |mode| mode.on_end_acknowledged())
    }

    fn is_all_acknowledged(&self) -> bool {
        in_mode!(self, |mode| mode.is_all_acknowledged())
    }

    fn has_data(&self) -> bool {
        in_mode!(self, |mode| mode.has_data())
    }

    fn poll(
        &mut self,
        now: Timestamp,
        symbol_size: usize,
        path: &PathView,
        channels: Option<&mut Channels>,
        seal: Option<&mut SymbolKey>,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        in_mode!(self, |mode| mode.poll(now, symbol_size, path, channels, seal, out))
    }

    fn next_timeout(&self) -> Option<Timestamp> {
        in_mode!(self, |mode| mode.next_timeout())
    }

    fn on_timeout(&mut self, now: Timestamp, path: &PathView) {
        in_mode!(self, |mode| mode.on_timeout(now, path))
    }

    fn on_probe_timeout(&mut self, blackout_packets: u64) -> bool {
        in_mode!(self, |mode| mode.on_probe_timeout(blackout_packets))
    }

    fn on_path_lost(&mut self, now: Timestamp, path: &PathView, is_limited: bool) {
        in_mode!(self, |mode| mode.on_path_lost(now, path, is_limited))
    }

    fn awaits_decoding(&self) -> bool {
        in_mode!(self, |mode| mode.awaits_decoding())
    }

    fn on_rank_feedback(
        &mut self,
        now: Timestamp,
        feedback: &RankFeedback,
        path: &PathView,
    ) -> Result<(), FlowError> {
        in_mode!(self, |mode| mode.on_rank_feedback(now, feedback, path))
    }

    fn on_credit(&mut self, symbols: u64) {
        in_mode!(self, |mode| mode.on_credit(symbols))
    }

    fn counters(&self) -> SenderCounters {
        in_mode!(self, |mode| mode.counters())
    }

    fn expired(&self) -> u64 {
        in_mode!(self, |mode| mode.expired())
    }

    fn number_of(&self, kind: PacketKind, payload: &[u8]) -> Option<u64> {
        in_mode!(self, |mode| mode.number_of(kind, payload))
    }

    fn on_polluted(&mut self) {
        in_mode!(self, |mode| mode.on_polluted())
    }

    fn sent_end(&self) -> Option<u64> {
        in_mode!(self, |mode| mode.sent_end())
    }

    fn limit(&self, feedback: &mut RankFeedback) {
        in_mode!(self, |mode| mode.limit(feedback))
    }

    fn is_timely(&self) -> bool {
        in_mode!(self, |mode| mode.is_timely())
    }

    fn set_feedback_delay(&mut self, delay: Duration) {
        in_mode!(self, |mode| mode.set_feedback_delay(delay))
    }
}
