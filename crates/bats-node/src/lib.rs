//! The core of a node, without I/O: what the node should have and has, and what to do about the
//! difference ([`reconcile`]); who owns which addresses ([`Owners`]); and the queue in front of a
//! session ([`FqCodel`]). Time is an argument.
#![deny(missing_docs)]

mod fq_codel;
mod owners;
mod plan;
mod reconcile;

pub use fq_codel::{Dequeued, FqCodel, QueueStats};
pub use owners::{Owners, PrefixConflict};
pub use plan::{Fingerprint, Hop, Link, NodeId, Peer, Plan, PlanError};
pub use reconcile::{Accepted, Action, State, reconcile};
