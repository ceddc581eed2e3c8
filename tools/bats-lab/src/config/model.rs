//! The structure of a test file, from which the JSON schema is generated. Key names follow Oasis
//! where it has them.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::attribute::Attribute;
use super::values::{NameOr, OneOrMany, OrderedMap, Text};
use crate::settings::quantities::Time;
use crate::settings::{
    AckThinning, AlternateLoss, Contention, DelaySchedule, Discipline, Fade, Holes, OrNone,
    Policer, RateSchedule, Slots,
};

/// Tests of protocols over emulated networks.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "batslab test file")]
pub(crate) struct TestFile {
    /// Container description of Oasis; ignored, because hosts are namespaces here.
    #[serde(default)]
    #[schemars(with = "Option<serde_json::Value>")]
    pub(crate) containernet: Option<serde::de::IgnoredAny>,
    /// Real hosts for the backend `ssh`, by name of the testbed.
    #[serde(default)]
    pub(crate) testbeds: OrderedMap<Vec<TestbedHost>>,
    /// Protocols of this file, in addition to the predefined ones.
    #[serde(default)]
    pub(crate) protocols: Vec<ProtocolSpec>,
    /// Topologies of this file, referenced as `topology: { config_name: NAME }`.
    #[serde(default)]
    pub(crate) topologies: Vec<TopologySpec>,
    /// The tests, run in this order.
    #[serde(default)]
    pub(crate) tests: OrderedMap<TestSpec>,
}

/// A host of a testbed.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestbedHost {
    /// User name for the login.
    pub(crate) user: Option<String>,
    /// Address or host name for the login.
    #[schemars(with = "String")]
    pub(crate) ip: Spanned<String>,
    /// Address for the traffic of the tests; default: `ip`.
    pub(crate) address: Option<String>,
    /// Port of the SSH server.
    pub(crate) port: Option<u16>,
    /// Required output of `uname -m`.
    pub(crate) arch: Option<String>,
    /// File with the private key for the login.
    pub(crate) authorized_key: Option<String>,
    /// Interface that must exist.
    pub(crate) intf: Option<String>,
    /// Configuration file of `ssh` for other settings: known hosts, jump hosts.
    pub(crate) ssh_config: Option<String>,
}

/// One test.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestSpec {
    /// Description for reports.
    #[serde(default)]
    pub(crate) description: String,
    /// Whether it runs if no test is named.
    #[serde(default = "default_true", rename = "if")]
    pub(crate) enabled: bool,
    /// The network, or a family of networks.
    #[schemars(with = "TopologyUse")]
    pub(crate) topology: Spanned<TopologyUse>,
    /// Protocols under test, by name or inline.
    pub(crate) target_protocols: Vec<NameOr<ProtocolSpec>>,
    /// Routing; default: static routes with the fewest hops.
    #[schemars(with = "Option<RouteName>")]
    pub(crate) route: Option<Spanned<RouteName>>,
    /// Tools to run over each protocol: `iperf`, `bats_iperf`, `rtt`, `ping`, `scp`, `sshping`, or
    /// any command.
    pub(crate) test_tools: OrderedMap<ToolSpec>,
    /// Competing flows that run during the tools with `iperf` in their name.
    #[serde(default)]
    pub(crate) competition_flows: Vec<FlowSpec>,
    /// Run protocols one after the other, or in parallel, each in its own network.
    #[serde(default)]
    pub(crate) execution_mode: ExecutionMode,
    /// Whether the run succeeds even if this test fails.
    #[serde(default)]
    pub(crate) allow_failure: bool,
    /// Backend if the command line names none.
    pub(crate) backend: Option<BackendName>,
    /// Number of repetitions of each measurement.
    #[schemars(with = "Option<u32>")]
    pub(crate) repetitions: Option<Spanned<u32>>,
    /// Seed of losses, jitter and random choices; incremented for each repetition.
    pub(crate) seed: Option<u64>,
    /// Changes of links while a tool runs.
    #[serde(default)]
    pub(crate) events: Vec<EventSpec>,
    /// Required values of figures.
    #[serde(default)]
    pub(crate) assertions: Vec<AssertionSpec>,
    /// Published figures of others, shown for comparison.
    #[serde(default)]
    pub(crate) published: Vec<PublishedSpec>,
    /// Whether to measure the emulator first and include the result in the report.
    #[serde(default = "default_true")]
    pub(crate) verify: bool,
    /// Whether to save the first packets of the client as a pcap-ng file.
    #[serde(default)]
    pub(crate) capture: bool,
    /// Sampling interval of queues and sockets in seconds: 0.01 to 10; default: 0.1.
    #[schemars(with = "Option<f64>")]
    pub(crate) sample_interval: Option<Spanned<f64>>,
}

