//! From the peer to the application: packets become symbols, symbols messages, and gaps reports.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::Totals;
use crate::crypto::SymbolKey;
use crate::flow::{
    FlowError, FlowReceiver, RatelessReceiver, ReceiverCounters, Residual, TimelyReceiver,
};
use crate::handshake::MAX_EARLY_MESSAGES;
use crate::session::{DatagramAssembly, Inbox, Reassembly, SessionError};
use crate::wire::coding::SourceHeader;
use crate::wire::message::{self, MessageFrame};
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// From the peer to the application.
#[derive(Debug)]
pub(in crate::connection) enum Incoming {
    /// BRTP.
    Reliable { flow: FlowReceiver, reassembly: Reassembly },
    /// BRCTP.
    Rateless { flow: RatelessReceiver, reassembly: Reassembly },
    /// BTP.
    Timely(TimelyIncoming),
}

/// Messages that come in time or not at all.
#[derive(Debug)]
pub(in crate::connection) struct TimelyIncoming {
    pub(in crate::connection) flow: TimelyReceiver,
    assembly: DatagramAssembly,
    end: Option<End>,
    /// Messages that the application was too slow to take.
    overflowed: u64,
}

impl TimelyIncoming {
    pub(in crate::connection) fn new(flow: TimelyReceiver, assembly: DatagramAssembly) -> Self {
        Self { flow, assembly, end: None, overflowed: 0 }
    }
}

/// The peer said that it has nothing more to send.
#[derive(Clone, Copy, Debug)]
pub(in crate::connection) struct End {
    totals: Totals,
    /// Until then they are waited for.
    until: Timestamp,
    passed: bool,
}

/// What incoming symbols became.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::connection) struct Taken {
    pub(in crate::connection) messages: u64,
    pub(in crate::connection) bytes: u64,
    /// Symbols that somebody has altered.
    pub(in crate::connection) altered: u64,
    /// Number of one of these that nothing but packets of its own batch can have spoilt.
    pub(in crate::connection) certain: Option<u64>,
    /// Symbols or blocks whose seals were whole.
    pub(in crate::connection) opened: u64,
}

impl Incoming {
    pub(in crate::connection) fn on_packet(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        payload: &[u8],
        rtt: Duration,
    ) -> Result<(), FlowError> {
        match self {
            Self::Reliable { flow, .. } => flow.on_packet(now, kind, payload, rtt),
            Self::Rateless { flow, .. } => flow.on_packet(now, kind, payload, rtt),
            Self::Timely(timely) => timely.flow.on_packet(now, kind, payload),
        }
    }

    /// Makes messages of what arrived: in order, as far as the application leaves room for them, or
    /// at once, in which case the oldest make room.
    ///
    /// With a key, symbols are opened first; those that were altered are not used, and where
    /// everything must arrive they count as missing again.
    pub(in crate::connection) fn take(
        &mut self,
        inbox: &mut Inbox,
        budget: usize,
        mut open: Option<&mut SymbolKey>,
    ) -> Result<Taken, SessionError> {
        let mut opened = Vec::new();
        let (mut altered, mut certain, mut genuine) = (0, None, 0);
        let mut taken = Taken::default();
        let mut add = |inbox: &mut Inbox, message: Bytes| {
            taken.messages += 1;
            taken.bytes += message.len() as u64;
            inbox.push(message);
        };
        match self {
            Self::Reliable { flow, reassembly } => {
                while inbox.has_room(budget) {
                    let number = flow.next_number();
                    let Some(mut symbol) = flow.next_symbol() else { break };
                    if let Some(key) = &mut open {
                        if !key.open(number, symbol, &mut opened) {
                            altered += 1;
                            certain = flow.is_of_its_batch(number).then_some(number);
                            flow.reject();
                            break;
                        }
                        genuine += 1;
                        symbol = &opened;
                    }
                    reassembly.feed(symbol)?;
                    while let Some(message) = reassembly.pop() {
                        add(inbox, message);
                    }
                }
            }
            Self::Rateless { flow, reassembly } => {
                if let Some(key) = &mut open {
                    altered += flow.verify(|number, bytes| {
                        let is_genuine = key.open_block(number, bytes);
                        genuine += u64::from(is_genuine);
                        certain = if is_genuine { certain } else { Some(number) };
                        is_genuine
                    });
                }
                while inbox.has_room(budget)
                    && let Some(block) = flow.next_block()
                {
                    reassembly.feed(&block)?;
                    while let Some(message) = reassembly.pop() {
                        add(inbox, message);
                    }
                }
            }
            Self::Timely(timely) => {
                while let Some((number, mut symbol)) = timely.flow.next_symbol() {
                    if let Some(key) = &mut open {
                        if !key.open(number, symbol, &mut opened) {
                            altered += 1;
                            continue;
                        }
                        genuine += 1;
                        symbol = &opened;
                    }
                    timely.assembly.feed(symbol)?;
                    while let Some(message) = timely.assembly.pop() {
                        add(inbox, message);
                    }
                    // What is newest is worth most.
                    while !inbox.has_room(budget) && inbox.pop().is_some() {
                        timely.overflowed += 1;
                    }
                }
            }
        }
        (taken.altered, taken.certain, taken.opened) = (altered, certain, genuine);
        Ok(taken)
    }

