use core::time::Duration;
use std::collections::VecDeque;

use bats_code::rows::padded_length;
use bats_code::stream::{DecoderConfig, MAX_SYMBOL_SIZE, Outcome, PushResult, StreamDecoder};

use bats_types::Timestamp;

use super::coded_packet::CodedPacket;
use super::work_budget::WorkBudget;
use super::{FlowError, ReceiverCounters};
use crate::wire::coding::SourceHeader;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// Number of symbols before the newest one that may still be repaired. Windows are much shorter.
const HISTORY: u64 = 1_024;
/// Maximum number of unknowns of a linear system. Windows overlap, so that systems span many of them, but symbols arrive
/// between those that are missing. More unknowns repair nothing more, up to losses of 50 % in bursts of eight (ADR 0026).
pub const MAX_UNKNOWNS: u32 = 384;
/// Maximum number of equations held: several windows of the largest size.
const MAX_EQUATIONS: usize = 1_024;
/// Maximum distance of a symbol from the newest one: a blackout of several seconds at 1 Gbit/s.
const MAX_JUMP: u64 = 1 << 20;

/// The receiving end of a flow whose symbols have deadlines (mode BTP). Delivers each symbol as
/// soon as it is decoded, in any order.
#[derive(Debug)]
pub struct TimelyReceiver {
    decoder: StreamDecoder,
    /// The symbols from `base` to `seen_end`.
    slots: VecDeque<Slot>,
    /// Number of these that were not delivered.
    missing: usize,
    base: u64,
    seen_end: u64,
    ready: VecDeque<u64>,
    residual: ResidualStats,
    counters: ReceiverCounters,
    work: WorkBudget,
}

/// A symbol that is known to exist.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// When the symbol became known to exist.
    seen_at: Timestamp,
    /// Whether the symbol was delivered.
    delivered: bool,
}

/// Residual loss and repair delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidualStats {
    /// Symbols that were given up.
    pub symbols_lost: u64,
    /// Symbols decoded from repairs.
    pub symbols_repaired: u64,
    /// Sum of the times from the detection of a missing symbol to its repair.
    pub repair_delay: Duration,
    /// Longest of these times.
    pub longest_repair_delay: Duration,
    /// Messages that were given up, and those dropped unread because they exceeded the receive budget.
    pub messages_lost: u64,
}

impl TimelyReceiver {
    /// A receiver for a new flow with symbols of up to `max_symbol_size` bytes and the sender's
    /// coefficient seed.
    pub fn new(max_symbol_size: usize, seed: u64) -> Self {
        let max_symbol_size = max_symbol_size.clamp(1, MAX_SYMBOL_SIZE);
        let config = DecoderConfig {
            max_symbols_held: 2 * HISTORY as usize,
            max_equations: MAX_EQUATIONS,
            max_span: HISTORY as u32,
            max_unknowns: MAX_UNKNOWNS,
            ..DecoderConfig::new(max_symbol_size, seed)
        };
        Self {
            decoder: StreamDecoder::new(config),
            slots: VecDeque::new(),
            missing: 0,
            base: 0,
            seen_end: 0,
            ready: VecDeque::new(),
            residual: ResidualStats::default(),
            counters: ReceiverCounters::default(),
            work: WorkBudget::default(),
        }
    }

    /// Begins with this symbol, before any has arrived: those before it are neither delivered nor lost.
    pub fn begin_at(&mut self, first: u64) {
        (self.base, self.seen_end) = (first, first);
        self.decoder.release_below(first);
    }

    /// Maximum number of bytes held for symbols of this size.
    pub fn bound(max_symbol_size: usize) -> usize {
        (2 * HISTORY as usize + MAX_EQUATIONS) * padded_length(max_symbol_size)
    }

    /// Bytes held by symbols and equations.
    pub fn bytes_held(&self) -> usize {
        self.decoder.bytes_held()
    }

    /// Counters since the start.
    pub fn counters(&self) -> ReceiverCounters {
        self.counters
    }

    /// Frees memory that only a busy flow needs. Missing symbols before those that were not taken are given
    /// up: the sender makes no repairs of symbols from before a pause.
    pub fn trim(&mut self) {
        self.give_up_below(self.ready.iter().copied().min().unwrap_or(self.seen_end));
        self.decoder.trim();
        self.slots.shrink_to_fit();
        self.ready.shrink_to_fit();
    }

    /// Residual loss and repair delay since the start.
    pub fn residual(&self) -> ResidualStats {
        self.residual
    }

    /// One more than the newest symbol that is known to exist.
    pub fn seen_end(&self) -> u64 {
        self.seen_end
    }

