use core::time::Duration;
use std::collections::VecDeque;

use bats_code::rows::padded_length;
use bats_code::stream::{DecoderConfig, MAX_SYMBOL_SIZE, Outcome, Receipt, StreamDecoder};

use bats_types::Timestamp;

use super::coded::Combination;
use super::{FlowError, ReceiverCounters};
use crate::wire::coding::SourceHeader;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// Symbols behind the newest one that may still be repaired; windows are much shorter.
const HISTORY: u64 = 1_024;
/// Equations held at once: several windows of the largest size.
const MAX_EQUATIONS: usize = 1_024;
/// Symbols beyond the newest one that a packet may name: an outage of seconds at a gigabit.
const MAX_JUMP: u64 = 1 << 20;

/// The receiving end of a flow whose symbols are worth something for a while only (mode BTP):
/// hands over each symbol as soon as it is known, in whatever order.
#[derive(Debug)]
pub struct TimelyReceiver {
    decoder: StreamDecoder,
    /// The symbols from `base` to `seen_end`.
    slots: VecDeque<Slot>,
    base: u64,
    seen_end: u64,
    ready: VecDeque<u64>,
    residual: Residual,
    counters: ReceiverCounters,
}

/// A symbol that is known to exist.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Since when.
    seen_at: Timestamp,
    /// It was handed over.
    known: bool,
}

/// What did not arrive in time, and what repair cost in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Residual {
    /// Symbols given up.
    pub symbols_lost: u64,
    /// Symbols that a repair gave.
    pub symbols_repaired: u64,
    /// Time from when these were first seen to be missing until they were known, in all.
    pub repair_delay: Duration,
    /// The longest one.
    pub longest_repair_delay: Duration,
    /// Messages given up.
    pub messages_lost: u64,
    /// Those among them that had arrived and found no room.
    pub messages_overflowed: u64,
}

impl TimelyReceiver {
    /// A receiver for a fresh flow with symbols of up to `max_symbol_size` bytes and the sender's
    /// seed of coefficients.
    pub fn new(max_symbol_size: usize, seed: u64) -> Self {
        let max_symbol_size = max_symbol_size.clamp(1, MAX_SYMBOL_SIZE);
        let config = DecoderConfig {
            max_symbols_held: 2 * HISTORY as usize,
            max_equations: MAX_EQUATIONS,
            max_span: HISTORY as u32,
            ..DecoderConfig::new(max_symbol_size, seed)
        };
        Self {
            decoder: StreamDecoder::new(config),
            slots: VecDeque::new(),
            base: 0,
            seen_end: 0,
            ready: VecDeque::new(),
            residual: Residual::default(),
            counters: ReceiverCounters::default(),
        }
    }

    /// Bytes that such a receiver holds at most, for symbols of so many bytes.
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

    /// Frees memory that only a busy flow needs.
    pub fn trim(&mut self) {
        self.decoder.trim();
        self.slots.shrink_to_fit();
        self.ready.shrink_to_fit();
    }

    /// Losses and delays since the start.
    pub fn residual(&self) -> Residual {
        self.residual
    }

    /// The symbol after the newest one that is known to exist.
    pub fn seen_end(&self) -> u64 {
        self.seen_end
    }

    /// Whether every symbol below `end` is known.
    pub fn has_all_below(&self, end: u64) -> bool {
        self.seen_end >= end && self.slots.iter().all(|slot| slot.known)
    }

    /// The flow had `end` symbols and no more will be repaired.
    pub fn finish(&mut self, end: u64) {
        self.see(Timestamp::ZERO, end.min(self.seen_end.saturating_add(MAX_JUMP)));
        self.give_up_below(self.seen_end);
    }

    /// Takes the payload of a coded packet.
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
            self.see(now, number + 1);
            let receipt = self.decoder.push_source(number, reader.rest());
            if receipt.outcome == Outcome::Innovative {
                self.hand_over(number);
            }
            receipt
        } else {
            self.on_repair(now, kind, &mut reader)?
        };
        self.counters.coded_received += 1;
        match receipt.outcome {
            Outcome::Innovative => {}
            Outcome::Redundant => self.counters.wasted += 1,
            Outcome::OutOfRange => self.counters.refused += 1,
        }
        self.counters.symbols_decoded += receipt.decoded as u64;
        if receipt.decoded > 0 {
            for number in self.base..self.seen_end {
                let slot = self.slots[(number - self.base) as usize];
                if !slot.known && self.decoder.contains(number) {
                    let delay = now - slot.seen_at;
                    self.residual.symbols_repaired += 1;
                    self.residual.repair_delay += delay;
                    self.residual.longest_repair_delay =
                        self.residual.longest_repair_delay.max(delay);
                    self.hand_over(number);
                }
            }
        }
        Ok(())
    }

    fn on_repair(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        reader: &mut Reader<'_>,
    ) -> Result<Receipt, FlowError> {
        let refused = Receipt { outcome: Outcome::OutOfRange, decoded: 0 };
        let combination = Combination::decode(kind, reader, self.seen_end)?;
        let window = combination.window;
        let end = window.end().ok_or(FlowError::Malformed)?;
        if end > self.seen_end + MAX_JUMP {
            return Ok(refused);
        }
        self.see(now, end);
        if window.first < self.base {
            return Ok(refused);
        }
        Ok(self.decoder.push_repair(window, combination.columns(), reader.rest()))
    }

    /// Symbols below `end` exist.
    fn see(&mut self, now: Timestamp, end: u64) {
        if end <= self.seen_end {
            return;
        }
        // What is so far behind is given up before it takes memory.
        if end.saturating_sub(HISTORY) > self.base {
            self.give_up_below(end - HISTORY);
        }
        self.seen_end = end;
        let slot = Slot { seen_at: now, known: false };
        self.slots.resize((end - self.base) as usize, slot);
    }

    fn give_up_below(&mut self, number: u64) {
        while self.base < number {
            match self.slots.pop_front() {
                Some(slot) => self.residual.symbols_lost += u64::from(!slot.known),
                None => {
                    // Never seen at all.
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

    fn hand_over(&mut self, number: u64) {
        let index = number.checked_sub(self.base).and_then(|index| usize::try_from(index).ok());
        if let Some(slot) = index.and_then(|index| self.slots.get_mut(index)) {
            slot.known = true;
            self.ready.push_back(number);
        }
    }

    /// The next symbol that has become known, with its number.
    pub fn next_symbol(&mut self) -> Option<(u64, &[u8])> {
        let number = self.ready.pop_front()?;
        Some((number, self.decoder.symbol(number)?))
    }
}
