//! What a relay keeps of a flow: its receiving and sending state by link. Chooses the link for each of
//! its packets.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use bats_types::Timestamp;
use bats_wire::batch_rank::Space;
use bats_wire::flow::FlowKey;

use super::inbound::{Inbound, OverAllLinks};
use super::link::{Links, is_alive};
use super::link_view::LinkId;
use super::opaque::DuplicateFilter;
use super::outbound::Outbound;
use super::rate_limit::{FlowLimits, LimitGroup};
use super::room::memory_limit;
use super::traffic::Traffic;
use super::unrecoded::UnrecodedQueue;

/// A flow over the relay.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) seed: u64,
    /// Receiving state by the link that packets arrive over; empty at the source. Values are boxed
    /// here and below because a B-tree node has space for eleven of them.
    pub(super) inbound: BTreeMap<LinkId, Box<Inbound>>,
    /// `None` while packets came over one link only: its state says what is new.
    pub(super) over_all_links: Option<Box<OverAllLinks>>,
    /// Sending state by the link to the next node; empty at the destination.
    pub(super) outbound: BTreeMap<LinkId, Box<Outbound>>,
    /// Packets that wait for a route.
    pub(super) unrouted: Option<Box<Outbound>>,
    pub(super) duplicates: DuplicateFilter,
    pub(super) received: Traffic,
    /// Coded packets sent to the next nodes.
    pub(super) sent: Traffic,
    pub(super) last_used: Timestamp,
    pub(super) timer: Option<Timestamp>,
    /// Newest BIDs of a flow that starts at this node.
    pub(super) newest: [u64; 2],
    /// Bytes of batch state at the last update.
    pub(super) state: usize,
    /// Packets forwarded without recoding.
    pub(super) unrecoded: UnrecodedQueue,
    /// A defect for tests: a timer that nothing handles.
    #[cfg(test)]
    pub(super) stuck: Option<Timestamp>,
}

impl Flow {
    /// A flow without links.
    pub(super) fn new(now: Timestamp, seed: u64) -> Self {
        Self {
            seed,
            inbound: BTreeMap::new(),
            over_all_links: None,
            outbound: BTreeMap::new(),
            unrouted: None,
            duplicates: DuplicateFilter::default(),
            received: Traffic::default(),
            sent: Traffic::default(),
            last_used: now,
            timer: None,
            newest: [0; 2],
            state: 0,
            unrecoded: UnrecodedQueue::default(),
            #[cfg(test)]
            stuck: None,
        }
    }

    /// Marks the flow as active on its links, which become ready: it may have packets for them.
    pub(super) fn activate(&self, key: FlowKey, links: &mut Links, ready: &mut BTreeSet<LinkId>) {
        for id in self.outbound.keys() {
            let Some(link) = links.get_mut(id) else { continue };
            link.activate(key);
            ready.insert(*id);
        }
    }

    /// Nothing more is received over a link. Packets that came over it must not be forwarded again if they come over
    /// another link.
    pub(super) fn stop_receiving(&mut self, link: LinkId) {
        if let Some(inbound) = self.inbound.remove(&link) {
            self.over_all_links.get_or_insert_with(|| Box::new(OverAllLinks::new(&inbound)));
        }
    }

    /// Bytes of the payloads held for transmission and repair.
    pub(super) fn bytes(&self) -> usize {
        let outbound = self.outbound.values().chain(&self.unrouted);
        outbound.map(|outbound| outbound.bytes()).sum::<usize>() + self.unrecoded.bytes()
    }

    /// Maximum number of bytes for a link, if `total` are for all flows, and these hold `all`. The branches of a
    /// group have equal parts of what their flow may take.
    pub(super) fn memory_limit(
        &self,
        key: FlowKey,
        link: LinkId,
        total: usize,
        all: usize,
    ) -> usize {
        if key.destination.is_group() {
            return memory_limit(total, all - self.bytes()) / self.outbound.len().max(1);
        }
        let own = self.outbound.get(&link).map_or(0, |outbound| outbound.bytes());
        memory_limit(total, all - own)
    }

