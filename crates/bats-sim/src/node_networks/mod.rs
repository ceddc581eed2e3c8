//! Random networks of nodes: the core of the node, its links, routes, admission and sessions, as in `batsd`, in
//! virtual time.
//!
//! A seed selects the topology, the configurations and the events: links that are cut and healed, restarts, changes of
//! peers, policies, links and routes, an impostor, forged sources. Each step is checked for safety. After the last
//! event, a model of its own says which nodes reach each other (`config.rs`).

mod check;
mod config;
mod node;
mod plan;
mod run;

pub use plan::NetworkPlan;
pub use run::{LIMIT, NetworkReport, run};
