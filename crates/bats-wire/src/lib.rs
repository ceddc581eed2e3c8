//! The wire format of OpenBATS: hop header, flow header, coding header, frames and transport
//! parameters. Each module documents its layout.
//!
//! Parsers and writers have no state and no keys: header protection and packet protection are the
//! caller's. The feature `session` has the frames inside symbols, which relays do not read.
//!
//! Arithmetic, indexing and unwrapping that can panic are denied here, because the input comes from
//! the network.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(any(test, kani)),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

#[cfg(feature = "session")]
pub mod announcement;
pub mod batch_rank;
#[cfg(feature = "session")]
pub mod channel;
pub mod coding;
pub mod flow;
pub mod frame;
mod harness;
pub mod long_header;
#[cfg(feature = "session")]
pub mod message;
pub mod no_route;
pub mod parameters;
#[cfg(all(any(kani, test), feature = "session"))]
mod proofs;
pub mod rank;
pub mod short_header;
pub mod stateless_reset;
pub mod varint;
