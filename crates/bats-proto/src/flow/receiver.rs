use core::time::Duration;
use std::collections::VecDeque;

use bats_code::rows::padded_length;
use bats_code::stream::{
    DecoderConfig, MAX_SYMBOL_SIZE, MAX_WINDOW, Outcome, StreamDecoder, Window,
};
use bats_types::Timestamp;

use super::FlowError;
use super::coded::Combination;
use super::credit::Credit;
use super::reordering::Reordering;
use crate::wire::coding::{SourceHeader, expand};
use crate::wire::rank::{MAX_RANK_ENTRIES, RankEntry, RankFeedback};
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// Equations held at once, all generations together: a round trip of 200 ms at 1 Gbit/s and 50 % loss
/// has 17,000 in generations that wait for a top-up. They count against the budget like symbols.
const MAX_EQUATIONS: usize = 32_768;
/// Distance over which equations may link unknowns; a generation has at most 256 symbols.
const MAX_SPAN: u32 = 1_024;
/// Equations below which nobody counts their overhead.
const FEW_EQUATIONS: usize = 128;
/// Part of the budget for the overhead of equations; the rest is for symbols.
const OVERHEAD_SHARE: usize = 8;
/// Least interval between reports.
const MIN_FEEDBACK_INTERVAL: Duration = Duration::from_millis(1);

/// Moments remembered of what had been seen; at one a report, half a minute.
const MAX_SEEN_ENDS: usize = 4_096;

/// What a receiver is set up with.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverParameters {
    /// Bytes of a symbol at most.
    pub max_symbol_size: usize,
    /// The sender's seed of coefficients.
    pub seed: u64,
    /// Bytes that this direction may hold.
    pub receive_budget: usize,
    /// Symbols promised in the handshake.
    pub initial_credit: u64,
}

/// Counters of a receiver.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiverCounters {
    /// Coded packets received.
    pub coded_received: u64,
    /// Of these, packets that brought nothing new.
    pub wasted: u64,
    /// Symbols known by decoding.
    pub symbols_decoded: u64,
    /// Packets refused for want of room.
    pub refused: u64,
}

/// Repairs whose windows are remembered, to tell what cannot have spoilt a symbol.
const MAX_REPAIRED: usize = 64;

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
    seen_end: u64,
    /// `seen_end` at the last report: what is missing below was overtaken for long enough.
    reported_end: u64,
    repair_seen: Option<u64>,
    feedback_at: Option<Timestamp>,
    last_feedback: Timestamp,
    /// Ends of what had been seen, and when: a gap is reported when it is as old as `patience`.
    seen_ends: VecDeque<(Timestamp, u64)>,
    patience: Option<Duration>,
    reordering: Reordering,
    /// Symbols that the last repairs taken cover: first ones and ends.
    repaired: VecDeque<(u64, u64)>,
    /// End of what those before cover.
    repaired_before: u64,
}

impl FlowReceiver {
    /// A receiver for a fresh flow.
    pub fn new(parameters: ReceiverParameters) -> Self {
        let ReceiverParameters { max_symbol_size, seed, receive_budget, initial_credit } =
            parameters;
        let max_symbol_size = max_symbol_size.clamp(1, MAX_SYMBOL_SIZE);
        let row_bytes = padded_length(max_symbol_size);
        let config = DecoderConfig {
            max_symbols_held: receive_budget / row_bytes + usize::from(MAX_WINDOW),
            max_equations: MAX_EQUATIONS.min(receive_budget / row_bytes / 4).max(64),
            max_span: MAX_SPAN,
            ..DecoderConfig::new(max_symbol_size, seed)
        };
        Self {
            decoder: StreamDecoder::new(config),
            next: 0,
            credit: Credit::new(
                row_bytes,
                receive_budget - receive_budget / OVERHEAD_SHARE,
                initial_credit,
            ),
            row_bytes,
            max_overhead: receive_budget / OVERHEAD_SHARE,
            counters: ReceiverCounters::default(),
            seen_end: 0,
            reported_end: 0,
            repair_seen: None,
            feedback_at: None,
            last_feedback: Timestamp::ZERO,
            seen_ends: VecDeque::new(),
            patience: None,
            reordering: Reordering::default(),
            repaired: VecDeque::new(),
            repaired_before: 0,
        }
    }

