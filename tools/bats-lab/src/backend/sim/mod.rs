//! The simulator backend: protocols of this project over links of `bats-netem` in virtual time,
//! reproducible.
//!
//! On a path of several links, the `relays` key of the protocol says what the hosts in between do.
//! Flows of different transports, or between different hosts, share links end to end: plain
//! datagrams and models of TCP.

mod echo;
mod ends;
mod flow;
mod mesh;
mod reading;
mod simulation;
mod transport;

#[cfg(test)]
mod fuzz_tests;

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
use crate::settings::{Direction, Elements, Link};
use echo::EchoTest;
use ends::LinkPath;
use flow::Snapshot;
use reading::ReadingBuilder;
use simulation::{SimNetwork, Simulation};
use transport::SimTransport;
pub(crate) use transport::{MODEL_SUFFIX, label};

/// Why a flow without any rate limit is not simulated.
pub(crate) const NO_RATE_LIMIT: &str = "in virtual time throughput over a link without `rate` is unbounded: set a `rate`, or use the backend netns";

const MTU: u32 = 1500;
const MESSAGE_BYTES: usize = 16 << 10;
/// Snapshots that may wait to be shown.
const MAX_PENDING_SNAPSHOTS: usize = 256;
/// Maximum number of packets in a capture.
const MAX_CAPTURED_PACKETS: u64 = 100_000;

/// The path between the nodes of a tool or a flow.
fn path_between(network: &Network, client: u32, server: u32) -> LinkPath {
    network.path(client, server).unwrap_or_default()
}

/// Whether flows differ in transport or hosts. Then all flows are end to end, without relays.
fn is_mixed(case: &Case, network: &Network, protocol: &Protocol, tool: &Tool) -> bool {
    if !matches!(tool.kind, ToolKind::Throughput { .. }) {
        return false;
    }
    let hops = path_between(network, tool.client, tool.server).len();
    let of_tool = transport::recoding(protocol, hops);
    !matches!(SimTransport::for_protocol(protocol), Some(SimTransport::OpenBats(_)))
        || case.flows.iter().any(|flow| {
            !matches!(SimTransport::for_protocol(&flow.protocol), Some(SimTransport::OpenBats(_)))
                || (flow.client, flow.server) != (tool.client, tool.server)
                || transport::recoding(&flow.protocol, hops) != of_tool
        })
}

/// Whether hosts on the path of a tool recode (`Some(true)`), forward coded packets
/// (`Some(false)`), or forward IP packets as routers do (`None`).
pub(crate) fn recoding(
    case: &Case,
    network: &Network,
    protocol: &Protocol,
    tool: &Tool,
) -> Option<bool> {
    let hops = path_between(network, tool.client, tool.server).len();
    transport::recoding(protocol, hops).filter(|_| !is_mixed(case, network, protocol, tool))
}

/// Why the simulator cannot run this measurement, if it cannot.
pub(crate) fn unsupported_reason(
    case: &Case,
    network: &Network,
    protocol: &Protocol,
    tool: &Tool,
) -> Option<String> {
    let Some(of_protocol) = SimTransport::for_protocol(protocol) else {
        return Some(not_simulated(protocol));
    };
    match &tool.kind {
        ToolKind::Throughput { bitrate, args, packet_type, bats, .. } => {
            if *bats && matches!(of_protocol, SimTransport::Tcp(_)) {
                let name = &protocol.name;
                return Some(format!("bats_iperf does not measure {name}"));
            }
            if !args.is_empty() {
                return Some("the simulator runs no programs: omit `args`".to_owned());
            }
            if *packet_type == PacketType::Udp && of_protocol.is_reliable() {
                return Some(not_for_lossy_mode(protocol));
            }
            if matches!(of_protocol, SimTransport::Tcp(_)) && *bitrate > 0.0 {
                let name = &protocol.name;
                return Some(format!(
                    "the simulator models {name} as a bulk transfer: omit `bitrate`"
                ));
            }
            let others = case.flows.iter().map(|flow| &flow.protocol);
            if let Some(other) =
                others.clone().find(|one| SimTransport::for_protocol(one).is_none())
            {
                return Some(not_simulated(other));
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
                return Some("in the simulator, relays forward only flows of btp, brtp and brctp between the nodes of the tool, all with the same `relays`".to_owned());
            }
            // Check all states of the links, because events may remove rate limits.
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
                let path = path_between(network, client, server);
                states.iter().all(|links| {
                    path.iter().any(|&(index, forward)| {
                        links.get(index).is_some_and(|link| {
                            (if forward { &link.forward } else { &link.backward }).has_rate()
                        })
                    })
                })
            };
            let is_bounded = (*bitrate > 0.0
                || of_protocol.is_uncontrolled()
                || has_rate(tool.client, tool.server))
                && case.flows.iter().all(|flow| {
                    SimTransport::for_protocol(&flow.protocol)
                        .is_some_and(SimTransport::is_uncontrolled)
                        || has_rate(flow.client, flow.server)
                });
            if !is_bounded {
                return Some(NO_RATE_LIMIT.to_owned());
            }
            None
        }
        ToolKind::Rtt { .. } if !matches!(of_protocol, SimTransport::OpenBats(_)) => Some(format!(
            "the simulator measures round trips of btp, brtp, brctp and transparent; for {} it measures throughput only",
            protocol.name
        )),
        ToolKind::Rtt { .. } if tool.under_load => Some(
            "the simulator measures round trips without competing flows: omit `under_load`, or use the backend netns".to_owned(),
        ),
        ToolKind::Rtt { .. } => (!case.events.is_empty())
            .then(|| "the simulator supports `events` with throughput tools only".to_owned()),
        _ => Some(format!("the simulator runs iperf, bats_iperf and rtt, not {}", tool.name)),
    }
}

