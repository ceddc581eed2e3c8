//! Random networks, faults and applications: nothing wrong is delivered while there are faults, and
//! all finish soon after they end. `bats-sim swarm` runs as many more as one likes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bats_sim::swarm::{Plan, Report, run};

const LONGEST: Duration = Duration::from_secs(10);

/// Reports of `count` seeds, worked on by all cores.
fn reports(count: u64, work: impl Fn(u64) -> Report + Sync) -> Vec<Report> {
    let next = AtomicU64::new(0);
    let reports = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count {
                        return;
                    }
                    let report = work(seed);
                    reports.lock().expect("no thread panics with it").push(report);
                }
            });
        }
    });
    reports.into_inner().expect("no thread panics with it")
}

#[test]
fn two_hundred_seeds_are_safe_and_live() {
    let reports = reports(200, |seed| run(&Plan::new(seed, LONGEST), false));
    assert_eq!(reports.len(), 200);
    let failures: Vec<_> = reports
        .iter()
        .filter_map(|report| {
            let violation = report.violation.as_ref()?;
            let seed = report.seed;
            Some(format!("seed {seed}: {violation}\n  bats-sim swarm --from {seed} --seeds 1"))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // A swarm in which nothing happens would pass as well.
    let finished: u64 = reports.iter().map(|report| report.finished).sum();
    let delivered: u64 = reports.iter().map(|report| report.delivered).sum();
    assert!(finished > 250 && delivered > 300_000, "{finished} finished, {delivered} delivered");
}

#[test]
fn a_seed_is_the_same_run_every_time() {
    let different: Vec<_> = reports(10, |seed| {
        let plan = Plan::new(1_000 + seed, LONGEST);
        let (first, second) = (run(&plan, true), run(&plan, true));
        assert!(first.trace.is_some(), "no trace was kept");
        if first == second { Report::default() } else { first }
    })
    .into_iter()
    .filter(|report| *report != Report::default())
    .collect();
    assert!(different.is_empty(), "{different:?}");
}
