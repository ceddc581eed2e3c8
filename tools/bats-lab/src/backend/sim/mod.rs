//! Virtual time: this project's protocol over links of `bats-netem`, the same result each time.
//!
//! A way of several links is as many links; what the hosts between them do is the protocol's
//! `relays`.

mod echo;
mod flow;
mod reading;
mod world;

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bats_netem::{Jitter, LinkConfig};
use bats_proto::Mode;
use bats_sim::capture::Capture;
use bats_sim::matrix::FRAME_OVERHEAD;

use crate::config::model::{PacketType, Relays};
use crate::emulator::wire;
use crate::plan::{Case, Network, Protocol, ProtocolKind, Tool, ToolKind};
use crate::protocol::load::{DATAGRAM, UDP_RATE};
use crate::protocol::reading::Reading;
use crate::run::progress::Progress;
use crate::run::schedule::Times;
use crate::settings::{Direction, Link};
use echo::Question;
use flow::{Glimpse, is_reliable};
use reading::Shown;
use world::{Between, World};

const MTU: u32 = 1500;
const MESSAGE: usize = 16 << 10;
/// What may wait to be shown.
const GLIMPSES: usize = 256;
/// Packets of a capture.
const CAPTURED: u64 = 100_000;

/// Whether hosts on a way of so many links recode (`Some(true)`), relay without (`Some(false)`), or
/// forward packets as routers do.
pub(crate) fn recoding(protocol: &Protocol, hops: usize) -> Option<bool> {
    let ProtocolKind::Bats { mode, relays } = &protocol.kind else { return None };
    let coded = || mode_of(mode).filter(|&mode| mode != Mode::Transparent).map(|_| true);
    let recoding = match relays {
        Some(Relays::Recode) => Some(true),
        Some(Relays::Forward) => Some(false),
        Some(Relays::None) => None,
        // What is not coded cannot be recoded.
        None => coded(),
    };
    recoding.filter(|_| hops > 1)
}

/// The mode that `bats_iperf` knows by this name or number.
fn mode_of(name: &str) -> Option<Mode> {
    match name {
        "0" | "btp" => Some(Mode::Btp),
        "1" | "brtp" => Some(Mode::Brtp),
        "2" | "brctp" => Some(Mode::Brctp),
        "3" | "transparent" => Some(Mode::Transparent),
        _ => None,
    }
}

fn mode(protocol: &Protocol) -> Option<Mode> {
    match &protocol.kind {
        ProtocolKind::Bats { mode, .. } => mode_of(mode),
        _ => None,
    }
}

/// Why the simulator cannot measure this, if it cannot.
pub(crate) fn obstacle(
    case: &Case,
    network: &Network,
    protocol: &Protocol,
    tool: &Tool,
) -> Option<String> {
    let Some(of_protocol) = mode(protocol) else {
        return Some(format!(
            "the simulator has btp, brtp, brctp and transparent, not {}",
            protocol.name
        ));
    };
    let path = network.path(tool.client, tool.server).unwrap_or_default();
    let is_relayed = recoding(protocol, path.len());
    match &tool.kind {
        ToolKind::Throughput { bitrate, args, packet_type, .. } => {
            if !args.is_empty() {
                return Some("the simulator has no programs that take `args`".to_owned());
            }
            if *packet_type == PacketType::Udp && is_reliable(of_protocol) {
                return Some(not_lossy(protocol));
            }
            for flow in &case.flows {
                let fits = mode(&flow.protocol).is_some()
                    && (flow.client, flow.server) == (tool.client, tool.server)
                    && recoding(&flow.protocol, path.len()) == is_relayed;
                if !fits {
                    return Some("the simulator has flows of this project's modes between the tool's nodes only, with the same `relays`".to_owned());
                }
            }
            let has_rate = path.iter().any(|&(index, forward)| {
                let link = network.links.get(index);
                link.is_some_and(|link| {
                    (if forward { link.forward.rate } else { link.backward.rate }) > 0
                })
            });
            let is_paced = *bitrate > 0.0 || of_protocol == Mode::Transparent;
            let has_end = has_rate || is_paced && case.flows.is_empty();
            if !has_end {
                return Some("in virtual time a link without `rate` has no end".to_owned());
            }
            None
        }
        ToolKind::Rtt { .. } => (!case.events.is_empty())
            .then(|| "the simulator changes links under throughput only".to_owned()),
        _ => Some(format!("the simulator runs iperf, bats_iperf and rtt, not {}", tool.name)),
    }
}

