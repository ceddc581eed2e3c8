//! Random networks of nodes: safety at each step, and reachability within 1 s of the last event.
//! `bats-sim node-networks` runs 1,000.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bats_sim::node_networks::{NetworkPlan, NetworkReport, run};

#[test]
fn eighty_networks_are_safe_and_converge() {
    let (next, reports) = (AtomicU64::new(0), Mutex::new(Vec::<NetworkReport>::new()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= 80 {
                        return;
                    }
                    let report = run(&NetworkPlan::new(seed));
                    reports.lock().expect("no thread panics with the lock").push(report);
                }
            });
        }
    });
    let reports = reports.into_inner().expect("no thread panics with the lock");
    let violations: Vec<_> = reports
        .iter()
        .flat_map(|report| report.violations.iter().map(move |text| (report.seed, text)))
        .collect();
    assert!(violations.is_empty(), "{violations:#?}");
    // Networks without traffic would pass, too.
    let sum = |of: fn(&NetworkReport) -> u64| reports.iter().map(of).sum::<u64>();
    let (delivered, forwarded) = (sum(|r| r.delivered), sum(|r| r.forwarded));
    let (reached, unreached) = (sum(|r| r.reached), sum(|r| r.unreached));
    assert!(delivered > 40_000 && forwarded > 100_000, "{delivered} {forwarded}");
    assert!(reached > 150 && unreached > 100, "{reached} {unreached}");
}

#[test]
fn equal_seeds_give_equal_networks() {
    for seed in [3, 7] {
        assert_eq!(run(&NetworkPlan::new(seed)), run(&NetworkPlan::new(seed)));
    }
}
