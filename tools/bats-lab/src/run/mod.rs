//! `batslab run`: runs a test plan and writes the result directory.

mod bounds;
mod capture;
mod cpu_usage;
mod helpers;
mod host_load;
mod host_run;
mod overload;
pub(crate) mod progress;
pub(crate) mod sampler;
pub(crate) mod schedule;
mod set_up;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, bail};

use crate::backend::HostBackend;
use crate::backend::local::LocalBackend;
use crate::backend::sim;
use crate::backend::ssh::SshBackend;
use crate::cli::RunOptions;
use crate::config::expand::file_name;
use crate::config::load;
use crate::config::model::BackendName;
use crate::interrupt;
use crate::plan::{self, Case, Network, Protocol, ProtocolKind, Suite, Tool};
use crate::protocol::Incompatible;
use crate::protocol::programs::{NeededPrograms, Programs};
use crate::report;
use crate::result::{
    CaseResult, FORMAT, Measurement, NetworkResult, PublishedResult, RunResult, Status, folder,
    judge, measures,
};
use crate::settings::Link;
use crate::state::Home;
use crate::verify::Row;
use host_run::HostRun;
use progress::Progress;

/// Runs the tests that the command line names.
///
/// # Errors
/// If the file is invalid, the backend is unavailable, or the results cannot be written.
pub(crate) fn run(home: &Home, options: &RunOptions) -> Result<ExitCode> {
    let mut suite = load::suite(&options.file, options.only.as_deref())?;
    if options.quick {
        suite.shorten();
    }
    let backend = |case: &Case| options.backend.or(case.backend).unwrap_or(BackendName::Netns);
    let uses = |name: BackendName| suite.cases.iter().any(|case| backend(case) == name);
    if uses(BackendName::Ssh) {
        set_up::testbed(&suite, options.testbed.as_deref())?;
    } else if let Some(name) = &options.testbed {
        bail!("the testbed `{name}` needs the backend ssh: add --backend ssh");
    }
    if options.dry_run {
        out!("{}", plan::describe(&suite, options.backend, true));
        return Ok(ExitCode::SUCCESS);
    }
    // Obtaining privileges needs a single-threaded process.
    if uses(BackendName::Netns) || uses(BackendName::Netem) {
        set_up::rights(home, uses(BackendName::Netem))?;
    }
    interrupt::watch()?;
    let programs = Programs::find(needed_programs(&suite, &backend))?;
    let started = jiff::Timestamp::now().to_string();
    let directory = folder::create(options.out.as_deref(), &started, &suite.file)?;
    let total: f64 = suite.cases.iter().map(|case| set_up::case_seconds(case, backend(case))).sum();
    let progress = Progress::new(
        &directory,
        total,
        !uses(BackendName::Netns) && !uses(BackendName::Netem) && !uses(BackendName::Ssh),
        options.quiet,
    )?;
    for note in &suite.notes {
        progress.print(&format!("note: {note}"));
    }
    let begin = Instant::now();
    let mut result = RunResult {
        format: FORMAT.to_owned(),
        started,
        seconds: 0.0,
        file: suite.file.clone(),
        command: std::env::args().collect(),
        versions: set_up::versions(&suite),
        notes: suite.notes.clone(),
        passed: false,
        ended_early: None,
        cases: Vec::new(),
    };
    let mut context = RunContext {
        home,
        suite: &suite,
        options,
        programs: &programs,
        folder: &directory,
        progress: &progress,
        labs: std::sync::atomic::AtomicU32::new(0),
        verified: Mutex::default(),
    };
    for case in &suite.cases {
        let mut judged = context.empty_result(case, backend(case));
        let ended = context.run_case(case, backend(case), &mut judged);
        judge::judge(case, &mut judged);
        judged.passed &= ended.is_ok();
        result.cases.push(judged);
        if let Err(error) = ended {
            result.ended_early = Some(format!("{error:#}"));
            break;
        }
    }
    result.seconds = begin.elapsed().as_secs_f64();
    // A run that measured nothing is not a success.
    let is_skipped = result.cases.iter().all(|case| case.skipped.is_some());
    result.passed = result.ended_early.is_none()
        && !is_skipped
        && result
            .cases
            .iter()
            .all(|case| case.passed || case.allow_failure || case.skipped.is_some());
    progress.finish(result.passed);
    let is_empty = result.cases.iter().all(|case| case.measurements.is_empty());
    if let Some(error) = result.ended_early.as_ref().filter(|_| is_empty) {
        // There is nothing to show, so remove the directory.
        let _ = fs::remove_dir_all(&directory);
        bail!("{error}");
    }
    folder::save(&directory, &result)?;
    report::write(&directory, &result)?;
    if options.json {
        outln!("{}", serde_json::to_string_pretty(&result)?);
    } else {
        out!("{}", report::text::summary(&result));
        outln!("report: {}", directory.join("report.html").display());
    }
    if let Some(error) = &result.ended_early {
        bail!("{error}");
    }
    if is_skipped {
        bail!("nothing was measured: every test was skipped");
    }
    Ok(if result.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The programs that measurements in namespaces need.
fn needed_programs(suite: &Suite, backend: &impl Fn(&Case) -> BackendName) -> NeededPrograms {
    let local = |case: &&Case| matches!(backend(case), BackendName::Netns | BackendName::Netem);
    let mut needed = NeededPrograms::default();
    for of_case in suite.cases.iter().filter(local).map(Case::needed_programs) {
        needed.bats_iperf |= of_case.bats_iperf;
        needed.batsd |= of_case.batsd;
    }
    needed
}

/// State shared by all measurements of a run.
struct RunContext<'a> {
    home: &'a Home,
    suite: &'a Suite,
    options: &'a RunOptions,
    programs: &'a Programs,
    folder: &'a Path,
    progress: &'a Progress,
    /// Number of labs built so far.
    labs: std::sync::atomic::AtomicU32,
    /// Verification results of the paths that were verified in this run.
    verified: Mutex<Vec<(Vec<Link>, Vec<Row>)>>,
}

/// The parameters of one measurement of a test.
#[derive(Clone, Copy)]
struct MeasurementSpec<'a> {
    network: usize,
    protocol: &'a Protocol,
    tool: &'a Tool,
    repetition: u32,
}

