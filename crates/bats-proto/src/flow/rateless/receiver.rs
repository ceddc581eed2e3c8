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
use crate::wire::coding::{CodingHeader, expand};
use crate::wire::rank::{RankEntry, RankFeedback};
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// Minimum interval between two reports.
const MIN_FEEDBACK_INTERVAL: Duration = Duration::from_millis(1);
/// Rows that a source packet takes: as received, and during elimination or solved.
const ROWS: usize = 3;
/// Bytes that elimination may take in addition to rows: for each packet (most where each is the
/// only one of its batch) and for each block.
const WORK_BYTES: usize = 16 << 10;
const BLOCK_BYTES: usize = 1 << 20;
/// Maximum lead of the packets that agree with a block's sizes. As many disagreeing packets restart
/// the block.
const MAX_SUPPORT: u32 = 64;

/// Parameters of a receiver of blocks.
#[derive(Clone, Copy, Debug)]
pub struct RatelessParameters {
    /// Maximum size of a symbol in bytes.
    pub max_symbol_size: usize,
    /// Maximum number of bytes that blocks and messages may occupy.
    pub receive_budget: usize,
    /// Initial credit announced in the handshake, in symbols.
    pub initial_credit: u64,
    /// Whether relays forward the flow. Its packets then have the coding header that relays read,
    /// and [`RatelessReceiver::verify`] must authenticate each block, unless it is
    /// [not sealed](RatelessReceiver::without_seals).
    pub over_relays: bool,
    /// Number of receivers of the flow, at least 1. The more there are, the less often each one
    /// reports, so that all together report little more than one alone.
    pub receivers: u32,
}

/// What [`RatelessReceiver::hand_up`] has passed on of a decoded block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandedUp {
    Nothing,
    /// There was no room for the rest.
    Partly,
    /// All that need not wait for its turn.
    Done,
}

#[derive(Debug)]
enum Block {
    /// `support`: number of packets that agree with the block's sizes, less those that do not,
    /// within limits.
    Open {
        decoder: Box<Decoder>,
        missing: u64,
        support: u32,
        /// Most memory that the block may take.
        max_bytes: usize,
    },
    Decoded {
        source_packets: u64,
        packet_size: usize,
        data: Vec<u8>,
        authentic: bool,
        handed_up: HandedUp,
    },
}

impl Block {
    /// Memory of the block.
    fn bytes(&self) -> usize {
        match self {
            Self::Open { decoder, .. } => decoder.bytes(),
            Self::Decoded { data, .. } => data.len(),
        }
    }
}

/// The fields of a packet.
#[derive(Clone, Copy, Debug)]
struct Packet<'a> {
    /// Number of source packets of its block, and the size of each in bytes.
    sizes: (u32, usize),
    batch: u32,
    /// Coefficient vector and content.
    coded: &'a [u8],
}

/// The receiving end of a flow of blocks.
#[derive(Debug)]
pub struct RatelessReceiver {
    max_packet_size: usize,
    over_relays: bool,
    /// Whether [`RatelessReceiver::verify`] must authenticate each block.
    are_blocks_sealed: bool,
    receivers: u32,
    caches: Caches,
    blocks: BTreeMap<u64, Block>,
    /// Memory of all blocks, and the most that they may take.
    held: usize,
    budget: usize,
    /// Bytes of memory that the credit counts for a source packet.
    row: usize,
    /// The next block for the session, and the number of source packets of the blocks before it.
    next: u64,
    consumed: u64,
    seen_end: u64,
    sequence_seen: Option<u64>,
    credit: Credit,
    counters: ReceiverCounters,
    feedback_at: Option<Timestamp>,
    last_feedback: Timestamp,
    /// Time that relays have for repairs.
    feedback_delay: Duration,
}

