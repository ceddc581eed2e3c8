//! The RTT of a handshake, from timestamps that the peer echoes. Unlike acknowledgements they give a
//! sample for retransmitted flights, too.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use core::time::Duration;

use bats_types::Timestamp;

/// The timestamps of both ends.
#[derive(Debug)]
pub(super) struct RttEcho {
    /// When this end sent its first timestamp, at the earliest.
    started: Timestamp,
    /// The peer's newest timestamp and when it arrived.
    stamp: Option<(u64, Timestamp)>,
    rtt: Option<Duration>,
}

impl RttEcho {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { started: now, stamp: None, rtt: None }
    }

    /// The minimum RTT of all samples.
    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// The peer's timestamp arrived.
    pub(super) fn on_stamp(&mut self, now: Timestamp, stamp: u64) {
        self.stamp = Some((stamp, now));
    }

    /// The peer echoes the timestamp `sent`, which it held for so long.
    pub(super) fn on_echo(&mut self, now: Timestamp, sent: Timestamp, held: Duration) {
        let rtt = now.saturating_since(sent).saturating_sub(held);
        if sent >= self.started && sent <= now && rtt > Duration::ZERO {
            self.rtt = Some(self.rtt.map_or(rtt, |old| old.min(rtt)));
        }
    }

    /// The peer's newest timestamp, and for how long this end has held it.
    pub(super) fn echo(&self, now: Timestamp) -> Option<(u64, Duration)> {
        self.stamp.map(|(stamp, at)| (stamp, now.saturating_since(at)))
    }
}
