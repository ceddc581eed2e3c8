use std::collections::VecDeque;

use super::codel::{CoDel, Controller};
use crate::frame::{Frame, FrameQueue};
use crate::stats::{Reason, Tally};
use crate::{Payload, noise};

/// Maximum number of queues.
const MAX_FLOWS: usize = 65_536;
/// Minimum quantum, as in Linux. With a smaller one a turn could take many rounds.
const MIN_QUANTUM: usize = 256;
/// Number of packets dropped at once when the limit is exceeded (Linux `drop_batch`), so that the
/// search for the longest queue is amortised.
const DROP_BATCH: usize = 64;

/// Parameters of FQ-CoDel (RFC 8290). Its packet limit, 10,240 in Linux (section 5.2.1), is the
/// link's `queue_packets`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FqCoDel {
    /// Parameters of the CoDel of each queue. As in Linux, `mtu` is compared with the bytes of all
    /// queues together.
    pub codel: CoDel,
    /// Bytes that a queue may send per turn (section 5.2.3), at least 256.
    pub quantum: usize,
    /// Number of hash buckets for flows (section 5.2.4), 1..=65,536.
    pub flows: usize,
}

impl Default for FqCoDel {
    fn default() -> Self {
        Self { codel: CoDel::default(), quantum: 1_514, flows: 1_024 }
    }
}

#[derive(Debug)]
struct FlowQueue<P> {
    queue: FrameQueue<P>,
    control: Controller,
    deficit: i64,
    is_listed: bool,
}

/// The scheduler of section 4.
#[derive(Debug)]
pub(crate) struct FairQueue<P> {
    config: FqCoDel,
    perturbation: u64,
    flows: Vec<FlowQueue<P>>,
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    bytes: usize,
    packets: usize,
}

