//! Checks that the workflows start `.ci/run` and every step of `.ci/nightly`, and that these steps run every property
//! test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The steps that `.ci/nightly` lists.
fn steps() -> Vec<String> {
    let output = nightly(&["--list"]);
    assert!(output.status.success(), "{output:?}");
    let steps: Vec<_> = String::from_utf8(output.stdout).unwrap().lines().map(Into::into).collect();
    assert!(steps.len() > 10, "{steps:?}");
    steps
}

fn nightly(arguments: &[&str]) -> Output {
    Command::new(root().join(".ci/nightly")).args(arguments).output().expect("bash")
}

#[test]
fn nightly_workflow_starts_every_step() {
    let workflow = read(".github/workflows/nightly.yml");
    let (_, matrix) = workflow.split_once("\n        step:\n").expect("a matrix of steps");
    let started: Vec<_> =
        matrix.lines().map_while(|line| line.strip_prefix("          - ")).collect();
    assert_eq!(started, steps());
    assert!(workflow.contains(" OPENBATS_NO_SKIP=1 .ci/nightly ${{ matrix.step }}\n"));
    assert!(workflow.contains("  schedule:\n    - cron: "));
}

#[test]
fn ci_workflow_starts_the_checks_of_each_change() {
    let workflow = read(".github/workflows/ci.yml");
    assert!(workflow.contains("      - run: .ci/run\n"));
    assert!(workflow.contains("  pull_request:\n"));
}

/// Whether a folder has property tests in a file.
fn has_properties(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).any(|path| {
        if path.is_dir() {
            return has_properties(&path);
        }
        let is_source = path.extension().is_some_and(|extension| extension == "rs");
        is_source
            && fs::read_to_string(&path).unwrap().lines().any(|line| line.trim() == "proptest! {")
    })
}

#[test]
fn property_tests_of_all_crates_run_each_night() {
    let steps = steps();
    let mut checked = 0;
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        if has_properties(&path) {
            let step = format!("proofs:{}", path.file_name().unwrap().to_str().unwrap());
            assert!(steps.contains(&step), "no step {step} for {}", path.display());
            checked += 1;
        }
    }
    assert!(checked > 5, "{checked} crates with property tests");
}

#[test]
fn unknown_steps_are_refused() {
    for arguments in [&["proof"][..], &["mutants:"], &["swarm", "-x"], &["--fuzz-seconds", "0"]] {
        let output = nightly(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    }
}
