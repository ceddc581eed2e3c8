//! The plan of a run: a test file with all references resolved, expanded and checked.

pub(crate) mod checks;
mod describe;
mod duration;
mod quick;

pub(crate) use describe::{count, describe, time};

use crate::config::model::{BackendName, NodeEntry, PacketType, Relays};
use crate::protocol::programs::NeededPrograms;
use crate::settings::{Changes, Link};

/// Fraction of a full Ethernet frame that is UDP payload.
const PAYLOAD: f64 = 1472.0 / 1514.0;

/// Maximum number of measurements of a file: one takes a second and a half at least, so these take two days. Results
/// are in memory until the end.
pub(crate) const MAX_MEASUREMENTS: usize = 100_000;

/// All tests of a file.
#[derive(Clone, Debug)]
pub(crate) struct Suite {
    /// The file name as given.
    pub(crate) file: String,
    /// Notes about settings that are accepted and have no effect.
    pub(crate) notes: Vec<String>,
    /// The tests.
    pub(crate) cases: Vec<Case>,
    /// Real hosts by the name of their testbed.
    pub(crate) testbeds: Vec<(String, Vec<Host>)>,
}

/// One test.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) description: String,
    /// Whether it runs when no test is selected.
    pub(crate) enabled: bool,
    pub(crate) backend: Option<BackendName>,
    pub(crate) networks: Vec<Network>,
    pub(crate) protocols: Vec<Protocol>,
    pub(crate) tools: Vec<Tool>,
    pub(crate) flows: Vec<Flow>,
    pub(crate) events: Vec<Event>,
    pub(crate) is_parallel: bool,
    pub(crate) allow_failure: bool,
    pub(crate) repetitions: u32,
    pub(crate) seed: u64,
    pub(crate) assertions: Vec<Assertion>,
    pub(crate) published: Vec<Published>,
    pub(crate) verify: bool,
    pub(crate) capture: bool,
    /// Seconds between samples.
    pub(crate) sample_interval: f64,
}

impl Case {
    /// The label of a competing flow: its protocol and nodes, and its number if that is ambiguous.
    pub(crate) fn flow_label(&self, index: usize, protocol: &str) -> String {
        let Some(flow) = self.flows.get(index) else { return protocol.to_owned() };
        let label = format!("{protocol} {} to {}", flow.client, flow.server);
        let is_alike = |other: &&Flow| {
            other.protocol == flow.protocol
                && (other.client, other.server) == (flow.client, flow.server)
        };
        match self.flows.iter().filter(is_alike).count() {
            0 | 1 => label,
            _ => format!("{label} ({})", index + 1),
        }
    }

    /// Events and competing flows, as results describe them.
    pub(crate) fn conditions(&self) -> Vec<String> {
        let event = |event: &Event| {
            let link =
                event.link.map_or("all links".to_owned(), |link| format!("link {}", link + 1));
            format!("at {} s {link}: {}", event.at, event.changes)
        };
        let flow = |flow: &Flow| {
            let time =
                |time: Option<f64>| time.map_or("drawn".to_owned(), |time| format!("{time} s"));
            format!(
                "{} from node {} to {}, start {}, duration {}",
                flow.protocol.name,
                flow.client,
                flow.server,
                time(flow.delay),
                time(flow.duration)
            )
        };
        self.events.iter().map(event).chain(self.flows.iter().map(flow)).collect()
    }

    /// Whether a measurement on hosts needs `bats_iperf`.
    pub(crate) fn needed_programs(&self) -> NeededPrograms {
        let flows = self.flows.iter().map(|flow| &flow.protocol);
        let is_node = |one: &Protocol| matches!(one.kind, ProtocolKind::Node { .. });
        let batsd = self.protocols.iter().chain(flows).any(is_node);
        NeededPrograms { bats_iperf: self.needs_bats_iperf(), batsd }
    }

    /// Whether a protocol or a competing flow is wireguard-go.
    pub(crate) fn uses_wireguard(&self) -> bool {
        let flows = self.flows.iter().map(|flow| &flow.protocol);
        let is_it = |one: &Protocol| matches!(one.kind, ProtocolKind::WireGuard { .. });
        self.protocols.iter().chain(flows).any(is_it)
    }

