//! Queue disciplines: which packets are queued, and which is sent next.

mod codel;
mod fq_codel;
mod pie;

use core::time::Duration;

use rand::Rng;

pub use codel::CoDel;
pub use fq_codel::FqCoDel;
pub use pie::Pie;

use crate::Payload;
use crate::frame::{Frame, FrameQueue};
use crate::stats::{Backlog, Tally};
use codel::Controller;
use fq_codel::FairQueue;
use pie::{PieState, Verdict};

/// Queue discipline. The limits of the queue (`queue_bytes`, `queue_packets`) apply to all
/// disciplines: a frame that exceeds them is dropped on entry, except that FQ-CoDel drops from the
/// longest queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Discipline {
    /// FIFO with tail drop.
    #[default]
    DropTail,
    /// Controlled delay (RFC 8289): drops at the head of the queue when the delay persists.
    CoDel(CoDel),
    /// One CoDel queue for each flow, with fair queueing (RFC 8290).
    FqCoDel(FqCoDel),
    /// Proportional integral controller enhanced (RFC 8033): drops on entry.
    Pie(Pie),
    /// FIFO that marks ECN-capable packets.
    StepMark(StepMark),
}

/// Marks packets whose sojourn time exceeds a threshold, as the L4S queue of DualQ without its ramp
/// (RFC 9332 section 2.5.1.1 and appendix A). Packets that are not ECN-capable pass unmarked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepMark {
    /// Sojourn time above which packets are marked.
    pub threshold: Duration,
}

impl Default for StepMark {
    /// 1 ms (RFC 9332 appendix A.1: `minTh` is 800 us, `range` 400 us).
    fn default() -> Self {
        Self { threshold: Duration::from_millis(1) }
    }
}

/// The limits of a queue, including the frame in transmission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) bytes: Option<usize>,
    pub(crate) packets: Option<usize>,
}

impl Limits {
    pub(crate) fn has_room(&self, backlog: &Backlog, bytes: usize) -> bool {
        let sum = backlog.bytes.saturating_add(bytes);
        self.bytes.is_none_or(|limit| sum <= limit)
            && self.packets.is_none_or(|limit| backlog.packets < limit)
    }

    fn is_exceeded(&self, backlog: &Backlog) -> bool {
        self.bytes.is_some_and(|limit| backlog.bytes > limit)
            || self.packets.is_some_and(|limit| backlog.packets > limit)
    }
}

/// Result of offering a frame to the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Queued,
    /// Rejected because the queue is full; not counted here.
    Full,
    /// Rejected by PIE; not counted here.
    Early,
    /// Accepted and dropped again; counted here.
    Dropped,
}

/// The queued frames, and the state of the discipline.
#[derive(Debug)]
pub(crate) enum Queue<P> {
    Fifo(FrameQueue<P>),
    CoDel { config: CoDel, queue: FrameQueue<P>, control: Controller },
    Fair(Box<FairQueue<P>>),
    Pie { config: Pie, queue: FrameQueue<P>, state: PieState },
    StepMark { config: StepMark, queue: FrameQueue<P> },
}

impl<P: Payload> Queue<P> {
    /// An empty queue. `seed` perturbs the flow hash.
    pub(crate) fn new(discipline: &Discipline, seed: u64) -> Self {
        let queue = FrameQueue::default();
        match *discipline {
            Discipline::DropTail => Self::Fifo(queue),
            Discipline::CoDel(config) => {
                Self::CoDel { config, queue, control: Controller::default() }
            }
            Discipline::FqCoDel(config) => Self::Fair(Box::new(FairQueue::new(config, seed))),
            Discipline::Pie(config) => Self::Pie { config, queue, state: PieState::new(&config) },
            Discipline::StepMark(config) => Self::StepMark { config, queue },
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Fifo(queue)
            | Self::CoDel { queue, .. }
            | Self::Pie { queue, .. }
            | Self::StepMark { queue, .. } => queue.is_empty(),
            Self::Fair(queue) => queue.is_empty(),
        }
    }

    /// Offers a frame. The queue accepts or rejects it, or drops others for it.
    pub(crate) fn offer(
        &mut self,
        mut frame: Frame<P>,
        limits: Limits,
        tally: &mut Tally<'_>,
        rng: &mut impl Rng,
    ) -> Entry {
        if !matches!(self, Self::Fair(_)) && !limits.has_room(tally.backlog, frame.bytes) {
            return Entry::Full;
        }
        if let Self::Pie { config, queue, state } = self {
            match state.on_arrival(config, tally.now, queue.bytes, frame.is_ect, rng) {
                Verdict::Pass => {}
                Verdict::Mark => frame.mark(tally),
                Verdict::Drop => return Entry::Early,
            }
        }
        tally.backlog.add(frame.bytes, tally.stats);
        let flow = frame.flow;
        self.push(frame);
        let Self::Fair(queue) = self else { return Entry::Queued };
        let mut has_newest = true;
        while limits.is_exceeded(tally.backlog) && !queue.is_empty() {
            has_newest &= queue.drop_from_longest(flow, tally);
        }
        if has_newest { Entry::Queued } else { Entry::Dropped }
    }

