//! Relays: flows that cross several links, recoded and repaired hop by hop.
//!
//! A [`Relay`] sits between the links of a node. It takes authenticated carried packets, keeps the
//! packets of each batch until the next node has their rank, and gives a link what it may send when
//! the link's window and pacer allow ([`Relay::pull`]): first combinations that the next node is
//! known to lack, then fresh packets as they are, then, in slots that nothing else wants,
//! combinations for losses that are to be expected. A source and a destination take part in the
//! same way, with no link on their other side.
//!
//! It cannot read what it carries: nothing here names a type of the ends.
//!
//! Time comes in as an argument, random choices follow from a seed.

mod adaptive;
mod config;
mod inbound;
mod intake;
#[cfg(test)]
mod limit_tests;
mod opaque;
mod outbound;
mod routes;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod ways_tests;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bats_types::Timestamp;

use crate::wire::batch_rank::BatchRank;
use crate::wire::flow::{FLOW_HEADER_LEN, FlowHeader, FlowKey, NodeId};
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Writer;

pub use config::{
    LEAST_FLOW_BYTES, MAX_FLOWS, MAX_OPAQUE, MAX_RECODED, MOST_USELESS, RelayConfig, RelayStats,
    USELESS_WINDOW,
};
use inbound::Inbound;
use opaque::{OpaqueQueue, Repetitions};
use outbound::Outbound;
pub use routes::{MAX_PATHS, PathSetStats};

/// Names a link of a node; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// How a link looks, from its own measurements.
#[derive(Clone, Copy, Debug)]
pub struct LinkView {
    /// Rate before loss, in bytes per second.
    pub rate: u64,
    /// Smoothed round-trip time.
    pub smoothed_rtt: Duration,
    /// Least round-trip time.
    pub min_rtt: Duration,
    /// Share of packets lost.
    pub loss: f64,
    /// Variance of the losses over that of independent ones, at least 1.
    pub burst_factor: f64,
    /// Bytes of a full packet.
    pub packet: u64,
    /// The other end was heard of late, as far as it was asked.
    pub alive: bool,
    /// Several answers are overdue: not to be used as long as there is another link to the same
    /// place.
    pub quiet: bool,
}

impl Default for LinkView {
    fn default() -> Self {
        Self {
            rate: 0,
            smoothed_rtt: Duration::from_millis(100),
            min_rtt: Duration::from_millis(100),
            loss: 0.0,
            burst_factor: 1.0,
            packet: 1_200,
            alive: true,
            quiet: false,
        }
    }
}

/// A packet for this node itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// Its flow.
    pub key: FlowKey,
    /// What it is; [`PacketKind::Control`]: an end-to-end packet.
    pub kind: PacketKind,
    /// What stands behind the flow header.
    pub payload: &'a [u8],
}

/// What the owner of a relay may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RelayEvent {
    /// More than half of 1,000 coded packets of this link brought nothing new; told once a link. As
    /// long as it is more than [`MOST_USELESS`], the link carries nothing where there is another one.
    UselessNeighbour(LinkId),
    /// What left over this link towards that node was altered on the way: the link carries nothing to
    /// it any more where there is another one.
    PollutingPath(LinkId, NodeId),
}

#[derive(Debug)]
struct Link {
    /// Both ends report ranks to each other.
    feedback: bool,
    view: LinkView,
    opaque: OpaqueQueue,
    /// A packet between the ends has left, and the next one is to be of a flow.
    coded_turn: bool,
    /// Flows that may have packets for the link, in order of their turns.
    active: VecDeque<FlowKey>,
    is_active: BTreeSet<FlowKey>,
    /// Flows whose packets wait for the next node's credit.
    blocked: BTreeSet<FlowKey>,
    /// Reports that wait to be written.
    reports: VecDeque<BatchRank>,
    /// Flows whose reports are due.
    reporting: BTreeSet<FlowKey>,
    received: u64,
    useless: u64,
    told: bool,
    /// Most of what comes is useless.
    demoted: bool,
}

