//! The wire format: hop header, coding header and frames. Each file documents its layout.
//!
//! Arithmetic, indexing and unwrapping that can panic are denied here, because the input comes from
//! the network.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

pub mod batch_rank;
pub mod channel;
pub mod coding;
pub mod flow;
pub mod frame;
pub mod long_header;
pub mod message;
pub mod no_route;
pub mod parameters;
pub mod rank;
pub mod short_header;
pub(crate) mod stateless_reset;
pub mod varint;
