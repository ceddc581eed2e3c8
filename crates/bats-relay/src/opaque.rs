//! End-to-end packets. A relay neither reads nor repairs them. It repeats them instead, because a
//! handshake packet or a report lost on one of many hops costs the ends a round trip.

use core::hash::Hasher;
use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;
use rustc_hash::FxHasher;

use super::config::MAX_OPAQUE;
use super::link_view::LinkView;
use bats_wire::flow::{FlowHeader, FlowKey};

/// Loss rate left for the ends to repair.
const TARGET_LOSS: f64 = 0.01;
/// Maximum number of transmissions of a packet.
const MAX_COPIES: u8 = 4;
/// Interval between repetitions, so that a short loss burst does not hit all of them.
const SPACING: Duration = Duration::from_millis(1);
/// Maximum time that a packet waits for a link, or the time of this many full packets if that is
/// longer. By then the ends have retransmitted it, and old packets would only delay new ones.
const MAX_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT_PACKETS: f64 = 8.0;
/// Number of packets of a flow remembered to detect duplicates.
const MAX_HASHES: usize = 128;

#[derive(Debug)]
struct QueuedPacket {
    since: Timestamp,
    due: Timestamp,
    /// Number of transmissions; 0 before the first.
    sent: u8,
    header: FlowHeader,
    bytes: Vec<u8>,
}

/// End-to-end packets queued for a link.
#[derive(Debug, Default)]
pub(super) struct OpaqueQueue {
    packets: VecDeque<QueuedPacket>,
    /// Last time that the link was notified. The link polls when its window allows.
    notified_at: Timestamp,
    /// Number of packets dropped because they waited too long.
    expired: u64,
}

impl OpaqueQueue {
    /// Adds a packet; false if the queue is full.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn push(&mut self, now: Timestamp, header: FlowHeader, bytes: &[u8]) -> bool {
        if self.packets.len() >= MAX_OPAQUE {
            return false;
        }
        self.notified_at = self.notified_at.max(now);
        self.packets.push_back(QueuedPacket {
            since: now,
            due: now,
            sent: 0,
            header,
            bytes: bytes.to_vec(),
        });
        true
    }

    /// Appends the next packet that is due to `out`, without its flow header.
    pub(super) fn pull(
        &mut self,
        now: Timestamp,
        view: &LinkView,
        out: &mut Vec<u8>,
    ) -> Option<FlowHeader> {
        let slow = MAX_WAIT_PACKETS * view.packet as f64 / view.rate.max(1_000) as f64;
        let longest = MAX_WAIT.max(Duration::from_secs_f64(slow));
        let mut packet = loop {
            let index = self.packets.iter().position(|packet| packet.due <= now)?;
            let packet = self.packets.remove(index)?;
            if packet.since + longest > now {
                break packet;
            }
            self.expired += u64::from(packet.sent == 0);
        };
        out.extend_from_slice(&packet.bytes);
        packet.sent += 1;
        let header = packet.header;
        if packet.sent < copies(view.loss) {
            packet.due = now + SPACING;
            self.packets.push_back(packet);
        }
        Some(header)
    }

    /// Number of packets, repetitions that are due later included.
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Number of unsent packets dropped because they waited too long, since the last call.
    pub(super) fn take_expired(&mut self) -> u64 {
        core::mem::take(&mut self.expired)
    }

    /// When the next packet is due that the link was not notified of.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        self.packets.iter().map(|packet| packet.due).filter(|&due| due > self.notified_at).min()
    }

    /// Whether the link must be notified of a packet that is due. Records the notification.
    pub(super) fn notify(&mut self, now: Timestamp) -> bool {
        let due = self.next_at().is_some_and(|at| at <= now);
        self.notified_at = self.notified_at.max(now);
        due
    }

    /// Whether a packet is due.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.packets.iter().any(|packet| packet.due <= now)
    }

    /// Removes all packets, to queue them for another link.
    pub(super) fn take(&mut self) -> Vec<(FlowHeader, Vec<u8>)> {
        self.packets.drain(..).map(|packet| (packet.header, packet.bytes)).collect()
    }

    /// Removes the packets of direct flows, to queue them for another link.
    pub(super) fn take_direct(&mut self) -> Vec<(FlowHeader, Vec<u8>)> {
        let (direct, others): (VecDeque<QueuedPacket>, VecDeque<QueuedPacket>) =
            self.packets.drain(..).partition(|packet| packet.header.key.is_direct());
        self.packets = others;
        direct.into_iter().map(|packet| (packet.header, packet.bytes)).collect()
    }

    /// Drops the packets of a flow.
    pub(super) fn forget(&mut self, key: FlowKey) {
        self.packets.retain(|packet| packet.header.key != key);
    }
}

