use core::time::Duration;
use std::collections::BTreeMap;

use bats_code::rfc::{DecodeError, Decoder, Limits, Progress, Reception};
use bats_code::rows::padded_length;
use bats_types::Timestamp;

use super::caches::Caches;
use super::header::RatelessHeader;
use super::{BATCH, MAX_BLOCK, MAX_OPEN, credit_of};
use crate::flow::credit::Credit;
use crate::flow::{FlowError, ReceiverCounters};
use crate::wire::rank::{RankEntry, RankFeedback};
use crate::wire::varint::Reader;

/// Least time between two reports.
const MIN_FEEDBACK_INTERVAL: Duration = Duration::from_millis(1);
/// Rows that a source packet takes: received, and under elimination or solved.
const ROWS: usize = 3;
/// Octets that elimination may take for each packet beside rows, and for each block.
const WORK_BYTES: usize = 8 << 10;
const BLOCK_BYTES: usize = 1 << 20;

/// What a receiver of blocks is set up with.
#[derive(Clone, Copy, Debug)]
pub struct RatelessParameters {
    /// Octets of a symbol at most.
    pub max_symbol_size: usize,
    /// Octets that blocks and messages may occupy.
    pub receive_budget: usize,
    /// Symbols promised in the handshake.
    pub initial_credit: u64,
}

#[derive(Debug)]
enum Block {
    Open { decoder: Box<Decoder>, missing: u64 },
    Decoded { source_packets: u64, data: Vec<u8> },
}

/// The receiving end of a flow of blocks.
#[derive(Debug)]
pub struct RatelessReceiver {
    max_packet_size: usize,
    caches: Caches,
    blocks: BTreeMap<u64, Block>,
    /// The block that the session takes next, and source packets of those before it.
    next: u64,
    consumed: u64,
    seen_end: u64,
    sequence_seen: Option<u64>,
    credit: Credit,
    counters: ReceiverCounters,
    feedback_at: Option<Timestamp>,
    last_feedback: Timestamp,
}

impl RatelessReceiver {
    /// A receiver for a fresh flow.
    pub fn new(parameters: RatelessParameters) -> Self {
        let RatelessParameters { max_symbol_size, receive_budget, initial_credit } = parameters;
        let row = padded_length(max_symbol_size) * ROWS;
        Self {
            max_packet_size: max_symbol_size,
            caches: Caches::default(),
            blocks: BTreeMap::new(),
            next: 0,
            consumed: 0,
            seen_end: 0,
            sequence_seen: None,
            credit: Credit::new(row, receive_budget, credit_of(initial_credit)),
            counters: ReceiverCounters::default(),
            feedback_at: None,
            last_feedback: Timestamp::ZERO,
        }
    }

    /// Octets held by blocks.
    pub fn bytes_held(&self) -> usize {
        let bytes = |block: &Block| match block {
            Block::Open { decoder, .. } => decoder.bytes(),
            Block::Decoded { data, .. } => data.len(),
        };
        self.blocks.values().map(bytes).sum()
    }

    /// Counters since the start.
    pub fn counters(&self) -> ReceiverCounters {
        self.counters
    }

    fn source_packets(block: &Block) -> u64 {
        match block {
            Block::Open { decoder, .. } => u64::from(decoder.code().source_packets()),
            Block::Decoded { source_packets, .. } => *source_packets,
        }
    }

    /// Takes the payload of a packet; `rtt` sets how soon a report follows.
    ///
    /// # Errors
    ///
    /// [`FlowError`] if the sender breaks the rules.
    pub fn on_packet(
        &mut self,
        now: Timestamp,
        payload: &[u8],
        rtt: Duration,
    ) -> Result<(), FlowError> {
        let mut reader = Reader::new(payload);
        let header = RatelessHeader::decode(&mut reader)?;
        let (packets, size) = (u32::from(header.source_packets), usize::from(header.packet_size));
        if packets > MAX_BLOCK || size > self.max_packet_size {
            return Err(FlowError::Malformed);
        }
        let number = header.block_number(self.seen_end);
        let sequence = header.sequence_number(self.sequence_seen.unwrap_or(0));
        self.sequence_seen = Some(self.sequence_seen.map_or(sequence, |seen| seen.max(sequence)));
        self.counters.coded_received += 1;
        let interval = (rtt / 16).max(MIN_FEEDBACK_INTERVAL);
        let due = (self.last_feedback + interval).max(now);
        self.feedback_at = Some(self.feedback_at.map_or(due, |at| at.min(due)));
        if number < self.next {
            self.counters.wasted += 1;
            return Ok(());
        }
        if number - self.next >= MAX_OPEN {
            return Err(FlowError::BeyondCredit { symbol: number, credit: self.next + MAX_OPEN });
        }
        if !self.blocks.contains_key(&number) {
            self.open(number, packets, size)?;
        }
        self.seen_end = self.seen_end.max(number + 1);
        self.push(number, packets, size, header.batch, reader.rest())
    }

