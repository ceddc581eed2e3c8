//! The sending side of a hop: packets to forward to the next node, and packets recoded from them.

mod limits;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use bats_code::BATCH_SIZE;
use bats_code::recode::Recoder;
use bats_types::{ReportBudget, Timestamp};

use super::adaptive::{AdaptiveCounts, recoded_per_packet};
use super::batch::{Batch, CLOSE_AFTER, row_bytes};
use super::coding::{Coded, recoded_header, write_header};
use super::config::{BATCH_RANK_INTERVAL, MAX_RECODED, QUEUE_PACKETS, RelayStats};
use super::forwards::Forwards;
use super::inbound::report_interval;
use super::link_view::LinkView;
use super::rate_limit::{FlowLimits, LimitGroup, RateLimits};
use super::room::round_trip_packets;
use bats_wire::batch_rank::{BatchRank, MAX_BATCHES, Space};
use bats_wire::coding::{MAX_CODING_HEADER_LEN, expand};
use bats_wire::flow::FlowKey;
use bats_wire::short_header::PacketKind;
use bats_wire::varint::Writer;

/// Reordering window: the last packets before the newest one in a report may still arrive, so they
/// do not count as lost.
const REORDERING_PACKETS: u64 = 3;
/// Recoded packets in idle slots cover the expected loss of a batch plus this number of standard
/// deviations, as those for the end of the data of a plain session do. With 0, one batch in four of a
/// link with 10 % loss waits for a report, and all that follows waits for it (ADR 0025).
const EXTRA_Z: f64 = 3.0;
/// Up to this number of outstanding packets in a batch, recoded packets follow each packet of it
/// ([`recoded_per_packet`]).
const FEW_PACKETS: usize = 4;
/// Longest payload for which a batch has short rows. Longer payloads need rows of the maximum size.
const COMMON_PAYLOAD: usize = 1_536;
/// Number of batches searched for one idle slot.
const MAX_SEARCHED_BATCHES: usize = 64;

/// The sending side of a hop.
#[derive(Debug)]
pub(super) struct Outbound {
    seed: u64,
    /// Whether the next node reports ranks.
    feedback: bool,
    /// Whether it is a branch of a group.
    is_branch: bool,
    /// Boxed: a B-tree node has space for eleven values.
    batches: [BTreeMap<u64, Box<Batch>>; 2],
    forwards: Forwards,
    /// Batches with recoded packets to send.
    recoded_queue: VecDeque<(Space, u64)>,
    /// Forwarded packets that no report has counted yet.
    uncounted: VecDeque<(u64, Timestamp)>,
    /// From the last report of the next node: how many more packets it accepts.
    next_room: Option<u64>,
    reported_at: Timestamp,
    /// Reports that the next node may cause work with.
    reports: ReportBudget,
    bytes: usize,
    /// Of each kind, the first batch that may hold packets, and the first of which all may be sent.
    first_held: [u64; 2],
    first_sent: [u64; 2],
    view: LinkView,
    check_at: Option<Timestamp>,
    adaptive: AdaptiveCounts,
}

impl Outbound {
    /// `is_branch` if packets go to other nodes, too, and none of them may wait for another.
    pub(super) fn new(seed: u64, feedback: bool, is_branch: bool) -> Self {
        Self {
            seed,
            feedback,
            is_branch,
            batches: Default::default(),
            forwards: Forwards::default(),
            recoded_queue: VecDeque::new(),
            uncounted: VecDeque::new(),
            next_room: None,
            reported_at: Timestamp::ZERO,
            reports: ReportBudget::new(BATCH_RANK_INTERVAL),
            bytes: 0,
            first_held: [u64::MAX; 2],
            first_sent: [u64::MAX; 2],
            view: LinkView::default(),
            check_at: None,
            adaptive: AdaptiveCounts::default(),
        }
    }

    /// Bytes of payloads held.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of batch state, without payloads.
    pub(super) fn state_bytes(&self) -> usize {
        let batches: usize = self.batches.iter().map(BTreeMap::len).sum();
        batches * size_of::<Batch>() + self.forwards.bytes()
    }

    /// Number of packets that were not sent yet.
    pub(super) fn queued(&self) -> usize {
        self.forwards.len()
    }

