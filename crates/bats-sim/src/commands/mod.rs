//! The commands with tables of their own; `matrix` and `run` are in `main.rs`.

pub(crate) mod arena;
pub(crate) mod btp;
pub(crate) mod fairness;
pub(crate) mod faults;
pub(crate) mod hops;
pub(crate) mod messages;
pub(crate) mod node_networks;
pub(crate) mod paths;
pub(crate) mod swarm;

use std::time::Duration;

/// The duration in milliseconds.
pub(crate) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
