//! TCP load: `iperf3` if installed, else the built-in load.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::DemoContext;
use super::figures::{Run, samples};
use super::pair::{self, CommandLine};
use crate::interrupt;
use crate::topology::{self, End};

const PORT: &str = "5301";

/// Sends without rate limit for the duration of the demo with a congestion control.
pub(super) fn run(demo: &DemoContext, name: &'static str, congestion: &str) -> Result<Run> {
    demo.print(&format!("{name} for {} s", demo.seconds));
    if pair::output(Path::new("iperf3"), "--version").is_some() {
        match with_iperf3(demo, name, congestion) {
            Ok(run) => return Ok(run),
            // Its control connection crosses the lossy link too and may fail.
            Err(error) => {
                interrupt::check()?;
                demo.print(&format!("iperf3 failed ({error:#}); retrying with the built-in load"));
            }
        }
    }
    with_own_load(demo, name, congestion)
}

fn with_iperf3(demo: &DemoContext, name: &'static str, congestion: &str) -> Result<Run> {
    let to = topology::address(1, End::Right).to_string();
    let seconds = demo.seconds.to_string();
    let iperf3 = Path::new("iperf3");
    let server = CommandLine::new(iperf3, ["-s", "-1", "-p", PORT, "-i", "1", "-J"]);
    let client =
        CommandLine::new(iperf3, ["-c", &to, "-p", PORT, "-i", "1", "-J", "-C", congestion])
            .with_arguments(["-t", &seconds]);
    let timeout = Duration::from_secs(demo.seconds + 45);
    let outcome = pair::run(demo, name, &server, &client, timeout)?;
    let samples = samples(&outcome.server)
        .or_else(|| samples(&outcome.client))
        .context("iperf3 reported no figures")?;
    Ok(Run::new(name, "iperf3", samples, outcome.cpu_seconds))
}

fn with_own_load(demo: &DemoContext, name: &'static str, congestion: &str) -> Result<Run> {
    let to = format!("{}:{PORT}", topology::address(1, End::Right));
    let seconds = demo.seconds.to_string();
    let own = std::env::current_exe().context("cannot find batslab itself")?;
    let server = CommandLine::new(&own, ["__tcp-sink", "--port", PORT]);
    let client = CommandLine::new(&own, ["__tcp-source", "--to", &to, "--seconds", &seconds])
        .with_arguments(["--congestion", congestion]);
    let timeout = Duration::from_secs(demo.seconds + 45);
    let outcome = pair::run(demo, name, &server, &client, timeout)?;
    let samples = samples(&outcome.server).context("the built-in load reported no figures")?;
    Ok(Run::new(name, "built-in load", samples, outcome.cpu_seconds))
}
