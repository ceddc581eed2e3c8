//! Which channel fills the next symbol: control frames first, then deficit round robin.

use super::send::{MIN_PART, Turn};
use super::{Channel, Channels, MESSAGES};
use crate::session::SendQueue;
use crate::wire::channel::{self, ChannelFrame};
use crate::wire::varint::Writer;

/// Least number of free bytes of a symbol for which a frame is written.
const MIN_ROOM: usize = MIN_PART + 8;
/// Bytes of messages in a turn: as many as for a channel of the default weight.
const MESSAGE_QUANTUM: usize = 2_048;

/// The order of turns.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Channels that have data to send. Channel 0 stands for the messages.
    active: std::collections::VecDeque<u64>,
    /// Whether the turn of the first channel has begun.
    is_in_turn: bool,
    has_messages: bool,
    message_deficit: usize,
}

impl Schedule {
    pub(super) fn push(&mut self, id: u64) {
        self.active.push_back(id);
    }

    fn end_turn(&mut self, turn: Turn) {
        self.is_in_turn = false;
        match (self.active.pop_front(), turn) {
            (Some(id), Turn::Over) => self.active.push_back(id),
            (Some(MESSAGES), _) => (self.has_messages, self.message_deficit) = (false, 0),
            _ => {}
        }
    }
}

impl Channels {
    /// Whether [`fill_symbol`](Self::fill_symbol) would write a frame of a channel.
    pub fn is_sendable(&self) -> bool {
        let has_bytes = self.schedule.active.len() > usize::from(self.schedule.has_messages);
        self.has_control() || (has_bytes && self.sent < self.send_credit)
    }

    fn has_control(&self) -> bool {
        !self.control.is_empty()
            || self.session_credit_due
            || self.channels_due
            || self.message_credit_due
    }

    /// Fills a symbol with frames of the channels and with messages. Returns its length.
    pub fn fill_symbol(&mut self, messages: &mut SendQueue, symbol: &mut [u8]) -> usize {
        let mut written = self.write_control(symbol);
        if messages.is_sendable() && !self.schedule.has_messages {
            self.schedule.has_messages = true;
            self.schedule.push(MESSAGES);
        }
        while symbol.len() - written >= MIN_ROOM
            && let Some(&id) = self.schedule.active.front()
        {
            let rest = &mut symbol[written..];
            if id != MESSAGES && self.sent >= self.send_credit {
                // The session waits for credit. Messages need none of it.
                written += messages.fill_symbol(rest);
                break;
            }
            let is_new = !core::mem::replace(&mut self.schedule.is_in_turn, true);
            let (len, turn) = if id == MESSAGES {
                self.serve_messages(messages, is_new, rest)
            } else {
                self.serve(id, is_new, rest)
            };
            written += len;
            match turn {
                Turn::Full => break,
                turn => self.schedule.end_turn(turn),
            }
        }
        written
    }

    fn serve_messages(
        &mut self,
        messages: &mut SendQueue,
        is_new: bool,
        rest: &mut [u8],
    ) -> (usize, Turn) {
        let deficit = &mut self.schedule.message_deficit;
        *deficit += if is_new { MESSAGE_QUANTUM } else { 0 };
        let allowed = rest.len().min(*deficit);
        let len = messages.fill_symbol(&mut rest[..allowed]);
        *deficit -= len;
        let turn = match messages.is_sendable() {
            false => Turn::Idle,
            true if allowed == rest.len() => Turn::Full,
            true => Turn::Over,
        };
        (len, turn)
    }

    fn serve(&mut self, id: u64, is_new: bool, rest: &mut [u8]) -> (usize, Turn) {
        let room = self.send_credit - self.sent;
        let limit = self.limits.queue_limit(self.queued);
        let Some(channel) = self.table.get_mut(&id) else { return (0, Turn::Idle) };
        if is_new && channel.send.is_sendable() {
            channel.send.begin_turn();
        }
        let mut writer = Writer::new(rest);
        let (part, turn) = channel.send.write_part(id, room, &mut writer);
        let len = if part > 0 || turn == Turn::Idle { writer.written() } else { 0 };
        self.sent += part as u64;
        self.queued -= part;
        channel.send.is_active = turn != Turn::Idle;
        if channel.send.is_blocked && channel.send.queued() <= limit / 2 {
            channel.send.is_blocked = false;
            self.events.push_back(super::ChannelEvent::Writable(id.into()));
        }
        self.remove_if_done(id);
        (len, turn)
    }

    /// Writes the control frames that are due, as far as they fit.
    fn write_control(&mut self, symbol: &mut [u8]) -> usize {
        if !self.has_control() {
            return 0;
        }
        let mut writer = Writer::new(symbol);
        let written = self.write_control_frames(&mut writer);
        debug_assert!(written.is_some() || !self.control.is_empty(), "the symbol has room");
        writer.written()
    }

    fn write_control_frames(&mut self, writer: &mut Writer<'_>) -> Option<()> {
        if self.session_credit_due {
            let credit = self.consumed + self.limits.session_window;
            channel::encode(writer, &ChannelFrame::SessionCredit(credit))?;
            (self.granted, self.session_credit_due) = (credit, false);
        }
        if self.channels_due {
            let channels = self.closed + self.limits.channels;
            channel::encode(writer, &ChannelFrame::Channels(channels))?;
            (self.granted_channels, self.channels_due) = (channels, false);
        }
        if self.message_credit_due {
            let bytes = self.messages_taken + self.limits.message_window;
            channel::encode(writer, &ChannelFrame::Credit { id: MESSAGES, bytes })?;
            (self.granted_messages, self.message_credit_due) = (bytes, false);
        }
        while let Some(&id) = self.control.front() {
            let unread = self.received - self.consumed;
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
