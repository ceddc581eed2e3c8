use core::time::Duration;
use std::collections::VecDeque;

use bats_code::rows::padded_length;
use bats_code::stream::{
    DecoderConfig, MAX_SYMBOL_SIZE, MAX_WINDOW, Outcome, PushResult, StreamDecoder, Window,
};
use bats_types::Timestamp;

use super::FlowError;
use super::coded_packet::CodedPacket;
use super::credit::Credit;
use super::reordering::Reordering;
use super::work_budget::WorkBudget;
use crate::wire::coding::{SourceHeader, expand};
use crate::wire::rank::{MAX_RANK_ENTRIES, RankEntry, RankFeedback};
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// Maximum number of equations held, of all generations together. A round trip of 200 ms at 1
/// Gbit/s and 50 % loss has 17,000 in generations that wait for a top-up. They count against the
/// budget like symbols.
const MAX_EQUATIONS: usize = 32_768;
/// Maximum distance in symbols over which equations may link unknowns: two generations of the most
/// symbols.
const MAX_SPAN: u32 = 512;
/// Up to this number of equations, their overhead is not limited.
const MIN_LIMITED_EQUATIONS: usize = 128;
/// The overhead of equations may take the budget divided by this; the remainder is for symbols.
const OVERHEAD_BUDGET_DIVISOR: usize = 8;
/// Minimum interval between reports.
const MIN_FEEDBACK_INTERVAL: Duration = Duration::from_millis(1);

/// Maximum number of marks of seen symbols; with one for each report, half a minute.
const MAX_SEEN_MARKS: usize = 4_096;

/// Parameters of a receiver.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverParameters {
    /// Maximum size of a symbol in bytes.
    pub max_symbol_size: usize,
    /// The sender's coefficient seed.
    pub seed: u64,
    /// Maximum number of bytes that this direction may hold.
    pub receive_budget: usize,
    /// Initial credit announced in the handshake, in symbols.
    pub initial_credit: u64,
}

/// Counters of a receiver.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiverCounters {
    /// Coded packets received.
    pub coded_received: u64,
    /// Number of these that were not innovative.
    pub wasted: u64,
    /// Symbols decoded from repairs.
    pub symbols_decoded: u64,
    /// Packets refused for lack of memory.
    pub refused: u64,
}

/// Maximum number of repair windows remembered, to determine which symbols a repair may have
/// polluted.
const MAX_REPAIR_WINDOWS: usize = 64;

/// Symbols and equations that a decoder may hold within a budget.
fn decoder_limits(receive_budget: usize, row_bytes: usize) -> (usize, usize) {
    let symbols = receive_budget / row_bytes + usize::from(MAX_WINDOW);
    (symbols, MAX_EQUATIONS.min(receive_budget / row_bytes / 4).max(64))
}

/// The receiving end of a flow.
#[derive(Debug)]
pub struct FlowReceiver {
    decoder: StreamDecoder,
    /// The next symbol for the session.
    next: u64,
    credit: Credit,
    row_bytes: usize,
    max_overhead: usize,
    counters: ReceiverCounters,
    work: WorkBudget,
    seen_end: u64,
    /// `seen_end` at the last report. Symbols missing below it have exceeded the reordering window.
    reported_end: u64,
    repair_seen: Option<u64>,
    feedback_at: Option<Timestamp>,
    last_feedback: Timestamp,
    /// Times and values of `seen_end`. A gap is reported when it is older than `feedback_delay`.
    seen_ends: VecDeque<(Timestamp, u64)>,
    feedback_delay: Option<Duration>,
    reordering: Reordering,
    /// Windows of the newest repairs: first symbol and end.
    repair_windows: VecDeque<(u64, u64)>,
    /// End of the windows of earlier repairs.
    repair_windows_end: u64,
    /// The symbol that the last packet contained, if it was not known.
    fresh_source: Option<u64>,
    /// Whether [`FlowReceiver::take_fresh`] has not taken what the last packet decoded.
    is_fresh: bool,
}

