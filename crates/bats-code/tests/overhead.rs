//! A small run of `examples/overhead`: reproduces the table of `docs/rfc9426.md` and checks that
//! the recommended distributions need few packets beyond K.

#[path = "../examples/overhead/simulation.rs"]
mod simulation;

use simulation::{CASES, Summary, belief_propagation, simulate};

fn overhead(name: &str, blocks: u32) -> (Summary, Summary) {
    let case = CASES.iter().find(|case| case.name == name).expect("no case of this name");
    let runs: Vec<_> = (0..blocks).map(|number| simulate(case, number)).collect();
    let overhead = Summary::of(runs.iter().map(|run| run.overhead as f64));
    let inactive = Summary::of(runs.iter().map(|run| run.inactive as f64));
    if let Some(table) = case.table_inactive.filter(|_| case.comparable) {
        let table = f64::from(table);
        assert!((inactive.mean - table).abs() < table / 3.0, "{name}: {}", inactive.mean);
    }
    if let (Some(table), Some(distance)) = (case.table, overhead.distance(case)) {
        let (mean, error) = (overhead.mean, overhead.error);
        assert!(distance <= 3.0, "{name}: {mean} ± {error}, expected {table}");
        assert!(overhead.median <= table && overhead.p95 >= overhead.median);
    }
    (overhead, inactive)
}

#[test]
fn dense_codes_need_no_packet_beyond_k() {
    for name in ["K=128 dense", "K=256 dense"] {
        let (overhead, _) = overhead(name, 100);
        assert!(overhead.mean <= 0.04, "{}", overhead.mean);
    }
}

#[test]
fn table_alone_needs_many_packets_for_small_k() {
    let (overhead, _) = overhead("K=256 table", 60);
    assert!(overhead.mean > 20.0);
}

#[test]
fn mixtures_need_few_packets_beyond_k() {
    overhead("K=512 mixture", 400);
    let (overhead, _) = overhead("K=1024 mixture", 400);
    assert!(overhead.mean < 6.0);
}

/// The default for K = 1024. With 400 blocks twice the standard error of the mean is below 1.
#[test]
fn recommended_mixture_for_k_1024_needs_at_most_two_packets_beyond_k() {
    let (overhead, _) = overhead("K=1024 recommended", 400);
    let (mean, error) = (overhead.mean, overhead.error);
    assert!(error < 1.0 && mean + error <= 2.0, "{mean} ± {error}");
}

#[test]
fn recommended_distribution_with_precode_needs_at_most_two_packets_beyond_k() {
    let (with_precode, inactive) = overhead("K=2500 recommended, precode", 8);
    assert!(with_precode.mean <= 2.0, "{}", with_precode.mean);
    assert!(inactive.mean < 500.0);
}

#[test]
fn belief_propagation_alone_usually_fails() {
    let case = CASES.iter().find(|case| case.name == "K=256 table").expect("no case of this name");
    assert!(case.belief_propagation);
    let failed = (0..60).filter(|&number| belief_propagation(case, number).is_none()).count();
    // Three of four according to the table.
    assert!((33..=56).contains(&failed), "{failed} of 60");
}
