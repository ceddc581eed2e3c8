//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::config::model::BackendName;
use crate::protocol::echo::Carrier;
use crate::settings::{Changes, Loss, Queue};
use crate::units::{self, Both};

/// Lossy, long links between network namespaces, measured and compared.
#[derive(Debug, Parser)]
#[command(name = "batslab", version, about, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the tests of a file or a shipped case, and write a folder of results
    Run(RunOptions),
    /// Say whether a test file is right, and what it would run
    Check(CheckOptions),
    /// List the shipped cases, or print one
    Cases(CasesOptions),
    /// Show two runs side by side
    Compare(CompareOptions),
    /// Show past runs, start cases and follow them in a web page
    Serve(ServeOptions),
    /// Show BRTP beside TCP over a lossy, long link, with a report
    Demo(DemoOptions),
    /// Run BRTP over the same links in the lab and in the simulator, and show how they agree
    Witness(WitnessOptions),
    /// Build a lab: hosts `a` and `b`, relays `r1`, `r2`, ... between them
    Up(UpOptions),
    /// Run a command on a host of a lab
    Exec(ExecOptions),
    /// Show the labs, or what one does
    Status(StatusOptions),
    /// Change a link while it runs
    Set(SetOptions),
    /// Take a lab down
    Down(DownOptions),
    /// Measure rate, delay and loss of a lab beside what was asked for
    Verify(VerifyOptions),
    /// Say what this machine can do
    Doctor(DoctorOptions),
    /// Write the manual pages and the completions to a directory, for packages
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
    /// Where it runs; without it what the test says, or netns
    #[arg(long)]
    pub(crate) backend: Option<BackendName>,
    /// Only the test of this name
    #[arg(long, value_name = "TEST")]
    pub(crate) only: Option<String>,
    /// Folder of the results; without it a new one below `results`
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Say what would be run
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// A few seconds of each measurement and the corners of matrices: does it work, and roughly how
    #[arg(long)]
    pub(crate) quick: bool,
    /// Testbed of the file, for the backend ssh
    #[arg(long, value_name = "NAME")]
    pub(crate) testbed: Option<String>,
    /// Leave out the check of the emulator itself
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Print nothing on the way
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
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

/// Which schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Schema {
    /// Of test files
    TestFile,
    /// Of result.json
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
    /// A run's folder or result.json
    pub(crate) a: PathBuf,
    /// Another run's
    pub(crate) b: PathBuf,
    /// Write the comparison as a page, too
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// Address and port to listen on; other than loopback needs --token
    #[arg(long, default_value = "127.0.0.1:8042")]
    pub(crate) listen: std::net::SocketAddr,
    /// Folder of the runs
    #[arg(long, default_value = "results")]
    pub(crate) results: PathBuf,
    /// What a client has to know, 16 letters or more; also from the environment: BATSLAB_TOKEN
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
    /// Rate of payload
    #[arg(long)]
    pub(crate) mbps: f64,
}

#[derive(Debug, Args)]
pub(crate) struct EchoOptions {
    /// What carries the messages
    #[arg(long)]
    pub(crate) carrier: Carrier,
    /// Port to listen on
    #[arg(long)]
    pub(crate) port: u16,
}

#[derive(Debug, Args)]
pub(crate) struct RttOptions {
    /// What carries the messages
    #[arg(long)]
    pub(crate) carrier: Carrier,
    /// Address of the echo
    #[arg(long)]
    pub(crate) to: std::net::SocketAddr,
    /// Messages
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) count: u64,
    /// Bytes of a message
    #[arg(long)]
    pub(crate) size: usize,
    /// Seconds between them
    #[arg(long, value_parser = interval)]
    pub(crate) interval: Duration,
    /// Measure the first message of so many connections
    #[arg(long)]
    pub(crate) first: Option<u32>,
    /// Congestion control
    #[arg(long)]
    pub(crate) congestion: Option<String>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// What a link does. `X/Y` gives the two directions different values.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct LinkOptions {
    /// Rate in Ethernet frames without check sequence: 1000M, 512k, none
    #[arg(long, value_name = "RATE", value_parser = |text: &str| Both::parse(text, units::rate))]
    rate: Option<Both<u64>>,
    /// One-way delay: 50ms, 200us
    #[arg(long, value_name = "TIME", value_parser = |text: &str| Both::parse(text, units::time))]
    delay: Option<Both<Duration>>,
    /// How far the delay varies up and down at random: 5ms
    #[arg(long, value_name = "TIME", value_parser = |text: &str| Both::parse(text, units::time))]
    jitter: Option<Both<Duration>>,
    /// Let jitter change the order of frames
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    reorder: Option<bool>,
    /// Frames lost: 10%, or ge:1%,9% for bursts (probability to enter and to leave one)
    #[arg(long, value_name = "SHARE", value_parser = |text: &str| Both::parse(text, Loss::parse))]
    loss: Option<Both<Loss>>,
    /// Frames that arrive twice: 1%
    #[arg(long, value_name = "SHARE", value_parser = |text: &str| Both::parse(text, units::share))]
    duplicate: Option<Both<f64>>,
    /// Frames that arrive with a byte changed: 0.1%
    #[arg(long, value_name = "SHARE", value_parser = |text: &str| Both::parse(text, units::share))]
    corrupt: Option<Both<f64>>,
    /// Let nothing pass
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    black_hole: Option<bool>,
    /// Queue before the link: 1bdp (rate x round trip), 250k, 4M (bytes)
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| Both::parse(text, Queue::parse))]
    queue: Option<Both<Queue>>,
}