    /// Takes a payload of early data: message frames as in a symbol. With the messages that it
    /// completed, a bit each by their numbers.
    ///
    /// # Errors
    ///
    /// The frames are malformed, or number messages that cannot be early.
    pub(in crate::connection) fn take_early(
        &mut self,
        payload: &[u8],
        inbox: &mut Inbox,
        budget: usize,
    ) -> Result<(Taken, u32), SessionError> {
        let Self::Timely(timely) = self else { return Err(SessionError::Sequence) };
        let mut reader = Reader::new(payload);
        while let Some(frame) =
            message::decode(&mut reader).map_err(|message::Malformed| SessionError::Malformed)?
        {
            match frame {
                MessageFrame::Datagram { id, .. } if id < MAX_EARLY_MESSAGES as u64 => {}
                _ => return Err(SessionError::Sequence),
            }
        }
        timely.assembly.feed(payload)?;
        let mut taken = Taken::default();
        while let Some(message) = timely.assembly.pop() {
            taken.messages += 1;
            taken.bytes += message.len() as u64;
            inbox.push(message);
        }
        while !inbox.has_room(budget) && inbox.pop().is_some() {
            timely.overflowed += 1;
        }
        let ids = 0..MAX_EARLY_MESSAGES as u32;
        let arrived = ids.filter(|&id| timely.assembly.has_delivered(u64::from(id)));
        Ok((taken, arrived.fold(0, |all, id| all | 1 << id)))
    }

    /// These messages, a bit each, were delivered by another connection.
    pub(in crate::connection) fn note_early(&mut self, delivered: u32) {
        if let Self::Timely(timely) = self {
            let ids = (0..MAX_EARLY_MESSAGES as u32).filter(|id| delivered >> id & 1 == 1);
            ids.for_each(|id| timely.assembly.note_delivered(u64::from(id)));
        }
    }

    pub(in crate::connection) fn feedback_at(&self) -> Option<Timestamp> {
        match self {
            Self::Reliable { flow, .. } => flow.feedback_at(),
            Self::Rateless { flow, .. } => flow.feedback_at(),
            Self::Timely(_) => None,
        }
    }

    pub(in crate::connection) fn feedback(
        &mut self,
        now: Timestamp,
        rtt: Duration,
    ) -> Option<RankFeedback> {
        match self {
            Self::Reliable { flow, .. } => Some(flow.feedback(now, rtt)),
            Self::Rateless { flow, .. } => Some(flow.feedback(now, rtt)),
            Self::Timely(_) => None,
        }
    }

    /// True when the peer should be told of its credit.
    pub(in crate::connection) fn update_credit(
        &mut self,
        now: Timestamp,
        rtt: Duration,
        inbox: &Inbox,
    ) -> bool {
        match self {
            Self::Reliable { flow, reassembly } => {
                flow.update_credit(now, rtt, inbox.bytes_held() + reassembly.bytes_held())
            }
            Self::Rateless { flow, reassembly } => {
                flow.update_credit(now, rtt, inbox.bytes_held() + reassembly.bytes_held())
            }
            Self::Timely(_) => false,
        }
    }