impl RatelessReceiver {
    /// A receiver for a new flow.
    pub fn new(parameters: RatelessParameters) -> Self {
        let RatelessParameters {
            max_symbol_size,
            receive_budget,
            initial_credit,
            over_relays,
            receivers,
        } = parameters;
        let row = padded_length(max_symbol_size) * ROWS;
        Self {
            max_packet_size: max_symbol_size,
            over_relays,
            are_blocks_sealed: over_relays,
            receivers: receivers.max(1),
            caches: Caches::new(receive_budget),
            blocks: BTreeMap::new(),
            held: 0,
            budget: receive_budget,
            row,
            next: 0,
            consumed: 0,
            seen_end: 0,
            sequence_seen: None,
            credit: Credit::new(row, receive_budget, credit_of(initial_credit)),
            counters: ReceiverCounters::default(),
            feedback_at: None,
            last_feedback: Timestamp::ZERO,
            feedback_delay: Duration::ZERO,
        }
    }

    /// Sets how long repairs are left to relays; reports are not sent more often.
    pub fn set_feedback_delay(&mut self, feedback_delay: Duration) {
        self.feedback_delay = feedback_delay;
    }

    /// Raises the memory that blocks and messages may occupy.
    pub fn raise_budget(&mut self, receive_budget: usize) {
        if receive_budget > self.budget {
            self.budget = receive_budget;
            self.caches = Caches::new(receive_budget);
        }
        self.credit.raise_budget(receive_budget);
    }

    /// Frees the cached structures of batches, which are built again when they are needed. Returns whether there were
    /// any.
    pub fn trim(&mut self) -> bool {
        self.caches.clear()
    }

    /// Bytes held by blocks and by cached structures of batches.
    pub fn bytes_held(&self) -> usize {
        self.held + self.caches.bytes()
    }

    /// Whether there are blocks that the session has not taken.
    pub fn holds_blocks(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Compares the running total with the blocks.
    #[cfg(test)]
    pub(super) fn check_totals(&self) {
        assert_eq!(self.held, self.blocks.values().map(Block::bytes).sum::<usize>());
    }

    fn insert_block(&mut self, number: u64, block: Block) -> Option<Block> {
        self.held += block.bytes();
        let replaced = self.blocks.insert(number, block);
        self.held -= replaced.as_ref().map_or(0, Block::bytes);
        replaced
    }

    fn take_open_block(&mut self, number: u64) -> Option<Block> {
        matches!(self.blocks.get(&number), Some(Block::Open { .. }))
            .then(|| self.remove_block(number))
            .flatten()
    }

    fn remove_block(&mut self, number: u64) -> Option<Block> {
        let block = self.blocks.remove(&number)?;
        self.held -= block.bytes();
        Some(block)
    }

    /// Most memory that a block may take now. The next block for the session may take its own
    /// limit, so that the flow proceeds. All others together leave a quarter of the budget to it,
    /// which is enough for budgets of 64 MiB and more.
    fn block_limit(&self, number: u64) -> usize {
        let Some(block @ Block::Open { max_bytes, .. }) = self.blocks.get(&number) else {
            return 0;
        };
        if number == self.next {
            return *max_bytes;
        }
        let for_others = self.budget - self.budget / 4;
        let others = self.bytes_held() - block.bytes();
        for_others.saturating_sub(others).min(*max_bytes)
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

    /// Processes the payload of a packet; `rtt` determines when the next report follows.
    ///
    /// # Errors
    ///
    /// [`FlowError`] if the sender violates the protocol.
    pub fn on_packet(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        payload: &[u8],
        rtt: Duration,
    ) -> Result<(), FlowError> {
        let mut reader = Reader::new(payload);
        let (number, sequence, packet) = if self.over_relays {
            self.read_relayed(kind, &mut reader)?
        } else {
            self.read(kind, &mut reader)?
        };
        let (packets, size) = packet.sizes;
        if packets == 0 || packets > MAX_BLOCK || size == 0 || size > self.max_packet_size {
            return Err(FlowError::Malformed);
        }
        self.sequence_seen = Some(self.sequence_seen.map_or(sequence, |seen| seen.max(sequence)));
        self.counters.coded_received += 1;
        let interval = (rtt / 16).max(MIN_FEEDBACK_INTERVAL) * self.receivers;
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
        self.push(number, &packet)
    }

    /// Block number, sequence number and content of a packet that was not relayed.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn read<'a>(
        &self,
        kind: PacketKind,
        reader: &mut Reader<'a>,
    ) -> Result<(u64, u64, Packet<'a>), FlowError> {
        // These packets carry all parameters themselves, so there is only one kind.
        if kind != PacketKind::Repair {
            return Err(FlowError::Malformed);
        }
        let header = RatelessHeader::decode(reader)?;
        let number = header.block_number(self.seen_end);
        let sequence = header.sequence_number(self.sequence_seen.unwrap_or(0));
        let sizes = (u32::from(header.source_packets), usize::from(header.packet_size));
        Ok((number, sequence, Packet { sizes, batch: header.batch, coded: reader.rest() }))
    }

    /// The same for a relayed packet. Relays see a column of an R-batch whose window is the block.
    /// A packet that they recode from such columns is a valid packet of RFC 9426.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn read_relayed<'a>(
        &self,
        kind: PacketKind,
        reader: &mut Reader<'a>,
    ) -> Result<(u64, u64, Packet<'a>), FlowError> {
        let (CodingHeader::Repair(header) | CodingHeader::RecodedRepair { header, .. }) =
            CodingHeader::decode(kind, reader).ok_or(FlowError::Malformed)?
        else {
            return Err(FlowError::Malformed);
        };
        let seen = self.sequence_seen.and_then(|seen| seen.checked_div(BATCH as u64)).unwrap_or(0);
        let batch = expand(u64::from(header.batch), 24, seen);
        let first = batch.checked_mul(BATCH as u64).ok_or(FlowError::Malformed)?;
        let sequence = first.checked_add(header.column.into()).ok_or(FlowError::Malformed)?;
        let coded = reader.rest();
        let sizes = (u32::from(header.count), coded.len().saturating_sub(BATCH));
        let packet = Packet { sizes, batch: header.batch, coded };
        Ok((header.first_symbol(self.seen_end), sequence, packet))
    }

