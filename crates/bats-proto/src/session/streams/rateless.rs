//! BRCTP: messages are reliable and in order, coded in blocks with a rateless code.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::mode::{Receiving, Sending};
use super::taken::Taken;
use crate::crypto::SymbolKey;
use crate::flow::{
    FlowError, PathView, RatelessReceiver, RatelessSender, ReceiverCounters, SenderCounters,
};
use crate::session::channel::Channels;
use crate::session::{Inbox, Reassembly, SendQueue, SessionError};
use crate::wire::coding::RepairHeader;
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// Sending direction of BRCTP.
#[derive(Debug)]
pub(in crate::session) struct RatelessOutgoing {
    queue: SendQueue,
    flow: RatelessSender,
}

impl RatelessOutgoing {
    pub(super) fn new(queue: SendQueue, flow: RatelessSender) -> Self {
        Self { queue, flow }
    }
}

impl Sending for RatelessOutgoing {
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
        if channels.is_some() {
            flow.bound_blocks(symbol_size, path);
        }
        let has_more = |queue: &SendQueue, channels: &Option<&mut Channels>| {
            queue.is_sendable() || channels.as_ref().is_some_and(|c| c.is_sendable())
        };
        while flow.wants_block() && has_more(queue, &channels) {
            let number = flow.next_number();
            let pushed = flow.push_block(symbol_size, path, |bytes| {
                let mut fill = |bytes: &mut [u8]| match &mut channels {
                    None => queue.fill_symbol(bytes),
                    Some(channels) => channels.fill_symbol(queue, bytes),
                };
                let len = match &mut seal {
                    None => fill(bytes),
                    Some(key) => key.seal_block(number, bytes, fill),
                };
                (len, has_more(queue, &channels))
            });
            if !pushed {
                break;
            }
        }
        flow.poll(now, out)
    }

    /// Coded packets are sent until the peer reports the rank, without a timer.
    fn next_timeout(&self) -> Option<Timestamp> {
        None
    }

    fn on_timeout(&mut self, _now: Timestamp, _path: &PathView) {}

    fn on_probe_timeout(&mut self, _blackout_packets: u64) -> bool {
        self.flow.on_probe_timeout()
    }

    fn on_path_lost(&mut self, _now: Timestamp, _path: &PathView, _is_limited: bool) {
        self.flow.on_probe_timeout();
    }

    fn awaits_decoding(&self) -> bool {
        !self.flow.all_acknowledged()
    }

    fn on_rank_feedback(
        &mut self,
        now: Timestamp,
        feedback: &RankFeedback,
        path: &PathView,
    ) -> Result<(), FlowError> {
        self.flow.on_rank_feedback(0, now, feedback, path)
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
    fn number_of(&self, _kind: PacketKind, payload: &[u8]) -> Option<u64> {
        let mut reader = Reader::new(payload);
        Some(RepairHeader::decode(&mut reader)?.first_symbol(self.flow.next_number()))
    }

    fn on_polluted(&mut self) {
        self.flow.on_polluted();
    }

    fn sent_end(&self) -> Option<u64> {
        Some(self.flow.next_number())
    }

    fn set_feedback_delay(&mut self, delay: Duration) {
        self.flow.set_feedback_delay(delay);
    }
}

/// Receiving direction of BRCTP.
#[derive(Debug)]
pub(in crate::session) struct RatelessIncoming {
    flow: RatelessReceiver,
    reassembly: Reassembly,
}

impl RatelessIncoming {
    pub(super) fn new(flow: RatelessReceiver, reassembly: Reassembly) -> Self {
        Self { flow, reassembly }
    }
}

impl Receiving for RatelessIncoming {
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
        let Self { flow, reassembly } = self;
        let mut taken = Taken::default();
        if let Some(key) = &mut open {
            taken.polluted += flow.verify(|number, bytes| {
                let is_authentic = key.open_block(number, bytes);
                taken.opened += u64::from(is_authentic);
                taken.attributable = if is_authentic { taken.attributable } else { Some(number) };
                is_authentic
            });
        }
        let mut has_advanced = false;
        // With channels, messages have a credit of their own: blocks never wait for the application.
        while (channels.is_some() || inbox.has_room(room))
            && let Some(block) = flow.next_block()
        {
            has_advanced = true;
            reassembly.feed_with(&block, channels.as_deref_mut(), false)?;
            while let Some(message) = reassembly.pop() {
                taken.add(inbox, message);
            }
        }
        if let Some(channels) = channels {
            flow.hand_up(has_advanced, |block| channels.take_early(block))?;
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

    fn holds_blocks(&self, inbox: &Inbox) -> Option<bool> {
        let others = self.reassembly.bytes_held() + inbox.bytes_held();
        Some(self.flow.holds_blocks() || others > 0)
    }

    fn free_some(&mut self, _inbox: &mut Inbox) -> bool {
        self.flow.trim()
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

    fn seals_blocks(&self) -> bool {
        true
    }

    /// There are no source packets.
    fn seen_end(&self) -> Option<u64> {
        None
    }
}