    /// Whether a measurement needs `bats_iperf`.
    pub(crate) fn needs_bats_iperf(&self) -> bool {
        let protocols =
            || self.protocols.iter().chain(self.flows.iter().map(|flow| &flow.protocol));
        let has = |fits: fn(&ProtocolKind) -> bool| protocols().any(|one| fits(&one.kind));
        self.tools.iter().any(|tool| match tool.kind {
            ToolKind::Throughput { bats, .. } => {
                let is_plain = |kind: &ProtocolKind| {
                    matches!(kind, ProtocolKind::Udp | ProtocolKind::Quic { .. })
                };
                has(|kind| matches!(kind, ProtocolKind::Bats { .. })) || bats && has(is_plain)
            }
            // Round trips need no `bats_iperf` themselves; flows that run meanwhile do.
            _ => {
                let is_bats = |flow: &Flow| matches!(flow.protocol.kind, ProtocolKind::Bats { .. });
                tool.has_competing_flows() && self.flows.iter().any(is_bats)
            }
        })
    }
}

/// One network.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Network {
    /// The topology's name.
    pub(crate) name: String,
    /// A one-line description.
    pub(crate) label: String,
    pub(crate) nodes: u32,
    /// The nodes of each link, the lower one first.
    pub(crate) edges: Vec<(u32, u32)>,
    /// The parameters of each link; forward is towards the higher node.
    pub(crate) links: Vec<Link>,
    /// Loss in per cent, if it is the same on all links.
    pub(crate) loss_percent: Option<f64>,
    /// One-way delay of a link in ms, if it is the same on all links.
    pub(crate) delay_ms: Option<f64>,
}

/// A protocol under test.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Protocol {
    /// The name in the test file.
    pub(crate) name: String,
    /// The name in reports.
    pub(crate) label: String,
    pub(crate) kind: ProtocolKind,
}

/// How a protocol is run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ProtocolKind {
    /// The kernel's TCP with this congestion control.
    Tcp { congestion: String },
    /// The kernel's UDP.
    Udp,
    /// An OpenBATS protocol, by the mode of `bats_iperf`; and what relays do, if given.
    Bats { mode: String, relays: Option<Relays> },
    /// QUIC by quinn, with this congestion control.
    Quic { congestion: String },
    /// A program at the client and one at the server; tools connect to a port at the client.
    Tunnel {
        client: Vec<String>,
        server: Vec<String>,
        port: u16,
        carries: PacketType,
        is_one_way: bool,
    },
    /// A program on every node; tools use the hosts' addresses.
    Daemon { words: Vec<String> },
    /// The node (`batsd`) on every node; tools use the addresses in the tunnel, or ports that are forwarded.
    /// TCP in the tunnel has this congestion control.
    Node { congestion: String, relays: bool, entry: NodeEntry },
    /// wireguard-go at the ends of a path, hosts between them forward IP packets; tools use the addresses in the tunnel.
    /// TCP in the tunnel has this congestion control.
    WireGuard { congestion: String },
    /// A known protocol that is not available.
    Missing { why: String },
}

/// A tool, run over each protocol.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tool {
    /// The name in the test file.
    pub(crate) name: String,
    pub(crate) client: u32,
    pub(crate) server: u32,
    /// In seconds.
    pub(crate) interval: f64,
    pub(crate) intervals: u32,
    pub(crate) kind: ToolKind,
    /// Whether competing flows run while it measures round trips.
    pub(crate) under_load: bool,
}

/// What a tool measures.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ToolKind {
    /// Throughput, unlimited or at a rate.
    Throughput {
        packet_type: PacketType,
        parallel: u16,
        bitrate: f64,
        args: Vec<String>,
        bats: bool,
    },
    /// Round-trip times of messages.
    Rtt { count: u32, size: u32 },
    /// Round-trip times of UDP datagrams next to the protocol under test.
    Ping { count: u32, size: u32 },
    /// A file copy with scp.
    Scp { megabytes: u32 },
    /// A command.
    Command { words: Vec<String>, server: Vec<String> },
}

