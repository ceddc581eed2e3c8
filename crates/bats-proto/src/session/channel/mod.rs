//! Channels: streams of bytes within a session, each with its own order, credit and end.
//!
//! All frames of channels are in symbols, or in blocks of BRCTP, so the code of the flow makes them
//! reliable, and nothing here is ever sent again. A frame needs no other frame to be read: symbols and
//! blocks are handed up when they are decoded. Then only the channels that have bytes in a missing one
//! wait for it, while there is memory for parts behind gaps and the flow can continue; see ADR 0021.
//!
//! Unread bytes are charged to the channel and to the session. They are no longer in the flow, so a
//! channel that is not read does not hold up the others until the session's window is used up.

#[cfg(test)]
mod block_tests;
mod error;
mod grant;
mod ids;
mod limits;
mod own_channels;
mod peer_channels;
mod receive;
mod receive_window;
mod schedule;
mod send;
mod send_window;
#[cfg(test)]
mod tests;
mod turn_order;

use std::collections::{BTreeMap, VecDeque};

pub use error::{ChannelError, ChannelViolation};
use grant::Grant;
use ids::MESSAGES;
pub use limits::{CHANNEL_COST, ChannelLimits, MAX_CHANNELS, MESSAGE_CHARGE};
use own_channels::OwnChannels;
use peer_channels::PeerChannels;
use receive::{Order, ReceiveHalf, ReceiveState};
use receive_window::ReceiveWindow;
use send::{SendHalf, SendState};
use send_window::SendWindow;
use turn_order::TurnOrder;

use crate::session::SessionError;
use crate::wire::channel::ChannelFrame;
use crate::wire::message::{self, MessageFrame};
use crate::wire::parameters::ChannelParameters;
use crate::wire::varint::Reader;

/// The largest code that fits the wire.
const MAX_CODE: u64 = (1 << 62) - 1;

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
    limits: ChannelLimits,
    peer: ChannelParameters,
    table: BTreeMap<u64, Channel>,
    own_channels: OwnChannels,
    peer_channels: PeerChannels,
    receive_window: ReceiveWindow,
    send_window: SendWindow,
    /// Credit for messages from the peer, and to the peer. What is given back are the charged bytes of
    /// messages that the application has taken.
    message_credit: u64,
    message_grant: Grant,
    turns: TurnOrder,
    /// Channels with control frames.
    control: VecDeque<u64>,
    events: VecDeque<ChannelEvent>,
}