/// Why the simulator does not support a protocol.
fn not_simulated(protocol: &Protocol) -> String {
    format!(
        "the simulator supports btp, brtp, brctp, transparent, udp and models of tcp-cubic, tcp-reno and tcp-bbr, not {}",
        protocol.name
    )
}

/// Why a protocol does not support unreliable datagrams.
pub(crate) fn not_for_lossy_mode(protocol: &Protocol) -> String {
    format!(
        "{} is reliable: `packet_type: udp` needs a mode that may lose messages, btp or transparent",
        protocol.name
    )
}

/// A message from the simulation thread.
enum SimMessage<T> {
    Snapshot(Snapshot),
    Done(T),
}

/// Runs `work` on a new thread and passes its snapshots to `on_snapshot` on this thread. On an
/// interrupt the thread is abandoned, because the process ends soon.
///
/// # Errors
/// If the user interrupts or the computation panics.
fn run_on_thread<T: Send + 'static>(
    work: impl FnOnce(&dyn Fn(Snapshot)) -> T + Send + 'static,
    on_snapshot: impl Fn(Snapshot),
) -> Result<T> {
    // Bounded, so that the simulation does not run far ahead of the display.
    let (sender, receiver) = std::sync::mpsc::sync_channel(MAX_PENDING_SNAPSHOTS);
    std::thread::spawn(move || {
        // After an interrupt the receiver is gone.
        let result = work(&|snapshot| {
            let _ = sender.send(SimMessage::Snapshot(snapshot));
        });
        let _ = sender.send(SimMessage::Done(result));
    });
    loop {
        match receiver.recv_timeout(Duration::from_millis(50)) {
            Ok(SimMessage::Done(result)) => return Ok(result),
            Ok(SimMessage::Snapshot(snapshot)) => {
                on_snapshot(snapshot);
                crate::interrupt::check()?;
            }
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => crate::interrupt::check()?,
            Err(_) => bail!("the simulator panicked: see the message above"),
        }
    }
}

/// The configuration of a simulated link. The simulator passes UDP payload to the link; the header
/// sizes are added so that they count for the rate.
///
/// # Errors
/// If a trace cannot be read or a setting is out of range.
pub(crate) fn link_config(link: &Link, direction: &Direction) -> Result<LinkConfig> {
    let mut config = LinkConfig {
        frame_overhead: FRAME_OVERHEAD,
        mtu: Some(MTU as usize + wire::ETHERNET - FRAME_OVERHEAD),
        ..wire::base_config(link, direction, MTU)
    };
    direction
        .elements
        .configure(&mut config, Elements::UDP_PAYLOAD)
        .map_err(|error| anyhow::anyhow!(error))?;
    Ok(config)
}

/// The links of a path, towards the server and back.
fn links_of(links: &[Link], path: &[(usize, bool)]) -> Result<Vec<[LinkConfig; 2]>> {
    path.iter()
        .map(|&(index, forward)| {
            let link = links.get(index).context("no such link")?;
            let directions =
                [link_config(link, &link.forward)?, link_config(link, &link.backward)?];
            let [there, back] = directions;
            Ok(if forward { [there, back] } else { [back, there] })
        })
        .collect()
}

