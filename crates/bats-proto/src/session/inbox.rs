use std::collections::VecDeque;

use bytes::Bytes;

/// Bytes that a message costs beside its content: its place in the queue and the head of its
/// allocation. Without it empty messages, three bytes on the wire, would cost nothing.
pub const MESSAGE_OVERHEAD: usize = 2 * size_of::<Bytes>();

/// Complete messages that the application has not taken.
#[derive(Debug, Default)]
pub struct Inbox {
    messages: VecDeque<Bytes>,
    bytes: usize,
}

impl Inbox {
    /// Bytes held, overhead included.
    pub fn bytes_held(&self) -> usize {
        self.bytes
    }

    /// Frees unused memory.
    pub fn trim(&mut self) {
        self.messages.shrink_to_fit();
    }

    /// Whether there is nothing to take.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether further symbols should become messages: a symbol can hold hundreds of them, which
    /// take more memory than it. One is always possible, however long.
    pub fn has_room(&self, budget: usize) -> bool {
        self.messages.is_empty() || self.bytes <= budget
    }

    /// Adds a message.
    pub fn push(&mut self, message: Bytes) {
        self.bytes += message.len() + MESSAGE_OVERHEAD;
        self.messages.push_back(message);
    }

    /// Takes the oldest message.
    pub fn pop(&mut self) -> Option<Bytes> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.len() + MESSAGE_OVERHEAD;
        Some(message)
    }
}