#[derive(Debug)]
struct Flow {
    seed: u64,
    /// What has arrived, by the link that it came over; none where the flow begins. Boxed, as are those
    /// below: a node of the tree has room for eleven.
    inbound: BTreeMap<LinkId, Box<Inbound>>,
    /// What the next nodes are to have, by the link towards them; none where the flow ends.
    ways: BTreeMap<LinkId, Box<Outbound>>,
    /// What waits for a route.
    parked: Option<Box<Outbound>>,
    repetitions: Repetitions,
    last_used: Timestamp,
    timer: Option<Timestamp>,
    /// Newest BIDs of a flow that begins here.
    newest: [u64; 2],
    /// Bytes of what is known of batches, as counted last.
    state: usize,
    /// Packets passed on without being looked at.
    plain: VecDeque<(PacketKind, u8, Vec<u8>)>,
}

impl Flow {
    /// Whether a packet waits that any link may take, and none of the `better` ones leads there.
    fn has_plain_for(&self, better: &[LinkId]) -> bool {
        !self.plain.is_empty() && !better.iter().any(|link| self.ways.contains_key(link))
    }
}

/// The carrying part of a node.
#[derive(Debug)]
pub struct Relay {
    config: RelayConfig,
    seed: u64,
    links: BTreeMap<LinkId, Link>,
    routes: BTreeMap<NodeId, Vec<LinkId>>,
    /// Ways on which something was altered.
    lying: BTreeSet<(NodeId, LinkId)>,
    flows: BTreeMap<FlowKey, Flow>,
    timers: BTreeSet<(Timestamp, FlowKey)>,
    /// Links that have got something to send.
    ready: BTreeSet<LinkId>,
    /// Links that have fallen silent or are gone.
    lost: BTreeSet<LinkId>,
    events: VecDeque<RelayEvent>,
    bytes: usize,
    /// Bytes of what is known of batches, of all flows.
    state: usize,
    stats: RelayStats,
}

impl Relay {
    /// A relay without links; `seed` decides every random choice and differs from node to node.
    #[must_use]
    pub fn new(config: RelayConfig, seed: u64) -> Self {
        Self {
            config,
            seed,
            links: BTreeMap::new(),
            routes: BTreeMap::new(),
            lying: BTreeSet::new(),
            flows: BTreeMap::new(),
            timers: BTreeSet::new(),
            ready: BTreeSet::new(),
            lost: BTreeSet::new(),
            events: VecDeque::new(),
            bytes: 0,
            state: 0,
            stats: RelayStats::default(),
        }
    }

