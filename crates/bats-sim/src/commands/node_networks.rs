//! Command `node-networks`: random networks of nodes that are checked against a model.

use std::time::Duration;

use bats_sim::jobs::parallel;
use bats_sim::node_networks::{NetworkPlan, NetworkReport, run as run_network};
use clap::Parser;

use super::ms;
use crate::{Failure, in_range, print_line};

/// Explanation of the report.
pub(crate) const LEGEND: &str = "\
A seed determines a network of 3 to 12 nodes with links that lose packets, their configurations, and \
events: links that are cut and heal, restarts, changes of peers, policies, links and routes of the file or \
of the kernel. In a third of the networks another node claims the ID of one of them. All send messages to their peers, \
some with foreign source addresses. At each step: no session has a certificate other than the \
peer's, no foreign source is delivered, no packet takes a link that is not admitted or has no route, and no relay forwards for a \
neighbour without transit. Within 1 s of the last event, peers with a path by the routes get \
messages, and others do not. A violation is printed with its seed, and the exit status is 1.";

#[derive(Parser)]
pub(crate) struct NodeNetworks {
    /// Number of networks
    #[arg(long, default_value_t = 1_000)]
    networks: u64,
    /// First seed
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
}

pub(crate) fn run(arguments: &NodeNetworks) -> Result<(), Failure> {
    in_range("networks", arguments.networks as f64, 1.0, 1e9).map_err(Failure::Usage)?;
    let seeds: Vec<u64> =
        (0..arguments.networks).map(|number| arguments.first_seed.wrapping_add(number)).collect();
    let mut reports: Vec<NetworkReport> = Vec::new();
    // In parts, so that violations are printed while other networks run.
    for part in seeds.chunks(100) {
        for report in parallel(part, 0, |&seed| run_network(&NetworkPlan::new(seed))) {
            let seed = report.seed;
            for violation in &report.violations {
                print_line(&format!("seed {seed}: {violation}"))?;
            }
            if !report.violations.is_empty() {
                print_line(&format!(
                    "  repeat: bats-sim node-networks --first-seed {seed} --networks 1"
                ))?;
            }
            reports.push(report);
        }
    }
    let sum = |of: fn(&NetworkReport) -> u64| -> u64 { reports.iter().map(of).sum() };
    let failed = reports.iter().filter(|report| !report.violations.is_empty()).count();
    let rows = [
        ("networks", reports.len() as u64),
        ("nodes", sum(|r| r.nodes)),
        ("events", sum(|r| r.events)),
        ("messages delivered", sum(|r| r.delivered)),
        ("packets forwarded", sum(|r| r.forwarded)),
        ("pairs with a path", sum(|r| r.reached)),
        ("peers without a path", sum(|r| r.unreached)),
        ("networks with violations", failed as u64),
    ];
    rows.iter().try_for_each(|(name, value)| print_line(&format!("{name:30} {value:>12}")))?;
    let slowest = reports.iter().map(|r| r.slowest).max().unwrap_or(Duration::ZERO);
    print_line(&format!("{:30} {:>12.0}", "slowest convergence, ms", ms(slowest)))?;
    match failed {
        0 => Ok(()),
        _ => Err(Failure::CheckFailed(format!("{failed} of {} networks failed", reports.len()))),
    }
}
