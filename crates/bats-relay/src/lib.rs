//! Relays: flows over several links, recoded and repaired hop by hop.
//!
//! A [`Relay`] connects the links of a node. It takes authenticated relayed packets, keeps the
//! packets of each batch until the next node reports their rank, and supplies a link with packets
//! when its congestion window and pacer allow ([`Relay::pull`]). First come recoded packets for
//! rank that the next node is known to lack, then new packets unchanged, then, in idle slots,
//! recoded packets for expected losses. A source and a destination work in the same way, with no
//! link on their other side.
//!
//! A relay cannot read the flows: this crate has no keys, and it uses `bats-wire` without the frames
//! of sessions.
//!
//! Time is an argument; random choices derive from a seed.
#![forbid(unsafe_code)]

mod adaptive;
#[cfg(test)]
mod admission_tests;
mod batch;
#[cfg(test)]
mod bucket_tests;
mod coding;
mod config;
mod destination;
#[cfg(test)]
mod direct_tests;
mod flow;
mod forwards;
#[cfg(test)]
mod group_tests;
mod groups;
mod inbound;
mod ingress;
#[cfg(test)]
mod limit_tests;
mod link;
mod link_view;
#[cfg(test)]
mod loop_tests;
#[cfg(test)]
mod multipath_tests;
#[cfg(test)]
mod no_route_tests;
mod opaque;
mod outbound;
#[cfg(test)]
mod outbound_tests;
#[cfg(test)]
mod own_packet_tests;
mod policy;
#[cfg(test)]
mod queue_tests;
mod rate_limit;
#[cfg(test)]
mod rate_limit_tests;
mod rerouting;
mod room;
#[cfg(test)]
mod room_tests;
mod routes;
mod status;
#[cfg(test)]
mod status_tests;
#[cfg(test)]
mod tests;
mod timers;
mod traffic;
mod unrecoded;
mod unroutable;
mod unroutable_limit;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bats_types::Timestamp;

use bats_wire::batch_rank::BatchRank;
use bats_wire::flow::{FLOW_HEADER_LEN, FlowHeader, FlowKey, NodeId};
use bats_wire::short_header::PacketKind;
use bats_wire::varint::Writer;

pub use config::{
    MAX_FLOWS, MAX_NON_INNOVATIVE, MAX_OPAQUE, MAX_RECODED, MIN_FLOW_BYTES, NON_INNOVATIVE_WINDOW,
    RelayBatchStats, RelayConfig, RelayDropStats, RelayMemoryStats, RelayStats,
};
pub use destination::Destination;
use flow::Flow;
use groups::Groups;
pub use groups::{GroupEntry, GroupEntryError, MAX_GROUP_ENTRIES};
use inbound::report_interval;
use link::{Link, Links, is_alive};
pub use link_view::{LinkId, LinkView};
pub use policy::LinkPolicy;
use rate_limit::RateLimits;
pub use rate_limit::{LimitGroup, RateLimit};
use room::{memory_limit, window_packets};
use routes::Routes;
pub use routes::{MAX_PATHS, PathSetStats};
pub use status::{FlowStatus, LinkQueue};
use timers::Timers;
use unrecoded::Unrecoded;
use unroutable::UnroutableReports;
pub use unroutable_limit::MAX_UNROUTABLE;

/// A packet for this node itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// Its flow.
    pub key: FlowKey,
    /// Kind of the packet; [`PacketKind::Control`] is an end-to-end packet.
    pub kind: PacketKind,
    /// The payload behind the flow header.
    pub payload: &'a [u8],
}

/// Events for the owner of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RelayEvent {
    /// More than half of 1,000 coded packets from this link were non-innovative; reported once for
    /// each link. While it is more than [`MAX_NON_INNOVATIVE`], the link is not used if there is
    /// another one.
    NonInnovativeNeighbour(LinkId),
    /// Data sent over this link to that node was polluted. The link is no longer used for that node
    /// if there is another one.
    PollutingPath(LinkId, NodeId),
    /// A packet for this node was dropped because no route leads there. Reported at most once a
    /// second for a node, and for at most [`MAX_UNROUTABLE`] nodes in that time.
    Unroutable(NodeId),
}

