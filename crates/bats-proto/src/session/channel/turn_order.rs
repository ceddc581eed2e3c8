//! Whose turn it is: deficit round robin over the channels and the messages.

use std::collections::VecDeque;

use super::ids::MESSAGES;
use super::send::Turn;
use crate::session::SendQueue;

/// Bytes of messages in a turn: as many as for a channel of the default weight.
const MESSAGE_QUANTUM: usize = 2_048;

/// The order of turns.
#[derive(Debug, Default)]
pub(super) struct TurnOrder {
    /// Channels that have data to send. Channel 0 stands for the messages.
    active: VecDeque<u64>,
    /// Whether the turn of the first channel has begun.
    is_in_turn: bool,
    has_messages: bool,
    message_deficit: usize,
}

impl TurnOrder {
    /// Adds a channel that is not in the order.
    pub(super) fn push(&mut self, id: u64) {
        self.active.push_back(id);
    }

    /// Adds the messages unless they are in the order.
    pub(super) fn push_messages(&mut self) {
        if !core::mem::replace(&mut self.has_messages, true) {
            self.push(MESSAGES);
        }
    }

    /// Whether a channel other than the messages has data to send.
    pub(super) fn has_channels(&self) -> bool {
        self.active.len() > usize::from(self.has_messages)
    }

    /// The channel whose turn it is.
    pub(super) fn first(&self) -> Option<u64> {
        self.active.front().copied()
    }

    /// Begins the turn of the first channel; false if it has begun before.
    pub(super) fn begin_turn(&mut self) -> bool {
        !core::mem::replace(&mut self.is_in_turn, true)
    }

    /// The turn of the first channel is over, or it has nothing more to send.
    pub(super) fn end_turn(&mut self, turn: Turn) {
        self.is_in_turn = false;
        match (self.active.pop_front(), turn) {
            (Some(id), Turn::Over) => self.active.push_back(id),
            (Some(MESSAGES), _) => (self.has_messages, self.message_deficit) = (false, 0),
            _ => {}
        }
    }

    /// Writes messages in their turn. Returns the bytes written and how the turn goes on.
    pub(super) fn serve_messages(
        &mut self,
        messages: &mut SendQueue,
        is_new: bool,
        rest: &mut [u8],
    ) -> (usize, Turn) {
        self.message_deficit += if is_new { MESSAGE_QUANTUM } else { 0 };
        let allowed = rest.len().min(self.message_deficit);
        let len = messages.fill_symbol(&mut rest[..allowed]);
        self.message_deficit -= len;
        let turn = match messages.is_sendable() {
            false => Turn::Idle,
            true if allowed == rest.len() => Turn::Full,
            true => Turn::Over,
        };
        (len, turn)
    }
}
