//! `batslab run`: from a plan to a folder of results.

mod bounds;
mod capture;
mod cell;
pub(crate) mod progress;
pub(crate) mod sampler;
pub(crate) mod schedule;
mod set_up;
mod strain;
mod usage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, bail};

use crate::backend::Ground;
use crate::backend::local::LocalGround;
use crate::backend::sim;
use crate::backend::ssh::SshGround;
use crate::cli::RunOptions;
use crate::config::load;
use crate::config::model::BackendName;
use crate::config::tests_of::file_name;
use crate::interrupt;
use crate::plan::{self, Case, Network, Protocol, ProtocolKind, Suite, Tool};
use crate::protocol::Unfit;
use crate::protocol::programs::Programs;
use crate::report;
use crate::result::{
    CaseResult, FORMAT, Measurement, NetworkResult, PublishedResult, RunResult, Status, folder,
    judge,
};
use crate::settings::Link;
use crate::state::Home;
use crate::verify::Row;
use cell::Cell;
use progress::Progress;

/// Runs what the command line names.
///
/// # Errors
/// Where the file is wrong, the backend cannot be had, or the results cannot be written.
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
        bail!(
            "the testbed `{name}` is for the backend ssh, and nothing runs there: say --backend ssh"
        );
    }
    if options.dry_run {
        out!("{}", plan::describe(&suite, options.backend, true));
        return Ok(ExitCode::SUCCESS);
    }
    // Rights come before threads.
    if uses(BackendName::Netns) || uses(BackendName::Netem) {
        set_up::rights(home, uses(BackendName::Netem))?;
    }
    interrupt::watch()?;
    let programs = Programs::find(needs_bats_iperf(&suite, &backend))?;
    let started = jiff::Timestamp::now().to_string();
    let place = folder::make(options.out.as_deref(), &started, &suite.file)?;
    let total: f64 = suite.cases.iter().map(|case| set_up::seconds(case, backend(case))).sum();
    let progress = Progress::new(
        &place,
        total,
        !uses(BackendName::Netns) && !uses(BackendName::Netem) && !uses(BackendName::Ssh),
        options.quiet,
    )?;
    for note in &suite.notes {
        progress.say(&format!("note: {note}"));
    }
    let begin = Instant::now();
    let mut result = RunResult {
        format: FORMAT.to_owned(),
        started,
        seconds: 0.0,
        file: suite.file.clone(),
        command: std::env::args().collect(),
        versions: set_up::versions(),
        notes: suite.notes.clone(),
        passed: false,
        ended_early: None,
        cases: Vec::new(),
    };
    let mut stage = Stage {
        home,
        suite: &suite,
        options,
        programs: &programs,
        folder: &place,
        progress: &progress,
        labs: std::sync::atomic::AtomicU32::new(0),
        verified: Mutex::default(),
    };
    for case in &suite.cases {
        let mut judged = stage.begin(case, backend(case));
        let ended = stage.case(case, backend(case), &mut judged);
        judge::judge(case, &mut judged);
        judged.passed &= ended.is_ok();
        result.cases.push(judged);
        if let Err(error) = ended {
            result.ended_early = Some(format!("{error:#}"));
            break;
        }
    }
    result.seconds = begin.elapsed().as_secs_f64();
    // A run of which nothing was measured is no success, however good the reasons.
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
        // Nothing is to be shown, so nothing stays.
        let _ = fs::remove_dir_all(&place);
        bail!("{error}");
    }
    folder::save(&place, &result)?;
    report::write(&place, &result)?;
    if options.json {
        outln!("{}", serde_json::to_string_pretty(&result)?);
    } else {
        out!("{}", report::text::summary(&result));
        outln!("report: {}", place.join("report.html").display());
    }
    if let Some(error) = &result.ended_early {
        bail!("{error}");
    }
    if is_skipped {
        bail!("nothing was measured: every test was skipped");
    }
    Ok(if result.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether a measurement on hosts takes `bats_iperf`.
fn needs_bats_iperf(suite: &Suite, backend: &impl Fn(&Case) -> BackendName) -> bool {
    let local = |case: &&Case| matches!(backend(case), BackendName::Netns | BackendName::Netem);
    suite.cases.iter().filter(local).any(Case::needs_bats_iperf)
}

/// What all measurements share.
struct Stage<'a> {
    home: &'a Home,
    suite: &'a Suite,
    options: &'a RunOptions,
    programs: &'a Programs,
    folder: &'a Path,
    progress: &'a Progress,
    /// How many labs there have been.
    labs: std::sync::atomic::AtomicU32,
    /// What the emulator did over the ways that have been measured in this run.
    verified: Mutex<Vec<(Vec<Link>, Vec<Row>)>>,
}

/// One of a test's measurements.
#[derive(Clone, Copy)]
struct Point<'a> {
    network: usize,
    protocol: &'a Protocol,
    tool: &'a Tool,
    repetition: u32,
}

