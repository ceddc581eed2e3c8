//! The node as a daemon: a privileged keeper and an unprivileged worker. See `docs/node.md`.
#![allow(clippy::disallowed_methods, reason = "a daemon owns its clock and its sockets")]

mod channel;
pub mod config;
pub mod control;
pub mod doctor;
mod ending;
#[doc(hidden)]
pub mod fuzzing;
pub mod keeper;
mod limited_file;
pub mod original;
pub mod program;
pub mod proxy;
pub mod quick;
pub mod worker;