impl FlowReceiver {
    /// A receiver for a new flow.
    pub fn new(parameters: ReceiverParameters) -> Self {
        let ReceiverParameters { max_symbol_size, seed, receive_budget, initial_credit } =
            parameters;
        let max_symbol_size = max_symbol_size.clamp(1, MAX_SYMBOL_SIZE);
        let row_bytes = padded_length(max_symbol_size);
        let (max_symbols_held, max_equations) = decoder_limits(receive_budget, row_bytes);
        let config = DecoderConfig {
            max_symbols_held,
            max_equations,
            max_span: MAX_SPAN,
            ..DecoderConfig::new(max_symbol_size, seed)
        };
        Self {
            decoder: StreamDecoder::new(config),
            next: 0,
            credit: Credit::new(
                row_bytes,
                receive_budget - receive_budget / OVERHEAD_BUDGET_DIVISOR,
                initial_credit,
            ),
            row_bytes,
            max_overhead: receive_budget / OVERHEAD_BUDGET_DIVISOR,
            counters: ReceiverCounters::default(),
            work: WorkBudget::default(),
            seen_end: 0,
            reported_end: 0,
            repair_seen: None,
            feedback_at: None,
            last_feedback: Timestamp::ZERO,
            seen_ends: VecDeque::new(),
            feedback_delay: None,
            reordering: Reordering::default(),
            repair_windows: VecDeque::new(),
            repair_windows_end: 0,
            fresh_source: None,
            is_fresh: false,
        }
    }

    /// Raises the memory that this direction may hold.
    pub fn raise_budget(&mut self, receive_budget: usize) {
        let (max_symbols_held, max_equations) = decoder_limits(receive_budget, self.row_bytes);
        self.decoder.raise_limits(max_symbols_held, max_equations);
        self.max_overhead = self.max_overhead.max(receive_budget / OVERHEAD_BUDGET_DIVISOR);
        self.credit.raise_budget(receive_budget - receive_budget / OVERHEAD_BUDGET_DIVISOR);
    }

    /// Leaves the repair of gaps to relays for this long. From then on only symbols that the caller
    /// has taken and not rejected count as decoded.
    pub fn set_feedback_delay(&mut self, feedback_delay: Duration) {
        self.feedback_delay = Some(feedback_delay);
    }

    /// Rejects the symbol that [`FlowReceiver::next_symbol`] returned last, because it is polluted.
    /// It is missing again.
    pub fn reject(&mut self) {
        if let Some(number) = self.next.checked_sub(1) {
            self.decoder.forget(number);
            if self.decoder.first_missing() == number {
                self.next = number;
            }
        }
    }

    /// Whether the symbol was decoded from packets of its own batch only: no repair that covers it
    /// was used.
    pub fn is_from_own_batch(&self, number: u64) -> bool {
        let covers = |&(first, end): &(u64, u64)| (first..end).contains(&number);
        number >= self.repair_windows_end && !self.repair_windows.iter().any(covers)
    }

    /// One more than the newest symbol that is known to exist.
    pub fn seen_end(&self) -> u64 {
        self.seen_end
    }

    /// Number of the next symbol.
    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// Frees memory that only a busy flow needs.
    pub fn trim(&mut self) {
        self.decoder.release_below(self.next);
        self.decoder.trim();
        self.reordering.trim();
        self.seen_ends.shrink_to_fit();
    }

    /// Bytes held by symbols and equations.
    pub fn bytes_held(&self) -> usize {
        self.decoder.bytes_held()
    }

    /// Bytes that this direction and its session may hold in addition when a gap is filled: the
    /// session copies the symbols behind it, and the decoder keeps those that repairs may refer to.
    pub fn growth(&self) -> usize {
        let kept = u64::from(MAX_WINDOW);
        let waiting = self.seen_end.saturating_sub(self.next);
        waiting.min(kept - self.next.min(kept)) as usize * self.row_bytes
    }