/// Why datagrams that may be lost are not for a protocol.
pub(crate) fn not_lossy(protocol: &Protocol) -> String {
    format!("datagrams that may be lost are for btp and transparent; {} is not", protocol.name)
}

/// What a computation tells while it goes on, and in the end.
enum News<T> {
    Glimpse(Glimpse),
    Done(T),
}

/// Computes on a thread of its own, which is left alone if the user interrupts: the process ends soon.
/// What the work lets be seen meanwhile goes to `seen`, here.
///
/// # Errors
/// Where the user interrupts or the computation panics.
fn compute<T: Send + 'static>(
    work: impl FnOnce(&dyn Fn(Glimpse)) -> T + Send + 'static,
    seen: impl Fn(Glimpse),
) -> Result<T> {
    // Bounded, so that who computes does not run far ahead of who shows.
    let (sender, receiver) = std::sync::mpsc::sync_channel(GLIMPSES);
    std::thread::spawn(move || {
        // Nobody listens any more after an interrupt.
        let result = work(&|glimpse| {
            let _ = sender.send(News::Glimpse(glimpse));
        });
        let _ = sender.send(News::Done(result));
    });
    loop {
        match receiver.recv_timeout(Duration::from_millis(50)) {
            Ok(News::Done(result)) => return Ok(result),
            Ok(News::Glimpse(glimpse)) => {
                seen(glimpse);
                crate::interrupt::check()?;
            }
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => crate::interrupt::check()?,
            Err(_) => bail!("the simulator broke its promise: see the words of the panic"),
        }
    }
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

/// The links on the way, towards the server and back.
fn links_of(links: &[Link], path: &[(usize, bool)]) -> Result<Vec<[LinkConfig; 2]>> {
    path.iter()
        .map(|&(index, forward)| {
            let link = links.get(index).context("there is no such link")?;
            let ways = [direction(link, &link.forward), direction(link, &link.backward)];
            let [there, back] = ways;
            Ok(if forward { [there, back] } else { [back, there] })
        })
        .collect()
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
    pub(crate) progress: &'a Progress,
}

impl Run<'_> {
    /// Measures. Returns what is to be said of it, too.
    ///
    /// # Errors
    /// Where no connection comes about, or the links cannot be simulated.
    pub(crate) fn measure(&self) -> Result<(Reading, Vec<String>)> {
        let path = self
            .network
            .path(self.tool.client, self.tool.server)
            .context("there is no way between these nodes")?;
        let between = Between {
            links: links_of(&self.network.links, &path)?,
            recoding: recoding(self.protocol, path.len()),
            seed: self.seed,
        };
        let mode = mode(self.protocol).context("the simulator lacks this protocol")?;
        let mut warnings = Vec::new();
        let capture = if !self.case.capture {
            None
        } else if between.has_relays() {
            warnings.push("there is no capture of a way with relays in virtual time".to_owned());
            None
        } else {
            let file = File::create(self.folder.join("capture.pcapng"))
                .context("cannot write the capture")?;
            Some(Capture::new(Box::new(BufWriter::new(file)), CAPTURED)?)
        };
        let reading = match &self.tool.kind {
            ToolKind::Throughput { parallel, bitrate, .. } => {
                self.throughput(&between, &path, capture, mode, *parallel, *bitrate)?
            }
            ToolKind::Rtt { count, size } => {
                let question = Question {
                    mode,
                    count: u64::from(*count),
                    size: *size as usize,
                    interval: Duration::from_secs_f64(self.tool.interval),
                    rounds: (*count == 1).then_some(15),
                };
                let of = self.protocol.label.clone();
                compute(move |_| echo::measure(&between, question, capture, &of), |_| {})??
            }
            _ => bail!("the simulator cannot do this"),
        };
        Ok((reading, warnings))
    }

    fn throughput(
        &self,
        between: &Between,
        path: &[(usize, bool)],
        capture: Option<Capture>,
        mode: Mode,
        parallel: u16,
        bitrate: f64,
    ) -> Result<Reading> {
        let length = Duration::from_secs_f64(self.tool.seconds());
        let plan = |mode: Mode, start: Duration, end: Duration, bitrate: f64| {
            // Without congestion control the rate has to be said.
            let bitrate =
                if mode == Mode::Transparent && bitrate <= 0.0 { UDP_RATE } else { bitrate };
            let size = if is_reliable(mode) { MESSAGE } else { DATAGRAM };
            let rate = (bitrate > 0.0).then_some(bitrate * 1e6);
            flow::Plan { mode, start, end: end.min(length), rate, size }
        };
        let parallel = parallel.max(1);
        let main = plan(mode, Duration::ZERO, length, bitrate / f64::from(parallel));
        let mut plans = vec![main; usize::from(parallel)];
        let mut others = Vec::new();
        for (number, (flow, times)) in (1..).zip(self.case.flows.iter().zip(self.times)) {
            let of_flow = self::mode(&flow.protocol).context("the simulator lacks this flow")?;
            let start = Duration::from_secs_f64(times.delay);
            plans.push(plan(of_flow, start, start + Duration::from_secs_f64(times.duration), 0.0));
            others.push((format!("{} ({number})", flow.protocol.label), *times));
        }
        let mut links = self.network.links.clone();
        let mut changes = Vec::new();
        for event in &self.case.events {
            for (index, link) in links.iter_mut().enumerate() {
                if event.link.is_none_or(|chosen| chosen == index) {
                    event.changes.apply(link);
                }
            }
            changes.push((Duration::from_secs_f64(event.at), links_of(&links, path)?));
        }
        let between = between.clone();
        let what = format!("{} {}", self.protocol.label, self.tool.name);
        let outcome = compute(
            move |tell| {
                let mut world = World::new(&between, capture)?;
                let outcome = flow::run(&mut world, &plans, &changes, tell);
                world.finish_capture()?;
                outcome
            },
            |glimpse| {
                self.progress.sample(&what, glimpse.at, glimpse.mbps, glimpse.queue_kilobytes)
            },
        )??;
        let shown = Shown {
            network: self.network,
            path,
            label: &self.protocol.label,
            parallel: usize::from(parallel),
            others,
            mode,
            length: self.tool.seconds(),
            interval: self.tool.interval,
            sample_interval: self.case.sample_interval,
        };
        Ok(shown.reading(&outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_its_links_in_order_and_direction() {
        let of = |rate| Direction { rate, ..Direction::default() };
        let links = [
            Link { forward: of(1_000_000), backward: of(2_000_000) },
            Link { forward: of(3_000_000), backward: of(4_000_000) },
        ];
        let rates = |path: &[(usize, bool)]| -> Vec<[Option<u64>; 2]> {
            let ways = links_of(&links, path).unwrap();
            ways.iter().map(|way| [way[0].rate_bps, way[1].rate_bps]).collect()
        };
        let million = |rate: u64| Some(rate * 1_000_000);
        assert_eq!(
            rates(&[(0, true), (1, true)]),
            [[million(1), million(2)], [million(3), million(4)]]
        );
        assert_eq!(rates(&[(1, false)]), [[million(4), million(3)]]);
        assert!(links_of(&links, &[(2, true)]).is_err());
    }
}
