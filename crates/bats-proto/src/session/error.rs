//! What a peer may break in the symbols of a session.

use super::channel::ChannelViolation;

/// A violation of the session protocol by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// A symbol holds an invalid frame.
    #[error("malformed message frame")]
    Malformed,
    /// A message is longer than the limit that this end announced.
    #[error("message of {0} bytes is longer than allowed")]
    TooLong(u64),
    /// A continuation without a beginning, a beginning inside a message, or too much data.
    #[error("message parts out of sequence")]
    Sequence,
    /// A symbol with parts of more messages than begin before it or end after it.
    #[error("parts of more than two incomplete messages in a symbol")]
    TooManyParts,
    /// Data after the end mark.
    #[error("message after the end mark")]
    AfterEnd,
    /// A message that begins beyond the credit for messages.
    #[error("message beyond the credit")]
    BeyondCredit,
    /// A frame of the channels breaks a rule.
    #[error("{0}")]
    Channel(#[from] ChannelViolation),
}
