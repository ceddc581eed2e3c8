//! `batslab run` and what belongs to it, by the real binary.

mod check;
mod local;
mod remote;
mod serve;
mod simulated;
mod support;
