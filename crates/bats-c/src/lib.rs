//! OpenBATS for C and C++.
//!
//! This crate implements the functions and types of the original SDK, which the headers in
//! `include/` declare. A handle is a number in a table and never a pointer, so a stale handle gives
//! an error and not a crash. Callbacks run on the thread of their context (or in
//! `openbats_context_poll`), one at a time, and never after their owner is destroyed. No panic
//! crosses the C interface.

mod abi;
mod callback;
mod callback_queue;
mod channel;
mod config;
mod connection;
mod context;
mod event;
mod gate;
mod handles;
mod last_error;
mod listener;
mod locks;
mod log;
mod owner;
mod port_release;
mod protocol;
mod session;
mod signals;
mod stats;

pub use abi::*;
pub use callback::{ChannelAcceptFn, ChannelFn, ConnectionFn, ListenFn, ReleaseFn};
pub use handles::Handle;
pub use signals::{SignalFn, SignalWithUserFn};
pub use stats::openbats_stats_t;
