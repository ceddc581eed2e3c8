use core::time::Duration;

use bats_code::rows::padded_length;
use bats_code::stream::{
    Columns, DecoderConfig, MAX_SYMBOL_SIZE, MAX_WINDOW, Outcome, StreamDecoder, Window,
};
use bats_types::Timestamp;

use super::FlowError;
use super::credit::Credit;
use crate::wire::coding::{RepairHeader, SourceHeader, expand};
use crate::wire::rank::{MAX_RANK_ENTRIES, RankEntry, RankFeedback};
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// Equations held at once, all cells together: a round trip of 200 ms at 1 Gbit/s and 50 % loss
/// has 17,000 in cells that wait for a top-up. They count against the budget like symbols.
const MAX_EQUATIONS: usize = 32_768;
/// Distance over which equations may link unknowns; a cell has at most 256 symbols.
const MAX_SPAN: u32 = 1_024;
/// Least interval between reports.
const MIN_FEEDBACK_INTERVAL: Duration = Duration::from_millis(1);

/// What a receiver is set up with.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverParameters {
    /// Octets of a symbol at most.
    pub max_symbol_size: usize,
    /// The sender's seed of coefficients.
    pub seed: u64,
    /// Octets that this direction may hold.
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

/// The receiving end of a flow.
#[derive(Debug)]
pub struct FlowReceiver {
    decoder: StreamDecoder,
    /// The next symbol for the session.
    next: u64,
    credit: Credit,
    row_bytes: usize,
    counters: ReceiverCounters,
    seen_end: u64,
    /// `seen_end` at the last report: what is missing below was overtaken for long enough.
    reported_end: u64,
    repair_seen: Option<u64>,
    feedback_at: Option<Timestamp>,
    last_feedback: Timestamp,
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
            credit: Credit::new(row_bytes, receive_budget, initial_credit),
            row_bytes,
            counters: ReceiverCounters::default(),
            seen_end: 0,
            reported_end: 0,
            repair_seen: None,
            feedback_at: None,
            last_feedback: Timestamp::ZERO,
        }
    }

    /// Octets held by symbols and equations.
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
        let header = RepairHeader::decode(reader).ok_or(FlowError::Malformed)?;
        let window = Window { first: header.first_symbol(self.seen_end), count: header.count };
        let end = window.end().ok_or(FlowError::Malformed)?;
        self.check_credit(end - 1)?;
        self.seen_end = self.seen_end.max(end);
        let expected = self.repair_seen.map_or(0, |seen| seen / 16);
        let batch = expand(u64::from(header.batch), 24, expected);
        let sequence = batch * 16 + u64::from(header.column);
        self.repair_seen = Some(self.repair_seen.map_or(sequence, |seen| seen.max(sequence)));
        let vector;
        let columns = if kind == PacketKind::Recoded {
            vector = reader.array().ok_or(FlowError::Malformed)?;
            Columns::Recoded { batch: header.batch, vector: &vector }
        } else {
            Columns::Fresh { batch: header.batch, column: header.column }
        };
        Ok(self.decoder.push_repair(window, columns, reader.rest()).outcome)
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
        let end = core::mem::replace(&mut self.reported_end, self.seen_end);
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
        let incomplete = self.decoder.first_missing() < self.seen_end;
        self.feedback_at = incomplete.then(|| now + (rtt / 4).max(MIN_FEEDBACK_INTERVAL * 4));
        RankFeedback {
            decoded_below: self.decoder.first_missing(),
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
