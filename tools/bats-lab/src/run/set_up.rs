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
use crate::plan::{Case, Host, Suite, Tool};
use crate::result::CaseResult;
use crate::state::Home;
use crate::verify::{good, measure};

/// Packets of the emulator's check, and its longest measurement in seconds.
const PACKETS: u64 = 60_000;
const SECONDS: u64 = 2;

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
            [] => bail!("the backend ssh needs `testbeds` in {}", suite.file),
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

/// Measures the emulator over the first network.
pub(super) fn verify(stage: &Stage<'_>, case: &Case, result: &mut CaseResult) -> Result<()> {
    let Some(network) = case.networks.first() else { return Ok(()) };
    stage.progress.begin("the emulator itself", 9.0);
    let ground = LocalGround::build(
        stage.home,
        &stage.lab_name(),
        network,
        case.seed,
        stage.programs,
        false,
    )?;
    let measured = match ground.lab() {
        Some((home, lab)) => measure(home, lab, PACKETS, SECONDS, &|_| {}),
        None => bail!("there is no emulator"),
    };
    stage.progress.end(9.0);
    match measured {
        Ok(rows) => {
            if !good(&rows) {
                result.warnings.push(
                    "the emulator did not do what was asked for: see its own figures".to_owned(),
                );
            }
            if rows
                .iter()
                .any(|row| row.what.starts_with("emulator's processors") && row.value > 0.8)
            {
                result
                    .warnings
                    .push("the emulator was short of processor time in its own check".to_owned());
            }
            result.verification = rows;
        }
        Err(error) => {
            crate::interrupt::check()?;
            result.warnings.push(format!("the emulator could not be measured: {error:#}"));
        }
    }
    Ok(())
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
