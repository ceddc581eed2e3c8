//! Virtual time: this project's protocol over links of `bats-netem`, the same result each time.
//!
//! A chain of relays that only forward is one link: the sum of the delays, the least rate, and the
//! share that passes all. Recoding relays come with the node.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bats_netem::{Jitter, LinkConfig};
use bats_proto::TransportConfig;
use bats_sim::capture::Capture;
use bats_sim::flows::{Flows, jain_index};
use bats_sim::matrix::FRAME_OVERHEAD;
use bats_sim::record::Recorder;
use bats_sim::transfer::{Sample, Transfer};

use crate::emulator::wire;
use crate::plan::{Case, Network, Protocol, ProtocolKind, Tool, ToolKind};
use crate::protocol::reading::Reading;
use crate::result::figures::{self, set};
use crate::result::{Distribution, Series};
use crate::run::schedule::Times;
use crate::settings::{Direction, Link, Loss};

const MTU: u32 = 1500;
const MESSAGE: usize = 16 << 10;
/// Packets of a capture.
const CAPTURED: u64 = 100_000;
/// Seconds of an interval of throughput at the least, so that rates are not of a few packets.
const INTERVAL: f64 = 0.1;

/// Why the simulator cannot measure this, if it cannot.
pub(crate) fn obstacle(case: &Case, protocol: &Protocol, tool: &Tool) -> Option<String> {
    let is_brtp = |protocol: &Protocol| matches!(&protocol.kind, ProtocolKind::Bats { mode } if ["1", "brtp"].contains(&mode.as_str()));
    if !is_brtp(protocol) {
        return Some(format!("the simulator has brtp only, not {}", protocol.name));
    }
    match &tool.kind {
        ToolKind::Throughput { parallel, bitrate, args, .. } => {
            if *bitrate > 0.0 || !args.is_empty() {
                return Some(
                    "the simulator sends as much as goes: no `bitrate`, no `args`".to_owned(),
                );
            }
            let is_beside = |flow: &crate::plan::Flow| {
                is_brtp(&flow.protocol) && (flow.client, flow.server) == (tool.client, tool.server)
            };
            if !case.flows.iter().all(is_beside) {
                return Some(
                    "the simulator has flows of brtp between the tool's nodes only".to_owned(),
                );
            }
            let many = *parallel > 1 || !case.flows.is_empty();
            if many && !case.events.is_empty() {
                return Some("the simulator changes links under one flow only".to_owned());
            }
            None
        }
        ToolKind::Rtt { .. } => (!case.events.is_empty())
            .then(|| "the simulator changes links under throughput only".to_owned()),
        _ => Some(format!("the simulator runs iperf, bats_iperf and rtt, not {}", tool.name)),
    }
}

/// Computes on a thread of its own, which is left alone if the user interrupts: the process ends soon.
///
/// # Errors
/// Where the user interrupts or the computation panics.
fn compute<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // Nobody listens any more after an interrupt.
        let _ = sender.send(work());
    });
    loop {
        match receiver.recv_timeout(Duration::from_millis(50)) {
            Ok(result) => return Ok(result),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => crate::interrupt::check()?,
            Err(_) => bail!("the simulator broke its promise: see the words of the panic"),
        }
    }
}

/// The links of the path as one link, towards the server and back.
///
/// # Errors
/// Where they have no such sum.
pub(crate) fn joined(links: &[Link], path: &[(usize, bool)]) -> Result<Link> {
    let towards = |server: bool| -> Result<Direction> {
        let mut joined: Option<Direction> = None;
        for &(index, forward) in path {
            let link = links.get(index).context("there is no such link")?;
            let one = if forward == server { link.forward } else { link.backward };
            joined = Some(match joined {
                None => one,
                Some(so_far) => together(&so_far, &one)?,
            });
        }
        joined.context("there is no link on the way")
    };
    Ok(Link { forward: towards(true)?, backward: towards(false)? })
}

