//! One measurement on hosts: programs started in order, watched, ended, read.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::capture::Capture;
use super::progress::Progress;
use super::sampler::{Look, Seen, queue_figures};
use super::schedule::Times;
use super::strain::Strain;
use super::usage::Usage;
use crate::backend::Ground;
use crate::config::model::PacketType;
use crate::interrupt;
use crate::plan::{Case, Flow, Network, Protocol, ProtocolKind, Tool};
use crate::process::{Guarded, Process};
use crate::protocol::load::{Load, Wish, load};
use crate::protocol::reading::{Reader, Reading, throughput};
use crate::protocol::unfit;
use crate::result::Series;
use crate::result::figures::{Figures, mean, set};
use crate::result::flows::{Flight, beside};
use crate::settings::Link;
use crate::tool::{self, Job, Place, Read, Said};

/// How long a server gets to listen.
const READY: Duration = Duration::from_millis(500);
/// How long a program gets to end by itself when the others have.
const LINGER: Duration = Duration::from_secs(2);
const GLANCE: Duration = Duration::from_millis(10);
/// Longest output of a program that is read.
const LONGEST: u64 = 256 << 20;

/// What is measured where.
pub(crate) struct Cell<'a> {
    pub(crate) case: &'a Case,
    pub(crate) network: &'a Network,
    pub(crate) protocol: &'a Protocol,
    pub(crate) tool: &'a Tool,
    pub(crate) ground: &'a dyn Ground,
    pub(crate) times: &'a [Times],
    pub(crate) folder: &'a Path,
    pub(crate) progress: &'a Progress,
    pub(crate) is_local: bool,
}

/// A program that runs or ran.
struct Started {
    guard: Guarded,
    name: String,
    output: PathBuf,
    errors: PathBuf,
}

impl Started {
    fn printed(&self) -> String {
        text(&self.output)
    }

    /// The last line that it had to say.
    fn complaint(&self) -> String {
        let all = text(&self.errors) + &self.printed();
        let error = crate::protocol::reading::last_document(&self.printed())
            .and_then(|document| document["error"].as_str().map(str::to_owned));
        let last =
            all.lines().rfind(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned());
        error.or(last).unwrap_or_else(|| "it said nothing".to_owned())
    }
}

fn text(path: &Path) -> String {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST).read_to_end(&mut bytes));
    if read.is_err() {
        return String::new();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What came of it.
pub(crate) struct Measured {
    pub(crate) reading: Reading,
    pub(crate) commands: Vec<String>,
    pub(crate) warnings: Vec<String>,
    /// Whether the machine may have set the figures.
    pub(crate) machine_bound: bool,
}

/// Whether a protocol is the kernel's TCP by `bats_iperf`, under the congestion control that the kernel
/// gives whoever does not ask for one.
fn is_kernels_choice(protocol: &Protocol) -> bool {
    matches!(&protocol.kind, ProtocolKind::Bats { mode, .. } if ["10", "tcp"].contains(&mode.as_str()))
}

/// Another flow's programs.
struct Beside<'a> {
    flow: &'a Flow,
    times: Times,
    label: String,
    load: Load,
    server: Option<Started>,
    client: Option<Started>,
    port: u16,
}

