//! BTP: messages arrive before their deadline or not at all. And TRANSPARENT, whose sender has no redundancy.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::mode::{Receiving, Sending};
use super::taken::{Taken, TakenEarly};
use super::totals::Totals;
use crate::crypto::SymbolKey;
use crate::flow::{
    FlowError, PathView, ReceiverCounters, ResidualStats, SenderCounters, TimelyReceiver,
    TimelySender,
};
use crate::handshake::MAX_EARLY_MESSAGES;
use crate::session::channel::Channels;
use crate::session::{DatagramAssembly, DatagramQueue, Inbox, SessionError};
use crate::wire::coding::SourceHeader;
use crate::wire::message::{self, MessageFrame};
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// Sending direction of BTP and TRANSPARENT.
#[derive(Debug)]
pub(in crate::session) struct TimelyOutgoing {
    queue: DatagramQueue,
    flow: TimelySender,
    end_acknowledged: bool,
}

impl TimelyOutgoing {
    pub(in crate::session) fn new(flow: TimelySender) -> Self {
        Self { queue: DatagramQueue::default(), flow, end_acknowledged: false }
    }

    /// The next symbol, and the first message of which no symbol before it has a part.
    pub(in crate::session) fn position(&self) -> Totals {
        Totals { symbols: self.flow.symbols(), messages: self.queue.first_uncut() }
    }
}

impl Sending for TimelyOutgoing {
    fn is_finished(&self) -> bool {
        self.queue.is_finished()
    }

    fn trim(&mut self) {
        self.flow.trim();
    }

    fn finish(&mut self) {
        self.queue.finish();
    }

    fn end(&self) -> Option<Totals> {
        let Self { queue, flow, .. } = self;
        (queue.is_finished() && queue.is_empty())
            .then(|| Totals { symbols: flow.symbols(), messages: queue.messages() })
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn push(&mut self, message: Bytes, expires: Timestamp) {
        self.queue.push(message, expires);
    }

    fn skip(&mut self, count: u64) {
        self.queue.skip(count);
    }

    fn queued_bytes(&self) -> usize {
        self.queue.bytes_held()
    }

    fn flow_bytes(&self) -> usize {
        self.flow.bytes_held()
    }

    fn waiting_bytes(&self) -> usize {
        self.queue.bytes_held()
    }

    fn on_end_acknowledged(&mut self) {
        self.end_acknowledged = true;
    }

    fn is_all_acknowledged(&self) -> bool {
        self.queue.is_empty()
            && self.flow.is_idle()
            && (self.end_acknowledged || !self.queue.is_finished())
    }

    fn has_data(&self) -> bool {
        !self.queue.is_empty() || self.flow.wants_to_send()
    }

    fn poll(
        &mut self,
        now: Timestamp,
        symbol_size: usize,
        path: &PathView,
        _channels: Option<&mut Channels>,
        mut seal: Option<&mut SymbolKey>,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        let Self { queue, flow, .. } = self;
        queue.expire(now);
        while flow.wants_symbol() && !queue.is_empty() {
            let number = flow.symbols();
            let pushed = flow.push_symbol(symbol_size, |bytes| match &mut seal {
                None => queue.fill_symbol(now, bytes),
                Some(key) => {
                    let mut expires = now;
                    let len = key.seal(number, bytes, |bytes| {
                        let (len, at) = queue.fill_symbol(now, bytes);
                        expires = at;
                        len
                    });
                    (len, expires)
                }
            });
            if !pushed {
                break;
            }
        }
        flow.poll(now, path, !queue.is_empty(), out)
    }

    fn next_timeout(&self) -> Option<Timestamp> {
        self.flow.next_timeout()
    }

    fn on_timeout(&mut self, now: Timestamp, path: &PathView) {
        self.queue.expire(now);
        self.flow.on_timeout(now, path);
    }

    fn on_probe_timeout(&mut self, _blackout_packets: u64) -> bool {
        self.flow.wants_to_send()
    }

    /// Symbols in flight arrive too late.
    fn on_path_lost(&mut self, _now: Timestamp, _path: &PathView, _is_limited: bool) {}

    /// No reports are awaited.
    fn awaits_decoding(&self) -> bool {
        false
    }

    /// Sent only at the end of a connection, when it has no effect.
    fn on_rank_feedback(
        &mut self,
        _now: Timestamp,
        _feedback: &RankFeedback,
        _path: &PathView,
    ) -> Result<(), FlowError> {
        Ok(())
    }

    /// The mode has no credit.
    fn on_credit(&mut self, _symbols: u64) {}

    fn counters(&self) -> SenderCounters {
        self.flow.counters()
    }

    fn expired(&self) -> u64 {
        self.queue.expired()
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
        Some(SourceHeader::decode(&mut reader)?.number(self.flow.symbols()))
    }

    /// The peer reports no ranks.
    fn sent_end(&self) -> Option<u64> {
        None
    }

    fn is_timely(&self) -> bool {
        true
    }
}

/// Receiving direction of BTP and TRANSPARENT.
#[derive(Debug)]
pub(in crate::session) struct TimelyIncoming {
    flow: TimelyReceiver,
    assembly: DatagramAssembly,
    end: Option<FlowEnd>,
    /// Messages dropped because the application read too slowly.
    overflowed: u64,
}

/// The end of the peer's flow, from its END frame.
#[derive(Clone, Copy, Debug)]
struct FlowEnd {
    totals: Totals,
    /// Missing symbols are awaited until this time.
    until: Timestamp,
    passed: bool,
}

impl TimelyIncoming {
    pub(in crate::session) fn new(flow: TimelyReceiver, assembly: DatagramAssembly) -> Self {
        Self { flow, assembly, end: None, overflowed: 0 }
    }

