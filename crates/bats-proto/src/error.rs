//! Error types.

use bytes::Bytes;

use crate::relay::GroupEntryError;
use crate::wire::flow::NodeId;

/// Why a connection could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The configuration is invalid; the text says which part and why.
    #[error("unusable configuration: {0}")]
    Configuration(String),
    /// The server name is neither a DNS name nor an address.
    #[error("'{0}' is not a valid server name")]
    ServerName(String),
    /// The endpoint's memory budget is used up by other connections.
    #[error("no memory left for another connection within the endpoint's budget")]
    Memory,
}

/// Why a message was not accepted. The message is returned if it may be sent later.
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
    /// The connection is closed or unknown.
    #[error("the connection is closed")]
    Closed,
}

/// Why a call for a group failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// This endpoint is no relay node.
    #[error("this endpoint is no relay node")]
    NoRelay,
    /// This node is a member of the group already.
    #[error("this node is a member of group {0} already")]
    AlreadyJoined(NodeId),
    /// This endpoint has as many senders or memberships as it may have.
    #[error("there are {0} senders or memberships of groups already")]
    TooMany(usize),
    /// The library that derives keys failed.
    #[error("the keys of the group cannot be derived")]
    Keys,
    /// The group or the entry is not valid.
    #[error("{0}")]
    Entry(#[from] GroupEntryError),
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
    /// Nothing was received from the peer for the idle timeout.
    #[error("nothing received from the peer for {0:?}")]
    IdleTimeout(core::time::Duration),
    /// The handshake did not finish in time.
    #[error("the peer did not complete the handshake in time")]
    HandshakeTimeout,
    /// TLS or the retry procedure failed; the text says why.
    #[error("handshake failed: {0}")]
    Handshake(String),
    /// The peer violated the protocol; the text names the rule.
    #[error("peer violated the protocol: {0}")]
    PeerMisbehaved(String),
    /// The peer reported that this side violated the protocol.
    #[error("peer reports a protocol violation: {0}")]
    ReportedByPeer(String),
    /// No common protocol version.
    #[error("no protocol version in common with the peer")]
    Version,
    /// The server refused the connection, for instance because it is full.
    #[error("refused by the server")]
    Refused,
    /// TCP and QUIC modes: the underlying stream ended or failed before either side closed the
    /// connection.
    #[error("connection lost: {0}")]
    Lost(String),
    /// Pollution attack: so many symbols, blocks or packets in a row failed authentication, and
    /// there was no other path.
    #[error("relays polluted the session: {0} symbols or blocks in a row failed authentication")]
    Pollution(u64),
    /// For 30 s the endpoint had no memory for the received data of the connection; this number of
    /// bytes was missing.
    #[error(
        "no memory for received data, {0} bytes are missing: other connections use the memory \
         budget of the endpoint; raise it, or lower the receive budgets"
    )]
    Memory(usize),
    /// The network interface that a link is bound to cannot be used; the text says why.
    #[error("{0}")]
    Interface(String),
    /// A defect of this implementation, which was noticed before it could affect other connections;
    /// the text says what happened. Please report it.
    #[error("internal error: {0}")]
    Internal(String),
    /// The confidentiality or integrity limit of the AEAD is reached (RFC 9001, section 6.6).
    #[error("AEAD limit of the packet protection reached")]
    AeadLimit,
}
