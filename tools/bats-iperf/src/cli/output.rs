//! Options of the output.
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

use clap::Args;

/// What is printed and logged, in which format and where.
#[derive(Clone, Debug, Args)]
pub(crate) struct OutputOptions {
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
          default_missing_value = "", value_parser = parse_format)]
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
}

impl OutputOptions {
    /// Whether standard output is meant for a program.
    pub(crate) fn is_json(&self) -> bool {
        self.json || self.json_stream
    }
}

/// Checks that a strftime format is valid.
fn parse_format(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Ok(String::new());
    }
    let now = jiff::Zoned::now();
    jiff::fmt::strtime::format(text, &now)
        .map(|_| text.to_owned())
        .map_err(|error| format!("'{text}' is not a time format: {error}"))
}
