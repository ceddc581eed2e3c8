//! The core of a node, without I/O: the wanted and the present state of the node, and the actions that
//! lead from one to the other ([`reconcile()`]), carried out on a [`Network`] by [`Control`]; the routes that follow from those of the kernel
//! ([`KernelRoutes`]); the owner of each address ([`Owners`]), and who gets
//! packets with link-local ones ([`local()`]); the address of a
//! neighbour that has a host name ([`HostAddress`]); and the queue in front of a session ([`FqCodel`]). Time is an argument.
#![deny(missing_docs)]

mod change;
mod control;
mod fib;
mod fq_codel;
mod host;
mod local;
mod network;
mod node_id;
mod owners;
mod plan;
mod reconcile;

pub use change::{Change, ChangeError, MAX_HOPS, MAX_LINKS};
pub use control::{Control, Reconciled};
pub use fib::{
    Fib, FibHop, FibRoute, Ignored, KernelRoutes, MAX_HOSTS, NoRoute, wanted, wanted_interfaces,
};
pub use fq_codel::{Dequeued, FqCodel, QueueStats};
pub use host::{HostAddress, HostLinkStatus, Progress};
pub use local::{Local, is_link_local, link_local, local, may_pass};
pub use network::{LinkReport, Network, Via};
pub use node_id::NodeId;
pub use owners::{Owners, PrefixConflict};
pub use plan::{
    Fingerprint, Hop, HostLink, HostName, Link, NeighbourPolicy, Peer, Plan, PlanError,
};
pub use reconcile::{Accepted, Action, State, reconcile};
