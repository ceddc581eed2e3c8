//! What comes before the measurements: rights, versions, the emulator's own figures.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, bail};

use super::Stage;
use crate::backend::Ground;
use crate::backend::local::LocalGround;
use crate::backend::netem;
use crate::config::model::BackendName;
use crate::lab;
use crate::plan::checks::Check;
use crate::plan::{Case, Host, Network, Suite, Tool};
use crate::result::CaseResult;
use crate::state::Home;
use crate::verify::{Effort, Row, measure};

/// The emulator's check over the only way of a test, and over each of several.
const WHOLE: Effort = Effort { pings: 400, packets: 60_000, seconds: 2 };
const BRIEF: Effort = Effort { pings: 150, packets: 60_000, seconds: 1 };
/// Processors that the emulator may use in its own check; a link's thread has one.
const SHORT_OF_TIME: f64 = 0.8;

/// Gets the rights that namespaces need, and looks for netem.
pub(super) fn rights(home: &Home, needs_netem: bool) -> Result<()> {
    lab::obtain_rights(home)
        .context("this test needs network namespaces; `--backend sim` needs none")?;
    if needs_netem && let Some(why) = netem::obstacle() {
        bail!("the backend netem does not work here: {why}");
    }
    Ok(())
}

/// Seconds that a test takes.
pub(super) fn seconds(case: &Case, backend: BackendName) -> f64 {
    if backend == BackendName::Sim { case.measurements() as f64 } else { case.seconds() }
}

/// Seconds that a measurement takes; in virtual time each counts the same.
pub(super) fn point_seconds(tool: &Tool, backend: BackendName) -> f64 {
    if backend == BackendName::Sim { 1.0 } else { tool.seconds() + 1.5 }
}

/// The hosts of the testbed that was asked for, or of the only one.
pub(super) fn testbed<'a>(suite: &'a Suite, name: Option<&str>) -> Result<&'a [Host]> {
    let names: Vec<&str> = suite.testbeds.iter().map(|(name, _)| name.as_str()).collect();
    match name {
        Some(name) => match suite.testbeds.iter().find(|(known, _)| known == name) {
            Some((_, hosts)) => Ok(hosts),
            None => bail!("{} has no testbed `{name}`; it has: {}", suite.file, names.join(", ")),
        },
        None => match suite.testbeds.as_slice() {
            [(_, hosts)] => Ok(hosts),
            [] => {
                bail!("the backend ssh needs `testbeds` in {}: the hosts to measure on", suite.file)
            }
            _ => bail!("which testbed? say --testbed with one of: {}", names.join(", ")),
        },
    }
}

/// What a reader has to know where the links themselves were not measured.
pub(super) fn unverified(backend: BackendName, no_verify: bool) -> Option<&'static str> {
    match backend {
        BackendName::Netns if no_verify => {
            Some("the emulator itself was not measured in this run: --no-verify")
        }
        BackendName::Netns => {
            Some("the emulator itself was not measured in this run: the test says `verify: false`")
        }
        BackendName::Netem => {
            Some("the links themselves were not measured: that is for the emulator of netns")
        }
        BackendName::Ssh => Some("links of real hosts are what they are: nobody measured them"),
        BackendName::Sim => None,
    }
}

/// Measures the emulator over the ways of the test, each different one of a run once.
pub(super) fn verify(stage: &Stage<'_>, case: &Case, result: &mut CaseResult) -> Result<()> {
    let checks = case.checks();
    let effort = if checks.len() > 1 { BRIEF } else { WHOLE };
    let seconds = case.verifying() / checks.len().max(1) as f64;
    for check in &checks {
        stage.progress.begin(&format!("the emulator itself, {}", check.name()), seconds);
        let rows = match stage.verified(&check.way) {
            Some(rows) => Ok(rows),
            None => over(stage, case, check, effort),
        };
        stage.progress.end(seconds);
        match rows {
            Ok(rows) => {
                stage.remember(&check.way, &rows);
                let named = |row: Row| Row { over: Some(check.name()), ..row };
                result.verification.extend(rows.into_iter().map(named));
            }
            Err(error) => {
                crate::interrupt::check()?;
                let name = check.name();
                let text = format!("the emulator could not be measured over {name}: {error:#}");
                result.warnings.push(text);
            }
        }
    }
    let mut bad: Vec<&str> = result
        .verification
        .iter()
        .filter(|row| row.good == Some(false))
        .filter_map(|row| row.over.as_deref())
        .collect();
    bad.dedup();
    if !bad.is_empty() {
        result.warnings.push(format!(
            "the emulator did not do what was asked for over {}: see its own figures",
            bad.join("; ")
        ));
    }
    let is_short =
        |row: &Row| row.what.starts_with("emulator's processors") && row.value > SHORT_OF_TIME;
    if result.verification.iter().any(is_short) {
        result
            .warnings
            .push("the emulator was short of processor time in its own check".to_owned());
    }
    Ok(())
}

/// Measures over a way.
fn over(stage: &Stage<'_>, case: &Case, check: &Check, effort: Effort) -> Result<Vec<Row>> {
    let network = case.networks.get(check.network).context("there is no such network")?;
    let network = Network { links: check.links.clone(), ..network.clone() };
    let name = stage.lab_name();
    let ground = LocalGround::build(stage.home, &name, &network, case.seed, stage.programs, false)?;
    match ground.lab() {
        Some((home, lab)) => measure(home, lab, (check.from, check.to), effort, &|_| {}),
        None => bail!("there is no emulator"),
    }
}

/// The versions of all that takes part.
pub(super) fn versions() -> BTreeMap<String, String> {
    let mut versions: BTreeMap<String, String> = crate::demo::versions(None).into_iter().collect();
    if let Some(path) = std::env::current_exe().ok().map(|own| own.with_file_name("bats_iperf"))
        && path.exists()
    {
        versions.extend(crate::demo::versions(Some(&path)));
    }
    let controls = crate::protocol::congestion_controls();
    if !controls.is_empty() {
        versions.insert("TCP congestion controls".to_owned(), controls.join(" "));
    }
    if let Ok(memory) = fs::read_to_string("/proc/meminfo")
        && let Some(line) = memory.lines().next()
    {
        versions
            .insert("memory".to_owned(), line.trim_start_matches("MemTotal:").trim().to_owned());
    }
    versions
}