fn together(one: &Direction, other: &Direction) -> Result<Direction> {
    let loss = match (one.loss, other.loss) {
        (Loss::Independent(a), Loss::Independent(b)) => {
            Loss::Independent(1.0 - (1.0 - a) * (1.0 - b))
        }
        (loss, Loss::Independent(0.0)) | (Loss::Independent(0.0), loss) => loss,
        _ => bail!("bursts of losses on several links have no sum: use the backend netns"),
    };
    let rate = match (one.rate, other.rate) {
        (0, rate) | (rate, 0) => rate,
        (a, b) => a.min(b),
    };
    Ok(Direction {
        rate,
        delay: one.delay + other.delay,
        jitter: one.jitter + other.jitter,
        reorder: one.reorder || other.reorder,
        loss,
        duplicate: 1.0 - (1.0 - one.duplicate) * (1.0 - other.duplicate),
        corrupt: 1.0 - (1.0 - one.corrupt) * (1.0 - other.corrupt),
        black_hole: one.black_hole || other.black_hole,
        queue: if one.rate <= other.rate && one.rate > 0 { one.queue } else { other.queue },
    })
}

/// The simulator hands UDP payload to the link: the headers count for the rate all the same.
pub(crate) fn direction(link: &Link, direction: &Direction) -> LinkConfig {
    LinkConfig {
        frame_overhead: FRAME_OVERHEAD,
        mtu: Some(MTU as usize + wire::ETHERNET - FRAME_OVERHEAD),
        jitter: (!direction.jitter.is_zero())
            .then_some(Jitter { amplitude: direction.jitter, reorder: direction.reorder }),
        ..wire::config(link, direction, MTU)
    }
}

/// One measurement.
pub(crate) struct Run<'a> {
    pub(crate) case: &'a Case,
    pub(crate) network: &'a Network,
    pub(crate) protocol: &'a Protocol,
    pub(crate) tool: &'a Tool,
    pub(crate) seed: u64,
    pub(crate) folder: &'a Path,
    /// When the other flows run.
    pub(crate) times: &'a [Times],
}