    fn open(&mut self, number: u64, packets: u32, size: usize) -> Result<(), FlowError> {
        let held: u64 = self.blocks.values().map(Self::source_packets).sum();
        let end = self.consumed + held + u64::from(packets);
        let credit = self.credit.granted();
        if end > credit {
            return Err(FlowError::BeyondCredit { symbol: end - 1, credit });
        }
        let cache = self.caches.open(packets).ok_or(FlowError::Malformed)?;
        let needed = packets as usize;
        let max_packets = needed + needed / 4 + 64;
        let limits = Limits {
            // A batch may have a single packet: on lossy paths most packets are top-ups.
            max_batches: max_packets,
            max_packets,
            max_bytes: max_packets * (ROWS * padded_length(size) + WORK_BYTES) + BLOCK_BYTES,
            ..Limits::for_code(cache.code(), size)
        };
        let decoder = Decoder::new(cache, size, limits).map_err(|_| FlowError::Malformed)?;
        let missing = u64::from(packets);
        let block = Block::Open {
            missing,
            support: 0,
            max_bytes: limits.max_bytes,
            decoder: Box::new(decoder),
        };
        self.insert_block(number, block);
        Ok(())
    }

    fn push(&mut self, number: u64, packet: &Packet<'_>) -> Result<(), FlowError> {
        let (packets, size) = packet.sizes;
        let limit = self.block_limit(number);
        let Some(Block::Open { mut decoder, mut missing, mut support, max_bytes }) =
            self.take_open_block(number)
        else {
            self.counters.wasted += 1;
            return Ok(());
        };
        let same = decoder.code().source_packets() == packets
            && decoder.coded_packet_len() == BATCH + size;
        if same {
            support = (support + 1).min(MAX_SUPPORT);
        } else if !self.are_blocks_sealed {
            return Err(FlowError::Malformed);
        } else {
            // The polluted packet, either the first one of the block or this one, is in the
            // minority.
            self.counters.refused += 1;
            support = support.saturating_sub(1);
            if support == 0 {
                return self.open(number, packets, size);
            }
            self.insert_block(number, Block::Open { decoder, missing, support, max_bytes });
            return Ok(());
        }
        decoder.set_max_bytes(limit);
        self.caches.swap(packets, |cache| decoder.swap_cache(cache));
        let received = decoder.push(packet.batch, packet.coded);
        let progress = (received == Ok(Reception::Innovative)).then(|| decoder.decode());
        self.caches.swap(packets, |cache| decoder.swap_cache(cache));
        match received {
            Ok(Reception::Innovative) => match progress {
                Some(Ok(Progress::Missing(more))) => missing = more as u64,
                Some(Ok(Progress::Complete)) => return self.complete(number, packet, *decoder),
                // More packets make the elimination smaller.
                Some(Err(_)) | None => missing = missing.max(1),
            },
            Ok(Reception::NonInnovative) => self.counters.wasted += 1,
            Err(DecodeError::Length) => return Err(FlowError::Malformed),
            Err(DecodeError::Batches | DecodeError::Packets) => {
                // Authentic packets would have completed the block by now: restart it.
                self.counters.refused += 1;
                return self.open(number, packets, size);
            }
            Err(_) => self.counters.refused += 1,
        }
        self.insert_block(number, Block::Open { decoder, missing, support, max_bytes });
        Ok(())
    }

