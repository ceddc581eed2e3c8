use core::time::Duration;
use std::collections::VecDeque;

use bats_code::rfc::{Encoder, source_packets};
use bats_types::Timestamp;

use super::caches::Caches;
use super::header::{RATELESS_HEADER_LEN, RatelessHeader, rateless_packet_size};
use super::{BATCH, MAX_BLOCK, MAX_OPEN};
use crate::config::Goal;
use crate::flow::rate::{RateController, RepairClass};
use crate::flow::{FlowError, PathView, SenderCounters};
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Writer;

/// Packets still to be sent of the first round below which the next block may be cut.
const CUT_AHEAD: u64 = 64;
/// Packets sent without being asked after a silence.
const PROBE_PACKETS: u64 = 2;
/// Octets of padding that a block has at least, and what makes K one more than it need be.
const PADDING: usize = 1;

/// What a sender of blocks is set up with.
#[derive(Clone, Copy, Debug)]
pub struct RatelessSenderParameters {
    /// Octets of a symbol at most.
    pub max_symbol_size: usize,
    /// Source packets that each receiver promised to take.
    pub initial_credit: u64,
    /// What the first round favours.
    pub goal: Goal,
    /// Octets that blocks may occupy.
    pub budget: usize,
    /// Receivers, at least 1: a block is done when all have it.
    pub receivers: usize,
}

#[derive(Debug)]
struct Block {
    number: u64,
    encoder: Encoder,
    is_last: bool,
    /// Coded packets made and not sent, last first.
    ready: Vec<Vec<u8>>,
    next_batch: u32,
    /// That of the packets made.
    batch: u32,
    sent: u64,
    /// Packets to be sent as far as is known now.
    target: u64,
    rounds: u32,
    /// Sequence numbers of packets that reports may not have counted, and when they left.
    under_way: VecDeque<(u64, Timestamp)>,
}

/// The sending end of a flow of blocks, to one receiver or to several.
#[derive(Debug)]
pub struct RatelessSender {
    parameters: RatelessSenderParameters,
    rate: RateController,
    caches: Caches,
    blocks: VecDeque<Block>,
    buffer: Vec<u8>,
    spare: Vec<Vec<u8>>,
    next_block: u64,
    /// Source packets of all blocks so far.
    cut: u64,
    credit: u64,
    next_sequence: u64,
    /// Blocks that each receiver has, without a gap.
    decoded_below: Vec<u64>,
    bytes: usize,
    counters: SenderCounters,
}

impl RatelessSender {
    /// A sender for a fresh flow.
    pub fn new(parameters: RatelessSenderParameters) -> Self {
        Self {
            rate: RateController::new(parameters.goal),
            caches: Caches::default(),
            blocks: VecDeque::new(),
            buffer: Vec::new(),
            spare: Vec::new(),
            next_block: 0,
            cut: 0,
            credit: parameters.initial_credit,
            next_sequence: 0,
            decoded_below: vec![0; parameters.receivers.max(1)],
            bytes: 0,
            counters: SenderCounters::default(),
            parameters,
        }
    }

    /// Octets held by blocks that somebody lacks.
    pub fn bytes_held(&self) -> usize {
        self.bytes
    }

    /// Counters since the start.
    pub fn counters(&self) -> SenderCounters {
        self.counters
    }