/// The relay of a node.
#[derive(Debug)]
pub struct Relay {
    config: RelayConfig,
    seed: u64,
    links: Links,
    routes: Routes,
    /// Neighbours with which this node has direct sessions: the links with them are a route.
    direct: BTreeSet<NodeId>,
    groups: Groups,
    /// What is reported of missing routes.
    unroutable: UnroutableReports,
    flows: BTreeMap<FlowKey, Flow>,
    timers: Timers,
    /// Links with new packets to send.
    ready: BTreeSet<LinkId>,
    /// Links that became unresponsive, were removed, or have another neighbour now.
    lost: BTreeSet<LinkId>,
    events: VecDeque<RelayEvent>,
    limits: RateLimits,
    bytes: usize,
    /// Bytes of batch state of all flows.
    state: usize,
    stats: RelayStats,
}

impl Relay {
    /// A relay without links. `seed` determines every random choice and should differ between
    /// nodes.
    #[must_use]
    pub fn new(config: RelayConfig, seed: u64) -> Self {
        Self {
            config,
            seed,
            links: Links::new(),
            routes: Routes::default(),
            direct: BTreeSet::new(),
            groups: Groups::default(),
            unroutable: UnroutableReports::default(),
            flows: BTreeMap::new(),
            timers: Timers::default(),
            ready: BTreeSet::new(),
            lost: BTreeSet::new(),
            events: VecDeque::new(),
            limits: RateLimits::default(),
            bytes: 0,
            state: 0,
            stats: RelayStats::default(),
        }
    }

