//! The command line.

mod check;
mod dscp;
mod emulation;
mod interface;
mod mode;

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, ValueEnum};
use openbats::Fingerprint;

pub(crate) use check::{Role, parse};
pub(crate) use emulation::Emulation;
pub(crate) use mode::{Congestion, TransportMode};

use crate::control::Carrier;
use crate::units::{
    Format, parse_bytes, parse_duration, parse_interval, parse_length, parse_long_timeout,
    parse_omit, parse_rate, parse_timeout,
};

/// Measures throughput, latency, loss and jitter of OpenBATS connections, and sends files over
/// them.
///
/// Start a server with `bats_iperf -s`, then a client with `bats_iperf -c HOST`. Options of the
/// server and of the client stand under headings of their own; those under "General" are for both.
///
/// Exit codes: 0 all went well, 1 the test or a transfer failed, 2 the command line is wrong.
#[derive(Clone, Debug, Parser)]
#[command(name = "bats_iperf", version, max_term_width = 100, next_help_heading = "General")]
#[command(disable_version_flag = true)]
pub(crate) struct Options {
    /// Run as a server.
    #[arg(short, long, conflicts_with = "client")]
    pub(crate) server: bool,

    /// Run as a client of the server at this address or name.
    #[arg(short, long, value_name = "HOST")]
    pub(crate) client: Option<String>,

    /// Port of the data, 2 to 65535: UDP, and at a server TCP, too, for mode 10. Signalling goes over the
    /// UDP port below it. Beside a server of iperf3, which has TCP 5201, a server needs another port or
    /// --only-mode.
    #[arg(short, long, default_value_t = 5201, value_parser = clap::value_parser!(u16).range(2..))]
    pub(crate) port: u16,

    /// Transport mode by number or name: 0 btp, 1 brtp, 2 brctp, 3 transparent, 10 tcp, 11 udp,
    /// 12 quic. Mode 11 is plain datagrams, in clear, at 1 Mbit/s unless -b says otherwise. Files go by
    /// brtp without this option and by brtp, brctp, tcp and quic with it. A server takes the client's
    /// mode and ignores this option; see --only-mode.
    #[arg(short, long, default_value = "btp", value_parser = mode::parse)]
    pub(crate) mode: TransportMode,

    /// The same as -m udp.
    #[arg(short, long, conflicts_with = "mode")]
    pub(crate) udp: bool,

    /// Seconds between reports, or between lines of progress with -f; 0 for none but the last. A
    /// server that is not told takes the client's.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub(crate) interval: Duration,