    /// Stores the content of a block that is decoded.
    fn complete(
        &mut self,
        number: u64,
        packet: &Packet<'_>,
        decoder: Decoder,
    ) -> Result<(), FlowError> {
        let (packets, packet_size) = packet.sizes;
        let mut data = vec![0; decoder.block_len().map_err(|_| FlowError::Malformed)?];
        decoder.copy_block(&mut data).map_err(|_| FlowError::Malformed)?;
        let source_packets = u64::from(packets);
        self.counters.symbols_decoded += source_packets;
        let authentic = !self.are_blocks_sealed;
        let handed_up = HandedUp::Nothing;
        let decoded = Block::Decoded { source_packets, packet_size, data, authentic, handed_up };
        self.insert_block(number, decoded);
        Ok(())
    }

    /// Blocks are taken as they are, because the links with the sender authenticate each packet.
    #[must_use]
    pub fn without_seals(self) -> Self {
        Self { are_blocks_sealed: false, ..self }
    }

    /// Whether [`next_block`](Self::next_block) has one.
    pub fn has_ready(&self) -> bool {
        matches!(self.blocks.get(&self.next), Some(Block::Decoded { authentic: true, .. }))
    }

    /// The next block in order, if it is decoded and authentic.
    pub fn next_block(&mut self) -> Option<Vec<u8>> {
        let Some(Block::Decoded { authentic: true, .. }) = self.blocks.get(&self.next) else {
            return None;
        };
        let Some(Block::Decoded { source_packets, data, .. }) = self.remove_block(self.next) else {
            return None;
        };
        self.next += 1;
        self.consumed += source_packets;
        Some(data)
    }

    /// Calls `take` for each decoded and authentic block that waits for an earlier one. `take` leaves what has to wait
    /// in the bytes of the block; [`next_block`](Self::next_block) returns it later. `take` returns false if it lacked
    /// room for a part. It then gets the block again, but only when blocks before it were decoded or taken, as
    /// `has_advanced` says: a part that continues the bytes before it needs no room. So a peer causes at most
    /// `MAX_OPEN` calls with a block.
    ///
    /// # Errors
    ///
    /// That of `take`.
    pub fn hand_up<E>(
        &mut self,
        mut has_advanced: bool,
        mut take: impl FnMut(&mut Vec<u8>) -> Result<bool, E>,
    ) -> Result<(), E> {
        for block in self.blocks.values_mut() {
            let Block::Decoded { data, authentic: true, handed_up, .. } = block else { continue };
            match handed_up {
                HandedUp::Nothing => has_advanced = true,
                HandedUp::Partly if has_advanced => {}
                HandedUp::Partly | HandedUp::Done => continue,
            }
            self.held -= data.len();
            let taken = take(data);
            self.held += data.len();
            *handed_up = if taken? { HandedUp::Done } else { HandedUp::Partly };
        }
        Ok(())
    }

