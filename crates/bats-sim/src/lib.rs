//! The protocol in virtual time: endpoints joined by emulated links, driven by a virtual clock.
//!
//! Same seed, same run: nothing here reads a clock, and every random choice follows from a seed, but for
//! the keys of real TLS in [`resumed`].
#![forbid(unsafe_code)]

pub mod capture;
pub mod delays;
pub mod fairness;
pub mod figures;
pub mod flows;
pub mod generate;
pub mod hops;
pub mod ideal;
pub mod line;
pub mod links;
pub mod matrix;
pub mod messages;
pub mod network;
pub mod packet;
pub mod paths;
pub mod record;
pub mod resumed;
pub mod shared;
pub mod swarm;
pub mod tcp;
pub mod trace;
pub mod transfer;
