//! Passes the commit, compiler and profile to the program, for the first lines of its reports.

use std::path::Path;
use std::process::Command;

/// The output of a command on one line.
fn output_of(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().replace('\n', " "))
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Sources without history, as in a package, have no commit.
    let history = output_of("git", &["rev-parse", "--git-path", "logs/HEAD"]);
    let commit = history.filter(|path| Path::new(path).exists()).and_then(|path| {
        println!("cargo::rerun-if-changed={path}");
        output_of("git", &["log", "-1", "--format=commit %h of %cs"])
    });
    let compiler = output_of(&std::env::var("RUSTC").unwrap_or("rustc".into()), &["--version"]);
    // "rustc 1.89.0 (29483883e 2025-08-04)"
    let compiler = compiler.and_then(|line| Some(line.split_once(" (")?.0.to_owned()));
    let profile = std::env::var("PROFILE").ok();
    let parts: Vec<String> = [commit, compiler, profile].into_iter().flatten().collect();
    println!("cargo::rustc-env=BATS_IPERF_BUILD={}", parts.join(", "));
}