    /// Whether every receiver has every block.
    pub fn all_acknowledged(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Source packets that the next block may have; none as long as the credit is short, because many
    /// small blocks would take more packets than a large one.
    fn room(&self) -> u32 {
        let most = (self.parameters.initial_credit / 2).clamp(1, u64::from(MAX_BLOCK));
        if self.credit.saturating_sub(self.cut) >= most { most as u32 } else { 0 }
    }

    /// Whether another block would be taken now: the larger blocks are the better, so that none is
    /// cut before it can be sent.
    pub fn wants_block(&self) -> bool {
        let waiting = |block: &Block| block.target.saturating_sub(block.sent);
        (self.blocks.len() as u64) < MAX_OPEN
            && self.room() > 0
            && self.blocks.iter().map(waiting).sum::<u64>() < CUT_AHEAD
            && (self.blocks.is_empty() || self.bytes < self.parameters.budget)
    }

    /// Adds a block that `fill` writes, from symbols of up to `symbol_size` octets; `more` tells, after
    /// it has written, whether another would follow at once. False if it wrote nothing.
    pub fn push_block(
        &mut self,
        symbol_size: usize,
        path: &PathView,
        fill: impl FnOnce(&mut [u8]) -> (usize, bool),
    ) -> bool {
        let full = rateless_packet_size(symbol_size.min(self.parameters.max_symbol_size));
        self.buffer.resize(self.room() as usize * full - PADDING, 0);
        let (len, more) = fill(&mut self.buffer);
        let data = &self.buffer[..len.min(self.buffer.len())];
        // A short block is one short packet.
        let packet_size = (data.len() + PADDING).min(full);
        let Ok(count) = source_packets(data.len() as u64, packet_size) else { return false };
        if data.is_empty() {
            return false;
        }
        let Some(cache) = self.caches.take(count) else { return false };
        let Ok(encoder) = Encoder::new(cache, data, packet_size) else { return false };
        self.cut += u64::from(count);
        let class = if more { RepairClass::Bulk } else { RepairClass::Tail };
        let proactive = self.rate.proactive(class, u64::from(count), path).ceil() as u64;
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
            under_way: VecDeque::new(),
        });
        self.next_block += 1;
        true
    }

    /// Whether [`RatelessSender::poll`] would give a packet.
    pub fn wants_to_send(&self) -> bool {
        self.blocks.iter().any(|block| block.sent < block.target)
    }

    /// The next packet's payload into `out`: of the oldest block that lacks one.
    pub fn poll(&mut self, now: Timestamp, out: &mut Vec<u8>) -> Option<PacketKind> {
        out.clear();
        let block = self.blocks.iter_mut().find(|block| block.sent < block.target)?;
        if block.ready.is_empty() {
            Self::make(block, &mut self.spare)?;
        }
        let packet = block.ready.pop()?;
        let code = block.encoder.code();
        let header = RatelessHeader {
            sequence: self.next_sequence as u32,
            block: block.number as u32,
            source_packets: code.source_packets() as u16,
            packet_size: block.encoder.packet_size() as u16,
            batch: block.batch,
        };
        out.resize(RATELESS_HEADER_LEN - BATCH, 0);
        header.encode(&mut Writer::new(out))?;
        out.extend_from_slice(&packet);
        self.spare.push(packet);
        block.under_way.push_back((self.next_sequence, now));
        block.sent += 1;
        self.next_sequence += 1;
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

    /// Makes the packets of the next batch that are wanted.
    fn make(block: &mut Block, spare: &mut Vec<Vec<u8>>) -> Option<()> {
        let len = block.encoder.coded_packet_len();
        // A batch is used up whole: what is left of it serves the next report.
        let mut packets: Vec<Vec<u8>> = (0..BATCH)
            .map(|_| {
                let mut packet = spare.pop().unwrap_or_default();
                packet.clear();
                packet.resize(len, 0);
                packet
            })
            .collect();
        let mut outputs: Vec<&mut [u8]> = packets.iter_mut().map(Vec::as_mut_slice).collect();
        block.encoder.encode(block.next_batch, 0, &mut outputs).ok()?;
        block.batch = block.next_batch;
        block.next_batch = (block.next_batch + 1) & 0x00ff_ffff;
        packets.reverse();
        block.ready = packets;
        Some(())
    }

    /// The peer allows so many source packets in all. Credit never shrinks.
    pub fn on_credit(&mut self, packets: u64) {
        self.credit = self.credit.max(packets);
    }

    /// Takes the report of a receiver: numbers are those of blocks, spans are 1, what is missing are
    /// packets of the block.
    ///
    /// # Errors
    ///
    /// [`FlowError::NotSent`] if it speaks of a block that was not sent.
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
            let room = 2 * BATCH - self.spare.len().min(2 * BATCH);
            self.spare.extend(block.ready.into_iter().take(room));
            self.caches.keep(block.encoder.into_cache());
        }
        let horizon = path.smoothed_rtt + path.smoothed_rtt / 8 + path.ack_interval * 2;
        for entry in &feedback.entries {
            let Ok(index) = self.blocks.binary_search_by_key(&entry.first, |block| block.number)
            else {
                continue;
            };
            let block = &mut self.blocks[index];
            block.top_up(now, horizon, feedback.repair_seen, entry.missing, self.rate, path);
        }
        self.spare.truncate(2 * BATCH);
        Ok(())
    }

    /// Nothing was heard for long: make something that is worth sending. False if nothing is open.
    pub fn on_probe_timeout(&mut self) -> bool {
        if self.wants_to_send() {
            return true;
        }
        let Some(block) = self.blocks.front_mut() else { return false };
        block.under_way.clear();
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
        // What left before the newest packet that the report knows of is counted in it or lost.
        self.under_way.retain(|&(sequence, at)| {
            repair_seen.is_none_or(|seen| sequence > seen) && at + horizon > now
        });
        let coming = self.under_way.len() as u64 + (self.target - self.sent);
        if coming == 0 {
            self.rounds += 1;
        } else if self.rounds == 0 {
            // What is lacking after the first round is known when that is over, and not before.
            return;
        }
        let class = if self.is_last { RepairClass::Tail } else { RepairClass::Bulk };
        // A block takes hardly more packets than it has: who asks for more is not believed.
        let missing = missing.min(2 * u64::from(MAX_BLOCK));
        let wanted = rate.top_up(class, missing, self.rounds.max(1), path);
        self.target += wanted.saturating_sub(coming);
    }
}
