use core::time::Duration;
use std::collections::VecDeque;

use bats_code::rfc::{Encoder, source_packets};
use bats_types::Timestamp;

use super::caches::Caches;
use super::header::{
    RATELESS_HEADER_LEN, RatelessHeader, rateless_packet_size, relayed_packet_size,
};
use super::{BATCH, MAX_BLOCK, MAX_OPEN};
use crate::config::Goal;
use crate::flow::rate::{RateController, RepairClass};
use crate::flow::{FlowError, PathView, SenderCounters};
use crate::wire::coding::{REPAIR_HEADER_LEN, RepairHeader};
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Writer;

/// A new block may be cut when fewer packets than this remain to be sent of the first round.
const MIN_UNSENT_PACKETS: u64 = 64;
/// The path transports the source packets of a bounded block in about this time, or in this part of a round trip if
/// that is longer ([`RatelessSender::bound_blocks`]).
const BLOCK_TIME: Duration = Duration::from_millis(10);
const BLOCK_ROUND_TRIPS: u32 = 4;
/// Maximum number of source packets of a block once relays have polluted one. One polluted packet
/// in 1,000 then spoils one block in sixteen.
const MAX_BLOCK_POLLUTED: u32 = 64;
/// Batch IDs have 24 bits.
const MAX_BID: u64 = 0x00ff_ffff;
/// Packets of a block sent beyond K if relays repair losses: this many, plus one for every
/// `RELAYED_SPARE_INTERVAL` source packets.
const RELAYED_SPARE: u64 = 1;
const RELAYED_SPARE_INTERVAL: u64 = 256;
/// Packets sent as a probe after a probe time-out.
const PROBE_PACKETS: u64 = 2;
/// Minimum number of padding bytes of a block. A block without room for them needs a larger K.
const PADDING: usize = 1;

/// Parameters of a sender of blocks.
#[derive(Clone, Copy, Debug)]
pub struct RatelessSenderParameters {
    /// Maximum size of a symbol in bytes.
    pub max_symbol_size: usize,
    /// Initial credit from each receiver, in source packets.
    pub initial_credit: u64,
    /// Optimisation goal of the first round.
    pub goal: Goal,
    /// Maximum number of bytes that blocks may occupy.
    pub budget: usize,
    /// Number of receivers, at least 1. A block is complete when all of them have decoded it.
    pub receivers: usize,
    /// Whether relays forward the flow. Its packets then have the coding header that relays read.
    pub over_relays: bool,
}

#[derive(Debug)]
struct Block {
    number: u64,
    encoder: Encoder,
    is_last: bool,
    /// Coded packets made and not sent, in reverse order.
    ready: Vec<Vec<u8>>,
    next_batch: u64,
    /// The batch of the packets in `ready`.
    batch: u64,
    sent: u64,
    /// Number of packets to send, as far as known now.
    target: u64,
    rounds: u32,
    /// Sequence numbers and send times of packets that reports may not have counted.
    in_flight: VecDeque<(u64, Timestamp)>,
    /// The link that sends the block, if there are several.
    link: Option<u64>,
}

/// The sending end of a flow of blocks, to one receiver or several.
#[derive(Debug)]
pub struct RatelessSender {
    parameters: RatelessSenderParameters,
    rate: RateController,
    caches: Caches,
    blocks: VecDeque<Block>,
    buffer: Vec<u8>,
    spare: Vec<Vec<u8>>,
    next_block: u64,
    /// Number of source packets of all blocks so far.
    cut: u64,
    credit: u64,
    next_sequence: u64,
    /// Number of consecutive blocks that each receiver has decoded.
    decoded_below: Vec<u64>,
    /// The next batch of a relayed flow, whose blocks share one sequence of batch IDs.
    next_batch: u64,
    /// The current link, if there are several.
    link: Option<u64>,
    /// Maximum number of source packets of a block.
    max_source_packets: u32,
    /// The same, as far as the rate of the path bounds blocks.
    max_at_rate: u32,
    /// Time that relays have for repairs.
    feedback_delay: Duration,
    bytes: usize,
    counters: SenderCounters,
}

impl RatelessSender {
    /// A sender for a new flow.
    pub fn new(parameters: RatelessSenderParameters) -> Self {
        Self {
            rate: RateController::new(parameters.goal),
            caches: Caches::new(parameters.budget),
            blocks: VecDeque::new(),
            buffer: Vec::new(),
            spare: Vec::new(),
            next_block: 0,
            cut: 0,
            credit: parameters.initial_credit,
            next_sequence: 0,
            decoded_below: vec![0; parameters.receivers.max(1)],
            next_batch: 0,
            link: None,
            max_source_packets: MAX_BLOCK,
            max_at_rate: MAX_BLOCK,
            feedback_delay: Duration::ZERO,
            bytes: 0,
            counters: SenderCounters::default(),
            parameters,
        }
    }

