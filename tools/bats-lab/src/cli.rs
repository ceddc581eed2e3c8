//! The command line.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::config::model::BackendName;
use crate::protocol::echo::EchoTransport;
use crate::settings::{Changes, Loss, Queue};
use crate::units::{self, PerDirection};

/// Emulated lossy, long-delay links between network namespaces: measure and compare protocols
#[derive(Debug, Parser)]
#[command(name = "batslab", version, about, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the tests of a file or of a shipped case, and write a result directory
    Run(RunOptions),
    /// Check a test file and print what it would run
    Check(CheckOptions),
    /// Run the throughput tests of a file as cells of the arena of bats-sim, in virtual time
    Arena(ArenaOptions),
    /// List the shipped cases, or print one
    Cases(CasesOptions),
    /// Compare two runs
    Compare(CompareOptions),
    /// Plot several runs together: figures, curves over time, distributions
    Plot(PlotOptions),
    /// Serve a web page that shows past runs, starts cases and follows them
    Serve(ServeOptions),
    /// Compare BRTP with TCP over a lossy, long-delay link, with a report
    Demo(DemoOptions),
    /// Cross-validate: run BRTP over the same links in the lab and in the simulator, and compare
    #[command(alias = "witness")]
    CrossValidate(CrossValidateOptions),
    /// Build a lab: hosts `a` and `b`, relays `r1`, `r2`, ... between them
    Up(UpOptions),
    /// Run a command on a host of a lab
    Exec(ExecOptions),
    /// Show all labs, or the counters of one
    Status(StatusOptions),
    /// Change a link of a running lab
    Set(SetOptions),
    /// Stop a lab and remove it
    Down(DownOptions),
    /// Measure rate, delay and loss of a lab and compare them with its configuration
    Verify(VerifyOptions),
    /// Report what this machine supports
    Doctor(DoctorOptions),
    /// Write manual pages and shell completions to a directory, for packaging
    #[command(hide = true)]
    Generate(bats_sim::generate::Generate),
    #[command(name = "__emulate", hide = true)]
    Emulate(EmulateOptions),
    #[command(name = "__tcp-sink", hide = true)]
    TcpSink(TcpSinkOptions),
    #[command(name = "__tcp-source", hide = true)]
    TcpSource(TcpSourceOptions),
    #[command(name = "__udp-sink", hide = true)]
    UdpSink(TcpSinkOptions),
    #[command(name = "__udp-source", hide = true)]
    UdpSource(UdpSourceOptions),
    #[command(name = "__quic-sink", hide = true)]
    QuicSink(TcpSinkOptions),
    #[command(name = "__quic-source", hide = true)]
    QuicSource(TcpSourceOptions),
    #[command(name = "__echo", hide = true)]
    Echo(EchoOptions),
    #[command(name = "__rtt", hide = true)]
    Rtt(RttOptions),
}

#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// A test file, FILE:TEST, or case:NAME
    pub(crate) file: String,
    /// Backend; default: the one that the test names, else netns
    #[arg(long)]
    pub(crate) backend: Option<BackendName>,
    /// Run only this test
    #[arg(long, value_name = "TEST")]
    pub(crate) only: Option<String>,
    /// Result directory; default: a new one below `results`
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print what would be run
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Smoke run: a few seconds per measurement, and only the corners of matrices
    #[arg(long)]
    pub(crate) quick: bool,
    /// Testbed of the file (backend ssh)
    #[arg(long, value_name = "NAME")]
    pub(crate) testbed: Option<String>,
    /// Skip the check of the emulator itself
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Print no progress
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ArenaOptions {
    /// A test file, FILE:TEST, or case:NAME
    pub(crate) file: String,
    /// Run only this test
    #[arg(long, value_name = "TEST")]
    pub(crate) only: Option<String>,
    /// Number of seeds; default: the repetitions of the test
    #[arg(long)]
    pub(crate) seeds: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckOptions {
    /// A test file, FILE:TEST, or case:NAME
    #[arg(required_unless_present = "schema")]
    pub(crate) file: Option<String>,
    /// Print the JSON schema of test files, or of results
    #[arg(long, value_name = "WHAT", num_args = 0..=1, default_missing_value = "test-file")]
    pub(crate) schema: Option<Schema>,
}

/// A schema to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Schema {
    /// Schema of test files
    TestFile,
    /// Schema of result.json
    Result,
}

#[derive(Debug, Args)]
pub(crate) struct CasesOptions {
    /// Print the file of this case
    #[arg(long, value_name = "NAME")]
    pub(crate) show: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CompareOptions {
    /// Result directory or result.json of the first run
    pub(crate) a: PathBuf,
    /// Result directory or result.json of the second run
    pub(crate) b: PathBuf,
    /// Two figures are the same if the 95 % confidence interval of their difference is within this
    /// much of A
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = units::percentage)]
    pub(crate) margin: f64,
    /// Also write the comparison as an HTML page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PlotOptions {
    /// Result directories or result.json of the runs
    #[arg(num_args = 2.., required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// New or empty directory for comparison.html and the plots as SVG and PNG
    #[arg(short, long)]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// Address and port to listen on
    #[arg(long, default_value = "127.0.0.1:8042")]
    pub(crate) listen: std::net::SocketAddr,
    /// Directory with the runs
    #[arg(long, default_value = "results")]
    pub(crate) results: PathBuf,
    /// Token that clients must present, 16 characters or more. Other users of this machine can see
    /// command lines: set BATSLAB_TOKEN instead, or let the server make one and print it
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct UdpSourceOptions {
    /// Address of the sink
    #[arg(long)]
    pub(crate) to: std::net::SocketAddr,
    /// Seconds to send
    #[arg(long)]
    pub(crate) seconds: u64,
    /// Payload rate in Mbit/s
    #[arg(long)]
    pub(crate) mbps: f64,
}