    /// The packets of all batches that were not sent yet; kind and number of the first batch that holds packets, and
    /// of the first of those of which all were sent.
    #[cfg(test)]
    pub(super) fn counted(&self) -> (usize, [Option<(usize, u64)>; 2]) {
        let all = || {
            let kinds = self.batches.iter().enumerate();
            kinds.flat_map(|(kind, batches)| {
                batches.iter().map(move |(&id, batch)| (kind, id, batch))
            })
        };
        let held = || all().filter(|(.., batch)| batch.rank() > 0);
        let unsent = all().map(|(.., batch)| batch.unsent()).sum();
        let first = held().map(|(kind, id, _)| (kind, id)).next();
        let first_sent =
            held().filter(|(.., batch)| !batch.is_unsent()).map(|(kind, id, _)| (kind, id));
        (unsent, [first, first_sent.min()])
    }

    /// Number of packets forwarded that no report of the next node has counted yet.
    pub(super) fn unreported(&self) -> u64 {
        self.uncounted.len() as u64
    }

    /// Time of the next call of [`Outbound::check`].
    pub(super) fn check_at(&self) -> Option<Timestamp> {
        self.check_at
    }

    /// Handles a new or restarted next node: it has none of the packets sent so far.
    pub(super) fn restart(&mut self, feedback: bool) {
        self.feedback = feedback;
        self.uncounted.clear();
        self.next_room = None;
        for batch in self.batches.iter_mut().flat_map(BTreeMap::values_mut) {
            batch.in_flight.clear();
            batch.reported = 0;
        }
    }

    /// Bytes of full packets that the link transports in a round trip, and a margin.
    pub(super) fn round_trip_bytes(&self) -> u64 {
        (round_trip_packets(self.view.rate, &self.view) + QUEUE_PACKETS) * self.view.packet
    }

    /// Rate of the link in bytes per second, as last seen.
    pub(super) fn rate(&self) -> u64 {
        self.view.rate
    }

    /// Whether another new packet may be sent: the next node has room, and what is in flight is not
    /// more than the link transports in a round trip, plus a margin. Without this limit the start
    /// fills the queue of a slow link, and delivery in order waits for it on the others.
    fn may_forward(&self) -> bool {
        if !self.feedback {
            return true;
        }
        let in_flight = self.uncounted.len() as u64;
        in_flight < round_trip_packets(self.view.rate, &self.view) + QUEUE_PACKETS
            && self.next_room.is_none_or(|room| in_flight < room)
    }

    /// Whether a source at this node may add a packet: it would be sent at once, and would fit into
    /// `limit` bytes. Nothing is freed for it, because what is held may still need repairs. A flow that
    /// holds nothing may always add one: no report would tell it that others have freed memory.
    pub(super) fn has_room(&self, limit: usize) -> bool {
        let packet = usize::try_from(self.view.packet).unwrap_or(usize::MAX);
        let fits = self.bytes.saturating_add(row_bytes(packet)) <= limit;
        self.forwards.is_empty() && self.may_forward() && (fits || self.bytes == 0)
    }

    /// Adds a packet. Returns false if it is not innovative for the next node.
    pub(super) fn add(
        &mut self,
        now: Timestamp,
        coded: &Coded<'_>,
        stats: &mut RelayStats,
    ) -> bool {
        if !self.hold(now, coded) {
            return false;
        }
        self.forwards.push(coded.limit, coded.space, coded.batch);
        self.bound_batches(now, coded, stats);
        true
    }

    /// Holds a packet for transmission and repairs. Returns false if it is not innovative.
    fn hold(&mut self, now: Timestamp, coded: &Coded<'_>) -> bool {
        let batches = &mut self.batches[coded.space as usize];
        let batch = batches.entry(coded.batch).or_insert_with(|| Box::new(Batch::new(now, coded)));
        let largest = if coded.payload.len() <= COMMON_PAYLOAD {
            COMMON_PAYLOAD
        } else {
            usize::from(u16::MAX)
        };
        let recoder = batch.recoder.get_or_insert_with(|| Recoder::new(largest));
        if batch.window != coded.window || !recoder.push(&coded.vector, coded.payload) {
            return false;
        }
        batch.changed = now;
        batch.added = now;
        batch.hop_limit = batch.hop_limit.min(coded.hop_limit);
        batch.limit = coded.limit;
        // Without reports every packet of a batch counts, recoded ones included.
        let last = self.feedback && coded.vector[BATCH_SIZE - 1] != 0;
        batch.closed |= last || recoder.rank() == BATCH_SIZE;
        let row = row_bytes(coded.payload.len());
        batch.row_bytes += row;
        self.bytes += row;
        let first_held = &mut self.first_held[coded.space as usize];
        *first_held = coded.batch.min(*first_held);
        true
    }

