//! BTP: messages arrive before their deadline or not at all.

use core::time::Duration;

use bats_types::Timestamp;

use super::mode::Receiving;
use super::taken::{Taken, TakenEarly};
use super::totals::Totals;
use crate::crypto::SymbolKey;
use crate::flow::{FlowError, ReceiverCounters, ResidualStats, TimelyReceiver};
use crate::handshake::MAX_EARLY_MESSAGES;
use crate::session::channel::Channels;
use crate::session::{DatagramAssembly, Inbox, SessionError};
use crate::wire::message::{self, MessageFrame};
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// Receiving direction of BTP.
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
    pub(super) fn new(flow: TimelyReceiver, assembly: DatagramAssembly) -> Self {
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
