//! Options of a test, which a client sets.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::emulation::{self, Emulation};
use super::headings::CLIENT;
use super::mode;
use crate::transport_mode::Transport;
use crate::units::{
    parse_bytes, parse_duration, parse_length, parse_omit, parse_rate, parse_timeout,
};

/// What a client measures, over which streams and for how long.
#[derive(Clone, Debug, Args)]
pub(crate) struct TestOptions {
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
}
