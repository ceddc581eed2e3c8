//! The OpenBATS protocol core: wire format, security, links, flows, sessions, relays and congestion
//! control, without sockets, clocks or threads (sans I/O).
//!
//! BRTP and BTP code a sliding window of symbols with dense random linear combinations over
//! GF(256), in batches that relays recode like the inner code of RFC 9426. BRCTP uses the outer
//! code of RFC 9426.
//!
//! A driver calls [`Endpoint::handle`] for each input, then [`Endpoint::poll`] until it returns
//! [`Output::Timeout`]. Time and randomness are arguments, so that the same core runs on real
//! sockets and in virtual time.
#![forbid(unsafe_code)]

pub mod config;
pub mod congestion;
pub mod connection;
pub mod crypto;
mod datagram;
pub mod endpoint;
pub mod error;
pub mod event;
pub mod flow;
#[doc(hidden)]
pub mod fuzzing;
pub mod handshake;
pub mod link;
#[cfg(any(kani, test))]
mod proofs;
mod remote;
pub mod session;
pub mod stats;
pub mod stream;
#[doc(hidden)]
pub mod testing;
/// The wire format: parsers and writers of the crate `bats-wire`.
pub mod wire {
    pub(crate) use bats_wire::stateless_reset;
    pub use bats_wire::{
        announcement, batch_rank, channel, coding, flow, frame, long_header, message, no_route,
        parameters, rank, short_header, varint,
    };
}

pub use bats_relay as relay;
pub use bats_types::Timestamp;
pub use config::{
    ClientConfig, CongestionAlgorithm, EndpointConfig, Goal, Identity, MAX_FURTHER_PSKS, Mode,
    PeerLimits, PeerTrust, PresharedKey, PresharedKeyError, Resumption, ServerConfig,
    TransportConfig,
};
pub use crypto::{KeyLog, SessionStore};
pub use endpoint::{
    ConnectionCalls, ConnectionHandle, Endpoint, GroupHandle, Input, Local, Output, Received,
    Steering, Transmit,
};
pub use error::{CloseReason, ConnectError, GroupError, SendError};
pub use event::Event;
pub use session::channel::{ChannelError, ChannelId, ChannelStats};
pub use session::group::{
    GROUP_SOURCE_TIMEOUT, GroupEvent, GroupMessage, GroupOptions, GroupReceiverStats,
    GroupSenderStats, MAX_GROUP_SOURCES,
};
pub use stats::{
    BufferStats, CodingStats, CongestionStats, ConnectionStats, EarlyDataStats, EndpointStats,
    MessageStats, PacketStats, PathStats,
};