impl Cell<'_> {
    /// Measures.
    ///
    /// # Errors
    /// Where something cannot be started, fails, or gives no figures.
    pub(crate) fn measure(&self) -> Result<Measured> {
        let mut own = Own::default();
        loop {
            let error = match self.once(own) {
                Ok(mut measured) => {
                    if own.tool || own.flows {
                        measured.warnings.push("iperf3 gave up: its control connection crosses the link, too; measured with the built-in load".to_owned());
                    }
                    return Ok(measured);
                }
                Err(error) => error,
            };
            // Each is tried once more: who has a load of its own does not lose iperf3's.
            match error.downcast_ref::<ControlLost>().map(|lost| lost.of_flow) {
                Some(true) if !own.flows => own.flows = true,
                Some(false) if !own.tool => own.tool = true,
                _ => return Err(error),
            }
            interrupt::check()?;
            self.progress.say(&format!("{error:#}; once more with the built-in load"));
        }
    }

    fn once(&self, own: Own) -> Result<Measured> {
        let to = self.ground.address(self.tool.server);
        let place = Place {
            to: &to,
            own: own.tool,
            sample_interval: self.case.sample_interval,
            is_local: self.is_local,
        };
        let job = tool::job(self.tool, self.protocol, &place)?;
        let mut commands = Vec::new();
        let mut flows = self.flows(own.flows)?;
        let mut carriers = self.carriers(&flows, &mut commands)?;
        let mut server = match &job.server {
            Some(words) => Some(self.start(self.tool.server, words, "server", &mut commands)?),
            None => None,
        };
        for flow in &mut flows {
            let words = flow.load.server.clone();
            let name = format!("flow-{}-server", flow.port);
            flow.server = Some(self.start(flow.flow.server, &words, &name, &mut commands)?);
        }
        wait(READY)?;
        for started in server
            .iter_mut()
            .chain(&mut carriers)
            .chain(flows.iter_mut().filter_map(|flow| flow.server.as_mut()))
        {
            if let Some((status, _)) = started.guard.try_wait()? {
                bail!("{} ended early ({status}): {}", started.name, started.complaint());
            }
        }
        let stop = AtomicBool::new(false);
        let start = Instant::now();
        let what = format!("{} {}", self.protocol.label, self.tool.name);
        let strain = self.ground.lab().and_then(|(home, lab)| Strain::begin(home, lab));
        let capture = if self.case.capture { Some(Capture::begin(self)?) } else { None };
        let (ran, seen) = std::thread::scope(|scope| {
            let watching = self
                .look(&job, &flows, start, &stop, &what)
                .map(|look| scope.spawn(move || look.watch()));
            let ran = self.drive(&job, start, &mut flows, &mut server, &mut commands);
            stop.store(true, Ordering::Relaxed);
            let seen = watching.and_then(|thread| thread.join().ok()).unwrap_or_default();
            (ran, seen)
        });
        if !self.case.events.is_empty() {
            self.ground.change(&self.network.links)?;
        }
        if let Some(capture) = capture {
            capture.end()?;
        }
        let ran = ran?;
        let (mut reading, mut warnings) =
            self.read(&job, &ran, server.as_mut(), &mut flows, seen)?;
        let mut machine_bound = !warnings.is_empty();
        let strained =
            self.ground.lab().zip(strain).and_then(|((home, lab), strain)| strain.end(home, lab));
        if let Some(strained) = strained {
            strained.set(&mut reading.figures);
            let told = strained.warnings();
            machine_bound |= !told.is_empty();
            warnings.extend(told);
        }
        let is_beside = flows.iter().any(|flow| is_kernels_choice(&flow.flow.protocol));
        if self.is_local && (is_kernels_choice(self.protocol) || is_beside) {
            // Namespaces have what the machine has when they are made.
            let chosen = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
            let chosen = chosen.unwrap_or_else(|_| "unknown".to_owned());
            warnings.push(format!(
                "TCP by bats_iperf has the kernel's own congestion control: {}",
                chosen.trim()
            ));
        }
        warnings.extend(self.ground.warnings());
        drop(carriers);
        self.ground.settle();
        Ok(Measured { reading, commands, warnings, machine_bound })
    }

    fn start(
        &self,
        node: u32,
        words: &[String],
        name: &str,
        commands: &mut Vec<String>,
    ) -> Result<Started> {
        let output = self.folder.join(format!("{name}.out"));
        let errors = self.folder.join(format!("{name}.err"));
        let file = |path: &Path| {
            File::create(path).with_context(|| format!("cannot write {}", path.display()))
        };
        let guard = self.ground.start(node, words, file(&output)?, file(&errors)?)?;
        commands.push(format!("node {node}: {}", words.join(" ").replace(['{', '}'], "")));
        Ok(Started { guard, name: format!("the {name}"), output, errors })
    }

    /// Starts what the protocols of the tool and of the flows need on the nodes.
    fn carriers(&self, flows: &[Beside<'_>], commands: &mut Vec<String>) -> Result<Vec<Started>> {
        let mut carriers = Vec::new();
        for carrier in carriers_of(self.protocol, self.tool, flows)? {
            let to = self.ground.address(carrier.server);
            let name = &carrier.name;
            let fill = |words: &[String]| -> Result<Vec<String>> {
                let words: Vec<String> = words.iter().map(|word| word.replace("%s", &to)).collect();
                let program = words.first().map_or("", String::as_str);
                if self.is_local && crate::protocol::programs::find(program).is_none() {
                    bail!("the program `{program}` of {} is not installed", carrier.protocol.name);
                }
                Ok(words)
            };
            match &carrier.protocol.kind {
                ProtocolKind::Tunnel { client, server, .. } => {
                    let (client, server) = (fill(client)?, fill(server)?);
                    let name_of = |end: &str| format!("{name}tunnel-{end}");
                    let started =
                        self.start(carrier.server, &server, &name_of("server"), commands)?;
                    carriers.push(started);
                    wait(Duration::from_millis(300))?;
                    let started =
                        self.start(carrier.client, &client, &name_of("client"), commands)?;
                    carriers.push(started);
                }
                ProtocolKind::Daemon { words } => {
                    let words = fill(words)?;
                    for node in 0..self.network.nodes {
                        let name = format!("{name}daemon-{node}");
                        carriers.push(self.start(node, &words, &name, commands)?);
                    }
                }
                _ => {}
            }
        }
        Ok(carriers)
    }

    fn flows(&self, own: bool) -> Result<Vec<Beside<'_>>> {
        if !self.tool.kind.has_flows_beside() {
            return Ok(Vec::new());
        }
        let mut flows = Vec::new();
        for (index, (flow, &times)) in self.case.flows.iter().zip(self.times).enumerate() {
            // Two apart, for bats_iperf signals over the port below.
            let port = 5301 + 2 * index as u16;
            let to = self.ground.address(flow.server);
            let wish = Wish {
                protocol: &flow.protocol,
                to: &to,
                port,
                seconds: times.duration,
                interval: self.tool.interval,
                sample_interval: self.case.sample_interval,
                parallel: 1,
                bitrate: 0.0,
                packet_type: PacketType::Tcp,
                args: &[],
                bats: false,
                own,
            };
            let load = load(&wish)?;
            let label = self.case.flow_label(index, &flow.protocol.label);
            flows.push(Beside { flow, times, label, load, server: None, client: None, port });
        }
        Ok(flows)
    }

    fn look<'a>(
        &'a self,
        job: &Job,
        flows: &[Beside<'_>],
        start: Instant,
        stop: &'a AtomicBool,
        what: &'a str,
    ) -> Option<Look<'a>> {
        let (home, lab) = self.ground.lab()?;
        let mut senders = Vec::new();
        // bats_iperf tells the state of its sockets itself.
        let is_tcp =
            matches!(self.protocol.kind, ProtocolKind::Tcp { .. } | ProtocolKind::Daemon { .. });
        if is_tcp && job.port > 0 && matches!(job.read, Read::Throughput { .. }) {
            senders.push((self.tool.client, job.port, self.protocol.label.clone()));
        }
        for flow in
            flows.iter().filter(|flow| matches!(flow.flow.protocol.kind, ProtocolKind::Tcp { .. }))
        {
            senders.push((flow.flow.client, flow.port, flow.label.clone()));
        }
        Some(Look {
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

    /// Starts the clients in their time, changes the links, and waits for the end.
    fn drive(
        &self,
        job: &Job,
        start: Instant,
        flows: &mut [Beside<'_>],
        server: &mut Option<Started>,
        commands: &mut Vec<String>,
    ) -> Result<Ran> {
        let emulator = self.emulator_time();
        let mut links: Vec<Link> = self.network.links.clone();
        let mut events = self.case.events.iter().peekable();
        let mut client = self.start(self.tool.client, &job.client, "client", commands)?;
        let mut usage = self.usage(&mut client, server);
        let patience = self.tool.patience();
        let (mut ended, mut was_ended) = (None, false);
        loop {
            interrupt::check()?;
            let now = start.elapsed().as_secs_f64();
            if let Some(event) = events.next_if(|event| event.at <= now) {
                for (index, link) in links.iter_mut().enumerate() {
                    if event.link.is_none_or(|chosen| chosen == index) {
                        event.changes.apply(link);
                    }
                }
                self.ground.change(&links)?;
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
                usage.look(now);
            }
            let mut flows_ended = true;
            for flow in flows.iter_mut() {
                match &mut flow.client {
                    Some(client) => flows_ended &= client.guard.try_wait()?.is_some(),
                    None => flows_ended = false,
                }
            }
            if ended.is_some() && (flows_ended || now > patience) {
                break;
            }
            if ended.is_none() {
                if job.ends_after.is_some_and(|limit| now > limit) {
                    if let Some(process) = Process::find(client.guard.child_mut().id()) {
                        process.end();
                    }
                    was_ended = true;
                } else if now > patience {
                    bail!("{} did not end within {patience:.0} s", client.name);
                }
            }
            std::thread::sleep(GLANCE);
        }
        let Some((status, used, seconds)) = ended else { bail!("the client did not end") };
        if !status.success() && !was_ended {
            let complaint = client.complaint();
            if job.has_stand_in {
                let text = format!("iperf3 failed: {complaint}");
                return Err(ControlLost { text, of_flow: false }.into());
            }
            bail!("the client failed ({status}): {complaint}");
        }
        let receiver = server.as_mut().map(finish).transpose()?.unwrap_or_default();
        for flow in flows.iter_mut() {
            if let Some(server) = &mut flow.server {
                finish(server)?;
            }
        }
        let emulator = self.emulator_time().saturating_sub(emulator);
        Ok(Ran {
            client: client.printed(),
            exit_code: if was_ended { None } else { status.code() },
            seconds,
            processors: [used, receiver, emulator].map(|time| time.as_secs_f64()),
            usage: usage.series(),
        })
    }

    /// The processes of sender, receiver and emulator, where they are on this machine.
    fn usage(&self, client: &mut Started, server: &mut Option<Started>) -> Usage {
        let of = |what: &str| format!("{what}, {}", self.protocol.label);
        let process = |started: &mut Started| Process::find(started.guard.child_mut().id());
        let emulator = self.ground.lab().and_then(|(_, lab)| lab.emulator);
        Usage::new(if self.is_local {
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
        let emulator = self.ground.lab().and_then(|(_, lab)| lab.emulator);
        emulator.map(|process| process.processor_time()).unwrap_or_default()
    }

    fn read(
        &self,
        job: &Job,
        ran: &Ran,
        server: Option<&mut Started>,
        flows: &mut [Beside<'_>],
        seen: Seen,
    ) -> Result<(Reading, Vec<String>)> {
        let server_said = server.map(|server| server.printed()).unwrap_or_default();
        let said = Said {
            client: &ran.client,
            server: &server_said,
            exit_code: ran.exit_code,
            seconds: ran.seconds,
        };
        let mut reading = match tool::read(job, &said, &self.protocol.label) {
            Err(error) if job.has_stand_in => {
                let text = format!("iperf3: {error:#}");
                return Err(ControlLost { text, of_flow: false }.into());
            }
            other => other?,
        };
        let mut warnings = Vec::new();
        let length = ran.seconds.max(1e-3);
        for (name, used) in ["sender_processors", "receiver_processors", "emulator_processors"]
            .into_iter()
            .zip(ran.processors)
        {
            if name != "emulator_processors"
                || self.ground.lab().is_some_and(|(_, lab)| lab.is_emulated)
            {
                set(&mut reading.figures, name, used / length);
            }
            if used / length > 0.9 && !matches!(job.read, Read::Command) {
                let who = name.trim_end_matches("_processors");
                warnings.push(format!("the {who} used {:.2} of a processor: the machine may have set this figure, not the protocol", used / length));
            }
        }
        queue_figures(&mut reading.figures, &seen.queue, seen.slowest);
        reading.series.extend(seen.series);
        reading.series.extend(ran.usage.iter().cloned());
        let mut shares: Vec<(Series, f64)> = Vec::new();
        let main = (self.protocol.label.clone(), 0.0, self.tool.seconds());
        let mut flights = vec![flight(main, Default::default())];
        for flow in flows.iter_mut() {
            let (Some(client), Some(server)) = (&flow.client, &flow.server) else {
                bail!("{} did not run: the tool ended before", flow.label);
            };
            let (sent, arrived) = (client.printed(), server.printed());
            let (interval, length) = (self.tool.interval, flow.times.duration);
            match throughput(flow.load.reader, interval, length, &sent, &arrived, &flow.label) {
                Ok(other) => {
                    let (from, to) = (flow.times.delay, flow.times.delay + length);
                    flights.push(flight((flow.label.clone(), from, to), other.figures));
                    for mut series in other.series {
                        for point in &mut series.points {
                            point.0 += flow.times.delay;
                        }
                        if series.name == "throughput" {
                            // Zero outside of its time.
                            series.points.insert(0, (flow.times.delay, 0.0));
                            shares.push((series.clone(), flow.times.delay));
                        }
                        reading.series.push(series);
                    }
                }
                Err(error) => {
                    let text = format!("{}: {error:#}; {}", flow.label, client.complaint());
                    if flow.load.reader == Reader::Iperf {
                        return Err(ControlLost { text, of_flow: true }.into());
                    }
                    bail!("{text}");
                }
            }
        }
        if let (Some(main), false) = (reading.series.first().cloned(), shares.is_empty()) {
            // While all run.
            let from = shares.iter().map(|share| share.1).fold(0.0, f64::max);
            let ends = shares.iter().map(|share| &share.0).chain([&main]);
            let to = ends
                .filter_map(|series| Some(series.points.last()?.0))
                .fold(f64::INFINITY, f64::min);
            // The first half of it is for convergence.
            let from = from + (to - from) / 2.0;
            if to - from > 0.5 {
                let rates: Vec<f64> = shares
                    .iter()
                    .map(|share| mean(&share.0.points, from, to))
                    .chain([mean(&main.points, from, to)])
                    .collect();
                set(&mut reading.figures, "fairness", bats_sim::flows::jain_index(&rates));
            }
        }
        reading.flows = beside(&mut reading.figures, &reading.series, flights);
        Ok((reading, warnings))
    }
}

fn flight((of, from, to): (String, f64, f64), figures: Figures) -> Flight {
    Flight { of, from, to, figures }
}

/// A protocol that needs programs on the nodes, and between whom.
struct Carrier<'a> {
    protocol: &'a Protocol,
    client: u32,
    server: u32,
    /// What its files' names begin with.
    name: String,
}

/// Those of the tool and of the flows beside it. A daemon of both runs once.
fn carriers_of<'a>(
    protocol: &'a Protocol,
    tool: &Tool,
    flows: &[Beside<'a>],
) -> Result<Vec<Carrier<'a>>> {
    let name = String::new();
    let main = Carrier { protocol, client: tool.client, server: tool.server, name };
    let of_flow = |beside: &Beside<'a>| Carrier {
        protocol: &beside.flow.protocol,
        client: beside.flow.client,
        server: beside.flow.server,
        name: format!("flow-{}-", beside.port),
    };
    let mut carriers: Vec<Carrier<'a>> = Vec::new();
    for one in std::iter::once(main).chain(flows.iter().map(of_flow)) {
        match &one.protocol.kind {
            ProtocolKind::Tunnel { .. } => {
                // Its programs listen on ports of their own.
                let nodes = [one.client, one.server];
                let is_there = carriers.iter().any(|other| {
                    other.protocol.kind == one.protocol.kind
                        && (nodes.contains(&other.client) || nodes.contains(&other.server))
                });
                if is_there {
                    unfit!(
                        "{} has a client or server at one of the nodes {} and {} already, on the same ports",
                        one.protocol.name,
                        one.client,
                        one.server
                    );
                }
            }
            ProtocolKind::Daemon { .. } => {
                if carriers.iter().any(|other| other.protocol.kind == one.protocol.kind) {
                    continue;
                }
            }
            _ => continue,
        }
        carriers.push(one);
    }
    Ok(carriers)
}

struct Ran {
    client: String,
    exit_code: Option<i32>,
    seconds: f64,
    processors: [f64; 3],
    /// The same over time.
    usage: Vec<Series>,
}

/// Who is measured with the loads of this program because iperf3 has failed.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    tool: bool,
    flows: bool,
}

/// iperf3 has failed, for which there is a stand-in.
#[derive(Debug)]
struct ControlLost {
    text: String,
    /// Whether it was that of a flow beside the tool's.
    of_flow: bool,
}

impl std::fmt::Display for ControlLost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ControlLost {}

/// Waits, unless the user interrupts.
fn wait(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        interrupt::check()?;
        std::thread::sleep(GLANCE);
    }
    Ok(())
}

/// Waits a while for a server that serves once; ends one that would go on. Returns its processor
/// time.
fn finish(started: &mut Started) -> Result<Duration> {
    let deadline = Instant::now() + LINGER;
    while Instant::now() < deadline {
        if let Some((_, used)) = started.guard.try_wait()? {
            return Ok(used);
        }
        // A server that goes on for ever is not waited for.
        if started.printed().is_empty()
            && text(&started.errors).is_empty()
            && Instant::now() + Duration::from_millis(1500) > deadline
        {
            break;
        }
        std::thread::sleep(GLANCE);
    }
    let process = Process::find(started.guard.child_mut().id());
    let used = process.map(|process| process.processor_time()).unwrap_or_default();
    if let Some(process) = process {
        process.end();
    }
    Ok(used)
}

/// Makes the folder of a measurement.
pub(crate) fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))
}
