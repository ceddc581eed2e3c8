//! One measurement on hosts: starts the programs in order, watches them, ends them, and reads their
//! output.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::capture::Capture;
use super::cpu_usage::CpuUsage;
use super::host_load::HostLoadMonitor;
use super::overload::OverloadMonitor;
use super::progress::Progress;
use super::sampler::{Sampler, Samples, queue_figures};
use super::schedule::Times;
use crate::backend::HostBackend;
use crate::config::model::{NodeEntry, PacketType};
use crate::interrupt;
use crate::plan::{Case, Flow, Network, Protocol, ProtocolKind, Tool};
use crate::process::{ChildGuard, Process, ProcessTable};
use crate::protocol::load::{Load, LoadRequest, load};
use crate::protocol::programs::Programs;
use crate::protocol::reading::{OutputFormat, Reading, throughput};
use crate::protocol::{node, wireguard};
use crate::result::figures::{Figures, mean, set};
use crate::result::flows::{FlowSpan, set_competition_figures};
use crate::result::measures::set_helper_time;
use crate::result::series::Series;
use crate::settings::Link;
use crate::tool::{self, Job, OutputParser, ToolContext, ToolOutput};

/// Time for a server to start listening.
const SERVER_START_TIME: Duration = Duration::from_millis(500);
/// Time for a program to exit after the others have ended.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum output of a program in bytes.
const MAX_OUTPUT_BYTES: u64 = 256 << 20;

/// A measurement and its environment.
pub(crate) struct HostRun<'a> {
    pub(crate) case: &'a Case,
    pub(crate) network: &'a Network,
    pub(crate) protocol: &'a Protocol,
    pub(crate) tool: &'a Tool,
    pub(crate) backend: &'a dyn HostBackend,
    pub(crate) times: &'a [Times],
    pub(crate) folder: &'a Path,
    pub(crate) progress: &'a Progress,
    pub(crate) programs: &'a Programs,
    pub(crate) is_local: bool,
}

/// A started program.
pub(super) struct Program {
    pub(super) guard: ChildGuard,
    pub(super) name: String,
    output: PathBuf,
    errors: PathBuf,
}

impl Program {
    fn stdout_text(&self) -> String {
        text(&self.output)
    }

    /// The error of its JSON report, or its last line of output.
    pub(super) fn last_error(&self) -> String {
        let all = text(&self.errors) + &self.stdout_text();
        let error = crate::protocol::reading::last_document(&self.stdout_text())
            .and_then(|document| document["error"].as_str().map(str::to_owned));
        let last =
            all.lines().rfind(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned());
        error.or(last).unwrap_or_else(|| "no output".to_owned())
    }
}

fn text(path: &Path) -> String {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes));
    if read.is_err() {
        return String::new();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The outcome of a measurement.
pub(crate) struct HostRunOutcome {
    pub(crate) reading: Reading,
    pub(crate) commands: Vec<String>,
    pub(crate) warnings: Vec<String>,
    /// Whether host overload may have limited the figures.
    pub(crate) machine_bound: bool,
}

/// Whether a protocol is TCP by `bats_iperf`, which uses the default congestion control of the
/// kernel.
fn uses_default_congestion_control(protocol: &Protocol) -> bool {
    matches!(&protocol.kind, ProtocolKind::Bats { mode, .. } if ["10", "tcp"].contains(&mode.as_str()))
}

/// A competing flow and its programs.
pub(super) struct CompetingFlow<'a> {
    pub(super) flow: &'a Flow,
    times: Times,
    label: String,
    load: Load,
    server: Option<Program>,
    client: Option<Program>,
    pub(super) port: u16,
}