impl ToolKind {
    /// Whether competing flows always run with the tool.
    pub(crate) fn has_competing_flows(&self) -> bool {
        matches!(self, Self::Throughput { .. })
    }
}

impl Tool {
    /// Whether competing flows run with the tool. Files and commands are measured alone, round trips
    /// unless they are `under_load`.
    pub(crate) fn has_competing_flows(&self) -> bool {
        self.kind.has_competing_flows() || self.under_load
    }

    /// Duration of the measurement in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.interval * f64::from(self.intervals)
    }
}

/// A competing flow.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Flow {
    pub(crate) protocol: Protocol,
    pub(crate) client: u32,
    pub(crate) server: u32,
    /// Start in seconds; drawn from the seed if not given.
    pub(crate) delay: Option<f64>,
    pub(crate) duration: Option<f64>,
}

/// A change of link parameters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    /// Seconds from the start of the tool.
    pub(crate) at: f64,
    /// Index of the link; all links if not given.
    pub(crate) link: Option<usize>,
    pub(crate) changes: Changes,
}

/// A requirement on a result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Assertion {
    pub(crate) figure: String,
    pub(crate) protocol: Option<String>,
    pub(crate) tool: Option<String>,
    pub(crate) network: Option<usize>,
    pub(crate) at_least: Option<f64>,
    pub(crate) at_most: Option<f64>,
    pub(crate) relative_to: Option<String>,
}

/// Published results of others.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Published {
    pub(crate) source: String,
    pub(crate) label: String,
    pub(crate) figure: String,
    pub(crate) value: Option<f64>,
    /// Loss in per cent, delay in ms, result.
    pub(crate) cells: Vec<(f64, f64, f64)>,
}

impl Published {
    /// The published result for `network`.
    pub(crate) fn at(&self, network: &Network) -> Option<f64> {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        self.value.or_else(|| {
            let (loss, delay) = (network.loss_percent?, network.delay_ms?);
            self.cells
                .iter()
                .find(|cell| near(cell.0, loss) && near(cell.1, delay))
                .map(|cell| cell.2)
        })
    }
}

/// A real host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) user: Option<String>,
    pub(crate) ip: String,
    pub(crate) address: String,
    pub(crate) port: Option<u16>,
    pub(crate) arch: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) interface: Option<String>,
    pub(crate) ssh_config: Option<String>,
}

impl Network {
    /// The path between two nodes with the fewest hops: index of each link and whether it is used
    /// forward.
    pub(crate) fn path(&self, from: u32, to: u32) -> Option<Vec<(usize, bool)>> {
        crate::topology::path(&self.edges, from, to)
    }

    /// The links of a node with which a path with the fewest hops begins, by index.
    pub(crate) fn first_links(&self, from: u32, to: u32) -> Vec<usize> {
        let hops = |from: u32| self.path(from, to).map(|path| path.len());
        let Some(all) = hops(from).filter(|&all| all > 0) else { return Vec::new() };
        let begins = |&(_, &(left, right)): &(usize, &(u32, u32))| {
            let next = if left == from {
                right
            } else if right == from {
                left
            } else {
                return false;
            };
            hops(next).is_some_and(|rest| rest + 1 == all)
        };
        self.edges.iter().enumerate().filter(begins).map(|(index, _)| index).collect()
    }

    /// Whether there is one path with the fewest hops only.
    pub(crate) fn has_single_path(&self, from: u32, to: u32) -> bool {
        let mut at = from;
        // A path visits each node at most once.
        for _ in 0..self.nodes {
            if at == to {
                return true;
            }
            let &[link] = self.first_links(at, to).as_slice() else { return false };
            let Some(&(left, right)) = self.edges.get(link) else { return false };
            at = if left == at { right } else { left };
        }
        at == to
    }

