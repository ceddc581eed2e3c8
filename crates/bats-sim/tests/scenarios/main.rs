//! Scenarios: tests of the protocol's behaviour and efficiency in virtual time, a file for each
//! topic.
//!
//! All scenarios are one test program, which is linked once and runs them in parallel.
//! `cargo test -p bats-sim --test scenarios <file>` runs the scenarios of one file.

mod common;

mod ack_loss;
mod blackout;
mod brctp;
mod brtp_integrity;
mod btp_residual_loss;
mod burst_loss;
mod capture;
mod channels;
mod cubic_window;
mod deadlines;
mod delay_change;
mod determinism;
mod direct_sessions;
mod duplication;
mod ecn;
mod fairness;
mod fairness_with_tcp;
mod gcc_queue;
mod groups;
mod handshake;
mod high_loss;
mod hops_messages;
mod hops_throughput;
mod hops_unidirectional;
mod huge_delay;
mod idle_timeout;
mod keep_alive;
mod key_update;
mod link_utilisation;
mod long_hops;
mod low_rate;
mod matrix_command;
mod min_rtt;
mod neighbour_rate;
mod node_networks;
mod path_mtu;
mod paths;
mod psk_mode;
mod rate_change;
mod rebinding;
mod recovery;
mod relay_brctp;
mod relay_btp;
mod relay_channels;
mod relay_faults;
mod relay_pollution;
mod reordering;
mod resumption;
mod satellite;
mod shallow_queue;
mod short_blackouts;
mod slow_lossy_links;
mod small_budgets;
mod small_transfers;
mod steady_messages;
mod swarm;
mod thin_channel;
mod thin_flow;
mod tiny_queues;
mod very_heavy_loss;
