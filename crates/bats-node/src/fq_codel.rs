//! FlowQueue-CoDel (RFC 8290): the queue in front of a session. In a tunnel without loss the senders
//! would fill every buffer. Here each flow has a queue of its own, whose delay CoDel (RFC 8289) keeps
//! near the target.

use std::collections::VecDeque;

use bats_types::Timestamp;
use std::time::Duration;

/// RFC 8290 section 5.2.3.
const QUEUES: usize = 1_024;
/// RFC 8289 section 4.4 ("TARGET") and 4.3 ("INTERVAL").
const TARGET: Duration = Duration::from_millis(5);
const INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of a flow per round: a super-packet is one unit of sending, so a smaller quantum would
/// only cause rounds without a packet.
const QUANTUM: i64 = 65_536;
/// CoDel drops nothing from a queue that holds at most one packet of the largest size (RFC 8289
/// section 4.4 "MAXPACKET").
const MAX_PACKET: usize = 65_536;

/// A packet with the time at which it was queued.
#[derive(Debug)]
struct Queued<T> {
    item: T,
    bytes: usize,
    since: Timestamp,
}

#[derive(Debug)]
struct Flow<T> {
    packets: VecDeque<Queued<T>>,
    bytes: usize,
    deficit: i64,
    is_listed: bool,
    /// CoDel's state (RFC 8289 section 5.3).
    first_above: Option<Timestamp>,
    drop_next: Timestamp,
    count: u32,
    last_count: u32,
    is_dropping: bool,
}

impl<T> Default for Flow<T> {
    fn default() -> Self {
        Self {
            packets: VecDeque::new(),
            bytes: 0,
            deficit: 0,
            is_listed: false,
            first_above: None,
            drop_next: Timestamp::ZERO,
            count: 0,
            last_count: 0,
            is_dropping: false,
        }
    }
}

/// Counters of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Packets that CoDel dropped.
    pub dropped: u64,
    /// Packets that CoDel marked.
    pub marked: u64,
    /// Packets that were dropped because the queue was full.
    pub overflowed: u64,
    /// Packets that wait now.
    pub packets: u64,
    /// Bytes that wait now.
    pub bytes: u64,
    /// Time that the last packet has waited.
    pub delay: Duration,
}

/// A packet that may leave.
#[derive(Debug, PartialEq, Eq)]
pub struct Dequeued<T> {
    /// The packet.
    pub item: T,
    /// Its time in the queue.
    pub delay: Duration,
}

/// Queues of flows with deficit round-robin between them and CoDel in each.
#[derive(Debug)]
pub struct FqCodel<T> {
    flows: Vec<Flow<T>>,
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    limit: usize,
    stats: QueueStats,
}

