//! The data half of a connection: what its mode makes of messages and symbols.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use crate::crypto::SymbolKey;
use crate::flow::{
    FlowError, FlowReceiver, FlowSender, PathView, RatelessReceiver, RatelessSender,
    ReceiverCounters, Residual, SenderCounters, TimelyReceiver, TimelySender,
};
use crate::handshake::MAX_EARLY_MESSAGES;
use crate::session::{DatagramAssembly, DatagramQueue, Inbox, Reassembly, SendQueue, SessionError};
use crate::wire::coding::{RepairHeader, SourceHeader};
use crate::wire::message::{self, MessageFrame};
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

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

/// From the application to the peer.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// BRTP: everything, in order.
    Reliable { queue: SendQueue, flow: FlowSender },
    /// BRCTP: everything, in order, in blocks.
    Rateless { queue: SendQueue, flow: RatelessSender },
    /// BTP: in time or not at all.
    Timely { queue: DatagramQueue, flow: TimelySender, end_acknowledged: bool },
}

/// From the peer to the application.
#[derive(Debug)]
pub(super) enum Incoming {
    /// BRTP.
    Reliable { flow: FlowReceiver, reassembly: Reassembly },
    /// BRCTP.
    Rateless { flow: RatelessReceiver, reassembly: Reassembly },
    /// BTP.
    Timely(TimelyIncoming),
}

/// Messages that come in time or not at all.
#[derive(Debug)]
pub(super) struct TimelyIncoming {
    pub(super) flow: TimelyReceiver,
    assembly: DatagramAssembly,
    end: Option<End>,
    /// Messages that the application was too slow to take.
    overflowed: u64,
}

impl TimelyIncoming {
    pub(super) fn new(flow: TimelyReceiver, assembly: DatagramAssembly) -> Self {
        Self { flow, assembly, end: None, overflowed: 0 }
    }
}

/// The peer said that it has nothing more to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    totals: Totals,
    /// Until then they are waited for.
    until: Timestamp,
    passed: bool,
}

/// What a flow had in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) symbols: u64,
    pub(super) messages: u64,
}

/// What incoming symbols became.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// Symbols that somebody has altered.
    pub(super) altered: u64,
    /// Number of one of these that nothing but packets of its own batch can have spoilt.
    pub(super) certain: Option<u64>,
    /// Symbols or blocks whose seals were whole.
    pub(super) opened: u64,
}

impl Outgoing {
    pub(super) fn is_finished(&self) -> bool {
        match self {
            Self::Reliable { queue, .. } | Self::Rateless { queue, .. } => queue.is_finished(),
            Self::Timely { queue, .. } => queue.is_finished(),
        }
    }

    /// Declares the end.
    pub(super) fn finish(&mut self) {
        match self {
            Self::Reliable { queue, .. } | Self::Rateless { queue, .. } => queue.finish(),
            Self::Timely { queue, .. } => queue.finish(),
        }
    }

    /// What the flow had, if its end is to be told now apart from the data.
    pub(super) fn end(&self) -> Option<Totals> {
        match self {
            Self::Timely { queue, flow, .. } if queue.is_finished() && queue.is_empty() => {
                Some(Totals { symbols: flow.symbols(), messages: queue.messages() })
            }
            _ => None,
        }
    }

    /// Takes a message that is worth something until `expires`, where that counts.
    pub(super) fn push(&mut self, message: Bytes, expires: Timestamp) {
        match self {
            Self::Reliable { queue, .. } | Self::Rateless { queue, .. } => queue.push(message),
            Self::Timely { queue, .. } => queue.push(message, expires),
        }
    }

    /// The first `count` messages have gone with the first flight.
    pub(super) fn skip(&mut self, count: u64) {
        if let Self::Timely { queue, .. } = self {
            queue.skip(count);
        }
    }

    /// Octets that wait to be sent or to be acknowledged. What is kept for the repair of messages with
    /// deadlines waits for nothing.
    pub(super) fn waiting_bytes(&self) -> usize {
        match self {
            Self::Timely { queue, .. } => queue.bytes_held(),
            _ => self.bytes_held(),
        }
    }

    /// Octets that wait and octets kept for repair.
    pub(super) fn bytes_held(&self) -> usize {
        match self {
            Self::Reliable { queue, .. } | Self::Rateless { queue, .. } => queue.bytes_held(),
            Self::Timely { queue, .. } => queue.bytes_held(),
        }
        .saturating_add(self.flow_bytes())
    }