    /// This node's name.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.config.node
    }

    /// Whether flows are recoded and repaired here.
    #[must_use]
    pub fn is_recoding(&self) -> bool {
        self.config.recoding
    }

    /// Counters and what is held now.
    #[must_use]
    pub fn stats(&self) -> RelayStats {
        RelayStats {
            flows: self.flows.len() as u64,
            bytes_held: self.bytes as u64,
            state_bytes: self.state as u64,
            ..self.stats
        }
    }

    /// The next event.
    pub fn pop_event(&mut self) -> Option<RelayEvent> {
        self.events.pop_front()
    }

    /// Admits a link, whose other end is authenticated; `feedback` tells whether both ends report
    /// ranks. Packets of links that were not admitted are dropped.
    pub fn add_link(&mut self, link: LinkId, feedback: bool) {
        self.links.entry(link).or_insert_with(|| Link {
            feedback: feedback && self.config.recoding,
            view: LinkView::default(),
            opaque: OpaqueQueue::default(),
            coded_turn: false,
            active: VecDeque::new(),
            is_active: BTreeSet::new(),
            blocked: BTreeSet::new(),
            reports: VecDeque::new(),
            reporting: BTreeSet::new(),
            received: 0,
            useless: 0,
            told: false,
            demoted: false,
        });
    }

    /// Whether a link was admitted.
    #[must_use]
    pub fn has_link(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    /// The next payload for a link, flow header included, in `out`; `number` is that of the packet
    /// that will carry it.
    pub fn pull(
        &mut self,
        now: Timestamp,
        link: LinkId,
        view: &LinkView,
        number: u64,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        self.set_view(now, link, view);
        out.clear();
        out.resize(FLOW_HEADER_LEN, 0);
        // They take turns: handshakes and reports that fill a slow link would starve all data.
        if self.links.get(&link)?.coded_turn {
            let coded = self.pull_coded(now, link, view, number, out);
            return coded.or_else(|| {
                out.truncate(FLOW_HEADER_LEN);
                self.pull_opaque(now, link, view, out)
            });
        }
        let opaque = self.pull_opaque(now, link, view, out);
        opaque.or_else(|| self.pull_coded(now, link, view, number, out))
    }

    fn pull_opaque(
        &mut self,
        now: Timestamp,
        link: LinkId,
        view: &LinkView,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        let state = self.links.get_mut(&link)?;
        let pulled = state.opaque.pull(now, view, out);
        self.stats.overflowed += state.opaque.take_expired();
        pulled?.encode(&mut Writer::new(out))?;
        state.coded_turn = true;
        self.stats.opaque_sent += 1;
        Some(PacketKind::Control)
    }

    fn pull_coded(
        &mut self,
        now: Timestamp,
        link: LinkId,
        view: &LinkView,
        number: u64,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        let better = self.better_than(link);
        let state = self.links.get_mut(&link)?;
        state.coded_turn = false;
        while let Some(&key) = state.active.front() {
            let flow = self.flows.get_mut(&key).filter(|flow| flow.ways.contains_key(&link));
            let Some(flow) = flow else {
                state.active.pop_front();
                state.is_active.remove(&key);
                continue;
            };
            let waits = flow.has_plain_for(&better);
            let Some(way) = flow.ways.get_mut(&link) else { continue };
            let pulled = match waits.then(|| flow.plain.pop_front()).flatten() {
                Some((kind, hop_limit, bytes)) => {
                    out.extend_from_slice(&bytes);
                    self.bytes -= bytes.len();
                    self.stats.forwarded += 1;
                    Some((kind, hop_limit))
                }
                None => way.pull(now, number, view, out, &mut self.stats),
            };
            if let Some((kind, hop_limit)) = pulled {
                FlowHeader { key, hop_limit }.encode(&mut Writer::new(out))?;
                state.active.rotate_left(1);
                self.arm(key);
                return Some(kind);
            }
            state.active.pop_front();
            state.is_active.remove(&key);
            if way.queued() > 0 {
                state.blocked.insert(key);
            }
            if let Some(at) = way.check_at() {
                arm(&mut self.timers, key, flow, at);
            }
        }
        None
    }

    /// Whether [`Relay::pull`] would give a packet that was not made here.
    #[must_use]
    pub fn wants(&self, now: Timestamp, link: LinkId) -> bool {
        let better = self.better_than(link);
        self.links.get(&link).is_some_and(|state| {
            state.opaque.is_due(now)
                || state.active.iter().any(|key| {
                    self.flows.get(key).is_some_and(|flow| {
                        let way = flow.ways.get(&link);
                        way.is_some_and(|way| flow.has_plain_for(&better) || way.wants())
                    })
                })
        })
    }

    /// Whether packets wait for a link, be it for the next node's credit.
    #[must_use]
    pub fn has_backlog(&self, link: LinkId) -> bool {
        self.links
            .get(&link)
            .is_some_and(|state| !state.blocked.is_empty() || !state.active.is_empty())
    }

    /// Takes the report of the neighbour on a link.
    pub fn on_report(&mut self, now: Timestamp, link: LinkId, view: &LinkView, report: &BatchRank) {
        self.set_view(now, link, view);
        let way = self.flows.get_mut(&report.key).and_then(|flow| flow.ways.get_mut(&link));
        let Some(way) = way else { return };
        let before = way.bytes();
        way.on_report(now, report, view, &mut self.stats);
        self.bytes = self.bytes - before + way.bytes();
        self.activate(report.key);
        self.arm(report.key);
    }

    /// The next report that a link has to carry; `mark` is the largest packet number that has
    /// arrived on it.
    pub fn next_report(&mut self, now: Timestamp, link: LinkId, mark: u64) -> Option<BatchRank> {
        loop {
            let state = self.links.get_mut(&link)?;
            if let Some(report) = state.reports.pop_front() {
                return Some(report);
            }
            let key = state.reporting.pop_first()?;
            let view = state.view;
            let Some(flow) = self.flows.get_mut(&key) else { continue };
            let queue = if key.destination == self.config.node {
                (0, u64::from(u32::MAX))
            } else {
                let held: usize = flow.ways.values().map(|way| way.bytes()).sum();
                let ways = flow.ways.len().max(1);
                let allowed = flow.ways.values().map(|way| allowance(&self.config, way, ways));
                let room = allowed
                    .sum::<usize>()
                    .min(self.config.total_bytes.saturating_sub(self.bytes - held))
                    .saturating_sub(held);
                let queued: usize = flow.ways.values().map(|way| way.queued()).sum();
                (queued as u64, room as u64 / view.packet.max(1))
            };
            let Some(inbound) = flow.inbound.get_mut(&link) else { continue };
            let reports = inbound.reports(now, key, mark, queue, &view);
            if let Some(state) = self.links.get_mut(&link) {
                state.reports.extend(reports);
            }
            self.arm(key);
        }
    }

    /// Whether a report waits for this link.
    #[must_use]
    pub fn has_report(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|s| !s.reporting.is_empty() || !s.reports.is_empty())
    }

    /// A link that has got something to send since it was asked last.
    pub fn pop_ready(&mut self) -> Option<LinkId> {
        self.ready.pop_first()
    }

    /// A link that has fallen silent or is gone: what sessions have set aside for it is for others.
    pub fn pop_lost(&mut self) -> Option<LinkId> {
        self.lost.pop_first()
    }

    fn arm(&mut self, key: FlowKey) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let inbound = flow.inbound.values().map(|inbound| inbound.state_bytes());
        let state = inbound.chain(flow.ways.values().map(|way| way.state_bytes())).sum();
        self.state = self.state - core::mem::replace(&mut flow.state, state) + state;
        let idle = flow.last_used + self.config.idle_timeout;
        let reports = flow.inbound.values().filter_map(|inbound| inbound.report_at());
        let next = reports.chain(flow.ways.values().filter_map(|way| way.check_at())).min();
        arm(&mut self.timers, key, flow, next.map_or(idle, |at| at.min(idle)));
    }

    /// When [`Relay::handle_timeout`] wants to be called.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Timestamp> {
        let opaque = self.links.values().filter_map(|link| link.opaque.next_at());
        opaque.chain(self.timers.first().map(|&(at, _)| at)).min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        for (&id, link) in &mut self.links {
            if link.opaque.announce(now) {
                self.ready.insert(id);
            }
        }
        while let Some(&(at, key)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let Some(flow) = self.flows.get_mut(&key) else { continue };
            flow.timer = None;
            if flow.last_used + self.config.idle_timeout <= now {
                self.forget(key);
                self.stats.flows_expired += 1;
                continue;
            }
            let mut checked = false;
            for way in flow.ways.values_mut() {
                if way.check_at().is_some_and(|at| at <= now) {
                    let before = way.bytes();
                    way.check(now, &mut self.stats);
                    self.bytes = self.bytes - before + way.bytes();
                    checked = true;
                }
            }
            for (&link, inbound) in &mut flow.inbound {
                if inbound.report_at().is_none_or(|at| at > now) {
                    continue;
                }
                match self.links.get_mut(&link).filter(|state| state.feedback) {
                    Some(state) => {
                        state.reporting.insert(key);
                        self.ready.insert(link);
                        // The report itself sets when the next one is due.
                        inbound.postpone(now);
                    }
                    None => inbound.forget_report(),
                }
            }
            if checked {
                self.activate(key);
            }
            self.arm(key);
        }
    }

    fn forget(&mut self, key: FlowKey) {
        if let Some(flow) = self.flows.remove(&key) {
            let plain: usize = flow.plain.iter().map(|(_, _, bytes)| bytes.len()).sum();
            let ways = flow.ways.values().chain(&flow.parked).map(|way| way.bytes());
            self.bytes -= ways.sum::<usize>() + plain;
            self.state -= flow.state;
        }
        for link in self.links.values_mut() {
            link.opaque.forget(key);
            link.reporting.remove(&key);
            link.blocked.remove(&key);
        }
    }
}

/// What a flow may hold for one of the `ways` links that it leaves by.
fn allowance(config: &RelayConfig, outbound: &Outbound, ways: usize) -> usize {
    let most = config.flow_bytes.max(LEAST_FLOW_BYTES);
    let least = LEAST_FLOW_BYTES / ways;
    usize::try_from(outbound.needs()).unwrap_or(most).clamp(least, (most / ways).max(least))
}

/// Makes sure that a flow is looked at by then. Timers that come too early are harmless.
fn arm(timers: &mut BTreeSet<(Timestamp, FlowKey)>, key: FlowKey, flow: &mut Flow, at: Timestamp) {
    if flow.timer.is_some_and(|armed| armed <= at) {
        return;
    }
    if let Some(armed) = flow.timer.replace(at) {
        timers.remove(&(armed, key));
    }
    timers.insert((at, key));
}