impl RunContext<'_> {
    fn empty_result(&mut self, case: &Case, backend: BackendName) -> CaseResult {
        let networks = case.networks.iter().enumerate().map(|(index, network)| NetworkResult {
            name: format!("topology-{index}"),
            label: format!("{}: {}", network.name, network.label),
            nodes: network.nodes,
            links: network
                .edges
                .iter()
                .zip(&network.links)
                .map(|(edge, link)| {
                    format!(
                        "{} - {}: forward {}; backward {}",
                        edge.0, edge.1, link.forward, link.backward
                    )
                })
                .collect(),
            loss_percent: network.loss_percent,
            delay_ms: network.delay_ms,
        });
        let published = case.published.iter().map(|one| PublishedResult {
            source: one.source.clone(),
            label: one.label.clone(),
            figure: one.figure.clone(),
            values: case.networks.iter().map(|network| one.at(network)).collect(),
        });
        let mut warnings = Vec::new();
        warnings.extend(relay_warning(case, backend));
        if case.is_parallel {
            warnings.push(
                "protocols ran in parallel in separate networks and shared the processors"
                    .to_owned(),
            );
        }
        CaseResult {
            name: case.name.clone(),
            description: case.description.trim().to_owned(),
            backend: backend.name().to_owned(),
            seed: case.seed,
            passed: false,
            allow_failure: case.allow_failure,
            skipped: None,
            networks: networks.collect(),
            conditions: case.conditions(),
            verification: Vec::new(),
            warnings,
            measurements: Vec::new(),
            assertions: Vec::new(),
            published: published.collect(),
        }
    }

    fn run_case(&self, case: &Case, backend: BackendName, result: &mut CaseResult) -> Result<()> {
        self.progress.print(&format!(
            "{} on {}: {}",
            case.name,
            backend.name(),
            plan::count(case.measurements(), "measurement")
        ));
        if case.verify && backend == BackendName::Netns && !self.options.no_verify {
            set_up::verify(self, case, result)?;
        } else if let Some(why) = set_up::unverified_warning(backend, self.options.no_verify) {
            result.warnings.push(why.to_owned());
        }
        for (index, network) in case.networks.iter().enumerate() {
            if case.is_parallel && backend != BackendName::Ssh {
                self.run_in_parallel(case, backend, network, index, result)?;
                continue;
            }
            for repetition in 0..case.repetitions {
                for protocol in &case.protocols {
                    for tool in &case.tools {
                        let spec = MeasurementSpec { network: index, protocol, tool, repetition };
                        let one = self.run_measurement(case, backend, network, spec)?;
                        self.progress.measured(&case.name, &one);
                        result.measurements.push(one);
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs all protocols in parallel, each in its own network.
    fn run_in_parallel(
        &self,
        case: &Case,
        backend: BackendName,
        network: &Network,
        index: usize,
        result: &mut CaseResult,
    ) -> Result<()> {
        for repetition in 0..case.repetitions {
            let all: Vec<Result<Vec<Measurement>>> = std::thread::scope(|scope| {
                let threads: Vec<_> = case
                    .protocols
                    .iter()
                    .map(|protocol| {
                        scope.spawn(move || {
                            case.tools
                                .iter()
                                .map(|tool| {
                                    let spec = MeasurementSpec {
                                        network: index,
                                        protocol,
                                        tool,
                                        repetition,
                                    };
                                    self.run_measurement(case, backend, network, spec)
                                })
                                .collect()
                        })
                    })
                    .collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap_or_else(|_| bail!("a measurement panicked")))
                    .collect()
            });
            for list in all {
                for one in list? {
                    self.progress.measured(&case.name, &one);
                    result.measurements.push(one);
                }
            }
        }
        Ok(())
    }

    /// Runs one measurement. Its failure is part of the result; only an interrupt ends the run.
    fn run_measurement(
        &self,
        case: &Case,
        backend: BackendName,
        network: &Network,
        spec: MeasurementSpec<'_>,
    ) -> Result<Measurement> {
        interrupt::check()?;
        let relative = PathBuf::from(file_name(&case.name))
            .join(format!("topology-{}", spec.network))
            .join(file_name(&format!(
                "{}_{}_{}",
                spec.protocol.name, spec.tool.name, spec.repetition
            )));
        let directory = self.folder.join(&relative);
        host_run::create_directory(&directory)?;
        let mut one = Measurement {
            network: spec.network,
            protocol: spec.protocol.name.clone(),
            label: match backend {
                BackendName::Sim => sim::label(spec.protocol),
                _ => spec.protocol.label.clone(),
            },
            tool: spec.tool.name.clone(),
            repetition: spec.repetition,
            status: Status::Passed,
            reason: None,
            figures: Default::default(),
            flows: Vec::new(),
            series: Vec::new(),
            distributions: Vec::new(),
            warnings: Vec::new(),
            machine_bound: false,
            commands: Vec::new(),
            folder: relative.to_string_lossy().into_owned(),
        };
        let missing = match &spec.protocol.kind {
            ProtocolKind::Missing { why } => Some(why.clone()),
            _ if backend == BackendName::Sim => {
                sim::unsupported_reason(case, network, spec.protocol, spec.tool)
            }
            _ => None,
        };
        if let Some(why) = missing {
            one.status = Status::Unsupported;
            one.reason = Some(why);
            return Ok(one);
        }
        let seconds = set_up::measurement_seconds(spec.tool, backend);
        self.progress.begin(&format!("{} {}", one.label, spec.tool.name), seconds);
        let seed = case.seed.wrapping_add(u64::from(spec.repetition));
        let times = schedule::times(&case.flows, spec.tool, seed);
        let done = self.measure(case, backend, network, spec, seed, &times, &directory, &mut one);
        self.progress.end(if case.is_parallel {
            seconds / case.protocols.len() as f64
        } else {
            seconds
        });
        if let Err(error) = done {
            if interrupt::requested() {
                let _ = fs::remove_dir_all(&directory);
                return Err(error);
            }
            one.status = match error.downcast_ref::<Incompatible>() {
                Some(_) => Status::Unsupported,
                None => Status::Failed,
            };
            one.reason = Some(format!("{error:#}"));
        }
        if one.status == Status::Passed {
            bounds::set_bounds(&mut one, case, backend, network, spec.protocol, spec.tool);
            // Last, because figures count all that arrived.
            measures::drop_partial_intervals(&mut one.series, spec.tool.seconds());
        }
        Ok(one)
    }

    #[allow(clippy::too_many_arguments, reason = "a measurement has this many parameters")]
    fn measure(
        &self,
        case: &Case,
        backend: BackendName,
        network: &Network,
        spec: MeasurementSpec<'_>,
        seed: u64,
        times: &[schedule::Times],
        directory: &Path,
        one: &mut Measurement,
    ) -> Result<()> {
        let host_backend: Box<dyn HostBackend> = match backend {
            BackendName::Sim => {
                let run = sim::Run {
                    case,
                    network,
                    protocol: spec.protocol,
                    tool: spec.tool,
                    seed,
                    folder: directory,
                    times,
                    progress: self.progress,
                };
                let (reading, warnings) = run.measure()?;
                one.warnings = warnings;
                one.read(reading);
                return Ok(());
            }
            BackendName::Netns | BackendName::Netem => {
                let is_netem = backend == BackendName::Netem;
                Box::new(LocalBackend::build(
                    self.home,
                    &self.lab_name(),
                    network,
                    seed,
                    self.programs,
                    is_netem,
                )?)
            }
            BackendName::Ssh => {
                let hosts = set_up::testbed(self.suite, self.options.testbed.as_deref())?;
                Box::new(SshBackend::prepare(hosts, case)?)
            }
        };
        let run = HostRun {
            case,
            network,
            protocol: spec.protocol,
            tool: spec.tool,
            backend: host_backend.as_ref(),
            times,
            folder: directory,
            progress: self.progress,
            programs: self.programs,
            is_local: backend != BackendName::Ssh,
        };
        let measured = run.measure()?;
        one.commands = measured.commands;
        one.warnings = measured.warnings;
        one.machine_bound = measured.machine_bound;
        one.read(measured.reading);
        Ok(())
    }

    /// The verification of a path, if it was verified in this run.
    fn cached_verification(&self, path: &[Link]) -> Option<Vec<Row>> {
        let verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        verified.iter().find(|known| known.0 == path).map(|known| known.1.clone())
    }

    fn cache_verification(&self, path: &[Link], rows: &[Row]) {
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if verified.iter().all(|known| known.0 != path) {
            verified.push((path.to_vec(), rows.to_vec()));
        }
    }

    fn lab_name(&self) -> String {
        let number = self.labs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        format!("run-{}-{number}", std::process::id())
    }
}

/// Explains the role of hosts on paths of several links, if a test has such a path and a protocol
/// of this project.
fn relay_warning(case: &Case, backend: BackendName) -> Option<String> {
    let has_several = case.networks.iter().any(|network| {
        case.tools
            .iter()
            .any(|tool| network.path(tool.client, tool.server).is_some_and(|path| path.len() > 1))
    });
    let is_ours = |protocol: &Protocol| matches!(protocol.kind, ProtocolKind::Bats { .. });
    if !has_several || !case.protocols.iter().any(is_ours) {
        return None;
    }
    Some(if backend == BackendName::Sim {
        "hosts on the path are recoding relays for btp, brtp and brctp, unless `relays` of the protocol differs. With recoding the bound is that of the worst hop, otherwise that of the losses of all hops together. Flows that differ in protocol or hosts are end to end, over hosts that forward IP packets"
            .to_owned()
    } else {
        "hosts on the path forward IP packets: figures are end to end, and the bound is that of the losses of all hops together. Recoding relays are available in the backend sim"
            .to_owned()
    })
}
