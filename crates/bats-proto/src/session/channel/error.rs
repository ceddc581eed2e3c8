//! Errors of channels, at this end and at the peer.

/// Why a call on a channel has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// Nothing can be read or written now; an event follows when it can.
    #[error("the channel has nothing to read, or no room to write, now")]
    Blocked,
    /// The connection has no channels.
    #[error(
        "the connection has no channels: both ends must allow them (`TransportConfig::channels`), \
         in mode BRTP or BRCTP"
    )]
    Unsupported,
    /// As many channels are open as the peer allows; an event follows when it allows more.
    #[error("the peer allows no more open channels now")]
    TooMany,
    /// The sending direction was finished or reset before.
    #[error("the sending direction of the channel is finished")]
    Finished,
    /// The peer reads no more.
    #[error("the peer stopped reading the channel, code {code}")]
    Stopped {
        /// The code of the peer's application.
        code: u64,
    },
    /// The peer sends no more; what it sent before is lost.
    #[error("the peer reset the channel, code {code}")]
    Reset {
        /// The code of the peer's application.
        code: u64,
    },
    /// There is no such channel: it was closed, or the connection was.
    #[error("the channel is closed")]
    Closed,
}

/// The rule that the peer broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelViolation {
    /// Channels are used although one end has none.
    #[error("a channel frame without agreed channels")]
    Unsupported,
    /// A frame for a channel of this end that was never opened.
    #[error("channel {0} was not opened")]
    NotOpened(u64),
    /// More channels than allowed.
    #[error("channel {0} is beyond the number of channels allowed")]
    TooMany(u64),
    /// Channel 0, which has messages only.
    #[error("bytes, a reset or a stop for channel 0")]
    MessageChannel,
    /// Bytes beyond the credit of the channel or the session.
    #[error("bytes of channel {0} beyond the credit")]
    BeyondCredit(u64),
    /// The size of a channel contradicts earlier frames.
    #[error("the size of channel {0} contradicts its bytes")]
    Size(u64),
    /// Bytes are missing or repeated when all earlier symbols have arrived.
    #[error("bytes of channel {0} out of sequence")]
    Sequence(u64),
}