    /// Frees unused memory.
    pub fn trim(&mut self) {
        self.caches.clear();
        self.blocks.shrink_to_fit();
        (self.buffer, self.spare) = (Vec::new(), Vec::new());
    }

    /// Bytes held by blocks that some receiver has not decoded.
    pub fn bytes_held(&self) -> usize {
        self.bytes
    }

    /// Counters since the start.
    pub fn counters(&self) -> SenderCounters {
        self.counters
    }

    /// Whether every receiver has decoded every block.
    pub fn all_acknowledged(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Maximum number of source packets of the next block. 0 while the credit is short, because
    /// many small blocks would take more packets than a large one.
    fn room(&self) -> u32 {
        let most = self.max_source_packets.min(self.max_at_rate);
        let most = (self.parameters.initial_credit / 2).clamp(1, u64::from(most));
        if self.credit.saturating_sub(self.cut) >= most { most as u32 } else { 0 }
    }

    /// Bounds blocks by the rate of the path, to a batch at least: what is written after a block was cut waits until
    /// the block was sent, so a channel with much data would delay the others. `packet` is the size of a packet in
    /// bytes. Not over relays, where short blocks cost throughput (ADR 0021).
    pub fn bound_blocks(&mut self, packet: usize, path: &PathView) {
        if self.parameters.over_relays {
            return;
        }
        let time = BLOCK_TIME.max(path.smoothed_rtt / BLOCK_ROUND_TRIPS);
        let bytes = path.rate_bytes_per_second as f64 * time.as_secs_f64();
        let packets = (bytes / packet.max(1) as f64) as u32;
        self.max_at_rate = packets.clamp(BATCH as u32, MAX_BLOCK);
    }

    /// Whether another block can be pushed now. Large blocks are more efficient, so a block is cut
    /// only when it can be sent.
    pub fn wants_block(&self) -> bool {
        let is_ours = |block: &Block| self.is_for_link(block);
        let waiting = |block: &Block| {
            if is_ours(block) { block.target.saturating_sub(block.sent) } else { 0 }
        };
        (self.blocks.len() as u64) < MAX_OPEN
            && self.room() > 0
            && self.blocks.iter().map(waiting).sum::<u64>()
                < MIN_UNSENT_PACKETS.min(self.max_at_rate.into())
            && (self.blocks.is_empty() || self.bytes < self.parameters.budget)
    }

    /// Adds a block that `fill` writes, from symbols of up to `symbol_size` bytes. `fill` returns
    /// the number of bytes and whether another block follows at once. Returns false if it writes
    /// nothing.
    pub fn push_block(
        &mut self,
        symbol_size: usize,
        path: &PathView,
        fill: impl FnOnce(&mut [u8]) -> (usize, bool),
    ) -> bool {
        let symbol_size = symbol_size.min(self.parameters.max_symbol_size);
        let full = if self.parameters.over_relays {
            relayed_packet_size(symbol_size)
        } else {
            rateless_packet_size(symbol_size)
        };
        self.buffer.resize(self.room() as usize * full - PADDING, 0);
        let (len, more) = fill(&mut self.buffer);
        let data = &self.buffer[..len.min(self.buffer.len())];
        // A short block is one short packet.
        let packet_size = (data.len() + PADDING).min(full);
        let Ok(count) = source_packets(data.len() as u64, packet_size) else { return false };
        if data.is_empty() {
            return false;
        }
        let Some(cache) = self.caches.open(count) else { return false };
        let Ok(encoder) = Encoder::new(cache, data, packet_size) else { return false };
        self.cut += u64::from(count);
        let class = if more { RepairClass::Bulk } else { RepairClass::Tail };
        let mut proactive = self.rate.proactive(class, u64::from(count), path).ceil() as u64;
        if self.parameters.over_relays {
            // An end-to-end round costs far more than a few spare packets for random rank deficits.
            proactive = proactive.max(RELAYED_SPARE + u64::from(count) / RELAYED_SPARE_INTERVAL);
        }
        self.bytes += count as usize * packet_size;
        self.blocks.push_back(Block {
            number: self.next_block,
            encoder,
            is_last: !more,
            ready: Vec::new(),
            next_batch: 0,
            batch: 0,
            sent: 0,
            target: u64::from(count) + proactive,
            rounds: 0,
            in_flight: VecDeque::new(),
            link: None,
        });
        self.next_block += 1;
        true
    }

    /// Whether [`RatelessSender::poll`] would return a packet.
    pub fn wants_to_send(&self) -> bool {
        self.blocks.iter().any(|block| block.sent < block.target)
    }

    /// Sets the link that polls next, if there are several. Each link takes blocks of its own, so
    /// that a batch stays on one link.
    pub fn set_link(&mut self, link: Option<u64>) {
        self.link = link;
    }

    /// Whether a block with unsent packets is assigned to this link.
    pub fn has_assigned(&self, link: u64) -> bool {
        self.blocks.iter().any(|block| block.link == Some(link) && block.sent < block.target)
    }

    /// Makes the blocks assigned to this link available to any link.
    pub fn release_assigned(&mut self, link: u64) {
        for block in self.blocks.iter_mut().filter(|block| block.link == Some(link)) {
            block.link = None;
        }
    }

    fn is_for_link(&self, block: &Block) -> bool {
        self.link.is_none() || block.link.is_none() || block.link == self.link
    }

    /// Handles a report of a polluted block. One polluted packet spoils a whole block, so blocks
    /// are short from now on.
    pub fn on_polluted(&mut self) {
        self.max_source_packets = MAX_BLOCK_POLLUTED;
    }

    /// Sets how long repairs are left to relays: packets missing earlier may still be on the path.
    pub fn set_feedback_delay(&mut self, feedback_delay: Duration) {
        self.feedback_delay = feedback_delay;
    }

    /// Number of the block that the next [`RatelessSender::push_block`] makes.
    pub fn next_number(&self) -> u64 {
        self.next_block
    }

    /// Writes the next packet's payload to `out`. It is one of the oldest block with unsent
    /// packets.
    pub fn poll(&mut self, now: Timestamp, out: &mut Vec<u8>) -> Option<PacketKind> {
        out.clear();
        let over_relays = self.parameters.over_relays;
        let wants = |block: &&Block| block.sent < block.target && self.is_for_link(block);
        let first = self.blocks.iter().find(wants).map(|block| block.number);
        // A batch of a relayed flow is sent as a whole before the next one, as far as it is needed.
        let is_started = |block: &&Block| over_relays && !block.ready.is_empty() && wants(block);
        let number = self.blocks.iter().find(is_started).map(|block| block.number).or(first)?;
        let index = self.blocks.binary_search_by_key(&number, |block| block.number).ok()?;
        let block = self.blocks.get_mut(index)?;
        block.link = block.link.or(self.link);
        if block.ready.is_empty() {
            let next = if over_relays { &mut self.next_batch } else { &mut block.next_batch };
            block.batch = *next;
            *next += 1;
            let bid = (block.batch & MAX_BID) as u32;
            let source_packets = block.encoder.code().source_packets();
            self.caches.swap(source_packets, |cache| block.encoder.swap_cache(cache));
            let ready = make_batch(&mut block.encoder, bid, &mut self.spare);
            self.caches.swap(source_packets, |cache| block.encoder.swap_cache(cache));
            block.ready = ready?;
        }
        let packet = block.ready.pop()?;
        let code = block.encoder.code();
        let source_packets = code.source_packets() as u16;
        if over_relays {
            let column = BATCH - 1 - block.ready.len();
            let header = RepairHeader {
                batch: (block.batch & MAX_BID) as u32,
                column: column as u8,
                first: block.number as u32,
                count: source_packets,
            };
            out.resize(REPAIR_HEADER_LEN, 0);
            header.encode(&mut Writer::new(out))?;
        } else {
            let header = RatelessHeader {
                sequence: self.next_sequence as u32,
                block: block.number as u32,
                source_packets,
                packet_size: block.encoder.packet_size() as u16,
                batch: (block.batch & MAX_BID) as u32,
            };
            out.resize(RATELESS_HEADER_LEN - BATCH, 0);
            header.encode(&mut Writer::new(out))?;
        }
        out.extend_from_slice(&packet);
        self.spare.push(packet);
        let sequence = if over_relays {
            block.batch * BATCH as u64 + (BATCH - 1 - block.ready.len()) as u64
        } else {
            self.next_sequence
        };
        block.in_flight.push_back((sequence, now));
        block.sent += 1;
        self.next_sequence += 1;
        if over_relays && block.sent >= block.target {
            // Relays will have given up the batch when the next report comes.
            self.spare.append(&mut block.ready);
            self.spare.truncate(2 * BATCH);
        }
        let sources = u64::from(code.source_packets());
        if block.sent <= sources {
            self.counters.source_packets += 1;
        } else if block.rounds == 0 {
            self.counters.proactive_packets += 1;
        } else {
            self.counters.top_up_packets += 1;
        }
        Some(PacketKind::Repair)
    }

    /// Raises the credit to `packets` source packets in total. Credit never shrinks.
    pub fn on_credit(&mut self, packets: u64) {
        self.credit = self.credit.max(packets);
    }

    /// Processes the report of a receiver. Its entries are blocks: `first` is the block number,
    /// `span` is 1, and `missing` is the number of packets that the block lacks.
    ///
    /// # Errors
    ///
    /// [`FlowError::NotSent`] if the report names a block that was not sent.
    pub fn on_rank_feedback(
        &mut self,
        receiver: usize,
        now: Timestamp,
        feedback: &RankFeedback,
        path: &PathView,
    ) -> Result<(), FlowError> {
        let ends = feedback.entries.iter().map(|entry| entry.first.saturating_add(entry.span));
        let end = ends.max().unwrap_or(0).max(feedback.seen_end).max(feedback.decoded_below);
        if end > self.next_block {
            return Err(FlowError::NotSent(end - 1));
        }
        self.counters.peer_coded = self.counters.peer_coded.max(feedback.coded);
        self.counters.peer_wasted = self.counters.peer_wasted.max(feedback.wasted);
        let Some(decoded) = self.decoded_below.get_mut(receiver) else { return Ok(()) };
        *decoded = feedback.decoded_below.max(*decoded);
        let done = self.decoded_below.iter().copied().min().unwrap_or(0);
        while self.blocks.front().is_some_and(|block| block.number < done)
            && let Some(block) = self.blocks.pop_front()
        {
            let code = block.encoder.code();
            self.bytes -= code.source_packets() as usize * block.encoder.packet_size();
            self.spare.extend(block.ready);
        }
        let horizon = path.smoothed_rtt + path.smoothed_rtt / 8 + path.ack_interval * 2;
        for entry in &feedback.entries {
            let Ok(index) = self.blocks.binary_search_by_key(&entry.first, |block| block.number)
            else {
                continue;
            };
            let block = &mut self.blocks[index];
            // Where relays repair, only the age of a packet shows whether it is lost.
            let seen = feedback.repair_seen.filter(|_| self.feedback_delay.is_zero());
            let horizon = horizon.max(self.feedback_delay);
            block.top_up(now, horizon, seen, entry.missing, self.rate, path);
        }
        self.spare.truncate(2 * BATCH);
        Ok(())
    }

    /// Handles a probe time-out: schedules packets as a probe. Returns false if no block is open.
    pub fn on_probe_timeout(&mut self) -> bool {
        if self.wants_to_send() {
            return true;
        }
        let Some(block) = self.blocks.front_mut() else { return false };
        block.in_flight.clear();
        block.target = block.sent + PROBE_PACKETS;
        true
    }
}

impl Block {
    fn top_up(
        &mut self,
        now: Timestamp,
        horizon: Duration,
        repair_seen: Option<u64>,
        missing: u64,
        rate: RateController,
        path: &PathView,
    ) {
        // Packets sent before the newest one that the report knows of are counted in it or lost.
        self.in_flight.retain(|&(sequence, at)| {
            repair_seen.is_none_or(|seen| sequence > seen) && at + horizon > now
        });
        let coming = self.in_flight.len() as u64 + (self.target - self.sent);
        if coming == 0 {
            self.rounds += 1;
        } else if self.rounds == 0 {
            // The missing rank after the first round is known only when that round is over.
            return;
        }
        let class = if self.is_last { RepairClass::Tail } else { RepairClass::Bulk };
        // A block takes hardly more packets than K, so larger requests are capped.
        let missing = missing.min(2 * u64::from(MAX_BLOCK));
        let wanted = rate.top_up(class, missing, self.rounds.max(1), path);
        self.target += wanted.saturating_sub(coming);
    }
}

/// The packets of a batch in reverse order. All are made at once: what the first round does not
/// send is left for the next report.
fn make_batch(encoder: &mut Encoder, bid: u32, spare: &mut Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
    let len = encoder.coded_packet_len();
    let mut packets: Vec<Vec<u8>> = (0..BATCH)
        .map(|_| {
            let mut packet = spare.pop().unwrap_or_default();
            packet.clear();
            packet.resize(len, 0);
            packet
        })
        .collect();
    let mut outputs: Vec<&mut [u8]> = packets.iter_mut().map(Vec::as_mut_slice).collect();
    encoder.encode(bid, 0, &mut outputs).ok()?;
    packets.reverse();
    Some(packets)
}

#[cfg(test)]
#[path = "sender_tests.rs"]
mod unit_tests;
