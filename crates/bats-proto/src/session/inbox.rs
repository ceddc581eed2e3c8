use std::collections::VecDeque;

use bytes::Bytes;

/// Bytes that a message takes in addition to its content: its queue entry and the header of its
/// allocation. Without this cost, empty messages (three bytes on the wire) would be free.
pub const MESSAGE_OVERHEAD: usize = 2 * size_of::<Bytes>();

/// Complete messages that the application has not received yet.
#[derive(Debug, Default)]
pub struct Inbox {
    messages: VecDeque<Bytes>,
    bytes: usize,
}

impl Inbox {
    /// Bytes held, including the overhead of each message.
    pub fn bytes_held(&self) -> usize {
        self.bytes
    }

    /// Frees unused memory.
    pub fn trim(&mut self) {
        self.messages.shrink_to_fit();
    }

    /// Whether no message is queued.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether further symbols may be turned into messages. A symbol can hold hundreds of messages,
    /// which take more memory than the symbol itself. One message is always accepted, however long.
    pub fn has_room(&self, budget: usize) -> bool {
        self.messages.is_empty() || self.bytes <= budget
    }

    /// Adds a message.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub fn push(&mut self, message: Bytes) {
        self.bytes = self.bytes.saturating_add(message.len().saturating_add(MESSAGE_OVERHEAD));
        self.messages.push_back(message);
    }

    /// Removes the oldest message.
    pub fn pop(&mut self) -> Option<Bytes> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.len() + MESSAGE_OVERHEAD;
        Some(message)
    }
}
