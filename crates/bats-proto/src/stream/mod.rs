//! Messages over a reliable byte stream: modes TCP and QUIC.
//!
//! [`Session`] is the protocol: messages in frames, credit, receipts and an orderly end. It uses
//! neither sockets nor TLS, so it also runs over a QUIC stream. [`TlsStream`] runs it inside TLS
//! 1.3, for TCP.

mod activity;
mod frame;
mod frame_budget;
mod frame_parser;
mod incoming;
mod outgoing;
mod partial;
mod records;
mod session;
mod tls_stream;

pub use frame::FrameError;
pub use session::Session;
pub use tls_stream::{TlsStream, TlsStreamServer};
