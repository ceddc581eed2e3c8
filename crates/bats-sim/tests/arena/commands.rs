//! Options and exit codes of `bats-sim arena`.

use std::process::{Command, Output};

fn arena(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bats-sim")).arg("arena").args(arguments).output().unwrap()
}

#[test]
fn the_exit_code_reports_missed_goals() {
    let file = std::env::temp_dir().join(format!("bats-sim-cells-{}.yaml", std::process::id()));
    let text = "cells:\n  - { name: X1, hops: [{ rate: 2M, delay: 5ms }], warm_up: 1s, measure: 2s, \
                goals: { efficiency: 0.5 } }\n  - { name: Y1, hops: [{ rate: 2M, delay: 5ms }], \
                warm_up: 1s, measure: 2s, goals: { efficiency: 1.5 } }\n";
    std::fs::write(&file, text).unwrap();
    let path = file.to_str().unwrap();
    let run = |arguments: &[&str]| {
        let base = ["--file", path, "--seeds", "1"];
        arena(&[&base[..], arguments].concat())
    };
    let code = |arguments: &[&str]| run(arguments).status.code();
    assert_eq!(code(&["--cell", "X1", "--algorithm", "ltcc"]), Some(0));
    assert_eq!(code(&["--algorithm", "ltcc"]), Some(1));
    assert_eq!(code(&["--algorithm", "ltcc", "--no-judge"]), Some(0));
    assert_eq!(code(&["--algorithm", "tcp/cubic"]), Some(0));
    assert_eq!(code(&["--algorithm", "tcp/unknown"]), Some(2));
    assert_eq!(code(&["--cell", "Z9"]), Some(2));
    let output = run(&["--algorithm", "ltcc", "--cell", "X1", "--json", "-"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["cells"][0]["name"], "X1");
    assert_eq!(report["cells"][0]["runs"].as_array().unwrap().len(), 6);
    let traced = run(&["--algorithm", "ltcc", "--cell", "X1", "--trace"]);
    assert!(traced.status.success() && traced.stdout.split(|&b| b == b'\n').count() > 20);
    std::fs::remove_file(&file).unwrap();
}
