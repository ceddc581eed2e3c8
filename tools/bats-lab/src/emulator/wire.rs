//! One direction of an emulated link: `bats-netem` applied to real Ethernet frames.

use anyhow::Result;
use bats_netem::{Jitter, Link, LinkConfig, Output, Payload};
use bats_types::Timestamp;

use super::headers;
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
        headers::mark(&mut self.buffer[..self.length]);
    }

    fn flow(&self) -> u64 {
        headers::flow(self.bytes())
    }

    fn is_ect(&self) -> bool {
        headers::is_ect(self.bytes())
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
    ///
    /// # Errors
    /// If a trace of the direction cannot be read.
    pub(crate) fn new(
        link: &settings::Link,
        direction: &Direction,
        mtu: u32,
        seed: u64,
    ) -> Result<Self> {
        let config = config(link, direction, mtu)?;
        Ok(Self { link: Link::new(config, seed), bytes_in: 0, over_limit: 0 })
    }

    /// Changes the settings at `now`. Schedules go on.
    ///
    /// # Errors
    /// As [`Wire::new`].
    pub(crate) fn configure(
        &mut self,
        link: &settings::Link,
        direction: &Direction,
        mtu: u32,
        now: Timestamp,
    ) -> Result<()> {
        let epoch = self.link.config().epoch;
        let config = LinkConfig { epoch, ..config(link, direction, mtu)? };
        self.link.set_config(now, config);
        Ok(())
    }

    /// Lets the schedules begin at `now`.
    pub(crate) fn start_schedules(&mut self, now: Timestamp) {
        let config = LinkConfig { epoch: now, ..self.link.config().clone() };
        self.link.set_config(now, config);
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
        match self.link.poll(now) {
            Output::Deliver(frame) => Step::Deliver(frame, self.link.last_due()),
            Output::Timeout(next) => Step::Until(next),
        }
    }

    /// Counters of the wire; the ports count the rest.
    pub(crate) fn report(&mut self, now: Timestamp) -> DirectionReport {
        let stats = self.link.stats();
        DirectionReport {
            frames_in: stats.offered + self.over_limit,
            bytes_in: self.bytes_in,
            lost: stats.dropped_loss
                + stats.dropped_black_hole
                + stats.dropped_hole
                + stats.dropped_fade,
            queue_drops: stats.dropped_queue + stats.dropped_aqm,
            policed: stats.dropped_policer,
            thinned: stats.dropped_thinned,
            marked: stats.marked + stats.marked_aqm,
            too_large: stats.dropped_mtu,
            duplicated: stats.duplicated,
            corrupted: stats.corrupted,
            emulator_drops: self.over_limit,
            queued: self.link.queue_bytes(now) as u64,
            ..DirectionReport::default()
        }
    }
}

/// The `bats-netem` configuration of a direction, whose schedules begin at time 0.
///
/// # Errors
/// If a trace cannot be read or a setting is out of range.
pub(crate) fn config(link: &settings::Link, direction: &Direction, mtu: u32) -> Result<LinkConfig> {
    let mut config = base_config(link, direction, mtu);
    direction
        .elements
        .configure(&mut config, settings::Elements::FRAMES)
        .map_err(|error| anyhow::anyhow!(error))?;
    Ok(config)
}

/// The configuration of a direction without its elements.
pub(crate) fn base_config(link: &settings::Link, direction: &Direction, mtu: u32) -> LinkConfig {
    LinkConfig {
        rate_bps: (direction.rate > 0).then_some(direction.rate),
        queue_bytes: usize::try_from(link.queue_bytes(direction)).ok(),
        delay: direction.delay,
        jitter: (!direction.jitter.is_zero())
            .then_some(Jitter { amplitude: direction.jitter, reorder: direction.reorder }),
        loss: direction.loss.model(),
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
        let link = settings::Link { forward: direction.clone(), backward: direction.clone() };
        Wire::new(&link, &direction, 1500, 1).unwrap()
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

    /// An IPv4 frame of 1514 bytes to this UDP port.
    fn datagram(port: u16, ecn: u8) -> Frame {
        let mut bytes = vec![0; 1514];
        bytes[12] = 8;
        bytes[14] = 0x45;
        bytes[15] = ecn;
        bytes[23] = 17;
        bytes[36..38].copy_from_slice(&port.to_be_bytes());
        Frame::whole(bytes, 1514)
    }

    fn elements(set: impl FnOnce(&mut settings::Elements)) -> Direction {
        let mut direction = Direction { rate: 12_112_000, delay: Duration::ZERO, ..direction() };
        set(&mut direction.elements);
        direction
    }

    #[test]
    fn fair_queueing_goes_by_the_headers_of_frames() {
        let fair = serde_json::from_str("\"fq_codel\"").unwrap();
        let mut wire = wire(elements(|elements| elements.discipline = fair));
        let start = Timestamp::from_millis(1);
        // A frame takes 1 ms. The single frame of the second flow overtakes those of the first.
        for _ in 0..20 {
            wire.offer(start, datagram(1, 0));
        }
        wire.offer(start, datagram(2, 0));
        let mut order = Vec::new();
        for ms in 0..=60 {
            let now = start + Duration::from_millis(ms);
            while let Step::Deliver(frame, due) = wire.step(now) {
                assert!(due <= now && now - due < Duration::from_millis(1));
                order.push(frame.bytes()[37]);
            }
        }
        assert_eq!(order.len(), 21);
        assert!(order.iter().position(|&port| port == 2).unwrap() < 4, "{order:?}");
    }

    #[test]
    fn step_marking_marks_ecn_capable_frames_only() {
        let mark = serde_json::from_str("\"step_mark\"").unwrap();
        let mut wire = wire(elements(|elements| elements.discipline = mark));
        let start = Timestamp::from_millis(1);
        for _ in 0..5 {
            wire.offer(start, datagram(1, 2));
            wire.offer(start, datagram(1, 0));
        }
        let mut ecn = [0; 4];
        for ms in 0..=20 {
            while let Step::Deliver(frame, _) = wire.step(start + Duration::from_millis(ms)) {
                ecn[usize::from(frame.bytes()[15])] += 1;
            }
        }
        assert!(ecn[0] == 5 && ecn[3] >= 3 && ecn[1] == 0, "{ecn:?}");
        assert_eq!(wire.report(start).marked, ecn[3]);
    }

    #[test]
    fn schedules_begin_when_they_are_started_and_survive_changes() {
        let schedule = "{\"steps_once\": [{ \"rate\": \"0\", \"for\": \"10ms\" }, { \"rate\": \"12112k\", \"for\": \"1s\" }]}";
        let schedule: settings::RateSchedule = serde_json::from_str(schedule).unwrap();
        let direction = elements(|elements| elements.rate_schedule = Some(schedule));
        let mut wire = wire(direction.clone());
        let start = Timestamp::from_millis(5_000);
        wire.start_schedules(start);
        let link = settings::Link { forward: direction.clone(), backward: direction.clone() };
        wire.configure(&link, &direction, 1500, start).unwrap();
        wire.offer(start, datagram(1, 0));
        let mut due = None;
        for ms in 0..30 {
            if let Step::Deliver(_, at) = wire.step(start + Duration::from_millis(ms)) {
                due = Some(at);
            }
        }
        assert_eq!(due, Some(start + Duration::from_millis(11)));
    }
}
