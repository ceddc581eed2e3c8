//! A coded, encrypted, reliable transport over UDP.
//!
//! Packets are coded with BATched Sparse codes (RFC 9426) in a sliding window, so that loss costs
//! bandwidth in proportion and never a collapse. A [`Connection`] carries messages of up to
//! 64 MiB; by default in order, each exactly once.
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
//! # Modes
//!
//! A client asks for a [`Mode`] with [`ClientOptions::mode`]; a server says with
//! [`ServerOptions::modes`] which it accepts. All keep the boundaries of messages. All but UDP
//! are encrypted, and never alter or repeat one.
//!
//! | mode | arrives | order | redundancy | congestion control | deadlines |
//! |---|---|---|---|---|---|
//! | [`Mode::Brtp`] (1) | everything, or the connection ends | kept | coded, and more when asked | yes | no |
//! | [`Mode::Brctp`] (2) | everything, or the connection ends | kept | blocks without a rate, as RFC 9426 has it | yes | no |
//! | [`Mode::Btp`] (0) | each message in time or not at all | as they become known | coded, ahead only | yes | yes |
//! | [`Mode::Tcp`] (10) | everything, or the connection ends | kept | none: the kernel's TCP | the kernel's | no |
//! | [`Mode::Quic`] (12) | everything, or the connection ends | kept | none: QUIC | BBR or CUBIC | no |
//! | [`Mode::Transparent`] (3) | what the network delivers | as they arrive | none | none | yes |
//! | [`Mode::Udp`] (11) | what the network delivers, twice if it does | as they arrive | none | none | yes |
//!
//! TCP is there for networks that let no UDP pass: a server that offers it listens at the TCP port of the
//! same number, too. It and QUIC (with the feature `quic`, which is on by default) are encrypted and
//! authenticated like the others, and hold nobody up behind a slow receiver: what a peer may send is
//! bounded by `receive_budget`. [`TransportConfig::congestion`] chooses in QUIC between BBR and
//! CUBIC: a client that asks for another is refused, and so is a server that offers this mode alone;
//! one that offers it beside others has CUBIC here then ([`ConnectionStats::controller_state`] tells).
//! Over TCP the kernel has chosen.
//!
//! UDP (11) is for peers that know nothing else. A message is a datagram of at most
//! [`TransportConfig::max_udp_payload`] bytes (20 less over IPv6), in clear, and neither repaired nor
//! controlled. There is no handshake: `connect` succeeds whoever is there, a server's connection begins
//! with the first datagram of an address, `finish` waits only until all has been sent, `recv` never comes
//! to an end of its own, and no peer learns of a close: silence ends connections. A server offers this
//! mode alone.
//!
//! BTP repairs what redundancy sent ahead can repair: loss is hidden without a round trip, and what is
//! lost beyond that stays lost. A message whose deadline ([`Connection::send_within`],
//! [`TransportConfig::deadline`], 200 ms if nothing is said) is over before it was sent is dropped by
//! the sender and counted as [`ConnectionStats::messages_expired`]. When a receiver does not take
//! messages, the oldest make room for new ones.
//!
//! After [`Connection::finish`] the other end's `recv` comes to its end, and then
//! [`ConnectionStats::messages_lost`] there and the messages received are together those sent.
//! TRANSPARENT is for networks that are known to carry the load; on others it harms everybody, itself
//! included.
//!
//! # Coming back
//!
//! A client that keeps a [`SessionStore`] ([`ClientOptions::sessions`]) need not see a server's certificate
//! twice. In BTP, where both ends want it, the first messages travel with the first flight and arrive
//! after half a round trip: see [`Endpoint::connect_early`], and [`ClientOptions::early_data`] for what
//! that costs.
//!
//! # Closed mode
//!
//! Endpoints that share a [`ClosedKey`] ([`ClientOptions::closed_key`], [`ServerOptions::closed_key`]) speak
//! to nobody else. A server answers strangers nothing at all, so that a scan does not find it; a client
//! without its key hears nothing, and its [`Endpoint::connect`] fails with
//! [`CloseReason::HandshakeTimeout`]. Certificates count as ever. Modes BTP, BRTP, BRCTP and TRANSPARENT.
//!
//! # Compression
//!
//! With the feature `zstd`, [`ClientOptions::compression`] and [`ServerOptions::compression`] have each
//! message compressed by itself, in all modes but UDP. Both ends must want it: otherwise messages go as
//! they are, a warning says so, and [`Connection::is_compressed`] is false. What does not shrink is sent as
//! it is. The receiver bounds what a message becomes by its `max_message_size`, and ends the connection of
//! who sends more. Who compresses secrets together with what others choose tells them something of the
//! secrets by the length: off is the default.
//!
//! Every call that may take time is a future that runs on any executor; [`Wait::wait`] blocks
//! instead. Each endpoint has one socket and one thread of its own, which sends and receives
//! whatever the application does meanwhile.
#![forbid(unsafe_code)]

mod carrier;
mod clock;
mod compress;
mod connection;
mod driver;
mod endpoint;
mod error;
pub mod file;
mod identity;
mod log_limit;
mod names;
mod options;
mod shared;
mod wait;

pub use bats_proto::{
    CloseReason, ClosedKey, ClosedKeyError, CongestionAlgorithm, ConnectionStats, EndpointStats,
    Goal, Mode, SessionStore, TransportConfig,
};
pub use connection::Connection;
pub use endpoint::{Builder, Endpoint};
pub use error::{ConnectError, IdentityError, RecvError, SendError, StartError};
pub use identity::{Fingerprint, Identity, read_closed_key};
pub use names::{addresses, time_for_one};
pub use options::{ClientOptions, ServerOptions, Trust};
pub use wait::{Elapsed, Wait};

/// The program in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
