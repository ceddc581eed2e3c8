//! The core of a node, without I/O: the wanted and the present state of the node, and the actions that
//! lead from one to the other ([`reconcile`]); the owner of each address ([`Owners`]); and the queue in
//! front of a session ([`FqCodel`]). Time is an argument.
#![deny(missing_docs)]

mod change;
mod fq_codel;
mod owners;
mod plan;
mod reconcile;

pub use change::{Change, ChangeError, MAX_HOPS, MAX_LINKS};
pub use fq_codel::{Dequeued, FqCodel, QueueStats};
pub use owners::{Owners, PrefixConflict};
pub use plan::{Fingerprint, Hop, Link, NeighbourPolicy, NodeId, Peer, Plan, PlanError};
pub use reconcile::{Accepted, Action, State, reconcile};