fn default_true() -> bool {
    true
}

/// The backend that runs a test.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, clap::ValueEnum, serde::Serialize,
)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BackendName {
    /// Simulation in virtual time, reproducible: protocols of this project, datagrams and models of
    /// TCP.
    Sim,
    /// Network namespaces, connected by the emulator of this program.
    Netns,
    /// Network namespaces, connected by the netem qdisc of the kernel.
    Netem,
    /// Real hosts.
    Ssh,
}

impl BackendName {
    /// Whether programs run on this machine.
    pub(crate) fn is_local(self) -> bool {
        matches!(self, Self::Netns | Self::Netem)
    }

    /// Its name in test files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Netns => "netns",
            Self::Netem => "netem",
            Self::Ssh => "ssh",
        }
    }
}

/// Execution order of protocols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ExecutionMode {
    /// One after the other.
    #[default]
    Serial,
    /// In parallel. They share the processors, so use it only for latency or low rates.
    Parallel,
}

/// Routing between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RouteName {
    /// Static routes along a chain.
    StaticRoute,
    /// Static routes with the fewest hops.
    StaticBfs,
    /// The routes that OLSR finds over equal links, without its daemon.
    #[serde(alias = "olsr")]
    OlsrRoute,
    /// Open/R; not supported yet.
    OpenrRoute,
}

/// A topology, inline or by name.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopologyUse {
    /// Name of a topology of `config_file`, of this file, or of the predefined ones.
    #[schemars(with = "Option<String>")]
    pub(crate) config_name: Option<Spanned<String>>,
    /// File with topologies; the predefined ones are in `predefined.topology.yaml`.
    #[schemars(with = "Option<String>")]
    pub(crate) config_file: Option<Spanned<String>>,
    /// Name for reports.
    #[schemars(with = "Option<String>")]
    pub(crate) name: Option<Spanned<String>>,
    /// Type of the topology.
    #[schemars(with = "Option<TopologyType>")]
    pub(crate) topology_type: Option<Spanned<TopologyType>>,
    /// Number of nodes: 2 to 17.
    #[schemars(with = "Option<u32>")]
    pub(crate) nodes: Option<Spanned<u32>>,
    /// Link attributes of a chain, as in Oasis.
    #[serde(default)]
    pub(crate) array_description: Vec<ArraySpec>,
    /// Link matrices as in Oasis, inline or as a file name.
    pub(crate) json_description: Option<NameOr<Matrices>>,
    /// Settings of every link, in addition to `array_description`.
    pub(crate) link: Option<LinkSpec>,
    /// Settings of each link; in a mesh with `between`.
    #[serde(default)]
    pub(crate) links: Vec<LinkSpec>,
    /// Values for all links; every combination is one network.
    pub(crate) matrix: Option<MatrixSpec>,
}

/// An entry of a list of topologies.
pub(crate) type TopologySpec = TopologyUse;

/// A file of topologies.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopologyFile {
    pub(crate) topology: Vec<TopologySpec>,
}

/// Type of the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TopologyType {
    /// A chain: node 0, node 1, ...
    Linear,
    /// Links between any nodes.
    Mesh,
}

