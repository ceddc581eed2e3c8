//! What listeners and exits say to each other and to programs. Parsers only: they take bytes and return
//! values, so that tests can give them anything.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

pub mod allow;
pub mod http_connect;
pub mod request;
pub mod socks5;
pub mod target;

/// What a parser finds in bytes that may not be complete.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// A value, and how many bytes it took.
    Complete(T, usize),
    /// More bytes are needed.
    Incomplete,
}
