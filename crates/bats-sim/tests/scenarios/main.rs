//! The protocol's behaviour in virtual time, a file for each: what is asked of it, and how near it comes
//! to what the network allows. One program, so that it is linked once and the scenarios share the
//! processors: `cargo test -p bats-sim --test scenarios <file>` runs those of one file.

mod common;

mod ack_loss;
mod black_hole;
mod brctp;
mod brtp_integrity;
mod burst_loss;
mod capture;
mod closed;
mod cubic_window;
mod deadlines;
mod delay_change;
mod determinism;
mod ecn;
mod fairness;
mod fairness_rivals;
mod gcc_queue;
mod handshake;
mod high_loss;
mod hops_messages;
mod hops_one_way;
mod hops_throughput;
mod huge_delay;
mod idle_timeout;
mod keep_alive;
mod link_utilisation;
mod low_rate;
mod lying_relay;
mod path_mtu;
mod paths;
mod rate_change;
mod rebinding;
mod recovery;
mod rekey;
mod relay_blocks;
mod relay_faults;
mod relay_timely;
mod reordering;
mod replay;
mod resumption;
mod satellite;
mod shallow_queue;
mod slow_lossy_links;
mod small_budgets;
mod small_transfers;
mod steady_rate;
mod suspension;
mod swarm;
mod thin_messages;
mod timely_messages;
mod tiny_queues;
mod very_heavy_loss;
