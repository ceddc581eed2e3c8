//! Packet numbers of a link: sender and receiver over a network that loses, reorders and repeats
//! packets and acknowledgements, then acknowledgements of a misbehaving peer.

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use bats_types::Timestamp;

use super::script::Script;
use crate::link::received::{MAX_RANGES, REPLAY_WINDOW, ReceivedPackets};
use crate::link::sent::{Contents, SentPackets};

const MIN_RTT: Duration = Duration::from_millis(10);
/// Operations of a run.
const MAX_OPERATIONS: usize = 2_000;

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct AcknowledgementReport {
    /// Packets that the receiver accepted.
    pub accepted: usize,
    /// Packets that were acknowledged.
    pub acknowledged: u64,
    /// Whether the sender found a violation.
    pub violation: bool,
}

struct World {
    now: Timestamp,
    sent: SentPackets,
    received: ReceivedPackets,
    /// Numbers of packets that were sent and may still arrive.
    travelling: VecDeque<u64>,
    /// Numbers that were sent.
    numbers: BTreeSet<u64>,
    /// Numbers that the receiver has accepted.
    accepted: BTreeSet<u64>,
    ranges: Vec<(u64, u64)>,
    report: AcknowledgementReport,
}

impl World {
    fn send(&mut self, size: u8, ack_eliciting: bool, random: u64) {
        let number = self.sent.next_number(self.now, random);
        let contents = Contents { coded: ack_eliciting, ..Contents::default() };
        let bytes = 100 + usize::from(size) * 5;
        self.sent.on_sent(self.now, bytes, ack_eliciting, false, contents);
        assert!(self.numbers.insert(number), "number {number} is used twice");
        self.travelling.push_back(number);
    }

    fn arrive(&mut self, number: u64) {
        let is_new = self.received.is_new(number);
        assert_eq!(self.received.insert(self.now, number), is_new);
        assert!(!is_new || self.accepted.insert(number), "{number} is accepted twice");
        assert!(!self.received.is_new(number));
    }

    /// The receiver's acknowledgement: newest first, with gaps, and of accepted packets only.
    fn acknowledge(&mut self) {
        self.received.write_ranges(&mut self.ranges);
        assert!(self.ranges.len() <= MAX_RANGES);
        assert!(self.ranges.windows(2).all(|pair| pair[1].1 + 1 < pair[0].0));
        for &(first, last) in &self.ranges {
            assert!(first <= last && last - first < REPLAY_WINDOW);
            let numbers = (first..=last).filter(|number| !self.accepted.contains(number));
            assert_eq!(numbers.count(), 0, "{first} to {last} contains a packet that is missing");
        }
    }

    fn on_ack(&mut self) {
        let ranges = core::mem::take(&mut self.ranges);
        let before = self.sent.bytes_in_flight();
        match self.sent.on_ack(self.now, &ranges, MIN_RTT) {
            Ok(outcome) => {
                self.report.acknowledged += outcome.acked_packets;
                assert!(self.sent.bytes_in_flight() <= before);
            }
            Err(_) => self.report.violation = true,
        }
        self.ranges = ranges;
    }
}

/// Runs the operations in `data`.
///
/// # Panics
/// A packet number is used or accepted twice, an acknowledgement covers a packet that did not
/// arrive, an honest one is a violation, or the bytes in flight are wrong.
pub fn acknowledgements_run(data: &[u8]) -> AcknowledgementReport {
    let mut script = Script::new(data);
    let mut world = World {
        now: Timestamp::from_millis(1_000),
        sent: SentPackets::new(u64::from(script.u8())),
        received: ReceivedPackets::default(),
        travelling: VecDeque::new(),
        numbers: BTreeSet::new(),
        accepted: BTreeSet::new(),
        ranges: Vec::new(),
        report: AcknowledgementReport::default(),
    };
    let mut has_misbehaved = false;
    for _ in 0..MAX_OPERATIONS {
        if script.is_empty() || world.report.violation {
            break;
        }
        world.now += Duration::from_micros(u64::from(script.u8()) * 50);
        match script.u8() % 10 {
            0..=2 => {
                world.send(script.u8(), !script.u8().is_multiple_of(4), u64::from(script.u16()))
            }
            3 | 4 => {
                if let Some(number) = world.travelling.pop_front() {
                    world.arrive(number);
                }
            }
            5 => {
                let at = usize::from(script.u8()) % world.travelling.len().max(1);
                if let Some(number) = world.travelling.remove(at) {
                    // Out of order, lost, or repeated.
                    match script.u8() % 3 {
                        0 => world.arrive(number),
                        1 => {}
                        _ => {
                            world.arrive(number);
                            world.travelling.push_back(number);
                        }
                    }
                }
            }
            6 | 7 => {
                world.acknowledge();
                world.on_ack();
                assert!(has_misbehaved || !world.report.violation, "an honest acknowledgement");
            }
            8 => {
                let outcome = world.sent.detect_losses(MIN_RTT, MIN_RTT * 10, |_| {});
                assert!(outcome.lost_packets <= world.numbers.len() as u64);
            }
            _ => {
                has_misbehaved = true;
                let largest = script.number(world.sent.peek_next());
                let first = largest.saturating_sub(u64::from(script.u8()));
                world.ranges = vec![(first, largest)];
                if let Some(last) = first.checked_sub(2 + u64::from(script.u8())) {
                    world.ranges.push((last.saturating_sub(u64::from(script.u8())), last));
                }
                world.on_ack();
            }
        }
        let sent: u64 = world.sent.bytes_sent();
        assert!(world.sent.bytes_in_flight() <= sent);
        assert!(world.sent.bytes_acked() <= sent);
    }
    world.report.accepted = world.accepted.len();
    world.report
}