    /// Counters since the start.
    pub fn counters(&self) -> ReceiverCounters {
        self.counters
    }

    /// Processes the payload of a coded packet; `rtt` determines when the next report follows.
    pub fn on_packet(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        payload: &[u8],
        rtt: Duration,
    ) -> Result<(), FlowError> {
        let mut reader = Reader::new(payload);
        let result = if kind == PacketKind::Source {
            let header = SourceHeader::decode(&mut reader).ok_or(FlowError::Malformed)?;
            let number = header.number(self.seen_end);
            self.check_credit(number)?;
            if number < self.seen_end {
                self.reordering.on_late(now, number, rtt);
            }
            self.seen_end = self.seen_end.max(number + 1);
            let result = self.decoder.push_source(number, reader.rest());
            self.fresh_source = (result.outcome == Outcome::Innovative).then_some(number);
            result
        } else {
            self.fresh_source = None;
            self.on_repair(kind, &mut reader)?
        };
        self.is_fresh = result.outcome == Outcome::Innovative;
        let stats = self.decoder.stats();
        self.work.charge(&stats)?;
        self.counters.coded_received += 1;
        self.counters.symbols_decoded = stats.decoded;
        match result.outcome {
            Outcome::Innovative => {}
            Outcome::NonInnovative => self.counters.wasted += 1,
            Outcome::OutOfRange => self.counters.refused += 1,
        }
        let interval = (rtt / 16).max(MIN_FEEDBACK_INTERVAL);
        let due = (self.last_feedback + interval).max(now);
        self.feedback_at = Some(self.feedback_at.map_or(due, |at| at.min(due)));
        Ok(())
    }

    fn on_repair(
        &mut self,
        kind: PacketKind,
        reader: &mut Reader<'_>,
    ) -> Result<PushResult, FlowError> {
        let coded = CodedPacket::decode(kind, reader, self.seen_end)?;
        let window = coded.window;
        let end = window.end().ok_or(FlowError::Malformed)?;
        self.check_credit(end - 1)?;
        self.seen_end = self.seen_end.max(end);
        if let Some((batch, column)) = coded.repair {
            let expected = self.repair_seen.map_or(0, |seen| seen / 16);
            let sequence = expand(u64::from(batch), 24, expected) * 16 + u64::from(column);
            self.repair_seen = Some(self.repair_seen.map_or(sequence, |seen| seen.max(sequence)));
        }
        if self.is_overloaded(window) {
            return Ok(PushResult { outcome: Outcome::OutOfRange, decoded: 0 });
        }
        if coded.repair.is_some() && self.feedback_delay.is_some() {
            if self.repair_windows.len() == MAX_REPAIR_WINDOWS {
                let gone = self.repair_windows.pop_front().map_or(0, |(_, end)| end);
                self.repair_windows_end = self.repair_windows_end.max(gone);
            }
            self.repair_windows.push_back((window.first, end));
        }
        Ok(self.decoder.push_repair(window, coded.columns(), reader.rest()))
    }

    /// Whether equations take more than their part of the budget. This happens only if a peer makes
    /// them as long and as linked as possible. Repairs that cover the first missing symbol are
    /// always accepted, because decoding cannot proceed without it.
    fn is_overloaded(&self, window: Window) -> bool {
        self.decoder.equations_held() > MIN_LIMITED_EQUATIONS
            && window.first > self.decoder.first_missing()
            && self.decoder.equation_overhead() > self.max_overhead
    }

    fn check_credit(&self, symbol: u64) -> Result<(), FlowError> {
        let credit = self.credit.granted();
        if symbol >= credit { Err(FlowError::BeyondCredit { symbol, credit }) } else { Ok(()) }
    }

    /// Whether [`next_symbol`](Self::next_symbol) has one.
    pub fn has_ready(&self) -> bool {
        self.next < self.decoder.first_missing()
    }

