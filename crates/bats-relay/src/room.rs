//! How many packets of a flow a relay accepts from the previous node: as many as it can forward while
//! they are in transit, and as the memory allows.

use super::config::{MIN_FLOW_BYTES, QUEUE_PACKETS};
use super::inbound::report_interval;
use super::link_view::LinkView;

/// A flow with fewer packets than this in the queue may send at twice the rate that the next link has
/// had so far: that link may be faster, and only more packets can show it.
const SHORT_QUEUE: u64 = QUEUE_PACKETS / 2;

/// Maximum number of bytes of a flow if `total` bytes are for all flows, of which the others hold `others`:
/// half of what they leave. So a flow by itself may take half of the memory, and two flows a third each (the
/// dynamic thresholds of Choudhury and Hahne, with the factor 1). Below 2 MiB a flow gets up to 1 MiB of
/// the rest, and nothing once all is taken.
pub(super) fn memory_limit(total: usize, others: usize) -> usize {
    let left = total.saturating_sub(others);
    (left / 2).max(MIN_FLOW_BYTES).min(left)
}

/// Maximum number of packets in flight from the previous node and queued here. `rate` is what the next
/// links transport of the flow in bytes per second, `view` that of the link with the previous node.
///
/// A packet sent in answer to a report arrives one round trip after the report.
pub(super) fn window_packets(rate: u64, queued: u64, view: &LinkView) -> u64 {
    let growth = if queued < SHORT_QUEUE { 2 } else { 1 };
    round_trip_packets(rate, view) * growth + QUEUE_PACKETS
}

/// Packets that pass at this rate, in bytes per second, in a round trip of the link and the time of two
/// reports.
pub(super) fn round_trip_packets(rate: u64, view: &LinkView) -> u64 {
    let time = view.smoothed_rtt + report_interval(view) * 2;
    (rate as f64 * time.as_secs_f64() / view.packet.max(1) as f64) as u64
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn flows_share_the_memory_and_leave_some_for_another() {
        let total = 256 << 20;
        assert_eq!(memory_limit(total, 0), total / 2);
        assert_eq!(memory_limit(total, total / 3), total / 3, "two flows have a third each");
        // Each that comes while the others take all they may gets half of what is left, at least the minimum.
        let mut held = Vec::new();
        for _ in 0..10 {
            held.push(memory_limit(total, held.iter().sum()));
        }
        let mebibytes: Vec<usize> = held.iter().map(|bytes| bytes >> 20).collect();
        assert_eq!(mebibytes, [128, 64, 32, 16, 8, 4, 2, 1, 1, 0]);
        assert_eq!(memory_limit(MIN_FLOW_BYTES / 2, 0), MIN_FLOW_BYTES / 2);
    }

    #[test]
    fn the_window_is_a_round_trip_and_doubles_while_there_is_no_queue() {
        let rtt = Duration::from_millis(100);
        let view =
            LinkView { smoothed_rtt: rtt, min_rtt: rtt, packet: 1_000, ..LinkView::default() };
        // 112.5 ms at 10 MB/s: a sixteenth of the round trip for each of two reports.
        assert_eq!(window_packets(10_000_000, SHORT_QUEUE, &view), 1_125 + QUEUE_PACKETS);
        assert_eq!(window_packets(10_000_000, 0, &view), 2_250 + QUEUE_PACKETS);
        assert_eq!(window_packets(0, 0, &view), QUEUE_PACKETS, "enough to measure a rate");
    }
}
