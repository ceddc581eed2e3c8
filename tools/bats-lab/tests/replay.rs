//! Replays the corpus of the fuzz target of this crate, and runs mutations of it.

#[path = "../../../fuzz/mutation.rs"]
mod mutation;

use bats_lab::fuzzing::scenario_run;

/// Words of test files and of cells.
const TOKENS: &[&str] = &[
    "tests:\n",
    "  - ",
    ": ",
    "{ ",
    " }",
    "[",
    "]",
    "\n    ",
    "&a ",
    "*a",
    "<<: *a\n",
    "---\n",
    "loss: 200%",
    "rate: 0",
    "rate: .nan",
    "delay: -1ms",
    "queue: 1e9bdp",
    "matrix: { loss: [0, 1, 2], delay: [1ms, 2ms] }",
    "repetitions: 1001\n",
    "nodes: 17",
    "topology_type: mesh",
    "config_name: ",
    "config_file: complex_mesh_net.json",
    "json_description: 4-hops-linear-network.json",
    "step_len: 1\nstep_num: 999\n",
    "rate_schedule: { leo: {} }",
    "cells:\n",
    "flows: [{ algorithm: subject, count: 256 }]",
    "schedule: { steps: [{ rate: 1M, for: 1ms }] }",
    "null",
    "~",
    "'",
    "\"",
    "#",
    "|\n",
    "!!binary ",
];

#[test]
fn scenario() {
    let (mut plans, mut topologies, mut cells, mut refused) = (0, 0, 0, 0);
    let inputs = mutation::replay("scenario", TOKENS, 3_000, 16 << 10, |data| {
        let report = scenario_run(data);
        plans += u64::from(report.measurements > 0);
        topologies += u64::from(report.is_topology_file);
        cells += report.cells;
        let is_valid = report.measurements > 0 || report.is_topology_file || report.cells > 0;
        refused += u64::from(!is_valid);
    });
    let counts = format!(
        "{inputs} inputs: {plans} plans, {topologies} files of topologies, {cells} cells, {refused} refused"
    );
    println!("{counts}");
    assert!(plans > 150 && topologies > 30 && cells > 80 && refused > 1_500, "{counts}");
}
