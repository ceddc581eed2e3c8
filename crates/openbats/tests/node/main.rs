//! Nodes over real sockets on loopback: relays, multipath, routes, admission.

#[path = "../../examples/emulated/mod.rs"]
mod emulated;

mod admission;
mod direct;
mod ends;
mod groups;
mod link_sessions;
mod links;
mod relay_process;
mod relays;
mod routes;
mod world;
