//! min_rtt (draft-ietf-ccwg-bbr-06 section 5.3.4), and when ProbeRTT is due to refresh it.

use core::time::Duration;

use bats_types::Timestamp;

use super::constants::{MIN_RTT_FILTER, PROBE_RTT_INTERVAL};

/// The minimum round-trip time and its age.
#[derive(Debug)]
pub(super) struct MinRtt {
    min_rtt: Duration,
    stamp: Timestamp,
    probe_min_delay: Duration,
    probe_min_stamp: Timestamp,
    /// probe_rtt_expired.
    pub(super) is_expired: bool,
    has_sample: bool,
}

impl MinRtt {
    pub(super) fn new(initial: Duration) -> Self {
        Self {
            min_rtt: initial,
            stamp: Timestamp::ZERO,
            probe_min_delay: initial,
            probe_min_stamp: Timestamp::ZERO,
            is_expired: false,
            has_sample: false,
        }
    }

    /// min_rtt.
    pub(super) fn get(&self) -> Duration {
        self.min_rtt
    }

    /// The path's round-trip time is known to be `rtt` now.
    pub(super) fn set(&mut self, now: Timestamp, rtt: Duration) {
        (self.min_rtt, self.probe_min_delay) = (rtt, rtt);
        (self.stamp, self.probe_min_stamp) = (now, now);
    }

    /// UpdateMinRTT.
    ///
    /// With `refresh`, a round trip within a sixteenth of the minimum postpones ProbeRTT: the queue
    /// is known to be empty.
    pub(super) fn update(&mut self, now: Timestamp, rtt: Duration, refresh: bool) {
        let is_first = !core::mem::replace(&mut self.has_sample, true);
        self.is_expired = !is_first && now > self.probe_min_stamp + PROBE_RTT_INTERVAL;
        if refresh && !is_first && rtt <= self.min_rtt + self.min_rtt / 16 {
            self.is_expired = false;
            self.probe_min_stamp = now;
            self.stamp = now;
        }
        if is_first || rtt < self.probe_min_delay || self.is_expired {
            self.probe_min_delay = rtt;
            self.probe_min_stamp = now;
        }
        if is_first || self.probe_min_delay < self.min_rtt || now > self.stamp + MIN_RTT_FILTER {
            self.min_rtt = self.probe_min_delay;
            self.stamp = self.probe_min_stamp;
        }
    }
    /// ProbeRTT has ended: the next one is due an interval later.
    pub(super) fn on_probe_done(&mut self, now: Timestamp) {
        self.probe_min_stamp = now;
    }
}
