//! A test file as it is written. The words are Oasis's where it has them; sources of the schema.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::values::{Many, NameOr, Ordered, Text};

/// Tests of protocols over emulated networks.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "batslab test file")]
pub(crate) struct TestFile {
    /// Oasis's description of its containers. Hosts are namespaces here, so it says nothing.
    #[serde(default)]
    #[schemars(with = "Option<serde_json::Value>")]
    pub(crate) containernet: Option<serde::de::IgnoredAny>,
    /// Real hosts for the backend `ssh`, by name of the testbed.
    #[serde(default)]
    pub(crate) testbeds: Ordered<Vec<TestbedHost>>,
    /// Protocols of this file, beside the predefined ones.
    #[serde(default)]
    pub(crate) protocols: Vec<ProtocolSpec>,
    /// Topologies of this file, to be named in `topology: { config_name: NAME }`.
    #[serde(default)]
    pub(crate) topologies: Vec<TopologySpec>,
    /// The tests, run in this order.
    #[serde(default)]
    pub(crate) tests: Ordered<TestSpec>,
}

/// A host of a testbed.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestbedHost {
    /// Who logs in.
    pub(crate) user: Option<String>,
    /// Address or name to log in to.
    #[schemars(with = "String")]
    pub(crate) ip: Spanned<String>,
    /// Address that the tests' traffic goes to; `ip` if not said.
    pub(crate) address: Option<String>,
    /// Port of the SSH server.
    pub(crate) port: Option<u16>,
    /// What `uname -m` has to say there.
    pub(crate) arch: Option<String>,
    /// File with the private key to log in with.
    pub(crate) authorized_key: Option<String>,
    /// Interface that has to be there.
    pub(crate) intf: Option<String>,
    /// Configuration of `ssh`, for what is not said here: known hosts, hosts to jump over.
    pub(crate) ssh_config: Option<String>,
}

/// One test.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestSpec {
    /// What it shows, for people.
    #[serde(default)]
    pub(crate) description: String,
    /// Whether it runs when no test is named.
    #[serde(default = "yes", rename = "if")]
    pub(crate) enabled: bool,
    /// The network, or a family of networks.
    #[schemars(with = "TopologyUse")]
    pub(crate) topology: Spanned<TopologyUse>,
    /// Names of protocols, or protocols.
    pub(crate) target_protocols: Vec<NameOr<ProtocolSpec>>,
    /// How packets find their way; static routes of the fewest hops if not said.
    #[schemars(with = "Option<RouteName>")]
    pub(crate) route: Option<Spanned<RouteName>>,
    /// What is done over each protocol: `iperf`, `bats_iperf`, `rtt`, `ping`, `scp`, `sshping`, or
    /// any command.
    pub(crate) test_tools: Ordered<ToolSpec>,
    /// Flows that run beside those of the tools with `iperf` in their name.
    #[serde(default)]
    pub(crate) competition_flows: Vec<FlowSpec>,
    /// One protocol after the other, or all at once, each in a network of its own.
    #[serde(default)]
    pub(crate) execution_mode: ExecutionMode,
    /// Whether a failure of this test leaves the whole a success.
    #[serde(default)]
    pub(crate) allow_failure: bool,
    /// Where it runs if the command line does not say.
    pub(crate) backend: Option<BackendName>,
    /// How often each measurement is made.
    #[schemars(with = "Option<u32>")]
    pub(crate) repetitions: Option<Spanned<u32>>,
    /// Decides losses, jitter and random choices. Each repetition counts it up.
    pub(crate) seed: Option<u64>,
    /// Changes of links while a tool runs.
    #[serde(default)]
    pub(crate) events: Vec<EventSpec>,
    /// What the figures have to be.
    #[serde(default)]
    pub(crate) assertions: Vec<AssertionSpec>,
    /// Figures of others, shown beside ours.
    #[serde(default)]
    pub(crate) published: Vec<PublishedSpec>,
    /// Whether the emulator is measured first, and the result is part of the report.
    #[serde(default = "yes")]
    pub(crate) verify: bool,
    /// Whether the first packets of the client are kept as a pcap-ng file.
    #[serde(default)]
    pub(crate) capture: bool,
    /// Seconds between samples of queues and sockets: 0.01 to 10, 0.1 if not said.
    #[schemars(with = "Option<f64>")]
    pub(crate) sample_interval: Option<Spanned<f64>>,
}

fn yes() -> bool {
    true
}

