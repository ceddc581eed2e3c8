//! OpenBATS for C and C++.
//!
//! The functions and types that programs of the original SDK know stand in `include/`; this crate
//! is what lies behind them. Every handle is a number in a table and never a pointer, so a stale
//! one is an error and not a crash. Callbacks run on the thread of their context (or in
//! `openbats_context_poll`), one at a time, and never after their owner is destroyed. No panic
//! leaves a function of this library.

mod abi;
mod callback;
mod config;
mod context;
mod event;
mod gate;
mod handles;
mod last_error;
mod link;
mod listener;
mod log;
mod mailbox;
mod protocol;
mod session;
mod signals;
mod stats;

pub use abi::*;
pub use callback::{ConnectionFn, ListenFn, ReleaseFn};
pub use handles::Handle;
pub use signals::{SignalFn, SignalWithUserFn};
pub use stats::openbats_stats_t;
