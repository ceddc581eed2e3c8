//! Command-line options.

mod check;
mod dscp;
mod emulation;
mod interface;
mod mode;

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, ValueEnum};
use openbats::Fingerprint;
use openbats::file::set::Reserve;

pub(crate) use check::{Role, parse};
pub(crate) use emulation::Emulation;
pub(crate) use mode::{Compression, Congestion, GoalName};

use crate::transport_mode::{Transport, TransportMode};
use crate::units::{
    Format, parse_bytes, parse_duration, parse_interval, parse_length, parse_long_timeout,
    parse_omit, parse_rate, parse_reserve, parse_timeout,
};

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

    /// Interface or address to listen on (server) or to send from (client). For an interface, its
    /// first address is used, IPv4 before IPv6. Without this option a server listens on all IPv4
    /// and IPv6 addresses.
    #[arg(
        short = 'I',
        long,
        value_name = "INTERFACE",
        visible_short_alias = 'B',
        visible_alias = "bind"
    )]
    pub(crate) interface: Option<String>,

    /// Bind all sockets of every mode to this network interface (SO_BINDTODEVICE), regardless of
    /// the routing table.
    #[arg(long, value_name = "INTERFACE")]
    pub(crate) bind_dev: Option<String>,

    /// Accepted for iperf3 compatibility; every line is always flushed.
    #[arg(long, hide = true)]
    pub(crate) forceflush: bool,

    /// Set the IP DSCP value of all packets of this side: ef, af21, cs1 or 0 to 63. Each side marks
    /// only its own packets.
    #[arg(long, value_name = "DSCP", value_parser = dscp::parse_dscp, conflicts_with = "tos")]
    pub(crate) dscp: Option<u8>,

    /// Set the IP type of service: the DSCP as the whole header byte, 184 for ef.
    #[arg(short = 'S', long, value_name = "BYTE", value_parser = dscp::parse_tos)]
    pub(crate) tos: Option<u8>,

    /// Set CPU affinity: run on this CPU only, counted from 0.
    #[arg(short = 'A', long, value_name = "CPU", value_parser = clap::value_parser!(u16).range(..1_024))]
    pub(crate) affinity: Option<u16>,

    /// Format of all rates and sizes in the report: k, m, g, t for bits, K, M, G, T for bytes. By
    /// default each value gets a suitable unit.
    #[arg(long, value_name = "UNIT", value_parser = crate::units::parse_format)]
    pub(crate) format: Option<Format>,

    /// Accepted for iperf3 compatibility; each prints a note.
    #[arg(long, hide = true)]
    pub(crate) udp_counters_64bit: bool,
    #[arg(long, hide = true)]
    pub(crate) repeating_payload: bool,
    #[arg(short = 'N', long, hide = true)]
    pub(crate) no_delay: bool,
    #[arg(short = 'Z', long, hide = true)]
    pub(crate) zerocopy: bool,

    /// Only use IPv4.
    #[arg(short = '4', long, alias = "version4", conflicts_with = "ipv6")]
    pub(crate) ipv4: bool,

    /// Only use IPv6.
    #[arg(short = '6', long, alias = "version6")]
    pub(crate) ipv6: bool,

    /// More detailed output: path loss, residual loss, redundancy, waste, round-trip time,
    /// congestion window, expired messages, repair delay, a line with the congestion controller's
    /// state for each interval of a sender, and the CPU utilization of both ends.
    #[arg(short = 'V', long)]
    pub(crate) verbose: bool,

    /// Output in JSON format: one document, with iperf3's keys and additional ones.
    #[arg(short = 'J', long)]
    pub(crate) json: bool,

    /// Like -J, for programs that only know iperf3: names the protocol TCP in reliable modes and UDP
    /// in the others, in place of the mode.
    #[arg(long, conflicts_with_all = ["json", "json_stream"])]
    pub(crate) iperf3_json: bool,

    /// Output in line-delimited JSON format: an object for the start, each interval, each file and
    /// the end.
    #[arg(long, conflicts_with = "json")]
    pub(crate) json_stream: bool,

    /// Emit a timestamp at the start of each line: the local time and the time since the start of
    /// the program, or the time in the given strftime format.
    #[arg(short = 'T', long, value_name = "FORMAT", num_args = 0..=1, require_equals = true,
          default_missing_value = "", value_parser = check::parse_format)]
    pub(crate) timestamps: Option<String>,

    /// Prefix every line with this string; it is also included in the JSON document.
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,

    /// Data string to include in the JSON document.
    #[arg(long, value_name = "TEXT")]
    pub(crate) extra_data: Option<String>,

    /// Also append the report to this log file. On SIGHUP this file and that of -L are reopened, so
    /// that they can be rotated.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) logfile: Option<PathBuf>,

    /// Append the protocol log to this file, or to a file in this directory.
    #[arg(short = 'L', long, value_name = "PATH")]
    pub(crate) protocol_log: Option<PathBuf>,

    /// Emit debugging output: the library's log on standard error. Disables progress bars.
    #[arg(short, long)]
    pub(crate) debug: bool,

    /// Idle timeout for receiving data: fail when a stream has received nothing, or a file transfer
    /// has made no progress, for this long (milliseconds, or with a unit, such as 5s). A server also ends a
    /// file transfer that is slower than 500 bytes per second over this time.
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = parse_timeout)]
    pub(crate) rcv_timeout: Duration,

    /// Timeout for sending: fail when a stream could not send, or received no acknowledgement
    /// (modes 1, 2, 10 and 12), for this long (milliseconds, or with a unit, such as 5s).
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = parse_timeout)]
    pub(crate) snd_timeout: Duration,

    /// Write a PID file; it is removed when the process ends.
    #[arg(long, value_name = "FILE")]
    pub(crate) pidfile: Option<PathBuf>,

    /// Congestion control of the data that this side sends: ltcc (the default; also called bbr), bbr3,
    /// cubic, gcc, none, or a constant rate such as 100M; in mode 12 bbr or cubic. The client's option applies to data to the server, the server's option to
    /// data from it. A client rejects a value that its mode does not support; a server, whose
    /// clients choose the mode, reports when its value is not in effect.
    #[arg(long, value_name = "NAME", value_parser = mode::parse_congestion)]
    pub(crate) congestion: Option<Congestion>,

    /// Goal of the redundancy that this side sends. As with --congestion, each side sets its own
    /// direction.
    #[arg(long, value_enum)]
    pub(crate) goal: Option<GoalName>,

    /// Print the manual page (roff) or the completions of a shell, and exit.
    #[arg(long, value_enum, value_name = "WHAT", exclusive = true)]
    pub(crate) generate: Option<Generated>,

    /// Show version information.
    #[arg(short = 'v', long, action = ArgAction::Version)]
    pub(crate) version: Option<bool>,

    /// Pre-shared key (PSK) mode: only communicate with peers that have the key in this file, 64
    /// hexadecimal digits as made by `openssl rand -hex 32`. A file that all users can read is
    /// refused. A server with a key does not answer packets without it, and a client without the key
    /// gets no answer. A server then takes modes 0 to 3 only; there are no baselines.
    #[arg(long, value_name = "FILE")]
    pub(crate) closed_key: Option<PathBuf>,

    // Client ----------------------------------------------------------------------------------
    /// Time in seconds to transmit for.
    #[arg(short, long, value_name = "SECONDS", default_value = "10", value_parser = parse_duration,
          help_heading = CLIENT)]
    pub(crate) time: Duration,

    /// Number of bytes to transmit over all streams together (instead of -t).
    #[arg(short = 'n', long, value_name = "BYTES", value_parser = parse_bytes,
          conflicts_with_all = ["time", "blockcount"], help_heading = CLIENT)]
    pub(crate) bytes: Option<u64>,

    /// Number of messages to transmit over all streams together (instead of -t).
    #[arg(short = 'k', long, value_name = "MESSAGES", conflicts_with = "time",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000), help_heading = CLIENT)]
    pub(crate) blockcount: Option<u64>,

    /// Omit the first seconds from the results.
    #[arg(short = 'O', long, value_name = "SECONDS", default_value = "0", value_parser = parse_omit,
          help_heading = CLIENT)]
    pub(crate) omit: Duration,

    /// Number of parallel client streams; each is a separate connection.
    #[arg(short = 'P', long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128),
          help_heading = CLIENT)]
    pub(crate) parallel: u16,

    /// Reverse mode: the server sends, the client receives.
    #[arg(short, long, short_alias = 'R', conflicts_with = "bidir", help_heading = CLIENT)]
    pub(crate) reverse: bool,

    /// Bidirectional mode: client and server send and receive, over separate streams.
    #[arg(long, help_heading = CLIENT)]
    pub(crate) bidir: bool,

    /// Target bitrate of each stream: Mbit/s, or with a unit, such as 64k or 1.5G; 0 for unlimited.
    /// By default modes 3 (transparent) and 11 (udp), which have no congestion control, send 1
    /// Mbit/s, and the others as fast as they can.
    #[arg(short, long, visible_alias = "bitrate", value_name = "RATE", default_value = "0",
          value_parser = parse_rate, help_heading = CLIENT)]
    pub(crate) bandwidth: u64,

    /// Length of a message in a throughput test, 64 to 16777216 bytes; 65536 by default, less if -b
    /// is low.
    #[arg(long, value_name = "BYTES", value_parser = parse_length, help_heading = CLIENT)]
    pub(crate) length: Option<u32>,

    /// Measure one-way and round-trip times of messages and print percentiles. Each time starts
    /// when the message was scheduled, not when there was room to send it. Without -b each stream
    /// sends 1 Mbit/s.
    #[arg(long, conflicts_with = "files", help_heading = CLIENT)]
    pub(crate) latency: bool,

    /// Deadline of a message in milliseconds, up to 3600000: messages that wait longer expire and
    /// are not sent. Applies to modes 0 and 3 in both directions, not to baselines; 200 by default.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=3_600_000),
          conflicts_with = "files", help_heading = CLIENT)]
    pub(crate) deadline: Option<u64>,

    /// Emulate a link between the client and its socket, for the data in both directions: loss=5%,
    /// burst=4 (mean packets of a loss burst), delay=50ms (one-way), jitter=5ms, reorder,
    /// rate=100M, queue=200k (bytes), duplicate=1%, corrupt=1%, mtu=1400, seed=7.
    #[arg(long, value_name = "LINK", value_parser = emulation::parse, help_heading = CLIENT)]
    pub(crate) emulate: Option<Emulation>,

    /// Repeat the test over the kernel's TCP, UDP or both, and compare.
    #[arg(long, value_name = "TRANSPORTS", value_delimiter = ',', conflicts_with = "files",
          value_parser = mode::parse_baseline, help_heading = CLIENT)]
    pub(crate) baseline: Vec<Transport>,

    /// Write the report as one self-contained HTML file.
    #[arg(long, value_name = "FILE", conflicts_with = "files", help_heading = CLIENT)]
    pub(crate) report: Option<PathBuf>,

    /// Get the report of the server.
    #[arg(long, help_heading = CLIENT)]
    pub(crate) get_server_output: bool,

    /// Bind to this local UDP port; not in mode 11 (udp), where each stream has its own port.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..),
          help_heading = CLIENT)]
    pub(crate) cport: Option<u16>,

    /// Timeout for connection setup (milliseconds, or with a unit, such as 5s). At 80 to 90 % loss a
    /// connection takes up to a minute.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_timeout,
          help_heading = CLIENT)]
    pub(crate) connect_timeout: Duration,

    /// Require this SHA-256 fingerprint of the server's certificate.
    #[arg(long, value_name = "HEX", conflicts_with = "authorities", help_heading = CLIENT)]
    pub(crate) fingerprint: Option<Fingerprint>,

    /// Require a server certificate that was issued by an authority in this PEM file.
    #[arg(long, value_name = "FILE", help_heading = CLIENT)]
    pub(crate) authorities: Option<PathBuf>,

    /// File with the certificate fingerprints of known servers, as ssh keeps one. A new server is
    /// added, and a server whose certificate has changed is refused. By default
    /// ~/.local/state/openbats/known_hosts.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fingerprint", "authorities"],
          help_heading = CLIENT)]
    pub(crate) known_hosts: Option<PathBuf>,

    /// Refuse servers that the file of known servers does not contain.
    #[arg(long, conflicts_with_all = ["fingerprint", "authorities"], help_heading = CLIENT)]
    pub(crate) require_known_host: bool,

    /// Do not authenticate the server, and do not use the file of known servers.
    #[arg(long, conflicts_with_all = ["fingerprint", "authorities", "known_hosts",
          "require_known_host"], help_heading = CLIENT)]
    pub(crate) no_known_hosts: bool,

    /// Present the certificate in ~/.local/state/openbats/identity.pem to a server that asks for one
    /// (--client-fingerprint). It is generated if it does not exist. --certificate presents another.
    #[arg(long, conflicts_with = "certificate", help_heading = CLIENT)]
    pub(crate) identify: bool,

    /// Send these files and directories. The server verifies each (BLAKE3) before it appears under
    /// its final name. Interrupted transfers resume. If FILE.sha256sum exists next to FILE, it is
    /// sent too and the content is checked against it.
    #[arg(short, long, value_name = "FILE", num_args = 1.., action = ArgAction::Append,
          conflicts_with = "bidir", help_heading = CLIENT)]
    pub(crate) files: Vec<PathBuf>,

    /// Compress files in transit with zstd (smaller) or lz4 (less CPU); zstd by default.
    #[arg(short = 'C', long, value_name = "METHOD", num_args = 0..=1, require_equals = true,
          default_missing_value = "zstd", value_parser = mode::parse_compression,
          help_heading = CLIENT)]
    pub(crate) compress: Option<Compression>,

    // Server ----------------------------------------------------------------------------------
    /// Only accept clients of this transport mode, by number or name as with -m.
    #[arg(long, value_name = "MODE", value_parser = mode::parse, help_heading = SERVER)]
    pub(crate) only_mode: Option<TransportMode>,

    /// Accept files and store them in this directory. Without this option file transfers are
    /// denied.
    #[arg(long, value_name = "DIRECTORY", help_heading = SERVER)]
    pub(crate) directory: Option<PathBuf>,

    /// Also store files in subdirectories that exist before the transfer, for example to resume the
    /// interrupted transfer of a directory. Any client can then place files into any of them that
    /// belongs to the user of the server or to root.
    #[arg(long, requires = "directory", help_heading = SERVER)]
    pub(crate) merge: bool,

    /// Bytes of files that the server accepts until it ends, from all clients together. Each file
    /// and directory counts as 4096 bytes more than its size.
    #[arg(long, value_name = "BYTES", default_value = "100G", value_parser = parse_bytes,
          requires = "directory", help_heading = SERVER)]
    pub(crate) quota: u64,

    /// Bytes of files that the server accepts from one client address (IPv6: from one /64).
    #[arg(long, value_name = "BYTES", default_value = "20G", value_parser = parse_bytes,
          requires = "directory", help_heading = SERVER)]
    pub(crate) client_quota: u64,

    /// Space to leave free on the file system of --directory: bytes, or per cent of its size.
    #[arg(long, value_name = "BYTES", default_value = "5%", value_parser = parse_reserve,
          requires = "directory", help_heading = SERVER)]
    pub(crate) reserve: Reserve,

    /// What to do with a received file whose name exists with other content.
    #[arg(long, value_enum, default_value = "refuse", requires = "directory",
          help_heading = SERVER)]
    pub(crate) existing: Existing,

    /// Same as --existing overwrite.
    #[arg(long, conflicts_with = "existing", requires = "directory", help_heading = SERVER)]
    pub(crate) overwrite: bool,

    /// Handle one test, then exit with its exit code.
    #[arg(short = '1', long, help_heading = SERVER)]
    pub(crate) one_off: bool,

    /// Run the server as a daemon: detach from the terminal once it listens. Its output goes to the
    /// file of -l; end it by a signal (see --pidfile).
    #[arg(short = 'D', long, help_heading = SERVER)]
    pub(crate) daemon: bool,

    /// Internal: marks the process that -D started.
    #[arg(long, hide = true, requires = "daemon")]
    pub(crate) detached: bool,

    /// Exit when no client has connected for this long (seconds, or with a unit, such as 500ms).
    #[arg(long, value_name = "TIME", value_parser = parse_long_timeout, help_heading = SERVER)]
    pub(crate) idle_timeout: Option<Duration>,

    /// Bitrate limit of each test, all streams together. The server denies tests that ask for more
    /// or for no limit, ends tests that send more (averaged over 5 s), and receives files no
    /// faster. 0 for no limit.
    #[arg(long, value_name = "RATE", value_parser = parse_rate, help_heading = SERVER)]
    pub(crate) server_bitrate_limit: Option<u64>,

    /// Deny tests longer than this many seconds, and tests without a time limit (-n, -k); end transfers of
    /// files after this time, by default 86400. Another transfer continues where one was
    /// ended, with --merge for directories.
    #[arg(long, value_name = "SECONDS", value_parser = parse_duration, help_heading = SERVER)]
    pub(crate) server_max_duration: Option<Duration>,

    /// Accept only clients whose certificate has this SHA-256 fingerprint, or that of another such
    /// option. Streams of mode 11 and baselines are not authenticated themselves, but need such a
    /// client.
    #[arg(long, value_name = "HEX", action = ArgAction::Append,
          conflicts_with = "client_authorities", help_heading = SERVER)]
    pub(crate) client_fingerprint: Vec<Fingerprint>,

    /// Accept only clients whose certificate was issued by an authority in this PEM file.
    #[arg(long, value_name = "FILE", help_heading = SERVER)]
    pub(crate) client_authorities: Option<PathBuf>,

    /// Certificate chain in PEM. By default a server uses the identity in
    /// ~/.local/state/openbats/identity.pem, which the first server generates, and prints its
    /// fingerprint. A client presents it to a server that asks for one.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) certificate: Option<PathBuf>,

    /// Private key of --certificate in PEM.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) key: Option<PathBuf>,

    /// Whether the interval was given on the command line.
    #[arg(skip)]
    pub(crate) has_interval: bool,

    /// Notes about options that have no effect.
    #[arg(skip)]
    pub(crate) notes: Vec<String>,
}

const CLIENT: &str = "Client";
const SERVER: &str = "Server";

/// What to do with a received file whose name exists with other content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Existing {
    /// Refuse it.
    Refuse,
    /// Replace the existing file.
    Overwrite,
    /// Store it under a free name: NAME.1 and so on.
    Rename,
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
    /// The DSCP of packets that this side sends.
    pub(crate) fn code_point(&self) -> u8 {
        self.dscp.or(self.tos).unwrap_or(0)
    }

    /// Whether standard output is meant for a program.
    pub(crate) fn is_json(&self) -> bool {
        self.json || self.json_stream
    }
}