impl<T> FqCodel<T> {
    /// Queues that hold at most `limit` bytes together.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let flows = std::iter::repeat_with(Flow::default).take(QUEUES).collect();
        let (new, old) = (VecDeque::new(), VecDeque::new());
        Self { flows, new, old, limit, stats: QueueStats::default() }
    }

    /// Counters, and the packets and bytes that wait now.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        self.stats
    }

    /// Queues a packet of the flow with this hash. If the queue is full, packets of the longest flow
    /// are dropped from their front.
    pub fn push(&mut self, now: Timestamp, hash: u64, bytes: usize, item: T) {
        let index = (hash % QUEUES as u64) as usize;
        let flow = &mut self.flows[index];
        flow.packets.push_back(Queued { item, bytes, since: now });
        flow.bytes += bytes;
        self.stats.packets += 1;
        self.stats.bytes += bytes as u64;
        if !flow.is_listed {
            (flow.is_listed, flow.deficit) = (true, QUANTUM);
            self.new.push_back(index);
        }
        while self.stats.bytes > self.limit as u64 {
            let longest = (0..QUEUES).max_by_key(|&flow| self.flows[flow].bytes).unwrap_or(0);
            if self.take(longest).is_none() {
                break;
            }
            self.stats.overflowed += 1;
        }
    }

    fn take(&mut self, index: usize) -> Option<Queued<T>> {
        let flow = &mut self.flows[index];
        let packet = flow.packets.pop_front()?;
        flow.bytes -= packet.bytes;
        self.stats.packets -= 1;
        self.stats.bytes -= packet.bytes as u64;
        Some(packet)
    }

    /// Returns the next packet. `mark` marks a packet in place of dropping it, and says whether it
    /// could.
    pub fn pop(
        &mut self,
        now: Timestamp,
        mut mark: impl FnMut(&mut T) -> bool,
    ) -> Option<Dequeued<T>> {
        loop {
            let is_new = !self.new.is_empty();
            let list = if is_new { &mut self.new } else { &mut self.old };
            let index = *list.front()?;
            let flow = &mut self.flows[index];
            if flow.deficit <= 0 {
                flow.deficit += QUANTUM;
                list.pop_front();
                self.old.push_back(index);
                continue;
            }
            let Some(packet) = self.pop_by_codel(now, index, &mut mark) else {
                // RFC 8290 section 4.2: an empty new flow becomes old, so that it cannot starve
                // the others.
                let list = if is_new { &mut self.new } else { &mut self.old };
                list.pop_front();
                if is_new && !self.old.is_empty() {
                    self.old.push_back(index);
                } else {
                    self.flows[index].is_listed = false;
                }
                continue;
            };
            self.flows[index].deficit -= packet.bytes as i64;
            let delay = now.saturating_since(packet.since);
            self.stats.delay = delay;
            return Some(Dequeued { item: packet.item, delay });
        }
    }

    /// Takes a packet. Also returns whether the delay has been above the target for an interval.
    fn take_checked(&mut self, now: Timestamp, index: usize) -> (Option<Queued<T>>, bool) {
        let packet = self.take(index);
        let flow = &mut self.flows[index];
        let Some(packet) = packet else {
            flow.first_above = None;
            return (None, false);
        };
        let waited = now.saturating_since(packet.since);
        if waited < TARGET || flow.bytes <= MAX_PACKET {
            flow.first_above = None;
            return (Some(packet), false);
        }
        let at = *flow.first_above.get_or_insert(now + INTERVAL);
        (Some(packet), now >= at)
    }

    /// RFC 8289 section 5.5.
    fn pop_by_codel(
        &mut self,
        now: Timestamp,
        index: usize,
        mark: &mut impl FnMut(&mut T) -> bool,
    ) -> Option<Queued<T>> {
        let (mut packet, mut may_drop) = self.take_checked(now, index);
        if self.flows[index].is_dropping {
            if !may_drop {
                self.flows[index].is_dropping = false;
            }
            while self.flows[index].is_dropping && now >= self.flows[index].drop_next {
                let flow = &mut self.flows[index];
                flow.count = flow.count.saturating_add(1);
                let next = flow.drop_next;
                let count = flow.count;
                if packet.as_mut().is_some_and(|packet| mark(&mut packet.item)) {
                    self.stats.marked += 1;
                    self.flows[index].drop_next = control_law(next, count);
                    return packet;
                }
                self.stats.dropped += u64::from(packet.is_some());
                (packet, may_drop) = self.take_checked(now, index);
                match may_drop {
                    true => self.flows[index].drop_next = control_law(next, count),
                    false => self.flows[index].is_dropping = false,
                }
            }
        } else if may_drop {
            if packet.as_mut().is_some_and(|packet| mark(&mut packet.item)) {
                self.stats.marked += 1;
            } else {
                self.stats.dropped += u64::from(packet.is_some());
                packet = self.take_checked(now, index).0;
            }
            let flow = &mut self.flows[index];
            flow.is_dropping = true;
            let delta = flow.count.saturating_sub(flow.last_count);
            let is_recent = now.saturating_since(flow.drop_next) < INTERVAL * 16;
            flow.count = if delta > 1 && is_recent { delta } else { 1 };
            flow.drop_next = control_law(now, flow.count);
            flow.last_count = flow.count;
        }
        packet
    }
}

/// Time of the next drop: the interval shrinks with the square root of the drops so far.
fn control_law(from: Timestamp, count: u32) -> Timestamp {
    from + INTERVAL.div_f64(f64::from(count.max(1)).sqrt())
}
