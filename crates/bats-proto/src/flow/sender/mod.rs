use core::time::Duration;
use std::collections::VecDeque;

use bats_code::BATCH_SIZE;
use bats_code::stream::{StreamEncoder, Window};
use bats_types::Timestamp;

use super::rate::{RateController, RepairClass};
use super::shares::Shares;
use super::thin::ThinFlow;
use super::{FlowError, PathView};
use crate::config::Goal;
use crate::wire::coding::{REPAIR_HEADER_LEN, RepairHeader, SOURCE_HEADER_LEN, SourceHeader};
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Writer;

/// Least symbols of a cell: an S-batch.
const MIN_CELL: u64 = BATCH_SIZE as u64;
/// A cell lasts this long at least; its end is when its losses are repaired.
const CELL_TIME: Duration = Duration::from_millis(3);
/// Share of a round trip that a cell may last: repairs then still come well before a top-up.
const CELL_RTT_SHARE: u32 = 2;
/// Symbols cut ahead of being sent: one GSO burst.
const UNSENT_SYMBOLS: u64 = 64;
/// Repairs made and not sent; beyond, top-ups wait for the next report.
const MAX_QUEUED_REPAIRS: usize = 1_024;
/// The same as a share of the budget, which they may exceed by that; and a round of top-ups.
const REPAIR_SHARE: usize = 4;
const LEAST_QUEUED_REPAIRS: usize = 64;
/// Payload buffers kept for reuse.
const MAX_SPARE_BUFFERS: usize = 128;
/// Symbols that a repair of a thin flow covers.
const THIN_WINDOW: u64 = 32;
/// Columns of a probe.
const PROBE_COLUMNS: u64 = 2;

/// What a sender is set up with.
#[derive(Clone, Copy, Debug)]
pub struct SenderParameters {
    /// Octets of a symbol at most.
    pub max_symbol_size: usize,
    /// Symbols that one repair may cover.
    pub window_cap: u16,
    /// Seed of the coefficients, as told to the peer.
    pub seed: u64,
    /// Symbols that the peer promised to take.
    pub initial_credit: u64,
    /// What redundancy favours.
    pub goal: Goal,
    /// Octets that symbols may occupy.
    pub budget: usize,
}

/// Counters of a sender.
#[derive(Clone, Copy, Debug, Default)]
pub struct SenderCounters {
    /// Packets with fresh source symbols.
    pub source_packets: u64,
    /// Repairs sent before the peer asked.
    pub proactive_packets: u64,
    /// Repairs sent because rank was missing.
    pub top_up_packets: u64,
    /// Coded packets that the peer received, as it says.
    pub peer_coded: u64,
    /// Of these, packets that brought it nothing.
    pub peer_wasted: u64,
}

/// Consecutive symbols that are repaired together.
#[derive(Debug)]
struct Cell {
    first: u64,
    end: u64,
    closed: bool,
    tail: bool,
    rounds: u32,
    /// Repairs of this cell: sequence number, and when it was sent.
    repairs: VecDeque<(u64, Option<Timestamp>)>,
}

#[derive(Debug)]
struct QueuedRepair {
    sequence: u64,
    cell_first: u64,
    /// The symbol after the last one of its window.
    end: u64,
    header: RepairHeader,
    top_up: bool,
    payload: Vec<u8>,
}

/// The sending end of a flow.
#[derive(Debug)]
pub struct FlowSender {
    encoder: StreamEncoder,
    /// The symbol being filled.
    symbol: Vec<u8>,
    rate: RateController,
    window_cap: u64,
    max_symbol_size: usize,
    budget: usize,
    credit: u64,
    next_unsent: u64,
    decoded_below: u64,
    /// The symbol after the last one that the peer has heard of.
    seen_end: u64,
    cells: VecDeque<Cell>,
    queue: VecDeque<QueuedRepair>,
    spare: Vec<Vec<u8>>,
    next_batch: u64,
    /// Top-ups in the queue; while there are any, repairs are not spread.
    urgent: usize,
    /// Proactive repairs owed a source packet, and what one more source packet adds.
    spread: f64,
    spread_step: f64,
    /// Fraction of a repair carried from cell to cell.
    carry: f64,
    thin: ThinFlow,
    shares: Shares,
    counters: SenderCounters,
}

