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

/// Whether a file has property tests, or one in a folder.
fn has_properties(path: &Path) -> bool {
    if path.is_dir() {
        return entries(path).iter().any(|path| has_properties(path));
    }
    let is_source = path.extension().is_some_and(|extension| extension == "rs");
    is_source && fs::read_to_string(path).unwrap().lines().any(|line| line.trim() == "proptest! {")
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn property_tests_run_each_night() {
    let (steps, proofs) = (steps(), read("tools/proofs/run"));
    let mut checked = 0;
    let packages = ["crates", "tools"].iter().flat_map(|folder| entries(&root().join(folder)));
    for package in packages.filter(|path| path.join("Cargo.toml").is_file()) {
        if !["src", "tests"].iter().any(|folder| has(&package, folder)) {
            continue;
        }
        let step = format!("proofs:{}", package.file_name().unwrap().to_str().unwrap());
        assert!(steps.contains(&step), "no step {step} for {}", package.display());
        checked += 1;
        if !has(&package, "tests") {
            continue;
        }
        for test in entries(&package.join("tests")).iter().filter(|path| has_properties(path)) {
            let name = test.file_stem().unwrap().to_str().unwrap();
            assert!(proofs.contains(&format!("--test {name}")), "{} does not run", test.display());
        }
    }
    assert!(checked > 5, "{checked} packages with property tests");
}

/// Whether a folder of a package has property tests.
fn has(package: &Path, folder: &str) -> bool {
    let folder = package.join(folder);
    folder.is_dir() && has_properties(&folder)
}

#[test]
fn unknown_steps_are_refused() {
    for arguments in [&["proof"][..], &["mutants:"], &["swarm", "-x"], &["--fuzz-seconds", "0"]] {
        let output = nightly(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    }
}