    /// The next symbol in order, if it is decoded.
    pub fn next_symbol(&mut self) -> Option<&[u8]> {
        if self.next >= self.decoder.first_missing() {
            return None;
        }
        self.decoder.release_below(self.next);
        self.next += 1;
        self.decoder.symbol(self.next - 1)
    }

    /// The symbols after the next one that the last packet has decoded. See
    /// [`symbol`](Self::symbol).
    pub fn take_fresh(&mut self) -> Vec<u64> {
        if !core::mem::replace(&mut self.is_fresh, false) {
            return Vec::new();
        }
        let solved = self.decoder.solved().iter().copied();
        self.fresh_source.into_iter().chain(solved).filter(|&number| number >= self.next).collect()
    }

    /// A symbol, if it is decoded and [`next_symbol`](Self::next_symbol) has not returned it.
    pub fn symbol(&self, number: u64) -> Option<&[u8]> {
        self.decoder.symbol(number).filter(|_| number >= self.next)
    }

    /// When the next report is due.
    pub fn feedback_at(&self) -> Option<Timestamp> {
        self.feedback_at
    }

    /// Builds the report that is due. While a symbol is missing, another report follows after an
    /// interval even if no packet arrives, because this one may be lost.
    pub fn feedback(&mut self, now: Timestamp, rtt: Duration) -> RankFeedback {
        let end = match self.feedback_delay {
            None => {
                // Everything since the last report has had an interval to arrive.
                let missing_below =
                    self.reordering.missing_below(now, self.seen_end, self.reported_end, rtt);
                core::mem::replace(&mut self.reported_end, missing_below)
            }
            Some(feedback_delay) => {
                if self.seen_ends.back().is_none_or(|&(_, end)| end != self.seen_end)
                    && self.seen_ends.len() < MAX_SEEN_MARKS
                {
                    self.seen_ends.push_back((now, self.seen_end));
                }
                while self.seen_ends.front().is_some_and(|&(at, _)| at + feedback_delay <= now) {
                    self.reported_end = self.seen_ends.pop_front().map_or(0, |(_, end)| end);
                }
                self.reported_end
            }
        };
        let ranges = self.decoder.missing_ranges(end, MAX_RANK_ENTRIES);
        let entries = ranges
            .iter()
            .filter(|range| range.rank_missing > 0)
            .map(|range| RankEntry {
                first: range.first,
                span: u64::from(range.span),
                missing: u64::from(range.rank_missing),
            })
            .collect();
        self.last_feedback = now;
        let decoded_below = match self.feedback_delay {
            None => self.decoder.first_missing(),
            Some(_) => self.next,
        };
        let incomplete = decoded_below < self.seen_end;
        // While relays repair, frequent reports add no information and cost the relays packets.
        let repeat = (rtt / 4).max(self.feedback_delay.unwrap_or_default() / 4);
        self.feedback_at = incomplete.then(|| now + repeat.max(MIN_FEEDBACK_INTERVAL * 4));
        RankFeedback {
            decoded_below,
            seen_end: self.seen_end,
            repair_seen: self.repair_seen,
            coded: self.counters.coded_received,
            wasted: self.counters.wasted,
            entries,
        }
    }

    /// Recomputes the credit; messages hold `session_bytes` bytes. Returns whether to advertise it
    /// to the peer.
    pub fn update_credit(&mut self, now: Timestamp, rtt: Duration, session_bytes: usize) -> bool {
        let retained = self.decoder.equations_held() + usize::from(MAX_WINDOW);
        let held = session_bytes + retained * self.row_bytes;
        self.credit.update(now, rtt, self.next, self.seen_end, held)
    }