/// One attribute of the links of a chain. Its values stand below its key, or, as Oasis writes them,
/// next to it: then the key itself has no value.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ArraySpec {
    /// Loss in percent.
    #[serde(default)]
    pub(crate) link_loss: Attribute,
    /// One-way delay in ms.
    #[serde(default)]
    pub(crate) link_latency: Attribute,
    /// Jitter in ms.
    #[serde(default)]
    pub(crate) link_jitter: Attribute,
    /// Rate towards higher nodes in Mbit/s.
    #[serde(default)]
    pub(crate) link_bandwidth_forward: Attribute,
    /// Rate towards lower nodes in Mbit/s.
    #[serde(default)]
    pub(crate) link_bandwidth_backward: Attribute,
    /// Values of the attribute of this entry that has none below it.
    #[schemars(with = "Option<Vec<f64>>")]
    pub(crate) init_value: Option<Spanned<OneOrMany<f64>>>,
    /// Increment of each step of that attribute.
    pub(crate) step_len: Option<f64>,
    /// Number of its steps after the first value.
    pub(crate) step_num: Option<u32>,
}

/// Matrices that describe links, with a value for each direction.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Matrices {
    /// The matrices.
    pub(crate) data: Vec<MatrixData>,
}

/// One matrix; row i, column j is the direction from node i to node j.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MatrixData {
    /// 0 adjacency, 1 bandwidth (Mbit/s), 2 loss (%), 3 latency (ms), 4 jitter (ms).
    #[schemars(with = "u32")]
    pub(crate) matrix_type: Spanned<u32>,
    /// Description; ignored.
    #[serde(default)]
    #[allow(dead_code, reason = "present in files for Oasis; not used")]
    pub(crate) description: String,
    /// One row and one column for each node.
    #[schemars(with = "Vec<Vec<f64>>")]
    pub(crate) matrix_data: Spanned<Vec<Vec<f64>>>,
}