impl Run<'_> {
    /// Measures.
    ///
    /// # Errors
    /// Where no connection comes about, or the links cannot be simulated.
    pub(crate) fn measure(&self) -> Result<Reading> {
        let path = self.path()?;
        let link = joined(&self.network.links, &path)?;
        match &self.tool.kind {
            ToolKind::Throughput { parallel, .. } if *parallel > 1 || !self.times.is_empty() => {
                self.flows(&link, *parallel)
            }
            ToolKind::Throughput { .. } => self.transfer(&link, &path),
            ToolKind::Rtt { count, size } => {
                let rounds = if *count == 1 { Some(15) } else { None };
                let interval = Duration::from_secs_f64(self.tool.interval);
                let links = [direction(&link, &link.forward), direction(&link, &link.backward)];
                let (count, size, seed) = (u64::from(*count), *size as usize, self.seed);
                let of = self.protocol.label.clone();
                compute(move || {
                    super::sim_echo::measure(links, count, size, interval, rounds, seed, &of)
                })?
            }
            _ => bail!("the simulator cannot do this"),
        }
    }

    fn path(&self) -> Result<Vec<(usize, bool)>> {
        self.network
            .path(self.tool.client, self.tool.server)
            .context("there is no way between these nodes")
    }

    fn transfer(&self, link: &Link, path: &[(usize, bool)]) -> Result<Reading> {
        let mut links = self.network.links.clone();
        let mut changes = Vec::new();
        for event in &self.case.events {
            for (index, link) in links.iter_mut().enumerate() {
                if event.link.is_none_or(|chosen| chosen == index) {
                    event.changes.apply(link);
                }
            }
            let then = joined(&links, path)?;
            let at = Duration::from_secs_f64(event.at);
            changes.push((at, direction(&then, &then.forward), direction(&then, &then.backward)));
        }
        let transfer = Transfer {
            up: direction(link, &link.forward),
            down: direction(link, &link.backward),
            transport: TransportConfig::default(),
            message_size: MESSAGE,
            total_bytes: None,
            duration: Duration::from_secs_f64(self.tool.seconds()),
            changes,
            seed: self.seed,
        };
        let mut recorder = Recorder::default();
        if self.case.capture {
            let file = File::create(self.folder.join("capture.pcapng"))
                .context("cannot write the capture")?;
            recorder.capture = Some(Capture::new(Box::new(BufWriter::new(file)), CAPTURED)?);
        }
        let (outcome, mut recorder) = compute(move || {
            let outcome = transfer.run_recorded(&mut recorder);
            (outcome, recorder)
        })?;
        if let Some(capture) = recorder.capture.take() {
            capture.finish().context("cannot write the capture")?;
        }
        if outcome.established.is_none() {
            bail!("no connection came about over this link in 20 simulated seconds");
        }
        let mut reading = Reading::default();
        let of = &self.protocol.label;
        let arrived = throughput(&outcome.samples, self.tool.interval.max(INTERVAL), of);
        figures::of_throughput(&mut reading.figures, &arrived);
        reading.series.push(arrived);
        self.state(&mut reading, &outcome.samples, of);
        queue(
            &mut reading,
            link,
            outcome.samples.iter().map(|s| (s.time, s.queue_bytes)),
            self.step(),
        );
        Ok(reading)
    }

    /// How many samples are one.
    fn step(&self) -> usize {
        (self.case.sample_interval / Transfer::SAMPLE.as_secs_f64()).round().max(1.0) as usize
    }

    fn state(&self, reading: &mut Reading, samples: &[Sample], of: &str) {
        type Value = fn(&Sample) -> f64;
        let values: [(&str, &str, Value); 5] = [
            ("cwnd", "kB", |sample| sample.sender.cwnd_bytes as f64 / 1e3),
            ("smoothed RTT", "ms", |sample| sample.sender.smoothed_rtt.as_secs_f64() * 1e3),
            ("delivery rate", "Mbit/s", |sample| sample.sender.delivery_bps as f64 / 1e6),
            ("pacing rate", "Mbit/s", |sample| match sample.sender.pacing_bps {
                u64::MAX => f64::NAN,
                rate => rate as f64 / 1e6,
            }),
            ("loss seen", "%", |sample| sample.sender.loss_estimate * 100.0),
        ];
        for (name, unit, value) in values {
            let points = samples
                .iter()
                .step_by(self.step())
                .map(|sample| (sample.time.as_secs_f64(), value(sample)))
                .filter(|point| point.1.is_finite())
                .collect();
            reading.series.push(Series {
                name: name.into(),
                of: of.to_owned(),
                unit: unit.into(),
                points,
            });
        }
    }

    fn flows(&self, link: &Link, parallel: u16) -> Result<Reading> {
        let mut starts = vec![Duration::ZERO; usize::from(parallel)];
        for times in self.times {
            if times.delay + times.duration < self.tool.seconds() - 0.5 {
                bail!(
                    "a simulated flow runs to the end: leave `duration` out, or use the backend netns"
                );
            }
            starts.push(Duration::from_secs_f64(times.delay));
        }
        let flows = Flows {
            up: direction(link, &link.forward),
            down: direction(link, &link.backward),
            transport: TransportConfig::default(),
            message_size: MESSAGE,
            starts,
            duration: Duration::from_secs_f64(self.tool.seconds()),
            seed: self.seed,
        };
        let count = flows.starts.len();
        let samples = compute(move || flows.run())?;
        let mut reading = Reading::default();
        let mut shares = Vec::new();
        let main = 0..usize::from(parallel);
        for flow in std::iter::once(main).chain((usize::from(parallel)..count).map(|at| at..at + 1))
        {
            let is_main = flow.start == 0;
            let of = if is_main {
                self.protocol.label.clone()
            } else {
                format!("flow {}", flow.start + 1 - usize::from(parallel))
            };
            let (mut before, mut last) = (0u64, 0.0);
            let mut points = Vec::new();
            for sample in &samples {
                let at = sample.time.as_secs_f64();
                if at - last >= self.tool.interval.max(INTERVAL) - 1e-6 {
                    let received: u64 = sample.received[flow.clone()].iter().sum();
                    points.push((at, (received - before) as f64 * 8e-6 / (at - last)));
                    (before, last) = (received, at);
                }
            }
            let series = Series { name: "throughput".into(), of, unit: "Mbit/s".into(), points };
            shares.push(figures::mean(&series.points, last / 2.0, last));
            if is_main {
                figures::of_throughput(&mut reading.figures, &series);
            }
            reading.series.push(series);
        }
        if shares.len() > 1 {
            set(&mut reading.figures, "fairness", jain_index(&shares));
        }
        queue(&mut reading, link, samples.iter().map(|s| (s.time, s.queue_bytes)), 1);
        Ok(reading)
    }
}