/// Where tests run.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, clap::ValueEnum, serde::Serialize,
)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BackendName {
    /// Virtual time: this project's protocols, datagrams and models of TCP, the same result each time.
    Sim,
    /// Network namespaces, joined by the emulator of this program.
    Netns,
    /// Network namespaces, joined by the kernel's netem.
    Netem,
    /// Real hosts.
    Ssh,
}

impl BackendName {
    /// Whether programs run on this machine.
    pub(crate) fn is_local(self) -> bool {
        matches!(self, Self::Netns | Self::Netem)
    }

    /// As it is written.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Netns => "netns",
            Self::Netem => "netem",
            Self::Ssh => "ssh",
        }
    }
}

/// One after the other, or at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ExecutionMode {
    /// One after the other.
    #[default]
    Serial,
    /// At once. The processors are shared: for figures of latency or low rates only.
    Parallel,
}

/// How packets find their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RouteName {
    /// Routes along the chain.
    StaticRoute,
    /// Routes of the fewest hops.
    StaticBfs,
    /// OLSR; comes with the node.
    #[serde(alias = "olsr")]
    OlsrRoute,
    /// Open/R; comes with the node.
    OpenrRoute,
}

/// A topology, or the name of one.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopologyUse {
    /// Name of a topology of `config_file`, of this file, or of the predefined ones.
    #[schemars(with = "Option<String>")]
    pub(crate) config_name: Option<Spanned<String>>,
    /// File with topologies; the predefined ones are in `predefined.topology.yaml`.
    #[schemars(with = "Option<String>")]
    pub(crate) config_file: Option<Spanned<String>>,
    /// Its name, for reports.
    pub(crate) name: Option<String>,
    /// A chain or anything.
    #[schemars(with = "Option<TopologyType>")]
    pub(crate) topology_type: Option<Spanned<TopologyType>>,
    /// How many nodes: 2 to 17.
    #[schemars(with = "Option<u32>")]
    pub(crate) nodes: Option<Spanned<u32>>,
    /// Oasis's attributes of the links of a chain.
    #[serde(default)]
    pub(crate) array_description: Vec<ArraySpec>,
    /// Oasis's file of matrices, or the matrices themselves.
    pub(crate) json_description: Option<NameOr<Matrices>>,
    /// What every link does, beside what `array_description` says.
    pub(crate) link: Option<LinkSpec>,
    /// What each link does; with `between` also where it is.
    #[serde(default)]
    pub(crate) links: Vec<LinkSpec>,
    /// Values of all links, of which every combination is a network.
    pub(crate) matrix: Option<MatrixSpec>,
}

/// A topology of a list of topologies.
pub(crate) type TopologySpec = TopologyUse;

/// A file of topologies.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopologyFile {
    pub(crate) topology: Vec<TopologySpec>,
}

/// A chain or anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TopologyType {
    /// A chain: node 0, node 1, ...
    Linear,
    /// Links between any nodes.
    Mesh,
}

/// One attribute of the links of a chain.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ArraySpec {
    /// Loss in per cent.
    pub(crate) link_loss: Option<ArrayValues>,
    /// One-way delay in ms.
    pub(crate) link_latency: Option<ArrayValues>,
    /// Jitter in ms.
    pub(crate) link_jitter: Option<ArrayValues>,
    /// Rate towards higher nodes in Mbit/s.
    pub(crate) link_bandwidth_forward: Option<ArrayValues>,
    /// Rate towards lower nodes in Mbit/s.
    pub(crate) link_bandwidth_backward: Option<ArrayValues>,
}

/// Values of an attribute.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ArrayValues {
    /// One value for all links, or one for each.
    #[schemars(with = "Vec<f64>")]
    pub(crate) init_value: Spanned<Vec<f64>>,
    /// What is added at each step.
    pub(crate) step_len: Option<f64>,
    /// How many steps beyond the first value.
    pub(crate) step_num: Option<u32>,
}

/// Matrices that describe links, one value for each direction.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Matrices {
    /// The matrices.
    pub(crate) data: Vec<MatrixData>,
}

/// One matrix: row i, column j for the direction from i to j.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MatrixData {
    /// 0 adjacency, 1 bandwidth (Mbit/s), 2 loss (%), 3 latency (ms), 4 jitter (ms).
    #[schemars(with = "u32")]
    pub(crate) matrix_type: Spanned<u32>,
    /// For people.
    #[serde(default)]
    #[allow(dead_code, reason = "Oasis's files have it; it says nothing to the program")]
    pub(crate) description: String,
    /// As many rows and columns as there are nodes.
    #[schemars(with = "Vec<Vec<f64>>")]
    pub(crate) matrix_data: Spanned<Vec<Vec<f64>>>,
}

