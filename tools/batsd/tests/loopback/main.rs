//! Daemons on loopback, without root and without a TUN device.
#![allow(clippy::disallowed_methods, reason = "real daemons have real clocks")]

mod clients;
mod first_use;
mod hostile_channels;
mod keeper;
mod names;
mod node;
mod quick;
mod refusals;
#[path = "../common/skip.rs"]
mod skip;
mod verbs;
