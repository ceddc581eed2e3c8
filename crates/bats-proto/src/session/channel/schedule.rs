//! Which channel fills the next symbol: control frames first, then deficit round robin.

use super::ids::MESSAGES;
use super::send::{MIN_PART, Turn};
use super::{Channel, ChannelEvent, Channels};
use crate::session::SendQueue;
use crate::wire::channel::{self, ChannelFrame};
use crate::wire::varint::Writer;

/// Least number of free bytes of a symbol for which a frame is written.
const MIN_ROOM: usize = MIN_PART + 8;
/// Least number of free bytes for which control frames are written: the longest ones of the session fit. Symbols are
/// longer; the last part of a sealed block may be shorter.
const MIN_CONTROL_ROOM: usize = 28;

impl Channels {
    /// Whether [`fill_symbol`](Self::fill_symbol) would write a frame of a channel.
    pub fn is_sendable(&self) -> bool {
        self.has_control() || (self.turns.has_channels() && self.send_window.room() > 0)
    }

    /// Whether frames of channels wait to be sent: credit, resets or stops.
    pub fn has_control(&self) -> bool {
        !self.control.is_empty()
            || self.receive_window.is_grant_due()
            || self.peer_channels.is_grant_due()
            || self.message_grant.is_due()
    }

    /// Fills a symbol with frames of the channels and with messages. Returns its length.
    pub fn fill_symbol(&mut self, messages: &mut SendQueue, symbol: &mut [u8]) -> usize {
        let mut written = self.write_control(symbol);
        if messages.is_sendable() {
            self.turns.push_messages();
        }
        while symbol.len() - written >= MIN_ROOM
            && let Some(id) = self.turns.first()
        {
            let rest = &mut symbol[written..];
            if id != MESSAGES && self.send_window.room() == 0 {
                // The session waits for credit. Messages need none of it.
                written += messages.fill_symbol(rest);
                break;
            }
            let is_new = self.turns.begin_turn();
            let (len, turn) = if id == MESSAGES {
                self.turns.serve_messages(messages, is_new, rest)
            } else {
                self.serve(id, is_new, rest)
            };
            written += len;
            match turn {
                Turn::Full => break,
                turn => self.turns.end_turn(turn),
            }
        }
        written
    }

    fn serve(&mut self, id: u64, is_new: bool, rest: &mut [u8]) -> (usize, Turn) {
        let room = self.send_window.room();
        let limit = self.limits.queue_limit(self.send_window.queued());
        let Some(channel) = self.table.get_mut(&id) else { return (0, Turn::Idle) };
        if is_new && channel.send.is_sendable() {
            channel.send.begin_turn();
        }
        let mut writer = Writer::new(rest);
        let (part, turn) = channel.send.write_part(id, room, &mut writer);
        let len = if part > 0 || turn == Turn::Idle { writer.written() } else { 0 };
        self.send_window.on_sent(part);
        channel.send.is_active = turn != Turn::Idle;
        if channel.send.is_blocked && channel.send.queued() <= limit / 2 {
            channel.send.is_blocked = false;
            self.events.push_back(ChannelEvent::Writable(id.into()));
        }
        self.remove_if_done(id);
        (len, turn)
    }

    /// Writes the control frames that are due, as far as they fit.
    fn write_control(&mut self, symbol: &mut [u8]) -> usize {
        if !self.has_control() || symbol.len() < MIN_CONTROL_ROOM {
            return 0;
        }
        let mut writer = Writer::new(symbol);
        let written = self.write_control_frames(&mut writer);
        debug_assert!(written.is_some() || !self.control.is_empty(), "the symbol has room");
        writer.written()
    }

    fn write_control_frames(&mut self, writer: &mut Writer<'_>) -> Option<()> {
        let limits = &self.limits;
        if let Some(credit) = self.receive_window.grant().due(limits.session_window) {
            channel::encode(writer, &ChannelFrame::SessionCredit(credit))?;
            self.receive_window.grant().on_sent(credit);
        }
        if let Some(channels) = self.peer_channels.grant().due(limits.channels) {
            channel::encode(writer, &ChannelFrame::Channels(channels))?;
            self.peer_channels.grant().on_sent(channels);
        }
        if let Some(bytes) = self.message_grant.due(limits.message_window) {
            channel::encode(writer, &ChannelFrame::Credit { id: MESSAGES, bytes })?;
            self.message_grant.on_sent(bytes);
        }
        while let Some(&id) = self.control.front() {
            let unread = self.receive_window.unread();
            if let Some(channel) = self.table.get_mut(&id) {
                let window = self.limits.channel_window(unread, channel.receive.share);
                write_channel_control(writer, id, channel, window)?;
                channel.has_control = false;
            }
            self.control.pop_front();
            self.remove_if_done(id);
        }
        Some(())
    }
}

/// Writes the control frames of a channel; `None` if not all fit.
fn write_channel_control(
    writer: &mut Writer<'_>,
    id: u64,
    channel: &mut Channel,
    window: u64,
) -> Option<()> {
    if channel.send.is_reset_due() {
        let (code, size) = (channel.send.code(), channel.send.sent());
        channel::encode(writer, &ChannelFrame::Reset { id, code, size })?;
        channel.send.on_reset_sent();
    }
    if channel.receive.is_stop_due() {
        let code = channel.receive.code();
        channel::encode(writer, &ChannelFrame::Stop { id, code })?;
        channel.receive.on_stop_sent();
    }
    if let Some(bytes) = channel.receive.credit_due(window) {
        channel::encode(writer, &ChannelFrame::Credit { id, bytes })?;
        channel.receive.grant(bytes);
    }
    Some(())
}