/// Settings of a link. `X/Y` sets the two directions separately.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LinkSpec {
    /// The two nodes of the link, in a mesh.
    #[schemars(with = "Option<Vec<u32>>")]
    pub(crate) between: Option<Spanned<Vec<u32>>>,
    /// Rate in Ethernet frames: `100M`, `1G`, `none`.
    #[schemars(with = "Option<Text>")]
    pub(crate) rate: Option<Spanned<Text>>,
    /// One-way delay: `10ms`; a bare number is in ms.
    #[schemars(with = "Option<Text>")]
    pub(crate) delay: Option<Spanned<Text>>,
    /// Maximum deviation of the delay in both directions: `1ms`.
    #[schemars(with = "Option<Text>")]
    pub(crate) jitter: Option<Spanned<Text>>,
    /// Whether jitter may reorder packets.
    pub(crate) reorder: Option<bool>,
    /// Loss: `5%`; `ge:1%,9%` for Gilbert-Elliott bursts (probability to enter and to leave; two more
    /// values are the loss in the bad and in the good state); `4state:P13%,P31%,P32%,P23%,P14%`.
    #[schemars(with = "Option<Text>")]
    pub(crate) loss: Option<Spanned<Text>>,
    /// Duplicated packets: `1%`.
    #[schemars(with = "Option<Text>")]
    pub(crate) duplicate: Option<Spanned<Text>>,
    /// Packets with one byte corrupted: `0.1%`.
    #[schemars(with = "Option<Text>")]
    pub(crate) corrupt: Option<Spanned<Text>>,
    /// Queue in front of the link: `1bdp`, `250k`, `4M` (bytes).
    #[schemars(with = "Option<Text>")]
    pub(crate) queue: Option<Spanned<Text>>,
    /// Drop all packets.
    pub(crate) down: Option<bool>,
    /// Instead of `rate`: a rate that changes with time.
    #[schemars(with = "Option<OrNone<RateSchedule>>")]
    pub(crate) rate_schedule: Option<Spanned<OrNone<RateSchedule>>>,
    /// Additional delay that changes with time.
    #[schemars(with = "Option<OrNone<DelaySchedule>>")]
    pub(crate) delay_schedule: Option<Spanned<OrNone<DelaySchedule>>>,
    /// Further limit of the queue, in packets; 0 for none.
    #[schemars(with = "Option<u32>")]
    pub(crate) queue_packets: Option<Spanned<u32>>,
    /// How the queue is managed: `drop_tail`, `codel`, `fq_codel`, `pie`, `step_mark`; with parameters
    /// for example `{ codel: { target: 5ms } }`.
    #[schemars(with = "Option<Discipline>")]
    pub(crate) discipline: Option<Spanned<Discipline>>,
    /// A token bucket in front of the queue.
    #[schemars(with = "Option<OrNone<Policer>>")]
    pub(crate) policer: Option<Spanned<OrNone<Policer>>>,
    /// Thinning of acknowledgements.
    #[schemars(with = "Option<OrNone<AckThinning>>")]
    pub(crate) ack_thinning: Option<Spanned<OrNone<AckThinning>>>,
    /// Additional delays; each flow has one of them.
    #[schemars(with = "Option<Vec<Time>>")]
    pub(crate) flow_delays: Option<Spanned<Vec<Time>>>,
    /// Waiting for a shared medium.
    #[schemars(with = "Option<OrNone<Contention>>")]
    pub(crate) contention: Option<Spanned<OrNone<Contention>>>,
    /// Arrivals in batches at slot boundaries.
    #[schemars(with = "Option<OrNone<Slots>>")]
    pub(crate) slots: Option<Spanned<OrNone<Slots>>>,
    /// Another loss model that takes turns with `loss`.
    #[schemars(with = "Option<OrNone<AlternateLoss>>")]
    pub(crate) alternate_loss: Option<Spanned<OrNone<AlternateLoss>>>,
    /// Times in which nothing passes.
    #[schemars(with = "Option<OrNone<Holes>>")]
    pub(crate) holes: Option<Spanned<OrNone<Holes>>>,
    /// Loss that grows as the rate falls.
    #[schemars(with = "Option<OrNone<Fade>>")]
    pub(crate) fade: Option<Spanned<OrNone<Fade>>>,
    /// Whether preamble, check sequence and gap use the rate: a full frame then counts as 1538 bytes.
    pub(crate) ethernet_overhead: Option<bool>,
    /// Settings of the direction towards the second node only.
    #[schemars(with = "Option<Box<LinkSpec>>")]
    pub(crate) forward: Option<Spanned<Box<LinkSpec>>>,
    /// Settings of the direction towards the first node only.
    #[schemars(with = "Option<Box<LinkSpec>>")]
    pub(crate) backward: Option<Spanned<Box<LinkSpec>>>,
}

/// Values for all links; every combination is one network, and the first key varies slowest.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MatrixSpec {
    /// Values as in a link.
    #[serde(default)]
    #[schemars(with = "Vec<Text>")]
    pub(crate) loss: Vec<Spanned<Text>>,
    /// Values as in a link.
    #[serde(default)]
    #[schemars(with = "Vec<Text>")]
    pub(crate) delay: Vec<Spanned<Text>>,
    /// Values as in a link.
    #[serde(default)]
    #[schemars(with = "Vec<Text>")]
    pub(crate) jitter: Vec<Spanned<Text>>,
    /// Values as in a link.
    #[serde(default)]
    #[schemars(with = "Vec<Text>")]
    pub(crate) rate: Vec<Spanned<Text>>,
    /// Values as in a link.
    #[serde(default)]
    #[schemars(with = "Vec<Text>")]
    pub(crate) queue: Vec<Spanned<Text>>,
}

