//! TCP: `iperf3` where it is installed, else the load of this program.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Stage;
use super::figures::{Run, samples};
use super::pair::{self, Words};
use crate::interrupt;
use crate::topology::{self, End};

const PORT: &str = "5301";

/// Sends as much as goes for the demo's seconds with a congestion control.
pub(super) fn run(stage: &Stage, name: &'static str, congestion: &str) -> Result<Run> {
    stage.say(&format!("{name} for {} s", stage.seconds));
    if pair::output(Path::new("iperf3"), "--version").is_some() {
        match with_iperf3(stage, name, congestion) {
            Ok(run) => return Ok(run),
            // Its control connection crosses the lossy link too, and may not come through.
            Err(error) => {
                interrupt::check()?;
                stage.say(&format!("iperf3 gave up ({error:#}); once more with the built-in load"));
            }
        }
    }
    with_own_load(stage, name, congestion)
}

fn with_iperf3(stage: &Stage, name: &'static str, congestion: &str) -> Result<Run> {
    let to = topology::address(1, End::Right).to_string();
    let seconds = stage.seconds.to_string();
    let iperf3 = Path::new("iperf3");
    let server = Words::new(iperf3, ["-s", "-1", "-p", PORT, "-i", "1", "-J"]);
    let client = Words::new(iperf3, ["-c", &to, "-p", PORT, "-i", "1", "-J", "-C", congestion])
        .and(["-t", &seconds]);
    let patience = Duration::from_secs(stage.seconds + 45);
    let outcome = pair::run(stage, name, &server, &client, patience)?;
    let samples = samples(&outcome.server)
        .or_else(|| samples(&outcome.client))
        .context("iperf3 gave no figures")?;
    Ok(Run::new(name, "iperf3", samples, outcome.processors))
}

fn with_own_load(stage: &Stage, name: &'static str, congestion: &str) -> Result<Run> {
    let to = format!("{}:{PORT}", topology::address(1, End::Right));
    let seconds = stage.seconds.to_string();
    let own = std::env::current_exe().context("cannot find batslab itself")?;
    let server = Words::new(&own, ["__tcp-sink", "--port", PORT]);
    let client = Words::new(&own, ["__tcp-source", "--to", &to, "--seconds", &seconds])
        .and(["--congestion", congestion]);
    let patience = Duration::from_secs(stage.seconds + 45);
    let outcome = pair::run(stage, name, &server, &client, patience)?;
    let samples = samples(&outcome.server).context("the built-in load gave no figures")?;
    Ok(Run::new(name, "built-in load", samples, outcome.processors))
}