#[derive(Debug, Args)]
pub(crate) struct EchoOptions {
    /// Transport of the messages
    #[arg(long)]
    pub(crate) transport: EchoTransport,
    /// Port to listen on
    #[arg(long)]
    pub(crate) port: u16,
}

#[derive(Debug, Args)]
pub(crate) struct RttOptions {
    /// Transport of the messages
    #[arg(long)]
    pub(crate) transport: EchoTransport,
    /// Address of the echo server
    #[arg(long)]
    pub(crate) to: std::net::SocketAddr,
    /// Number of messages
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) count: u64,
    /// Size of a message in bytes
    #[arg(long)]
    pub(crate) size: usize,
    /// Seconds between two messages
    #[arg(long, value_parser = interval)]
    pub(crate) interval: Duration,
    /// Measure only the first message, on each of this many connections
    #[arg(long)]
    pub(crate) first: Option<u32>,
    /// Congestion control algorithm
    #[arg(long)]
    pub(crate) congestion: Option<String>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Properties of a link. `X/Y` sets the two directions separately.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct LinkOptions {
    /// Rate, counted in Ethernet frames without frame check sequence: 1000M, 512k, none
    #[arg(long, value_name = "RATE", value_parser = |text: &str| PerDirection::parse(text, units::rate))]
    rate: Option<PerDirection<u64>>,
    /// One-way delay: 50ms, 200us
    #[arg(long, value_name = "TIME", value_parser = |text: &str| PerDirection::parse(text, units::time))]
    delay: Option<PerDirection<Duration>>,
    /// Random variation of the delay in both directions around it: 5ms
    #[arg(long, value_name = "TIME", value_parser = |text: &str| PerDirection::parse(text, units::time))]
    jitter: Option<PerDirection<Duration>>,
    /// Allow jitter to reorder frames
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    reorder: Option<bool>,
    /// Frame loss: 10%; ge:1%,9% for Gilbert-Elliott bursts (probability to enter and to leave, then
    /// the loss in the bad and in the good state); 4state:P13%,P31%,P32%,P23%,P14% as in netem
    #[arg(long, value_name = "PERCENT", value_parser = |text: &str| PerDirection::parse(text, Loss::parse))]
    loss: Option<PerDirection<Loss>>,
    /// Duplicated frames: 1%
    #[arg(long, value_name = "PERCENT", value_parser = |text: &str| PerDirection::parse(text, units::percentage))]
    duplicate: Option<PerDirection<f64>>,
    /// Frames with one byte corrupted: 0.1%
    #[arg(long, value_name = "PERCENT", value_parser = |text: &str| PerDirection::parse(text, units::percentage))]
    corrupt: Option<PerDirection<f64>>,
    /// Drop all frames
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    black_hole: Option<bool>,
    /// Size of the queue in front of the link: 1bdp (rate x RTT), 250k, 4M (bytes)
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| PerDirection::parse(text, Queue::parse))]
    queue: Option<PerDirection<Queue>>,
}

impl LinkOptions {
    /// The options as changes to a link.
    pub(crate) fn changes(&self) -> Changes {
        let both = |value: Option<bool>| {
            value.map(|value| PerDirection { forward: value, backward: value })
        };
        let mut changes = Changes::default();
        changes.set(self.rate, |one| &mut one.rate);
        changes.set(self.delay, |one| &mut one.delay);
        changes.set(self.jitter, |one| &mut one.jitter);
        changes.set(both(self.reorder), |one| &mut one.reorder);
        changes.set(self.loss, |one| &mut one.loss);
        changes.set(self.duplicate, |one| &mut one.duplicate);
        changes.set(self.corrupt, |one| &mut one.corrupt);
        changes.set(both(self.black_hole), |one| &mut one.black_hole);
        changes.set(self.queue, |one| &mut one.queue);
        changes
    }
}

