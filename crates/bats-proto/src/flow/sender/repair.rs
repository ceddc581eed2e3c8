//! Repairs of a reliable flow: after feedback, after a probe time-out and after the loss of a path.

use std::collections::VecDeque;

use bats_code::BATCH_SIZE;
use bats_code::stream::Window;
use bats_types::Timestamp;

use super::super::rate::RepairClass;
use super::super::{FlowError, PathView};
use super::{FlowSender, MAX_SPARE_BUFFERS, QueuedRepair};
use crate::wire::coding::{REPAIR_HEADER_LEN, RepairHeader};
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Writer;

/// Maximum number of queued repairs. Further top-ups wait for the next report.
const MAX_QUEUED_REPAIRS: usize = 1_024;
/// Queued repairs take at most this part of the send budget, in addition to the budget itself.
const REPAIR_BUDGET_DIVISOR: usize = 4;
/// The number of queued repairs is never limited below this: a round of top-ups fits.
const MIN_QUEUED_REPAIRS: usize = 64;
/// Coded packets of a probe.
const PROBE_COLUMNS: u64 = 2;
/// Symbols that are repaired one by one after the loss of a path, if the peer's new address limits
/// what may be sent: more packets than the limit allows, so that the data after the pause for path
/// validation is not held back until a whole generation has full rank.
const SINGLE_REPAIRS: u64 = 64;

impl FlowSender {
    /// Queues `count` repairs over the symbols from `first` to `end` of a generation.
    pub(super) fn make_repairs(
        &mut self,
        generation_first: u64,
        first: u64,
        end: u64,
        count: u64,
        top_up: bool,
    ) {
        let first = first.max(self.encoder.first());
        let mut left = (count as usize).min(self.max_repairs().saturating_sub(self.queue.len()));
        if first >= end {
            return;
        }
        if (Window { first, count: (end - first) as u16 }).end().is_none() {
            return;
        }
        while left > 0 {
            let group = left.min(BATCH_SIZE);
            for column in 0..group as u8 {
                let sequence = self.next_batch * BATCH_SIZE as u64 + u64::from(column);
                self.queue.push_back(QueuedRepair {
                    sequence,
                    generation_first,
                    end,
                    first,
                    batch: (self.next_batch & 0x00ff_ffff) as u32,
                    column,
                    top_up,
                    payload: None,
                });
                if let Some(index) = self.generation_of(generation_first) {
                    self.generations[index].repairs.push_back((sequence, None));
                }
            }
            if top_up {
                self.urgent += group;
            }
            self.next_batch += 1;
            left -= group;
        }
    }

    /// Writes the next queued repair to `out`.
    pub(super) fn send_repair(&mut self, now: Timestamp, out: &mut Vec<u8>) -> Option<PacketKind> {
        while let Some(mut repair) = self.queue.pop_front() {
            self.urgent -= usize::from(repair.top_up);
            let Some((header, mut payload)) = self.encode_repair(&mut repair) else {
                self.forget(&repair);
                continue;
            };
            out.resize(REPAIR_HEADER_LEN, 0);
            let written = header.encode(&mut Writer::new(out));
            debug_assert!(written.is_some(), "the header has room");
            out.extend_from_slice(&payload);
            if repair.top_up {
                self.counters.top_up_packets += 1;
            } else {
                self.counters.proactive_packets += 1;
            }
            if let Some(index) = self.generation_of(repair.generation_first)
                && let Some(entry) =
                    self.generations[index].repairs.iter_mut().find(|(s, _)| *s == repair.sequence)
            {
                entry.1 = Some(now);
            }
            if self.spare.len() < MAX_SPARE_BUFFERS {
                payload.clear();
                self.spare.push(payload);
            }
            return Some(PacketKind::Repair);
        }
        None
    }