/// Adds jitter below the transmission time of a frame on the slowest link. Senders with perfect
/// clocks synchronise with a queue: one always finds it a frame short of full, and all others find
/// it full (Floyd and Jacobson, "On traffic phase effects in packet-switched gateways", 1992). Real
/// hosts have enough timing noise.
fn add_desynchronising_jitter(links: &mut [[LinkConfig; 2]]) {
    // Where a rate changes, chance and time desynchronise already.
    let rates = links.iter().flatten().filter_map(|direction| direction.rate_bps);
    let Some(slowest) = rates.min().filter(|&rate| rate > 0) else { return };
    let frame = (MTU as usize + wire::ETHERNET) as f64 * 8.0 / slowest as f64;
    // On very slow links a frame time would be a significant delay.
    let amplitude = Duration::from_secs_f64(frame / 2.0).min(Duration::from_millis(1));
    for direction in links.iter_mut().flatten().filter(|direction| direction.jitter.is_none()) {
        direction.jitter =
            Some(Jitter { amplitude: amplitude.min(direction.delay), reorder: false });
    }
}

/// One simulated measurement.
pub(crate) struct Run<'a> {
    pub(crate) case: &'a Case,
    pub(crate) network: &'a Network,
    pub(crate) protocol: &'a Protocol,
    pub(crate) tool: &'a Tool,
    pub(crate) seed: u64,
    pub(crate) folder: &'a Path,
    /// Schedule of the competing flows.
    pub(crate) times: &'a [Times],
    pub(crate) progress: &'a Progress,
}

