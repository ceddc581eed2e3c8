//! Messages over a stream of bytes that somebody else makes reliable: modes TCP and QUIC.
//!
//! [`Session`] is the protocol: messages in frames, credit, receipts, an orderly end. It knows
//! neither sockets nor TLS, so that it runs over a QUIC stream as it stands. [`Secured`] puts TLS 1.3
//! under it, for TCP.

mod frame;
mod secured;
mod session;

pub use frame::FrameError;
pub use secured::{Secured, SecuredServer};
pub use session::Session;