/// A protocol under test.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProtocolSpec {
    /// Its name. Built in: `tcp`, `udp`, `btp`, `brtp`, `brctp`, `transparent`, `quic`, `node`,
    /// `wireguard-go`.
    #[schemars(with = "Option<String>")]
    pub(crate) name: Option<Spanned<String>>,
    /// Where its programs run.
    #[serde(rename = "type")]
    pub(crate) kind: Option<ProtocolType>,
    /// Name of the program.
    pub(crate) bin: Option<String>,
    /// Arguments of the program; `%s` stands for the address of the server.
    #[serde(default)]
    pub(crate) args: OneOrMany<Text>,
    /// Configuration file of the program, passed after the arguments as `--config=FILE`.
    pub(crate) config_file: Option<String>,
    /// Congestion control of `tcp`, `quic` and TCP through `node` and `wireguard-go`; for other
    /// protocols a label for reports.
    pub(crate) version: Option<Text>,
    /// Port on the node of the client that tools connect to.
    pub(crate) port: Option<u16>,
    /// Protocol that a tunnel of client and server transports: `tcp` (default) or `udp`.
    pub(crate) carries: Option<PacketType>,
    /// Whether the tunnel transports data to the server only.
    #[serde(default)]
    pub(crate) one_way: bool,
    /// For protocols of this project: the role of hosts on a path of several links. Default in the
    /// simulator: `recode` for btp, brtp and brctp. On other backends hosts forward IP packets.
    pub(crate) relays: Option<Relays>,
    /// For the node: how tools reach the server. Default: `tun`.
    pub(crate) entry: Option<NodeEntry>,
    /// Client and server of a protocol that has two programs.
    #[serde(default)]
    pub(crate) protocols: Vec<ProtocolSpec>,
}

/// A file of protocols.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProtocolFile {
    pub(crate) protocols: Vec<ProtocolSpec>,
}

/// Where its programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProtocolType {
    /// Daemons on every node.
    Distributed,
    /// A client on the node of the client and a server on the node of the server.
    NoneDistributed,
}

/// How tools reach the server through the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NodeEntry {
    /// By its address in the tunnel.
    Tun,
    /// By a port of the client's host, whose TCP connections the node forwards.
    Forward,
}

/// The role of hosts on a path of several links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Relays {
    /// Relays that repair and recode on every hop.
    Recode,
    /// Relays that forward coded packets; only the ends repair.
    Forward,
    /// Hosts forward IP packets as routers do; the connection is end to end.
    None,
}

impl Relays {
    /// Its name in test files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Recode => "recode",
            Self::Forward => "forward",
            Self::None => "none",
        }
    }
}

/// TCP or UDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PacketType {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

/// Parameters of a tool. Keys that the tool does not use are errors.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolSpec {
    /// Node of the client; default: 0.
    #[schemars(with = "Option<u32>")]
    pub(crate) client_host: Option<Spanned<u32>>,
    /// Node of the server; default: the last one.
    #[schemars(with = "Option<u32>")]
    pub(crate) server_host: Option<Spanned<u32>>,
    /// Interval in seconds; default: 1.
    #[schemars(with = "Option<f64>")]
    pub(crate) interval: Option<Spanned<f64>>,
    /// Number of intervals; default: 10.
    #[schemars(with = "Option<u32>")]
    pub(crate) interval_num: Option<Spanned<u32>>,
    /// `iperf`, `bats_iperf`: number of parallel streams.
    #[schemars(with = "Option<u16>")]
    pub(crate) parallel: Option<Spanned<u16>>,
    /// `iperf`: TCP or UDP.
    pub(crate) packet_type: Option<PacketType>,
    /// `iperf`, `bats_iperf`: rate in Mbit/s; 0 for no limit.
    #[schemars(with = "Option<f64>")]
    pub(crate) bitrate: Option<Spanned<f64>>,
    /// Further arguments; for a command, all arguments. `%s` stands for the address of the server.
    #[schemars(with = "Option<OneOrMany<Text>>")]
    pub(crate) args: Option<Spanned<OneOrMany<Text>>>,
    /// `rtt`, `ping`: number of messages; 1 measures the first message of 15 connections.
    #[schemars(with = "Option<u32>")]
    pub(crate) packet_count: Option<Spanned<u32>>,
    /// `rtt`, `ping`: message size in bytes.
    #[schemars(with = "Option<u32>")]
    pub(crate) packet_size: Option<Spanned<u32>>,
    /// `rtt`, `ping`: whether the competing flows of the test run meanwhile; default: false.
    #[schemars(with = "Option<bool>")]
    pub(crate) under_load: Option<Spanned<bool>>,
    /// `scp`: file size in MB.
    #[schemars(with = "Option<u32>")]
    pub(crate) file_size: Option<Spanned<u32>>,
    /// For a command: the program on the node of the server during the measurement.
    pub(crate) server: Option<OneOrMany<Text>>,
}

