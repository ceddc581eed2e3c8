//! A coded, encrypted, reliable transport over UDP.
//!
//! Packets carry source symbols, and random linear combinations of them over GF(256) within a
//! sliding window, in batches that relays can recode (the inner code of RFC 9426). Packet loss
//! costs bandwidth in proportion to the loss rate; throughput does not collapse. A [`Connection`]
//! transports messages of up to 64 MiB, by default in order and each exactly once. A
//! [`Node`](node::Node) has sessions over relays and over several links at once.
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
//! A client requests a [`Mode`] with [`ClientOptions::mode`]; [`ServerOptions::modes`] lists the
//! modes that a server accepts. All modes keep message boundaries. All modes but UDP are encrypted
//! and authenticated, and never deliver a message changed or twice.
//!
//! | mode | delivery | order | redundancy | congestion control | deadlines |
//! |---|---|---|---|---|---|
//! | [`Mode::Brtp`] (1) | every message, or the connection ends | kept | coded: proactive repairs, and top-up repairs after feedback | yes | no |
//! | [`Mode::Brctp`] (2) | every message, or the connection ends | kept | coded: rateless blocks of RFC 9426 | yes | no |
//! | [`Mode::Btp`] (0) | each message before its deadline or not at all | as decoded | coded: proactive repairs only | yes | yes |
//! | [`Mode::Tcp`] (10) | every message, or the connection ends | kept | none: the kernel's TCP | the kernel's | no |
//! | [`Mode::Quic`] (12) | every message, or the connection ends | kept | none: QUIC | BBR or CUBIC | no |
//! | [`Mode::Transparent`] (3) | best effort | as received | none | none | yes |
//! | [`Mode::Udp`] (11) | best effort, duplicates possible | as received | none | none | yes |
//!
//! TCP is for networks that block UDP: a server that offers it also listens on the TCP port of the
//! same number. TCP and QUIC (feature `quic`, on by default) are encrypted and authenticated like
//! the other modes. A slow receiver blocks only its own connection: `receive_budget` bounds the
//! data that a peer may send.
//!
//! In QUIC, [`TransportConfig::congestion`] selects BBR or CUBIC. With another controller a client
//! cannot connect and a server that offers only QUIC does not start. A server that also offers
//! other modes uses CUBIC for QUIC then; [`CongestionStats::controller_state`] reports the
//! controller. Over TCP the kernel selects it.
//!
//! UDP (11) is for peers that support nothing else. A message is one datagram of at most
//! [`TransportConfig::max_udp_payload`] bytes (20 less over IPv6), in clear text, without repair or
//! congestion control. There is no handshake: `connect` always succeeds, and a server's connection
//! begins with the first datagram from an address. `finish` waits only until all messages have been
//! sent, `recv` never reports the end of the messages, and the peer is not notified of a close:
//! connections end by idle timeout. A server offers this mode alone.
//!
//! BTP repairs losses with proactive redundancy only: this costs no round trip, and a loss that the
//! redundancy does not cover is not retransmitted. The sender drops a message whose deadline
//! ([`Connection::send_within`] or [`TransportConfig::deadline`], by default 200 ms) passes before
//! it is sent, and counts it in [`MessageStats::expired`]. When the receiving application does not
//! take messages, new messages displace the oldest ones.
//!
//! After [`Connection::finish`] the `recv` of the other end returns `None`. From then on the
//! messages received and [`MessageStats::lost`] of that end add up to the messages sent.
//! TRANSPARENT is only for networks with enough capacity for the offered load: without
//! congestion control it otherwise harms every flow, its own included.
//!
//! # Session resumption
//!
//! With a [`SessionStore`] ([`ClientOptions::sessions`]) a client resumes sessions, and the server
//! does not send its certificate again. In BTP, if both ends enable early data (0-RTT), the first
//! messages travel with the first flight and arrive after half a round trip: see
//! [`Endpoint::connect_early`], and [`ClientOptions::early_data`] for the replay risk.
//!
//! # PSK mode
//!
//! Endpoints that share a [`PresharedKey`] ([`ClientOptions::preshared_key`],
//! [`ServerOptions::preshared_key`]) communicate only with each other. The server does not answer a
//! peer without the key, so that a scan does not find it. A client without the key gets no answer,
//! and its [`Endpoint::connect`] fails with [`CloseReason::HandshakeTimeout`]. Certificates are
//! verified as usual. Keys change without a restart: see [`Endpoint::set_preshared_keys`] and
//! [`node::Node::set_preshared_keys`]. Available in the modes BTP, BRTP, BRCTP and TRANSPARENT.
//!
//! # Compression
//!
//! With the feature `zstd`, [`ClientOptions::compression`] and [`ServerOptions::compression`]
//! compress each message separately, in all modes but UDP. Both ends must enable it: otherwise
//! messages are sent uncompressed, a warning is logged, and [`Connection::is_compressed`] is false.
//! A message that does not shrink is sent uncompressed. The receiver limits the decompressed size
//! to its `max_message_size` and closes the connection of a peer that exceeds it.
//!
//! Compression is off by default: if a message holds a secret together with data that an attacker
//! chooses, the compressed length leaks information about the secret.
//!
//! # Captures
//!
//! If the environment variable `SSLKEYLOGFILE` names a file, the secrets of all connections with a
//! handshake are appended to it, so that captures can be decrypted. Everyone who reads the file can
//! read the connections. [`TransportConfig::key_log`] takes them instead, if it is set.
//! `docs/spec/keys.md` describes the lines.
//!
//! # Blocking and asynchronous calls
//!
//! Every call that may take time is a future that runs on any executor; [`Wait::wait`] blocks
//! instead. Each endpoint has one socket and one I/O thread, which sends and receives independently
//! of the application.
//!
//! [`Connection::messages`] and [`Channel::into_messages`] give `Stream` and `Sink` of the crates
//! `futures`.
#![forbid(unsafe_code)]

