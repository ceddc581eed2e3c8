//! A small run of `examples/overhead`: the table of `docs/rfc9426.md` is reproduced, and the
//! distributions that the crate recommends need hardly any packets beyond K.

#[path = "../examples/overhead/simulation.rs"]
mod simulation;

use simulation::{CASES, Summary, belief_propagation, simulate};

fn overhead(name: &str, blocks: u32) -> (Summary, Summary) {
    let case = CASES.iter().find(|case| case.name == name).expect("a case of this name");
    let runs: Vec<_> = (0..blocks).map(|number| simulate(case, number)).collect();
    let overhead = Summary::of(runs.iter().map(|run| run.overhead as f64));
    let inactive = Summary::of(runs.iter().map(|run| run.inactive as f64));
    if let Some(table) = case.table_inactive.filter(|_| case.comparable) {
        let table = f64::from(table);
        assert!((inactive.mean - table).abs() < table / 3.0, "{name}: {}", inactive.mean);
    }
    if let (Some(table), Some(distance)) = (case.table, overhead.distance(case)) {
        let (mean, error) = (overhead.mean, overhead.error);
        assert!(distance <= 3.0, "{name}: {mean} ± {error} against {table}");
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
fn tables_alone_are_bad_at_the_size_of_a_transport() {
    let (overhead, _) = overhead("K=256 table", 60);
    assert!(overhead.mean > 20.0);
}

#[test]
fn mixtures_need_few() {
    overhead("K=512 mixture", 400);
    let (overhead, _) = overhead("K=1024 mixture", 400);
    assert!(overhead.mean < 6.0);
}

/// What ships for K = 1024: with 400 blocks twice the standard error of the mean is below 1.
#[test]
fn the_recommended_mixture_needs_at_most_two_for_1024() {
    let (overhead, _) = overhead("K=1024 recommended", 400);
    let (mean, error) = (overhead.mean, overhead.error);
    assert!(error < 1.0 && mean + error <= 2.0, "{mean} ± {error}");
}

#[test]
fn recommended_distributions_with_a_precode_need_hardly_any() {
    let (with_precode, inactive) = overhead("K=2500 recommended, precode", 8);
    assert!(with_precode.mean <= 2.0, "{}", with_precode.mean);
    assert!(inactive.mean < 500.0);
}

#[test]
fn belief_propagation_alone_fails_mostly() {
    let case = CASES.iter().find(|case| case.name == "K=256 table").expect("the case");
    assert!(case.belief_propagation);
    let failed = (0..60).filter(|&number| belief_propagation(case, number).is_none()).count();
    // Three of four, by the table.
    assert!((33..=56).contains(&failed), "{failed} of 60");
}
