//! Channels: streams of bytes within a session, each with its own order, credit and end.
//!
//! All frames of channels are in symbols, so the code of the flow makes them reliable, and nothing
//! here is ever sent again. A frame needs no other frame to be read: symbols are handed up as soon as
//! they are decoded, and only the channels that have bytes in a missing symbol wait for it.
//!
//! Unread bytes are charged to the channel and to the session. They are no longer in the flow, so a
//! channel that is not read does not hold up the others until the session's window is used up.

mod error;
mod ids;
mod limits;
mod receive;
mod schedule;
mod send;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

pub use error::{ChannelError, ChannelViolation};
use ids::SeenIndexes;
pub use limits::{CHANNEL_COST, ChannelLimits, MAX_CHANNELS};
use receive::{Order, ReceiveHalf, ReceiveState};
use schedule::Schedule;
use send::{SendHalf, SendState};

use crate::session::SessionError;
use crate::wire::channel::ChannelFrame;
use crate::wire::message::{self, MessageFrame};
use crate::wire::parameters::ChannelParameters;
use crate::wire::varint::Reader;

/// The channel of the messages.
const MESSAGES: u64 = 0;
/// Charged for each message besides its bytes, at both ends.
pub const MESSAGE_CHARGE: u64 = 64;
/// A session grants the peer more credit when it is this part of its window.
const CREDIT_STEP: u64 = 8;

/// A channel of a session. The ends open channels independently: even numbers are the client's, odd
/// ones the server's, and number 0 stands for the messages. Numbers are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(u64);

impl ChannelId {
    /// Its number on the wire.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Counters and credit of a channel at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelStats {
    /// Bytes sent, without repetitions.
    pub bytes_sent: u64,
    /// Bytes written that are not sent yet.
    pub bytes_queued: u64,
    /// Bytes that the peer allows to be sent now.
    pub credit: u64,
    /// Bytes that have arrived in order.
    pub bytes_received: u64,
    /// Those of them that the application has not read.
    pub bytes_unread: u64,
}

impl From<u64> for ChannelId {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl core::fmt::Display for ChannelId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

/// Something that the application may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelEvent {
    /// The peer has opened a channel.
    Incoming,
    /// A channel can be opened again.
    Available,
    /// A channel has bytes, its end or a reset.
    Readable(ChannelId),
    /// A channel takes bytes again, or the peer reads no more.
    Writable(ChannelId),
}

#[derive(Debug)]
struct Channel {
    send: SendHalf,
    receive: ReceiveHalf,
    /// It is in the queue of channels with control frames.
    has_control: bool,
}

/// The channels of one session.
#[derive(Debug)]
pub struct Channels {
    is_server: bool,
    limits: ChannelLimits,
    peer: ChannelParameters,
    table: BTreeMap<u64, Channel>,

    /// Channels that this end has opened, and how many it may open.
    opened: u64,
    open_limit: u64,
    is_open_blocked: bool,
    /// The peer's channels: those seen, how many are closed, and how many it may open.
    seen: SeenIndexes,
    closed: u64,
    granted_channels: u64,
    channels_due: bool,
    unaccepted: VecDeque<u64>,
    is_incoming_notified: bool,

    /// Bytes of all channels: received, read or dropped, and the credit given.
    received: u64,
    consumed: u64,
    granted: u64,
    session_credit_due: bool,
    /// Memory of parts behind gaps.
    early: usize,
    /// Charged bytes of messages that the application has taken, and the credit given.
    messages_taken: u64,
    granted_messages: u64,
    message_credit_due: bool,

    /// Bytes of all channels in symbols, the peer's credit for them, and bytes queued.
    sent: u64,
    send_credit: u64,
    queued: usize,
    message_credit: u64,
    schedule: Schedule,
    /// Channels with control frames.
    control: VecDeque<u64>,
    events: VecDeque<ChannelEvent>,
}