mod access;
#[doc(hidden)]
pub mod bindings;
mod builder;
mod channel;
mod channel_messages;
#[cfg(feature = "tokio")]
mod channel_tokio;
mod channel_wakers;
mod clock;
mod compress;
mod connection;
mod core_lock;
#[cfg(test)]
mod core_lock_tests;
mod driver;
mod endpoint;
mod endpoint_state;
#[cfg(all(test, target_os = "linux"))]
mod endpoint_threads_tests;
mod error;
pub mod file;
mod fingerprint;
mod identity;
mod identity_error;
mod identity_file;
mod kernel_memory;
mod key_exposure;
mod key_log;
mod known_hosts;
mod log_limit;
mod messages;
pub mod node;
mod options;
mod resolver;
mod shared;
mod siblings;
mod slot;
mod state_directory;
mod transport;
mod user_files;
mod wait;
mod wakers;
mod work;

pub use bats_proto::{
    BufferStats, ChannelStats, CloseReason, CodingStats, CongestionAlgorithm, CongestionStats,
    ConnectionStats, EarlyDataStats, EndpointStats, Goal, MessageStats, Mode, PacketStats,
    PathStats, PresharedKey, PresharedKeyError, SessionStore, TransportConfig,
};
pub use builder::Builder;
pub use channel::Channel;
pub use channel_messages::{ChannelMessages, MessageError};
pub use connection::Connection;
pub use driver::IoThreads;
pub use endpoint::Endpoint;
pub use error::{ChannelError, ConnectError, RecvError, SendError, StartError, TrustError};
pub use fingerprint::Fingerprint;
pub use identity::{Identity, read_preshared_key};
pub use identity_error::IdentityError;
pub use kernel_memory::is_lack_of_memory;
pub use key_exposure::key_exposure;
pub use known_hosts::KnownHosts;
pub use messages::Messages;
pub use options::{ClientOptions, ServerOptions, Trust};
pub use resolver::{attempt_timeout, resolve_host};
pub use wait::{Elapsed, Wait};

/// Compiles the program in the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Compiles and runs the program in the README of this crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