/// A flow that competes with the flow of the tool.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FlowSpec {
    /// Name of a protocol: `tcp`, `tcp-bbr`, `brtp`, ...
    #[schemars(with = "String")]
    pub(crate) flow_type: Spanned<String>,
    /// Node of the sender.
    #[schemars(with = "u32")]
    pub(crate) client_host: Spanned<u32>,
    /// Node of the receiver.
    #[schemars(with = "u32")]
    pub(crate) server_host: Spanned<u32>,
    /// Start in seconds after the start of the tool; default: drawn from the seed.
    #[schemars(with = "Option<f64>")]
    pub(crate) delay: Option<Spanned<f64>>,
    /// Duration in seconds; default: drawn from the seed.
    #[schemars(with = "Option<f64>")]
    pub(crate) duration: Option<Spanned<f64>>,
}

/// A change of links while a tool runs.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventSpec {
    /// Time in seconds after the start of the tool.
    #[schemars(with = "f64")]
    pub(crate) at: Spanned<f64>,
    /// Number of the link, beginning with 1; default: all links.
    #[schemars(with = "Option<u32>")]
    pub(crate) link: Option<Spanned<u32>>,
    /// New settings of the link; other settings stay unchanged.
    pub(crate) set: LinkSpec,
}

/// Bounds of a figure, checked for every matching measurement.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AssertionSpec {
    /// Name of the figure: `throughput_mbps`, `steady_mbps`, `efficiency`, `rtt_p50_ms`,
    /// `loss_percent`, ...
    #[schemars(with = "String")]
    pub(crate) figure: Spanned<String>,
    /// Check only this protocol.
    #[schemars(with = "Option<String>")]
    pub(crate) protocol: Option<Spanned<String>>,
    /// Check only this tool.
    #[schemars(with = "Option<String>")]
    pub(crate) tool: Option<Spanned<String>>,
    /// Check only this network; 0 is the first.
    #[schemars(with = "Option<u32>")]
    pub(crate) topology: Option<Spanned<u32>>,
    /// Lower bound.
    pub(crate) at_least: Option<f64>,
    /// Upper bound.
    pub(crate) at_most: Option<f64>,
    /// The bounds are multiples of the figure of this protocol over the same network.
    #[schemars(with = "Option<String>")]
    pub(crate) relative_to: Option<Spanned<String>>,
}

/// Figures that others published.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishedSpec {
    /// Source of the figures.
    pub(crate) source: String,
    /// Label for reports.
    pub(crate) label: String,
    /// Our figure to compare with.
    #[schemars(with = "String")]
    pub(crate) figure: Spanned<String>,
    /// One value for the whole test.
    pub(crate) value: Option<f64>,
    /// Losses of the rows, in percent.
    #[serde(default)]
    pub(crate) loss: Vec<f64>,
    /// One-way delays of the columns, in ms.
    #[serde(default)]
    pub(crate) delay: Vec<f64>,
    /// The rows; `null` for missing values.
    #[serde(default)]
    #[schemars(with = "Vec<Vec<Option<f64>>>")]
    pub(crate) values: Option<Spanned<Vec<Vec<Option<f64>>>>>,
}
