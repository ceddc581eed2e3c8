//! Runs the commands of a quick-start page over a lab, exactly as the page shows them. The tests of the
//! bindings use this file, too.

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "skip.rs"]
mod skip;

pub(crate) use skip::skipped;

/// The directory with `batslab`. The workspace's test command builds it next to the other programs; if
/// another command did not, it is built here.
fn directory_of_batslab() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let directory = deps.parent().unwrap().to_owned();
    if !directory.join("batslab").exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "-p", "bats-lab", "--bin", "batslab"]);
        if directory.ends_with("release") {
            cargo.arg("--release");
        }
        let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        assert!(built.is_ok_and(|status| status.success()), "cannot build batslab");
    }
    directory
}

/// The code blocks of a page in a language.
pub(crate) fn blocks(page: &str, language: &str) -> Vec<String> {
    let start = format!("```{language}\n");
    let blocks = page.split(&start).skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.map(str::to_owned).collect()
}

/// Runs the last commands of a page in `directory`, and checks that they print the echo.
///
/// The page's lab has the default name, which another test may use at the same time: so the commands
/// run in namespaces of their own, and all their processes end with them. Without permission for
/// that the test prints that it was skipped.
pub(crate) fn follow_over_lossy_link(page: &str, directory: &Path, home: &Path) {
    let script = blocks(page, "sh").pop().unwrap();
    assert!(script.contains("batslab up") && script.contains("--loss 10%"), "{script}");
    let programs = directory_of_batslab();
    let doctor =
        Command::new(programs.join("batslab")).args(["doctor", "--json"]).output().unwrap();
    if !doctor.status.success() {
        return skipped("the quick start over a lossy link", "this machine allows no labs");
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("unshare");
    command.args(["-rmnp", "--fork", "--kill-child", "--mount-proc", "sh", "-ec"]);
    command.arg(format!("mount -t tmpfs tmpfs /run\nip link set lo up\n{script}"));
    command
        .current_dir(directory)
        .env("HOME", home)
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("XDG_STATE_HOME");
    let output = command.env("PATH", format!("{}:{path}", programs.display())).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\n{text}\n{errors}");
    assert!(text.lines().any(|line| line == "echo: hello"), "{script}\n{text}\n{errors}");
}
