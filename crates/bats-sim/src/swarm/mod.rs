//! Swarm tests: random runs, each determined by a seed. A seed selects the topology, the kinds of
//! faults that occur (Groce et al., "Swarm Testing", 2012), the faults, and the application
//! traffic.
//!
//! A run has two phases. In the first one there are faults, and models check that all delivered
//! messages are those that were sent. Then the faults end. Within a time computed from rate and
//! round-trip time, every connection must finish, be closed, and leave no state behind.

mod connection;
mod fault;
mod model;
mod network;
mod nodes;
mod plan;
mod relay_monitor;
pub(crate) mod rng;
mod run;
mod topology;

pub use fault::{Fault, FaultKind};
pub use nodes::Nodes;
pub use plan::{ConnectionPlan, Ending, Plan, Traffic};
pub use run::{Report, run, run_captured};
