//! How two endpoints begin: TLS 1.3 in long packets, made for heavy loss.
//!
//! Every level (Initial, Handshake) is a small reliable stream of TLS data. Its receiver tells how
//! far it has it; its sender repeats what was not acknowledged, at first after 20 ms, then at
//! doubling intervals, so that a lost first flight does not cost a second
//! (`docs/adr/0002-early-repeated-first-flights.md`). Time stamps are echoed, so that repeated
//! flights still give a round-trip time.

mod early;
mod first;
mod ledger;
mod level;
mod machine;
mod pace;
mod packet;
mod token;

pub(crate) use early::{EARLY_LIMIT, MAX_EARLY_MESSAGES};
pub use first::{
    FirstPacket, InitialInfo, ServerCrypto, ServerStart, StartInfo, parse_first,
    write_version_negotiation,
};
pub use machine::{Handshake, HandshakeError};
pub use pace::Pace;