    pub(in crate::connection) fn credit(&mut self) -> Option<u64> {
        match self {
            Self::Reliable { flow, .. } => Some(flow.credit()),
            Self::Rateless { flow, .. } => Some(flow.credit()),
            Self::Timely(_) => None,
        }
    }

    /// The peer's flow had `totals`; what is missing of that comes until `until` or not at all.
    pub(in crate::connection) fn on_end(&mut self, totals: Totals, until: Timestamp) {
        if let Self::Timely(timely) = self
            && timely.end.is_none()
        {
            timely.end = Some(End { totals, until, passed: false });
        }
    }

    /// When [`Incoming::on_timeout`] wants to be called.
    pub(in crate::connection) fn next_timeout(&self) -> Option<Timestamp> {
        match self {
            Self::Timely(timely) => timely.end.filter(|end| !end.passed).map(|end| end.until),
            Self::Reliable { .. } | Self::Rateless { .. } => None,
        }
    }

    /// Gives up what is missing when its time is over, or sees that nothing is.
    pub(in crate::connection) fn on_timeout(&mut self, now: Timestamp) {
        self.give_up(|end, flow| end.until <= now || flow.has_all_below(end.totals.symbols));
    }

    /// The peer has closed: if it had told its end before, that is the end, and what is missing does
    /// not come any more.
    pub(in crate::connection) fn on_closed(&mut self) {
        self.give_up(|_, _| true);
    }

    fn give_up(&mut self, is_over: impl FnOnce(&End, &TimelyReceiver) -> bool) {
        if let Self::Timely(timely) = self
            && let Some(end) = &mut timely.end
            && !end.passed
            && is_over(end, &timely.flow)
        {
            end.passed = true;
            timely.flow.finish(end.totals.symbols);
            timely.assembly.finish(end.totals.messages);
        }
    }

    /// Whether nothing more will become readable.
    pub(in crate::connection) fn is_finished(&self) -> bool {
        match self {
            Self::Reliable { reassembly, .. } | Self::Rateless { reassembly, .. } => {
                reassembly.is_finished()
            }
            Self::Timely(timely) => timely.end.is_some_and(|end| end.passed),
        }
    }

    pub(in crate::connection) fn bytes_held(&self) -> usize {
        match self {
            Self::Reliable { flow, reassembly } => flow.bytes_held() + reassembly.bytes_held(),
            Self::Rateless { flow, reassembly } => flow.bytes_held() + reassembly.bytes_held(),
            Self::Timely(timely) => timely.flow.bytes_held() + timely.assembly.bytes_held(),
        }
    }

    pub(in crate::connection) fn counters(&self) -> ReceiverCounters {
        match self {
            Self::Reliable { flow, .. } => flow.counters(),
            Self::Rateless { flow, .. } => flow.counters(),
            Self::Timely(timely) => timely.flow.counters(),
        }
    }

    /// What did not arrive, or late.
    pub(in crate::connection) fn residual(&self) -> Residual {
        match self {
            Self::Reliable { .. } | Self::Rateless { .. } => Residual::default(),
            Self::Timely(timely) => Residual {
                messages_lost: timely.assembly.lost() + timely.overflowed,
                messages_overflowed: timely.overflowed,
                ..timely.flow.residual()
            },
        }
    }

    /// Sets how long the repair of gaps is left to relays.
    pub(in crate::connection) fn set_feedback_delay(&mut self, patience: Duration) {
        match self {
            Self::Reliable { flow, .. } => flow.set_feedback_delay(patience),
            Self::Rateless { flow, .. } => flow.set_feedback_delay(patience),
            Self::Timely(_) => {}
        }
    }

    /// Whether what is sealed together are blocks.
    pub(in crate::connection) fn is_of_blocks(&self) -> bool {
        matches!(self, Self::Rateless { .. })
    }

    /// Number and bytes of the symbol of a source packet.
    pub(in crate::connection) fn source<'a>(&self, payload: &'a [u8]) -> Option<(u64, &'a [u8])> {
        let seen_end = match self {
            Self::Reliable { flow, .. } => flow.seen_end(),
            Self::Timely(timely) => timely.flow.seen_end(),
            Self::Rateless { .. } => return None,
        };
        let mut reader = Reader::new(payload);
        let number = SourceHeader::decode(&mut reader)?.number(seen_end);
        Some((number, reader.rest()))
    }
}
