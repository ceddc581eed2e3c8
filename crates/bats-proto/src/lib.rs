//! The OpenBATS protocol core: wire format, security, link, flow, session and congestion control,
//! without sockets, clocks or threads.
//!
//! Everything is driven by [`Endpoint::handle`] and [`Endpoint::poll`]: one `handle`, then `poll`
//! until it answers [`Output::Timeout`]. Time and randomness come in as arguments, so that the
//! same core runs on real sockets and in virtual time.
#![forbid(unsafe_code)]

pub mod config;
pub mod congestion;
pub mod connection;
pub mod crypto;
pub mod endpoint;
pub mod error;
pub mod event;
pub mod flow;
#[doc(hidden)]
pub mod fuzzing;
pub mod handshake;
pub mod link;
pub mod relay;
pub mod session;
pub mod stats;
pub mod stream;
pub mod wire;

pub use bats_types::Timestamp;
pub use config::{
    ClientConfig, ClosedKey, ClosedKeyError, CongestionAlgorithm, EndpointConfig, Goal, Identity,
    Mode, PeerLimits, PeerTrust, Resumption, ServerConfig, TransportConfig,
};
pub use crypto::SessionStore;
pub use endpoint::{ConnectionHandle, Endpoint, Input, Output, Received, Transmit};
pub use error::{CloseReason, ConnectError, SendError};
pub use event::Event;
pub use stats::{ConnectionStats, EndpointStats};
