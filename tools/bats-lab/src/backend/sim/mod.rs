//! Virtual time: this project's protocol over links of `bats-netem`, the same result each time.
//!
//! A way of several links is as many links; what the hosts between them do is the protocol's
//! `relays`. Flows of other kinds, or between other hosts, share links from end to end: datagrams as
//! they are, and models of TCP.

mod carrier;
mod echo;
mod flow;
mod mesh;
mod reading;
mod world;

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bats_netem::{Jitter, LinkConfig};
use bats_sim::capture::Capture;
use bats_sim::links::FRAME_OVERHEAD;

use crate::config::model::{PacketType, Relays};
use crate::emulator::wire;
use crate::plan::{Case, Network, Protocol, ProtocolKind, Tool, ToolKind};
use crate::protocol::load::{DATAGRAM, UDP_RATE};
use crate::protocol::reading::Reading;
use crate::run::progress::Progress;
use crate::run::schedule::Times;
use crate::settings::{Direction, Link};
use carrier::Carrier;
pub(crate) use carrier::{IS_MODEL, label};
use echo::Question;
use flow::Glimpse;
use reading::Shown;
use world::{Between, Route, World};

/// Why flows that nothing limits are not simulated.
pub(crate) const ENDLESS: &str = "in virtual time a link without `rate` has no end, for no processor sets one: say a `rate`, or take netns";

const MTU: u32 = 1500;
const MESSAGE: usize = 16 << 10;
/// What may wait to be shown.
const GLIMPSES: usize = 256;
/// Packets of a capture.
const CAPTURED: u64 = 100_000;

/// The way between the nodes of a tool or a flow.
fn way(network: &Network, client: u32, server: u32) -> Route {
    network.path(client, server).unwrap_or_default()
}

/// Whether flows are of several kinds or between several hosts, so that all are from end to end.
fn is_mixed(case: &Case, network: &Network, protocol: &Protocol, tool: &Tool) -> bool {
    if !matches!(tool.kind, ToolKind::Throughput { .. }) {
        return false;
    }
    let hops = way(network, tool.client, tool.server).len();
    let of_tool = carrier::recoding(protocol, hops);
    !matches!(Carrier::of(protocol), Some(Carrier::Ours(_)))
        || case.flows.iter().any(|flow| {
            !matches!(Carrier::of(&flow.protocol), Some(Carrier::Ours(_)))
                || (flow.client, flow.server) != (tool.client, tool.server)
                || carrier::recoding(&flow.protocol, hops) != of_tool
        })
}

/// Whether hosts on the way of a tool recode (`Some(true)`), relay without (`Some(false)`), or forward
/// packets as routers do.
pub(crate) fn recoding(
    case: &Case,
    network: &Network,
    protocol: &Protocol,
    tool: &Tool,
) -> Option<bool> {
    let hops = way(network, tool.client, tool.server).len();
    carrier::recoding(protocol, hops).filter(|_| !is_mixed(case, network, protocol, tool))
}

/// Why the simulator cannot measure this, if it cannot.
pub(crate) fn obstacle(
    case: &Case,
    network: &Network,
    protocol: &Protocol,
    tool: &Tool,
) -> Option<String> {
    let Some(of_protocol) = Carrier::of(protocol) else {
        return Some(lacks(protocol));
    };
    match &tool.kind {
        ToolKind::Throughput { bitrate, args, packet_type, bats, .. } => {
            if *bats && matches!(of_protocol, Carrier::Tcp(_)) {
                let name = &protocol.name;
                return Some(format!("bats_iperf does not measure {name}"));
            }
            if !args.is_empty() {
                return Some("the simulator has no programs that take `args`".to_owned());
            }
            if *packet_type == PacketType::Udp && of_protocol.is_reliable() {
                return Some(not_lossy(protocol));
            }
            if matches!(of_protocol, Carrier::Tcp(_)) && *bitrate > 0.0 {
                let name = &protocol.name;
                return Some(format!(
                    "the simulator's model of {name} sends as much as goes, without `bitrate`"
                ));
            }
            let others = case.flows.iter().map(|flow| &flow.protocol);
            if let Some(other) = others.clone().find(|one| Carrier::of(one).is_none()) {
                return Some(lacks(other));
            }
            let has_relays = |one: &Protocol| {
                matches!(
                    one.kind,
                    ProtocolKind::Bats { relays: Some(Relays::Recode | Relays::Forward), .. }
                )
            };
            if is_mixed(case, network, protocol, tool)
                && std::iter::once(protocol).chain(others).any(has_relays)
            {
                return Some("in the simulator relays carry flows of this project's modes between the tool's nodes only, with the same `relays`".to_owned());
            }
            // At all times: events may take rates away.
            let mut states = vec![network.links.clone()];
            for event in &case.events {
                let mut links = states.last().cloned().unwrap_or_default();
                for (index, link) in links.iter_mut().enumerate() {
                    if event.link.is_none_or(|chosen| chosen == index) {
                        event.changes.apply(link);
                    }
                }
                states.push(links);
            }
            let has_rate = |client: u32, server: u32| {
                let way = way(network, client, server);
                states.iter().all(|links| {
                    way.iter().any(|&(index, forward)| {
                        links.get(index).is_some_and(|link| {
                            (if forward { link.forward.rate } else { link.backward.rate }) > 0
                        })
                    })
                })
            };
            let has_end = (*bitrate > 0.0
                || of_protocol.is_uncontrolled()
                || has_rate(tool.client, tool.server))
                && case.flows.iter().all(|flow| {
                    Carrier::of(&flow.protocol).is_some_and(Carrier::is_uncontrolled)
                        || has_rate(flow.client, flow.server)
                });
            if !has_end {
                return Some(ENDLESS.to_owned());
            }
            None
        }
        ToolKind::Rtt { .. } if !matches!(of_protocol, Carrier::Ours(_)) => Some(format!(
            "the simulator has messages and their answers of btp, brtp, brctp and transparent; of {} throughput alone",
            protocol.name
        )),
        ToolKind::Rtt { .. } => (!case.events.is_empty())
            .then(|| "the simulator changes links under throughput only".to_owned()),
        _ => Some(format!("the simulator runs iperf, bats_iperf and rtt, not {}", tool.name)),
    }
}

