//! Preparation of a run: privileges, versions, verification of the emulator.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::RunContext;
use crate::backend::HostBackend;
use crate::backend::local::LocalBackend;
use crate::backend::netem;
use crate::config::model::BackendName;
use crate::lab;
use crate::plan::checks::Check;
use crate::plan::{Case, Host, Network, Suite, Tool};
use crate::protocol::programs;
use crate::result::CaseResult;
use crate::state::Home;
use crate::verify::{Effort, Row, measure};

/// Effort of the verification of the emulator, for the only path of a test and for each of several.
const SINGLE_PATH_EFFORT: Effort = Effort { pings: 400, packets: 60_000, seconds: 2 };
const MULTI_PATH_EFFORT: Effort = Effort { pings: 150, packets: 60_000, seconds: 1 };
/// Maximum CPU use of the emulator in its verification; each link has one thread.
const MAX_EMULATOR_CPU: f64 = 0.8;

/// Obtains the privileges for namespaces and checks netem.
pub(super) fn rights(home: &Home, needs_netem: bool) -> Result<()> {
    lab::obtain_privileges(home)
        .context("this test needs network namespaces (`--backend sim` does not)")?;
    if needs_netem && let Some(why) = netem::unavailable_reason() {
        bail!("the backend netem does not work here: {why}");
    }
    Ok(())
}

/// Expected duration of a test in seconds.
pub(super) fn case_seconds(case: &Case, backend: BackendName) -> f64 {
    if backend == BackendName::Sim { case.measurements() as f64 } else { case.seconds() }
}

/// Expected duration of a measurement in seconds; in virtual time all count the same.
pub(super) fn measurement_seconds(tool: &Tool, backend: BackendName) -> f64 {
    if backend == BackendName::Sim { 1.0 } else { tool.seconds() + 1.5 }
}

/// The hosts of the named testbed, or of the only one.
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
            _ => bail!("several testbeds: choose one with --testbed: {}", names.join(", ")),
        },
    }
}

/// Warning if the links were not verified.
pub(super) fn unverified_warning(backend: BackendName, no_verify: bool) -> Option<&'static str> {
    match backend {
        BackendName::Netns if no_verify => {
            Some("the emulator was not verified in this run: --no-verify")
        }
        BackendName::Netns => {
            Some("the emulator was not verified in this run: the test sets `verify: false`")
        }
        BackendName::Netem => {
            Some("the links were not verified: only the backend netns supports it")
        }
        BackendName::Ssh => Some("the links of real hosts were not verified"),
        BackendName::Sim => None,
    }
}

/// Verifies the emulator over the paths of the test. Each distinct path is verified once per run.
pub(super) fn verify(context: &RunContext<'_>, case: &Case, result: &mut CaseResult) -> Result<()> {
    let checks = case.checks();
    if case.has_unsteady_links() {
        result.warnings.push(
            "the emulator was not verified over links with schedules, policers, managed queues or losses in time"
                .to_owned(),
        );
    }
    let effort = if checks.len() > 1 { MULTI_PATH_EFFORT } else { SINGLE_PATH_EFFORT };
    let seconds = case.verification_seconds() / checks.len().max(1) as f64;
    for check in &checks {
        context.progress.begin(&format!("verifying the emulator, {}", check.name()), seconds);
        let rows = match context.cached_verification(&check.path_links) {
            Some(rows) => Ok(rows),
            None => measure_path(context, case, check, effort),
        };
        context.progress.end(seconds);
        match rows {
            Ok(rows) => {
                context.cache_verification(&check.path_links, &rows);
                let named = |row: Row| Row { over: Some(check.name()), ..row };
                result.verification.extend(rows.into_iter().map(named));
            }
            Err(error) => {
                crate::interrupt::check()?;
                let name = check.name();
                let text = format!("the emulator could not be verified over {name}: {error:#}");
                result.warnings.push(text);
            }
        }
    }
    let mut out_of_tolerance: Vec<&str> = result
        .verification
        .iter()
        .filter(|row| row.good == Some(false))
        .filter_map(|row| row.over.as_deref())
        .collect();
    out_of_tolerance.dedup();
    if !out_of_tolerance.is_empty() {
        result.warnings.push(format!(
            "the emulator is out of tolerance over {}: see its verification",
            out_of_tolerance.join("; ")
        ));
    }
    let is_overloaded =
        |row: &Row| row.what.starts_with("emulator CPU") && row.value > MAX_EMULATOR_CPU;
    if result.verification.iter().any(is_overloaded) {
        result.warnings.push("the emulator was overloaded in its verification".to_owned());
    }
    Ok(())
}

/// Verifies the emulator over one path.
fn measure_path(
    context: &RunContext<'_>,
    case: &Case,
    check: &Check,
    effort: Effort,
) -> Result<Vec<Row>> {
    let network = case.networks.get(check.network).context("no such network")?;
    let network = Network { links: check.links.clone(), ..network.clone() };
    let name = context.lab_name();
    let backend =
        LocalBackend::build(context.home, &name, &network, case.seed, context.programs, false)?;
    match backend.lab() {
        Some((home, lab)) => measure(home, lab, (check.from, check.to), effort, &|_| {}),
        None => bail!("there is no emulator"),
    }
}

/// The first line of what a program prints with `--version`.
fn first_line(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned())
}

/// Versions of all programs that take part.
pub(super) fn versions(suite: &Suite) -> BTreeMap<String, String> {
    let mut versions: BTreeMap<String, String> = crate::demo::versions(None).into_iter().collect();
    if let Some(path) = std::env::current_exe().ok().map(|own| own.with_file_name("bats_iperf"))
        && path.exists()
    {
        versions.extend(crate::demo::versions(Some(&path)));
    }
    if suite.cases.iter().any(Case::uses_wireguard)
        && let Some(version) = programs::wireguard_go().and_then(|path| first_line(&path))
    {
        versions.insert("wireguard-go".to_owned(), version);
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
