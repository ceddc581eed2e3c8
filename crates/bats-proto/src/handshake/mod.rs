//! The handshake: TLS 1.3 in packets with long headers, designed for heavy loss.
//!
//! Every encryption level (Initial, Handshake) is a small reliable stream of TLS data with
//! cumulative acknowledgements. The sender retransmits unacknowledged data after 20 ms, then at
//! doubling intervals, so that a lost first flight does not cost a second
//! (`docs/adr/0002-retransmit-handshake-flights-early.md`). Echoed timestamps give an RTT sample
//! even for retransmitted flights.

mod connection_ids;
mod early;
mod early_data;
mod first;
mod initial_token;
#[cfg(test)]
mod key_discard_tests;
mod level;
mod levels;
mod machine;
mod one_rtt;
mod packet;
mod protection;
mod replay_ledger;
mod retransmit_schedule;
mod rtt_echo;
#[cfg(test)]
mod session_release_tests;
mod timers;
mod token;

pub(crate) use early::{EARLY_LIMIT, ExpiringMessage, MAX_EARLY_MESSAGES};
pub use first::{
    FirstPacket, InitialInfo, ServerCrypto, ServerStart, StartInfo, UnknownVersion, parse_first,
    write_version_negotiation,
};
pub use machine::{Handshake, HandshakeError};
pub(crate) use packet::{PacketHeader, seal};
pub(crate) use protection::Protection;
pub use timers::RetransmitTimers;