/// Number of transmissions of a packet so that all are lost with a probability of at most 1 %.
fn copies(loss: f64) -> u8 {
    let mut left = loss;
    let mut copies = 1;
    while left > TARGET_LOSS && copies < MAX_COPIES {
        left *= loss;
        copies += 1;
    }
    copies
}

/// Detects duplicates of end-to-end packets of a flow.
#[derive(Debug, Default)]
pub(super) struct DuplicateFilter {
    hashes: VecDeque<u64>,
}

impl DuplicateFilter {
    /// Records a packet. Returns whether it was received before.
    pub(super) fn is_duplicate(&mut self, bytes: &[u8]) -> bool {
        let mut hasher = FxHasher::default();
        hasher.write(bytes);
        hasher.write_usize(bytes.len());
        let hash = hasher.finish();
        if self.hashes.contains(&hash) {
            return true;
        }
        if self.hashes.len() == MAX_HASHES {
            self.hashes.pop_front();
        }
        self.hashes.push_back(hash);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bats_wire::flow::NodeId;

    const KEY: FlowKey = FlowKey { destination: NodeId(1), source: NodeId(2), flow: 3 };

    #[test]
    fn repetitions_follow_the_loss_and_are_detected_as_duplicates() {
        for (loss, times) in [(0.0, 1), (0.01, 1), (0.05, 2), (0.2, 3), (0.9, 4)] {
            let view = LinkView { loss, ..LinkView::default() };
            let mut queue = OpaqueQueue::default();
            let header = FlowHeader { key: KEY, hop_limit: 1 };
            let mut now = Timestamp::from_millis(1);
            queue.push(now, header, b"abc");
            let (mut sent, mut seen) = (0, DuplicateFilter::default());
            for _ in 0..10 {
                let mut out = Vec::new();
                while queue.pull(now, &view, &mut out).is_some() {
                    assert_eq!(seen.is_duplicate(&out), sent > 0);
                    sent += 1;
                    out.clear();
                }
                now += SPACING;
            }
            assert_eq!(sent, times, "at {loss}");
            assert_eq!(queue.next_at(), None);
            assert!(!seen.is_duplicate(b"abcd"));
        }
    }

    #[test]
    fn packets_that_waited_too_long_are_dropped() {
        let header = FlowHeader { key: KEY, hop_limit: 1 };
        let start = Timestamp::from_millis(1);
        // At 9.6 kbit/s a packet takes a second, so a flight of several packets is not too late.
        for (rate, left) in [(1_000_000, 1), (1_200, 3)] {
            let view = LinkView { rate, ..LinkView::default() };
            let mut queue = OpaqueQueue::default();
            for age in [400, 200, 0] {
                queue.push(start + Duration::from_millis(400 - age), header, &[age as u8]);
            }
            let (now, mut out) = (start + MAX_WAIT + Duration::from_millis(300), Vec::new());
            let pulled = (0..9).filter(|_| queue.pull(now, &view, &mut out).is_some()).count();
            assert_eq!((pulled, out.last()), (left, Some(&0)));
            assert_eq!((queue.take_expired(), queue.take_expired()), (3 - left as u64, 0));
        }
    }

    #[test]
    fn opaque_queue_is_bounded() {
        let mut queue = OpaqueQueue::default();
        let header = FlowHeader { key: KEY, hop_limit: 1 };
        for _ in 0..MAX_OPAQUE {
            assert!(queue.push(Timestamp::ZERO, header, b"x"));
        }
        assert!(!queue.push(Timestamp::ZERO, header, b"x"));
        queue.forget(KEY);
        assert!(queue.push(Timestamp::ZERO, header, b"x"));
    }

    /// A second, or eight full packets at the rate of the link, which counts as at least 1,000 bytes per
    /// second.
    #[test]
    fn packet_waits_for_the_link_up_to_the_exact_time() {
        let header = FlowHeader { key: KEY, hop_limit: 1 };
        let start = Timestamp::from_millis(1);
        for (rate, millis) in [(1_000_000, 1_000), (9_600, 1_000), (1_200, 8_000), (10, 9_600)] {
            let view = LinkView { rate, ..LinkView::default() };
            let end = start + Duration::from_millis(millis);
            for (now, is_sent) in
                [(end.saturating_sub(Duration::from_nanos(1)), true), (end, false)]
            {
                let mut queue = OpaqueQueue::default();
                queue.push(start, header, b"abc");
                let mut out = Vec::new();
                assert_eq!(queue.pull(now, &view, &mut out), is_sent.then_some(header));
                assert_eq!(out, if is_sent { &b"abc"[..] } else { b"" });
                assert_eq!((queue.take_expired(), queue.len()), (u64::from(!is_sent), 0));
            }
        }
        // A repetition that is dropped is not counted: the packet was sent.
        let view = LinkView { loss: 0.05, rate: 1_000_000, ..LinkView::default() };
        let mut queue = OpaqueQueue::default();
        queue.push(start, header, b"abc");
        assert!(queue.pull(start, &view, &mut Vec::new()).is_some());
        assert_eq!(queue.pull(start + MAX_WAIT, &view, &mut Vec::new()), None);
        assert_eq!((queue.take_expired(), queue.len()), (0, 0));
    }

    #[test]
    fn link_is_notified_once_of_each_repetition_when_it_is_due() {
        let header = FlowHeader { key: KEY, hop_limit: 1 };
        let view = LinkView { loss: 0.05, ..LinkView::default() };
        let start = Timestamp::from_millis(5);
        let mut queue = OpaqueQueue::default();
        assert!(!queue.is_due(start) && !queue.notify(start));
        queue.push(start, header, b"abc");
        // The link was notified when the packet was added.
        assert_eq!((queue.len(), queue.next_at(), queue.notify(start)), (1, None, false));
        assert!(queue.is_due(start) && !queue.is_due(Timestamp::from_millis(4)));
        assert_eq!(queue.pull(start, &view, &mut Vec::new()), Some(header));
        let due = start + SPACING;
        let before = due.saturating_sub(Duration::from_nanos(1));
        assert_eq!((queue.len(), queue.next_at()), (1, Some(due)));
        assert!(!queue.is_due(before) && queue.is_due(due));
        assert_eq!([before, due, due].map(|now| queue.notify(now)), [false, true, false]);
        assert_eq!(queue.next_at(), None);
        assert_eq!(queue.take(), [(header, b"abc".to_vec())]);
        assert_eq!((queue.len(), queue.is_due(due)), (0, false));
    }

    #[test]
    fn only_the_packets_of_a_flow_are_forgotten() {
        let mut queue = OpaqueQueue::default();
        let other = FlowKey { flow: 4, ..KEY };
        for key in [KEY, other, KEY] {
            assert!(queue.push(Timestamp::ZERO, FlowHeader { key, hop_limit: 1 }, b"x"));
        }
        queue.forget(KEY);
        assert_eq!(queue.take(), [(FlowHeader { key: other, hop_limit: 1 }, b"x".to_vec())]);
    }

    #[test]
    fn last_128_packets_are_remembered() {
        for (others, is_duplicate) in [(127_u8, true), (128, false)] {
            let mut filter = DuplicateFilter::default();
            assert!(!filter.is_duplicate(b"first"));
            (0..others).for_each(|other| assert!(!filter.is_duplicate(&[other])));
            assert_eq!(filter.is_duplicate(b"first"), is_duplicate);
        }
        // The length counts: a zero byte at the end makes another packet.
        let mut filter = DuplicateFilter::default();
        assert!(!filter.is_duplicate(&[0; 3]) && !filter.is_duplicate(&[0; 4]));
    }

    #[test]
    fn packet_is_repeated_until_it_is_lost_with_one_percent() {
        for (loss, count) in [
            (0.0, 1),
            (0.01, 1),
            (0.011, 2),
            (0.099, 2),
            (0.101, 3),
            (0.215, 3),
            (0.216, 4),
            (0.5, 4),
            (1.0, 4),
        ] {
            assert_eq!(copies(loss), count, "{loss}");
        }
    }
}
