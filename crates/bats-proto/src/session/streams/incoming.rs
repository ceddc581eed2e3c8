//! The receiving direction: decodes packets into symbols, reassembles messages, reports gaps.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::handed_up::{HandedUp, Left};
use super::totals::Totals;
use crate::crypto::SymbolKey;
use crate::flow::{
    FlowError, FlowReceiver, RatelessReceiver, ReceiverCounters, ResidualStats, TimelyReceiver,
};
use crate::handshake::MAX_EARLY_MESSAGES;
use crate::session::channel::Channels;
use crate::session::{DatagramAssembly, Inbox, Reassembly, SessionError};
use crate::wire::coding::SourceHeader;
use crate::wire::message::{self, MessageFrame};
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// The receiving direction of a session, by mode.
#[derive(Debug)]
pub(in crate::session) enum Incoming {
    /// BRTP.
    Reliable { flow: FlowReceiver, reassembly: Reassembly, early: HandedUp },
    /// BRCTP.
    Rateless { flow: RatelessReceiver, reassembly: Reassembly },
    /// BTP.
    Timely(TimelyIncoming),
}

/// Receiving direction of BTP: messages arrive before their deadline or not at all.
#[derive(Debug)]
pub(in crate::session) struct TimelyIncoming {
    pub(in crate::session) flow: TimelyReceiver,
    assembly: DatagramAssembly,
    end: Option<FlowEnd>,
    /// Messages dropped because the application read too slowly.
    overflowed: u64,
}

impl TimelyIncoming {
    pub(in crate::session) fn new(flow: TimelyReceiver, assembly: DatagramAssembly) -> Self {
        Self { flow, assembly, end: None, overflowed: 0 }
    }

    /// Frees memory that only a busy flow needs, and messages that cannot be completed any more.
    pub(in crate::session) fn trim(&mut self) {
        self.flow.trim();
        if !self.flow.has_ready() {
            self.assembly.trim();
        }
    }
}

/// The end of the peer's flow, from its END frame.
#[derive(Clone, Copy, Debug)]
pub(in crate::session) struct FlowEnd {
    totals: Totals,
    /// Missing symbols are awaited until this time.
    until: Timestamp,
    passed: bool,
}

/// Result of taking symbols.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::session) struct Taken {
    /// Bytes of the messages that became complete.
    pub(in crate::session) bytes: u64,
    /// Polluted symbols or blocks.
    pub(in crate::session) polluted: u64,
    /// Number of a polluted one that only packets of its own batch can have polluted.
    pub(in crate::session) attributable: Option<u64>,
    /// Authenticated symbols or blocks.
    pub(in crate::session) opened: u64,
}

/// Result of taking early data.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::session) struct TakenEarly {
    pub(in crate::session) messages: u64,
    pub(in crate::session) bytes: u64,
    /// The early messages delivered so far, as a bit mask by message number.
    pub(in crate::session) delivered: u32,
}