    pub(super) fn flow_bytes(&self) -> usize {
        match self {
            Self::Reliable { flow, .. } => flow.bytes_held(),
            Self::Rateless { flow, .. } => flow.bytes_held(),
            Self::Timely { flow, .. } => flow.bytes_held(),
        }
    }

    /// Octets that were not sent yet.
    pub(super) fn unsent_bytes(&self) -> usize {
        match self {
            Self::Reliable { queue, flow } => queue.bytes_held() + flow.unsent_bytes(),
            Self::Rateless { queue, .. } => queue.bytes_held(),
            Self::Timely { queue, .. } => queue.bytes_held(),
        }
    }

    /// Packets are for this link from now on, one of several; `None`: there is but one.
    pub(super) fn set_link(&mut self, link: Option<u64>) {
        match self {
            Self::Reliable { flow, .. } => flow.set_link(link),
            Self::Rateless { flow, .. } => flow.set_link(link),
            Self::Timely { .. } => {}
        }
    }

    /// See [`FlowSender::has_share_of`].
    pub(super) fn has_share_of(&self, link: u64) -> bool {
        match self {
            Self::Reliable { flow, .. } => flow.has_share_of(link),
            Self::Rateless { flow, .. } => flow.has_share_of(link),
            Self::Timely { .. } => false,
        }
    }

    /// See [`FlowSender::release_share`].
    pub(super) fn release_share(&mut self, link: u64) {
        match self {
            Self::Reliable { flow, .. } => flow.release_share(link),
            Self::Rateless { flow, .. } => flow.release_share(link),
            Self::Timely { .. } => {}
        }
    }

    /// The peer knows the end that was told apart from the data.
    pub(super) fn on_end_acknowledged(&mut self) {
        if let Self::Timely { end_acknowledged, .. } = self {
            *end_acknowledged = true;
        }
    }

    /// Whether the peer has everything, or it is too late for the rest; and knows the end, if there
    /// is one.
    pub(super) fn is_all_acknowledged(&self) -> bool {
        match self {
            Self::Reliable { queue, flow } => queue.is_empty() && flow.all_acknowledged(),
            Self::Rateless { queue, flow } => queue.is_empty() && flow.all_acknowledged(),
            Self::Timely { queue, flow, end_acknowledged } => {
                queue.is_empty() && flow.is_idle() && (*end_acknowledged || !queue.is_finished())
            }
        }
    }

    pub(super) fn has_data(&self) -> bool {
        match self {
            Self::Reliable { queue, flow } => !queue.is_empty() || flow.wants_to_send(),
            Self::Rateless { queue, flow } => !queue.is_empty() || flow.wants_to_send(),
            Self::Timely { queue, flow, .. } => !queue.is_empty() || flow.wants_to_send(),
        }
    }

