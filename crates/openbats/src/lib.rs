//! A coded, encrypted, reliable transport over UDP.
//!
//! Packets are coded with BATched Sparse codes (RFC 9426) in a sliding window, so that loss costs
//! bandwidth in proportion and never a collapse. A [`Connection`] carries messages of up to
//! 64 MiB in order, each exactly once (mode BRTP).
//!
//! ```
//! use openbats::{ClientOptions, Endpoint, Identity, ServerOptions, Trust, Wait};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let identity = Identity::generate(&["localhost"])?;
//! let trust = Trust::fingerprint(identity.fingerprint());
//! let server = Endpoint::builder()
//!     .bind("127.0.0.1:0".parse()?)
//!     .server(ServerOptions::new(identity))
//!     .start()?;
//! let client = Endpoint::builder().start()?;
//!
//! let to = client.connect(server.local_addr(), "localhost", ClientOptions::new(trust)).wait()?;
//! let from = server.accept().wait()?;
//! to.send("hello").wait()?;
//! to.finish().wait()?; // returns when everything has arrived
//! assert_eq!(from.recv().wait()?.as_deref(), Some(&b"hello"[..]));
//! assert_eq!(from.recv().wait()?, None);
//! # Ok(())
//! # }
//! ```
//!
//! Every call that may take time is a future that runs on any executor; [`Wait::wait`] blocks
//! instead. Each endpoint has one socket and one thread of its own, which sends and receives
//! whatever the application does meanwhile.
#![forbid(unsafe_code)]

mod clock;
mod connection;
mod driver;
mod endpoint;
mod error;
pub mod file;
mod identity;
mod options;
mod shared;
mod wait;

pub use bats_proto::{
    CloseReason, CongestionAlgorithm, ConnectionStats, EndpointStats, Goal, Mode, TransportConfig,
};
pub use connection::Connection;
pub use endpoint::{Builder, Endpoint};
pub use error::{ConnectError, IdentityError, RecvError, SendError, StartError};
pub use identity::{Fingerprint, Identity};
pub use options::{ClientOptions, ServerOptions, Trust};
pub use wait::{Elapsed, Wait};

/// The program in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