fn lab_name(text: &str) -> Result<String, String> {
    let is_valid = (1..=40).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        && !text.starts_with('-');
    if is_valid {
        Ok(text.to_owned())
    } else {
        Err("a lab name has 1 to 40 letters, digits, `-` or `_`, and does not begin with `-`"
            .to_owned())
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct UpOptions {
    /// Name of the lab; its namespaces are NAME-a, NAME-b, ...
    #[arg(long, default_value = "lab", value_parser = lab_name)]
    pub(crate) name: String,
    /// Number of links in the chain, all with the same properties
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) hops: u32,
    /// MTU of the interfaces of the hosts, in bytes
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=9000))]
    pub(crate) mtu: u32,
    /// Seed of losses and jitter; default: random
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) link: LinkOptions,
    /// Print a description of the lab as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExecOptions {
    /// Name of the lab
    #[arg(long, default_value = "lab", value_parser = lab_name)]
    pub(crate) name: String,
    /// Host: a, b, r1, r2, ...
    pub(crate) host: String,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusOptions {
    /// Name of the lab; default: all labs
    #[arg(long, value_parser = lab_name)]
    pub(crate) name: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SetOptions {
    /// Name of the lab
    #[arg(long, default_value = "lab", value_parser = lab_name)]
    pub(crate) name: String,
    /// Number of the link counted from `a`, beginning with 1; default: all links
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) hop: Option<u32>,
    #[command(flatten)]
    pub(crate) link: LinkOptions,
}

#[derive(Debug, Args)]
pub(crate) struct DownOptions {
    /// Name of the lab
    #[arg(long, default_value = "lab", value_parser = lab_name)]
    pub(crate) name: String,
    /// Stop and remove all labs
    #[arg(long, conflicts_with = "name")]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyOptions {
    /// Name of a running lab; default: build a temporary lab from the options
    #[arg(long, value_parser = lab_name)]
    pub(crate) name: Option<String>,
    /// Packets to send towards `b` to measure loss
    #[arg(long, default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub(crate) packets: u64,
    /// Time limit of one measurement, in seconds
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    /// Number of links of the temporary lab
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) hops: u32,
    #[command(flatten)]
    pub(crate) link: LinkOptions,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DemoOptions {
    /// Duration of the run of each protocol, in seconds
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(2..=300))]
    pub(crate) seconds: u64,
    /// Number of runs of each protocol, in turn; the figures are medians with their spread
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// Protocols to compare, in this order
    #[arg(long, value_delimiter = ',', default_value = "brtp,bbr,cubic")]
    pub(crate) protocols: Vec<Protocol>,
    /// Size of the file that is sent first, in MiB; 0 to send none
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(0..=16_384))]
    pub(crate) file_mib: u64,
    /// Path of the report
    #[arg(long, default_value = "report.html")]
    pub(crate) out: PathBuf,
    /// Also write the throughput plot to this file (SVG)
    #[arg(long, value_name = "FILE")]
    pub(crate) picture: Option<PathBuf>,
    /// Use the simulator even if a lab can be built
    #[arg(long)]
    pub(crate) simulate: bool,
    #[command(flatten)]
    pub(crate) link: LinkOptions,
    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CrossValidateOptions {
    /// Loss rates, applied in both directions
    #[arg(long, value_delimiter = ',', default_value = "0,2,5,10", value_parser = units::fraction)]
    pub(crate) loss: Vec<f64>,
    /// One-way delays
    #[arg(long, value_delimiter = ',', default_value = "10ms,50ms,100ms", value_parser = units::time)]
    pub(crate) delay: Vec<Duration>,
    /// Duration of each run, in seconds
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(2..=300))]
    pub(crate) seconds: u64,
}

/// A protocol that the demo can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Protocol {
    /// BRTP: coded, encrypted, reliable; the protocol of this project
    Brtp,
    /// TCP with BBR
    Bbr,
    /// TCP with CUBIC
    Cubic,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorOptions {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct EmulateOptions {
    /// Name of the lab
    pub(crate) name: String,
    /// Process ID of the owner; the lab ends with it
    #[arg(long)]
    pub(crate) parent: Option<u32>,
    /// State directory of the labs
    #[arg(long)]
    pub(crate) home: PathBuf,
    /// Whether the lab runs in a user namespace
    #[arg(long)]
    pub(crate) unprivileged: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TcpSinkOptions {
    /// Port to listen on
    #[arg(long)]
    pub(crate) port: u16,
    /// Reporting interval in seconds
    #[arg(long, default_value = "1", value_parser = report_interval)]
    pub(crate) interval: std::time::Duration,
}

fn report_interval(text: &str) -> Result<std::time::Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.001..=86_400.0).contains(seconds));
    seconds
        .map(std::time::Duration::from_secs_f64)
        .ok_or_else(|| format!("`{text}` is not 0.001 to 86400 seconds"))
}

#[derive(Debug, Args)]
pub(crate) struct TcpSourceOptions {
    /// Address of the sink
    #[arg(long)]
    pub(crate) to: std::net::SocketAddr,
    /// Seconds to send
    #[arg(long)]
    pub(crate) seconds: u64,
    /// Congestion control algorithm
    #[arg(long)]
    pub(crate) congestion: String,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn clap_accepts_the_command_definitions() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_a_manual_page_and_a_completion() {
        let program = Cli::command();
        assert!(program.get_subcommands().count() > 5);
        assert_eq!(bats_sim::generate::missing(&program).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn lab_names_with_path_separators_or_leading_dash_are_rejected() {
        assert!(lab_name("lab-1").is_ok());
        for name in ["", "../x", "a/b", "-x", "a b", &"x".repeat(41)] {
            assert!(lab_name(name).is_err(), "{name}");
        }
    }
}
