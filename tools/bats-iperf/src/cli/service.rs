//! Options of a server.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use openbats::Fingerprint;

use super::headings::SERVER;
use super::incoming_files::IncomingFileOptions;
use super::mode;
use crate::transport_mode::TransportMode;
use crate::units::{parse_duration, parse_long_timeout, parse_rate};

/// How a server runs, and which tests and clients it accepts.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServiceOptions {
    /// Only accept clients of this transport mode, by number or name as with -m.
    #[arg(long, value_name = "MODE", value_parser = mode::parse, help_heading = SERVER)]
    pub(crate) only_mode: Option<TransportMode>,

    #[command(flatten)]
    pub(crate) incoming: IncomingFileOptions,

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
}