    /// Interface or address to listen on (server) or to send from (client). An interface stands for the
    /// first of its addresses, IPv4 before IPv6. A server without this option listens on all addresses of
    /// both families.
    #[arg(
        short = 'I',
        long,
        value_name = "INTERFACE",
        visible_short_alias = 'B',
        visible_alias = "bind"
    )]
    pub(crate) interface: Option<String>,

    /// Everything goes by this network interface only, in every mode, whatever the routes say.
    #[arg(long, value_name = "INTERFACE")]
    pub(crate) bind_dev: Option<String>,

    /// Every line is written at once, with this option and without it.
    #[arg(long, hide = true)]
    pub(crate) forceflush: bool,

    /// Mark all packets of this side with this code point of differentiated services: ef, af21, cs1
    /// or 0 to 63. Each side marks what it sends itself.
    #[arg(long, value_name = "DSCP", value_parser = dscp::parse_dscp, conflicts_with = "tos")]
    pub(crate) dscp: Option<u8>,

    /// The same as --dscp, given as the whole byte of the header: 184 for ef.
    #[arg(short = 'S', long, value_name = "BYTE", value_parser = dscp::parse_tos)]
    pub(crate) tos: Option<u8>,

    /// Run on this processor only, 0 for the first.
    #[arg(short = 'A', long, value_name = "CPU", value_parser = clap::value_parser!(u16).range(..1_024))]
    pub(crate) affinity: Option<u16>,

    /// Units of all rates and sizes in the report: k, m, g, t for bits, K, M, G, T for bytes. Without
    /// it each figure has one that fits.
    #[arg(long, value_name = "UNIT", value_parser = crate::units::parse_format)]
    pub(crate) format: Option<Format>,

    /// For scripts of iperf3; see the notes.
    #[arg(long, hide = true)]
    pub(crate) udp_counters_64bit: bool,
    #[arg(long, hide = true)]
    pub(crate) repeating_payload: bool,
    #[arg(short = 'N', long, hide = true)]
    pub(crate) no_delay: bool,
    #[arg(short = 'Z', long, hide = true)]
    pub(crate) zerocopy: bool,

    /// Only IPv4.
    #[arg(short = '4', long, alias = "version4", conflicts_with = "ipv6")]
    pub(crate) ipv4: bool,

    /// Only IPv6.
    #[arg(short = '6', long, alias = "version6")]
    pub(crate) ipv6: bool,

    /// More columns: loss seen, residual loss, redundancy, waste, round-trip time, congestion
    /// window, messages that were too old to be sent, delay of repaired data, and the processor time
    /// of both ends.
    #[arg(short = 'V', long)]
    pub(crate) verbose: bool,

    /// Print one JSON document, with the keys of iperf3 and some of our own.
    #[arg(short = 'J', long)]
    pub(crate) json: bool,

    /// Print one JSON object a line: the start, each interval, each file, the end.
    #[arg(long, conflicts_with = "json")]
    pub(crate) json_stream: bool,

    /// Begin each line with the local time and the time since the program began, or with the time
    /// in a format of strftime.
    #[arg(short = 'T', long, value_name = "FORMAT", num_args = 0..=1, require_equals = true,
          default_missing_value = "", value_parser = check::parse_format)]
    pub(crate) timestamps: Option<String>,

    /// Begin each line with these words; they stand in the JSON document, too.
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,

    /// Put these words into the JSON document.
    #[arg(long, value_name = "TEXT")]
    pub(crate) extra_data: Option<String>,

    /// Append the report to this file, too. At a hang-up signal this file and that of -L are opened
    /// anew, so that they can be rotated.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) logfile: Option<PathBuf>,

    /// Append the protocol's log to this file, or to a file in this directory.
    #[arg(short = 'L', long, value_name = "PATH")]
    pub(crate) protocol_log: Option<PathBuf>,

    /// Log what the library does, to standard error; no progress bars.
    #[arg(short, long)]
    pub(crate) debug: bool,

    /// End with an error when a stream has brought nothing, or a transfer of files has not moved,
    /// for this long (milliseconds, or with a unit as in 5s).
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = parse_timeout)]
    pub(crate) rcv_timeout: Duration,

    /// End with an error when a stream could send nothing, or nothing of what it has sent was
    /// acknowledged (modes 1, 2, 10 and 12), for this long (milliseconds, or with a unit as in 5s).
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = parse_timeout)]
    pub(crate) snd_timeout: Duration,

    /// Write this process's number to a file, which goes with the process.
    #[arg(long, value_name = "FILE")]
    pub(crate) pidfile: Option<PathBuf>,

    /// Congestion control of what this side sends: bbr, cubic, gcc, none, or a constant rate such as
    /// 100M. The client's governs what goes to the server, the server's what comes from it. A client
    /// is refused what its mode does not have; a server, whose clients choose the mode, says in the
    /// report where it is not in force.
    #[arg(long, value_name = "NAME", value_parser = mode::parse_congestion)]
    pub(crate) congestion: Option<Congestion>,

    /// What the redundancy of what this side sends favours: each side's for its own direction, as with
    /// --congestion.
    #[arg(long, value_enum)]
    pub(crate) goal: Option<GoalName>,

    /// Print the manual page (roff) or the completions of a shell, and end.
    #[arg(long, value_enum, value_name = "WHAT", exclusive = true)]
    pub(crate) generate: Option<Generated>,

    /// Print the version.
    #[arg(short = 'v', long, action = ArgAction::Version)]
    pub(crate) version: Option<bool>,

    /// Speak only with who has the key in this file, too: 64 hexadecimal digits, as `openssl rand -hex
    /// 32` makes them. A server with a key answers nobody else anything; a client without it gets no
    /// answer. Modes 0 to 3, which a server with a key takes alone; no baselines.
    #[arg(long, value_name = "FILE")]
    pub(crate) closed_key: Option<PathBuf>,

    // Client ----------------------------------------------------------------------------------
    /// Length of the test in seconds.
    #[arg(short, long, value_name = "SECONDS", default_value = "10", value_parser = parse_duration,
          help_heading = CLIENT)]
    pub(crate) time: Duration,

    /// End the test when all streams together have sent this many bytes, instead of after a
    /// time.
    #[arg(short = 'n', long, value_name = "BYTES", value_parser = parse_bytes,
          conflicts_with_all = ["time", "blockcount"], help_heading = CLIENT)]
    pub(crate) bytes: Option<u64>,

    /// End the test when all streams together have sent this many messages.
    #[arg(short = 'k', long, value_name = "MESSAGES", conflicts_with = "time",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000), help_heading = CLIENT)]
    pub(crate) blockcount: Option<u64>,

    /// Leave the first seconds out of the figures.
    #[arg(short = 'O', long, value_name = "SECONDS", default_value = "0", value_parser = parse_omit,
          help_heading = CLIENT)]
    pub(crate) omit: Duration,

    /// Parallel streams, each a connection of its own.
    #[arg(short = 'P', long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128),
          help_heading = CLIENT)]
    pub(crate) parallel: u16,

    /// The server sends, the client receives.
    #[arg(short, long, short_alias = 'R', conflicts_with = "bidir", help_heading = CLIENT)]
    pub(crate) reverse: bool,

    /// Both send and receive, each over streams of its own.
    #[arg(long, help_heading = CLIENT)]
    pub(crate) bidir: bool,

    /// Sending limit of each stream: Mbit/s, or with a unit as in 64k, 1.5G; 0 for none. Without it
    /// modes 3 (transparent) and 11 (udp), which have no congestion control, send 1 Mbit/s, and the
    /// others as fast as they can.
    #[arg(short, long, visible_alias = "bitrate", value_name = "RATE", default_value = "0",
          value_parser = parse_rate, help_heading = CLIENT)]
    pub(crate) bandwidth: u64,

    /// Bytes of a message in a throughput test, from 64 to 16777216; without it 65536, less where
    /// -b is small.
    #[arg(long, value_name = "BYTES", value_parser = parse_length, help_heading = CLIENT)]
    pub(crate) length: Option<u32>,

    /// Measure one-way and round-trip times of messages and print percentiles. Times count from
    /// when a message was to be sent, not from when there was room for it. Without -b each stream
    /// sends 1 Mbit/s.
    #[arg(long, conflicts_with = "files", help_heading = CLIENT)]
    pub(crate) latency: bool,

    /// Milliseconds after which a message is of no use, up to 3600000: what waits longer is not sent
    /// (modes 0 and 3, either direction; not the baselines). Without it 200.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=3_600_000),
          conflicts_with = "files", help_heading = CLIENT)]
    pub(crate) deadline: Option<u64>,

    /// Put an emulated link between the client and its socket, for the data in either direction:
    /// loss=5%, burst=4 (mean packets of a loss burst), delay=50ms (one way), jitter=5ms,
    /// reorder, rate=100M, queue=200k (bytes), duplicate=1%, corrupt=1%, mtu=1400, seed=7.
    #[arg(long, value_name = "LINK", value_parser = emulation::parse, help_heading = CLIENT)]
    pub(crate) emulate: Option<Emulation>,

    /// Then make the same run over the kernel's TCP and UDP and compare.
    #[arg(long, value_name = "CARRIERS", value_delimiter = ',', conflicts_with = "files",
          value_parser = mode::parse_baseline, help_heading = CLIENT)]
    pub(crate) baseline: Vec<Carrier>,

    /// Write the report as one HTML file that needs nothing else.
    #[arg(long, value_name = "FILE", conflicts_with = "files", help_heading = CLIENT)]
    pub(crate) report: Option<PathBuf>,

    /// Have the server's report, too.
    #[arg(long, help_heading = CLIENT)]
    pub(crate) get_server_output: bool,

    /// Local UDP port of the client; not in mode 11 (udp), whose streams have a port each.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..),
          help_heading = CLIENT)]
    pub(crate) cport: Option<u16>,

    /// How long to wait for the server (milliseconds, or with a unit as in 5s).
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_timeout,
          help_heading = CLIENT)]
    pub(crate) connect_timeout: Duration,

    /// The server's certificate must have this SHA-256 fingerprint.
    #[arg(long, value_name = "HEX", conflicts_with = "authorities", help_heading = CLIENT)]
    pub(crate) fingerprint: Option<Fingerprint>,

    /// The server's certificate must come from one of the authorities in this PEM file.
    #[arg(long, value_name = "FILE", help_heading = CLIENT)]
    pub(crate) authorities: Option<PathBuf>,

    /// Send these files and directories; the server verifies each (BLAKE3) before it gets its
    /// name. What was interrupted goes on where it stopped. FILE.sha256sum beside a file travels
    /// along and is checked.
    #[arg(short, long, value_name = "FILE", num_args = 1.., action = ArgAction::Append,
          conflicts_with = "bidir", help_heading = CLIENT)]
    pub(crate) files: Vec<PathBuf>,

    /// Compress files on their way with zstd (smaller) or lz4 (less work); zstd if it is not said.
    #[arg(short = 'C', long, value_name = "METHOD", num_args = 0..=1, require_equals = true,
          default_missing_value = "zstd", value_parser = mode::parse_compression,
          help_heading = CLIENT)]
    pub(crate) compress: Option<Compression>,

    // Server ----------------------------------------------------------------------------------
    /// Take clients of this transport mode only, by number or name as with -m.
    #[arg(long, value_name = "MODE", value_parser = mode::parse, help_heading = SERVER)]
    pub(crate) only_mode: Option<TransportMode>,

    /// Where received files go.
    #[arg(long, value_name = "DIRECTORY", default_value = ".", help_heading = SERVER)]
    pub(crate) directory: PathBuf,

    /// What happens to a file whose name is taken by another content.
    #[arg(long, value_enum, default_value = "refuse", help_heading = SERVER)]
    pub(crate) existing: Existing,

    /// The same as --existing overwrite.
    #[arg(long, conflicts_with = "existing", help_heading = SERVER)]
    pub(crate) overwrite: bool,

    /// Serve one test, then exit with its outcome.
    #[arg(short = '1', long, help_heading = SERVER)]
    pub(crate) one_off: bool,

    /// Go on without the terminal, once the server listens. What it has to say goes to the file of
    /// -l; it ends by a signal (see --pidfile).
    #[arg(short = 'D', long, help_heading = SERVER)]
    pub(crate) daemon: bool,

    /// This is the process that -D has started.
    #[arg(long, hide = true, requires = "daemon")]
    pub(crate) detached: bool,

    /// End when no client has come for this long (seconds, or with a unit as in 500ms).
    #[arg(long, value_name = "TIME", value_parser = parse_long_timeout, help_heading = SERVER)]
    pub(crate) idle_timeout: Option<Duration>,

    /// Deny tests whose streams ask for more than this together, or for no limit; end those that
    /// send more all the same (more than it over five seconds), and receive files no faster. Each
    /// test has it for itself. 0 for no limit.
    #[arg(long, value_name = "RATE", value_parser = parse_rate, help_heading = SERVER)]
    pub(crate) server_bitrate_limit: Option<u64>,

    /// Deny tests that would take longer than this many seconds, and those without a time (-n, -k).
    #[arg(long, value_name = "SECONDS", value_parser = parse_duration, help_heading = SERVER)]
    pub(crate) server_max_duration: Option<Duration>,

    /// Certificate chain in PEM. Without it the server makes a certificate for itself and prints
    /// its fingerprint.
    #[arg(long, value_name = "FILE", requires = "key", help_heading = SERVER)]
    pub(crate) certificate: Option<PathBuf>,

    /// Private key in PEM.
    #[arg(long, value_name = "FILE", requires = "certificate", help_heading = SERVER)]
    pub(crate) key: Option<PathBuf>,

    /// The interval was on the command line.
    #[arg(skip)]
    pub(crate) has_interval: bool,

    /// What is to be said about options that have no effect.
    #[arg(skip)]
    pub(crate) notes: Vec<String>,
}

const CLIENT: &str = "Client";
const SERVER: &str = "Server";

/// What the redundancy favours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GoalName {
    /// Hide losses, at the price of a few per cent of the rate.
    Latency,
    /// Little waste in bulk, strong protection of message ends.
    Balanced,
    /// Least waste; losses may cost a round trip.
    Throughput,
}

/// What happens to a received file whose name is taken by another content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Existing {
    /// It is not taken.
    Refuse,
    /// It replaces the other.
    Overwrite,
    /// It gets a free name, NAME.1 and so on.
    Rename,
}

/// How files are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    Zstd,
    Lz4,
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

impl Options {
    /// The code point that packets of this side bear.
    pub(crate) fn code_point(&self) -> u8 {
        self.dscp.or(self.tos).unwrap_or(0)
    }

    /// Whether standard output is for a program.
    pub(crate) fn is_json(&self) -> bool {
        self.json || self.json_stream
    }
}