impl Stage<'_> {
    fn begin(&mut self, case: &Case, backend: BackendName) -> CaseResult {
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
        warnings.extend(on_the_way(case, backend));
        if case.is_parallel {
            warnings.push(
                "protocols ran at the same time, in networks of their own, on the same processors"
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
            verification: Vec::new(),
            warnings,
            measurements: Vec::new(),
            assertions: Vec::new(),
            published: published.collect(),
        }
    }

    fn case(&self, case: &Case, backend: BackendName, result: &mut CaseResult) -> Result<()> {
        self.progress.say(&format!(
            "{} on {}: {}",
            case.name,
            backend.name(),
            plan::count(case.measurements(), "measurement")
        ));
        if case.verify && backend == BackendName::Netns && !self.options.no_verify {
            set_up::verify(self, case, result)?;
        } else if let Some(why) = set_up::unverified(backend, self.options.no_verify) {
            result.warnings.push(why.to_owned());
        }
        for (index, network) in case.networks.iter().enumerate() {
            if case.is_parallel && backend != BackendName::Ssh {
                self.side_by_side(case, backend, network, index, result)?;
                continue;
            }
            for repetition in 0..case.repetitions {
                for protocol in &case.protocols {
                    for tool in &case.tools {
                        let point = Point { network: index, protocol, tool, repetition };
                        let one = self.point(case, backend, network, point)?;
                        self.progress.measured(&case.name, &one);
                        result.measurements.push(one);
                    }
                }
            }
        }
        Ok(())
    }

    /// All protocols at once, each in a network of its own.
    fn side_by_side(
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
                                    let point =
                                        Point { network: index, protocol, tool, repetition };
                                    self.point(case, backend, network, point)
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

    /// A measurement. Its failure is a result; only an interrupt ends the run.
    fn point(
        &self,
        case: &Case,
        backend: BackendName,
        network: &Network,
        point: Point<'_>,
    ) -> Result<Measurement> {
        interrupt::check()?;
        let relative = PathBuf::from(file_name(&case.name))
            .join(format!("topology-{}", point.network))
            .join(file_name(&format!(
                "{}_{}_{}",
                point.protocol.name, point.tool.name, point.repetition
            )));
        let place = self.folder.join(&relative);
        cell::make_folder(&place)?;
        let mut one = Measurement {
            network: point.network,
            protocol: point.protocol.name.clone(),
            label: match backend {
                BackendName::Sim => sim::label(point.protocol),
                _ => point.protocol.label.clone(),
            },
            tool: point.tool.name.clone(),
            repetition: point.repetition,
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
        let missing = match &point.protocol.kind {
            ProtocolKind::Missing { why } => Some(why.clone()),
            _ if backend == BackendName::Sim => {
                sim::obstacle(case, network, point.protocol, point.tool)
            }
            _ => None,
        };
        if let Some(why) = missing {
            one.status = Status::Unsupported;
            one.reason = Some(why);
            return Ok(one);
        }
        let seconds = set_up::point_seconds(point.tool, backend);
        self.progress.begin(&format!("{} {}", one.label, point.tool.name), seconds);
        let seed = case.seed.wrapping_add(u64::from(point.repetition));
        let times = schedule::times(&case.flows, point.tool, seed);
        let done = self.measure(case, backend, network, point, seed, &times, &place, &mut one);
        self.progress.end(if case.is_parallel {
            seconds / case.protocols.len() as f64
        } else {
            seconds
        });
        if let Err(error) = done {
            if interrupt::requested() {
                let _ = fs::remove_dir_all(&place);
                return Err(error);
            }
            one.status = match error.downcast_ref::<Unfit>() {
                Some(_) => Status::Unsupported,
                None => Status::Failed,
            };
            one.reason = Some(format!("{error:#}"));
        }
        if one.status == Status::Passed {
            bounds::set_bounds(&mut one, case, backend, network, point.protocol, point.tool);
        }
        Ok(one)
    }

    #[allow(clippy::too_many_arguments, reason = "they are what a measurement is made of")]
    fn measure(
        &self,
        case: &Case,
        backend: BackendName,
        network: &Network,
        point: Point<'_>,
        seed: u64,
        times: &[schedule::Times],
        place: &Path,
        one: &mut Measurement,
    ) -> Result<()> {
        let ground: Box<dyn Ground> = match backend {
            BackendName::Sim => {
                let run = sim::Run {
                    case,
                    network,
                    protocol: point.protocol,
                    tool: point.tool,
                    seed,
                    folder: place,
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
                Box::new(LocalGround::build(
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
                Box::new(SshGround::prepare(hosts, case)?)
            }
        };
        let cell = Cell {
            case,
            network,
            protocol: point.protocol,
            tool: point.tool,
            ground: ground.as_ref(),
            times,
            folder: place,
            progress: self.progress,
            is_local: backend != BackendName::Ssh,
        };
        let measured = cell.measure()?;
        one.commands = measured.commands;
        one.warnings = measured.warnings;
        one.machine_bound = measured.machine_bound;
        one.read(measured.reading);
        Ok(())
    }

    /// What the emulator did over a way that was measured before.
    fn verified(&self, way: &[Link]) -> Option<Vec<Row>> {
        let verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        verified.iter().find(|known| known.0 == way).map(|known| known.1.clone())
    }

    fn remember(&self, way: &[Link], rows: &[Row]) {
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if verified.iter().all(|known| known.0 != way) {
            verified.push((way.to_vec(), rows.to_vec()));
        }
    }

    fn lab_name(&self) -> String {
        let number = self.labs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        format!("run-{}-{number}", std::process::id())
    }
}

/// What hosts on a way of several links do to this project's protocols, if any test has both.
fn on_the_way(case: &Case, backend: BackendName) -> Option<String> {
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
        "hosts on the way are relays for btp, brtp and brctp unless a protocol's `relays` says otherwise: where they recode, the bound is that of the worst hop, else what is left after all hops; flows of several kinds or between several hosts are from end to end, over hosts that forward packets"
            .to_owned()
    } else {
        "hosts on the way forward packets: what stands here is from end to end, and the bound is what is left after all hops; relays that recode are in the backend sim"
            .to_owned()
    })
}