/// What a link does. `X/Y` gives its two directions different values.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LinkSpec {
    /// The two nodes of the link, in a list of links of a mesh.
    #[schemars(with = "Option<Vec<u32>>")]
    pub(crate) between: Option<Spanned<Vec<u32>>>,
    /// Rate in Ethernet frames: `100M`, `1G`, `none`.
    #[schemars(with = "Option<Text>")]
    pub(crate) rate: Option<Spanned<Text>>,
    /// One-way delay: `10ms`; a bare number is in ms.
    #[schemars(with = "Option<Text>")]
    pub(crate) delay: Option<Spanned<Text>>,
    /// How far the delay varies up and down: `1ms`.
    #[schemars(with = "Option<Text>")]
    pub(crate) jitter: Option<Spanned<Text>>,
    /// Whether jitter may change the order of packets.
    pub(crate) reorder: Option<bool>,
    /// `5%`, or `ge:1%,9%` for bursts (probability to enter and to leave one).
    #[schemars(with = "Option<Text>")]
    pub(crate) loss: Option<Spanned<Text>>,
    /// Packets that arrive twice: `1%`.
    #[schemars(with = "Option<Text>")]
    pub(crate) duplicate: Option<Spanned<Text>>,
    /// Packets that arrive with a byte changed: `0.1%`.
    #[schemars(with = "Option<Text>")]
    pub(crate) corrupt: Option<Spanned<Text>>,
    /// Queue before the link: `1bdp`, `250k`, `4M` (bytes).
    #[schemars(with = "Option<Text>")]
    pub(crate) queue: Option<Spanned<Text>>,
    /// Nothing passes.
    pub(crate) down: Option<bool>,
}

/// Values of all links, of which every combination is a network; the first key varies slowest.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MatrixSpec {
    /// As in a link.
    #[serde(default)]
    #[schemars(with = "Vec<Text>")]
    pub(crate) loss: Vec<Spanned<Text>>,
    /// As in a link.
    #[serde(default)]
    #[schemars(with = "Vec<Text>")]
    pub(crate) delay: Vec<Spanned<Text>>,
    /// As in a link.
    #[serde(default)]
    #[schemars(with = "Vec<Text>")]
    pub(crate) jitter: Vec<Spanned<Text>>,
    /// As in a link.
    #[serde(default)]
    #[schemars(with = "Vec<Text>")]
    pub(crate) rate: Vec<Spanned<Text>>,
    /// As in a link.
    #[serde(default)]
    #[schemars(with = "Vec<Text>")]
    pub(crate) queue: Vec<Spanned<Text>>,
}

/// A protocol under test.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProtocolSpec {
    /// Its name. `tcp`, `udp`, `btp`, `brtp`, `brctp`, `transparent`, `quic` are built in.
    #[schemars(with = "Option<String>")]
    pub(crate) name: Option<Spanned<String>>,
    /// Daemons on all nodes, or a client and a server.
    #[serde(rename = "type")]
    pub(crate) kind: Option<ProtocolType>,
    /// The program.
    pub(crate) bin: Option<String>,
    /// Its arguments; `%s` stands for the server's address.
    #[serde(default)]
    pub(crate) args: Many<Text>,
    /// A file for the program; goes behind the arguments as `--config=FILE`.
    pub(crate) config_file: Option<String>,
    /// Congestion control of `tcp` and `quic`; of others a word for reports.
    pub(crate) version: Option<Text>,
    /// Port on the client's node that tools connect to.
    pub(crate) port: Option<u16>,
    /// What passes a client and a server: `tcp` if not said, or `udp`.
    pub(crate) carries: Option<PacketType>,
    /// What passes a client and a server goes to the server only.
    #[serde(default)]
    pub(crate) one_way: bool,
    /// Of this project's protocols: what hosts on a way of several links do. `recode` for btp,
    /// brtp and brctp if not said, in the simulator; elsewhere hosts forward packets.
    pub(crate) relays: Option<Relays>,
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

/// Daemons on all nodes, or a client and a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProtocolType {
    /// On every node.
    Distributed,
    /// A client on the client's node and a server on the server's.
    NoneDistributed,
}

/// What hosts on a way of several links do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Relays {
    /// They repair and recode, hop by hop.
    Recode,
    /// They carry coded packets on; the ends repair.
    Forward,
    /// They forward packets as routers do; the connection is from end to end.
    None,
}