impl FlowSender {
    /// A sender for a fresh flow.
    pub fn new(parameters: SenderParameters) -> Self {
        Self {
            encoder: StreamEncoder::new(parameters.max_symbol_size, parameters.seed),
            symbol: Vec::new(),
            rate: RateController::new(parameters.goal),
            window_cap: u64::from(parameters.window_cap).max(MIN_CELL),
            max_symbol_size: parameters.max_symbol_size,
            budget: parameters.budget,
            credit: parameters.initial_credit,
            next_unsent: 0,
            decoded_below: 0,
            seen_end: 0,
            cells: VecDeque::new(),
            queue: VecDeque::new(),
            spare: Vec::new(),
            next_batch: 0,
            urgent: 0,
            spread: 0.0,
            spread_step: 0.0,
            carry: 0.5,
            thin: ThinFlow::default(),
            shares: Shares::default(),
            counters: SenderCounters::default(),
        }
    }

    /// Number of the symbol that is pushed next.
    pub fn next_symbol(&self) -> u64 {
        self.encoder.next()
    }

    /// Octets held for sending and repair.
    pub fn bytes_held(&self) -> usize {
        self.encoder.bytes_held() + self.queue.len() * self.max_symbol_size
    }

    /// Counters since the start.
    pub fn counters(&self) -> SenderCounters {
        self.counters
    }

    /// Frees memory that only a busy flow needs.
    pub fn trim(&mut self) {
        self.encoder.trim();
        self.symbol = Vec::new();
        self.cells.shrink_to_fit();
        self.queue.shrink_to_fit();
        self.spare = Vec::new();
    }

    /// Whether everything pushed was decoded by the peer.
    pub fn all_acknowledged(&self) -> bool {
        self.decoded_below == self.encoder.next()
    }

    /// Whether something that was sent is not known to be decoded. What waits for credit is not
    /// meant: the peer repeats its credit, asking for it would only cost packets.
    pub fn awaits_decoding(&self) -> bool {
        self.decoded_below < self.next_unsent
    }

    /// Whether another symbol would be taken now.
    pub fn wants_symbol(&self) -> bool {
        self.encoder.next() - self.next_unsent < UNSENT_SYMBOLS
            && self.encoder.bytes_held() + self.max_symbol_size <= self.budget
    }

    /// Whether [`FlowSender::poll`] would give a packet.
    pub fn wants_to_send(&self) -> bool {
        !self.queue.is_empty()
            || self.next_unsent < self.encoder.next().min(self.credit)
            || !self.shares.is_empty()
    }

    /// Octets of symbols that were not sent yet.
    pub fn unsent_bytes(&self) -> usize {
        let symbols = self.encoder.next() - self.next_unsent + self.shares.symbols();
        symbols as usize * self.max_symbol_size
    }

    /// Packets are for this link from now on, one of several: a batch stays on one. `None`: there is
    /// but one.
    pub fn set_link(&mut self, link: Option<u64>) {
        self.shares.set_link(link);
    }

    /// Whether symbols are set aside for this link.
    pub fn has_share_of(&self, link: u64) -> bool {
        self.shares.has_share_of(link)
    }

    /// What is set aside for this link is for any other.
    pub fn release_share(&mut self, link: u64) {
        self.shares.release(link);
    }

    /// Adds a symbol of up to `size` octets that `fill` writes; false if it wrote none.
    pub fn push_symbol(&mut self, size: usize, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        let size = size.min(self.max_symbol_size);
        self.symbol.resize(size, 0);
        let len = fill(&mut self.symbol).min(size);
        self.encoder.push(&self.symbol[..len]).is_ok()
    }

    /// The peer allows `symbols` in all. Credit never shrinks.
    pub fn on_credit(&mut self, symbols: u64) {
        self.credit = self.credit.max(symbols);
    }

    /// The next coded payload, header included, into `out`. `more` tells whether further symbols
    /// would follow at once: if not, the cell ends with the last symbol.
    pub fn poll(
        &mut self,
        now: Timestamp,
        path: &PathView,
        more: bool,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        out.clear();
        let limit = self.encoder.next().min(self.credit);
        let source_ready = self.next_unsent < limit || self.shares.has_any();
        let repair_due = self.urgent > 0 || !source_ready || self.spread >= 1.0;
        if repair_due && let Some(repair) = self.queue.pop_front() {
            self.spread = (self.spread - 1.0).max(0.0);
            return Some(self.send_repair(now, repair, out));
        }
        if !source_ready {
            return None;
        }
        if self.shares.is_divided() {
            return self.poll_share(now, path, more, out);
        }
        let number = self.next_unsent;
        let kind = self.send_source(number, out)?;
        self.next_unsent += 1;
        self.spread += self.spread_step;
        self.thin.on_symbol(now);
        self.grow_cell(now, number, path, more);
        Some(kind)
    }