impl Run<'_> {
    /// Runs the measurement. Returns the reading and warnings.
    ///
    /// # Errors
    /// If no connection is established, or the links cannot be simulated.
    pub(crate) fn measure(&self) -> Result<(Reading, Vec<String>)> {
        let path = self
            .network
            .path(self.tool.client, self.tool.server)
            .context("there is no path between these nodes")?;
        let transport = SimTransport::for_protocol(self.protocol)
            .context("the simulator does not support this protocol")?;
        let is_mixed = is_mixed(self.case, self.network, self.protocol, self.tool);
        let sim_network = SimNetwork {
            links: self.links(&self.network.links, &path, is_mixed)?,
            recoding: recoding(self.case, self.network, self.protocol, self.tool),
            seed: self.seed,
            paths: if is_mixed { self.flow_paths(&path)? } else { Vec::new() },
        };
        let mut warnings = Vec::new();
        let is_tcp = |protocol: &Protocol| {
            matches!(SimTransport::for_protocol(protocol), Some(SimTransport::Tcp(_)))
        };
        if is_mixed {
            let others = self.case.flows.iter().map(|flow| &flow.protocol);
            if std::iter::once(self.protocol).chain(others).any(is_tcp) {
                warnings.push(transport::TCP_MODEL_WARNING.to_owned());
            }
            if self.parallel() > 1 || !self.case.flows.is_empty() {
                warnings.push("flows share links: links without `jitter` get random jitter of up to half the frame time of the slowest link (at most 1 ms), because perfectly regular senders would synchronise with the queue".to_owned());
            }
            let has_relayed_flows = self.case.flows.iter().any(|flow| {
                let hops = path_between(self.network, flow.client, flow.server).len();
                transport::recoding(&flow.protocol, hops).is_some()
            });
            if has_relayed_flows || transport::recoding(self.protocol, path.len()).is_some() {
                warnings.push("flows differ in protocol or hosts and share the path: all flows are end to end, and hosts on the path forward IP packets".to_owned());
            }
        }
        let capture = if !self.case.capture {
            None
        } else if sim_network.has_relays() || is_mixed {
            let what = if is_mixed {
                "flows of different protocols or hosts"
            } else {
                "a path with relays"
            };
            warnings.push(format!("the simulator cannot capture packets of {what}"));
            None
        } else {
            let file = File::create(self.folder.join("capture.pcapng"))
                .context("cannot write the capture")?;
            Some(Capture::new(Box::new(BufWriter::new(file)), MAX_CAPTURED_PACKETS)?)
        };
        let reading = match &self.tool.kind {
            ToolKind::Throughput { bitrate, .. } => {
                self.throughput(&sim_network, &path, capture, transport, *bitrate)?
            }
            ToolKind::Rtt { count, size } => {
                let SimTransport::OpenBats(mode) = transport else {
                    bail!("the simulator does not measure round trips of this protocol");
                };
                let test = EchoTest {
                    mode,
                    count: u64::from(*count),
                    size: *size as usize,
                    interval: Duration::from_secs_f64(self.tool.interval),
                    connections: (*count == 1).then_some(15),
                };
                let of = transport::label(self.protocol);
                run_on_thread(
                    move |report| echo::measure(&sim_network, test, capture, &of, report),
                    |snapshot| self.show(&snapshot),
                )??
            }
            _ => bail!("the simulator does not support this tool"),
        };
        Ok((reading, warnings))
    }

    /// The links of the path, or all links if flows have different paths.
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
            add_desynchronising_jitter(&mut links);
        }
        Ok(links)
    }

    /// The path of each flow, beginning with those of the tool.
    fn flow_paths(&self, path: &[(usize, bool)]) -> Result<Vec<LinkPath>> {
        let mut paths = vec![path.to_vec(); usize::from(self.parallel())];
        for flow in &self.case.flows {
            let path = self.network.path(flow.client, flow.server);
            paths.push(path.context("there is no path between the nodes of a flow")?);
        }
        Ok(paths)
    }

    /// Number of flows of the tool.
    fn parallel(&self) -> u16 {
        match self.tool.kind {
            ToolKind::Throughput { parallel, .. } => parallel.max(1),
            _ => 1,
        }
    }

    /// Shows a snapshot of the measurement.
    fn show(&self, snapshot: &Snapshot) {
        let what = format!("{} {}", transport::label(self.protocol), self.tool.name);
        let Snapshot { at, mbps, rtt_ms, queue_kilobytes } = *snapshot;
        self.progress.sample(&what, at, mbps, queue_kilobytes, rtt_ms);
    }

    fn throughput(
        &self,
        sim_network: &SimNetwork,
        path: &[(usize, bool)],
        capture: Option<Capture>,
        transport: SimTransport,
        bitrate: f64,
    ) -> Result<Reading> {
        let length = Duration::from_secs_f64(self.tool.seconds());
        let plan = |transport: SimTransport, start: Duration, end: Duration, bitrate: f64| {
            // Without congestion control the flow needs a rate.
            let bitrate =
                if transport.is_uncontrolled() && bitrate <= 0.0 { UDP_RATE } else { bitrate };
            let size = if transport.is_reliable() { MESSAGE_BYTES } else { DATAGRAM };
            let rate = (bitrate > 0.0).then_some(bitrate * 1e6);
            flow::FlowConfig { transport, start, end: end.min(length), rate, size }
        };
        let parallel = self.parallel();
        let label = transport::label(self.protocol);
        let main = plan(transport, Duration::ZERO, length, bitrate / f64::from(parallel));
        let mut plans = vec![main; usize::from(parallel)];
        let mut others = Vec::new();
        for (index, (flow, times)) in self.case.flows.iter().zip(self.times).enumerate() {
            let of_flow = SimTransport::for_protocol(&flow.protocol)
                .context("the simulator does not support this flow")?;
            let start = Duration::from_secs_f64(times.delay);
            plans.push(plan(of_flow, start, start + Duration::from_secs_f64(times.duration), 0.0));
            let label = self.case.flow_label(index, &transport::label(&flow.protocol));
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
            let links = self.links(&links, path, !sim_network.paths.is_empty())?;
            changes.push((Duration::from_secs_f64(event.at), links));
        }
        let sim_network = sim_network.clone();
        let outcome = run_on_thread(
            move |report| {
                let mut world = Simulation::new(&sim_network, capture)?;
                let outcome = flow::run(&mut world, &plans, &changes, report);
                world.finish_capture()?;
                outcome
            },
            |snapshot| self.show(&snapshot),
        )??;
        let builder = ReadingBuilder {
            network: self.network,
            path,
            label: &label,
            parallel: usize::from(parallel),
            others,
            transport,
            length: self.tool.seconds(),
            interval: self.tool.interval,
            sample_interval: self.case.sample_interval,
        };
        Ok(builder.reading(&outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_a_path_follow_its_order_and_direction() {
        let of = |rate| Direction { rate, ..Direction::default() };
        let links = [
            Link { forward: of(1_000_000), backward: of(2_000_000) },
            Link { forward: of(3_000_000), backward: of(4_000_000) },
        ];
        let rates = |path: &[(usize, bool)]| -> Vec<[Option<u64>; 2]> {
            let links = links_of(&links, path).unwrap();
            links.iter().map(|link| [link[0].rate_bps, link[1].rate_bps]).collect()
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
