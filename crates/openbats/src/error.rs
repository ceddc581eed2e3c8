//! Errors, one type per operation.

use std::io;
use std::net::SocketAddr;

use bats_proto::CloseReason;
use bats_proto::wire::flow::NodeId;
use bytes::Bytes;

use crate::fingerprint::Fingerprint;

/// Why an endpoint could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The UDP address cannot be used.
    #[error("cannot use UDP address {address}: {source}")]
    Bind {
        /// The requested address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The TCP port of the same number cannot be used. A server that offers mode TCP needs it.
    #[error("cannot use TCP address {address}: {source}")]
    BindTcp {
        /// The requested address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The system refused a resource that the I/O thread needs.
    #[error("cannot start the I/O thread: {0}")]
    Thread(#[source] io::Error),
    /// Certificate, key or another part of the configuration is unusable.
    #[error("unusable configuration: {0}")]
    Configuration(String),
}

/// Why a server is not trusted, or the file of known servers cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// The server has another certificate than recorded.
    #[error(
        "the certificate of {name} has changed: its fingerprint is {found}, and {path} has {known} \
         in line {line}. Either someone intercepts the connection, or the server has a new \
         certificate. Compare the fingerprint with the one that the server prints; if it is the \
         same, remove line {line} of {path}"
    )]
    Changed {
        /// The name under which the server is recorded.
        name: String,
        /// The recorded fingerprint.
        known: Fingerprint,
        /// The fingerprint of the server's certificate.
        found: Fingerprint,
        /// The file of known servers.
        path: String,
        /// The line of the recorded fingerprint, from 1.
        line: usize,
    },
    /// The server is not recorded, and only known servers are allowed.
    #[error(
        "{name} is not in {path}, and only known servers are allowed. If the server prints the \
         fingerprint {found}, add this line: {name} sha256:{found}"
    )]
    Unknown {
        /// The name under which the server would be recorded.
        name: String,
        /// The fingerprint of the server's certificate.
        found: Fingerprint,
        /// The file of known servers.
        path: String,
    },
    /// The server sent no certificate.
    #[error("the server sent no certificate, so that it cannot be recognized")]
    NoCertificate,
    /// The file of known servers cannot be used.
    #[error("cannot use the known servers in {path}: {problem}")]
    File {
        /// The file.
        path: String,
        /// The problem with it.
        problem: String,
    },
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
    /// The name does not resolve to an address.
    #[error("no address of '{name}': {problem}")]
    Name {
        /// The requested name.
        name: String,
        /// The error of the resolver.
        problem: String,
    },
    /// The remote address and the endpoint's socket have different IP families.
    #[error("an endpoint bound to {local} cannot reach {remote}: bind it to the other IP family")]
    Family {
        /// The endpoint's address.
        local: SocketAddr,
        /// The remote address.
        remote: SocketAddr,
    },
    /// Other connections have reserved the endpoint's memory budget.
    #[error("no memory left for another connection within the endpoint's budget")]
    Memory,
    /// No route leads to the node.
    #[error("no route leads to {node}: add one before opening a session")]
    NoRoute {
        /// The node.
        node: NodeId,
    },
    /// No established link leads to the neighbour, or its certificate is not that of the node.
    #[error(
        "no link with {node} is established, or its certificate is not the one of `peer`: open a link first"
    )]
    NoLink {
        /// The node.
        node: NodeId,
    },
    /// The server is not trusted.
    #[error(transparent)]
    Trust(#[from] TrustError),
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
    /// Only from [`Connection::try_send`](crate::Connection::try_send): the send budget is used up.
    /// The message is returned.
    #[error("send budget used up, wait until the connection is writable")]
    Blocked(Bytes),
    /// The message is longer than the peer accepts.
    #[error("message of {size} bytes is longer than the {limit} bytes that the peer accepts")]
    TooLarge {
        /// Size of the message in bytes.
        size: usize,
        /// Limit of the peer in bytes.
        limit: usize,
    },
    /// `finish` was called before.
    #[error("the sending direction is finished")]
    Finished,
    /// The connection is over.
    #[error("connection closed: {0}")]
    Closed(#[from] CloseReason),
}

/// Why no more messages will be received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// The connection ended before the peer had finished.
    #[error("connection closed: {0}")]
    Closed(#[from] CloseReason),
}

/// Why a call on a channel failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The connection has no channels.
    #[error(
        "the connection has no channels: both ends must allow them (`TransportConfig::channels`), \
         in mode BRTP"
    )]
    Unsupported,
    /// The sending direction was finished or reset before.
    #[error("the sending direction of the channel is finished")]
    Finished,
    /// The peer reads no more.
    #[error("the peer stopped reading the channel, code {code}")]
    Stopped {
        /// The code of the peer's application.
        code: u64,
    },
    /// The peer sends no more; what has not been read is lost.
    #[error("the peer reset the channel, code {code}")]
    Reset {
        /// The code of the peer's application.
        code: u64,
    },
    /// This end has stopped or reset the channel before.
    #[error("the channel is closed")]
    Closed,
    /// The connection is over. Bytes that have arrived on its channels are lost with it.
    #[error("connection closed: {0}")]
    ConnectionClosed(#[from] CloseReason),
}

impl ChannelError {
    /// The result of a call, or `None` if it is blocked.
    pub(crate) fn of_call<T>(
        result: Result<T, bats_proto::ChannelError>,
    ) -> Option<Result<T, Self>> {
        use bats_proto::ChannelError as Error;
        Some(match result {
            Ok(value) => Ok(value),
            Err(Error::Blocked | Error::TooMany) => return None,
            Err(Error::Unsupported) => Err(Self::Unsupported),
            Err(Error::Finished) => Err(Self::Finished),
            Err(Error::Stopped { code }) => Err(Self::Stopped { code }),
            Err(Error::Reset { code }) => Err(Self::Reset { code }),
            Err(_) => Err(Self::Closed),
        })
    }
}

impl From<ChannelError> for io::Error {
    fn from(error: ChannelError) -> Self {
        let kind = match &error {
            ChannelError::Unsupported => io::ErrorKind::Unsupported,
            ChannelError::Finished | ChannelError::Stopped { .. } => io::ErrorKind::BrokenPipe,
            ChannelError::Reset { .. } => io::ErrorKind::ConnectionReset,
            ChannelError::Closed => io::ErrorKind::NotConnected,
            ChannelError::ConnectionClosed(_) => io::ErrorKind::ConnectionAborted,
        };
        Self::new(kind, error)
    }
}
