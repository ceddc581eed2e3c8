//! BRTP through the program `bats_iperf`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Stage;
use super::figures::{FileRun, Run, samples};
use super::pair::{self, Words};
use crate::topology::{self, End};

const PROGRAM: &str = "bats_iperf";
const PORT: &str = "5201";

/// Finds `bats_iperf` beside this program; builds it where this is a workspace of cargo.
///
/// # Errors
/// Where it is neither there nor can be built.
pub(super) fn executable() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find batslab itself")?;
    let beside = own.with_file_name(PROGRAM);
    // Cargo knows best whether it is up to date.
    if let Some(profile) = cargo_profile(&own) {
        eprintln!("building {PROGRAM} (nothing to do if it is up to date)");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["build", "--quiet", "-p", "bats-iperf"]);
        if profile == "release" {
            cargo.arg("--release");
        }
        let built = cargo.status().is_ok_and(|status| status.success());
        if !built && !beside.exists() {
            bail!("cannot build {PROGRAM}: see what cargo says above");
        }
    }
    if !beside.exists() {
        bail!(
            "{PROGRAM} is not beside batslab ({}): build it with cargo build --release -p bats-iperf",
            beside.display()
        );
    }
    Ok(beside)
}

/// The profile that this program was built with, if `cargo run` started it.
fn cargo_profile(own: &Path) -> Option<String> {
    std::env::var_os("CARGO_MANIFEST_DIR")?;
    let profile = own.parent()?.file_name()?.to_str()?;
    matches!(profile, "release" | "debug").then(|| profile.to_owned())
}

/// Sends as much as goes for the demo's seconds.
pub(super) fn run(stage: &Stage, iperf: &Path) -> Result<Run> {
    stage.say(&format!("BRTP for {} s", stage.seconds));
    let to = topology::address(1, End::Right).to_string();
    let seconds = stage.seconds.to_string();
    let server = Words::new(iperf, ["-s", "-1", "-p", PORT, "-J"]);
    let client = Words::new(iperf, ["-c", &to, "-p", PORT, "-m", "brtp", "-i", "1", "-J"])
        .and(["-t", &seconds]);
    let patience = Duration::from_secs(stage.seconds + 60);
    let outcome = pair::run(stage, "BRTP", &server, &client, patience)?;
    let sent = samples(&outcome.client).context("bats_iperf gave no figures")?;
    // What counts is what arrived, as the server saw it.
    let samples = samples(&outcome.server).unwrap_or(sent);
    Ok(Run::new("BRTP", "bats_iperf", samples, outcome.processors))
}

/// Sends a file and has it verified.
///
/// # Errors
/// Where it did not arrive as it was.
pub(super) fn send_file(stage: &Stage, iperf: &Path, path: &Path, bytes: u64) -> Result<FileRun> {
    let to = topology::address(1, End::Right).to_string();
    let file = path.to_string_lossy();
    let incoming = stage.scratch("incoming");
    std::fs::create_dir_all(&incoming)
        .with_context(|| format!("cannot make {}", incoming.display()))?;
    let directory = incoming.to_string_lossy();
    let server =
        Words::new(iperf, ["-s", "-1", "-p", PORT, "-J", "--directory", directory.as_ref()]);
    let client =
        Words::new(iperf, ["-c", &to, "-p", PORT, "-m", "brtp", "-J", "-f", file.as_ref()]);
    let outcome =
        pair::run(stage, "the file over BRTP", &server, &client, Duration::from_secs(600))?;
    let _ = std::fs::remove_dir_all(&incoming);
    Ok(FileRun {
        bytes: bytes,
        seconds: outcome.time.as_secs_f64(),
        processors: outcome.processors,
    })
}