    /// Header and payload of a repair. Also encodes those of its batch that follow in the queue, in
    /// the same pass over the symbols.
    ///
    /// Not before it is sent: a peer that reports losses and acknowledges nothing would cause work
    /// for repairs that the congestion window never lets out.
    fn encode_repair(&mut self, repair: &mut QueuedRepair) -> Option<(RepairHeader, Vec<u8>)> {
        if repair.payload.is_none() {
            // The peer has decoded the symbols that were released meanwhile.
            repair.first = repair.first.max(self.encoder.first());
            let count = repair.end.checked_sub(repair.first)? as u16;
            let window = Window { first: repair.first, count };
            let is_next = |(index, next): &(usize, &QueuedRepair)| {
                next.batch == repair.batch
                    && usize::from(next.column) == usize::from(repair.column) + 1 + index
            };
            let others = self.queue.iter().enumerate().take_while(is_next).count();
            let mut payloads: Vec<Vec<u8>> = (0..=others)
                .map(|_| {
                    let mut buffer = self.spare.pop().unwrap_or_default();
                    buffer.resize(self.max_symbol_size, 0);
                    buffer
                })
                .collect();
            let mut outputs: Vec<&mut [u8]> = payloads.iter_mut().map(Vec::as_mut_slice).collect();
            let encoded = self.encoder.encode(window, repair.batch, repair.column, &mut outputs);
            let len = encoded.ok()?;
            payloads.iter_mut().for_each(|payload| payload.truncate(len));
            let mut payloads = payloads.into_iter();
            repair.payload = payloads.next();
            for (next, payload) in self.queue.iter_mut().zip(payloads) {
                (next.first, next.payload) = (repair.first, Some(payload));
            }
        }
        let header = RepairHeader {
            batch: repair.batch,
            column: repair.column,
            first: repair.first as u32,
            count: (repair.end - repair.first) as u16,
        };
        Some((header, repair.payload.take()?))
    }

    /// A queued repair will not be sent.
    fn forget(&mut self, repair: &QueuedRepair) {
        if let Some(index) = self.generation_of(repair.generation_first) {
            self.generations[index].repairs.retain(|&(sequence, _)| sequence != repair.sequence);
        }
    }

    /// Maximum number of queued repairs, limited by the budget.
    fn max_repairs(&self) -> usize {
        let limit = self.budget / REPAIR_BUDGET_DIVISOR / self.max_symbol_size.max(1);
        limit.clamp(MIN_QUEUED_REPAIRS, MAX_QUEUED_REPAIRS)
    }

    /// Processes a report of the peer: releases decoded symbols, and queues repairs for the missing
    /// rank less the repairs in flight.
    pub fn on_rank_feedback(
        &mut self,
        now: Timestamp,
        feedback: &RankFeedback,
        path: &PathView,
    ) -> Result<(), FlowError> {
        if feedback.seen_end > self.next_unsent {
            return Err(FlowError::NotSent(feedback.seen_end - 1));
        }
        for entry in &feedback.entries {
            let end = entry.first + entry.span;
            if end > feedback.seen_end {
                return Err(FlowError::NotSent(end - 1));
            }
            if entry.missing > entry.span {
                return Err(FlowError::Malformed);
            }
        }
        self.counters.peer_coded = self.counters.peer_coded.max(feedback.coded);
        self.counters.peer_wasted = self.counters.peer_wasted.max(feedback.wasted);
        if feedback.decoded_below < self.decoded_below {
            // A later report overtook this one.
            return Ok(());
        }
        self.decoded_below = feedback.decoded_below;
        self.seen_end = self.seen_end.max(feedback.seen_end);
        while let Some(generation) = self.generations.front()
            && generation.closed
            && generation.end <= self.decoded_below
        {
            self.generations.pop_front();
        }
        // The open generation and generations under repair still need their symbols.
        let keep = self.generations.front().map_or(self.next_unsent, |generation| generation.first);
        self.encoder.release_below(keep.min(self.decoded_below));
        self.drop_obsolete_repairs();
        self.generations.iter_mut().for_each(|generation| generation.missing = 0);

        let mut entries = feedback.entries.iter().peekable();
        while let Some(entry) = entries.next() {
            let Some(index) = self.generation_of(entry.first) else { continue };
            let generation_end = self.generations[index].end;
            // A fully missing range may continue in the next generation; the part in this one has
            // full rank.
            let fully_missing = entry.missing == entry.span;
            let mut missing = if fully_missing {
                entry.span.min(generation_end - entry.first)
            } else {
                entry.missing
            };
            let first = entry.first;
            // Repairs of small generations reach back over earlier ones and link them. Repairs of
            // the first generation alone cannot cover what is missing in all of them.
            let stop = if fully_missing {
                generation_end
            } else {
                generation_end.max(first + self.window_cap)
            };
            let mut end = (entry.first + entry.span).min(stop);
            while let Some(next) = entries.next_if(|next| next.first < generation_end) {
                let inside = next.span.min(generation_end - next.first);
                missing += if next.missing == next.span { inside } else { next.missing };
                end = end.max((next.first + next.span).min(generation_end));
            }
            self.generations[index].missing = missing;
            self.top_up(now, index, first, end, missing, feedback.repair_seen, path);
            // The remaining part of a range that crosses generations.
            let mut at = generation_end;
            while fully_missing && at < entry.first + entry.span {
                let Some(index) = self.generation_of(at) else { break };
                let stop = self.generations[index].end.min(entry.first + entry.span);
                self.generations[index].missing = stop - at;
                self.top_up(now, index, at, stop, stop - at, feedback.repair_seen, path);
                at = self.generations[index].end;
            }
        }
        Ok(())
    }

