//! The exit code of `bats-sim matrix`.

use std::process::{Command, Output};

/// Two cells of 2 Mbit/s.
fn matrix(least_e: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bats-sim"))
        .args(["matrix", "--rate", "2", "--loss", "0", "--delay", "10,20", "--least-e", least_e])
        .output()
        .unwrap()
}

#[test]
fn a_cell_below_the_bound_is_an_error() {
    let passed = matrix("0.5");
    assert!(passed.status.success(), "{passed:?}");
    assert_eq!(
        String::from_utf8_lossy(&passed.stdout).lines().count(),
        1 + 2,
        "a header and two cells"
    );
    let failed = matrix("1.01");
    assert_eq!(failed.status.code(), Some(1));
    let error = String::from_utf8_lossy(&failed.stderr);
    assert!(error.contains("E is lower than 1.01 in 2 cells"), "{error}");
}