    /// Upper bound in bits per second of the UDP payload along the path in full frames between two
    /// times in seconds, without repair by relays.
    pub(crate) fn bound(&self, from: u32, to: u32, times: (f64, f64)) -> Option<f64> {
        let (mut delivered, mut rate) = (1.0, f64::INFINITY);
        for (of_link, fraction) in self.hops(from, to, times)? {
            delivered *= fraction;
            rate = rate.min(of_link);
        }
        rate.is_finite().then_some(rate * delivered * PAYLOAD)
    }

    /// The same bound if every relay repairs the losses of its hop: that of the worst hop.
    pub(crate) fn relayed_bound(&self, from: u32, to: u32, times: (f64, f64)) -> Option<f64> {
        let hops = self.hops(from, to, times)?.into_iter();
        let least = hops.map(|(rate, delivered)| rate * delivered).fold(f64::INFINITY, f64::min);
        least.is_finite().then_some(least * PAYLOAD)
    }

    /// The rate of each hop, infinite without a limit, and the fraction of packets that it
    /// delivers.
    fn hops(&self, from: u32, to: u32, times: (f64, f64)) -> Option<Vec<(f64, f64)>> {
        let hop = |&(index, forward): &(usize, bool)| {
            let link = self.links.get(index)?;
            let direction = if forward { &link.forward } else { &link.backward };
            Some((direction.capacity(times.0, times.1), direction.delivered()))
        };
        self.path(from, to)?.iter().map(hop).collect()
    }

    /// Whether a rate on the path changes with time.
    pub(crate) fn has_schedule(&self, from: u32, to: u32) -> bool {
        self.path(from, to).unwrap_or_default().iter().any(|&(index, forward)| {
            self.links.get(index).is_some_and(|link| {
                let direction = if forward { &link.forward } else { &link.backward };
                direction.elements.rate_schedule.is_some()
            })
        })
    }

    /// The round-trip delay of the path, in seconds.
    pub(crate) fn round_trip(&self, from: u32, to: u32) -> Option<f64> {
        let path = self.path(from, to)?;
        Some(path.iter().map(|&(link, _)| self.links[link].round_trip().as_secs_f64()).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Direction, Loss};

    fn network(nodes: u32, edges: Vec<(u32, u32)>, links: Vec<Link>) -> Network {
        let (name, label) = (String::new(), String::new());
        Network { name, label, nodes, edges, links, loss_percent: None, delay_ms: None }
    }

    #[test]
    fn all_links_of_shortest_paths_are_found() {
        // A diamond with a longer way around, and a node behind it.
        let edges = vec![(0, 1), (1, 3), (0, 2), (3, 2), (0, 4), (4, 5), (5, 3), (3, 6)];
        let network = network(7, edges, Vec::new());
        assert_eq!(network.first_links(0, 3), [0, 2]);
        assert_eq!(network.first_links(3, 0), [1, 3]);
        assert_eq!(network.first_links(6, 0), [7]);
        assert!(network.first_links(0, 0).is_empty());
        assert!(!network.has_single_path(6, 0) && !network.has_single_path(0, 6));
        assert!(network.has_single_path(0, 5) && network.has_single_path(1, 6));
    }

    #[test]
    fn without_recoding_the_losses_of_all_hops_multiply() {
        let direction =
            |rate, loss| Direction { rate, loss: Loss::Independent(loss), ..Direction::default() };
        let of = |rate, loss| Link { forward: direction(rate, loss), backward: direction(1, 0.9) };
        let links = vec![of(100_000_000, 0.1), of(0, 0.2), of(90_000_000, 0.0)];
        let network = network(4, vec![(0, 1), (1, 2), (2, 3)], links);
        let near =
            |bound: Option<f64>, rate: f64| (bound.unwrap() / PAYLOAD / rate - 1.0).abs() < 1e-9;
        assert!(near(network.bound(0, 3, (0.0, 1.0)), 90e6 * 0.72));
        assert!(near(network.relayed_bound(0, 3, (0.0, 1.0)), 90e6));
        assert_eq!(network.bound(1, 2, (0.0, 1.0)), None);
    }
}