    /// A packet was added: drops the oldest batches if there are too many, and closes batches that are complete.
    fn bound_batches(&mut self, now: Timestamp, coded: &Coded<'_>, stats: &mut RelayStats) {
        let mut unsent = 0;
        while self.batches[coded.space as usize].len() > MAX_BATCHES {
            if let Some((_, mut oldest)) = self.batches[coded.space as usize].pop_first() {
                stats.batches.dropped += u64::from(oldest.is_unsent());
                unsent += oldest.unsent();
                self.bytes -= oldest.free();
            }
        }
        self.drop_forwards(unsent);
        if !self.feedback {
            self.close_batches(now, coded.space, coded.batch);
        }
        self.arm(now + CLOSE_AFTER);
    }

    /// Adds a packet of this node that leaves at once with this packet number. Returns the number of links that it
    /// may still cross; `None` if others come before it or it is not innovative for the next node.
    pub(super) fn send_at_once(
        &mut self,
        now: Timestamp,
        number: u64,
        view: &LinkView,
        coded: &Coded<'_>,
        stats: &mut RelayStats,
    ) -> Option<u8> {
        let is_next = self.forwards.is_empty() && self.recoded_queue.is_empty();
        if !is_next || !self.may_forward() || !self.hold(now, coded) {
            return None;
        }
        self.view = *view;
        let hop_limit = self.on_sent(now, number, coded.space, coded.batch)?;
        self.bound_batches(now, coded, stats);
        Some(hop_limit)
    }

    /// Whether packets of this batch are held.
    pub(super) fn holds(&self, space: Space, batch: u64) -> bool {
        self.batches[space as usize].get(&batch).is_some_and(|batch| batch.rank() > 0)
    }

    /// Takes over the packets that another link's next node has not reported.
    pub(super) fn adopt(&mut self, now: Timestamp, other: Self, stats: &mut RelayStats) {
        for (space, batches) in [Space::Source, Space::Repair].into_iter().zip(other.batches) {
            for (id, batch) in batches {
                let Some(recoder) = &batch.recoder else { continue };
                let spent = batch.recoded.saturating_add(batch.sent_rows as u16);
                if spent >= MAX_RECODED && !batch.is_unsent() {
                    stats.batches.unrepaired += 1;
                    continue;
                }
                for (vector, payload) in recoder.received() {
                    let (window, hop_limit, limit) = (batch.window, batch.hop_limit, batch.limit);
                    let vector = *vector;
                    let coded =
                        Coded { space, batch: id, window, vector, payload, hop_limit, limit };
                    // Packets that are held already are ignored.
                    self.add(now, &coded, stats);
                }
                // The batch may move back later. Its budget of recoded packets covers all links.
                if let Some(own) = self.batches[space as usize].get_mut(&id) {
                    own.recoded = own.recoded.max(spent.min(MAX_RECODED));
                }
            }
        }
    }

    fn arm(&mut self, at: Timestamp) {
        self.check_at = Some(self.check_at.map_or(at, |other| other.min(at)));
    }

    /// Appends the next packet with its coding header to `out`: first recoded packets for rank that
    /// the next node lacks, then new packets, then recoded packets for rank that it may lack.
    /// `number` is the packet number.
    pub(super) fn pull(
        &mut self,
        now: Timestamp,
        number: u64,
        view: &LinkView,
        out: &mut Vec<u8>,
        stats: &mut RelayStats,
        (key, limits): (FlowKey, &mut RateLimits),
    ) -> Option<(PacketKind, u8)> {
        let before = out.len();
        let (limit, sent) = self.pull_next(now, number, view, out, stats, limits.of(key))?;
        limits.charge(now, limit, out.len() - before);
        Some(sent)
    }

