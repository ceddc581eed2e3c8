//! Simulator: protocol endpoints connected by emulated links and driven by a virtual clock.
//!
//! Runs are deterministic. No code reads a clock, and all random choices derive from the seed. Real
//! TLS keys are the only exception: in [`resumption`], and in runs whose configuration has a key log.
#![forbid(unsafe_code)]

pub mod arena;
pub mod capture;
pub mod delay_histogram;
mod endpoints;
pub mod fairness;
pub mod figures;
pub mod flow_links;
pub mod flows;
pub mod generate;
pub mod hops;
mod host;
pub mod ideal;
pub mod jobs;
mod link_event;
pub mod links;
pub mod matrix;
pub mod messages;
pub mod network;
pub mod node_networks;
pub mod packet;
pub mod paths;
pub mod recorder;
pub mod relay_network;
pub mod resumption;
pub mod shared_link;
pub mod swarm;
pub mod tcp;
pub mod trace;
pub mod transfer;

pub use link_event::LinkEventKind;