    /// The next coded payload into `out`. Symbols are cut as late as possible, so that small
    /// messages share them and the size follows the path.
    pub(super) fn poll(
        &mut self,
        now: Timestamp,
        symbol_size: usize,
        path: &PathView,
        mut seal: Option<&mut SymbolKey>,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        match self {
            Self::Reliable { queue, flow } => {
                while flow.wants_symbol() && !queue.is_empty() {
                    let number = flow.next_symbol();
                    let pushed = flow.push_symbol(symbol_size, |octets| match &mut seal {
                        None => queue.fill_symbol(octets),
                        Some(key) => key.seal(number, octets, |octets| queue.fill_symbol(octets)),
                    });
                    if !pushed {
                        break;
                    }
                }
                flow.poll(now, path, !queue.is_empty(), out)
            }
            Self::Rateless { queue, flow } => {
                while flow.wants_block() && !queue.is_empty() {
                    let number = flow.next_number();
                    let pushed = flow.push_block(symbol_size, path, |octets| {
                        let len = match &mut seal {
                            None => queue.fill_symbol(octets),
                            Some(key) => key.seal_block(number, octets, |o| queue.fill_symbol(o)),
                        };
                        (len, !queue.is_empty())
                    });
                    if !pushed {
                        break;
                    }
                }
                flow.poll(now, out)
            }
            Self::Timely { queue, flow, .. } => {
                queue.expire(now);
                while flow.wants_symbol() && !queue.is_empty() {
                    let number = flow.symbols();
                    let pushed = flow.push_symbol(symbol_size, |octets| match &mut seal {
                        None => queue.fill_symbol(octets),
                        Some(key) => {
                            let mut expires = now;
                            let len = key.seal(number, octets, |octets| {
                                let (len, at) = queue.fill_symbol(octets);
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
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        match self {
            Self::Reliable { .. } | Self::Rateless { .. } => None,
            Self::Timely { flow, .. } => flow.next_timeout(),
        }
    }

    pub(super) fn on_timeout(&mut self, now: Timestamp, path: &PathView) {
        if let Self::Timely { queue, flow, .. } = self {
            queue.expire(now);
            flow.on_timeout(now, path);
        }
    }

    /// Nothing was heard for long: whether there is something to say again.
    pub(super) fn on_probe_timeout(&mut self) -> bool {
        match self {
            Self::Reliable { flow, .. } => flow.on_probe_timeout(),
            Self::Rateless { flow, .. } => flow.on_probe_timeout(),
            Self::Timely { flow, .. } => flow.wants_to_send(),
        }
    }

    pub(super) fn awaits_decoding(&self) -> bool {
        match self {
            Self::Reliable { flow, .. } => flow.awaits_decoding(),
            Self::Rateless { flow, .. } => !flow.all_acknowledged(),
            Self::Timely { .. } => false,
        }
    }

    pub(super) fn on_rank_feedback(
        &mut self,
        now: Timestamp,
        feedback: &RankFeedback,
        path: &PathView,
    ) -> Result<(), FlowError> {
        match self {
            Self::Reliable { flow, .. } => flow.on_rank_feedback(now, feedback, path),
            Self::Rateless { flow, .. } => flow.on_rank_feedback(0, now, feedback, path),
            // Told at the end of a connection only; there is nothing to be done about it.
            Self::Timely { .. } => Ok(()),
        }
    }

    pub(super) fn on_credit(&mut self, symbols: u64) {
        match self {
            Self::Reliable { flow, .. } => flow.on_credit(symbols),
            Self::Rateless { flow, .. } => flow.on_credit(symbols),
            Self::Timely { .. } => {}
        }
    }

    pub(super) fn counters(&self) -> SenderCounters {
        match self {
            Self::Reliable { flow, .. } => flow.counters(),
            Self::Rateless { flow, .. } => flow.counters(),
            Self::Timely { flow, .. } => flow.counters(),
        }
    }

    pub(super) fn expired(&self) -> u64 {
        match self {
            Self::Reliable { .. } | Self::Rateless { .. } => 0,
            Self::Timely { queue, .. } => queue.expired(),
        }
    }
}

impl Incoming {
    pub(super) fn on_packet(
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
    pub(super) fn take(
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
                    altered += flow.verify(|number, octets| {
                        let is_genuine = key.open_block(number, octets);
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
    pub(super) fn take_early(
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
    pub(super) fn note_early(&mut self, delivered: u32) {
        if let Self::Timely(timely) = self {
            let ids = (0..MAX_EARLY_MESSAGES as u32).filter(|id| delivered >> id & 1 == 1);
            ids.for_each(|id| timely.assembly.note_delivered(u64::from(id)));
        }
    }

    pub(super) fn feedback_at(&self) -> Option<Timestamp> {
        match self {
            Self::Reliable { flow, .. } => flow.feedback_at(),
            Self::Rateless { flow, .. } => flow.feedback_at(),
            Self::Timely(_) => None,
        }
    }

    pub(super) fn feedback(&mut self, now: Timestamp, rtt: Duration) -> Option<RankFeedback> {
        match self {
            Self::Reliable { flow, .. } => Some(flow.feedback(now, rtt)),
            Self::Rateless { flow, .. } => Some(flow.feedback(now, rtt)),
            Self::Timely(_) => None,
        }
    }

    /// True when the peer should be told of its credit.
    pub(super) fn update_credit(&mut self, now: Timestamp, rtt: Duration, inbox: &Inbox) -> bool {
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

    pub(super) fn credit(&mut self) -> Option<u64> {
        match self {
            Self::Reliable { flow, .. } => Some(flow.credit()),
            Self::Rateless { flow, .. } => Some(flow.credit()),
            Self::Timely(_) => None,
        }
    }

    /// The peer's flow had `totals`; what is missing of that comes until `until` or not at all.
    pub(super) fn on_end(&mut self, totals: Totals, until: Timestamp) {
        if let Self::Timely(timely) = self
            && timely.end.is_none()
        {
            timely.end = Some(End { totals, until, passed: false });
        }
    }

    /// When [`Incoming::on_timeout`] wants to be called.
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        match self {
            Self::Timely(timely) => timely.end.filter(|end| !end.passed).map(|end| end.until),
            Self::Reliable { .. } | Self::Rateless { .. } => None,
        }
    }

    /// Gives up what is missing when its time is over, or sees that nothing is.
    pub(super) fn on_timeout(&mut self, now: Timestamp) {
        self.give_up(|end, flow| end.until <= now || flow.has_all_below(end.totals.symbols));
    }

    /// The peer has closed: if it had told its end before, that is the end, and what is missing does
    /// not come any more.
    pub(super) fn on_closed(&mut self) {
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
    pub(super) fn is_finished(&self) -> bool {
        match self {
            Self::Reliable { reassembly, .. } | Self::Rateless { reassembly, .. } => {
                reassembly.is_finished()
            }
            Self::Timely(timely) => timely.end.is_some_and(|end| end.passed),
        }
    }

    pub(super) fn bytes_held(&self) -> usize {
        match self {
            Self::Reliable { flow, reassembly } => flow.bytes_held() + reassembly.bytes_held(),
            Self::Rateless { flow, reassembly } => flow.bytes_held() + reassembly.bytes_held(),
            Self::Timely(timely) => timely.flow.bytes_held() + timely.assembly.bytes_held(),
        }
    }

    pub(super) fn counters(&self) -> ReceiverCounters {
        match self {
            Self::Reliable { flow, .. } => flow.counters(),
            Self::Rateless { flow, .. } => flow.counters(),
            Self::Timely(timely) => timely.flow.counters(),
        }
    }

    /// What did not arrive, or late.
    pub(super) fn residual(&self) -> Residual {
        match self {
            Self::Reliable { .. } | Self::Rateless { .. } => Residual::default(),
            Self::Timely(timely) => Residual {
                messages_lost: timely.assembly.lost() + timely.overflowed,
                messages_overflowed: timely.overflowed,
                ..timely.flow.residual()
            },
        }
    }
}

impl Incoming {
    /// Sets how long the repair of gaps is left to relays.
    pub(super) fn set_patience(&mut self, patience: Duration) {
        if let Self::Reliable { flow, .. } = self {
            flow.set_patience(patience);
        }
    }
}

impl Incoming {
    /// Whether what is sealed together are blocks.
    pub(super) fn is_of_blocks(&self) -> bool {
        matches!(self, Self::Rateless { .. })
    }

    /// Number and octets of the symbol of a source packet.
    pub(super) fn source<'a>(&self, payload: &'a [u8]) -> Option<(u64, &'a [u8])> {
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

impl Outgoing {
    /// The number by which the peer can tell which way a packet took: that of its symbol, or of its
    /// block.
    pub(super) fn number_of(&self, kind: PacketKind, payload: &[u8]) -> Option<u64> {
        let mut reader = Reader::new(payload);
        match self {
            Self::Reliable { flow, .. } if kind == PacketKind::Source => {
                Some(SourceHeader::decode(&mut reader)?.number(flow.next_symbol()))
            }
            Self::Timely { flow, .. } if kind == PacketKind::Source => {
                Some(SourceHeader::decode(&mut reader)?.number(flow.symbols()))
            }
            Self::Rateless { flow, .. } => {
                Some(RepairHeader::decode(&mut reader)?.first_symbol(flow.next_number()))
            }
            Self::Reliable { .. } | Self::Timely { .. } => None,
        }
    }

    /// What was sent was altered on the way.
    pub(super) fn on_altered(&mut self) {
        if let Self::Rateless { flow, .. } = self {
            flow.on_altered();
        }
    }

    /// Takes out of a report what was not sent.
    pub(super) fn limit(&self, feedback: &mut RankFeedback) {
        let end = match self {
            Self::Reliable { flow, .. } => flow.sent_end(),
            Self::Rateless { flow, .. } => flow.next_number(),
            Self::Timely { .. } => return,
        };
        if feedback.seen_end > end {
            feedback.seen_end = end;
            feedback.entries.retain(|entry| entry.first.saturating_add(entry.span) <= end);
        }
    }

    /// Whether messages are worth something for a while only.
    pub(super) fn is_timely(&self) -> bool {
        matches!(self, Self::Timely { .. })
    }

    /// Sets how long the repair of gaps is left to relays.
    pub(super) fn set_patience(&mut self, patience: Duration) {
        if let Self::Rateless { flow, .. } = self {
            flow.set_patience(patience);
        }
    }
}