    /// As [`Outbound::pull`]; also returns the limit that the packet counts against.
    fn pull_next(
        &mut self,
        now: Timestamp,
        number: u64,
        view: &LinkView,
        out: &mut Vec<u8>,
        stats: &mut RelayStats,
        limits: FlowLimits<'_>,
    ) -> Option<(Option<LimitGroup>, (PacketKind, u8))> {
        self.view = *view;
        while let Some(&(space, id)) = self.recoded_queue.front() {
            if let Some(batch) = self.batches[space as usize].get_mut(&id) {
                if batch.recoded_due > 0 && batch.rank() > 0 && batch.recoded < MAX_RECODED {
                    batch.recoded_due -= 1;
                    stats.top_ups += u64::from(self.feedback);
                    stats.extras += u64::from(!self.feedback);
                    let limit = batch.limit;
                    let sent = self.send_recoded(now, number, space, id, out, stats)?;
                    return Some((limit, sent));
                }
                batch.recoded_due = 0;
                batch.is_queued = false;
            }
            self.recoded_queue.pop_front();
        }
        if self.may_forward() {
            while let Some((limit, space, id)) = self.forwards.pop(now, limits) {
                if let Some(sent) = self.send_received(now, number, space, id, out) {
                    stats.forwarded += 1;
                    return Some((limit, sent));
                }
                self.forwards.skipped();
            }
        }
        if self.feedback && self.forwards.is_empty() {
            let (space, id) = self.find_extra(now)?;
            stats.extras += 1;
            let limit = self.batches[space as usize].get(&id)?.limit;
            return Some((limit, self.send_recoded(now, number, space, id, out, stats)?));
        }
        None
    }

    /// Whether [`Outbound::pull`] may return a packet now.
    pub(super) fn wants(&self, now: Timestamp, limits: FlowLimits<'_>) -> bool {
        !self.recoded_queue.is_empty()
            || self.may_forward() && self.forwards.is_sendable(now, limits)
    }

    /// Whether only the rates of neighbours hold packets back.
    pub(super) fn is_held_back(&self, now: Timestamp, limits: FlowLimits<'_>) -> bool {
        self.may_forward() && !self.forwards.is_empty() && !self.forwards.is_sendable(now, limits)
    }

