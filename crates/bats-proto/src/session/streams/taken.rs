//! What has been taken from a receiving direction.

use bytes::Bytes;

use crate::session::Inbox;

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

impl Taken {
    /// Puts a complete message into the inbox.
    pub(super) fn add(&mut self, inbox: &mut Inbox, message: Bytes) {
        self.bytes += message.len() as u64;
        inbox.push(message);
    }
}

/// Result of taking early data.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::session) struct TakenEarly {
    pub(in crate::session) messages: u64,
    pub(in crate::session) bytes: u64,
    /// The early messages delivered so far, as a bit mask by message number.
    pub(in crate::session) delivered: u32,
}