    /// The next symbol of the share of the link at hand; a new share is the rest of a batch.
    fn poll_share(
        &mut self,
        now: Timestamp,
        path: &PathView,
        more: bool,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        loop {
            let limit = self.encoder.next().min(self.credit);
            let Some(number) = self.shares.next() else {
                let first = self.next_unsent;
                let end = limit.min((first / MIN_CELL + 1) * MIN_CELL);
                if first >= end {
                    return None;
                }
                self.shares.take(first, end);
                for number in first..end {
                    self.next_unsent = number + 1;
                    self.thin.on_symbol(now);
                    self.grow_cell(now, number, path, more);
                }
                continue;
            };
            // It may have been decoded from repairs before it was sent.
            if let Some(kind) = self.send_source(number, out) {
                self.spread += self.spread_step;
                return Some(kind);
            }
        }
    }

    fn send_source(&mut self, number: u64, out: &mut Vec<u8>) -> Option<PacketKind> {
        let symbol = self.encoder.symbol(number)?;
        out.resize(SOURCE_HEADER_LEN, 0);
        SourceHeader::new(number).encode(&mut Writer::new(out))?;
        out.extend_from_slice(symbol);
        self.counters.source_packets += 1;
        Some(PacketKind::Source)
    }

    fn send_repair(
        &mut self,
        now: Timestamp,
        mut repair: QueuedRepair,
        out: &mut Vec<u8>,
    ) -> PacketKind {
        out.resize(REPAIR_HEADER_LEN, 0);
        let written = repair.header.encode(&mut Writer::new(out));
        debug_assert!(written.is_some(), "the header has room");
        out.extend_from_slice(&repair.payload);
        if repair.top_up {
            self.urgent -= 1;
            self.counters.top_up_packets += 1;
        } else {
            self.counters.proactive_packets += 1;
        }
        if let Some(index) = self.cell_of(repair.cell_first)
            && let Some(entry) =
                self.cells[index].repairs.iter_mut().find(|(s, _)| *s == repair.sequence)
        {
            entry.1 = Some(now);
        }
        if self.spare.len() < MAX_SPARE_BUFFERS {
            repair.payload.clear();
            self.spare.push(repair.payload);
        }
        PacketKind::Repair
    }

    /// Symbols that a cell should have now.
    fn cell_target(&self, path: &PathView) -> u64 {
        let time = CELL_TIME.max(path.smoothed_rtt / CELL_RTT_SHARE);
        let octets = path.rate_bytes_per_second as f64 * time.as_secs_f64();
        let symbols = octets / self.max_symbol_size.max(1) as f64;
        (symbols as u64).clamp(MIN_CELL, self.window_cap)
    }

    /// A source symbol was sent: it belongs to the open cell, and may end it.
    fn grow_cell(&mut self, now: Timestamp, number: u64, path: &PathView, more: bool) {
        match self.cells.back_mut() {
            Some(cell) if !cell.closed => cell.end = number + 1,
            _ => self.cells.push_back(Cell {
                first: number,
                end: number + 1,
                closed: false,
                tail: false,
                rounds: 0,
                repairs: VecDeque::new(),
            }),
        }
        let last = !more && self.next_unsent == self.encoder.next();
        let target = self.cell_target(path);
        let Some(cell) = self.cells.back_mut() else { return };
        if last && self.thin.is_thin(now, path) {
            cell.closed = true;
            cell.tail = true;
            self.repair_at_once(now, number + 1, path);
        } else if last || cell.end - cell.first >= target {
            self.close_cell(path, last);
        }
    }

    /// The last symbol of a message of a thin flow, for which no other will make up, is protected
    /// together with what is not known to have arrived.
    fn repair_at_once(&mut self, now: Timestamp, end: u64, path: &PathView) {
        let Some(cell) = self.cells.back() else { return };
        let cell_first = cell.first;
        let (symbols, tail) = (end - cell_first, RepairClass::Tail);
        let wanted = self.rate.thin(path).max(self.rate.proactive(tail, symbols, path).ceil());
        let first = self.decoded_below.max(end.saturating_sub(THIN_WINDOW)).min(cell_first);
        let lengths =
            (first..end).filter_map(|number| self.encoder.symbol(number)).map(<[u8]>::len);
        let octets = lengths.max().unwrap_or(self.max_symbol_size) + REPAIR_HEADER_LEN;
        let count = self.thin.allow(now, wanted as u64, octets, path);
        self.make_repairs(cell_first, first, end, count, false);
    }