    fn complete_flow(&mut self, is_over: impl FnOnce(&FlowEnd, &TimelyReceiver) -> bool) {
        if let Some(end) = &mut self.end
            && !end.passed
            && is_over(end, &self.flow)
        {
            end.passed = true;
            self.flow.finish(end.totals.symbols);
            self.assembly.finish(end.totals.messages);
        }
    }
}

impl Receiving for TimelyIncoming {
    /// Frees memory that only a busy flow needs, and messages that cannot be completed any more.
    fn trim(&mut self) {
        self.flow.trim();
        if !self.flow.has_ready() {
            self.assembly.trim();
        }
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
        _rtt: Duration,
    ) -> Result<(), FlowError> {
        self.flow.on_packet(now, kind, payload)
    }

    fn take(
        &mut self,
        inbox: &mut Inbox,
        _channels: Option<&mut Channels>,
        (room, replace_oldest): (usize, bool),
        mut open: Option<&mut SymbolKey>,
    ) -> Result<Taken, SessionError> {
        let mut opened = Vec::new();
        let mut taken = Taken::default();
        while (replace_oldest || inbox.has_room(room))
            && let Some((number, mut symbol)) = self.flow.next_symbol()
        {
            if let Some(key) = &mut open {
                if !key.open(number, symbol, &mut opened) {
                    taken.polluted += 1;
                    continue;
                }
                taken.opened += 1;
                symbol = &opened;
            }
            self.assembly.feed(symbol)?;
            while let Some(message) = self.assembly.pop() {
                taken.add(inbox, message);
            }
            // Drop the oldest messages: the newest are worth most.
            while replace_oldest && !inbox.has_room(room) && inbox.pop().is_some() {
                self.overflowed += 1;
            }
        }
        Ok(taken)
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
        let mut reader = Reader::new(payload);
        while let Some(frame) =
            message::decode(&mut reader).map_err(|message::Malformed| SessionError::Malformed)?
        {
            match frame {
                MessageFrame::Datagram { id, .. } if id < MAX_EARLY_MESSAGES as u64 => {}
                _ => return Err(SessionError::Sequence),
            }
        }
        self.assembly.feed(payload)?;
        let mut taken = TakenEarly::default();
        while let Some(message) = self.assembly.pop() {
            taken.messages = taken.messages.saturating_add(1);
            taken.bytes = taken.bytes.saturating_add(message.len() as u64);
            inbox.push(message);
        }
        while !inbox.has_room(budget) && inbox.pop().is_some() {
            self.overflowed = self.overflowed.saturating_add(1);
        }
        let ids = 0..MAX_EARLY_MESSAGES as u32;
        let arrived = ids.filter(|&id| self.assembly.has_delivered(u64::from(id)));
        taken.delivered = arrived.fold(0, |all, id| all | 1 << id);
        Ok(taken)
    }

    fn record_early(&mut self, delivered: u32) {
        let ids = (0..MAX_EARLY_MESSAGES as u32).filter(|id| delivered >> id & 1 == 1);
        ids.for_each(|id| self.assembly.mark_delivered(u64::from(id)));
    }

    fn feedback_at(&self) -> Option<Timestamp> {
        None
    }

    fn feedback(&mut self, _now: Timestamp, _rtt: Duration) -> Option<RankFeedback> {
        None
    }

    fn raise_budget(&mut self, bytes: usize) {
        self.assembly.raise_budget(bytes);
    }

    fn has_ready(&self) -> bool {
        self.flow.has_ready()
    }

    fn free_some(&mut self, inbox: &mut Inbox) -> bool {
        let is_dropped = inbox.pop().is_some();
        self.overflowed += u64::from(is_dropped);
        is_dropped
    }

    /// The mode has no credit.
    fn update_credit(
        &mut self,
        _now: Timestamp,
        _rtt: Duration,
        _inbox: &Inbox,
        _elsewhere: Option<usize>,
    ) -> bool {
        false
    }

    fn credit(&mut self) -> Option<u64> {
        None
    }

    fn on_end(&mut self, totals: Totals, until: Timestamp) {
        if self.end.is_none() {
            self.end = Some(FlowEnd { totals, until, passed: false });
        }
    }

    fn next_timeout(&self) -> Option<Timestamp> {
        self.end.filter(|end| !end.passed).map(|end| end.until)
    }

    fn on_timeout(&mut self, now: Timestamp) {
        self.complete_flow(|end, flow| end.until <= now || flow.has_all_below(end.totals.symbols));
    }

    fn on_closed(&mut self) {
        self.complete_flow(|_, _| true);
    }

    fn is_finished(&self) -> bool {
        self.end.is_some_and(|end| end.passed)
    }

    fn bytes_held(&self) -> usize {
        self.flow.bytes_held() + self.assembly.bytes_held()
    }

    fn counters(&self) -> ReceiverCounters {
        self.flow.counters()
    }

    fn residual(&self) -> ResidualStats {
        ResidualStats {
            messages_lost: self.assembly.lost() + self.overflowed,
            ..self.flow.residual()
        }
    }

    fn seen_end(&self) -> Option<u64> {
        Some(self.flow.seen_end())
    }
}
