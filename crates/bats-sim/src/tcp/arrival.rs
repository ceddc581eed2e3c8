//! What an acknowledgement reports to the reaction to loss and to the timers.

use bats_types::Timestamp;

/// What an acknowledgement reports, by the scoreboard.
#[derive(Debug, Default)]
pub(super) struct Arrival {
    pub(super) prior_base: u64,
    pub(super) acked: u64,
    pub(super) lost: u64,
    /// The cumulative number advanced.
    pub(super) advanced: bool,
    /// Segments beyond it were delivered.
    pub(super) has_sacked: bool,
    /// Segments sent before the recovery's end and never retransmitted were delivered.
    pub(super) has_original: bool,
    pub(super) has_dsack: bool,
    pub(super) is_probe_dsack: bool,
    pub(super) ece: bool,
    pub(super) echo: Option<Timestamp>,
}
