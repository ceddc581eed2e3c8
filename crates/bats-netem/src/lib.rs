//! A link, emulated without sockets, clocks or threads: rate with a FIFO, delay, jitter, loss,
//! duplication, corruption, MTU, black holes; one direction a [`Link`].
//!
//! The contract is that of the protocol: [`Link::handle`] takes a packet, [`Link::poll`] is asked
//! until it answers with the time of the next delivery. The same link runs in the simulator and,
//! in real time, in the laboratory.
#![forbid(unsafe_code)]

mod config;
mod link;
mod loss;

pub use bats_types::Timestamp;
pub use config::{Jitter, LinkConfig};
pub use link::{Fate, Link, LinkStats, Output, Payload};
pub use loss::Loss;