    /// Adds a frame without checks.
    pub(crate) fn push(&mut self, frame: Frame<P>) {
        match self {
            Self::Fifo(queue)
            | Self::CoDel { queue, .. }
            | Self::Pie { queue, .. }
            | Self::StepMark { queue, .. } => queue.push(frame),
            Self::Fair(queue) => queue.push(frame),
        }
    }

    /// The next frame to send. Drops and marks frames as the discipline requires.
    pub(crate) fn next(&mut self, tally: &mut Tally<'_>) -> Option<Frame<P>> {
        match self {
            Self::Fifo(queue) => queue.pop(),
            Self::CoDel { config, queue, control } => control.next(config, queue, 0, tally),
            Self::Fair(queue) => queue.next(tally),
            Self::Pie { config, queue, state } => {
                let frame = queue.pop()?;
                state.on_departure(config, tally.now, frame.entered, queue.bytes);
                Some(frame)
            }
            Self::StepMark { config, queue } => {
                let mut frame = queue.pop()?;
                if frame.is_ect && tally.now - frame.entered > config.threshold {
                    frame.mark(tally);
                }
                Some(frame)
            }
        }
    }

    /// The next frame, without drops and marks.
    pub(crate) fn take(&mut self) -> Option<Frame<P>> {
        match self {
            Self::Fifo(queue)
            | Self::CoDel { queue, .. }
            | Self::Pie { queue, .. }
            | Self::StepMark { queue, .. } => queue.pop(),
            Self::Fair(queue) => queue.take(),
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::stats::{Flows, LinkStats};
    use bats_types::Timestamp;

    /// A packet of a flow, both given by numbers.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Packet {
        pub(crate) number: u64,
        pub(crate) len: usize,
        pub(crate) flow: u64,
        pub(crate) is_ect: bool,
        pub(crate) is_marked: bool,
    }

    impl Payload for Packet {
        fn len(&self) -> usize {
            self.len
        }
        fn corrupt(&mut self, _at: usize, flip: u8) {
            self.number ^= u64::from(flip) << 32;
        }
        fn mark(&mut self) {
            self.is_marked = true;
        }
        fn flow(&self) -> u64 {
            self.flow
        }
        fn is_ect(&self) -> bool {
            self.is_ect
        }
    }

    /// A queue with its counters.
    pub(crate) struct Bench {
        pub(crate) stats: LinkStats,
        pub(crate) flows: Flows,
        pub(crate) backlog: Backlog,
        pub(crate) queue: Queue<Packet>,
        pub(crate) limits: Limits,
    }

    impl Bench {
        pub(crate) fn new(discipline: Discipline) -> Self {
            Self {
                stats: LinkStats::default(),
                flows: Flows::default(),
                backlog: Backlog::default(),
                queue: Queue::new(&discipline, 1),
                limits: Limits { bytes: None, packets: None },
            }
        }

        pub(crate) fn offer(&mut self, now: Timestamp, packet: Packet) -> Entry {
            use rand::SeedableRng;
            let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(packet.number);
            let frame = Frame {
                bytes: packet.len,
                flow: packet.flow,
                is_ect: packet.is_ect,
                entered: now,
                drawn: None,
                packet: Some(packet),
            };
            let Self { stats, flows, backlog, queue, limits } = self;
            queue.offer(frame, *limits, &mut Tally { now, stats, flows, backlog }, &mut rng)
        }

        pub(crate) fn next(&mut self, now: Timestamp) -> Option<Packet> {
            let Self { stats, flows, backlog, queue, .. } = self;
            let frame = queue.next(&mut Tally { now, stats, flows, backlog })?;
            backlog.remove(now, frame.bytes, stats);
            frame.packet
        }
    }

    #[test]
    fn step_marking_marks_packets_above_the_sojourn_threshold() {
        let threshold = Duration::from_millis(1);
        let mut bench = Bench::new(Discipline::StepMark(StepMark { threshold }));
        let start = Timestamp::from_millis(1);
        for number in 0..4 {
            let packet = Packet { number, len: 100, is_ect: number != 2, ..Packet::default() };
            bench.offer(start, packet);
        }
        let mut next =
            |micros| bench.next(start + Duration::from_micros(micros)).unwrap().is_marked;
        assert_eq!([next(0), next(1_000), next(1_001), next(1_001)], [false, false, false, true]);
        assert_eq!((bench.stats.marked_aqm, bench.stats.marked), (1, 0));
    }

    #[test]
    fn a_full_queue_drops_at_the_tail() {
        let mut bench = Bench::new(Discipline::DropTail);
        bench.limits = Limits { bytes: Some(1_000), packets: Some(3) };
        let packet = |number, len| Packet { number, len, ..Packet::default() };
        let now = Timestamp::from_millis(1);
        let lens = [500, 501, 500, 0, 0];
        let entries: Vec<Entry> =
            lens.iter().map(|&len| bench.offer(now, packet(0, len))).collect();
        let expected = [Entry::Queued, Entry::Full, Entry::Queued, Entry::Queued, Entry::Full];
        assert_eq!(entries, expected);
    }
}
