//! `batslab run` and what belongs to it, by the real binary.

#![allow(clippy::disallowed_methods, reason = "tests of real time wait for real things")]

mod browser;
mod check;
mod hops;
mod hosts;
mod local;
mod mixed;
mod page;
mod programs;
mod remote;
mod serve;
mod simulated;
mod support;
