//! Errors, one type per operation.

use std::io;
use std::net::SocketAddr;

use bats_proto::CloseReason;
use bytes::Bytes;

/// Why an endpoint could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The address cannot be used.
    #[error("cannot use UDP address {address}: {source}")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The TCP port of the same number cannot be used, which a server needs that offers mode TCP.
    #[error("cannot use TCP address {address}: {source}")]
    BindTcp {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused something that the I/O thread needs.
    #[error("cannot start the I/O thread: {0}")]
    Thread(#[source] io::Error),
    /// Certificate, key or another part of the configuration is unusable.
    #[error("unusable configuration: {0}")]
    Configuration(String),
}

/// Why a connection was not established.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Certificate, key or another part of the configuration is unusable.
    #[error("unusable configuration: {0}")]
    Configuration(String),
    /// The server name is neither a DNS name nor an address.
    #[error("'{0}' is not a valid server name")]
    ServerName(String),
    /// The name has no address.
    #[error("no address of '{name}': {problem}")]
    Name {
        /// The name asked for.
        name: String,
        /// What the resolver said.
        problem: String,
    },
    /// The socket of this endpoint is of the other IP family.
    #[error("an endpoint bound to {local} cannot reach {remote}: bind it to the other IP family")]
    Family {
        /// The endpoint's address.
        local: SocketAddr,
        /// The address to be reached.
        remote: SocketAddr,
    },
    /// The endpoint's memory budget is promised to other connections.
    #[error("no memory left for another connection within the endpoint's budget")]
    Memory,
    /// The handshake did not succeed.
    #[error(transparent)]
    Closed(#[from] CloseReason),
    /// The endpoint was shut down or its I/O thread ended.
    #[error("the endpoint is shut down")]
    EndpointClosed,
}

/// Why a message was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// Only from [`Connection::try_send`](crate::Connection::try_send): the send budget is used
    /// up. The message comes back.
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
    /// `finish` was called before.
    #[error("the sending direction is finished")]
    Finished,
    /// The connection is over.
    #[error("connection closed: {0}")]
    Closed(#[from] CloseReason),
}

/// Why no message will come any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// The connection ended before the peer had finished.
    #[error("connection closed: {0}")]
    Closed(#[from] CloseReason),
}

/// Why a certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The text is not PEM, or holds nothing that was looked for.
    #[error("{path}: {problem}")]
    Content {
        /// The file, or what it was for.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Generate(String),
}
