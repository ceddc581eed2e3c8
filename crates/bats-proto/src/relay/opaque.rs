//! End-to-end packets on their way: a relay neither reads nor repairs them, but repeats them, since
//! a handshake or a report that is lost on one of many hops costs the ends a round trip.

use core::hash::Hasher;
use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;
use rustc_hash::FxHasher;

use super::LinkView;
use super::config::MAX_OPAQUE;
use crate::wire::flow::{FlowHeader, FlowKey};

/// Loss that is left to the ends.
const RESIDUAL: f64 = 0.01;
/// Times that a packet is sent at most.
const MAX_COPIES: u8 = 4;
/// Time between repetitions, so that a short burst of losses does not take all of them.
const SPACING: Duration = Duration::from_millis(1);
/// Longest time that a packet waits for a link, or that of so many full packets on it: the ends have said it
/// again by then, and what is old would only hold up what is new.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT_PACKETS: f64 = 8.0;
/// Packets of a flow that are remembered to tell repetitions.
const REMEMBERED: usize = 128;

#[derive(Debug)]
struct Waiting {
    since: Timestamp,
    due: Timestamp,
    /// Zero until it is sent for the first time.
    sent: u8,
    header: FlowHeader,
    bytes: Vec<u8>,
}

/// The packets that wait for a link.
#[derive(Debug, Default)]
pub(super) struct OpaqueQueue {
    waiting: VecDeque<Waiting>,
    /// The link knows of what was due then; it asks when its window allows.
    announced: Timestamp,
    /// Packets dropped because they had waited too long.
    expired: u64,
}

impl OpaqueQueue {
    /// Adds a packet; false if the queue is full.
    pub(super) fn push(&mut self, now: Timestamp, header: FlowHeader, bytes: &[u8]) -> bool {
        if self.waiting.len() >= MAX_OPAQUE {
            return false;
        }
        self.announced = self.announced.max(now);
        self.waiting.push_back(Waiting {
            since: now,
            due: now,
            sent: 0,
            header,
            bytes: bytes.to_vec(),
        });
        true
    }

    /// The next packet that is due, without its flow header, behind what `out` holds.
    pub(super) fn pull(
        &mut self,
        now: Timestamp,
        view: &LinkView,
        out: &mut Vec<u8>,
    ) -> Option<FlowHeader> {
        let slow = LONGEST_WAIT_PACKETS * view.packet as f64 / view.rate.max(1_000) as f64;
        let longest = LONGEST_WAIT.max(Duration::from_secs_f64(slow));
        let mut packet = loop {
            let index = self.waiting.iter().position(|packet| packet.due <= now)?;
            let packet = self.waiting.remove(index)?;
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
            self.waiting.push_back(packet);
        }
        Some(header)
    }

    /// Packets that were dropped unsent because they had waited too long, since it was asked last.
    pub(super) fn take_expired(&mut self) -> u64 {
        core::mem::take(&mut self.expired)
    }

    /// When the next packet that the link does not know of is due.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        self.waiting.iter().map(|packet| packet.due).filter(|&due| due > self.announced).min()
    }

    /// Whether a packet is due; the link is told.
    pub(super) fn announce(&mut self, now: Timestamp) -> bool {
        let due = self.next_at().is_some_and(|at| at <= now);
        self.announced = self.announced.max(now);
        due
    }

    /// Whether a packet is due.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.waiting.iter().any(|packet| packet.due <= now)
    }

    /// All that waits, for another link.
    pub(super) fn take(&mut self) -> Vec<(FlowHeader, Vec<u8>)> {
        self.waiting.drain(..).map(|packet| (packet.header, packet.bytes)).collect()
    }

    /// Forgets the packets of a flow.
    pub(super) fn forget(&mut self, key: FlowKey) {
        self.waiting.retain(|packet| packet.header.key != key);
    }
}

/// How often a packet is sent so that all copies are lost with a probability of 1 %.
fn copies(loss: f64) -> u8 {
    let mut left = loss;
    let mut copies = 1;
    while left > RESIDUAL && copies < MAX_COPIES {
        left *= loss;
        copies += 1;
    }
    copies
}

/// Which packets of a flow came already.
#[derive(Debug, Default)]
pub(super) struct Repetitions {
    hashes: VecDeque<u64>,
}

impl Repetitions {
    /// Takes note of a packet; true if it came before.
    pub(super) fn is_repeated(&mut self, bytes: &[u8]) -> bool {
        let mut hasher = FxHasher::default();
        hasher.write(bytes);
        hasher.write_usize(bytes.len());
        let hash = hasher.finish();
        if self.hashes.contains(&hash) {
            return true;
        }
        if self.hashes.len() == REMEMBERED {
            self.hashes.pop_front();
        }
        self.hashes.push_back(hash);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::flow::NodeId;

    const KEY: FlowKey = FlowKey { destination: NodeId(1), source: NodeId(2), flow: 3 };

    #[test]
    fn packets_are_repeated_as_the_loss_says_and_told_apart() {
        for (loss, times) in [(0.0, 1), (0.01, 1), (0.05, 2), (0.2, 3), (0.9, 4)] {
            let view = LinkView { loss, ..LinkView::default() };
            let mut queue = OpaqueQueue::default();
            let header = FlowHeader { key: KEY, hop_limit: 1 };
            let mut now = Timestamp::from_millis(1);
            queue.push(now, header, b"abc");
            let (mut sent, mut seen) = (0, Repetitions::default());
            for _ in 0..10 {
                let mut out = Vec::new();
                while queue.pull(now, &view, &mut out).is_some() {
                    assert_eq!(seen.is_repeated(&out), sent > 0);
                    sent += 1;
                    out.clear();
                }
                now += SPACING;
            }
            assert_eq!(sent, times, "at {loss}");
            assert_eq!(queue.next_at(), None);
            assert!(!seen.is_repeated(b"abcd"));
        }
    }

    #[test]
    fn what_is_too_old_makes_room_for_what_is_new() {
        let header = FlowHeader { key: KEY, hop_limit: 1 };
        let start = Timestamp::from_millis(1);
        // On a link of 9.6 kbit/s a packet takes a second: a flight of several is not too old for that.
        for (rate, left) in [(1_000_000, 1), (1_200, 3)] {
            let view = LinkView { rate, ..LinkView::default() };
            let mut queue = OpaqueQueue::default();
            for age in [400, 200, 0] {
                queue.push(start + Duration::from_millis(400 - age), header, &[age as u8]);
            }
            let (now, mut out) = (start + LONGEST_WAIT + Duration::from_millis(300), Vec::new());
            let pulled = (0..9).filter(|_| queue.pull(now, &view, &mut out).is_some()).count();
            assert_eq!((pulled, out.last()), (left, Some(&0)));
            assert_eq!((queue.take_expired(), queue.take_expired()), (3 - left as u64, 0));
        }
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut queue = OpaqueQueue::default();
        let header = FlowHeader { key: KEY, hop_limit: 1 };
        for _ in 0..MAX_OPAQUE {
            assert!(queue.push(Timestamp::ZERO, header, b"x"));
        }
        assert!(!queue.push(Timestamp::ZERO, header, b"x"));
        queue.forget(KEY);
        assert!(queue.push(Timestamp::ZERO, header, b"x"));
    }
}
