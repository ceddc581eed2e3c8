//! The sending end of a reliable flow: generations of symbols, the choice of the next packet, and
//! the proactive repairs of a generation.

mod repair;

use core::time::Duration;
use std::collections::VecDeque;

use bats_code::BATCH_SIZE;
use bats_code::stream::StreamEncoder;
use bats_types::Timestamp;

use super::PathView;
use super::link_assignments::LinkAssignments;
use super::rate::{RateController, RepairClass};
use super::steady::{STEADY_WINDOW, SteadyFlow};
use super::thin::ThinFlow;
use crate::config::Goal;
use crate::wire::coding::{REPAIR_HEADER_LEN, SOURCE_HEADER_LEN, SourceHeader};
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Writer;

/// Minimum number of symbols of a generation: an S-batch.
const MIN_GENERATION: u64 = BATCH_SIZE as u64;
/// Minimum duration of a generation, because its losses are repaired at its end.
const GENERATION_TIME: Duration = Duration::from_millis(3);
/// A generation lasts at most the round trip divided by this, so that its repairs arrive well
/// before a top-up.
const GENERATION_RTT_FRACTION: u32 = 2;
/// Maximum number of symbols cut in advance of sending: one GSO burst.
const MAX_UNSENT_SYMBOLS: u64 = 64;
/// Maximum number of payload buffers kept for reuse.
const MAX_SPARE_BUFFERS: usize = 128;
/// Number of symbols that a repair of a thin flow covers.
const THIN_WINDOW: u64 = 32;

/// Parameters of a sender.
#[derive(Clone, Copy, Debug)]
pub struct SenderParameters {
    /// Maximum size of a symbol in bytes.
    pub max_symbol_size: usize,
    /// Maximum number of symbols that one repair covers.
    pub window_cap: u16,
    /// Seed of the coefficients, as announced to the peer.
    pub seed: u64,
    /// Initial credit from the peer, in symbols.
    pub initial_credit: u64,
    /// Optimisation goal of the redundancy.
    pub goal: Goal,
    /// Maximum number of bytes that symbols may occupy.
    pub budget: usize,
}

/// Counters of a sender.
#[derive(Clone, Copy, Debug, Default)]
pub struct SenderCounters {
    /// Packets with source symbols.
    pub source_packets: u64,
    /// Proactive repairs sent.
    pub proactive_packets: u64,
    /// Top-up repairs sent.
    pub top_up_packets: u64,
    /// Coded packets received, as the peer reports.
    pub peer_coded: u64,
    /// Number of these that were not innovative.
    pub peer_wasted: u64,
}

/// Consecutive symbols that share repairs.
#[derive(Debug)]
struct Generation {
    first: u64,
    end: u64,
    closed: bool,
    tail: bool,
    rounds: u32,
    /// Rank that it lacks by the newest report.
    missing: u64,
    /// The first symbol that its proactive repairs cover.
    reach: u64,
    /// Repairs of this generation: sequence number and, if sent, the send time.
    repairs: VecDeque<(u64, Option<Timestamp>)>,
}

#[derive(Debug)]
struct QueuedRepair {
    sequence: u64,
    generation_first: u64,
    /// The symbol after the last one of its window.
    end: u64,
    /// First symbol of its window.
    first: u64,
    batch: u32,
    column: u8,
    top_up: bool,
    /// `None` until the first repair of its batch is sent.
    payload: Option<Vec<u8>>,
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
    /// One more than the newest symbol that the peer has reported.
    seen_end: u64,
    generations: VecDeque<Generation>,
    queue: VecDeque<QueuedRepair>,
    spare: Vec<Vec<u8>>,
    next_batch: u64,
    /// Number of top-ups in the queue. While there are any, repairs are not spread.
    urgent: usize,
    /// Proactive repairs due between source packets, and how much each source packet adds.
    spread: f64,
    spread_step: f64,
    /// Fraction of a proactive repair left over from earlier generations.
    repair_remainder: f64,
    thin: ThinFlow,
    steady: SteadyFlow,
    assignments: LinkAssignments,
    counters: SenderCounters,
}

impl FlowSender {
    /// A sender for a new flow.
    pub fn new(parameters: SenderParameters) -> Self {
        Self {
            encoder: StreamEncoder::new(parameters.max_symbol_size, parameters.seed),
            symbol: Vec::new(),
            rate: RateController::new(parameters.goal),
            window_cap: u64::from(parameters.window_cap).max(MIN_GENERATION),
            max_symbol_size: parameters.max_symbol_size,
            budget: parameters.budget,
            credit: parameters.initial_credit,
            next_unsent: 0,
            decoded_below: 0,
            seen_end: 0,
            generations: VecDeque::new(),
            queue: VecDeque::new(),
            spare: Vec::new(),
            next_batch: 0,
            urgent: 0,
            spread: 0.0,
            spread_step: 0.0,
            repair_remainder: 0.5,
            thin: ThinFlow::default(),
            steady: SteadyFlow::default(),
            assignments: LinkAssignments::default(),
            counters: SenderCounters::default(),
        }
    }

