//! When the sender's timers are due.

use bats_types::Timestamp;

#[derive(Debug, Default)]
pub(super) struct Timers {
    pub(super) retransmission: Option<Timestamp>,
    pub(super) probe: Option<Timestamp>,
    pub(super) reordering: Option<Timestamp>,
    /// Consecutive timeouts.
    pub(super) backoff: u32,
    /// One past the highest segment when a probe was sent, and whether the probe was a
    /// retransmission.
    pub(super) probed: Option<(u64, bool)>,
}

impl Timers {
    pub(super) fn next(&self) -> Option<Timestamp> {
        [self.retransmission, self.probe, self.reordering].into_iter().flatten().min()
    }

    /// Whether the segment was retransmitted as a probe.
    pub(super) fn is_probe(&self, number: u64) -> bool {
        self.probed.is_some_and(|(end, is_repeated)| is_repeated && number + 1 == end)
    }

    pub(super) fn end_probe(&mut self) {
        self.probed = None;
    }
}