    /// Whether every symbol below `end` was delivered.
    pub fn has_all_below(&self, end: u64) -> bool {
        self.seen_end >= end && self.missing == 0
    }

    /// Ends the flow after `end` symbols: no repairs will follow.
    pub fn finish(&mut self, end: u64) {
        self.extend_to(Timestamp::ZERO, end.min(self.seen_end.saturating_add(MAX_JUMP)));
        self.give_up_below(self.seen_end);
    }

    /// Processes the payload of a coded packet.
    pub fn on_packet(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        payload: &[u8],
    ) -> Result<(), FlowError> {
        let mut reader = Reader::new(payload);
        let receipt = if kind == PacketKind::Source {
            let header = SourceHeader::decode(&mut reader).ok_or(FlowError::Malformed)?;
            let number = header.number(self.seen_end);
            if number < self.base || number >= self.seen_end + MAX_JUMP {
                self.counters.coded_received += 1;
                self.counters.refused += 1;
                return Ok(());
            }
            self.extend_to(now, number + 1);
            let receipt = self.decoder.push_source(number, reader.rest());
            if receipt.outcome == Outcome::Innovative {
                self.deliver(number);
            }
            receipt
        } else {
            self.on_repair(now, kind, &mut reader)?
        };
        self.work.charge(&self.decoder.stats())?;
        self.counters.coded_received += 1;
        match receipt.outcome {
            Outcome::Innovative => {}
            Outcome::NonInnovative => self.counters.wasted += 1,
            Outcome::OutOfRange => self.counters.refused += 1,
        }
        self.counters.symbols_decoded += receipt.decoded as u64;
        // A repair that was refused here has not reached the decoder.
        let solved = if receipt.decoded > 0 { self.decoder.solved().len() } else { 0 };
        for index in 0..solved {
            let number = self.decoder.solved()[index];
            let Some(slot) = self.slot(number).filter(|slot| !slot.delivered) else { continue };
            let delay = now - slot.seen_at;
            self.residual.symbols_repaired += 1;
            self.residual.repair_delay += delay;
            self.residual.longest_repair_delay = self.residual.longest_repair_delay.max(delay);
            self.deliver(number);
        }
        Ok(())
    }

    fn on_repair(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        reader: &mut Reader<'_>,
    ) -> Result<PushResult, FlowError> {
        let refused = PushResult { outcome: Outcome::OutOfRange, decoded: 0 };
        let coded = CodedPacket::decode(kind, reader, self.seen_end)?;
        let window = coded.window;
        let end = window.end().ok_or(FlowError::Malformed)?;
        if end > self.seen_end + MAX_JUMP {
            return Ok(refused);
        }
        self.extend_to(now, end);
        if window.first < self.base {
            return Ok(refused);
        }
        Ok(self.decoder.push_repair(window, coded.columns(), reader.rest()))
    }

    /// Records that symbols below `end` exist.
    fn extend_to(&mut self, now: Timestamp, end: u64) {
        if end <= self.seen_end {
            return;
        }
        // Give up symbols that are too far behind before new ones take memory.
        if end.saturating_sub(HISTORY) > self.base {
            self.give_up_below(end - HISTORY);
        }
        self.seen_end = end;
        let slot = Slot { seen_at: now, delivered: false };
        let before = self.slots.len();
        self.slots.resize((end - self.base) as usize, slot);
        self.missing += self.slots.len() - before;
    }

    fn give_up_below(&mut self, number: u64) {
        while self.base < number {
            match self.slots.pop_front() {
                Some(slot) => {
                    self.residual.symbols_lost += u64::from(!slot.delivered);
                    self.missing -= usize::from(!slot.delivered);
                }
                None => {
                    // These symbols were never seen.
                    self.residual.symbols_lost += number - self.base;
                    self.base = number;
                    break;
                }
            }
            self.base += 1;
        }
        self.seen_end = self.seen_end.max(self.base);
        self.ready.retain(|&ready| ready >= number);
        self.decoder.release_below(self.base);
    }

    fn slot(&mut self, number: u64) -> Option<&mut Slot> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        self.slots.get_mut(index)
    }

    fn deliver(&mut self, number: u64) {
        if let Some(slot) = self.slot(number) {
            let was_delivered = core::mem::replace(&mut slot.delivered, true);
            self.missing -= usize::from(!was_delivered);
            self.ready.push_back(number);
        }
    }

    /// Whether [`next_symbol`](Self::next_symbol) has one.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next decoded symbol with its number.
    pub fn next_symbol(&mut self) -> Option<(u64, &[u8])> {
        let number = self.ready.pop_front()?;
        Some((number, self.decoder.symbol(number)?))
    }
}

#[cfg(test)]
#[path = "timely_receiver_tests.rs"]
mod tests;
