//! Packets that enter the relay, from links and from this node's own sessions. Each is assigned to
//! its flow, classified as innovative or not, and put into the buffers of the next hop.

use bats_code::recode::{CoefficientVector, unit_vector};
use bats_types::Timestamp;

use super::coding::Coded;
use super::config::{
    MAX_FLOWS, MAX_NON_INNOVATIVE, MIN_FLOW_BYTES, NON_INNOVATIVE_WINDOW as WINDOW,
};
use super::flow::Flow;
use super::inbound::{Arrival, OverAllLinks, batch_timeout};
use super::link::Links;
use super::link_view::{LinkId, LinkView};
use super::outbound::Outbound;
use super::rate_limit::LimitGroup;
use super::room::memory_limit;
use super::unrecoded::Unrecoded;
use super::{Delivery, Relay, RelayEvent, update};
use bats_wire::batch_rank::Space;
use bats_wire::coding::{CodingHeader, expand};
use bats_wire::flow::{FLOW_HEADER_LEN, FlowHeader, FlowKey};
use bats_wire::short_header::PacketKind;
use bats_wire::varint::{Reader, Writer};

impl Relay {
    /// Processes the payload of a relayed packet, behind the hop header. Returns the packet if it
    /// is for this node.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub fn on_packet<'a>(
        &mut self,
        now: Timestamp,
        link: LinkId,
        view: &LinkView,
        kind: PacketKind,
        payload: &'a [u8],
    ) -> Option<Delivery<'a>> {
        self.links.get(&link)?;
        self.set_view(now, link, view);
        self.stats.received = self.stats.received.saturating_add(1);
        let mut reader = Reader::new(payload);
        let Some(header) = FlowHeader::decode(&mut reader) else {
            self.stats.dropped.malformed = self.stats.dropped.malformed.saturating_add(1);
            return None;
        };
        let payload = reader.rest();
        let key = header.key;
        if key.source.is_group() {
            self.stats.dropped.refused = self.stats.dropped.refused.saturating_add(1);
            return None;
        }
        if key.source == self.config.node {
            self.stats.dropped.looped = self.stats.dropped.looped.saturating_add(1);
            return None;
        }
        let is_group = key.destination.is_group();
        if is_group && !self.groups.accepts(key, link) {
            self.stats.dropped.not_incoming = self.stats.dropped.not_incoming.saturating_add(1);
            return None;
        }
        let here = self.is_for_this_node(key);
        let policy = self.links.get(&link).map(|state| &state.policy);
        let Some(policy) = policy.filter(|policy| policy.allows(key, here)) else {
            self.stats.dropped.refused = self.stats.dropped.refused.saturating_add(1);
            return None;
        };
        let mut onward = match is_group {
            true => policy.transit && self.groups.has_branches(key),
            false => !here,
        };
        if onward && !is_group {
            // A packet is never sent back over the link that it came from.
            let has_next_hop = self.routes(key.destination).any(|next| next != link);
            if !has_next_hop {
                let leads_back = self.routes(key.destination).next().is_some();
                match leads_back {
                    true => self.stats.dropped.looped = self.stats.dropped.looped.saturating_add(1),
                    false => self.on_unroutable(now, key, kind, payload),
                }
                return None;
            }
        }
        if onward && header.hop_limit == 0 {
            self.stats.dropped.hop_limit = self.stats.dropped.hop_limit.saturating_add(1);
            if !here {
                return None;
            }
            onward = false;
        }
        if !self.open_flow(now, key, Some(payload.len())) {
            return None;
        }
        let hop_limit = header.hop_limit.saturating_sub(1);
        let delivery = if kind == PacketKind::Control {
            self.on_opaque(now, link, FlowHeader { key, hop_limit }, payload, (here, onward))
        } else {
            self.on_coded(now, link, key, (kind, hop_limit), payload, (here, onward))
        };
        self.arm(key);
        delivery.then_some(Delivery { key, kind, payload })
    }

    /// Finds or creates a flow, and counts a packet with this payload that was received for it. Returns false if
    /// there are too many flows.
    pub(super) fn open_flow(
        &mut self,
        now: Timestamp,
        key: FlowKey,
        received: Option<usize>,
    ) -> bool {
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.last_used = now;
            received.into_iter().for_each(|bytes| flow.received.add(bytes));
            return true;
        }
        if self.flows.len() >= MAX_FLOWS || self.state >= self.config.total_bytes {
            self.stats.dropped.overflowed += 1;
            return false;
        }
        let mix = u64::from(key.flow) << 32 | u64::from(key.source.0);
        let mut flow = Flow::new(now, self.seed ^ mix.wrapping_mul(0xd6e8_feb8_6659_fd93));
        if key.destination != self.config.node {
            let is_group = key.destination.is_group();
            let links = match is_group {
                true => self.groups.links_of(&self.links, key),
                false => self.routes(key).collect(),
            };
            flow.outbound.extend(links.into_iter().map(|link| {
                let feedback = self.links.get(&link).is_some_and(|state| state.feedback);
                (link, Box::new(Outbound::new(flow.seed, feedback, is_group)))
            }));
        }
        received.into_iter().for_each(|bytes| flow.received.add(bytes));
        self.flows.insert(key, flow);
        true
    }

    /// Marks the flow as active on its links: it may have packets for them.
    pub(super) fn activate(&mut self, key: FlowKey) {
        if let Some(flow) = self.flows.get(&key) {
            flow.activate(key, &mut self.links, &mut self.ready);
        }
    }

    /// Whether this node is the destination, or a member of the group that is.
    pub(super) fn is_for_this_node(&self, key: FlowKey) -> bool {
        key.destination == self.config.node || self.groups.is_member(key.destination)
    }

    /// The limit of the packets that come over a link.
    fn limit_of(&self, link: LinkId) -> Option<LimitGroup> {
        Some(self.links.get(&link)?.policy.rate?.group)
    }

    /// Handles a packet for this node (`here`), for others (`onward`), or for both. Returns whether to deliver it
    /// at this node.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn on_opaque(
        &mut self,
        now: Timestamp,
        link: LinkId,
        header: FlowHeader,
        payload: &[u8],
        (here, onward): (bool, bool),
    ) -> bool {
        let Some(flow) = self.flows.get_mut(&header.key) else { return false };
        if flow.duplicates.is_duplicate(payload) {
            self.stats.dropped.repeated = self.stats.dropped.repeated.saturating_add(1);
            return false;
        }
        if onward {
            let limit = self.limit_of(link);
            if self.limits.accepts(now, limit, payload.len()) {
                self.push_onward(now, header, payload);
            } else {
                self.stats.dropped.rate_limited = self.stats.dropped.rate_limited.saturating_add(1);
            }
        }
        here
    }

    /// The link for an answer in a direct flow that belongs to no session, so that the links with the neighbour are no
    /// route.
    fn first_link_with_end(&self, key: FlowKey) -> Option<LinkId> {
        let links = if key.is_direct() { self.links_with(key.destination) } else { Vec::new() };
        links.first().copied()
    }

    /// Queues an end-to-end packet for the next node, or for those of all branches.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn push_onward(&mut self, now: Timestamp, header: FlowHeader, payload: &[u8]) {
        if !header.key.destination.is_group() {
            let next = self.route(header.key).or_else(|| self.first_link_with_end(header.key));
            return self.push_opaque(now, next, header, payload);
        }
        for link in self.groups.links_of(&self.links, header.key) {
            self.push_opaque(now, Some(link), header, payload);
        }
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn push_opaque(
        &mut self,
        now: Timestamp,
        link: Option<LinkId>,
        header: FlowHeader,
        payload: &[u8],
    ) {
        let Some((id, link)) = link.and_then(|id| Some((id, self.links.get_mut(&id)?))) else {
            return self.on_unroutable(now, header.key, PacketKind::Control, payload);
        };
        if link.opaque.push(now, header, payload) {
            self.ready.insert(id);
        } else {
            self.stats.dropped.overflowed = self.stats.dropped.overflowed.saturating_add(1);
        }
    }

    /// A packet is dropped because no route leads to its destination: reports it, and sends NO_ROUTE to
    /// the source. `payload` is what follows the flow header.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn on_unroutable(&mut self, now: Timestamp, key: FlowKey, kind: PacketKind, payload: &[u8]) {
        self.stats.dropped.unroutable = self.stats.dropped.unroutable.saturating_add(1);
        if key.is_direct() {
            // Its session waits for a link with the neighbour.
            return;
        }
        if self.unroutable.allows_event(now, key.destination, self.events.len()) {
            self.events.push_back(RelayEvent::Unroutable(key.destination));
        }
        let here = self.config.node;
        let Some((back, hint)) = self.unroutable.no_route(now, here, key, kind, payload) else {
            return;
        };
        if let Some(link) = self.route(back.destination) {
            let header =
                FlowHeader { key: back, hop_limit: self.config.hop_limit.saturating_sub(1) };
            self.push_opaque(now, Some(link), header, &hint);
            self.stats.no_route_sent = self.stats.no_route_sent.saturating_add(1);
        }
    }

    /// As [`Self::on_opaque`], for a coded packet.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn on_coded(
        &mut self,
        now: Timestamp,
        link: LinkId,
        key: FlowKey,
        (kind, hop_limit): (PacketKind, u8),
        payload: &[u8],
        (here, onward): (bool, bool),
    ) -> bool {
        let mut reader = Reader::new(payload);
        let header = CodingHeader::decode(kind, &mut reader);
        let symbol = reader.rest();
        let (Some(header), false) = (header, symbol.is_empty()) else {
            self.stats.dropped.malformed = self.stats.dropped.malformed.saturating_add(1);
            return false;
        };
        if !self.config.recoding {
            if here {
                self.stats.delivered = self.stats.delivered.saturating_add(1);
            } else if self.is_new_over_all_links(now, link, key, &parts(&header)) {
                self.forward_unrecoded(key, (kind, hop_limit), self.limit_of(link), payload);
            } else {
                self.stats.dropped.non_innovative =
                    self.stats.dropped.non_innovative.saturating_add(1);
            }
            return here;
        }
        let Some((flow, link_state)) = self.flows.get_mut(&key).zip(self.links.get_mut(&link))
        else {
            return false;
        };
        let (space, wire_batch, window, vector) = parts(&header);
        let view = link_state.view;
        if flow.over_all_links.is_none()
            && let Some((_, other)) = flow.inbound.iter().find(|(other, _)| **other != link)
        {
            flow.over_all_links = Some(Box::new(OverAllLinks::new(other)));
        }
        let is_over_one_link = flow.over_all_links.is_none();
        let inbound = flow.inbound.entry(link).or_default();
        if self.state >= self.config.total_bytes && !inbound.holds(space, wire_batch) {
            self.stats.dropped.overflowed = self.stats.dropped.overflowed.saturating_add(1);
            return false;
        }
        let (batch, arrival) = inbound.on_packet(now, space, wire_batch, &vector, &view);
        if !link_state.feedback {
            // The previous node does not accept reports.
        } else if inbound.report_at().is_some_and(|at| at <= now) {
            link_state.reporting.insert(key);
            self.ready.insert(link);
            // The report itself sets when the next one is due; it needs no timer.
            inbound.postpone(now);
        }
        link_state.received = link_state.received.saturating_add(1);
        match arrival {
            Arrival::Innovative => {}
            Arrival::NonInnovative => {
                self.stats.dropped.non_innovative =
                    self.stats.dropped.non_innovative.saturating_add(1);
                link_state.non_innovative = link_state.non_innovative.saturating_add(1);
            }
            Arrival::Late => {
                self.stats.dropped.late = self.stats.dropped.late.saturating_add(1);
                link_state.non_innovative = link_state.non_innovative.saturating_add(1);
            }
        }
        if link_state.received == WINDOW {
            let is_acceptable = link_state.non_innovative <= MAX_NON_INNOVATIVE;
            if link_state.non_innovative.saturating_mul(2) > WINDOW && !link_state.event_sent {
                link_state.event_sent = true;
                self.events.push_back(RelayEvent::NonInnovativeNeighbour(link));
            }
            (link_state.received, link_state.non_innovative) = (0, 0);
            self.demote(now, link, !is_acceptable);
        }
        if arrival != Arrival::Innovative {
            return false;
        }
        self.stats.delivered = self.stats.delivered.saturating_add(u64::from(here));
        let parts = (space, wire_batch, window, vector);
        // Of a group, what arrives before there are branches counts too: they do not get it later.
        let counts = !is_over_one_link && (onward || key.destination.is_group());
        let is_new = !counts || self.is_new_over_all_links(now, link, key, &parts);
        if !onward {
            return here;
        }
        if !is_new {
            self.stats.dropped.non_innovative = self.stats.dropped.non_innovative.saturating_add(1);
            return here;
        }
        let limit = self.limit_of(link);
        let coded = Coded { space, batch, window, vector, payload: symbol, hop_limit, limit };
        match key.destination.is_group() {
            true => self.add_to_branches(now, key, &coded),
            false => {
                self.add(
                    now,
                    key,
                    |flow, links| flow.choose_link(links, space, batch, link),
                    &coded,
                );
            }
        }
        here
    }

    /// Whether a packet adds to what arrived over all links. Without this, packets would go round
    /// in a routing loop until their hop limit.
    fn is_new_over_all_links(
        &mut self,
        now: Timestamp,
        link: LinkId,
        key: FlowKey,
        (space, batch, _, vector): &(Space, u32, (u32, u16), CoefficientVector),
    ) -> bool {
        let Some(flow) = self.flows.get_mut(&key) else { return false };
        let links = flow.inbound.keys().chain([&link]).filter_map(|link| self.links.get(link));
        let longest = links.map(|link| batch_timeout(&link.view)).max().unwrap_or_default();
        let over_all_links = flow.over_all_links.get_or_insert_default();
        over_all_links.is_innovative(now, *space, *batch, vector, longest)
    }

    fn forward_unrecoded(
        &mut self,
        key: FlowKey,
        (kind, hop_limit): (PacketKind, u8),
        limit: Option<LimitGroup>,
        payload: &[u8],
    ) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let (held, cost) = (flow.unrecoded.bytes(), Unrecoded::cost(payload.len()));
        // No reports hold the previous nodes back, so the queue is limited to a round trip.
        let queues = flow.outbound.values().map(|outbound| outbound.round_trip_bytes());
        let most = usize::try_from(queues.sum::<u64>()).unwrap_or(usize::MAX).max(MIN_FLOW_BYTES);
        let most = memory_limit(self.config.total_bytes, self.bytes - held).min(most);
        if held + cost > most {
            self.stats.dropped.overflowed += 1;
            return;
        }
        flow.unrecoded.push_back(Unrecoded { kind, hop_limit, limit, bytes: payload.to_vec() });
        self.bytes += cost;
        self.stats.memory.bytes_peak = self.stats.memory.bytes_peak.max(self.bytes as u64);
        flow.activate(key, &mut self.links, &mut self.ready);
    }

    /// Adds a packet to the buffers of its flow for the link that `choose` returns, within the memory limits.
    fn add(
        &mut self,
        now: Timestamp,
        key: FlowKey,
        choose: impl FnOnce(&Flow, &Links) -> Option<LinkId>,
        coded: &Coded<'_>,
    ) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let Some(link) = choose(flow, &self.links) else { return };
        let limit = flow.memory_limit(key, link, self.config.total_bytes, self.bytes);
        let Some(outbound) = flow.outbound.get_mut(&link) else { return };
        let others = self.bytes - outbound.bytes();
        if !outbound.add(now, coded, &mut self.stats) {
            self.stats.dropped.non_innovative += 1;
        }
        outbound.drop_overdue(now, &mut self.stats);
        outbound.shed(limit, &mut self.stats);
        self.bytes = others + outbound.bytes();
        self.stats.memory.bytes_peak = self.stats.memory.bytes_peak.max(self.bytes as u64);
        flow.activate(key, &mut self.links, &mut self.ready);
    }

    /// Adds a packet to the buffers of all branches. Each has limits of its own, so none waits for another.
    pub(super) fn add_to_branches(&mut self, now: Timestamp, key: FlowKey, coded: &Coded<'_>) {
        let Some(flow) = self.flows.get(&key) else { return };
        for link in flow.outbound.keys().copied().collect::<Vec<LinkId>>() {
            self.add(now, key, |_, _| Some(link), coded);
        }
    }

    /// Frees packets of a flow for a link until the flow is within its limits.
    pub(super) fn shed(&mut self, key: FlowKey, link: LinkId) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let limit = flow.memory_limit(key, link, self.config.total_bytes, self.bytes);
        let Some(outbound) = flow.outbound.get_mut(&link) else { return };
        let others = self.bytes - outbound.bytes();
        outbound.shed(limit, &mut self.stats);
        self.bytes = others + outbound.bytes();
    }

    /// Sends an end-to-end packet of a session of this node.
    pub fn send_opaque(&mut self, now: Timestamp, key: FlowKey, packet: &[u8]) {
        if !self.open_flow(now, key, None) {
            return;
        }
        let header = FlowHeader { key, hop_limit: self.config.hop_limit.saturating_sub(1) };
        self.push_onward(now, header, packet);
        self.arm(key);
    }

    /// Whether a session of this node may send a coded packet of this flow over a link: the packet
    /// would leave at once. For a group, whether the branch over this link takes a packet now; the others then get
    /// it, too.
    pub fn has_room(&mut self, now: Timestamp, key: FlowKey, link: LinkId) -> bool {
        if !self.flows.contains_key(&key) {
            if !self.open_flow(now, key, None) {
                return false;
            }
            // The timers of a flow that exists are armed, and early ones are harmless.
            self.arm(key);
        }
        let Some(flow) = self.flows.get_mut(&key) else { return false };
        flow.last_used = now;
        if !flow.unrecoded.is_empty() {
            return false;
        }
        let limit = flow.memory_limit(key, link, self.config.total_bytes, self.bytes);
        flow.outbound.get(&link).is_some_and(|outbound| outbound.has_room(limit))
    }

    /// Queues a coded packet that this node sends to a group, for all branches.
    pub fn send_to_group(&mut self, now: Timestamp, key: FlowKey, kind: PacketKind, packet: &[u8]) {
        if !self.open_flow(now, key, None) {
            return;
        }
        let Some(coded) = self.own_coded(key, kind, packet) else { return };
        self.add_to_branches(now, key, &coded);
        self.arm(key);
    }

    /// Takes a coded packet of a session of this node, which has no flow header, for a link. Replaces it in
    /// `packet` by the next payload for the link as [`Relay::pull`] does, and returns the kind of that payload:
    /// the packet itself, unless others come before it. `number` is the number of the link's packet.
    pub fn send_coded(
        &mut self,
        now: Timestamp,
        key: FlowKey,
        link: LinkId,
        view: &LinkView,
        (kind, number): (PacketKind, u64),
        packet: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        if self.config.recoding && !self.others_want(now, key, link) {
            let header = self.send_at_once(now, key, link, view, (kind, number), packet);
            if let Some(header) = header {
                let length = packet.len();
                packet.resize(length + FLOW_HEADER_LEN, 0);
                packet.copy_within(..length, FLOW_HEADER_LEN);
                packet[..FLOW_HEADER_LEN].copy_from_slice(&header);
                return Some(kind);
            }
        }
        self.queue_coded(now, key, link, kind, packet);
        self.pull(now, link, view, number, packet)
    }

    /// Whether end-to-end packets or other flows may have packets for a link. Asked for each packet, and mostly no
    /// other flow is active.
    fn others_want(&self, now: Timestamp, key: FlowKey, link: LinkId) -> bool {
        let Some(state) = self.links.get(&link) else { return false };
        let is_alone = state.active.iter().all(|other| *other == key);
        if is_alone { state.opaque.is_due(now) } else { self.wants(now, link) }
    }

    /// Queues a coded packet of a session of this node for a link.
    pub(super) fn queue_coded(
        &mut self,
        now: Timestamp,
        key: FlowKey,
        link: LinkId,
        kind: PacketKind,
        packet: &[u8],
    ) {
        if !self.open_flow(now, key, None) {
            return;
        }
        if !self.config.recoding {
            let hop_limit = self.config.hop_limit.saturating_sub(1);
            return self.forward_unrecoded(key, (kind, hop_limit), None, packet);
        }
        let Some(coded) = self.own_coded(key, kind, packet) else { return };
        self.add(now, key, |_, _| Some(link), &coded);
        self.arm(key);
    }

    /// Reads a coded packet of a session of this node.
    fn own_coded<'a>(
        &mut self,
        key: FlowKey,
        kind: PacketKind,
        packet: &'a [u8],
    ) -> Option<Coded<'a>> {
        let mut reader = Reader::new(packet);
        let header = CodingHeader::decode(kind, &mut reader)?;
        let (space, batch, window, vector) = parts(&header);
        let newest = &mut self.flows.get_mut(&key)?.newest[space as usize];
        let batch = expand(u64::from(batch), 24, *newest);
        *newest = batch.max(*newest);
        let hop_limit = self.config.hop_limit.saturating_sub(1);
        let (limit, payload) = (None, reader.rest());
        Some(Coded { space, batch, window, vector, payload, hop_limit, limit })
    }

    /// Holds a packet of this node for repairs and counts it as sent: nothing else waits for the link. Returns
    /// its flow header; `None` if it cannot be the next packet.
    fn send_at_once(
        &mut self,
        now: Timestamp,
        key: FlowKey,
        link: LinkId,
        view: &LinkView,
        (kind, number): (PacketKind, u64),
        packet: &[u8],
    ) -> Option<[u8; FLOW_HEADER_LEN]> {
        if !self.open_flow(now, key, None) {
            return None;
        }
        let coded = self.own_coded(key, kind, packet)?;
        let (flow, state) = (self.flows.get_mut(&key)?, self.links.get_mut(&link)?);
        let outbound = flow.outbound.get_mut(&link)?;
        let others = self.bytes - outbound.bytes();
        let hop_limit = outbound.send_at_once(now, number, view, &coded, &mut self.stats)?;
        outbound.shed(memory_limit(self.config.total_bytes, others), &mut self.stats);
        self.bytes = others + outbound.bytes();
        self.stats.memory.bytes_peak = self.stats.memory.bytes_peak.max(self.bytes as u64);
        self.stats.forwarded += 1;
        // Packets recoded for expected losses follow in idle slots.
        state.activate(key);
        state.coded_turn = false;
        let mut header = [0; FLOW_HEADER_LEN];
        FlowHeader { key, hop_limit }.encode(&mut Writer::new(&mut header))?;
        flow.sent.add(packet.len());
        let idle_timeout = self.config.idle_timeout;
        update(&mut self.state, &mut self.timers, idle_timeout, key, flow);
        Some(header)
    }
}

/// Kind and number of the batch, its window, and the coefficient vector of a packet with this
/// header.
pub(super) fn parts(header: &CodingHeader) -> (Space, u32, (u32, u16), CoefficientVector) {
    let unit = |index: usize| unit_vector(index).unwrap_or_default();
    match header {
        CodingHeader::Source(header) => {
            let (batch, index) = (header.symbol / 16, header.symbol % 16);
            (Space::Source, batch, (0, 0), unit(index as usize))
        }
        CodingHeader::Repair(header) => {
            let window = (header.first, header.count);
            (Space::Repair, header.batch, window, unit(usize::from(header.column)))
        }
        CodingHeader::RecodedSource { batch, vector } => (Space::Source, *batch, (0, 0), *vector),
        CodingHeader::RecodedRepair { header, vector } => {
            (Space::Repair, header.batch, (header.first, header.count), *vector)
        }
    }
}
