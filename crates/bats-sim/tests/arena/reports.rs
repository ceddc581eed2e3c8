//! The report: the same at each run, valid by its schema, and complete on its page.

use bats_proto::CongestionAlgorithm;
use bats_sim::arena::cell::Algorithm;
use bats_sim::arena::contest::{Contest, Plan};
use bats_sim::arena::goal::{Goal, Measure};
use bats_sim::arena::report::Report;
use bats_sim::arena::{cells, html, report, table};

const LTCC: Algorithm = Algorithm::Brtp(CongestionAlgorithm::Ltcc);

/// These cells, 2 s to settle and 3 s that count.
fn short(names: &[&str]) -> Vec<Contest> {
    let all = cells::all().into_iter().filter(|cell| names.contains(&cell.name.as_str()));
    let shorten = |contest: Contest| {
        let build = contest.build.clone();
        let short = move |draw: &mut _| {
            let mut cell = build(draw);
            cell.warm_up = std::time::Duration::from_secs(2);
            cell.measure = std::time::Duration::from_secs(3);
            cell
        };
        Contest { build: std::sync::Arc::new(short), ..contest }
    };
    all.map(shorten).collect()
}

fn plan(names: &[&str], threads: usize) -> Plan {
    Plan {
        contests: short(names),
        algorithms: vec![LTCC, Algorithm::Cubic],
        seeds: vec![1, 2],
        held_out: None,
        judge: true,
        all_peers: false,
        threads,
    }
}

fn run(plan: &Plan) -> Report {
    plan.run(|| {})
}

#[test]
fn reports_are_the_same_with_any_number_of_threads() {
    let names = ["P4", "S4", "O10", "M2", "C2"];
    let one = run(&plan(&names, 1));
    assert_eq!(one, run(&plan(&names, 3)));
    let held_out = Plan { held_out: Some(5), ..plan(&names, 2) };
    assert_ne!(one.cells, run(&held_out).cells);
    assert_eq!(run(&held_out), run(&held_out));
}

#[test]
fn a_report_is_valid_by_the_schema_in_the_tree() {
    let text = include_str!("../../schema/arena.schema.json");
    let schema: serde_json::Value = serde_json::from_str(text).unwrap();
    let of_types = serde_json::to_value(report::schema()).unwrap();
    assert_eq!(schema, of_types, "write it again: bats-sim arena --schema > the file");
    let validator = jsonschema::validator_for(&schema).unwrap();
    // Cells with media, harm, transfers, relays and something that never connects.
    let all = Plan { all_peers: true, ..plan(&["M1", "M3", "C1", "R1", "S5"], 0) };
    let report = serde_json::to_value(run(&all)).unwrap();
    if let Err(error) = validator.validate(&report) {
        panic!("{error} at {}", error.instance_path());
    }
    let mut broken = report;
    broken["cells"][0]["runs"][0]["figures"]["efficiency"] = "much".into();
    assert!(!validator.is_valid(&broken));
}

#[test]
fn a_cell_is_judged_by_its_worst_seed() {
    let mut plan = plan(&["P5"], 0);
    let report = run(&plan);
    let efficiency = |seed: usize| report.cells[0].runs[seed].figures.efficiency;
    let (low, high) = (efficiency(0).min(efficiency(1)), efficiency(0).max(efficiency(1)));
    assert!(low < high, "{low} {high}");
    let worst = if efficiency(0) < efficiency(1) { 1 } else { 2 };
    for (bound, passed) in [((low + high) / 2.0, false), (low, true)] {
        plan.contests[0].goals = vec![Goal::at_least(Measure::Efficiency, bound)];
        let report = run(&plan);
        let verdict = &report.cells[0].verdicts[0];
        assert_eq!((verdict.passed, report.passed), (passed, Some(passed)));
        assert_eq!((verdict.goals[0].seed, verdict.goals[0].value), (worst, Some(low)));
        assert_eq!((report.groups[0].passed, report.groups[0].cells), (u64::from(passed), 1));
        let text = table::table(&report);
        assert!(text.contains(if passed { "PASS" } else { "MISS E >= " }), "{text}");
    }
}

#[test]
fn peers_are_not_judged() {
    let plan = Plan { algorithms: vec![Algorithm::Cubic], ..plan(&["P4"], 0) };
    let report = run(&plan);
    assert_eq!((report.passed, report.groups.len()), (None, 0));
    // Neither are other peers run for it.
    assert_eq!(report.cells[0].runs.len(), 2);
}

#[test]
fn cubic_does_as_much_harm_as_the_reference_cubic_flow() {
    let report = run(&plan(&["C2"], 0));
    let cubic =
        report.cells[0].runs.iter().find(|run| run.algorithm.as_deref() == Some("tcp/cubic"));
    let relative = &cubic.unwrap().relative;
    assert_eq!(relative.harm, relative.harm_of_cubic);
    assert!(relative.harm.is_some_and(|harm| (0.0..=1.0).contains(&harm)), "{relative:?}");
    assert!(relative.delay_harm.is_some());
    // The cell without the judged flows is also in the report.
    assert!(report.cells[0].runs.iter().any(|run| run.algorithm.is_none()));
}

#[test]
fn the_page_has_every_cell_and_is_self_contained() {
    let all = Plan { all_peers: true, ..plan(&["P4", "S4"], 0) };
    let mut report = run(&all);
    report.cells[0].title = "<script>alert(1)</script>".into();
    let page = html::page(&report);
    for text in ["P4", "S4", "tcp/copa", "seed 2", "over the optimum", "viewport", "&lt;script&gt;"]
    {
        assert!(page.contains(text), "{text}");
    }
    for text in ["<script", "http:", "https:", "src=", "@import", "url("] {
        assert!(!page.contains(text), "{text}");
    }
}