impl<P: Payload> FairQueue<P> {
    pub(super) fn new(config: FqCoDel, perturbation: u64) -> Self {
        let flow = || FlowQueue {
            queue: FrameQueue::default(),
            control: Controller::default(),
            deficit: 0,
            is_listed: false,
        };
        let flows = (0..config.flows.clamp(1, MAX_FLOWS)).map(|_| flow()).collect();
        let (new, old) = (VecDeque::new(), VecDeque::new());
        Self { config, perturbation, flows, new, old, bytes: 0, packets: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets == 0
    }

    fn quantum(&self) -> i64 {
        // The clamp is above every frame size.
        self.config.quantum.clamp(MIN_QUANTUM, 1 << 30) as i64
    }

    /// Section 4.1: the queue of a flow.
    fn index(&self, flow: u64) -> usize {
        (noise::word(self.perturbation, flow) % self.flows.len() as u64) as usize
    }

    pub(super) fn push(&mut self, frame: Frame<P>) {
        let (index, quantum) = (self.index(frame.flow), self.quantum());
        self.bytes = self.bytes.saturating_add(frame.bytes);
        self.packets += 1;
        let flow = &mut self.flows[index];
        flow.queue.push(frame);
        if !flow.is_listed {
            flow.is_listed = true;
            flow.deficit = quantum;
            self.new.push_back(index);
        }
    }

    /// Section 4.1: drops from the head of the longest queue until half of its bytes or a batch is
    /// dropped. Returns whether the last frame of the queue of `newest` remains.
    pub(super) fn drop_from_longest(&mut self, newest: u64, tally: &mut Tally<'_>) -> bool {
        let listed = self.new.iter().chain(&self.old).copied();
        let longest = listed.max_by_key(|&index| {
            (self.flows[index].queue.bytes, self.flows[index].queue.len(), usize::MAX - index)
        });
        let Some(index) = longest else { return true };
        let newest = self.index(newest);
        let flow = &mut self.flows[index];
        let half = flow.queue.bytes / 2;
        let (mut dropped, mut bytes) = (0, 0);
        while let Some(frame) = flow.queue.pop() {
            dropped += 1;
            bytes += frame.bytes;
            frame.drop_from(Reason::Queue, tally);
            if dropped >= DROP_BATCH || bytes >= half {
                break;
            }
        }
        // As in Linux, CoDel is notified of the congestion.
        flow.control.count = flow.control.count.saturating_add(dropped as u32);
        self.packets -= dropped;
        self.bytes = self.bytes.saturating_sub(bytes);
        index != newest || !flow.queue.is_empty()
    }

    /// Section 4.2: serves new queues first, then old ones, each until its deficit is used up.
    fn serve(
        &mut self,
        mut take: impl FnMut(&mut FlowQueue<P>, usize) -> Option<Frame<P>>,
    ) -> Option<Frame<P>> {
        let quantum = self.quantum();
        loop {
            let is_new = !self.new.is_empty();
            let index = *if is_new { self.new.front() } else { self.old.front() }?;
            let list = if is_new { &mut self.new } else { &mut self.old };
            let flow = &mut self.flows[index];
            if flow.deficit <= 0 {
                flow.deficit += quantum;
                list.pop_front();
                self.old.push_back(index);
                continue;
            }
            let before = (flow.queue.len(), flow.queue.bytes);
            let frame = take(flow, self.bytes - before.1);
            self.packets -= before.0 - flow.queue.len();
            self.bytes -= before.1 - flow.queue.bytes;
            if let Some(frame) = frame {
                flow.deficit -= i64::try_from(frame.bytes).unwrap_or(i64::MAX / 2);
                return Some(frame);
            }
            list.pop_front();
            if is_new && !self.old.is_empty() {
                // Otherwise a flow could return as new before all others have had a turn.
                self.old.push_back(index);
            } else {
                flow.is_listed = false;
            }
        }
    }

    pub(super) fn next(&mut self, tally: &mut Tally<'_>) -> Option<Frame<P>> {
        let codel = self.config.codel;
        self.serve(|flow, others| flow.control.next(&codel, &mut flow.queue, others, tally))
    }

    pub(super) fn take(&mut self) -> Option<Frame<P>> {
        self.serve(|flow, _| flow.queue.pop())
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use bats_types::Timestamp;

    use super::super::testing::{Bench, Packet};
    use super::super::{Discipline, Entry, Limits};
    use super::*;

    const START: Timestamp = Timestamp::from_millis(1_000);

    fn bench() -> Bench {
        Bench::new(Discipline::FqCoDel(FqCoDel::default()))
    }

    fn packet(flow: u64, number: u64, len: usize) -> Packet {
        Packet { flow, number, len, ..Packet::default() }
    }

    #[test]
    fn flows_get_equal_bytes_for_any_packet_size() {
        let mut bench = bench();
        for number in 0..300 {
            bench.offer(START, packet(1, number, 1_500));
        }
        for number in 0..3_000 {
            bench.offer(START, packet(2, number, 300));
        }
        let mut bytes = [0; 3];
        while bytes.iter().sum::<usize>() < 300_000 {
            let packet = bench.next(START).unwrap();
            bytes[packet.flow as usize] += packet.len;
        }
        assert!(bytes[1].abs_diff(bytes[2]) <= 2 * 1_514, "{bytes:?}");
    }

    #[test]
    fn a_sparse_flow_is_served_first() {
        let mut bench = bench();
        for number in 0..100 {
            for flow in 1..5 {
                bench.offer(START, packet(flow, number, 1_500));
            }
        }
        // Each flow has had its turn as a new one.
        (0..12).for_each(|_| assert!(bench.next(START).is_some()));
        for round in 0..20 {
            bench.offer(START, packet(9, round, 100));
            let first = bench.next(START).unwrap();
            assert_eq!((first.flow, first.number), (9, round));
            // The other flows get a turn, then the sparse flow leaves the list of old queues.
            (0..12).for_each(|_| assert_ne!(bench.next(START).unwrap().flow, 9));
        }
    }

    #[test]
    fn packets_of_a_flow_keep_their_order() {
        let mut bench = bench();
        for number in 0..400 {
            bench.offer(START, packet(number % 7, number, 100 + 90 * (number % 13) as usize));
        }
        let mut last = [None; 7];
        let mut count = 0;
        while let Some(packet) = bench.next(START) {
            let last = &mut last[packet.flow as usize];
            assert!(*last < Some(packet.number));
            *last = Some(packet.number);
            count += 1;
        }
        assert_eq!((count, bench.backlog.packets, bench.backlog.bytes), (400, 0, 0));
    }

    #[test]
    fn above_the_limit_the_longest_queue_is_dropped_from() {
        let mut bench = bench();
        bench.limits = Limits { bytes: None, packets: Some(100) };
        for number in 0..99 {
            bench.offer(START, packet(1, number, 1_500));
        }
        assert_eq!(bench.offer(START, packet(2, 0, 100)), Entry::Queued);
        assert_eq!(bench.offer(START, packet(2, 1, 100)), Entry::Queued);
        // 99 packets of 1,500 bytes are queued: 50 of them are half of the bytes.
        assert_eq!((bench.flows.get(1).dropped, bench.flows.get(2).dropped), (50, 0));
        assert_eq!((bench.stats.dropped_queue, bench.backlog.packets), (50, 51));
        assert_eq!(bench.next(START).unwrap().number, 50);
        // A queue with a limit of zero drops every packet.
        bench.limits.packets = Some(0);
        assert_eq!(bench.offer(START, packet(3, 0, 100)), Entry::Dropped);
        assert_eq!(bench.backlog.packets, 0);
        assert!(bench.next(START).is_none());
    }

    #[test]
    fn each_flow_has_its_own_controller() {
        let mut bench = bench();
        // One flow has a standing queue of 50 ms and more, another sends a packet at times.
        for number in 0..400 {
            bench.offer(START, packet(1, number, 1_500));
        }
        for ms in 1..300_u64 {
            let now = START + Duration::from_millis(ms);
            if ms % 10 == 0 {
                bench.offer(now, packet(2, ms, 100));
            }
            bench.next(now);
        }
        assert!(bench.flows.get(1).dropped >= 3, "{:?}", bench.flows);
        assert_eq!(bench.flows.get(2).dropped, 0);
    }

    #[test]
    fn extreme_parameters_do_not_panic_or_lose_packets() {
        for (quantum, flows) in [(0, 0), (usize::MAX, 1), (1, 3)] {
            let config = FqCoDel { quantum, flows, ..FqCoDel::default() };
            let mut bench = Bench::new(Discipline::FqCoDel(config));
            for number in 0..50 {
                bench.offer(START, packet(number, number, 60_000));
            }
            let served = core::iter::from_fn(|| bench.next(START)).count();
            assert_eq!(served, 50);
        }
    }
}