    /// The groups whose rates hold packets back.
    pub(super) fn held_by<'a>(
        &'a self,
        now: Timestamp,
        limits: FlowLimits<'a>,
    ) -> impl Iterator<Item = LimitGroup> + 'a {
        self.forwards.held_by(now, limits)
    }

    fn send_received(
        &mut self,
        now: Timestamp,
        number: u64,
        space: Space,
        id: u64,
        out: &mut Vec<u8>,
    ) -> Option<(PacketKind, u8)> {
        let batch = self.batches[space as usize].get(&id)?;
        let (vector, payload) = batch.recoder.as_ref()?.received().nth(batch.sent_rows)?;
        let kind = write_header(space, id, batch.window, vector, out)?;
        out.extend_from_slice(payload);
        Some((kind, self.on_sent(now, number, space, id)?))
    }

    /// The next held packet of a batch leaves with this packet number. Returns the number of links that it may
    /// still cross.
    fn on_sent(&mut self, now: Timestamp, number: u64, space: Space, id: u64) -> Option<u8> {
        let batch = self.batches[space as usize].get_mut(&id)?;
        batch.sent_rows += 1;
        batch.covered = 0;
        if !batch.is_unsent() {
            let first_sent = &mut self.first_sent[space as usize];
            *first_sent = id.min(*first_sent);
        }
        let hop_limit = batch.hop_limit;
        if self.feedback {
            batch.in_flight.push_back((number, now));
            self.uncounted.push_back((number, now));
            let check = now + self.horizon();
            self.arm(check);
        }
        Some(hop_limit)
    }

    fn send_recoded(
        &mut self,
        now: Timestamp,
        number: u64,
        space: Space,
        id: u64,
        out: &mut Vec<u8>,
        stats: &mut RelayStats,
    ) -> Option<(PacketKind, u8)> {
        let seed = self.seed ^ id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (space as u64) << 63;
        let batch = self.batches[space as usize].get_mut(&id)?;
        let mut vector = [0; BATCH_SIZE];
        let start = out.len();
        let room = batch.recoder.as_ref()?.received().map(|(_, p)| p.len()).max()?;
        let header = start + MAX_CODING_HEADER_LEN;
        out.resize(header + room, 0);
        let draw = u32::from(batch.recoded);
        let len = batch
            .recoder
            .as_ref()?
            .recode_random(seed, draw, &mut vector, &mut out[header..])
            .ok()?;
        let coding = recoded_header(space, id, batch.window, vector);
        let mut writer = Writer::new(&mut out[start..]);
        coding.encode(&mut writer)?;
        let written = writer.written();
        out.copy_within(header..header + len, start + written);
        out.truncate(start + written + len);
        batch.recoded += 1;
        batch.covered += 1;
        stats.batches.capped += u64::from(batch.recoded == MAX_RECODED);
        if self.feedback {
            batch.in_flight.push_back((number, now));
        }
        let hop_limit = batch.hop_limit;
        let horizon = self.horizon();
        self.arm(now + horizon);
        Some((PacketKind::Recoded, hop_limit))
    }

    /// A closed batch whose expected losses are not covered by recoded packets yet.
    fn find_extra(&mut self, now: Timestamp) -> Option<(Space, u64)> {
        let (p, b) = (self.view.loss.min(0.9), self.view.burst_factor);
        if p <= 0.0 || !self.may_repair(now) {
            return None;
        }
        let mut wait = None;
        for (space, batches) in [Space::Source, Space::Repair].into_iter().zip(&self.batches) {
            let newest = batches.last_key_value().map_or(0, |(&id, _)| id);
            for (&id, batch) in batches.iter().rev().take(MAX_SEARCHED_BATCHES) {
                let n = batch.outstanding();
                if n == 0 || batch.rank() == 0 || batch.recoded >= MAX_RECODED {
                    continue;
                }
                let np = n as f64 * p;
                let extra = ((np + EXTRA_Z * (np * b).sqrt()) / (1.0 - p)).ceil().max(0.0);
                let to_cover = if n <= FEW_PACKETS { recoded_per_packet(p) } else { 0 };
                if batch.in_flight.len() >= n + extra as usize && batch.covered >= to_cover {
                    continue;
                }
                if batch.is_closed(now, id + 1 >= newest) {
                    return Some((space, id));
                }
                wait = Some(batch.changed + CLOSE_AFTER).into_iter().chain(wait).min();
            }
        }
        if let Some(at) = wait {
            self.arm(at);
        }
        None
    }

    /// Time after which a packet that no report has counted is lost.
    fn horizon(&self) -> Duration {
        let rtt = self.view.smoothed_rtt;
        rtt + rtt / 4 + report_interval(&self.view) * 3
    }

    /// Processes a report of the next node.
    pub(super) fn on_report(
        &mut self,
        now: Timestamp,
        report: &BatchRank,
        view: &LinkView,
        stats: &mut RelayStats,
    ) {
        self.view = *view;
        if !self.feedback {
            return;
        }
        self.next_room = Some(report.room);
        self.reported_at = now;
        let horizon = self.horizon();
        self.arm(now + horizon);
        if !self.reports.take(now) {
            return;
        }
        while self
            .uncounted
            .front()
            .is_some_and(|&(pn, at)| pn <= report.mark || at + horizon <= now)
        {
            self.uncounted.pop_front();
        }
        let batches = &mut self.batches[report.space as usize];
        let Some((&newest, _)) = batches.last_key_value() else { return };
        let first = expand(u64::from(report.first), 24, newest);
        // The next node needs no more packets of earlier batches.
        let kept = batches.split_off(&first);
        let mut unsent = 0;
        for (_, mut done) in core::mem::replace(batches, kept) {
            unsent += done.unsent();
            self.bytes -= done.free();
        }
        let mut added = Vec::new();
        for (&id, batch) in batches.iter_mut() {
            // Nothing has arrived of the batches behind those in the report. If it had no space for some,
            // these get packets that they do not need.
            let rank = usize::try_from(id - first).ok().and_then(|index| report.ranks.get(index));
            let rank = usize::from(rank.copied().unwrap_or(0));
            if rank > batch.reported {
                batch.changed = now;
            }
            batch.reported = rank;
            batch
                .in_flight
                .retain(|&(pn, at)| at + horizon > now && pn + REORDERING_PACKETS > report.mark);
            if batch.rank() > 0 && !batch.is_unsent() && rank >= batch.freed_rank + batch.rank() {
                self.bytes -= batch.free();
                continue;
            }
            if batch.update_recoded_due() {
                added.push((report.space, id));
            }
        }
        self.recoded_queue.extend(added);
        self.drop_forwards(unsent);
        self.expire(now, stats);
    }

    /// Handles packets that no report has counted: all of them may be lost.
    pub(super) fn check(&mut self, now: Timestamp, stats: &mut RelayStats) {
        self.check_at = None;
        self.drop_overdue(now, stats);
        if !self.feedback {
            let ends: Vec<_> = [Space::Source, Space::Repair]
                .into_iter()
                .filter_map(|space| {
                    Some((space, *self.batches[space as usize].last_key_value()?.0))
                })
                .collect();
            for (space, newest) in ends {
                self.close_batches(now, space, newest);
            }
            return;
        }
        let (horizon, may_repair) = (self.horizon(), self.may_repair(now));
        let before = self.uncounted.len();
        while self.uncounted.front().is_some_and(|&(_, at)| at + horizon <= now) {
            self.uncounted.pop_front();
        }
        // Packets that no report counted may have arrived, so they may have taken room.
        let expired = (before - self.uncounted.len()) as u64;
        self.next_room = self.next_room.map(|room| room.saturating_sub(expired));
        if self.reported_at + horizon <= now {
            // The report of new room may be lost. Without a packet from time to time that asks for
            // another, the flow would stall forever. One, since a full node drops what it cannot hold.
            self.next_room = self.next_room.map(|room| room.max(1));
        }
        let mut next = None;
        let mut added = Vec::new();
        for (space, batches) in [Space::Source, Space::Repair].into_iter().zip(&mut self.batches) {
            for (&id, batch) in batches.iter_mut() {
                batch.in_flight.retain(|&(_, at)| at + horizon > now);
                if batch.rank() == 0 || batch.outstanding() == 0 || !may_repair {
                    continue;
                }
                if batch.update_recoded_due() {
                    added.push((space, id));
                }
                let at = batch.in_flight.front().map_or(now, |&(_, at)| at) + horizon;
                next = Some(next.map_or(at, |other: Timestamp| other.min(at)));
            }
        }
        self.recoded_queue.extend(added);
        // With nothing in flight, the next node reports new room only after another packet, so a
        // packet must be sent to learn of it.
        let is_full = self.next_room == Some(0);
        if !self.uncounted.is_empty() || !self.forwards.is_empty() || is_full {
            next = Some(next.map_or(now + horizon, |at| at.min(now + horizon)));
        }
        if let Some(at) = next {
            self.arm(at.max(now + CLOSE_AFTER));
        }
        self.expire(now, stats);
    }

    /// Without reports: determines once, at the end of a batch, how many recoded packets follow it.
    fn close_batches(&mut self, now: Timestamp, space: Space, newest: u64) {
        let mut added = Vec::new();
        let mut freed = 0;
        let batches = &mut self.batches[space as usize];
        for (&id, batch) in batches.iter_mut() {
            if batch.is_unsent() || batch.rank() == 0 {
                continue;
            }
            if batch.is_closed(now, id + 1 >= newest) && !batch.is_queued {
                if !batch.is_decided {
                    batch.is_decided = true;
                    batch.recoded_due = self.adaptive.extras(batch.rank(), &self.view);
                }
                if batch.recoded_due > 0 {
                    batch.is_queued = true;
                    added.push((space, id));
                } else {
                    freed += batch.free();
                }
            }
        }
        self.bytes -= freed;
        self.recoded_queue.extend(added);
        let unfinished = self.batches[space as usize].values().any(|batch| batch.rank() > 0);
        if unfinished {
            self.arm(now + CLOSE_AFTER);
        }
    }
}