impl Incoming {
    /// Frees memory that only a busy flow needs.
    pub(in crate::session) fn trim(&mut self) {
        match self {
            Self::Reliable { flow, .. } => flow.trim(),
            Self::Timely(timely) => timely.trim(),
            Self::Rateless { flow, .. } => _ = flow.trim(),
        }
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(in crate::session) fn on_packet(
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

    /// Reassembles messages from received symbols. Reliable modes deliver in order, as far as the
    /// room suffices. BTP delivers at once; if `replace_oldest` is set, it drops the oldest messages
    /// for which there is no room.
    ///
    /// With a key, symbols are opened first. Polluted ones are dropped; reliable modes treat them
    /// as missing again.
    pub(in crate::session) fn take(
        &mut self,
        inbox: &mut Inbox,
        mut channels: Option<&mut Channels>,
        (room, replace_oldest): (usize, bool),
        mut open: Option<&mut SymbolKey>,
    ) -> Result<Taken, SessionError> {
        let mut opened = Vec::new();
        let (mut polluted, mut attributable, mut authentic) = (0, None, 0);
        let mut taken = Taken::default();
        let mut add = |inbox: &mut Inbox, message: Bytes| {
            taken.bytes += message.len() as u64;
            inbox.push(message);
        };
        match self {
            Self::Reliable { flow, reassembly, early } => {
                // With channels, messages have a credit of their own: symbols never wait.
                while channels.is_some() || inbox.has_room(room) {
                    let number = flow.next_number();
                    let Some(mut symbol) = flow.next_symbol() else { break };
                    let left = early.take(number);
                    if left == Left::Nothing {
                        // It was authenticated when it was handed up.
                        authentic += u64::from(open.is_some());
                        continue;
                    }
                    if let Some(key) = &mut open {
                        if !key.open(number, symbol, &mut opened) {
                            polluted += 1;
                            attributable = flow.is_from_own_batch(number).then_some(number);
                            flow.reject();
                            break;
                        }
                        authentic += 1;
                        symbol = &opened;
                    }
                    let is_handed_up = left == Left::Messages;
                    reassembly.feed_with(symbol, channels.as_deref_mut(), is_handed_up)?;
                    while let Some(message) = reassembly.pop() {
                        add(inbox, message);
                    }
                }
                if let Some(channels) = channels {
                    early.hand_up(flow, channels, open)?;
                }
            }
            Self::Rateless { flow, reassembly } => {
                if let Some(key) = &mut open {
                    polluted += flow.verify(|number, bytes| {
                        let is_authentic = key.open_block(number, bytes);
                        authentic += u64::from(is_authentic);
                        attributable = if is_authentic { attributable } else { Some(number) };
                        is_authentic
                    });
                }
                while inbox.has_room(room)
                    && let Some(block) = flow.next_block()
                {
                    reassembly.feed(&block)?;
                    while let Some(message) = reassembly.pop() {
                        add(inbox, message);
                    }
                }
            }
            Self::Timely(timely) => {
                while (replace_oldest || inbox.has_room(room))
                    && let Some((number, mut symbol)) = timely.flow.next_symbol()
                {
                    if let Some(key) = &mut open {
                        if !key.open(number, symbol, &mut opened) {
                            polluted += 1;
                            continue;
                        }
                        authentic += 1;
                        symbol = &opened;
                    }
                    timely.assembly.feed(symbol)?;
                    while let Some(message) = timely.assembly.pop() {
                        add(inbox, message);
                    }
                    // Drop the oldest messages: the newest are worth most.
                    while replace_oldest && !inbox.has_room(room) && inbox.pop().is_some() {
                        timely.overflowed += 1;
                    }
                }
            }
        }
        (taken.polluted, taken.attributable, taken.opened) = (polluted, attributable, authentic);
        Ok(taken)
    }

    /// Takes a payload of early data: message frames as in a symbol.
    ///
    /// # Errors
    ///
    /// The frames are malformed, or a message number is beyond the limit for early data.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(in crate::session) fn take_early(
        &mut self,
        payload: &[u8],
        inbox: &mut Inbox,
        budget: usize,
    ) -> Result<TakenEarly, SessionError> {
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
        let mut taken = TakenEarly::default();
        while let Some(message) = timely.assembly.pop() {
            taken.messages = taken.messages.saturating_add(1);
            taken.bytes = taken.bytes.saturating_add(message.len() as u64);
            inbox.push(message);
        }
        while !inbox.has_room(budget) && inbox.pop().is_some() {
            timely.overflowed = timely.overflowed.saturating_add(1);
        }
        let ids = 0..MAX_EARLY_MESSAGES as u32;
        let arrived = ids.filter(|&id| timely.assembly.has_delivered(u64::from(id)));
        taken.delivered = arrived.fold(0, |all, id| all | 1 << id);
        Ok(taken)
    }

    /// Marks messages (a bit mask) that another connection has already delivered.
    pub(in crate::session) fn record_early(&mut self, delivered: u32) {
        if let Self::Timely(timely) = self {
            let ids = (0..MAX_EARLY_MESSAGES as u32).filter(|id| delivered >> id & 1 == 1);
            ids.for_each(|id| timely.assembly.mark_delivered(u64::from(id)));
        }
    }

    pub(in crate::session) fn feedback_at(&self) -> Option<Timestamp> {
        match self {
            Self::Reliable { flow, .. } => flow.feedback_at(),
            Self::Rateless { flow, .. } => flow.feedback_at(),
            Self::Timely(_) => None,
        }
    }

    pub(in crate::session) fn feedback(
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

    /// Raises the memory that this direction may hold.
    pub(in crate::session) fn raise_budget(&mut self, bytes: usize) {
        match self {
            Self::Reliable { flow, .. } => flow.raise_budget(bytes),
            Self::Rateless { flow, .. } => flow.raise_budget(bytes),
            Self::Timely(timely) => timely.assembly.raise_budget(bytes),
        }
    }

    /// Whether a symbol or block is ready for the session.
    pub(in crate::session) fn has_ready(&self) -> bool {
        match self {
            Self::Reliable { flow, .. } => flow.has_ready(),
            Self::Rateless { flow, .. } => flow.has_ready(),
            Self::Timely(timely) => timely.flow.has_ready(),
        }
    }

    /// Whether the flow holds anything, if it consists of blocks.
    pub(in crate::session) fn holds_blocks(&self, inbox: &Inbox) -> Option<bool> {
        match self {
            Self::Rateless { flow, reassembly } => {
                let others = reassembly.bytes_held() + inbox.bytes_held();
                Some(flow.holds_blocks() || others > 0)
            }
            Self::Reliable { .. } | Self::Timely(_) => None,
        }
    }

    /// Bytes that may be held in addition when a packet fills a gap.
    pub(in crate::session) fn growth(&self) -> usize {
        match self {
            Self::Reliable { flow, .. } => flow.growth(),
            Self::Rateless { .. } | Self::Timely(_) => 0,
        }
    }

    /// Bytes of the message under assembly that are still to come.
    pub(in crate::session) fn bytes_missing(&self) -> usize {
        match self {
            Self::Reliable { reassembly, .. } => reassembly.bytes_missing(),
            Self::Rateless { .. } | Self::Timely(_) => 0,
        }
    }

    /// Frees what can be spared: the oldest message if the mode does not repair everything, or what only saves work.
    /// Returns whether it did.
    pub(in crate::session) fn free_some(&mut self, inbox: &mut Inbox) -> bool {
        match self {
            Self::Timely(timely) => {
                let is_dropped = inbox.pop().is_some();
                timely.overflowed += u64::from(is_dropped);
                is_dropped
            }
            Self::Rateless { flow, .. } => flow.trim(),
            Self::Reliable { .. } => false,
        }
    }

    /// Whether to send a CREDIT frame now. `elsewhere` bytes are not available; `None` if
    /// messages and channels have credit of their own.
    pub(in crate::session) fn update_credit(
        &mut self,
        now: Timestamp,
        rtt: Duration,
        inbox: &Inbox,
        elsewhere: Option<usize>,
    ) -> bool {
        let held = |reassembly: &Reassembly| {
            elsewhere.map_or(0, |bytes| bytes + inbox.bytes_held() + reassembly.bytes_held())
        };
        match self {
            Self::Reliable { flow, reassembly, .. } => {
                flow.update_credit(now, rtt, held(reassembly))
            }
            Self::Rateless { flow, reassembly } => flow.update_credit(now, rtt, held(reassembly)),
            Self::Timely(_) => false,
        }
    }

    pub(in crate::session) fn credit(&mut self) -> Option<u64> {
        match self {
            Self::Reliable { flow, .. } => Some(flow.credit()),
            Self::Rateless { flow, .. } => Some(flow.credit()),
            Self::Timely(_) => None,
        }
    }

    /// The peer's flow ends with `totals`; missing symbols are awaited until `until`.
    pub(in crate::session) fn on_end(&mut self, totals: Totals, until: Timestamp) {
        if let Self::Timely(timely) = self
            && timely.end.is_none()
        {
            timely.end = Some(FlowEnd { totals, until, passed: false });
        }
    }

    /// When to call [`Incoming::on_timeout`].
    pub(in crate::session) fn next_timeout(&self) -> Option<Timestamp> {
        match self {
            Self::Timely(timely) => timely.end.filter(|end| !end.passed).map(|end| end.until),
            Self::Reliable { .. } | Self::Rateless { .. } => None,
        }
    }

    /// Completes the flow when nothing is missing, or when the time for missing symbols is over.
    pub(in crate::session) fn on_timeout(&mut self, now: Timestamp) {
        self.complete_flow(|end, flow| end.until <= now || flow.has_all_below(end.totals.symbols));
    }

    /// The peer has closed the connection: if its END frame has arrived, the flow is complete, and
    /// missing symbols will not arrive any more.
    pub(in crate::session) fn on_closed(&mut self) {
        self.complete_flow(|_, _| true);
    }

    fn complete_flow(&mut self, is_over: impl FnOnce(&FlowEnd, &TimelyReceiver) -> bool) {
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

    /// Whether no more messages will become readable.
    pub(in crate::session) fn is_finished(&self) -> bool {
        match self {
            Self::Reliable { reassembly, .. } | Self::Rateless { reassembly, .. } => {
                reassembly.is_finished()
            }
            Self::Timely(timely) => timely.end.is_some_and(|end| end.passed),
        }
    }

    pub(in crate::session) fn bytes_held(&self) -> usize {
        match self {
            Self::Reliable { flow, reassembly, .. } => flow.bytes_held() + reassembly.bytes_held(),
            Self::Rateless { flow, reassembly } => flow.bytes_held() + reassembly.bytes_held(),
            Self::Timely(timely) => timely.flow.bytes_held() + timely.assembly.bytes_held(),
        }
    }

    pub(in crate::session) fn counters(&self) -> ReceiverCounters {
        match self {
            Self::Reliable { flow, .. } => flow.counters(),
            Self::Rateless { flow, .. } => flow.counters(),
            Self::Timely(timely) => timely.flow.counters(),
        }
    }

    /// Residual loss and repair delay.
    pub(in crate::session) fn residual(&self) -> ResidualStats {
        match self {
            Self::Reliable { .. } | Self::Rateless { .. } => ResidualStats::default(),
            Self::Timely(timely) => ResidualStats {
                messages_lost: timely.assembly.lost() + timely.overflowed,
                ..timely.flow.residual()
            },
        }
    }

    /// Sets how long the receiver leaves the repair of gaps to relays before it reports them.
    pub(in crate::session) fn set_feedback_delay(&mut self, delay: Duration) {
        match self {
            Self::Reliable { flow, .. } => flow.set_feedback_delay(delay),
            Self::Rateless { flow, .. } => flow.set_feedback_delay(delay),
            Self::Timely(_) => {}
        }
    }

    /// Whether whole blocks are sealed instead of symbols.
    pub(in crate::session) fn seals_blocks(&self) -> bool {
        matches!(self, Self::Rateless { .. })
    }

    /// Symbol number and symbol of a source packet.
    pub(in crate::session) fn source<'a>(&self, payload: &'a [u8]) -> Option<(u64, &'a [u8])> {
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