    /// ID of this node.
    #[inline]
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.config.node
    }

    /// Whether this relay recodes and repairs flows.
    #[inline]
    #[must_use]
    pub fn is_recoding(&self) -> bool {
        self.config.recoding
    }

    /// Counters and current memory use.
    #[must_use]
    pub fn stats(&self) -> RelayStats {
        RelayStats {
            flows: self.flows.len() as u64,
            memory: RelayMemoryStats {
                bytes_held: self.bytes as u64,
                state_bytes: self.state as u64,
                ..self.stats.memory
            },
            ..self.stats
        }
    }

    /// The next event.
    #[inline]
    pub fn pop_event(&mut self) -> Option<RelayEvent> {
        self.events.pop_front()
    }

    /// Admits a link whose other end is authenticated. `feedback` says whether both ends report
    /// ranks. Packets of links that were not admitted are dropped.
    pub fn add_link(&mut self, link: LinkId, feedback: bool) {
        self.links.entry(link).or_insert_with(|| Link::new(feedback && self.config.recoding));
        self.routes.on_link_change();
    }

    /// Sets what the packets of an admitted link may do, and which neighbour it leads to. By default they may do
    /// everything, and no neighbour is known.
    pub fn set_policy(&mut self, now: Timestamp, link: LinkId, policy: LinkPolicy) {
        let Some(state) = self.links.get_mut(&link) else { return };
        if let Some(limit) = policy.rate {
            self.limits.set(limit);
        }
        let neighbour = policy.neighbour;
        let before = core::mem::replace(&mut state.policy, policy).neighbour;
        self.drop_unused_limits();
        if neighbour != before {
            self.change_neighbour(now, link, before, neighbour);
        }
    }

    /// The admitted links with a neighbour, responsive ones first.
    #[must_use]
    pub fn links_with(&self, neighbour: NodeId) -> Vec<LinkId> {
        let links =
            self.links.iter().filter(|(_, state)| state.policy.neighbour == Some(neighbour));
        let mut found: Vec<LinkId> = links.map(|(&link, _)| link).collect();
        found.sort_by_key(|&link| !self.is_alive(link));
        found
    }

    /// Drops the limits that no link has any more.
    fn drop_unused_limits(&mut self) {
        let used = self.links.values().filter_map(|link| Some(link.policy.rate?.group));
        for key in self.limits.retain(&used.collect()) {
            self.activate(key);
        }
    }

    /// Whether a link was admitted.
    #[inline]
    #[must_use]
    pub fn has_link(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    /// Whether a link is responsive.
    #[must_use]
    pub fn is_alive(&self, link: LinkId) -> bool {
        is_alive(&self.links, link)
    }

    /// The admitted links to a node, of the lowest tier with a responsive one. Polluting and demoted
    /// links are left out while another link is responsive.
    pub fn routes(&self, destination: impl Into<Destination>) -> impl Iterator<Item = LinkId> {
        self.routes.usable(&self.links, destination.into())
    }

    /// Whether a link is one of the [`Relay::routes`] to a node.
    #[must_use]
    pub fn leads_to(&self, destination: impl Into<Destination>, link: LinkId) -> bool {
        self.routes(destination).any(|usable| usable == link)
    }

    /// The fastest link to a node: the responsive one with the shortest round trip, or the one with
    /// the shortest round trip of all if none is responsive.
    #[must_use]
    pub fn route(&self, destination: impl Into<Destination>) -> Option<LinkId> {
        self.routes.fastest(&self.links, destination.into())
    }

    /// Combined measurements of the links to a node.
    #[must_use]
    pub fn path_set(&self, destination: impl Into<Destination>) -> PathSetStats {
        self.routes.path_set(&self.links, destination.into())
    }

    /// The longest round trip of the links that a flow arrives over.
    #[must_use]
    pub fn slowest_inbound(&self, key: FlowKey) -> Duration {
        let links = self.flows.get(&key).into_iter().flat_map(|flow| flow.inbound.keys());
        let views = links.filter_map(|link| self.links.get(link)).map(|state| state.view);
        views.map(|view| view.smoothed_rtt).max().unwrap_or_default()
    }

    /// Whether a packet behind `backlog` bytes reaches the next node sooner over `link` than over
    /// the faster links after these have sent the backlog. A slow link delays short messages but
    /// helps with a long queue.
    #[must_use]
    pub fn is_worthwhile(
        &self,
        destination: impl Into<Destination>,
        link: LinkId,
        backlog: u64,
    ) -> bool {
        self.routes.is_worthwhile(&self.links, destination.into(), link, backlog)
    }

    /// All flows, in the order of their keys; at most [`MAX_FLOWS`].
    pub fn flows(&self, now: Timestamp) -> impl Iterator<Item = FlowStatus> {
        self.flows.iter().map(move |(key, flow)| flow.status(*key, now))
    }

    /// The packets of all flows that wait for a link; `None` if the link is not admitted.
    #[must_use]
    pub fn link_queue(&self, link: LinkId) -> Option<LinkQueue> {
        let outbounds = self.flows.values().filter_map(|flow| flow.outbound.get(&link));
        Some(LinkQueue::new(self.links.get(&link)?, outbounds.map(|outbound| &**outbound)))
    }

    /// Writes the next payload for a link, flow header included, to `out`. `number` is the number
    /// of the packet that will transport it.
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
        // The two kinds alternate: handshakes and reports that fill a slow link would starve all
        // data.
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
        self.stats.dropped.overflowed += state.opaque.take_expired();
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
        let alternatives = self.responsive_alternatives(link);
        let state = self.links.get_mut(&link)?;
        state.coded_turn = false;
        while let Some(&key) = state.active.front() {
            let flow = self.flows.get_mut(&key).filter(|flow| flow.outbound.contains_key(&link));
            let Some(flow) = flow else {
                state.deactivate_first();
                continue;
            };
            let sends_unrecoded = flow.has_unrecoded_for(now, self.limits.of(key), &alternatives);
            let Some(outbound) = flow.outbound.get_mut(&link) else { continue };
            let pulled = match sends_unrecoded.then(|| flow.unrecoded.pop_front()).flatten() {
                Some(Unrecoded { kind, hop_limit, limit, bytes }) => {
                    out.extend_from_slice(&bytes);
                    self.bytes -= Unrecoded::cost(bytes.len());
                    self.stats.forwarded += 1;
                    self.limits.charge(now, limit, bytes.len());
                    Some((kind, hop_limit))
                }
                None => {
                    let limits = (key, &mut self.limits);
                    outbound.pull(now, number, view, out, &mut self.stats, limits)
                }
            };
            if let Some((kind, hop_limit)) = pulled {
                flow.sent.add(out.len().saturating_sub(FLOW_HEADER_LEN));
                FlowHeader { key, hop_limit }.encode(&mut Writer::new(out))?;
                state.active.rotate_left(1);
                // Sending changes the times of this check and of reports only.
                let check_at = outbound.check_at();
                let report_at = flow.report_room(key, now);
                for at in check_at.into_iter().chain(report_at) {
                    self.timers.arm(key, flow, at);
                }
                return Some(kind);
            }
            state.deactivate_first();
            let check_at = outbound.check_at();
            // A neighbour's rate is no lack of credit: the link is idle.
            if outbound.queued() > 0 && !outbound.is_held_back(now, self.limits.of(key)) {
                state.block(key);
            }
            for group in flow.held_by(now, self.limits.of(key), link) {
                self.limits.wait(group, key);
            }
            // What was dropped before it was sent makes room, too.
            for at in check_at.into_iter().chain(flow.report_room(key, now)) {
                self.timers.arm(key, flow, at);
            }
        }
        None
    }

    /// The responsive links, if this one is not responsive. They take unrecoded packets instead of
    /// it.
    fn responsive_alternatives(&self, link: LinkId) -> Vec<LinkId> {
        if self.is_alive(link) {
            return Vec::new();
        }
        let responsive = self.links.iter().filter(|(_, state)| state.view.alive);
        responsive.map(|(&id, _)| id).collect()
    }

    /// Whether [`Relay::pull`] would return a packet other than an extra recoded one.
    #[must_use]
    pub fn wants(&self, now: Timestamp, link: LinkId) -> bool {
        let alternatives = self.responsive_alternatives(link);
        self.links.get(&link).is_some_and(|state| {
            state.opaque.is_due(now)
                || state.active.iter().any(|key| {
                    self.flows.get(key).is_some_and(|flow| {
                        let outbound = flow.outbound.get(&link);
                        outbound.is_some_and(|outbound| {
                            flow.has_unrecoded_for(now, self.limits.of(*key), &alternatives)
                                || outbound.wants(now, self.limits.of(*key))
                        })
                    })
                })
        })
    }

    /// Whether packets are queued for a link, including those that wait for the next node's credit.
    #[inline]
    #[must_use]
    pub fn has_backlog(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|state| state.has_backlog())
    }

    /// Processes a report of the neighbour on a link.
    pub fn on_report(&mut self, now: Timestamp, link: LinkId, view: &LinkView, report: &BatchRank) {
        self.set_view(now, link, view);
        let outbound =
            self.flows.get_mut(&report.key).and_then(|flow| flow.outbound.get_mut(&link));
        let Some(outbound) = outbound else { return };
        let before = outbound.bytes();
        outbound.on_report(now, report, view, &mut self.stats);
        self.bytes = self.bytes - before + outbound.bytes();
        self.activate(report.key);
        self.arm(report.key);
    }

    /// The next report to send on a link. `mark` is the largest packet number received on it.
    pub fn next_report(&mut self, now: Timestamp, link: LinkId, mark: u64) -> Option<BatchRank> {
        loop {
            let state = self.links.get_mut(&link)?;
            if let Some(report) = state.reports.pop_front() {
                return Some(report);
            }
            let key = state.reporting.pop_first()?;
            let view = state.view;
            let limit = state.policy.rate.map(|limit| limit.group);
            let Some(flow) = self.flows.get_mut(&key) else { continue };
            let is_group = key.destination.is_group();
            let is_end = key.destination == self.config.node
                || is_group && (self.groups.is_member(key.destination) || flow.outbound.is_empty());
            let queue = if is_end {
                (0, u64::from(u32::MAX))
            } else {
                let held: usize = flow.outbound.values().map(|outbound| outbound.bytes()).sum();
                let most = memory_limit(self.config.total_bytes, self.bytes - held);
                let queued = flow.queued(key);
                let rates = flow.outbound.iter().map(|(link, outbound)| {
                    let waiting =
                        self.links.get(link).map_or(1, |link| link.waiting_flows().max(1));
                    outbound.rate() / waiting as u64
                });
                // The fastest branch of a group sets the pace.
                let rate = if is_group { rates.max().unwrap_or(0) } else { rates.sum() };
                // A branch frees its oldest packets for new ones.
                let free = if is_group { most } else { most.saturating_sub(held) };
                let room = window_packets(rate, queued, &view)
                    .saturating_sub(queued)
                    .min(free as u64 / view.packet.max(1));
                let allowed = self.limits.room(limit, report_interval(&view), &view);
                let room = allowed.map_or(room, |allowed| room.min(allowed.saturating_sub(queued)));
                (queued, room)
            };
            let Some(inbound) = flow.inbound.get_mut(&link) else { continue };
            let reports = inbound.reports(now, key, mark, queue, &view);
            if let Some(state) = self.links.get_mut(&link) {
                state.reports.extend(reports);
            }
            let idle_timeout = self.config.idle_timeout;
            update(&mut self.state, &mut self.timers, idle_timeout, key, flow);
        }
    }

    /// Whether a report is due on this link.
    #[inline]
    #[must_use]
    pub fn has_report(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|s| !s.reporting.is_empty() || !s.reports.is_empty())
    }

    /// A link that got packets to send since the last call.
    #[inline]
    pub fn pop_ready(&mut self) -> Option<LinkId> {
        self.ready.pop_first()
    }

    /// A link that became unresponsive, was removed, or has another neighbour now. Sessions release the symbols that they
    /// assigned to it.
    #[inline]
    pub fn pop_lost(&mut self) -> Option<LinkId> {
        self.lost.pop_first()
    }

    fn arm(&mut self, key: FlowKey) {
        if let Some(flow) = self.flows.get_mut(&key) {
            let idle_timeout = self.config.idle_timeout;
            update(&mut self.state, &mut self.timers, idle_timeout, key, flow);
        }
    }

    /// Time of the next call of [`Relay::handle_timeout`].
    #[must_use]
    pub fn next_timeout(&self) -> Option<Timestamp> {
        let opaque = self.links.values().filter_map(|link| link.opaque.next_at());
        opaque.chain(self.limits.next_timeout()).chain(self.timers.next_at()).min()
    }

    /// Handles all timers that are due.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        for (&id, link) in &mut self.links {
            if link.opaque.notify(now) {
                self.ready.insert(id);
            }
        }
        for key in self.limits.due(now) {
            self.activate(key);
        }
        while let Some(key) = self.timers.pop_due(now) {
            let Some(flow) = self.flows.get_mut(&key) else { continue };
            flow.timer = None;
            if flow.last_used + self.config.idle_timeout <= now {
                self.forget(key);
                self.stats.flows_expired += 1;
                continue;
            }
            let mut checked = false;
            for outbound in flow.outbound.values_mut() {
                if outbound.check_at().is_some_and(|at| at <= now) {
                    let before = outbound.bytes();
                    outbound.check(now, &mut self.stats);
                    self.bytes = self.bytes - before + outbound.bytes();
                    checked = true;
                }
            }
            flow.report_room(key, now);
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
                    None => inbound.cancel_report(),
                }
            }
            if checked {
                flow.activate(key, &mut self.links, &mut self.ready);
            }
            let idle_timeout = self.config.idle_timeout;
            if flow.next_timeout(idle_timeout) <= now {
                // This loop would handle it again without end, and all flows would wait.
                self.forget(key);
                self.stats.flows_stuck += 1;
                continue;
            }
            update(&mut self.state, &mut self.timers, idle_timeout, key, flow);
        }
    }

    fn forget(&mut self, key: FlowKey) {
        if let Some(flow) = self.flows.remove(&key) {
            self.bytes -= flow.bytes();
            self.state -= flow.state;
        }
        self.limits.forget(key);
        for link in self.links.values_mut() {
            link.forget(key);
        }
    }
}

/// Counts the state of a flow that changed, and arms its timer.
fn update(
    state: &mut usize,
    timers: &mut Timers,
    idle_timeout: Duration,
    key: FlowKey,
    flow: &mut Flow,
) {
    flow.count_state(state);
    timers.arm(key, flow, flow.next_timeout(idle_timeout));
}
