//! Command-line options.

mod address_family;
mod authentication;
mod check;
mod connections;
mod credentials;
mod dscp;
mod emulation;
mod headings;
mod incoming_files;
mod interface;
mod iperf3;
mod mode;
mod outgoing_files;
mod output;
mod sender;
mod service;
mod socket;
mod test;
mod timeouts;

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, ValueEnum};

use address_family::AddressFamilyOptions;
use authentication::AuthenticationOptions;
pub(crate) use check::{Role, parse};
use credentials::CredentialOptions;
pub(crate) use emulation::Emulation;
pub(crate) use incoming_files::Existing;
use iperf3::Iperf3Options;
pub(crate) use outgoing_files::Compression;
use outgoing_files::OutgoingFileOptions;
use output::OutputOptions;
use sender::SenderOptions;
use service::ServiceOptions;
use socket::SocketOptions;
use test::TestOptions;
use timeouts::TimeoutOptions;

use crate::transport_mode::TransportMode;
use crate::units::{Format, parse_interval};

/// Measures throughput, latency, loss and jitter of OpenBATS connections, and transfers files over
/// them.
///
/// Start a server with `bats_iperf -s`, then a client with `bats_iperf -c HOST`. Client and server
/// options have their own headings; options under "General" apply to both.
///
/// Exit codes: 0 success, 1 the test or a transfer failed, 2 invalid command line.
#[derive(Clone, Debug, Parser)]
#[command(name = "bats_iperf", version, max_term_width = 100, next_help_heading = "General")]
#[command(disable_version_flag = true)]
pub(crate) struct Options {
    /// Run in server mode.
    #[arg(short, long, conflicts_with = "client")]
    pub(crate) server: bool,

    /// Run in client mode, connecting to this host name or address.
    #[arg(short, long, value_name = "HOST")]
    pub(crate) client: Option<String>,

    /// Server port to listen on or connect to, 2 to 65535. Data uses this UDP port and, for mode 10
    /// at a server, this TCP port; signalling uses the UDP port below it. A host that also runs an
    /// iperf3 server, which uses TCP 5201, needs another port or --only-mode here.
    #[arg(short, long, default_value_t = 5201, value_parser = clap::value_parser!(u16).range(2..))]
    pub(crate) port: u16,

    /// Transport mode by number or name: 0 btp, 1 brtp, 2 brctp, 3 transparent, 10 tcp, 11 udp, 12
    /// quic. Mode 11 sends plain, unencrypted datagrams, at 1 Mbit/s unless -b is given. File
    /// transfers use brtp by default and work in modes brtp, brctp, tcp and quic. A server uses the
    /// mode of each client and ignores this option; see --only-mode.
    #[arg(short, long, default_value = "btp", value_parser = mode::parse)]
    pub(crate) mode: TransportMode,

    /// Same as -m udp.
    #[arg(short, long, conflicts_with = "mode")]
    pub(crate) udp: bool,

    /// Seconds between periodic reports, or between progress lines with -f; 0 prints only the final
    /// report. A server without this option uses the interval of the client.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub(crate) interval: Duration,

    #[command(flatten)]
    pub(crate) socket: SocketOptions,

    /// Set CPU affinity: run on this CPU only, counted from 0.
    #[arg(short = 'A', long, value_name = "CPU", value_parser = clap::value_parser!(u16).range(..1_024))]
    pub(crate) affinity: Option<u16>,

    /// Format of all rates and sizes in the report: k, m, g, t for bits, K, M, G, T for bytes. By
    /// default each value gets a suitable unit.
    #[arg(long, value_name = "UNIT", value_parser = crate::units::parse_format)]
    pub(crate) format: Option<Format>,

    #[command(flatten)]
    pub(crate) iperf3: Iperf3Options,

    #[command(flatten)]
    pub(crate) family: AddressFamilyOptions,

    #[command(flatten)]
    pub(crate) output: OutputOptions,

    #[command(flatten)]
    pub(crate) timeouts: TimeoutOptions,

    /// Write a PID file; it is removed when the process ends.
    #[arg(long, value_name = "FILE")]
    pub(crate) pidfile: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) sender: SenderOptions,

    /// Print the manual page (roff) or the completions of a shell, and exit.
    #[arg(long, value_enum, value_name = "WHAT", exclusive = true)]
    pub(crate) generate: Option<Generated>,

    /// Show version information.
    #[arg(short = 'v', long, action = ArgAction::Version)]
    pub(crate) version: Option<bool>,

    #[command(flatten)]
    pub(crate) credentials: CredentialOptions,

    #[command(flatten)]
    pub(crate) test: TestOptions,

    #[command(flatten)]
    pub(crate) authentication: AuthenticationOptions,

    #[command(flatten)]
    pub(crate) outgoing: OutgoingFileOptions,

    #[command(flatten)]
    pub(crate) service: ServiceOptions,

    /// Whether the interval was given on the command line.
    #[arg(skip)]
    pub(crate) has_interval: bool,

    /// Notes about options that have no effect.
    #[arg(skip)]
    pub(crate) notes: Vec<String>,
}

/// What `--generate` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Generated {
    /// The manual page.
    Man,
    /// Completions of bash.
    Bash,
    /// Completions of elvish.
    Elvish,
    /// Completions of fish.
    Fish,
    /// Completions of PowerShell.
    Powershell,
    /// Completions of zsh.
    Zsh,
}
