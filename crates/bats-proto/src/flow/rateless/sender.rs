use core::time::Duration;
use std::collections::VecDeque;

use bats_code::rfc::{Encoder, source_packets};
use bats_types::Timestamp;

use super::caches::Caches;
use super::header::{
    RATELESS_HEADER_LEN, RatelessHeader, carried_packet_size, rateless_packet_size,
};
use super::{BATCH, MAX_BLOCK, MAX_OPEN};
use crate::config::Goal;
use crate::flow::rate::{RateController, RepairClass};
use crate::flow::{FlowError, PathView, SenderCounters};
use crate::wire::coding::{REPAIR_HEADER_LEN, RepairHeader};
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Writer;

/// Packets still to be sent of the first round below which the next block may be cut.
const CUT_AHEAD: u64 = 64;
/// Source packets of a block at most once a relay has altered one: a lie in 1,000 packets then spoils
/// one in sixteen.
const ALTERED_BLOCK: u32 = 64;
/// Batch IDs have 24 bits.
const MAX_BID: u64 = 0x00ff_ffff;
/// Packets of a block sent beyond K where relays repair what is lost: so many, and one in so many.
const CARRIED_SPARE: u64 = 1;
const CARRIED_SHARE: u64 = 256;
/// Packets sent without being asked after a silence.
const PROBE_PACKETS: u64 = 2;
/// Bytes of padding that a block has at least, and what makes K one more than it need be.
const PADDING: usize = 1;

/// What a sender of blocks is set up with.
#[derive(Clone, Copy, Debug)]
pub struct RatelessSenderParameters {
    /// Bytes of a symbol at most.
    pub max_symbol_size: usize,
    /// Source packets that each receiver promised to take.
    pub initial_credit: u64,
    /// What the first round favours.
    pub goal: Goal,
    /// Bytes that blocks may occupy.
    pub budget: usize,
    /// Receivers, at least 1: a block is done when all have it.
    pub receivers: usize,
    /// Whether relays carry the flow: its packets then have the header that relays know.
    pub carried: bool,
}