impl HostRun<'_> {
    /// Runs the measurement.
    ///
    /// # Errors
    /// If a program cannot be started, fails, or reports no figures.
    pub(crate) fn measure(&self) -> Result<HostRunOutcome> {
        let mut built_in = BuiltInLoads::default();
        loop {
            let error = match self.try_once(built_in) {
                Ok(mut measured) => {
                    if built_in.tool || built_in.flows {
                        measured.warnings.push("iperf3 failed, because its control connection crosses the link too; measured with the built-in load".to_owned());
                    }
                    return Ok(measured);
                }
                Err(error) => error,
            };
            // Retry each of the two once: a failure of a competing flow need not replace iperf3 of
            // the tool, and vice versa.
            match error.downcast_ref::<Iperf3Failed>().map(|lost| lost.of_flow) {
                Some(true) if !built_in.flows => built_in.flows = true,
                Some(false) if !built_in.tool => built_in.tool = true,
                _ => return Err(error),
            }
            interrupt::check()?;
            self.progress.print(&format!("{error:#}; retrying with the built-in load"));
        }
    }

    fn try_once(&self, built_in: BuiltInLoads) -> Result<HostRunOutcome> {
        let to = self.address(self.protocol, self.tool.server);
        let place = ToolContext {
            to: &to,
            without_iperf3: built_in.tool,
            sample_interval: self.case.sample_interval,
            is_local: self.is_local,
        };
        let job = tool::job(self.tool, self.protocol, &place)?;
        let mut commands = Vec::new();
        let mut flows = self.flows(built_in.flows)?;
        let mut helpers = self.helpers(&flows, &mut commands)?;
        // The folder of the nodes is removed after their daemons have ended.
        let (_node_files, daemons) = self.nodes(&flows, &mut commands)?;
        helpers.extend(daemons);
        let (_tunnels, daemons) = self.tunnels(&flows, &mut commands)?;
        helpers.extend(daemons);
        let mut server = match &job.server {
            Some(words) => Some(self.start(self.tool.server, words, "server", &mut commands)?),
            None => None,
        };
        for flow in &mut flows {
            let words = flow.load.server.clone();
            let name = format!("flow-{}-server", flow.port);
            flow.server = Some(self.start(flow.flow.server, &words, &name, &mut commands)?);
        }
        wait(SERVER_START_TIME)?;
        for started in server
            .iter_mut()
            .chain(&mut helpers)
            .chain(flows.iter_mut().filter_map(|flow| flow.server.as_mut()))
        {
            if let Some((status, _)) = started.guard.try_wait()? {
                bail!("{} ended early ({status}): {}", started.name, started.last_error());
            }
        }
        let stop = AtomicBool::new(false);
        let start = Instant::now();
        let what = format!("{} {}", self.protocol.label, self.tool.name);
        let overload_monitor =
            self.backend.lab().and_then(|(home, lab)| OverloadMonitor::begin(home, lab));
        // Of real hosts the load is not known.
        let host_load_monitor = self
            .is_local
            .then(|| HostLoadMonitor::begin(self.backend.lab().and_then(|(_, lab)| lab.emulator)));
        let helper_ids: BTreeSet<u32> =
            helpers.iter_mut().map(|helper| helper.guard.child_mut().id()).collect();
        let helper_time = ProcessTable::read().processor_time_below(&helper_ids);
        let capture = match self.case.capture {
            true => Some(Capture::begin(self.backend, self.tool.client, self.folder)?),
            false => None,
        };
        let (client_outcome, samples) = std::thread::scope(|scope| {
            let sampling = self
                .sampler(&job, &flows, start, &stop, &what)
                .map(|sampler| scope.spawn(move || sampler.run()));
            let client_outcome =
                self.run_clients(&job, start, &mut flows, &mut server, &mut commands);
            stop.store(true, Ordering::Relaxed);
            let samples = sampling.and_then(|thread| thread.join().ok()).unwrap_or_default();
            (client_outcome, samples)
        });
        if !self.case.events.is_empty() {
            self.backend.change_links(&self.network.links)?;
        }
        if let Some(capture) = capture {
            capture.end()?;
        }
        let host_load = host_load_monitor.map(HostLoadMonitor::end);
        let helper_time =
            ProcessTable::read().processor_time_below(&helper_ids).saturating_sub(helper_time);
        let client_outcome = client_outcome?;
        let (mut reading, mut warnings) =
            self.read(&job, &client_outcome, server.as_mut(), &mut flows, samples)?;
        if self.is_local && !helper_ids.is_empty() {
            let Reading { figures, series, .. } = &mut reading;
            set_helper_time(
                figures,
                helper_time,
                client_outcome.seconds,
                series,
                !flows.is_empty(),
            );
        }
        let mut machine_bound = !warnings.is_empty();
        let overload = self
            .backend
            .lab()
            .zip(overload_monitor)
            .and_then(|((home, lab), overload_monitor)| overload_monitor.end(home, lab));
        if let Some(overload) = overload {
            overload.set(&mut reading.figures);
            let overload_warnings = overload.warnings();
            machine_bound |= !overload_warnings.is_empty();
            warnings.extend(overload_warnings);
        }
        if let Some(host_load) = host_load {
            host_load.set(&mut reading.figures);
            let load_warnings = host_load.warnings();
            machine_bound |= !load_warnings.is_empty();
            warnings.extend(load_warnings);
        }
        let has_competing_default =
            flows.iter().any(|flow| uses_default_congestion_control(&flow.flow.protocol));
        if self.is_local
            && (uses_default_congestion_control(self.protocol) || has_competing_default)
        {
            // New namespaces inherit the default of the machine.
            let chosen = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
            let chosen = chosen.unwrap_or_else(|_| "unknown".to_owned());
            warnings.push(format!(
                "TCP by bats_iperf uses the default congestion control of the kernel: {}",
                chosen.trim()
            ));
        }
        warnings.extend(self.backend.warnings());
        drop(helpers);
        self.backend.stop_programs();
        Ok(HostRunOutcome { reading, commands, warnings, machine_bound })
    }

    pub(super) fn start(
        &self,
        node: u32,
        words: &[String],
        name: &str,
        commands: &mut Vec<String>,
    ) -> Result<Program> {
        let output = self.folder.join(format!("{name}.out"));
        let errors = self.folder.join(format!("{name}.err"));
        let file = |path: &Path| {
            File::create(path).with_context(|| format!("cannot write {}", path.display()))
        };
        let guard = self.backend.start(node, words, file(&output)?, file(&errors)?)?;
        commands.push(format!("node {node}: {}", words.join(" ").replace(['{', '}'], "")));
        Ok(Program { guard, name: format!("the {name}"), output, errors })
    }

    /// The address that tools use for a host.
    fn address(&self, protocol: &Protocol, host: u32) -> String {
        match protocol.kind {
            ProtocolKind::Node { entry: NodeEntry::Tun, .. } => node::address(host).to_string(),
            ProtocolKind::WireGuard { .. } => wireguard::address(host).to_string(),
            ProtocolKind::Node { entry: NodeEntry::Forward, .. } => Ipv4Addr::LOCALHOST.to_string(),
            _ => self.backend.address(host),
        }
    }

    /// Interval of the rates of competing flows in seconds; that of round trips may be a millisecond.
    fn flow_interval(&self) -> f64 {
        match self.tool.kind {
            crate::plan::ToolKind::Throughput { .. } => self.tool.interval,
            _ => 1.0,
        }
    }

    fn flows(&self, built_in: bool) -> Result<Vec<CompetingFlow<'_>>> {
        if !self.tool.has_competing_flows() {
            return Ok(Vec::new());
        }
        let mut flows = Vec::new();
        for (index, (flow, &times)) in self.case.flows.iter().zip(self.times).enumerate() {
            // Ports differ by two, because bats_iperf uses the port below for signalling.
            let port = 5301 + 2 * index as u16;
            let to = self.address(&flow.protocol, flow.server);
            let request = LoadRequest {
                protocol: &flow.protocol,
                to: &to,
                port,
                seconds: times.duration,
                interval: self.flow_interval(),
                sample_interval: self.case.sample_interval,
                parallel: 1,
                bitrate: 0.0,
                packet_type: PacketType::Tcp,
                args: &[],
                bats: false,
                without_iperf3: built_in,
            };
            let load = load(&request)?;
            let label = self.case.flow_label(index, &flow.protocol.label);
            flows.push(CompetingFlow {
                flow,
                times,
                label,
                load,
                server: None,
                client: None,
                port,
            });
        }
        Ok(flows)
    }

    fn sampler<'a>(
        &'a self,
        job: &Job,
        flows: &[CompetingFlow<'_>],
        start: Instant,
        stop: &'a AtomicBool,
        what: &'a str,
    ) -> Option<Sampler<'a>> {
        let (home, lab) = self.backend.lab()?;
        let mut senders = Vec::new();
        // bats_iperf reports the state of its sockets itself.
        let is_tcp = matches!(
            self.protocol.kind,
            ProtocolKind::Tcp { .. }
                | ProtocolKind::Daemon { .. }
                | ProtocolKind::Node { .. }
                | ProtocolKind::WireGuard { .. }
        );
        if is_tcp && job.port > 0 && matches!(job.read, OutputParser::Throughput { .. }) {
            senders.push((self.tool.client, job.port, self.protocol.label.clone()));
        }
        for flow in flows.iter().filter(|flow| {
            matches!(
                flow.flow.protocol.kind,
                ProtocolKind::Tcp { .. }
                    | ProtocolKind::Node { .. }
                    | ProtocolKind::WireGuard { .. }
            )
        }) {
            senders.push((flow.flow.client, flow.port, flow.label.clone()));
        }
        Some(Sampler {
            home,
            lab,
            path: self.network.path(self.tool.client, self.tool.server)?,
            flows: senders,
            interval: Duration::from_secs_f64(self.case.sample_interval),
            start,
            stop,
            progress: self.progress,
            what,
        })
    }

    /// Starts the clients at their times, changes the links, and waits for the end.
    fn run_clients(
        &self,
        job: &Job,
        start: Instant,
        flows: &mut [CompetingFlow<'_>],
        server: &mut Option<Program>,
        commands: &mut Vec<String>,
    ) -> Result<ClientOutcome> {
        let emulator = self.emulator_time();
        self.backend.start_schedules()?;
        let mut links: Vec<Link> = self.network.links.clone();
        let mut events = self.case.events.iter().peekable();
        let mut client = self.start(self.tool.client, &job.client, "client", commands)?;
        let mut usage = self.usage(&mut client, server);
        let timeout = self.tool.timeout();
        let (mut ended, mut was_terminated) = (None, false);
        loop {
            interrupt::check()?;
            let now = start.elapsed().as_secs_f64();
            if let Some(event) = events.next_if(|event| event.at <= now) {
                for (index, link) in links.iter_mut().enumerate() {
                    if event.link.is_none_or(|chosen| chosen == index) {
                        event.changes.apply(link);
                    }
                }
                self.backend.change_links(&links)?;
                continue;
            }
            for flow in
                flows.iter_mut().filter(|flow| flow.client.is_none() && flow.times.delay <= now)
            {
                let words = flow.load.client.clone();
                let name = format!("flow-{}-client", flow.port);
                flow.client = Some(self.start(flow.flow.client, &words, &name, commands)?);
            }
            if ended.is_none() {
                ended = client.guard.try_wait()?.map(|(status, used)| (status, used, now));
            }
            if ended.is_none() {
                usage.sample(now);
            }
            let mut flows_ended = true;
            for flow in flows.iter_mut() {
                match &mut flow.client {
                    Some(client) => flows_ended &= client.guard.try_wait()?.is_some(),
                    None => flows_ended = false,
                }
            }
            if ended.is_some() && (flows_ended || now > timeout) {
                break;
            }
            if ended.is_none() {
                if job.ends_after.is_some_and(|limit| now > limit) {
                    if let Some(process) = Process::find(client.guard.child_mut().id()) {
                        process.end();
                    }
                    was_terminated = true;
                } else if now > timeout {
                    bail!("{} did not end within {timeout:.0} s", client.name);
                }
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let Some((status, used, seconds)) = ended else { bail!("the client did not end") };
        if !status.success() && !was_terminated {
            let last_error = client.last_error();
            if job.has_stand_in {
                let text = format!("iperf3 failed: {last_error}");
                return Err(Iperf3Failed { text, of_flow: false }.into());
            }
            bail!("the client failed ({status}): {last_error}");
        }
        let receiver = server.as_mut().map(finish).transpose()?.unwrap_or_default();
        for flow in flows.iter_mut() {
            if let Some(server) = &mut flow.server {
                finish(server)?;
            }
        }
        let emulator = self.emulator_time().saturating_sub(emulator);
        Ok(ClientOutcome {
            client: client.stdout_text(),
            exit_code: if was_terminated { None } else { status.code() },
            seconds,
            processors: [used, receiver, emulator].map(|time| time.as_secs_f64()),
            usage: usage.series(),
        })
    }

    /// The processes of sender, receiver and emulator, if they run on this machine.
    fn usage(&self, client: &mut Program, server: &mut Option<Program>) -> CpuUsage {
        let of = |what: &str| format!("{what}, {}", self.protocol.label);
        let process = |started: &mut Program| Process::find(started.guard.child_mut().id());
        let emulator = self.backend.lab().and_then(|(_, lab)| lab.emulator);
        CpuUsage::new(if self.is_local {
            vec![
                (of("sender"), process(client)),
                (of("receiver"), server.as_mut().and_then(process)),
                (of("emulator"), emulator),
            ]
        } else {
            Vec::new()
        })
    }

    fn emulator_time(&self) -> Duration {
        let emulator = self.backend.lab().and_then(|(_, lab)| lab.emulator);
        emulator.map(|process| process.processor_time()).unwrap_or_default()
    }

    fn read(
        &self,
        job: &Job,
        client_outcome: &ClientOutcome,
        server: Option<&mut Program>,
        flows: &mut [CompetingFlow<'_>],
        samples: Samples,
    ) -> Result<(Reading, Vec<String>)> {
        let server_said = server.map(|server| server.stdout_text()).unwrap_or_default();
        let tool_output = ToolOutput {
            client: &client_outcome.client,
            server: &server_said,
            exit_code: client_outcome.exit_code,
            seconds: client_outcome.seconds,
        };
        let mut reading = match tool::read(job, &tool_output, &self.protocol.label) {
            Err(error) if job.has_stand_in => {
                let text = format!("iperf3: {error:#}");
                return Err(Iperf3Failed { text, of_flow: false }.into());
            }
            other => other?,
        };
        let mut warnings = Vec::new();
        let length = client_outcome.seconds.max(1e-3);
        for (name, used) in ["sender_processors", "receiver_processors", "emulator_processors"]
            .into_iter()
            .zip(client_outcome.processors)
        {
            if name != "emulator_processors"
                || self.backend.lab().is_some_and(|(_, lab)| lab.is_emulated)
            {
                set(&mut reading.figures, name, used / length);
            }
            if used / length > 0.9 && !matches!(job.read, OutputParser::Command) {
                let role = name.trim_end_matches("_processors");
                warnings.push(format!("the {role} used {:.2} of a processor: host overload may have limited this figure", used / length));
            }
        }
        queue_figures(&mut reading.figures, &samples.queue, samples.slowest);
        reading.series.extend(samples.series);
        reading.series.extend(client_outcome.usage.iter().cloned());
        let mut rate_series: Vec<(Series, f64)> = Vec::new();
        let main = (self.protocol.label.clone(), 0.0, self.tool.seconds());
        let mut spans = vec![span(main, Default::default())];
        for flow in flows.iter_mut() {
            let (Some(client), Some(server)) = (&flow.client, &flow.server) else {
                bail!("{} did not run: the tool ended before its start", flow.label);
            };
            let (sent, received) = (client.stdout_text(), server.stdout_text());
            let (interval, length) = (self.flow_interval(), flow.times.duration);
            match throughput(
                flow.load.output_format,
                interval,
                length,
                &sent,
                &received,
                &flow.label,
            ) {
                Ok(other) => {
                    let (from, to) = (flow.times.delay, flow.times.delay + length);
                    spans.push(span((flow.label.clone(), from, to), other.figures));
                    for mut series in other.series {
                        for point in &mut series.points {
                            point.0 += flow.times.delay;
                        }
                        if series.name == "throughput" {
                            // The rate is zero before its start.
                            series.points.insert(0, (flow.times.delay, 0.0));
                            rate_series.push((series.clone(), flow.times.delay));
                        }
                        reading.series.push(series);
                    }
                }
                Err(error) => {
                    let text = format!("{}: {error:#}; {}", flow.label, client.last_error());
                    if flow.load.output_format == OutputFormat::Iperf {
                        return Err(Iperf3Failed { text, of_flow: true }.into());
                    }
                    bail!("{text}");
                }
            }
        }
        let main = reading.series.first().cloned().filter(|series| series.name == "throughput");
        if let (Some(main), false) = (main, rate_series.is_empty()) {
            // The time in which all flows run.
            let from = rate_series.iter().map(|entry| entry.1).fold(0.0, f64::max);
            let ends = rate_series.iter().map(|entry| &entry.0).chain([&main]);
            let to = ends
                .filter_map(|series| Some(series.points.last()?.0))
                .fold(f64::INFINITY, f64::min);
            // Its first half is for convergence.
            let from = from + (to - from) / 2.0;
            if to - from > 0.5 {
                let rates: Vec<f64> = rate_series
                    .iter()
                    .map(|entry| mean(&entry.0.points, from, to))
                    .chain([mean(&main.points, from, to)])
                    .collect();
                set(&mut reading.figures, "fairness", bats_sim::flows::jain_index(&rates));
            }
        }
        reading.flows = set_competition_figures(&mut reading.figures, &reading.series, spans);
        Ok((reading, warnings))
    }
}

fn span((of, from, to): (String, f64, f64), figures: Figures) -> FlowSpan {
    FlowSpan { of, from, to, figures }
}

struct ClientOutcome {
    client: String,
    exit_code: Option<i32>,
    seconds: f64,
    processors: [f64; 3],
    /// CPU use over time.
    usage: Vec<Series>,
}

/// Whether the tool and the competing flows use the built-in loads, because iperf3 failed.
#[derive(Clone, Copy, Debug, Default)]
struct BuiltInLoads {
    tool: bool,
    flows: bool,
}

/// iperf3 failed; the built-in load can replace it.
#[derive(Debug)]
struct Iperf3Failed {
    text: String,
    /// Whether it was iperf3 of a competing flow.
    of_flow: bool,
}

impl std::fmt::Display for Iperf3Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Iperf3Failed {}

/// Sleeps, unless the user interrupts.
pub(super) fn wait(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        interrupt::check()?;
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Waits for a server that serves one client; terminates it if it continues. Returns its CPU time.
fn finish(started: &mut Program) -> Result<Duration> {
    let deadline = Instant::now() + EXIT_TIMEOUT;
    while Instant::now() < deadline {
        if let Some((_, used)) = started.guard.try_wait()? {
            return Ok(used);
        }
        // A server without any output after 0.5 s is taken for a permanent one.
        if started.stdout_text().is_empty()
            && text(&started.errors).is_empty()
            && Instant::now() + Duration::from_millis(1500) > deadline
        {
            break;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let process = Process::find(started.guard.child_mut().id());
    let used = process.map(|process| process.processor_time()).unwrap_or_default();
    if let Some(process) = process {
        process.end();
    }
    Ok(used)
}

/// Creates the directory of a measurement.
pub(crate) fn create_directory(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
}