    /// Number of the symbol that is pushed next.
    pub fn next_symbol(&self) -> u64 {
        self.encoder.next()
    }

    /// Bytes held for sending and repair.
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
        self.generations.shrink_to_fit();
        self.queue.shrink_to_fit();
        self.spare = Vec::new();
        self.steady.trim();
    }

    /// Whether the peer has decoded every symbol pushed.
    pub fn all_acknowledged(&self) -> bool {
        self.decoded_below == self.encoder.next()
    }

    /// Whether a symbol that was sent may still be undecoded. Symbols that wait for credit do not
    /// count: the peer repeats its credit, so probing for it would only cost packets.
    pub fn awaits_decoding(&self) -> bool {
        self.decoded_below < self.next_unsent
    }

    /// Whether another symbol can be pushed now.
    pub fn wants_symbol(&self) -> bool {
        self.encoder.next() - self.next_unsent < MAX_UNSENT_SYMBOLS
            && self.encoder.bytes_held() + self.max_symbol_size <= self.budget
    }

    /// Whether [`FlowSender::poll`] would return a packet.
    pub fn wants_to_send(&self) -> bool {
        !self.queue.is_empty()
            || self.next_unsent < self.encoder.next().min(self.credit)
            || !self.assignments.is_empty()
    }

    /// Bytes of symbols that were not sent yet.
    pub fn unsent_bytes(&self) -> usize {
        let symbols = self.encoder.next() - self.next_unsent + self.assignments.symbols();
        symbols as usize * self.max_symbol_size
    }

    /// Sets the link that polls next if several links transport the flow; a batch stays on one
    /// link. `None` if there is only one link.
    pub fn set_link(&mut self, link: Option<u64>) {
        self.assignments.set_link(link);
    }

    /// Whether unsent symbols are assigned to this link.
    pub fn has_assigned(&self, link: u64) -> bool {
        self.assignments.has_assigned(link)
    }

    /// Makes the symbols assigned to this link available to any link.
    pub fn release_assigned(&mut self, link: u64) {
        self.assignments.release(link);
    }

    /// Adds a symbol of up to `size` bytes, which `fill` writes. Returns false if it writes
    /// nothing.
    pub fn push_symbol(&mut self, size: usize, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        let size = size.min(self.max_symbol_size);
        self.symbol.resize(size, 0);
        let len = fill(&mut self.symbol).min(size);
        self.encoder.push(&self.symbol[..len]).is_ok()
    }

    /// Raises the credit to `symbols` in total. Credit never shrinks.
    pub fn on_credit(&mut self, symbols: u64) {
        self.credit = self.credit.max(symbols);
    }

    /// Writes the next coded payload, header included, to `out`. `more` says whether further
    /// symbols follow at once; if not, the generation ends with the last symbol.
    pub fn poll(
        &mut self,
        now: Timestamp,
        path: &PathView,
        more: bool,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        out.clear();
        let limit = self.encoder.next().min(self.credit);
        let source_ready = self.next_unsent < limit || self.assignments.has_next();
        let repair_due = self.urgent > 0 || !source_ready || self.spread >= 1.0;
        if repair_due && let Some(kind) = self.send_repair(now, out) {
            self.spread = (self.spread - 1.0).max(0.0);
            return Some(kind);
        }
        if !source_ready {
            return None;
        }
        if self.assignments.is_in_use() {
            return self.poll_assigned(now, path, more, out);
        }
        let number = self.next_unsent;
        let kind = self.send_source(number, out)?;
        self.next_unsent += 1;
        self.spread += self.spread_step;
        self.thin.on_symbol(now);
        self.steady.on_symbol(now);
        self.grow_generation(now, number, path, more);
        Some(kind)
    }

    /// The next symbol assigned to the current link. A new assignment is the remainder of a batch.
    fn poll_assigned(
        &mut self,
        now: Timestamp,
        path: &PathView,
        more: bool,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        loop {
            let limit = self.encoder.next().min(self.credit);
            let Some(number) = self.assignments.next() else {
                let first = self.next_unsent;
                let end = limit.min((first / MIN_GENERATION + 1) * MIN_GENERATION);
                if first >= end {
                    return None;
                }
                self.assignments.assign(first, end);
                for number in first..end {
                    self.next_unsent = number + 1;
                    self.thin.on_symbol(now);
                    self.steady.on_symbol(now);
                    self.grow_generation(now, number, path, more);
                }
                continue;
            };
            // The symbol may have been decoded from repairs before it was sent.
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

    /// Target number of symbols of a generation.
    fn generation_target(&self, path: &PathView) -> u64 {
        let time = GENERATION_TIME.max(path.smoothed_rtt / GENERATION_RTT_FRACTION);
        let bytes = path.rate_bytes_per_second as f64 * time.as_secs_f64();
        let symbols = bytes / self.max_symbol_size.max(1) as f64;
        (symbols as u64).clamp(MIN_GENERATION, self.window_cap)
    }

    /// Adds a sent source symbol to the open generation, and closes the generation if it is
    /// complete.
    fn grow_generation(&mut self, now: Timestamp, number: u64, path: &PathView, more: bool) {
        match self.generations.back_mut() {
            Some(generation) if !generation.closed => generation.end = number + 1,
            _ => self.generations.push_back(Generation {
                first: number,
                end: number + 1,
                closed: false,
                tail: false,
                rounds: 0,
                missing: 0,
                reach: number,
                repairs: VecDeque::new(),
            }),
        }
        let last = !more && self.next_unsent == self.encoder.next();
        let target = self.generation_target(path);
        let Some(generation) = self.generations.back_mut() else { return };
        if last && self.thin.is_thin(now, path) {
            generation.closed = true;
            generation.tail = true;
            self.repair_at_once(now, number + 1, path);
        } else if last
            && let symbols = generation.end - generation.first
            && let Some(count) = self.steady.on_emptied(now, symbols, self.rate, path)
        {
            generation.closed = true;
            generation.tail = true;
            self.repair_recent(count);
        } else if last || generation.end - generation.first >= target {
            self.close_generation(path, last);
        }
    }

    /// Protects the last symbol of a thin flow's message at once, together with earlier symbols
    /// that may not have arrived. No later symbol would reveal its loss.
    fn repair_at_once(&mut self, now: Timestamp, end: u64, path: &PathView) {
        let Some(generation) = self.generations.back() else { return };
        let generation_first = generation.first;
        let (symbols, tail) = (end - generation_first, RepairClass::Tail);
        let wanted = self.rate.thin(path).max(self.rate.proactive(tail, symbols, path).ceil());
        let first = self.decoded_below.max(end.saturating_sub(THIN_WINDOW)).min(generation_first);
        let lengths =
            (first..end).filter_map(|number| self.encoder.symbol(number)).map(<[u8]>::len);
        let bytes = lengths.max().unwrap_or(self.max_symbol_size) + REPAIR_HEADER_LEN;
        let count = self.thin.allow(now, wanted as u64, bytes, path);
        self.make_repairs(generation_first, first, end, count, false);
    }

    /// Queues `count` repairs over the newest symbols of a steady flow, which are sent before
    /// further symbols.
    fn repair_recent(&mut self, count: u64) {
        let end = self.next_unsent;
        let first = self.decoded_below.max(end.saturating_sub(STEADY_WINDOW));
        let Some(generation) = self.generations.back_mut().filter(|_| count > 0 && first < end)
        else {
            return;
        };
        generation.reach = first.min(generation.first);
        let generation_first = generation.first;
        self.make_repairs(generation_first, first, end, count, false);
        self.spread = self.queue.len() as f64;
    }

    /// When to call [`FlowSender::on_timeout`].
    pub fn next_timeout(&self) -> Option<Timestamp> {
        self.steady.next_timeout()
    }

    /// Protects the newest symbols of a steady flow that has ended.
    pub fn on_timeout(&mut self, now: Timestamp) {
        let count = self.steady.on_timeout(now);
        self.repair_recent(count);
    }

    /// Closes the open generation and queues its proactive repairs.
    fn close_generation(&mut self, path: &PathView, tail: bool) {
        let Some(generation) = self.generations.back_mut() else { return };
        generation.closed = true;
        generation.tail = tail;
        let (first, end) = (generation.first, generation.end);
        let class = if tail { RepairClass::Tail } else { RepairClass::Bulk };
        let wanted = self.rate.proactive(class, end - first, path);
        let count = if tail {
            wanted.ceil()
        } else {
            let total = wanted + self.repair_remainder;
            self.repair_remainder = total.fract();
            total.floor()
        };
        if wanted <= 0.0 {
            self.repair_remainder = 0.5;
            self.spread_step = 0.0;
            return;
        }
        self.make_repairs(first, first, end, count as u64, false);
        // Spread the queued repairs evenly over the symbols of the next generation.
        self.spread_step = self.queue.len() as f64 / (end - first) as f64;
        self.spread = self.spread.min(1.0);
    }

    fn generation_of(&self, symbol: u64) -> Option<usize> {
        let index = self.generations.partition_point(|generation| generation.end <= symbol);
        self.generations.get(index).filter(|generation| generation.first <= symbol).map(|_| index)
    }

    /// One more than the newest symbol sent.
    pub fn sent_end(&self) -> u64 {
        self.next_unsent
    }
}

#[cfg(test)]
mod tests;