    /// Leaves the repair of gaps to others for so long, and counts as decoded only what the caller
    /// has taken and not rejected.
    pub fn set_feedback_delay(&mut self, patience: Duration) {
        self.patience = Some(patience);
    }

    /// The symbol that [`FlowReceiver::next_symbol`] gave last was altered on the way: it is
    /// missing again.
    pub fn reject(&mut self) {
        if let Some(number) = self.next.checked_sub(1) {
            self.decoder.forget(number);
            if self.decoder.first_missing() == number {
                self.next = number;
            }
        }
    }

    /// Whether a symbol can have come by packets of its own batch only: no repair that covers it was
    /// taken.
    pub fn is_of_its_batch(&self, number: u64) -> bool {
        let covers = |&(first, end): &(u64, u64)| (first..end).contains(&number);
        number >= self.repaired_before && !self.repaired.iter().any(covers)
    }

    /// The symbol after the newest one that is known to exist.
    pub fn seen_end(&self) -> u64 {
        self.seen_end
    }

    /// Number of the symbol that comes next.
    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// Frees memory that only a busy flow needs.
    pub fn trim(&mut self) {
        self.decoder.trim();
        self.seen_ends.shrink_to_fit();
    }

    /// Bytes held by symbols and equations.
    pub fn bytes_held(&self) -> usize {
        self.decoder.bytes_held()
    }

    /// Counters since the start.
    pub fn counters(&self) -> ReceiverCounters {
        self.counters
    }