#[derive(Debug)]
struct Block {
    number: u64,
    encoder: Encoder,
    is_last: bool,
    /// Coded packets made and not sent, last first.
    ready: Vec<Vec<u8>>,
    next_batch: u64,
    /// That of the packets made.
    batch: u64,
    sent: u64,
    /// Packets to be sent as far as is known now.
    target: u64,
    rounds: u32,
    /// Sequence numbers of packets that reports may not have counted, and when they left.
    under_way: VecDeque<(u64, Timestamp)>,
    /// The link that the block leaves by, where several lead on.
    link: Option<u64>,
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
    /// The next batch of a carried flow: all its blocks draw on one sequence of batch IDs.
    next_batch: u64,
    /// The link at hand, if there are several.
    link: Option<u64>,
    /// Source packets of a block at most.
    largest: u32,
    /// Time that relays have for repairs.
    patience: Duration,
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
            next_batch: 0,
            link: None,
            largest: MAX_BLOCK,
            patience: Duration::ZERO,
            bytes: 0,
            counters: SenderCounters::default(),
            parameters,
        }
    }

    /// Bytes held by blocks that somebody lacks.
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
        let most = (self.parameters.initial_credit / 2).clamp(1, u64::from(self.largest));
        if self.credit.saturating_sub(self.cut) >= most { most as u32 } else { 0 }
    }

    /// Whether another block would be taken now: the larger blocks are the better, so that none is
    /// cut before it can be sent.
    pub fn wants_block(&self) -> bool {
        let ours = |block: &Block| self.is_for_link(block);
        let waiting =
            |block: &Block| if ours(block) { block.target.saturating_sub(block.sent) } else { 0 };
        (self.blocks.len() as u64) < MAX_OPEN
            && self.room() > 0
            && self.blocks.iter().map(waiting).sum::<u64>() < CUT_AHEAD
            && (self.blocks.is_empty() || self.bytes < self.parameters.budget)
    }

    /// Adds a block that `fill` writes, from symbols of up to `symbol_size` bytes; `more` tells, after
    /// it has written, whether another would follow at once. False if it wrote nothing.
    pub fn push_block(
        &mut self,
        symbol_size: usize,
        path: &PathView,
        fill: impl FnOnce(&mut [u8]) -> (usize, bool),
    ) -> bool {
        let symbol_size = symbol_size.min(self.parameters.max_symbol_size);
        let full = if self.parameters.carried {
            carried_packet_size(symbol_size)
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
        let Some(cache) = self.caches.take(count) else { return false };
        let Ok(encoder) = Encoder::new(cache, data, packet_size) else { return false };
        self.cut += u64::from(count);
        let class = if more { RepairClass::Bulk } else { RepairClass::Tail };
        let mut proactive = self.rate.proactive(class, u64::from(count), path).ceil() as u64;
        if self.parameters.carried {
            // A round between the ends costs far more than what random ranks lack now and then.
            proactive = proactive.max(CARRIED_SPARE + u64::from(count) / CARRIED_SHARE);
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
            under_way: VecDeque::new(),
            link: None,
        });
        self.next_block += 1;
        true
    }

    /// Whether [`RatelessSender::poll`] would give a packet.
    pub fn wants_to_send(&self) -> bool {
        self.blocks.iter().any(|block| block.sent < block.target)
    }

    /// The link that is about to ask, if there are several: each takes blocks of its own, so that a
    /// batch stays on one of them.
    pub fn set_link(&mut self, link: Option<u64>) {
        self.link = link;
    }

    /// Whether a block is set aside for this link.
    pub fn has_share_of(&self, link: u64) -> bool {
        self.blocks.iter().any(|block| block.link == Some(link) && block.sent < block.target)
    }

    /// The link has gone: its blocks leave by any other.
    pub fn release_share(&mut self, link: u64) {
        for block in self.blocks.iter_mut().filter(|block| block.link == Some(link)) {
            block.link = None;
        }
    }

    fn is_for_link(&self, block: &Block) -> bool {
        self.link.is_none() || block.link.is_none() || block.link == self.link
    }

    /// A block was altered on the way: one packet spoils a whole block, so that they are short from
    /// now on.
    pub fn on_altered(&mut self) {
        self.largest = ALTERED_BLOCK;
    }

    /// Leaves repairs to relays for so long: what is missing earlier may still be on the way.
    pub fn set_feedback_delay(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Number of the block that [`RatelessSender::push_block`] makes next.
    pub fn next_number(&self) -> u64 {
        self.next_block
    }

    /// The next packet's payload into `out`: of the oldest block that lacks one.
    pub fn poll(&mut self, now: Timestamp, out: &mut Vec<u8>) -> Option<PacketKind> {
        out.clear();
        let carried = self.parameters.carried;
        let wants = |block: &&Block| block.sent < block.target && self.is_for_link(block);
        let first = self.blocks.iter().find(wants).map(|block| block.number);
        // A batch of a carried flow is sent whole before the next one, as far as it is wanted.
        let begun = |block: &&Block| carried && !block.ready.is_empty() && wants(block);
        let number = self.blocks.iter().find(begun).map(|block| block.number).or(first)?;
        let index = self.blocks.binary_search_by_key(&number, |block| block.number).ok()?;
        let block = self.blocks.get_mut(index)?;
        block.link = block.link.or(self.link);
        if block.ready.is_empty() {
            let next = if carried { &mut self.next_batch } else { &mut block.next_batch };
            block.batch = *next;
            *next += 1;
            let bid = (block.batch & MAX_BID) as u32;
            block.ready = make(&mut block.encoder, bid, &mut self.spare)?;
        }
        let packet = block.ready.pop()?;
        let code = block.encoder.code();
        let source_packets = code.source_packets() as u16;
        if carried {
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
        let sequence = if carried {
            block.batch * BATCH as u64 + (BATCH - 1 - block.ready.len()) as u64
        } else {
            self.next_sequence
        };
        block.under_way.push_back((sequence, now));
        block.sent += 1;
        self.next_sequence += 1;
        if carried && block.sent >= block.target {
            // Relays have given the batch up when the next report comes.
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
            // Where relays repair, age alone tells what is lost.
            let seen = feedback.repair_seen.filter(|_| self.patience.is_zero());
            let horizon = horizon.max(self.patience);
            block.top_up(now, horizon, seen, entry.missing, self.rate, path);
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

/// The packets of a batch, last first. All of them are made: what the first round leaves serves the
/// next report.
fn make(encoder: &mut Encoder, bid: u32, spare: &mut Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
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
