//! One direction of an emulated link: `bats-netem` applied to real Ethernet frames.

use bats_netem::{Jitter, Link, LinkConfig, Loss, Output, Payload};
use bats_types::Timestamp;

use super::report::DirectionReport;
use crate::settings::{self, Direction};

/// Length of an Ethernet header in bytes.
pub(crate) const ETHERNET: usize = 14;

/// Limit of frames in flight, 1.5 GiB of full frames, so that a link without rate limit does not
/// use all memory. 10 Gbit/s with an RTT of 500 ms and a queue of one BDP fit.
const MAX_IN_FLIGHT: u64 = 1 << 20;

/// An Ethernet frame in a buffer that may be larger.
#[derive(Clone)]
pub(crate) struct Frame {
    buffer: Vec<u8>,
    length: usize,
}

impl Frame {
    /// Copies a frame into a buffer of its own size.
    pub(crate) fn copied(bytes: &[u8]) -> Self {
        Self { buffer: bytes.to_vec(), length: bytes.len() }
    }

    /// The first `length` bytes of `buffer`.
    pub(crate) fn whole(buffer: Vec<u8>, length: usize) -> Self {
        let length = length.min(buffer.len());
        Self { buffer, length }
    }

    /// The frame's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    /// The buffer for reuse, if it has `size` bytes.
    pub(crate) fn into_buffer(self, size: usize) -> Option<Vec<u8>> {
        (self.buffer.len() == size).then_some(self.buffer)
    }
}

impl Payload for Frame {
    fn len(&self) -> usize {
        self.length
    }

    fn corrupt(&mut self, at: usize, flip: u8) {
        if let Some(byte) = self.buffer[..self.length].get_mut(at) {
            *byte ^= flip;
        }
    }

    fn mark(&mut self) {
        // The lab configures no ECN threshold.
    }
}

/// Result of a poll of the wire.
pub(crate) enum Step {
    /// Deliver this frame, which was due at this time.
    Deliver(Frame, Timestamp),
    /// Nothing is due before this time.
    Until(Option<Timestamp>),
}

/// One direction of a link.
pub(crate) struct Wire {
    link: Link<Frame>,
    bytes_in: u64,
    over_limit: u64,
}

impl Wire {
    /// Creates the wire for `direction` of `link`.
    pub(crate) fn new(link: &settings::Link, direction: &Direction, mtu: u32, seed: u64) -> Self {
        Self { link: Link::new(config(link, direction, mtu), seed), bytes_in: 0, over_limit: 0 }
    }

    /// Changes the settings at `now`.
    pub(crate) fn configure(
        &mut self,
        link: &settings::Link,
        direction: &Direction,
        mtu: u32,
        now: Timestamp,
    ) {
        self.link.set_config(now, config(link, direction, mtu));
    }

    /// Takes a frame that arrived at `at`.
    pub(crate) fn offer(&mut self, at: Timestamp, frame: Frame) {
        self.bytes_in += frame.len() as u64;
        if self.link.stats().in_flight() >= MAX_IN_FLIGHT {
            self.over_limit += 1;
            return;
        }
        self.link.handle(at, frame);
    }

    /// The next due frame, or when the next one is due.
    pub(crate) fn step(&mut self, now: Timestamp) -> Step {
        // A poll at time zero returns when the next frame is due.
        let due = match self.link.poll(Timestamp::ZERO) {
            Output::Timeout(Some(due)) if due <= now => due,
            Output::Timeout(next) => return Step::Until(next),
            Output::Deliver(frame) => return Step::Deliver(frame, Timestamp::ZERO),
        };
        match self.link.poll(now) {
            Output::Deliver(frame) => Step::Deliver(frame, due),
            Output::Timeout(next) => Step::Until(next),
        }
    }

    /// Counters of the wire; the ports count the rest.
    pub(crate) fn report(&mut self, now: Timestamp) -> DirectionReport {
        let stats = self.link.stats();
        DirectionReport {
            frames_in: stats.offered + self.over_limit,
            bytes_in: self.bytes_in,
            lost: stats.dropped_loss + stats.dropped_black_hole,
            queue_drops: stats.dropped_queue,
            too_large: stats.dropped_mtu,
            duplicated: stats.duplicated,
            corrupted: stats.corrupted,
            emulator_drops: self.over_limit,
            queued: self.link.queue_bytes(now) as u64,
            ..DirectionReport::default()
        }
    }
}

/// The `bats-netem` configuration of a direction.
pub(crate) fn config(link: &settings::Link, direction: &Direction, mtu: u32) -> LinkConfig {
    LinkConfig {
        rate_bps: (direction.rate > 0).then_some(direction.rate),
        queue_bytes: usize::try_from(link.queue_bytes(direction)).ok(),
        delay: direction.delay,
        jitter: (!direction.jitter.is_zero())
            .then_some(Jitter { amplitude: direction.jitter, reorder: direction.reorder }),
        loss: match direction.loss {
            settings::Loss::Independent(0.0) => Loss::None,
            settings::Loss::Independent(fraction) => Loss::Iid(fraction),
            settings::Loss::GilbertElliott { enter, leave } => Loss::GilbertElliott {
                good_to_bad: enter,
                bad_to_good: leave,
                loss_good: 0.0,
                loss_bad: 1.0,
            },
        },
        duplicate: direction.duplicate,
        corrupt: direction.corrupt,
        mtu: Some(mtu as usize + ETHERNET),
        black_hole: direction.black_hole,
        // Frames include their Ethernet header.
        frame_overhead: 0,
        ..LinkConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::settings::Queue;

    fn direction() -> Direction {
        Direction { loss: settings::Loss::Independent(0.0), ..Direction::default() }
    }

    fn wire(direction: Direction) -> Wire {
        let link = settings::Link { forward: direction, backward: direction };
        Wire::new(&link, &direction, 1500, 1)
    }

    #[test]
    fn frame_is_due_after_serialisation_and_delay() {
        let mut wire = wire(direction());
        let start = Timestamp::from_millis(1);
        wire.offer(start, Frame::whole(vec![7; 1518], 1500));
        let due = start + Duration::from_micros(12) + Duration::from_millis(50);
        assert!(matches!(wire.step(start), Step::Until(Some(at)) if at == due));
        let Step::Deliver(frame, at) = wire.step(due + Duration::from_micros(30)) else {
            panic!("no frame is delivered")
        };
        assert_eq!((at, frame.bytes().len()), (due, 1500));
        assert!(frame.into_buffer(1518).is_some());
    }

    #[test]
    fn oversized_frames_and_queue_drops_are_counted() {
        let queue = Queue::Bytes(3_000);
        let mut wire = wire(Direction { queue, ..direction() });
        let now = Timestamp::from_millis(1);
        wire.offer(now, Frame::whole(vec![0; 1518], 1515));
        for _ in 0..3 {
            wire.offer(now, Frame::whole(vec![0; 1518], 1500));
        }
        let report = wire.report(now);
        assert_eq!((report.too_large, report.queue_drops, report.queued), (1, 1, 3_000));
        assert_eq!((report.frames_in, report.bytes_in), (4, 6_015));
    }

    #[test]
    fn frames_in_flight_are_bounded_without_a_rate_limit() {
        let mut wire = wire(Direction { rate: 0, ..direction() });
        let now = Timestamp::from_millis(1);
        for _ in 0..MAX_IN_FLIGHT + 5 {
            wire.offer(now, Frame::copied(&[0; 4]));
        }
        assert_eq!(wire.report(now).emulator_drops, 5);
    }
}