    /// Ends the open cell and makes its proactive repairs.
    fn close_cell(&mut self, path: &PathView, tail: bool) {
        let Some(cell) = self.cells.back_mut() else { return };
        cell.closed = true;
        cell.tail = tail;
        let (first, end) = (cell.first, cell.end);
        let class = if tail { RepairClass::Tail } else { RepairClass::Bulk };
        let wanted = self.rate.proactive(class, end - first, path);
        let count = if tail {
            wanted.ceil()
        } else {
            let total = wanted + self.carry;
            self.carry = total.fract();
            total.floor()
        };
        if wanted <= 0.0 {
            self.carry = 0.5;
            self.spread_step = 0.0;
            return;
        }
        self.make_repairs(first, first, end, count as u64, false);
        // What is queued leaves with the symbols of the next cell, evenly.
        self.spread_step = self.queue.len() as f64 / (end - first) as f64;
        self.spread = self.spread.min(1.0);
    }

    /// Queues `count` columns over the symbols from `first` to `end` of a cell.
    fn make_repairs(&mut self, cell_first: u64, first: u64, end: u64, count: u64, top_up: bool) {
        let first = first.max(self.encoder.first());
        let mut left = (count as usize).min(self.max_repairs().saturating_sub(self.queue.len()));
        if first >= end {
            return;
        }
        let window = Window { first, count: (end - first) as u16 };
        while left > 0 {
            let group = left.min(BATCH_SIZE);
            let mut payloads: Vec<Vec<u8>> = (0..group)
                .map(|_| {
                    let mut buffer = self.spare.pop().unwrap_or_default();
                    buffer.resize(self.max_symbol_size, 0);
                    buffer
                })
                .collect();
            let mut outputs: Vec<&mut [u8]> = payloads.iter_mut().map(Vec::as_mut_slice).collect();
            let batch = (self.next_batch & 0x00ff_ffff) as u32;
            let Ok(len) = self.encoder.encode(window, batch, 0, &mut outputs) else { return };
            for (column, mut payload) in payloads.into_iter().enumerate() {
                payload.truncate(len);
                let sequence = self.next_batch * BATCH_SIZE as u64 + column as u64;
                let header = RepairHeader {
                    batch,
                    column: column as u8,
                    first: first as u32,
                    count: window.count,
                };
                self.queue.push_back(QueuedRepair {
                    sequence,
                    cell_first,
                    end,
                    header,
                    top_up,
                    payload,
                });
                if let Some(index) = self.cell_of(cell_first) {
                    self.cells[index].repairs.push_back((sequence, None));
                }
            }
            if top_up {
                self.urgent += group;
            }
            self.next_batch += 1;
            left -= group;
        }
    }

    /// Repairs that may wait.
    fn max_repairs(&self) -> usize {
        let share = self.budget / REPAIR_SHARE / self.max_symbol_size.max(1);
        share.clamp(LEAST_QUEUED_REPAIRS, MAX_QUEUED_REPAIRS)
    }

    fn cell_of(&self, symbol: u64) -> Option<usize> {
        let index = self.cells.partition_point(|cell| cell.end <= symbol);
        self.cells.get(index).filter(|cell| cell.first <= symbol).map(|_| index)
    }

    /// The symbol after the last one sent.
    pub fn sent_end(&self) -> u64 {
        self.next_unsent
    }

