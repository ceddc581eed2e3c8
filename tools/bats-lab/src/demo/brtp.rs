//! BRTP through the program `bats_iperf`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::DemoContext;
use super::figures::{FileRun, Run, samples};
use super::pair::{self, CommandLine};
use crate::topology::{self, End};

const PORT: &str = "5201";

/// Sends without rate limit for the duration of the demo.
pub(super) fn run(demo: &DemoContext, iperf: &Path) -> Result<Run> {
    demo.print(&format!("BRTP for {} s", demo.seconds));
    let to = topology::address(1, End::Right).to_string();
    let seconds = demo.seconds.to_string();
    let server = CommandLine::new(iperf, ["-s", "-1", "-p", PORT, "-J"]);
    let client = CommandLine::new(iperf, ["-c", &to, "-p", PORT, "-m", "brtp", "-i", "1", "-J"])
        .with_arguments(["-t", &seconds, "--no-known-hosts"]);
    let timeout = Duration::from_secs(demo.seconds + 60);
    let outcome = pair::run(demo, "BRTP", &server, &client, timeout)?;
    let sent = samples(&outcome.client).context("bats_iperf reported no figures")?;
    // The goodput is what arrived, as the server measured it.
    let samples = samples(&outcome.server).unwrap_or(sent);
    Ok(Run::new("BRTP", "bats_iperf", samples, outcome.cpu_seconds))
}

/// Sends a file that the server verifies.
///
/// # Errors
/// If the received file differs.
pub(super) fn send_file(
    demo: &DemoContext,
    iperf: &Path,
    path: &Path,
    bytes: u64,
) -> Result<FileRun> {
    let to = topology::address(1, End::Right).to_string();
    let file = path.to_string_lossy();
    let incoming = demo.scratch("incoming");
    std::fs::create_dir_all(&incoming)
        .with_context(|| format!("cannot create {}", incoming.display()))?;
    let directory = incoming.to_string_lossy();
    let server =
        CommandLine::new(iperf, ["-s", "-1", "-p", PORT, "-J", "--directory", directory.as_ref()]);
    let client =
        CommandLine::new(iperf, ["-c", &to, "-p", PORT, "-m", "brtp", "-J", "-f", file.as_ref()])
            .with_arguments(["--no-known-hosts"]);
    let outcome =
        pair::run(demo, "the file over BRTP", &server, &client, Duration::from_secs(600))?;
    let _ = std::fs::remove_dir_all(&incoming);
    Ok(FileRun { bytes, seconds: outcome.time.as_secs_f64(), cpu_seconds: outcome.cpu_seconds })
}
