//! A swarm of random runs: each seed decides a topology, the faults that happen to it, which kinds
//! of faults there are at all (Groce et al., "Swarm Testing", 2012), and what applications do.
//!
//! A run has two phases. In the first there are faults, and models watch that what is delivered is
//! what was sent. Then the faults stop, and within a time computed from rate and round trip every
//! connection must have finished, been closed, and left nothing behind.

mod draw;
mod model;
mod net;
mod pair;
mod plan;
mod relays;
mod run;
mod topology;

pub use plan::{ConnectionPlan, Ending, Fault, FaultKind, Nodes, Plan, Traffic};
pub use run::{Report, run};
