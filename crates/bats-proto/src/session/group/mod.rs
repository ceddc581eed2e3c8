//! Messages to groups: a source sends, members receive, and nothing returns to the source.
//!
//! Messages have deadlines, as in mode BTP. The source announces the parameters of its flow to the members, who need
//! only the group's key. Losses are repaired hop by hop.

mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use core::time::Duration;

use crate::wire::flow::NodeId;

pub(crate) use receiver::GroupReceiver;
pub(crate) use sender::GroupSender;

/// Maximum number of sources that a member receives from at once. Announcements of others are refused.
pub const MAX_GROUP_SOURCES: usize = 16;
/// Time without an announcement after which a member gives a source up.
pub const GROUP_SOURCE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest symbol of a flow to a group in bytes: that of a packet of 1,500 bytes.
pub const MAX_GROUP_SYMBOL: u16 = 1_472;

/// Limits of a sender to a group, or of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// Sender: time after `send` at which a message expires if it was not sent. At most one hour.
    pub deadline: Duration,
    /// Longest message in bytes.
    pub max_message_size: usize,
    /// Sender: maximum number of bytes of messages that wait to be sent. One message is always accepted.
    pub send_budget: usize,
    /// Member: maximum number of bytes of unread messages of a source, and of incomplete ones. The oldest ones are
    /// dropped for new ones.
    pub receive_budget: usize,
}

impl Default for GroupOptions {
    /// A deadline of 200 ms, messages of up to 64 KiB, and 1 MiB each for sending and receiving.
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(200),
            max_message_size: 64 << 10,
            send_budget: 1 << 20,
            receive_budget: 1 << 20,
        }
    }
}

/// What happened to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupEvent {
    /// Member: there are messages to receive.
    Readable,
    /// Sender: there is room for messages after one was refused.
    Writable,
}

/// A message to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupMessage {
    /// The node that sent it. Any member can forge it: all have the same key.
    pub source: NodeId,
    /// Its content.
    pub message: bytes::Bytes,
}

/// Counters of a sender to a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupSenderStats {
    /// Messages accepted.
    pub messages: u64,
    /// Messages that expired before they were sent completely.
    pub expired: u64,
    /// Symbols sent.
    pub symbols: u64,
    /// Announcements sent.
    pub announcements: u64,
}

/// Counters of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupReceiverStats {
    /// Flows of sources that are received now.
    pub sources: u64,
    /// Messages taken by the application.
    pub messages: u64,
    /// Messages lost since their source was first heard, and those dropped unread for newer ones.
    pub messages_lost: u64,
    /// Coded packets of flows that were not announced.
    pub unknown: u64,
    /// Announcements that are not authentic, of an older instance of their source, or of more than
    /// [`MAX_GROUP_SOURCES`] sources.
    pub announcements_refused: u64,
    /// Symbols that failed authentication.
    pub polluted: u64,
    /// Packets and symbols that could not be parsed.
    pub malformed: u64,
}
