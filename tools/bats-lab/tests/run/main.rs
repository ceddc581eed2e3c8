//! `batslab run` and related commands, tested with the real binary.

#![allow(clippy::disallowed_methods, reason = "tests in real time wait for real events")]

mod backends;
mod browser;
mod check;
mod elements;
mod hops;
mod hosts;
mod local;
mod mixed;
mod node;
mod page;
mod programs;
mod remote;
mod rrul;
mod serve;
mod serve_limits;
mod simulated;
#[path = "../../../../crates/openbats/tests/common/skip.rs"]
mod skip;
mod support;