    fn open(&mut self, number: u64, packets: u32, size: usize) -> Result<(), FlowError> {
        let held: u64 = self.blocks.values().map(Self::source_packets).sum();
        let end = self.consumed + held + u64::from(packets);
        let credit = self.credit.granted();
        if end > credit {
            return Err(FlowError::BeyondCredit { symbol: end - 1, credit });
        }
        let cache = self.caches.take(packets).ok_or(FlowError::Malformed)?;
        let needed = packets as usize;
        let max_packets = needed + needed / 4 + 64;
        let limits = Limits {
            max_batches: 64 + 8 * max_packets / BATCH,
            max_packets,
            max_bytes: max_packets * (ROWS * padded_length(size) + WORK_BYTES) + BLOCK_BYTES,
            ..Limits::for_code(cache.code(), size)
        };
        let decoder = Decoder::new(cache, size, limits).map_err(|_| FlowError::Malformed)?;
        let missing = u64::from(packets);
        self.blocks.insert(number, Block::Open { decoder: Box::new(decoder), missing });
        Ok(())
    }

    fn push(
        &mut self,
        number: u64,
        packets: u32,
        size: usize,
        batch: u32,
        packet: &[u8],
    ) -> Result<(), FlowError> {
        let Some(Block::Open { decoder, missing }) = self.blocks.get_mut(&number) else {
            self.counters.wasted += 1;
            return Ok(());
        };
        let same = decoder.code().source_packets() == packets
            && decoder.coded_packet_len() == BATCH + size;
        if !same {
            return Err(FlowError::Malformed);
        }
        match decoder.push(batch, packet) {
            Ok(Reception::Innovative) => {}
            Ok(Reception::Redundant) => {
                self.counters.wasted += 1;
                return Ok(());
            }
            Err(DecodeError::Length) => return Err(FlowError::Malformed),
            Err(_) => {
                self.counters.refused += 1;
                return Ok(());
            }
        }
        match decoder.decode() {
            Ok(Progress::Missing(more)) => *missing = more as u64,
            Ok(Progress::Complete) => {
                let mut data = vec![0; decoder.block_len().map_err(|_| FlowError::Malformed)?];
                decoder.copy_block(&mut data).map_err(|_| FlowError::Malformed)?;
                let source_packets = u64::from(packets);
                self.counters.symbols_decoded += source_packets;
                let decoded = Block::Decoded { source_packets, data };
                if let Some(Block::Open { decoder, .. }) = self.blocks.insert(number, decoded) {
                    self.caches.keep(decoder.into_cache());
                }
            }
            // More packets make the elimination smaller.
            Err(_) => *missing = (*missing).max(1),
        }
        Ok(())
    }

    /// The next block in order, if it is decoded.
    pub fn next_block(&mut self) -> Option<Vec<u8>> {
        let Some(Block::Decoded { .. }) = self.blocks.get(&self.next) else { return None };
        let Some(Block::Decoded { source_packets, data }) = self.blocks.remove(&self.next) else {
            return None;
        };
        self.next += 1;
        self.consumed += source_packets;
        Some(data)
    }

    /// When the next report is due.
    pub fn feedback_at(&self) -> Option<Timestamp> {
        self.feedback_at
    }

    /// Blocks without a gap that are decoded.
    fn decoded_below(&self) -> u64 {
        let decoded = self.blocks.range(self.next..).zip(self.next..).take_while(
            |((number, block), expected)| {
                *number == expected && matches!(block, Block::Decoded { .. })
            },
        );
        self.next + decoded.count() as u64
    }

    /// The report that is due. While a block is open, another one follows in a while even if nothing
    /// arrives: this one may be lost.
    pub fn feedback(&mut self, now: Timestamp, rtt: Duration) -> RankFeedback {
        let decoded_below = self.decoded_below();
        let missing = |number: &u64| match self.blocks.get(number) {
            Some(Block::Open { missing, .. }) => Some((*missing).max(1)),
            Some(Block::Decoded { .. }) => None,
            // Not a packet of it has come: how many it has is not known either.
            None => Some(1),
        };
        let entries: Vec<_> = (decoded_below..self.seen_end)
            .filter_map(|first| Some(RankEntry { first, span: 1, missing: missing(&first)? }))
            .collect();
        self.last_feedback = now;
        self.feedback_at =
            (!entries.is_empty()).then(|| now + (rtt / 4).max(MIN_FEEDBACK_INTERVAL * 4));
        RankFeedback {
            decoded_below,
            seen_end: self.seen_end.max(decoded_below),
            repair_seen: self.sequence_seen,
            coded: self.counters.coded_received,
            wasted: self.counters.wasted,
            entries,
        }
    }

    /// Recomputes the credit; `session_bytes` are held by messages. True when the peer should be told.
    pub fn update_credit(&mut self, now: Timestamp, rtt: Duration, session_bytes: usize) -> bool {
        let held: u64 = self.blocks.values().map(Self::source_packets).sum();
        self.credit.update(now, rtt, self.consumed, self.consumed + held, session_bytes)
    }

    /// Source packets that the peer may send in all; it is being told.
    pub fn credit(&mut self) -> u64 {
        self.credit.tell()
    }
}
