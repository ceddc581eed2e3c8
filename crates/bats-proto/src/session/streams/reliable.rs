//! BRTP: messages are reliable and in order, over a sliding window of symbols.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::handed_up::{HandedUp, Left};
use super::mode::{Receiving, Sending};
use super::taken::Taken;
use crate::crypto::SymbolKey;
use crate::flow::{
    FlowError, FlowReceiver, FlowSender, PathView, ReceiverCounters, SenderCounters,
};
use crate::session::channel::Channels;
use crate::session::{Inbox, Reassembly, SendQueue, SessionError};
use crate::wire::coding::SourceHeader;
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// Sending direction of BRTP.
#[derive(Debug)]
pub(in crate::session) struct ReliableOutgoing {
    queue: SendQueue,
    flow: FlowSender,
}

impl ReliableOutgoing {
    pub(super) fn new(queue: SendQueue, flow: FlowSender) -> Self {
        Self { queue, flow }
    }
}

impl Sending for ReliableOutgoing {
    fn is_finished(&self) -> bool {
        self.queue.is_finished()
    }

    fn trim(&mut self) {
        self.flow.trim();
    }

    fn finish(&mut self) {
        self.queue.finish();
    }

    fn set_message_credit(&mut self, credit: u64) {
        self.queue.set_credit(credit);
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn push(&mut self, message: Bytes, _expires: Timestamp) {
        self.queue.push(message);
    }

    fn queued_bytes(&self) -> usize {
        self.queue.bytes_held()
    }

    fn flow_bytes(&self) -> usize {
        self.flow.bytes_held()
    }

    fn unsent_bytes(&self) -> usize {
        self.queue.bytes_held() + self.flow.unsent_bytes()
    }

    fn set_link(&mut self, link: Option<u64>) {
        self.flow.set_link(link);
    }

    fn has_assigned(&self, link: u64) -> bool {
        self.flow.has_assigned(link)
    }

    fn release_assigned(&mut self, link: u64) {
        self.flow.release_assigned(link);
    }

    fn is_all_acknowledged(&self) -> bool {
        self.queue.is_empty() && self.flow.all_acknowledged()
    }

    fn has_data(&self) -> bool {
        self.queue.is_sendable() || self.flow.wants_to_send()
    }

    fn poll(
        &mut self,
        now: Timestamp,
        symbol_size: usize,
        path: &PathView,
        mut channels: Option<&mut Channels>,
        mut seal: Option<&mut SymbolKey>,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        let Self { queue, flow } = self;
        let has_more = |queue: &SendQueue, channels: &Option<&mut Channels>| {
            queue.is_sendable() || channels.as_ref().is_some_and(|c| c.is_sendable())
        };
        while flow.wants_symbol() && has_more(queue, &channels) {
            let number = flow.next_symbol();
            let mut fill = |bytes: &mut [u8]| match &mut channels {
                None => queue.fill_symbol(bytes),
                Some(channels) => channels.fill_symbol(queue, bytes),
            };
            let pushed = flow.push_symbol(symbol_size, |bytes| match &mut seal {
                None => fill(bytes),
                Some(key) => key.seal(number, bytes, fill),
            });
            if !pushed {
                break;
            }
        }
        flow.poll(now, path, has_more(queue, &channels), out)
    }

    fn next_timeout(&self) -> Option<Timestamp> {
        self.flow.next_timeout()
    }

    fn on_timeout(&mut self, now: Timestamp, _path: &PathView) {
        self.flow.on_timeout(now);
    }

    fn on_probe_timeout(&mut self, blackout_packets: u64) -> bool {
        self.flow.on_probe_timeout(blackout_packets)
    }

    fn on_path_lost(&mut self, now: Timestamp, path: &PathView, is_limited: bool) {
        self.flow.on_path_lost(now, path, is_limited);
    }

    fn awaits_decoding(&self) -> bool {
        self.flow.awaits_decoding()
    }

    fn on_rank_feedback(
        &mut self,
        now: Timestamp,
        feedback: &RankFeedback,
        path: &PathView,
    ) -> Result<(), FlowError> {
        self.flow.on_rank_feedback(now, feedback, path)
    }

    fn on_credit(&mut self, symbols: u64) {
        self.flow.on_credit(symbols);
    }

    fn counters(&self) -> SenderCounters {
        self.flow.counters()
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn number_of(&self, kind: PacketKind, payload: &[u8]) -> Option<u64> {
        if kind != PacketKind::Source {
            return None;
        }
        let mut reader = Reader::new(payload);
        Some(SourceHeader::decode(&mut reader)?.number(self.flow.next_symbol()))
    }

    fn sent_end(&self) -> Option<u64> {
        Some(self.flow.sent_end())
    }
}

/// Receiving direction of BRTP.
#[derive(Debug)]
pub(in crate::session) struct ReliableIncoming {
    flow: FlowReceiver,
    reassembly: Reassembly,
    handed_up: HandedUp,
}

impl ReliableIncoming {
    pub(super) fn new(flow: FlowReceiver, reassembly: Reassembly) -> Self {
        Self { flow, reassembly, handed_up: HandedUp::default() }
    }
}

impl Receiving for ReliableIncoming {
    fn trim(&mut self) {
        self.flow.trim();
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
        self.flow.on_packet(now, kind, payload, rtt)
    }

    fn take(
        &mut self,
        inbox: &mut Inbox,
        mut channels: Option<&mut Channels>,
        (room, _): (usize, bool),
        mut open: Option<&mut SymbolKey>,
    ) -> Result<Taken, SessionError> {
        let Self { flow, reassembly, handed_up } = self;
        let mut opened = Vec::new();
        let mut taken = Taken::default();
        // With channels, messages have a credit of their own: symbols never wait.
        while channels.is_some() || inbox.has_room(room) {
            let number = flow.next_number();
            let Some(mut symbol) = flow.next_symbol() else { break };
            let left = handed_up.take(number);
            if left == Left::Nothing {
                // It was authenticated when it was handed up.
                taken.opened += u64::from(open.is_some());
                continue;
            }
            if let Some(key) = &mut open {
                if !key.open(number, symbol, &mut opened) {
                    taken.polluted += 1;
                    taken.attributable = flow.is_from_own_batch(number).then_some(number);
                    flow.reject();
                    break;
                }
                taken.opened += 1;
                symbol = &opened;
            }
            let is_handed_up = left == Left::Messages;
            reassembly.feed_with(symbol, channels.as_deref_mut(), is_handed_up)?;
            while let Some(message) = reassembly.pop() {
                taken.add(inbox, message);
            }
        }
        if let Some(channels) = channels {
            handed_up.hand_up(flow, channels, open)?;
        }
        Ok(taken)
    }

    fn feedback_at(&self) -> Option<Timestamp> {
        self.flow.feedback_at()
    }

    fn feedback(&mut self, now: Timestamp, rtt: Duration) -> Option<RankFeedback> {
        Some(self.flow.feedback(now, rtt))
    }

    fn raise_budget(&mut self, bytes: usize) {
        self.flow.raise_budget(bytes);
    }

    fn has_ready(&self) -> bool {
        self.flow.has_ready()
    }

    fn growth(&self) -> usize {
        self.flow.growth()
    }

    fn bytes_missing(&self) -> usize {
        self.reassembly.bytes_missing()
    }

    fn update_credit(
        &mut self,
        now: Timestamp,
        rtt: Duration,
        inbox: &Inbox,
        elsewhere: Option<usize>,
    ) -> bool {
        let held = |bytes| bytes + inbox.bytes_held() + self.reassembly.bytes_held();
        self.flow.update_credit(now, rtt, elsewhere.map_or(0, held))
    }

    fn credit(&mut self) -> Option<u64> {
        Some(self.flow.credit())
    }

    /// The flow ends with a message, not with an END frame.
    fn next_timeout(&self) -> Option<Timestamp> {
        None
    }

    fn on_timeout(&mut self, _now: Timestamp) {}

    fn is_finished(&self) -> bool {
        self.reassembly.is_finished()
    }

    fn bytes_held(&self) -> usize {
        self.flow.bytes_held() + self.reassembly.bytes_held()
    }

    fn counters(&self) -> ReceiverCounters {
        self.flow.counters()
    }

    fn set_feedback_delay(&mut self, delay: Duration) {
        self.flow.set_feedback_delay(delay);
    }

    fn seen_end(&self) -> Option<u64> {
        Some(self.flow.seen_end())
    }
}
