//! The few types that every layer shares: time without a clock.
#![forbid(unsafe_code)]

mod timestamp;

pub use timestamp::Timestamp;