    /// Total number of symbols that the peer may send. The caller advertises it.
    pub fn credit(&mut self) -> u64 {
        self.credit.advertise()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::coding::RepairHeader;
    use crate::wire::varint::Writer;

    const SYMBOL: usize = 1_408;
    const RTT: Duration = Duration::from_millis(10);

    fn push_source(receiver: &mut FlowReceiver, now: Timestamp, number: u64) {
        let mut payload = vec![7; 4 + SYMBOL];
        SourceHeader::new(number).encode(&mut Writer::new(&mut payload)).unwrap();
        receiver.on_packet(now, PacketKind::Source, &payload, RTT).unwrap();
    }

    fn push_repair(receiver: &mut FlowReceiver, now: Timestamp, first: u64, batch: u32) {
        let mut payload = vec![batch as u8; 10 + SYMBOL];
        let header =
            RepairHeader { batch, column: batch as u8 % 16, first: first as u32, count: 512 };
        header.encode(&mut Writer::new(&mut payload)).unwrap();
        receiver.on_packet(now, PacketKind::Repair, &payload, RTT).unwrap();
    }

    /// A system of 400 equations and 512 unknowns, and then repairs that depend on them.
    #[test]
    fn peer_whose_redundant_repairs_cost_too_much_work_is_blamed() {
        let mut receiver = FlowReceiver::new(ReceiverParameters {
            max_symbol_size: SYMBOL,
            seed: 1,
            receive_budget: 64 << 20,
            initial_credit: 10_000,
        });
        let now = Timestamp::from_millis(1);
        for batch in 0..400 {
            push_repair(&mut receiver, now, 0, batch);
        }
        assert_eq!(receiver.decoder.equations_held(), 400);
        let mut payload = vec![7_u8; 10 + 20];
        let header = RepairHeader { batch: 7, column: 7, first: 0, count: 512 };
        header.encode(&mut Writer::new(&mut payload)).unwrap();
        let redundant = |receiver: &mut FlowReceiver| {
            receiver.on_packet(now, PacketKind::Repair, &payload, RTT)
        };
        let closing = (0..100_000).find_map(|n| Some((n, redundant(&mut receiver).err()?)));
        let (accepted, error) = closing.expect("the peer is blamed");
        assert!((500..10_000).contains(&accepted), "{accepted} redundant repairs");
        assert_eq!(error, FlowError::NonInnovative);
    }

    /// The worst sender sends correctly until the window is the whole budget. Then it omits the
    /// next symbol, links as many others as possible by long equations and sends all the remaining
    /// symbols.
    #[test]
    fn the_worst_sender_stays_within_the_budget() {
        let budget = 16 << 20;
        let mut receiver = FlowReceiver::new(ReceiverParameters {
            max_symbol_size: SYMBOL,
            seed: 1,
            receive_budget: budget,
            initial_credit: crate::flow::initial_credit(SYMBOL, budget),
        });
        let mut now = Timestamp::from_millis(1);
        let mut number = 0;
        for _ in 0..6 {
            let credit = receiver.credit();
            while number < credit {
                push_source(&mut receiver, now, number);
                number += 1;
                while receiver.next_symbol().is_some() {}
            }
            now += RTT;
            receiver.update_credit(now, RTT, 0);
        }
        let credit = receiver.credit();
        assert!((credit - number) as usize * SYMBOL > budget / 2, "the window has grown");
        let mut batch = 0;
        // Windows that overlap by half: missing ranges of maximum length.
        for first in (number..credit - 512).step_by(256) {
            for _ in 0..255 {
                push_repair(&mut receiver, now, first, batch);
                batch += 1;
            }
        }
        let equations = receiver.decoder.equations_held();
        assert!(equations > 500, "{equations} equations");
        for symbol in (number + 1..credit).rev() {
            if receiver.decoder.equations_held() < equations {
                break;
            }
            push_source(&mut receiver, now, symbol);
        }
        receiver.update_credit(now, RTT, 0);
        assert_eq!(receiver.credit(), credit, "no more credit while the first symbol is missing");
        let held = receiver.bytes_held();
        assert!(held <= budget + budget / 16, "{held} bytes held, {equations} equations");
    }
}

#[cfg(test)]
#[path = "receiver_tests.rs"]
mod unit_tests;