impl Channels {
    /// No channels, with the limits of both ends.
    pub fn new(is_server: bool, limits: ChannelLimits, peer: ChannelParameters) -> Self {
        let own = limits.parameters();
        Self {
            is_server,
            limits,
            peer,
            table: BTreeMap::new(),
            opened: 0,
            open_limit: peer.channels,
            is_open_blocked: false,
            seen: SeenIndexes::default(),
            closed: 0,
            granted_channels: own.channels,
            channels_due: false,
            unaccepted: VecDeque::new(),
            is_incoming_notified: false,
            received: 0,
            consumed: 0,
            granted: own.session_credit,
            session_credit_due: false,
            early: 0,
            messages_taken: 0,
            granted_messages: own.message_credit,
            message_credit_due: false,
            sent: 0,
            send_credit: peer.session_credit,
            queued: 0,
            message_credit: peer.message_credit,
            schedule: Schedule::default(),
            control: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The receive budget has grown.
    pub fn raise_limits(&mut self, limits: ChannelLimits) {
        let channels = self.limits.channels.max(limits.channels);
        self.channels_due |= self.closed + channels > self.granted_channels;
        self.limits = ChannelLimits { channels, ..limits };
        self.update_session_credit();
    }

    /// Number of open channels.
    pub fn open(&self) -> usize {
        self.table.len()
    }

    /// Bytes queued on all channels.
    pub fn queued_bytes(&self) -> usize {
        self.queued
    }

    /// Bytes received and not read, and memory of parts behind gaps.
    pub fn bytes_held(&self) -> usize {
        (self.received - self.consumed) as usize + self.early
    }

    /// Credit given for messages; see [`ChannelFrame::Credit`].
    pub fn granted_messages(&self) -> u64 {
        self.granted_messages
    }

    /// Credit for messages from the peer.
    pub fn message_credit(&self) -> u64 {
        self.message_credit
    }

    /// The next event.
    pub fn pop_event(&mut self) -> Option<ChannelEvent> {
        self.events.pop_front()
    }

    /// Opens a channel. The peer learns of it by the first byte, or by the end.
    pub fn open_channel(&mut self) -> Result<ChannelId, ChannelError> {
        if self.opened >= self.open_limit.min(MAX_INDEX) {
            self.is_open_blocked = true;
            return Err(ChannelError::TooMany);
        }
        let id = self.opened * 2 + if self.is_server { 1 } else { 2 };
        self.opened += 1;
        self.insert(id);
        Ok(ChannelId(id))
    }

    /// The next channel that the peer has opened, in the order of arrival.
    pub fn accept_channel(&mut self) -> Option<ChannelId> {
        let id = self.unaccepted.pop_front();
        self.is_incoming_notified &= id.is_some();
        id.map(ChannelId)
    }

    fn insert(&mut self, id: u64) {
        let send = SendHalf::new(self.peer.channel_credit);
        let receive = ReceiveHalf::new(self.limits.parameters().channel_credit);
        self.table.insert(id, Channel { send, receive, has_control: false });
    }

    /// Queues as many bytes as there is room for; returns their number.
    pub fn write(&mut self, id: ChannelId, data: &[u8]) -> Result<usize, ChannelError> {
        let limit = self.limits.queue_limit(self.queued);
        let channel = self.table.get_mut(&id.0).ok_or(ChannelError::Closed)?;
        if let Some(refusal) = channel.send.refusal() {
            return Err(refusal);
        }
        let len = data.len().min(limit.saturating_sub(channel.send.queued()));
        if len == 0 && !data.is_empty() {
            channel.send.is_blocked = true;
            return Err(ChannelError::Blocked);
        }
        if len > 0 {
            channel.send.push(&data[..len]);
            self.queued += len;
            self.activate(id.0);
        }
        Ok(len)
    }

    /// Whether [`write`](Self::write) would queue at least a byte; else a writable event follows.
    pub fn check_room(&mut self, id: ChannelId) -> Result<(), ChannelError> {
        let limit = self.limits.queue_limit(self.queued);
        let channel = self.table.get_mut(&id.0).ok_or(ChannelError::Closed)?;
        if let Some(refusal) = channel.send.refusal() {
            return Err(refusal);
        }
        if channel.send.queued() >= limit {
            channel.send.is_blocked = true;
            return Err(ChannelError::Blocked);
        }
        Ok(())
    }

    /// Ends the sending direction after the queued bytes.
    pub fn finish(&mut self, id: ChannelId) -> Result<(), ChannelError> {
        let channel = self.table.get_mut(&id.0).ok_or(ChannelError::Closed)?;
        if let Some(refusal) = channel.send.refusal() {
            return Err(refusal);
        }
        channel.send.finish();
        self.activate(id.0);
        Ok(())
    }

    /// Gives up the sending direction: queued bytes are dropped. Has no effect after the end was sent.
    pub fn reset(&mut self, id: ChannelId, code: u64) {
        self.give_up(id.0, code, SendState::ResetDue);
    }

    fn give_up(&mut self, id: u64, code: u64, state: SendState) {
        let Some(channel) = self.table.get_mut(&id) else { return };
        self.queued -= channel.send.reset(code.min(MAX_CODE), state);
        self.queue_control(id);
    }

    /// Reads no more: what has arrived and what follows is dropped.
    pub fn stop(&mut self, id: ChannelId, code: u64) {
        let Some(channel) = self.table.get_mut(&id.0) else { return };
        self.early -= channel.receive.early_bytes();
        self.consumed += channel.receive.stop(code.min(MAX_CODE));
        self.queue_control(id.0);
        self.update_session_credit();
        self.remove_if_done(id.0);
    }

    /// Sets the share of a channel: one with twice the weight sends twice the bytes.
    pub fn set_weight(&mut self, id: ChannelId, weight: u8) -> Result<(), ChannelError> {
        self.table.get_mut(&id.0).ok_or(ChannelError::Closed)?.send.weight = weight.max(1);
        Ok(())
    }

    /// Lets the peer send up to one part in `share` of the session's free window on the channel.
    pub fn set_receive_share(&mut self, id: ChannelId, share: u8) -> Result<(), ChannelError> {
        self.table.get_mut(&id.0).ok_or(ChannelError::Closed)?.receive.share = share.max(1);
        self.queue_control(id.0);
        Ok(())
    }

    /// Counters and credit of a channel.
    pub fn stats(&self, id: ChannelId) -> Result<ChannelStats, ChannelError> {
        let channel = self.table.get(&id.0).ok_or(ChannelError::Closed)?;
        Ok(ChannelStats {
            bytes_sent: channel.send.sent(),
            bytes_queued: channel.send.queued() as u64,
            credit: channel.send.credit_left(),
            bytes_received: channel.receive.received(),
            bytes_unread: channel.receive.unread(),
        })
    }

    /// Copies received bytes to `out`; `None` at the end.
    pub fn read(&mut self, id: ChannelId, out: &mut [u8]) -> Result<Option<usize>, ChannelError> {
        let channel = self.table.get_mut(&id.0).ok_or(ChannelError::Closed)?;
        match channel.receive.state() {
            ReceiveState::Open => {}
            ReceiveState::Reset => {
                let code = channel.receive.code();
                channel.receive.finish();
                self.remove_if_done(id.0);
                return Err(ChannelError::Reset { code });
            }
            ReceiveState::StopDue | ReceiveState::Stopped | ReceiveState::Done => {
                return Err(ChannelError::Closed);
            }
        }
        if channel.receive.is_at_end() {
            channel.receive.finish();
            self.remove_if_done(id.0);
            return Ok(None);
        }
        if !channel.receive.is_readable() {
            channel.receive.is_notified = false;
            return Err(ChannelError::Blocked);
        }
        let len = channel.receive.read(out);
        self.consumed += len as u64;
        self.queue_control(id.0);
        self.update_session_credit();
        Ok(Some(len))
    }

    /// The application has taken a message of this length.
    pub fn on_message_taken(&mut self, len: usize) {
        self.messages_taken += len as u64 + MESSAGE_CHARGE;
        let credit = self.messages_taken + self.limits.message_window;
        let step = self.limits.message_window / CREDIT_STEP;
        self.message_credit_due |= credit - self.granted_messages >= step.max(1);
    }

    fn update_session_credit(&mut self) {
        let credit = self.consumed + self.limits.session_window;
        let step = self.limits.session_window / CREDIT_STEP;
        self.session_credit_due |= credit.saturating_sub(self.granted) >= step.max(1);
    }

    /// The channel may have something to send.
    fn activate(&mut self, id: u64) {
        if let Some(channel) = self.table.get_mut(&id)
            && channel.send.is_sendable()
            && !core::mem::replace(&mut channel.send.is_active, true)
        {
            self.schedule.push(id);
        }
    }

    /// Queues the channel if it has a control frame to send.
    fn queue_control(&mut self, id: u64) {
        let unread = self.received - self.consumed;
        if let Some(channel) = self.table.get_mut(&id)
            && let window = self.limits.channel_window(unread, channel.receive.share)
            && (channel.send.is_reset_due()
                || channel.receive.is_stop_due()
                || channel.receive.credit_due(window).is_some())
            && !core::mem::replace(&mut channel.has_control, true)
        {
            self.control.push_back(id);
        }
    }

    /// Forgets a channel of which both halves are done.
    fn remove_if_done(&mut self, id: u64) {
        let is_done = self.table.get(&id).is_some_and(|channel| {
            channel.send.is_done() && channel.receive.state() == ReceiveState::Done
        });
        if !is_done {
            return;
        }
        self.table.remove(&id);
        if !self.is_own(id) {
            self.closed += 1;
            let channels = self.closed + self.limits.channels;
            let step = self.limits.channels / CREDIT_STEP;
            self.channels_due |= channels - self.granted_channels >= step.max(1);
        }
    }

    /// Whether this end opens channels with such numbers.
    fn is_own(&self, id: u64) -> bool {
        (id % 2 == 1) == self.is_server
    }

    /// The channel that a frame is for, opened if it is a new one of the peer; `None` if it is closed.
    fn find(&mut self, id: u64) -> Result<Option<&mut Channel>, ChannelViolation> {
        if id == MESSAGES {
            return Err(ChannelViolation::MessageChannel);
        }
        let index = (id - 1) / 2;
        if self.is_own(id) {
            if index >= self.opened {
                return Err(ChannelViolation::NotOpened(id));
            }
        } else if index >= self.granted_channels {
            return Err(ChannelViolation::TooMany(id));
        } else if !self.seen.contains(index) {
            self.seen.insert(index);
            self.insert(id);
            self.unaccepted.push_back(id);
            if !core::mem::replace(&mut self.is_incoming_notified, true) {
                self.events.push_back(ChannelEvent::Incoming);
            }
        }
        Ok(self.table.get_mut(&id))
    }

    /// Whether symbols may be handed up before missing ones.
    pub fn takes_early(&self) -> bool {
        self.early <= self.limits.early_budget()
    }

    /// Takes the channel frames of a symbol that was decoded before a missing one. Returns whether it has others,
    /// which wait for their turn.
    ///
    /// # Errors
    ///
    /// The peer broke a rule.
    pub fn feed_early(&mut self, symbol: &[u8]) -> Result<bool, SessionError> {
        let mut reader = Reader::new(symbol);
        let mut has_others = false;
        while let Some(frame) =
            message::decode(&mut reader).map_err(|message::Malformed| SessionError::Malformed)?
        {
            if let MessageFrame::Channel(frame) = frame {
                self.on_frame(frame, Order::Early)?;
            } else {
                has_others = true;
            }
        }
        Ok(has_others)
    }

    /// Takes a frame of a symbol after all symbols before it.
    ///
    /// # Errors
    ///
    /// The peer broke a rule.
    pub fn feed(&mut self, frame: ChannelFrame<'_>) -> Result<(), ChannelViolation> {
        self.on_frame(frame, Order::InOrder)
    }

    fn on_frame(&mut self, frame: ChannelFrame<'_>, order: Order) -> Result<(), ChannelViolation> {
        match frame {
            ChannelFrame::Data { id, offset, data, end } => {
                self.on_data(id, offset, data, end, order)?;
            }
            ChannelFrame::Reset { id, code, size } => self.on_reset(id, code, size)?,
            ChannelFrame::Stop { id, code } => {
                if self.find(id)?.is_some_and(|channel| channel.send.is_open()) {
                    self.give_up(id, code, SendState::StopDue);
                    self.events.push_back(ChannelEvent::Writable(ChannelId(id)));
                }
            }
            ChannelFrame::Credit { id: MESSAGES, bytes } => {
                self.message_credit = self.message_credit.max(bytes);
            }
            ChannelFrame::Credit { id, bytes } => {
                if let Some(channel) = self.find(id)? {
                    channel.send.on_credit(bytes);
                    self.activate(id);
                }
            }
            ChannelFrame::SessionCredit(bytes) => self.send_credit = self.send_credit.max(bytes),
            ChannelFrame::Channels(channels) => {
                self.open_limit = self.open_limit.max(channels);
                if self.opened < self.open_limit && core::mem::take(&mut self.is_open_blocked) {
                    self.events.push_back(ChannelEvent::Available);
                }
            }
        }
        Ok(())
    }

    /// Counts bytes that the peer has sent, within the session's credit.
    fn charge(&mut self, id: u64, fresh: u64) -> Result<(), ChannelViolation> {
        if fresh > self.granted - self.received {
            return Err(ChannelViolation::BeyondCredit(id));
        }
        self.received += fresh;
        Ok(())
    }

    fn on_data(
        &mut self,
        id: u64,
        offset: u64,
        data: &[u8],
        is_end: bool,
        order: Order,
    ) -> Result<(), ChannelViolation> {
        let Some(channel) = self.find(id)? else { return Ok(()) };
        let fresh = channel.receive.fresh(id, offset + data.len() as u64, is_end)?;
        self.charge(id, fresh)?;
        let Some(channel) = self.table.get_mut(&id) else { return Ok(()) };
        let early = channel.receive.early_bytes();
        let dropped = channel.receive.on_data(id, offset, data, is_end, order)?;
        self.early = self.early + channel.receive.early_bytes() - early;
        self.on_received(id, dropped);
        Ok(())
    }

    fn on_reset(&mut self, id: u64, code: u64, size: u64) -> Result<(), ChannelViolation> {
        let Some(channel) = self.find(id)? else { return Ok(()) };
        let fresh = channel.receive.fresh(id, size, true)?;
        self.charge(id, fresh)?;
        let Some(channel) = self.table.get_mut(&id) else { return Ok(()) };
        let early = channel.receive.early_bytes();
        let dropped = channel.receive.on_reset(code, size);
        self.early = self.early + channel.receive.early_bytes() - early;
        self.on_received(id, dropped);
        Ok(())
    }

    /// Notifies the application, and gives dropped bytes back.
    fn on_received(&mut self, id: u64, dropped: u64) {
        self.consumed += dropped;
        if let Some(channel) = self.table.get_mut(&id)
            && channel.receive.is_readable()
            && !core::mem::replace(&mut channel.receive.is_notified, true)
        {
            self.events.push_back(ChannelEvent::Readable(ChannelId(id)));
        }
        if dropped > 0 {
            self.update_session_credit();
        }
        self.remove_if_done(id);
    }
}

/// Channels of one end in the life of a session: their numbers must fit the wire.
const MAX_INDEX: u64 = 1 << 60;
/// The largest code that fits the wire.
const MAX_CODE: u64 = (1 << 62) - 1;