    /// Takes the peer's report: forgets what it has, and tops up what it lacks less what is on
    /// the way.
    pub fn on_rank_feedback(
        &mut self,
        now: Timestamp,
        feedback: &RankFeedback,
        path: &PathView,
    ) -> Result<(), FlowError> {
        if feedback.seen_end > self.next_unsent {
            return Err(FlowError::NotSent(feedback.seen_end - 1));
        }
        let ends = feedback.entries.iter().map(|entry| entry.first + entry.span);
        if let Some(end) = ends.max().filter(|&end| end > feedback.seen_end) {
            return Err(FlowError::NotSent(end - 1));
        }
        if feedback.entries.iter().any(|entry| entry.missing > entry.span) {
            return Err(FlowError::Malformed);
        }
        self.counters.peer_coded = self.counters.peer_coded.max(feedback.coded);
        self.counters.peer_wasted = self.counters.peer_wasted.max(feedback.wasted);
        if feedback.decoded_below < self.decoded_below {
            // Overtaken by a later report.
            return Ok(());
        }
        self.decoded_below = feedback.decoded_below;
        self.seen_end = self.seen_end.max(feedback.seen_end);
        while let Some(cell) = self.cells.front()
            && cell.closed
            && cell.end <= self.decoded_below
        {
            self.cells.pop_front();
        }
        // The open cell and cells under repair keep their symbols.
        let keep = self.cells.front().map_or(self.next_unsent, |cell| cell.first);
        self.encoder.release_below(keep.min(self.decoded_below));
        self.drop_useless_repairs();

        let mut entries = feedback.entries.iter().peekable();
        while let Some(entry) = entries.next() {
            let Some(index) = self.cell_of(entry.first) else { continue };
            let cell_end = self.cells[index].end;
            // A run of missing symbols may go on in the next cell: its part here has full rank.
            let run = entry.missing == entry.span;
            let mut missing =
                if run { entry.span.min(cell_end - entry.first) } else { entry.missing };
            let first = entry.first;
            // Repairs of small cells reach back over others and link them: what is missing in all of
            // them is not made up for by the first.
            let stop = if run { cell_end } else { cell_end.max(first + self.window_cap) };
            let mut end = (entry.first + entry.span).min(stop);
            while let Some(next) = entries.next_if(|next| next.first < cell_end) {
                let inside = next.span.min(cell_end - next.first);
                missing += if next.missing == next.span { inside } else { next.missing };
                end = end.max((next.first + next.span).min(cell_end));
            }
            self.top_up(now, index, first, end, missing, feedback.repair_seen, path);
            // The rest of a run that crosses cells.
            let mut at = cell_end;
            while run && at < entry.first + entry.span {
                let Some(index) = self.cell_of(at) else { break };
                let stop = self.cells[index].end.min(entry.first + entry.span);
                self.top_up(now, index, at, stop, stop - at, feedback.repair_seen, path);
                at = self.cells[index].end;
            }
        }
        Ok(())
    }