    /// Drops queued repairs of symbols that have been decoded meanwhile.
    fn drop_obsolete_repairs(&mut self) {
        let decoded = self.decoded_below;
        let is_obsolete = |repair: &QueuedRepair| repair.end <= decoded;
        if !self.queue.iter().any(is_obsolete) {
            return;
        }
        let (obsolete, needed_later): (VecDeque<_>, VecDeque<_>) =
            core::mem::take(&mut self.queue).into_iter().partition(is_obsolete);
        self.queue = needed_later;
        for repair in obsolete {
            self.urgent -= usize::from(repair.top_up);
            self.forget(&repair);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one entry of a report and its context")]
    fn top_up(
        &mut self,
        now: Timestamp,
        index: usize,
        first: u64,
        end: u64,
        missing: u64,
        repair_seen: Option<u64>,
        path: &PathView,
    ) {
        let generation = &mut self.generations[index];
        if !generation.closed {
            return;
        }
        // A report shows what had arrived half a round trip ago. It does not count repairs sent
        // within the last round trip and after the newest repair that it names.
        let horizon = path.smoothed_rtt + path.smoothed_rtt / 8 + path.ack_interval * 2;
        generation.repairs.retain(|&(sequence, sent_at)| {
            repair_seen.is_none_or(|seen| sequence > seen)
                && sent_at.is_none_or(|at| at + horizon > now)
        });
        let mut in_flight = generation.repairs.len() as u64;
        let class = if generation.tail { RepairClass::Tail } else { RepairClass::Bulk };
        let later = self.generations.range(index + 1..).take_while(|later| later.reach <= first);
        let is_unseen = |&&(sequence, sent_at): &&(u64, Option<Timestamp>)| {
            repair_seen.is_none_or(|seen| sequence > seen)
                && sent_at.is_none_or(|at| at + horizon > now)
        };
        in_flight +=
            later.map(|later| later.repairs.iter().filter(is_unseen).count() as u64).sum::<u64>();
        let generation = &mut self.generations[index];
        // A round ends when all its repairs have arrived or are lost. Until then a repeated report
        // requests nothing new.
        if in_flight == 0 {
            generation.rounds += 1;
        }
        let needed = self.rate.top_up(class, missing, generation.rounds.max(1), path);
        if needed > in_flight {
            let generation_first = generation.first;
            self.make_repairs(generation_first, first, end, needed - in_flight, true);
        }
    }

    /// Handles the loss of a path and of all packets on it. Repairs all symbols that the peer has
    /// not reported, and again what it has reported as missing, without waiting a round trip for a report.
    ///
    /// `is_limited`: only a few packets may be sent before the peer's new address is validated.
    /// Coded packets of a whole generation could decode nothing before that, so the oldest symbols
    /// are repaired one by one.
    pub fn on_path_lost(&mut self, now: Timestamp, path: &PathView, is_limited: bool) {
        let mut singles = if is_limited { SINGLE_REPAIRS } else { 0 };
        if let Some(generation) = self.generations.back_mut()
            && !generation.closed
        {
            generation.closed = true;
            generation.tail = true;
        }
        for index in 0..self.generations.len() {
            let generation = &mut self.generations[index];
            // Queued repairs are still to be sent.
            generation.repairs.retain(|(_, sent_at)| sent_at.is_none());
            let (generation_first, end) = (generation.first, generation.end);
            let missing = generation.missing;
            let first = generation_first.max(self.seen_end).max(self.encoder.first());
            let singles_end = end.min(first + singles);
            for symbol in first..singles_end {
                self.make_repairs(generation_first, symbol, symbol + 1, 1, true);
            }
            singles -= singles_end.saturating_sub(first);
            let unseen = end.saturating_sub(first);
            let first = if missing > 0 { generation_first.max(self.decoded_below) } else { first };
            if missing + unseen > 0 {
                // Less what is repaired one by one.
                self.top_up(now, index, first, end, missing + unseen, None, path);
            }
        }
    }

    /// Handles a probe time-out: queues repairs as a probe, and further ones for a blackout up to
    /// `blackout_packets` packets. Returns false if there is nothing to repair.
    pub fn on_probe_timeout(&mut self, blackout_packets: u64) -> bool {
        if self.wants_to_send() {
            return true;
        }
        if let Some(generation) = self.generations.back_mut()
            && !generation.closed
        {
            generation.closed = true;
            generation.tail = true;
        }
        // The peer waits for the oldest generation. The newest one shows it all that was sent, so
        // that it reports everything lost in a blackout at once, not one generation in each round
        // trip.
        let last = self.generations.len().saturating_sub(1);
        for index in [0, last] {
            let Some(generation) = self.generations.get_mut(index) else { return false };
            generation.repairs.clear();
            let (first, end) = (generation.first, generation.end);
            self.make_repairs(first, first.max(self.decoded_below), end, PROBE_COLUMNS / 2, true);
        }
        // Until the peer's credit is used up, new symbols keep packets in flight in a blackout.
        let mut left = blackout_packets.saturating_sub(PROBE_COLUMNS);
        for index in 0..self.generations.len() {
            let generation = &self.generations[index];
            let (generation_first, end) = (generation.first, generation.end);
            let first = generation_first.max(self.decoded_below);
            let count = end.saturating_sub(first).min(left);
            self.make_repairs(generation_first, first, end, count, true);
            left -= count;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::super::{Generation, SenderParameters};
    use super::*;
    use crate::config::Goal;
    use crate::wire::rank::RankEntry;

    fn path() -> PathView {
        PathView {
            rate_bytes_per_second: 125_000_000,
            smoothed_rtt: Duration::from_millis(20),
            ack_interval: Duration::from_millis(1),
            loss: 0.1,
            burst_factor: 1.0,
            loss_packets: 1_000,
            queue_delay: Duration::ZERO,
        }
    }

    /// A sender that has sent 64 symbols in one closed generation.
    fn sender() -> FlowSender {
        let mut sender = FlowSender::new(SenderParameters {
            max_symbol_size: 100,
            window_cap: 256,
            seed: 1,
            initial_credit: 1_000,
            goal: Goal::Throughput,
            budget: 1 << 20,
        });
        for _ in 0..64 {
            assert!(sender.push_symbol(100, |bytes| bytes.len()));
        }
        let mut out = Vec::new();
        while sender.next_unsent < 64 {
            sender.poll(Timestamp::ZERO, &path(), false, &mut out);
        }
        sender.queue.clear();
        sender.generations.iter_mut().for_each(|generation| generation.repairs.clear());
        sender
    }

    fn missing(first: u64, span: u64) -> RankFeedback {
        let entries = vec![RankEntry { first, span, missing: span }];
        RankFeedback { decoded_below: first, seen_end: 64, entries, ..RankFeedback::default() }
    }

    #[test]
    fn repeated_report_keeps_queued_repairs() {
        let mut sender = sender();
        sender.on_rank_feedback(Timestamp::ZERO, &missing(32, 32), &path()).unwrap();
        let queued = sender.queue.len();
        assert!(queued >= 32);
        sender.on_rank_feedback(Timestamp::ZERO, &missing(32, 32), &path()).unwrap();
        assert_eq!(sender.queue.len(), queued, "the repairs are still in flight");
        assert_eq!(sender.urgent, queued);
    }

    /// A thin flow has generations of one or two symbols, and repairs that link many of them.
    #[test]
    fn a_missing_range_across_generations_is_repaired_at_once() {
        let mut sender = sender();
        let (first, mut generations) = (32, VecDeque::new());
        for number in first..64 {
            let repairs = VecDeque::new();
            let end = number + 1;
            generations.push_back(Generation {
                first: number,
                end,
                closed: true,
                tail: true,
                rounds: 0,
                missing: 0,
                reach: number,
                repairs,
            });
        }
        sender.generations = generations;
        let entries = vec![RankEntry { first, span: 16, missing: 12 }];
        let report =
            RankFeedback { decoded_below: first, seen_end: 64, entries, ..RankFeedback::default() };
        sender.on_rank_feedback(Timestamp::ZERO, &report, &path()).unwrap();
        let windows: Vec<_> = sender
            .queue
            .iter()
            .map(|repair| (repair.first as u32, (repair.end - repair.first) as u16))
            .collect();
        assert!(windows.len() >= 12, "{windows:?}");
        assert!(windows.iter().all(|&window| window == (32, 16)), "{windows:?}");
        sender.on_rank_feedback(Timestamp::ZERO, &report, &path()).unwrap();
        assert_eq!(sender.queue.len(), windows.len(), "the repairs are still in flight");
    }

    #[test]
    fn dropped_repairs_do_not_count_as_in_flight() {
        let mut sender = sender();
        let mut report = missing(0, 32);
        sender.on_rank_feedback(Timestamp::ZERO, &report, &path()).unwrap();
        report = missing(32, 32);
        sender.on_rank_feedback(Timestamp::ZERO, &report, &path()).unwrap();
        assert!(sender.queue.len() >= 32, "{} for 32 missing", sender.queue.len());
        assert_eq!(sender.urgent, sender.queue.len());
    }
}

#[cfg(test)]
#[path = "repair_tests.rs"]
mod unit_tests;
