//! Simulates how many packets beyond K a block needs, for the codes of the overhead table in
//! `docs/rfc9426.md`, and prints the table's figures for comparison: `cargo run --release -p
//! bats-code --example overhead [-- BLOCKS [CODE]]`. With `CODE` it simulates only the codes whose
//! names contain it.
//!
//! Means are printed with twice their standard error. Overhead is counted in innovative packets.
//! The last column is the distance of the mean from the table's figure, beyond its rounding, in
//! standard errors of the difference. That error combines the one of this run and the one of the
//! table, which `simulation.rs` states. "agrees" is at most 2, "differs" more than 3.

mod simulation;

use simulation::{CASES, Summary, belief_propagation, simulate};

fn main() {
    let blocks: u32 = std::env::args().nth(1).and_then(|x| x.parse().ok()).unwrap_or(400);
    let only = std::env::args().nth(2).unwrap_or_default();
    let cases = || CASES.iter().filter(|case| case.name.contains(&only));
    println!("{blocks} blocks each; overhead in innovative packets beyond K");
    println!(
        "{:<34} {:>16} {:>7} {:>6} {:>9} {:>9} {:>6} {:>9}  distance",
        "code", "overhead", "median", "p95", "inactive", "table", "± SE", "inactive"
    );
    for case in cases() {
        let runs: Vec<_> = (0..blocks).map(|number| simulate(case, number)).collect();
        let overhead = Summary::of(runs.iter().map(|run| run.overhead as f64));
        let inactive = Summary::of(runs.iter().map(|run| run.inactive as f64));
        println!(
            "{:<34} {:>8.2} ± {:<5.2} {:>7.0} {:>6.0} {:>9.0} {:>9} {:>6} {:>9}  {}",
            case.name,
            overhead.mean,
            overhead.error,
            overhead.median,
            overhead.p95,
            inactive.mean,
            case.table.map_or("-".into(), |x| x.to_string()),
            if case.comparable && case.table.is_some() {
                case.table_error.to_string()
            } else {
                "-".into()
            },
            case.table_inactive.map_or("-".into(), |x| x.to_string()),
            match overhead.distance(case) {
                Some(distance) if distance <= 2.0 => format!("{distance:.1} agrees"),
                Some(distance) if distance <= 3.0 => format!("{distance:.1} may agree"),
                Some(distance) => format!("{distance:.1} differs"),
                None if case.table.is_some() => "of another code".into(),
                None => String::new(),
            }
        );
    }
    if !cases().any(|case| case.belief_propagation) {
        return;
    }
    println!("\nbelief propagation alone, at most 4 K packets received");
    for case in cases().filter(|case| case.belief_propagation) {
        let runs: Vec<Option<usize>> =
            (0..blocks).map(|number| belief_propagation(case, number)).collect();
        let done = Summary::of(runs.iter().flatten().map(|&overhead| overhead as f64));
        let failed = runs.iter().filter(|run| run.is_none()).count() as f64;
        println!(
            "{:<34} not decoded {:.0} %; the others {:+.0} % ± {:.0} %",
            case.name,
            100.0 * failed / f64::from(blocks),
            100.0 * done.mean / f64::from(case.source_packets),
            100.0 * done.error / f64::from(case.source_packets),
        );
    }
}