/// Why a protocol is not in the simulator.
fn lacks(protocol: &Protocol) -> String {
    format!(
        "the simulator has btp, brtp, brctp, transparent, udp, and models of tcp-cubic, tcp-reno and tcp-bbr, not {}",
        protocol.name
    )
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

/// Lets delays vary by less than the slowest link's frame takes. Senders whose clocks are perfect keep in
/// step with a queue: who is ahead finds it one frame short of full each time, all others find it full
/// (Floyd and Jacobson, "On traffic phase effects in packet-switched gateways", 1992). Hosts do not.
fn out_of_step(links: &mut [[LinkConfig; 2]]) {
    let rates = links.iter().flatten().filter_map(|way| way.rate_bps);
    let Some(slowest) = rates.min().filter(|&rate| rate > 0) else { return };
    let frame = (MTU as usize + wire::ETHERNET) as f64 * 8.0 / slowest as f64;
    // Long frames of very slow links would be a delay to speak of.
    let amplitude = Duration::from_secs_f64(frame / 2.0).min(Duration::from_millis(1));
    for way in links.iter_mut().flatten().filter(|way| way.jitter.is_none()) {
        way.jitter = Some(Jitter { amplitude: amplitude.min(way.delay), reorder: false });
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
        let carrier = Carrier::of(self.protocol).context("the simulator lacks this protocol")?;
        let is_mixed = is_mixed(self.case, self.network, self.protocol, self.tool);
        let between = Between {
            links: self.links(&self.network.links, &path, is_mixed)?,
            recoding: recoding(self.case, self.network, self.protocol, self.tool),
            seed: self.seed,
            ways: if is_mixed { self.ways(&path)? } else { Vec::new() },
        };
        let mut warnings = Vec::new();
        let is_tcp = |protocol: &Protocol| matches!(Carrier::of(protocol), Some(Carrier::Tcp(_)));
        if is_mixed {
            let others = self.case.flows.iter().map(|flow| &flow.protocol);
            if std::iter::once(self.protocol).chain(others).any(is_tcp) {
                warnings.push(carrier::MODEL.to_owned());
            }
            if self.parallel() > 1 || !self.case.flows.is_empty() {
                warnings.push("flows share links: the delay of links without `jitter` varies by up to half a frame of the slowest one, 1 ms at most, as no host is as exact as the simulator".to_owned());
            }
            let rivals = self.case.flows.iter().any(|flow| {
                let hops = way(self.network, flow.client, flow.server).len();
                carrier::recoding(&flow.protocol, hops).is_some()
            });
            if rivals || carrier::recoding(self.protocol, path.len()).is_some() {
                warnings.push("flows of several kinds or between several hosts share the way: all are from end to end, and hosts on it forward packets".to_owned());
            }
        }
        let capture = if !self.case.capture {
            None
        } else if between.has_relays() || is_mixed {
            let what = if is_mixed { "of flows of several kinds" } else { "of a way with relays" };
            warnings.push(format!("there is no capture {what} in virtual time"));
            None
        } else {
            let file = File::create(self.folder.join("capture.pcapng"))
                .context("cannot write the capture")?;
            Some(Capture::new(Box::new(BufWriter::new(file)), CAPTURED)?)
        };
        let reading = match &self.tool.kind {
            ToolKind::Throughput { bitrate, .. } => {
                self.throughput(&between, &path, capture, carrier, *bitrate)?
            }
            ToolKind::Rtt { count, size } => {
                let Carrier::Ours(mode) = carrier else {
                    bail!("the simulator has no messages of this protocol");
                };
                let question = Question {
                    mode,
                    count: u64::from(*count),
                    size: *size as usize,
                    interval: Duration::from_secs_f64(self.tool.interval),
                    rounds: (*count == 1).then_some(15),
                };
                let of = carrier::label(self.protocol);
                compute(
                    move |tell| echo::measure(&between, question, capture, &of, tell),
                    |glimpse| self.show(&glimpse),
                )??
            }
            _ => bail!("the simulator cannot do this"),
        };
        Ok((reading, warnings))
    }

    /// The links as flows use them: those of the way, or all where flows have ways of their own.
    fn links(
        &self,
        links: &[Link],
        path: &[(usize, bool)],
        is_mixed: bool,
    ) -> Result<Vec<[LinkConfig; 2]>> {
        if !is_mixed {
            return links_of(links, path);
        }
        let all: Vec<(usize, bool)> = (0..links.len()).map(|link| (link, true)).collect();
        let mut links = links_of(links, &all)?;
        if self.parallel() > 1 || !self.case.flows.is_empty() {
            out_of_step(&mut links);
        }
        Ok(links)
    }

    /// The way of each flow, the tool's first.
    fn ways(&self, path: &[(usize, bool)]) -> Result<Vec<Route>> {
        let mut ways = vec![path.to_vec(); usize::from(self.parallel())];
        for flow in &self.case.flows {
            let way = self.network.path(flow.client, flow.server);
            ways.push(way.context("there is no way between the nodes of a flow")?);
        }
        Ok(ways)
    }

    /// How many flows the tool has.
    fn parallel(&self) -> u16 {
        match self.tool.kind {
            ToolKind::Throughput { parallel, .. } => parallel.max(1),
            _ => 1,
        }
    }

    /// What can be seen of the measurement now.
    fn show(&self, glimpse: &Glimpse) {
        let what = format!("{} {}", carrier::label(self.protocol), self.tool.name);
        let Glimpse { at, mbps, rtt_ms, queue_kilobytes } = *glimpse;
        self.progress.sample(&what, at, mbps, queue_kilobytes, rtt_ms);
    }

    fn throughput(
        &self,
        between: &Between,
        path: &[(usize, bool)],
        capture: Option<Capture>,
        carrier: Carrier,
        bitrate: f64,
    ) -> Result<Reading> {
        let length = Duration::from_secs_f64(self.tool.seconds());
        let plan = |carrier: Carrier, start: Duration, end: Duration, bitrate: f64| {
            // Without congestion control the rate has to be said.
            let bitrate =
                if carrier.is_uncontrolled() && bitrate <= 0.0 { UDP_RATE } else { bitrate };
            let size = if carrier.is_reliable() { MESSAGE } else { DATAGRAM };
            let rate = (bitrate > 0.0).then_some(bitrate * 1e6);
            flow::Plan { carrier, start, end: end.min(length), rate, size }
        };
        let parallel = self.parallel();
        let label = carrier::label(self.protocol);
        let main = plan(carrier, Duration::ZERO, length, bitrate / f64::from(parallel));
        let mut plans = vec![main; usize::from(parallel)];
        let mut others = Vec::new();
        for (index, (flow, times)) in self.case.flows.iter().zip(self.times).enumerate() {
            let of_flow = Carrier::of(&flow.protocol).context("the simulator lacks this flow")?;
            let start = Duration::from_secs_f64(times.delay);
            plans.push(plan(of_flow, start, start + Duration::from_secs_f64(times.duration), 0.0));
            let label = self.case.flow_label(index, &carrier::label(&flow.protocol));
            others.push((label, *times));
        }
        let mut links = self.network.links.clone();
        let mut changes = Vec::new();
        for event in &self.case.events {
            for (index, link) in links.iter_mut().enumerate() {
                if event.link.is_none_or(|chosen| chosen == index) {
                    event.changes.apply(link);
                }
            }
            let links = self.links(&links, path, !between.ways.is_empty())?;
            changes.push((Duration::from_secs_f64(event.at), links));
        }
        let between = between.clone();
        let outcome = compute(
            move |tell| {
                let mut world = World::new(&between, capture)?;
                let outcome = flow::run(&mut world, &plans, &changes, tell);
                world.finish_capture()?;
                outcome
            },
            |glimpse| self.show(&glimpse),
        )??;
        let shown = Shown {
            network: self.network,
            path,
            label: &label,
            parallel: usize::from(parallel),
            others,
            carrier,
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