impl Relays {
    /// As it is written.
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

/// What a tool shall do. Keys that a tool does not know are errors.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolSpec {
    /// Node of the client; 0 if not said.
    #[schemars(with = "Option<u32>")]
    pub(crate) client_host: Option<Spanned<u32>>,
    /// Node of the server; the last one if not said.
    #[schemars(with = "Option<u32>")]
    pub(crate) server_host: Option<Spanned<u32>>,
    /// Seconds of an interval: 1 if not said.
    #[schemars(with = "Option<f64>")]
    pub(crate) interval: Option<Spanned<f64>>,
    /// How many intervals: 10 if not said.
    #[schemars(with = "Option<u32>")]
    pub(crate) interval_num: Option<Spanned<u32>>,
    /// `iperf`, `bats_iperf`: streams.
    #[schemars(with = "Option<u16>")]
    pub(crate) parallel: Option<Spanned<u16>>,
    /// `iperf`: TCP or UDP.
    pub(crate) packet_type: Option<PacketType>,
    /// `iperf`, `bats_iperf`: Mbit/s, 0 for as much as goes.
    #[schemars(with = "Option<f64>")]
    pub(crate) bitrate: Option<Spanned<f64>>,
    /// Further arguments; of a command all of them. `%s` stands for the server's address.
    #[schemars(with = "Option<Many<Text>>")]
    pub(crate) args: Option<Spanned<Many<Text>>>,
    /// `rtt`, `ping`: messages; 1 measures the first of 15 connections.
    #[schemars(with = "Option<u32>")]
    pub(crate) packet_count: Option<Spanned<u32>>,
    /// `rtt`, `ping`: bytes of a message.
    #[schemars(with = "Option<u32>")]
    pub(crate) packet_size: Option<Spanned<u32>>,
    /// `scp`: MB of the file.
    #[schemars(with = "Option<u32>")]
    pub(crate) file_size: Option<Spanned<u32>>,
    /// A command: what runs on the server's node meanwhile.
    pub(crate) server: Option<Many<Text>>,
}

/// A flow beside the tool's.
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
    /// Seconds from the start of the tool; drawn from the seed if not said.
    #[schemars(with = "Option<f64>")]
    pub(crate) delay: Option<Spanned<f64>>,
    /// Seconds; drawn from the seed if not said.
    #[schemars(with = "Option<f64>")]
    pub(crate) duration: Option<Spanned<f64>>,
}

/// A change of links while a tool runs.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventSpec {
    /// Seconds from the start of the tool.
    #[schemars(with = "f64")]
    pub(crate) at: Spanned<f64>,
    /// The link, 1 for the first; all if not said.
    #[schemars(with = "Option<u32>")]
    pub(crate) link: Option<Spanned<u32>>,
    /// What the link does from then on; what is not said stays.
    pub(crate) set: LinkSpec,
}

/// What a figure has to be, of every measurement that it fits.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AssertionSpec {
    /// The figure: `throughput_mbps`, `steady_mbps`, `efficiency`, `rtt_p50_ms`, `loss_percent`, ...
    #[schemars(with = "String")]
    pub(crate) figure: Spanned<String>,
    /// Only of this protocol.
    #[schemars(with = "Option<String>")]
    pub(crate) protocol: Option<Spanned<String>>,
    /// Only of this tool.
    #[schemars(with = "Option<String>")]
    pub(crate) tool: Option<Spanned<String>>,
    /// Only of this network, 0 for the first.
    #[schemars(with = "Option<u32>")]
    pub(crate) topology: Option<Spanned<u32>>,
    /// Not less than this.
    pub(crate) at_least: Option<f64>,
    /// Not more than this.
    pub(crate) at_most: Option<f64>,
    /// The bounds count in multiples of this protocol's figure over the same network.
    #[schemars(with = "Option<String>")]
    pub(crate) relative_to: Option<Spanned<String>>,
}

/// Somebody else's figures.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishedSpec {
    /// Who published them, and where.
    pub(crate) source: String,
    /// What was measured, as it is shown.
    pub(crate) label: String,
    /// The figure of ours that they stand beside.
    #[schemars(with = "String")]
    pub(crate) figure: Spanned<String>,
    /// One figure for the whole test.
    pub(crate) value: Option<f64>,
    /// Losses of the rows, in per cent.
    #[serde(default)]
    pub(crate) loss: Vec<f64>,
    /// One-way delays of the columns, in ms.
    #[serde(default)]
    pub(crate) delay: Vec<f64>,
    /// The rows; `null` where there is no figure.
    #[serde(default)]
    #[schemars(with = "Vec<Vec<Option<f64>>>")]
    pub(crate) values: Option<Spanned<Vec<Vec<Option<f64>>>>>,
}