impl Channels {
    /// No channels, with the limits of both ends.
    pub fn new(is_server: bool, limits: ChannelLimits, peer: ChannelParameters) -> Self {
        let own = limits.parameters();
        Self {
            limits,
            peer,
            table: BTreeMap::new(),
            own_channels: OwnChannels::new(is_server, peer.channels),
            peer_channels: PeerChannels::new(own.channels),
            receive_window: ReceiveWindow::new(own.session_credit),
            send_window: SendWindow::new(peer.session_credit),
            message_credit: peer.message_credit,
            message_grant: Grant::new(own.message_credit),
            turns: TurnOrder::default(),
            control: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The receive budget has grown.
    pub fn raise_limits(&mut self, limits: ChannelLimits) {
        let channels = self.limits.channels.max(limits.channels);
        self.peer_channels.grant().raise(channels);
        self.limits = ChannelLimits { channels, ..limits };
        self.receive_window.grant().update(limits.session_window);
    }

    /// Number of open channels.
    pub fn open(&self) -> usize {
        self.table.len()
    }

    /// Bytes queued on all channels.
    pub fn queued_bytes(&self) -> usize {
        self.send_window.queued()
    }

    /// Bytes received and not read, and memory of parts behind gaps.
    pub fn bytes_held(&self) -> usize {
        self.receive_window.unread() as usize + self.receive_window.early()
    }

    /// Credit given for messages; see [`ChannelFrame::Credit`].
    pub fn granted_messages(&self) -> u64 {
        self.message_grant.granted()
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
        let id = self.own_channels.open().ok_or(ChannelError::TooMany)?;
        self.insert(id);
        Ok(ChannelId(id))
    }

    /// The next channel that the peer has opened, in the order of arrival.
    pub fn accept_channel(&mut self) -> Option<ChannelId> {
        self.peer_channels.accept().map(ChannelId)
    }

    fn insert(&mut self, id: u64) {
        let send = SendHalf::new(self.peer.channel_credit);
        let receive = ReceiveHalf::new(self.limits.parameters().channel_credit);
        self.table.insert(id, Channel { send, receive, has_control: false });
    }

    /// Queues as many bytes as there is room for; returns their number.
    pub fn write(&mut self, id: ChannelId, data: &[u8]) -> Result<usize, ChannelError> {
        let limit = self.limits.queue_limit(self.send_window.queued());
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
            self.send_window.queue(len);
            self.activate(id.0);
        }
        Ok(len)
    }

    /// Whether [`write`](Self::write) would queue at least a byte; else a writable event follows.
    pub fn check_room(&mut self, id: ChannelId) -> Result<(), ChannelError> {
        let limit = self.limits.queue_limit(self.send_window.queued());
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
        self.send_window.drop_queued(channel.send.reset(code.min(MAX_CODE), state));
        self.queue_control(id);
    }

    /// Reads no more: what has arrived and what follows is dropped.
    pub fn stop(&mut self, id: ChannelId, code: u64) {
        let Some(channel) = self.table.get_mut(&id.0) else { return };
        self.receive_window.on_early_changed(channel.receive.early_bytes(), 0);
        let dropped = channel.receive.stop(code.min(MAX_CODE));
        self.give_back(dropped);
        self.queue_control(id.0);
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
        self.give_back(len as u64);
        self.queue_control(id.0);
        Ok(Some(len))
    }

    /// The application has taken a message of this length.
    pub fn on_message_taken(&mut self, len: usize) {
        let charged = len as u64 + MESSAGE_CHARGE;
        self.message_grant.give_back(charged, self.limits.message_window);
    }

    /// So many bytes were read or dropped: the peer may send as many again.
    fn give_back(&mut self, bytes: u64) {
        self.receive_window.grant().give_back(bytes, self.limits.session_window);
    }

    /// The channel may have something to send.
    fn activate(&mut self, id: u64) {
        if let Some(channel) = self.table.get_mut(&id)
            && channel.send.is_sendable()
            && !core::mem::replace(&mut channel.send.is_active, true)
        {
            self.turns.push(id);
        }
    }

    /// Queues the channel if it has a control frame to send.
    fn queue_control(&mut self, id: u64) {
        let unread = self.receive_window.unread();
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
        if !self.own_channels.is_own(id) {
            self.peer_channels.grant().give_back(1, self.limits.channels);
        }
    }

    /// The channel that a frame is for, opened if it is a new one of the peer; `None` if it is closed.
    fn find(&mut self, id: u64) -> Result<Option<&mut Channel>, ChannelViolation> {
        if id == MESSAGES {
            return Err(ChannelViolation::MessageChannel);
        }
        let index = (id - 1) / 2;
        if self.own_channels.is_own(id) {
            if !self.own_channels.is_opened(index) {
                return Err(ChannelViolation::NotOpened(id));
            }
        } else if self.peer_channels.see(id, index)? {
            self.insert(id);
            if self.peer_channels.take_notification() {
                self.events.push_back(ChannelEvent::Incoming);
            }
        }
        Ok(self.table.get_mut(&id))
    }

    /// Whether symbols may be handed up before missing ones.
    pub fn takes_early(&self) -> bool {
        self.receive_window.early() <= self.limits.early_budget()
    }

    /// Takes the channel frames of a symbol that was decoded before a missing one. Returns whether it has others,
    /// which wait for their turn.
    ///
    /// # Errors
    ///
    /// The peer broke a rule.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
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

    /// Takes the channel frames out of a block that was decoded before a missing one. Messages stay in it, and parts
    /// for which there is no memory: a block may have many, so each is checked. Returns false if such parts are left.
    /// They may be tried again: a part that continues what has arrived needs no memory behind gaps.
    ///
    /// # Errors
    ///
    /// The peer broke a rule.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub fn take_early(&mut self, block: &mut Vec<u8>) -> Result<bool, SessionError> {
        // What stays is moved to the front, so that no second block is in memory.
        let (mut at, mut kept) = (0_usize, 0_usize);
        let mut is_all_taken = true;
        loop {
            let mut reader = Reader::new(block.get(at..).unwrap_or_default());
            let frame = message::decode(&mut reader)
                .map_err(|message::Malformed| SessionError::Malformed)?;
            let end = block.len().saturating_sub(reader.remaining());
            match frame {
                None => break,
                Some(MessageFrame::Channel(frame)) if self.has_early_room(&frame) => {
                    self.on_frame(frame, Order::Early)?;
                }
                Some(frame) => {
                    is_all_taken &= !matches!(frame, MessageFrame::Channel(_));
                    block.copy_within(at..end, kept);
                    kept = kept.saturating_add(end.saturating_sub(at));
                }
            }
            at = end;
        }
        block.truncate(kept);
        block.shrink_to_fit();
        Ok(is_all_taken)
    }

    /// Whether there is memory for a frame before its turn.
    fn has_early_room(&self, frame: &ChannelFrame<'_>) -> bool {
        let ChannelFrame::Data { id, offset, data, .. } = *frame else { return true };
        // The first part of a channel has no receiving half yet.
        let cost = match self.table.get(&id) {
            Some(channel) => channel.receive.early_cost(offset, data.len()),
            None => ReceiveHalf::new(0).early_cost(offset, data.len()),
        };
        cost == 0 || self.receive_window.early().saturating_add(cost) <= self.limits.early_budget()
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
            ChannelFrame::SessionCredit(bytes) => self.send_window.on_credit(bytes),
            ChannelFrame::Channels(channels) => {
                if self.own_channels.on_limit(channels) {
                    self.events.push_back(ChannelEvent::Available);
                }
            }
        }
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
        self.receive_window.charge(id, fresh)?;
        let Some(channel) = self.table.get_mut(&id) else { return Ok(()) };
        let early = channel.receive.early_bytes();
        let dropped = channel.receive.on_data(id, offset, data, is_end, order)?;
        self.receive_window.on_early_changed(early, channel.receive.early_bytes());
        self.on_received(id, dropped);
        Ok(())
    }

    fn on_reset(&mut self, id: u64, code: u64, size: u64) -> Result<(), ChannelViolation> {
        let Some(channel) = self.find(id)? else { return Ok(()) };
        let fresh = channel.receive.fresh(id, size, true)?;
        self.receive_window.charge(id, fresh)?;
        let Some(channel) = self.table.get_mut(&id) else { return Ok(()) };
        let early = channel.receive.early_bytes();
        let dropped = channel.receive.on_reset(code, size);
        self.receive_window.on_early_changed(early, channel.receive.early_bytes());
        self.on_received(id, dropped);
        Ok(())
    }

    /// Notifies the application, and gives dropped bytes back.
    fn on_received(&mut self, id: u64, dropped: u64) {
        if let Some(channel) = self.table.get_mut(&id)
            && channel.receive.is_readable()
            && !core::mem::replace(&mut channel.receive.is_notified, true)
        {
            self.events.push_back(ChannelEvent::Readable(ChannelId(id)));
        }
        if dropped > 0 {
            self.give_back(dropped);
        }
        self.remove_if_done(id);
    }
}
