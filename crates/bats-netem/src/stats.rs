use std::collections::BTreeMap;

use bats_types::Timestamp;

/// Maximum number of flows with counters of their own; all further flows share one set.
pub const MAX_COUNTED_FLOWS: usize = 4_096;

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkStats {
    /// Packets handed to the link.
    pub offered: u64,
    /// Packets delivered, including duplicates.
    pub delivered: u64,
    /// Bytes delivered.
    pub delivered_bytes: u64,
    /// Packets dropped because the queue was full; with FQ-CoDel, from the longest queue.
    pub dropped_queue: u64,
    /// Packets dropped by the loss model.
    pub dropped_loss: u64,
    /// Packets dropped because they exceed the MTU.
    pub dropped_mtu: u64,
    /// Packets dropped by a black hole.
    pub dropped_black_hole: u64,
    /// Packets dropped by the policer.
    pub dropped_policer: u64,
    /// Packets dropped by CoDel (also that of FQ-CoDel) or PIE.
    pub dropped_aqm: u64,
    /// Packets dropped in a hole (see [`Holes`](crate::Holes)).
    pub dropped_hole: u64,
    /// Packets dropped by the loss that depends on the rate.
    pub dropped_fade: u64,
    /// Packets dropped by acknowledgement thinning.
    pub dropped_thinned: u64,
    /// Packets duplicated.
    pub duplicated: u64,
    /// Packets corrupted.
    pub corrupted: u64,
    /// Packets marked with ECN-CE on entry because of the queue length in bytes.
    pub marked: u64,
    /// Packets marked with ECN-CE by CoDel, FQ-CoDel, PIE or a threshold of the sojourn time.
    pub marked_aqm: u64,
    /// Integral of the queue length over time, in byte-seconds.
    pub queue_byte_seconds: f64,
    /// Maximum queue length in bytes.
    pub queue_bytes_max: usize,
}

impl LinkStats {
    /// Packets dropped, for any reason.
    pub fn dropped(&self) -> u64 {
        self.dropped_queue
            + self.dropped_loss
            + self.dropped_mtu
            + self.dropped_black_hole
            + self.dropped_policer
            + self.dropped_aqm
            + self.dropped_hole
            + self.dropped_fade
            + self.dropped_thinned
    }

    /// Packets queued or in transit, including duplicates.
    pub fn in_flight(&self) -> u64 {
        (self.offered + self.duplicated).saturating_sub(self.delivered + self.dropped())
    }
}

/// Counters of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowStats {
    /// Packets dropped by the queue, its discipline or the policer.
    pub dropped: u64,
    /// Packets dropped by loss models, holes and fades.
    pub lost: u64,
    /// Packets marked with ECN-CE.
    pub marked: u64,
}

/// Counters by flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flows {
    flows: BTreeMap<u64, FlowStats>,
    others: FlowStats,
}

impl Flows {
    pub(crate) fn of(&mut self, flow: u64) -> &mut FlowStats {
        if self.flows.len() >= MAX_COUNTED_FLOWS && !self.flows.contains_key(&flow) {
            return &mut self.others;
        }
        self.flows.entry(flow).or_default()
    }

    pub(crate) fn get(&self, flow: u64) -> FlowStats {
        self.flows.get(&flow).copied().unwrap_or_default()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, FlowStats)> {
        self.flows.iter().map(|(&flow, &stats)| (flow, stats))
    }

    pub(crate) fn others(&self) -> FlowStats {
        self.others
    }
}

/// Why a packet was dropped after its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Queue,
    Aqm,
    Policer,
    Loss,
    Hole,
    Fade,
}

/// The queue length, and its integral over time.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    pub(crate) bytes: usize,
    pub(crate) packets: usize,
    since: Timestamp,
}

impl Backlog {
    /// Advances the integral to `until`.
    #[inline]
    pub(crate) fn account(&mut self, until: Timestamp, stats: &mut LinkStats) {
        let elapsed = (until - self.since).as_secs_f64();
        stats.queue_byte_seconds += self.bytes as f64 * elapsed;
        self.since = self.since.max(until);
    }

    #[inline]
    pub(crate) fn add(&mut self, bytes: usize, stats: &mut LinkStats) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.packets += 1;
        stats.queue_bytes_max = stats.queue_bytes_max.max(self.bytes);
    }

    #[inline]
    pub(crate) fn remove(&mut self, at: Timestamp, bytes: usize, stats: &mut LinkStats) {
        self.account(at, stats);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.packets = self.packets.saturating_sub(1);
    }
}

/// The counters that a discipline updates.
pub(crate) struct Tally<'a> {
    pub(crate) now: Timestamp,
    pub(crate) stats: &'a mut LinkStats,
    pub(crate) flows: &'a mut Flows,
    pub(crate) backlog: &'a mut Backlog,
}

impl Tally<'_> {
    pub(crate) fn count(&mut self, flow: u64, reason: Reason) {
        let flow = self.flows.of(flow);
        match reason {
            Reason::Queue | Reason::Aqm | Reason::Policer => flow.dropped += 1,
            Reason::Loss | Reason::Hole | Reason::Fade => flow.lost += 1,
        }
        let stats = &mut self.stats;
        *match reason {
            Reason::Queue => &mut stats.dropped_queue,
            Reason::Aqm => &mut stats.dropped_aqm,
            Reason::Policer => &mut stats.dropped_policer,
            Reason::Loss => &mut stats.dropped_loss,
            Reason::Hole => &mut stats.dropped_hole,
            Reason::Fade => &mut stats.dropped_fade,
        } += 1;
    }
}
