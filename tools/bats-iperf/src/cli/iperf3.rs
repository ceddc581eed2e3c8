//! Options of iperf3 that have no effect here.

use clap::Args;

/// Options whose effect is always on here. They are accepted for iperf3 compatibility and do not
/// appear in the help; all but `forceflush` print a note.
#[derive(Clone, Debug, Args)]
pub(crate) struct Iperf3Options {
    /// Accepted for iperf3 compatibility; every line is always flushed.
    #[arg(long, hide = true)]
    pub(crate) forceflush: bool,

    /// Accepted for iperf3 compatibility; all counters have 64 bits.
    #[arg(long, hide = true)]
    pub(crate) udp_counters_64bit: bool,

    /// Accepted for iperf3 compatibility; the payload is always one repeated byte.
    #[arg(long, hide = true)]
    pub(crate) repeating_payload: bool,

    /// Accepted for iperf3 compatibility; messages are always sent without delay.
    #[arg(short = 'N', long, hide = true)]
    pub(crate) no_delay: bool,

    /// Accepted for iperf3 compatibility; datagrams are always sent in batches.
    #[arg(short = 'Z', long, hide = true)]
    pub(crate) zerocopy: bool,
}