    /// Packets that wait for their first transmission and hold the previous node back: of a group those of the
    /// branch with the fewest.
    pub(super) fn queued(&self, key: FlowKey) -> u64 {
        let queued = self.outbound.values().map(|outbound| outbound.queued() as u64);
        match key.destination.is_group() {
            true => queued.min().unwrap_or(0),
            false => queued.sum(),
        }
    }

    /// The link for a packet of this batch: the one that has other packets of the batch, or the one
    /// with the earliest arrival at the next node. The packet arrived over `from` and does not go
    /// back over it.
    pub(super) fn choose_link(
        &self,
        links: &Links,
        space: Space,
        batch: u64,
        from: LinkId,
    ) -> Option<LinkId> {
        if self.outbound.len() <= 1 {
            return self.outbound.keys().next().copied();
        }
        if let Some((&link, _)) = self
            .outbound
            .iter()
            .find(|(link, outbound)| outbound.holds(space, batch) && is_alive(links, **link))
        {
            return Some(link);
        }
        let cost = |link: &LinkId, outbound: &Outbound| {
            let view = links.get(link)?.view;
            let queued = outbound.queued() as u64 * view.packet;
            let wait = Duration::from_secs_f64(queued as f64 / view.rate.max(1) as f64);
            Some((!view.alive, wait.saturating_add(view.smoothed_rtt / 2), *link))
        };
        let others = self.outbound.iter().filter(|(link, _)| **link != from);
        others.filter_map(|(link, outbound)| cost(link, outbound)).min().map(|(_, _, link)| link)
    }

    /// Whether an unrecoded packet may be sent, and no link in `alternatives` can send it.
    pub(super) fn has_unrecoded_for(
        &self,
        now: Timestamp,
        limits: FlowLimits<'_>,
        alternatives: &[LinkId],
    ) -> bool {
        self.unrecoded.front().is_some_and(|first| limits.is_open(now, first.limit))
            && !alternatives.iter().any(|link| self.outbound.contains_key(link))
    }

    /// The groups whose rates hold back packets for a link.
    pub(super) fn held_by(
        &self,
        now: Timestamp,
        limits: FlowLimits<'_>,
        link: LinkId,
    ) -> BTreeSet<LimitGroup> {
        let outbound = self.outbound.get(&link);
        let held = outbound.into_iter().flat_map(|outbound| outbound.held_by(now, limits));
        let first = self.unrecoded.front().and_then(|first| first.limit);
        held.chain(first.filter(|group| !limits.is_open(now, Some(*group)))).collect()
    }

    /// Updates the flow's part in the bytes of state of all flows.
    pub(super) fn count_state(&mut self, all: &mut usize) {
        let inbound = self.inbound.values().map(|inbound| inbound.state_bytes());
        let over_all = self.over_all_links.iter().map(|over_all| over_all.state_bytes());
        let outbound = self.outbound.values().map(|outbound| outbound.state_bytes());
        let state = inbound.chain(over_all).chain(outbound).sum();
        *all = *all - core::mem::replace(&mut self.state, state) + state;
    }

    /// Schedules reports of more room here. Returns when the first is due.
    pub(super) fn report_room(&mut self, key: FlowKey, now: Timestamp) -> Option<Timestamp> {
        let queued = self.queued(key);
        let inbound = self.inbound.values_mut();
        inbound
            .filter_map(|inbound| {
                inbound.on_queue(now, queued);
                inbound.report_at()
            })
            .min()
    }

    /// When the flow has a report or a check to make, or is idle.
    pub(super) fn next_timeout(&self, idle_timeout: Duration) -> Timestamp {
        let idle = self.last_used + idle_timeout;
        let reports = self.inbound.values().filter_map(|inbound| inbound.report_at());
        let checks = self.outbound.values().filter_map(|outbound| outbound.check_at());
        let timers = reports.chain(checks);
        #[cfg(test)]
        let timers = timers.chain(self.stuck);
        timers.fold(idle, Timestamp::min)
    }
}