    /// Takes the payload of a coded packet; `rtt` sets how soon a report follows.
    pub fn on_packet(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        payload: &[u8],
        rtt: Duration,
    ) -> Result<(), FlowError> {
        let mut reader = Reader::new(payload);
        let outcome = if kind == PacketKind::Source {
            let header = SourceHeader::decode(&mut reader).ok_or(FlowError::Malformed)?;
            let number = header.number(self.seen_end);
            self.check_credit(number)?;
            if number < self.seen_end {
                self.reordering.on_late(now, number, rtt);
            }
            self.seen_end = self.seen_end.max(number + 1);
            self.decoder.push_source(number, reader.rest()).outcome
        } else {
            self.on_repair(kind, &mut reader)?
        };
        self.counters.coded_received += 1;
        self.counters.symbols_decoded = self.decoder.stats().decoded;
        match outcome {
            Outcome::Innovative => {}
            Outcome::Redundant => self.counters.wasted += 1,
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
    ) -> Result<Outcome, FlowError> {
        let combination = Combination::decode(kind, reader, self.seen_end)?;
        let window = combination.window;
        let end = window.end().ok_or(FlowError::Malformed)?;
        self.check_credit(end - 1)?;
        self.seen_end = self.seen_end.max(end);
        if let Some((batch, column)) = combination.repair {
            let expected = self.repair_seen.map_or(0, |seen| seen / 16);
            let sequence = expand(u64::from(batch), 24, expected) * 16 + u64::from(column);
            self.repair_seen = Some(self.repair_seen.map_or(sequence, |seen| seen.max(sequence)));
        }
        if self.is_overloaded(window) {
            return Ok(Outcome::OutOfRange);
        }
        if combination.repair.is_some() && self.patience.is_some() {
            if self.repaired.len() == MAX_REPAIRED {
                let gone = self.repaired.pop_front().map_or(0, |(_, end)| end);
                self.repaired_before = self.repaired_before.max(gone);
            }
            self.repaired.push_back((window.first, end));
        }
        Ok(self.decoder.push_repair(window, combination.columns(), reader.rest()).outcome)
    }

    /// Whether equations take more than their share of the budget, as they do only if someone
    /// makes them as long and as linked as possible. Nothing gets on without the window of the
    /// first missing symbol, so that it is always welcome.
    fn is_overloaded(&self, window: Window) -> bool {
        self.decoder.equations_held() > FEW_EQUATIONS
            && window.first > self.decoder.first_missing()
            && self.decoder.equation_overhead() > self.max_overhead
    }

    fn check_credit(&self, symbol: u64) -> Result<(), FlowError> {
        let credit = self.credit.granted();
        if symbol >= credit { Err(FlowError::BeyondCredit { symbol, credit }) } else { Ok(()) }
    }

    /// The next symbol in order, if it is known.
    pub fn next_symbol(&mut self) -> Option<&[u8]> {
        if self.next >= self.decoder.first_missing() {
            return None;
        }
        self.decoder.release_below(self.next);
        self.next += 1;
        self.decoder.symbol(self.next - 1)
    }

    /// When the next report is due.
    pub fn feedback_at(&self) -> Option<Timestamp> {
        self.feedback_at
    }

    /// The report that is due. While something is missing, another one follows in a while even
    /// if nothing arrives: this one may be lost.
    pub fn feedback(&mut self, now: Timestamp, rtt: Duration) -> RankFeedback {
        let end = match self.patience {
            None => {
                // Since the last report everything has had an interval to arrive.
                let settled = self.reordering.settled(now, self.seen_end, self.reported_end, rtt);
                core::mem::replace(&mut self.reported_end, settled)
            }
            Some(patience) => {
                if self.seen_ends.back().is_none_or(|&(_, end)| end != self.seen_end)
                    && self.seen_ends.len() < MAX_SEEN_ENDS
                {
                    self.seen_ends.push_back((now, self.seen_end));
                }
                while self.seen_ends.front().is_some_and(|&(at, _)| at + patience <= now) {
                    self.reported_end = self.seen_ends.pop_front().map_or(0, |(_, end)| end);
                }
                self.reported_end
            }
        };
        let clusters = self.decoder.missing_clusters(end, MAX_RANK_ENTRIES);
        let entries = clusters
            .iter()
            .filter(|cluster| cluster.rank_missing > 0)
            .map(|cluster| RankEntry {
                first: cluster.first,
                span: u64::from(cluster.span),
                missing: u64::from(cluster.rank_missing),
            })
            .collect();
        self.last_feedback = now;
        let decoded_below = match self.patience {
            None => self.decoder.first_missing(),
            Some(_) => self.next,
        };
        let incomplete = decoded_below < self.seen_end;
        // While relays repair there is no use in asking often, and each time costs them packets.
        let repeat = (rtt / 4).max(self.patience.unwrap_or_default() / 4);
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

    /// Recomputes the credit; `session_bytes` are held by messages. True when the peer should be
    /// told.
    pub fn update_credit(&mut self, now: Timestamp, rtt: Duration, session_bytes: usize) -> bool {
        let retained = self.decoder.equations_held() + usize::from(MAX_WINDOW);
        let held = session_bytes + retained * self.row_bytes;
        self.credit.update(now, rtt, self.next, self.seen_end, held)
    }

    /// Symbols that the peer may send in all; it is being told.
    pub fn credit(&mut self) -> u64 {
        self.credit.tell()
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

    /// The worst sender: behaves until the window is the whole budget, then leaves out the next
    /// symbol, links as many others as it can by long equations and sends all the rest.
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
        // Windows that overlap by half: clusters as long as they may be.
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
        assert_eq!(receiver.credit(), credit, "no more for who is stuck");
        let held = receiver.bytes_held();
        assert!(held <= budget + budget / 16, "{held} bytes held, {equations} equations");
    }
}
