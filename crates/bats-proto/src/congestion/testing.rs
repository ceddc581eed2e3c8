//! Acknowledgements for the tests of controllers.

use core::time::Duration;

use bats_types::Timestamp;

use super::AckSample;

/// At `now`, of packets sent at `sent_at`: 1,200 bytes each, on a path of 100 ms without a queue.
pub(super) fn ack(now: Timestamp, sent_at: Timestamp, acked: u64, lost: u64) -> AckSample {
    let rtt = Duration::from_millis(100);
    AckSample {
        now,
        largest_sent_at: sent_at,
        largest_received_at: sent_at,
        cumulative_sent: 0,
        app_limited: false,
        acked_bytes: acked * 1_200,
        acked_packets: acked,
        lost_bytes: lost * 1_200,
        lost_packets: lost,
        lost_sent_at: sent_at,
        settled_until: sent_at,
        burst_factor: 1.0,
        ce_packets: 0,
        rtt,
        smoothed_rtt: rtt,
        min_rtt: rtt,
        in_flight: 0,
        after_blackout: false,
    }
}