/// What was delivered in each interval.
fn throughput(samples: &[Sample], interval: f64, of: &str) -> Series {
    let mut points = Vec::new();
    let (mut start, mut before) = (0.0, 0);
    for (index, sample) in samples.iter().enumerate() {
        let end = sample.time.as_secs_f64();
        if end - start >= interval - 1e-6 || (index + 1 == samples.len() && end > start) {
            let bytes = sample.delivered.saturating_sub(before) as f64;
            points.push((end, bytes * 8e-6 / (end - start)));
            (start, before) = (end, sample.delivered);
        }
    }
    Series { name: "throughput".into(), of: of.to_owned(), unit: "Mbit/s".into(), points }
}

fn queue(
    reading: &mut Reading,
    link: &Link,
    samples: impl Iterator<Item = (Duration, usize)>,
    step: usize,
) {
    let points: Vec<(f64, f64)> = samples
        .step_by(step)
        .map(|(time, octets)| (time.as_secs_f64(), octets as f64 / 1e3))
        .collect();
    crate::run::sampler::queue_figures(&mut reading.figures, &points, link.forward.rate);
    reading.series.push(Series {
        name: "queue".into(),
        of: "link".into(),
        unit: "kB".into(),
        points,
    });
}

/// Round-trip times as a reading.
pub(crate) fn round_trips(
    times: Vec<(f64, f64)>,
    connects: &[f64],
    sent: u64,
    is_first: bool,
    of: &str,
) -> Result<Reading> {
    if times.is_empty() {
        bail!("nothing came back of {sent} messages");
    }
    let mut reading = Reading::default();
    let mut values: Vec<f64> = times.iter().map(|time| time.1).collect();
    values.sort_by(f64::total_cmp);
    if is_first {
        set(&mut reading.figures, "first_rtt_ms", values.iter().sum::<f64>() / values.len() as f64);
    }
    if !connects.is_empty() {
        set(
            &mut reading.figures,
            "connect_ms",
            connects.iter().sum::<f64>() / connects.len() as f64,
        );
    }
    set(
        &mut reading.figures,
        "unanswered_percent",
        100.0 * (1.0 - values.len() as f64 / sent.max(1) as f64),
    );
    let distribution = Distribution { name: "RTT".into(), unit: "ms".into(), values };
    figures::of_round_trips(&mut reading.figures, &distribution);
    reading.distributions.push(distribution);
    reading.series.push(Series {
        name: "RTT".into(),
        of: of.to_owned(),
        unit: "ms".into(),
        points: times,
    });
    Ok(reading)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Queue;

    #[test]
    fn a_chain_is_the_sum_of_its_links() {
        let one = Direction {
            rate: 100_000_000,
            delay: Duration::from_millis(10),
            loss: Loss::Independent(0.1),
            ..Direction::default()
        };
        let slow = Direction { rate: 10_000_000, queue: Queue::Bytes(7), ..one };
        let links = [Link { forward: one, backward: one }, Link { forward: slow, backward: one }];
        let link = joined(&links, &[(0, true), (1, true)]).unwrap();
        assert_eq!(link.forward.rate, 10_000_000);
        assert_eq!(link.forward.queue, Queue::Bytes(7));
        assert_eq!(link.forward.delay, Duration::from_millis(20));
        assert!((link.forward.loss.mean() - 0.19).abs() < 1e-12);
        assert_eq!(link.backward.rate, 100_000_000);
        let back = joined(&links, &[(1, false), (0, false)]).unwrap();
        assert_eq!(back.forward.rate, 100_000_000);
    }
}
