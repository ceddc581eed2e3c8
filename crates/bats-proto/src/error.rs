//! Errors, one type per boundary.

use bytes::Bytes;

/// Why a connection could not be begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The configuration cannot be used; the text says which part and why.
    #[error("unusable configuration: {0}")]
    Configuration(String),
    /// The server name is neither a DNS name nor an address.
    #[error("'{0}' is not a valid server name")]
    ServerName(String),
    /// The endpoint has promised all its memory to other connections.
    #[error("no memory left for another connection within the endpoint's budget")]
    Memory,
}

/// Why a message was not taken. The message comes back where it may be sent later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The send budget is used up; wait for [`Event::Writable`](crate::Event::Writable).
    #[error("send budget used up, wait until the connection is writable")]
    Blocked(Bytes),
    /// The message is longer than the peer accepts.
    #[error("message of {size} bytes is longer than the {limit} bytes that the peer accepts")]
    TooLarge {
        /// Bytes of the message.
        size: usize,
        /// Bytes that the peer accepts.
        limit: usize,
    },
    /// `finish` or `close` was called before.
    #[error("the sending direction is finished")]
    Finished,
    /// No such connection (any more).
    #[error("the connection is closed")]
    Closed,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// This side called `close`.
    #[error("closed locally")]
    Local,
    /// The peer's application closed with this code and text.
    #[error("closed by the peer: code {code}{}{}", if .reason.is_empty() { "" } else { ", " }, .reason)]
    Peer {
        /// The application's code.
        code: u64,
        /// The application's text.
        reason: String,
    },
    /// Nothing was heard from the peer for the idle time-out.
    #[error("nothing heard from the peer for {0:?}")]
    IdleTimeout(core::time::Duration),
    /// The handshake did not finish in time.
    #[error("the peer did not complete the handshake in time")]
    HandshakeTimeout,
    /// TLS or the retry procedure failed; the text says whose fault it was.
    #[error("handshake failed: {0}")]
    Handshake(String),
    /// The peer broke the protocol; the text names the rule.
    #[error("peer violated the protocol: {0}")]
    PeerMisbehaved(String),
    /// The peer reported that this side broke the protocol.
    #[error("peer reports a protocol violation: {0}")]
    ReportedByPeer(String),
    /// No common protocol version.
    #[error("no protocol version in common with the peer")]
    Version,
    /// The server refused the connection, for instance because it is full.
    #[error("refused by the server")]
    Refused,
    /// Modes over a stream of somebody else's: it ended or broke before either side said that the
    /// connection is over.
    #[error("connection lost: {0}")]
    Lost(String),
    /// Relays have altered what they carried: so many symbols, blocks or packets one after the other
    /// had to be refused, and there was no other way.
    #[error("relays on the way altered what they carried: {0} refused one after the other")]
    Altered(u64),
    /// A key protected as many packets as is safe.
    #[error("limit of the packet protection reached")]
    AeadLimit,
}
