//! The program with a crate whose mutants have known results.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A new copy of the crate.
fn copy(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixture");
    let work = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(work.join("tree/src")).unwrap();
    for file in ["Cargo.toml", "src/lib.rs"] {
        fs::copy(source.join(file), work.join("tree").join(file)).unwrap();
    }
    work
}

fn run(work: &Path, options: &[&str]) -> Output {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixture/list.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_openbats-mutants"));
    for (option, directory) in [("--tree", "tree"), ("--out", "out"), ("--target", "target")] {
        command.arg(option).arg(work.join(directory));
    }
    command.args(["--package", "fixture", "--library", "src/lib.rs", "--test", "fixture"]);
    command.args(["--area", "all", ""]).arg(list).args(options);
    command.output().unwrap()
}

fn results(work: &Path) -> String {
    fs::read_to_string(work.join("out/all/results.tsv")).unwrap()
}

#[test]
fn each_mutant_has_its_known_result() {
    let work = copy("known");
    let output = run(&work, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(results(&work), include_str!("fixture/results.tsv"));
}

#[test]
fn tests_that_are_left_out_catch_nothing() {
    let work = copy("left_out");
    let output = run(&work, &["--skip", "rectangles"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results = results(&work);
    let area = "replace * with + in area";
    let line = results.lines().find(|line| line.ends_with(area)).unwrap();
    assert!(line.starts_with("missed\tno test reaches it\t"), "{line}");
}

#[test]
fn a_test_that_fails_without_a_mutant_is_an_error() {
    let work = copy("failing");
    let library = work.join("tree/src/lib.rs");
    let source = fs::read_to_string(&library).unwrap();
    fs::write(&library, source.replace("assert_eq!(steps(9), 10)", "assert_eq!(steps(9), 9)"))
        .unwrap();
    let output = run(&work, &[]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("tests::two_at_a_time of "), "{error}");
    assert!(error.contains(" fails without a mutant"), "{error}");
}

#[test]
fn a_crate_that_does_not_compile_is_an_error() {
    let work = copy("broken");
    let library = work.join("tree/src/lib.rs");
    let source = fs::read_to_string(&library).unwrap();
    fs::write(&library, source + "\npub const LAST: u32 = \"text\";\n").unwrap();
    let output = run(&work, &[]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("does not compile, not because of a mutant"), "{error}");
}