impl LinkOptions {
    /// The changes that were asked for.
    pub(crate) fn changes(&self) -> Changes {
        Changes {
            rate: self.rate,
            delay: self.delay,
            jitter: self.jitter,
            reorder: self.reorder,
            loss: self.loss,
            duplicate: self.duplicate,
            corrupt: self.corrupt,
            black_hole: self.black_hole,
            queue: self.queue,
        }
    }
}

fn lab_name(text: &str) -> Result<String, String> {
    let fits = (1..=40).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        && !text.starts_with('-');
    if fits {
        Ok(text.to_owned())
    } else {
        Err("a lab's name has 1 to 40 letters, digits, `-` or `_`".to_owned())
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct UpOptions {
    /// Name of the lab; its namespaces are NAME-a, NAME-b, ...
    #[arg(long, default_value = "lab", value_parser = lab_name)]
    pub(crate) name: String,
    /// Links in a row, each with the same settings
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) hops: u32,
    /// Largest IP packet of the hosts' interfaces
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=9000))]
    pub(crate) mtu: u32,
    /// Seed of losses and jitter; random if not said
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) link: LinkOptions,
    /// Print what was built as JSON
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
    /// Name of the lab; all labs if not said
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
    /// Number of the link from `a`, 1 for the first; all if not said
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
    /// Take all labs down
    #[arg(long, conflicts_with = "name")]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyOptions {
    /// Lab that is up; without it a lab of one's own is built from the options
    #[arg(long, value_parser = lab_name)]
    pub(crate) name: Option<String>,
    /// Packets towards `b` to measure loss over
    #[arg(long, default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub(crate) packets: u64,
    /// Longest time of one measurement, in seconds
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    /// Links in a row of a lab of one's own
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
    /// Seconds of each protocol's run
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(2..=300))]
    pub(crate) seconds: u64,
    /// Protocols to compare, in this order
    #[arg(long, value_delimiter = ',', default_value = "brtp,bbr,cubic")]
    pub(crate) protocols: Vec<Protocol>,
    /// Size of the file that is sent first, in MiB; 0 for none
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(0..=16_384))]
    pub(crate) file_mib: u64,
    /// Where the report goes
    #[arg(long, default_value = "report.html")]
    pub(crate) out: PathBuf,
    /// Write the picture of the report to this file, too (SVG)
    #[arg(long, value_name = "FILE")]
    pub(crate) picture: Option<PathBuf>,
    /// Run in the simulator even where a lab can be built
    #[arg(long)]
    pub(crate) simulate: bool,
    #[command(flatten)]
    pub(crate) link: LinkOptions,
    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct WitnessOptions {
    /// Losses in both directions
    #[arg(long, value_delimiter = ',', default_value = "0,2,5,10", value_parser = units::share)]
    pub(crate) loss: Vec<f64>,
    /// One-way delays
    #[arg(long, value_delimiter = ',', default_value = "10ms,50ms,100ms", value_parser = units::time)]
    pub(crate) delay: Vec<Duration>,
    /// Seconds of each run
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(2..=300))]
    pub(crate) seconds: u64,
}

/// What the demo compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Protocol {
    /// Coded, encrypted, reliable: this project's
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
    /// Process whose end ends the lab too
    #[arg(long)]
    pub(crate) parent: Option<u32>,
    /// Directory in which labs are remembered
    #[arg(long)]
    pub(crate) home: PathBuf,
    /// Whether the lab lives in a user namespace
    #[arg(long)]
    pub(crate) unprivileged: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TcpSinkOptions {
    /// Port to listen on
    #[arg(long)]
    pub(crate) port: u16,
    /// Seconds of an interval of the report
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
    /// Congestion control
    #[arg(long)]
    pub(crate) congestion: String,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_a_page_and_stands_in_the_completions() {
        let program = Cli::command();
        assert!(program.get_subcommands().count() > 5);
        assert_eq!(bats_sim::generate::missing(&program).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn names_that_could_leave_their_directory_are_refused() {
        assert!(lab_name("lab-1").is_ok());
        for name in ["", "../x", "a/b", "-x", "a b", &"x".repeat(41)] {
            assert!(lab_name(name).is_err(), "{name}");
        }
    }
}