    /// Calls `open` for each decoded block that was not verified yet. `open` gets the number and
    /// bytes of the block. It replaces the bytes with the content, or returns false if the block is
    /// polluted; the block is then missing again. Returns the number of polluted blocks.
    pub fn verify(&mut self, mut open: impl FnMut(u64, &mut Vec<u8>) -> bool) -> u64 {
        let mut polluted = Vec::new();
        for (&number, block) in &mut self.blocks {
            let Block::Decoded { source_packets, packet_size, data, authentic, .. } = block else {
                continue;
            };
            if *authentic {
                continue;
            }
            self.held -= data.len();
            *authentic = open(number, data);
            self.held += data.len();
            if !*authentic {
                polluted.push((number, *source_packets as u32, *packet_size));
            }
        }
        for &(number, packets, size) in &polluted {
            self.remove_block(number);
            // The budget had room for the same block before.
            let _ = self.open(number, packets, size);
        }
        polluted.len() as u64
    }

    /// When the next report is due.
    pub fn feedback_at(&self) -> Option<Timestamp> {
        self.feedback_at
    }

    /// Number of consecutive blocks that are decoded.
    fn decoded_below(&self) -> u64 {
        let decoded = self.blocks.range(self.next..).zip(self.next..).take_while(
            |((number, block), expected)| {
                *number == expected && matches!(block, Block::Decoded { authentic: true, .. })
            },
        );
        self.next + decoded.count() as u64
    }

    /// Builds the report that is due. While a block is open, another report follows after an
    /// interval even if no packet arrives, because this one may be lost.
    pub fn feedback(&mut self, now: Timestamp, rtt: Duration) -> RankFeedback {
        let decoded_below = self.decoded_below();
        let missing = |number: &u64| match self.blocks.get(number) {
            Some(Block::Open { missing, .. }) => Some((*missing).max(1)),
            Some(Block::Decoded { authentic, .. }) => (!authentic).then_some(1),
            // No packet of the block has arrived, so its size is unknown.
            None => Some(1),
        };
        let entries: Vec<_> = (decoded_below..self.seen_end)
            .filter_map(|first| Some(RankEntry { first, span: 1, missing: missing(&first)? }))
            .collect();
        self.last_feedback = now;
        let interval = MIN_FEEDBACK_INTERVAL * self.receivers;
        let repeat = (rtt / 4).max(self.feedback_delay / 4).max(interval * 4);
        self.feedback_at = (!entries.is_empty()).then(|| now + repeat);
        RankFeedback {
            decoded_below,
            seen_end: self.seen_end.max(decoded_below),
            repair_seen: self.sequence_seen,
            coded: self.counters.coded_received,
            wasted: self.counters.wasted,
            entries,
        }
    }

    /// Recomputes the credit; messages hold `session_bytes` bytes. Returns whether to advertise it
    /// to the peer.
    pub fn update_credit(&mut self, now: Timestamp, rtt: Duration, session_bytes: usize) -> bool {
        let held: u64 = self.blocks.values().map(Self::source_packets).sum();
        // Memory in addition to the rows that the credit counts for the packets of blocks.
        let rows = usize::try_from(held).unwrap_or(usize::MAX).saturating_mul(self.row);
        let elsewhere = session_bytes + self.held.saturating_sub(rows) + self.caches.bytes();
        self.credit.update(now, rtt, self.consumed, self.consumed + held, elsewhere)
    }

    /// Total number of source packets that the peer may send. The caller advertises it.
    pub fn credit(&mut self) -> u64 {
        self.credit.advertise()
    }
}

#[cfg(test)]
#[path = "receiver_tests.rs"]
mod unit_tests;
