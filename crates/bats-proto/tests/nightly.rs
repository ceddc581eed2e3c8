//! Checks that the nightly workflow starts every step of `.ci/nightly`.

use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The words between two texts that are on one line.
fn words_between(text: &str, begin: &str, end: &str) -> Vec<String> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(begin)?.strip_suffix(end));
    let words = line.unwrap_or_else(|| panic!("no line {begin}...{end}"));
    words.split([' ', ',']).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

#[test]
fn nightly_workflow_starts_every_step() {
    let workflow = read(".github/workflows/nightly.yml");
    let steps = words_between(&read(".ci/nightly"), "all=(", ")");
    assert!(steps.contains(&"proofs".to_owned()), "{steps:?}");
    assert_eq!(words_between(&workflow, "step: [", "]"), steps);
    assert!(workflow.contains("- run: .ci/nightly ${{ matrix.step }}\n"));
    assert!(workflow.contains("  schedule:\n    - cron: "));
}