    /// Repairs of symbols that are decoded meanwhile need not be sent, and are not under way.
    fn drop_useless_repairs(&mut self) {
        let decoded = self.decoded_below;
        let is_useless = |repair: &QueuedRepair| repair.end <= decoded;
        if !self.queue.iter().any(is_useless) {
            return;
        }
        let (useless, useful): (VecDeque<_>, VecDeque<_>) =
            core::mem::take(&mut self.queue).into_iter().partition(is_useless);
        self.queue = useful;
        for repair in useless {
            self.urgent -= usize::from(repair.top_up);
            if let Some(index) = self.cell_of(repair.cell_first) {
                self.cells[index].repairs.retain(|&(sequence, _)| sequence != repair.sequence);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one group of a report and its context")]
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
        let cell = &mut self.cells[index];
        if !cell.closed {
            return;
        }
        // A report is based on what had arrived half a round trip ago; what was sent less than a
        // round trip ago and after the newest repair it names is not in it.
        let horizon = path.smoothed_rtt + path.smoothed_rtt / 8 + path.ack_interval * 2;
        cell.repairs.retain(|&(sequence, sent_at)| {
            repair_seen.is_none_or(|seen| sequence > seen)
                && sent_at.is_none_or(|at| at + horizon > now)
        });
        let in_flight = cell.repairs.len() as u64;
        let class = if cell.tail { RepairClass::Tail } else { RepairClass::Bulk };
        // A round is over when all of it has arrived or is lost; until then a repeated report asks
        // for nothing new.
        if in_flight == 0 {
            cell.rounds += 1;
        }
        let needed = self.rate.top_up(class, missing, cell.rounds.max(1), path);
        if needed > in_flight {
            let cell_first = cell.first;
            self.make_repairs(cell_first, first, end, needed - in_flight, true);
        }
    }

    /// The path is gone and everything on it: what the peer has not heard of is sent again, without
    /// waiting for a report, which would take a round trip.
    pub fn on_path_lost(&mut self, now: Timestamp, path: &PathView) {
        if let Some(cell) = self.cells.back_mut()
            && !cell.closed
        {
            cell.closed = true;
            cell.tail = true;
        }
        for index in 0..self.cells.len() {
            let cell = &mut self.cells[index];
            // What is queued is still to be sent.
            cell.repairs.retain(|(_, sent_at)| sent_at.is_none());
            let (first, end) = (cell.first.max(self.seen_end), cell.end);
            if first < end {
                self.top_up(now, index, first, end, end - first, None, path);
            }
        }
    }

    /// Nothing was heard for long: make something that is worth sending. False if there is
    /// nothing to repair.
    pub fn on_probe_timeout(&mut self) -> bool {
        if self.wants_to_send() {
            return true;
        }
        if let Some(cell) = self.cells.back_mut()
            && !cell.closed
        {
            cell.closed = true;
            cell.tail = true;
        }
        // The oldest is what the peer waits for. The newest shows it all that was sent: it asks for the
        // whole of what a hole has taken, and not for a cell in each round trip.
        let last = self.cells.len().saturating_sub(1);
        for index in [0, last] {
            let Some(cell) = self.cells.get_mut(index) else { return false };
            if index == 0 || last > 0 {
                cell.repairs.clear();
            }
            let (first, end) = (cell.first, cell.end);
            self.make_repairs(first, first.max(self.decoded_below), end, PROBE_COLUMNS / 2, true);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::rank::RankEntry;

    fn path() -> PathView {
        PathView {
            rate_bytes_per_second: 125_000_000,
            smoothed_rtt: Duration::from_millis(20),
            ack_interval: Duration::from_millis(1),
            loss: 0.1,
            burst_factor: 1.0,
            loss_packets: 1_000,
        }
    }

    /// A sender that has sent 64 symbols of one closed cell.
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
            assert!(sender.push_symbol(100, |octets| octets.len()));
        }
        let mut out = Vec::new();
        while sender.next_unsent < 64 {
            sender.poll(Timestamp::ZERO, &path(), false, &mut out);
        }
        sender.queue.clear();
        sender.cells.iter_mut().for_each(|cell| cell.repairs.clear());
        sender
    }

    fn missing(first: u64, span: u64) -> RankFeedback {
        let entries = vec![RankEntry { first, span, missing: span }];
        RankFeedback { decoded_below: first, seen_end: 64, entries, ..RankFeedback::default() }
    }

    #[test]
    fn repairs_of_the_rest_of_a_cell_survive_the_next_report() {
        let mut sender = sender();
        sender.on_rank_feedback(Timestamp::ZERO, &missing(32, 32), &path()).unwrap();
        let queued = sender.queue.len();
        assert!(queued >= 32);
        sender.on_rank_feedback(Timestamp::ZERO, &missing(32, 32), &path()).unwrap();
        assert_eq!(sender.queue.len(), queued, "still missing, still under way");
        assert_eq!(sender.urgent, queued);
    }

    /// Thin flows have cells of a symbol or two, and repairs that link many of them.
    #[test]
    fn what_is_missing_across_cells_is_made_up_for_at_once() {
        let mut sender = sender();
        let (first, mut cells) = (32, VecDeque::new());
        for number in first..64 {
            let repairs = VecDeque::new();
            let end = number + 1;
            cells.push_back(Cell {
                first: number,
                end,
                closed: true,
                tail: true,
                rounds: 0,
                repairs,
            });
        }
        sender.cells = cells;
        let entries = vec![RankEntry { first, span: 16, missing: 12 }];
        let report =
            RankFeedback { decoded_below: first, seen_end: 64, entries, ..RankFeedback::default() };
        sender.on_rank_feedback(Timestamp::ZERO, &report, &path()).unwrap();
        let windows: Vec<_> =
            sender.queue.iter().map(|repair| (repair.header.first, repair.header.count)).collect();
        assert!(windows.len() >= 12, "{windows:?}");
        assert!(windows.iter().all(|&window| window == (32, 16)), "{windows:?}");
        sender.on_rank_feedback(Timestamp::ZERO, &report, &path()).unwrap();
        assert_eq!(sender.queue.len(), windows.len(), "still missing, still under way");
    }

    #[test]
    fn repairs_that_are_dropped_do_not_count_as_under_way() {
        let mut sender = sender();
        let mut report = missing(0, 32);
        sender.on_rank_feedback(Timestamp::ZERO, &report, &path()).unwrap();
        report = missing(32, 32);
        sender.on_rank_feedback(Timestamp::ZERO, &report, &path()).unwrap();
        assert!(sender.queue.len() >= 32, "{} for 32 missing", sender.queue.len());
        assert_eq!(sender.urgent, sender.queue.len());
    }
}
