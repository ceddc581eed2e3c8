use std::collections::VecDeque;

use bytes::Bytes;

/// Bytes that a message takes in addition to its content: its queue entry and the header of its
/// allocation. Without this cost, empty messages (three bytes on the wire) would be free.
pub const MESSAGE_OVERHEAD: usize = 2 * size_of::<Bytes>();

/// Entries for which room is made when the queue is full, or an eighth of those that it has: doubling would need three
/// times the memory of the entries, and [`MESSAGE_OVERHEAD`] has room for two. An empty queue keeps room for as many.
const MORE_ENTRIES: usize = 4;

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

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
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
        let len = self.messages.len();
        if len == self.messages.capacity() {
            self.messages.reserve_exact((len / 8).max(MORE_ENTRIES));
        }
        self.messages.push_back(message);
    }

    /// Removes the oldest message.
    pub fn pop(&mut self) -> Option<Bytes> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.len() + MESSAGE_OVERHEAD;
        if self.messages.is_empty() && self.messages.capacity() > MORE_ENTRIES {
            self.messages = VecDeque::new();
        }
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_take_no_more_memory_than_their_cost_and_none_when_all_are_taken() {
        let mut inbox = Inbox::default();
        for number in 1..100_000 {
            let before = inbox.messages.capacity();
            inbox.push(Bytes::new());
            let after = inbox.messages.capacity();
            // While it grows, the entries are there twice.
            let entries = after + if before < after { before } else { 0 };
            let most = number * 17 / 16 + 2 * MORE_ENTRIES;
            assert!(
                entries * size_of::<Bytes>() <= most * MESSAGE_OVERHEAD,
                "{entries} of {number}"
            );
        }
        while inbox.pop().is_some() {}
        assert_eq!((inbox.messages.capacity(), inbox.bytes_held()), (0, 0));
    }
}
