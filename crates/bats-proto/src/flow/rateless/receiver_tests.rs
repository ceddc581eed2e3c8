use bats_code::rfc::{Encoder, OuterCode};

use super::super::header::RATELESS_HEADER_LEN;
use super::super::inner_code;
use super::*;
use crate::wire::coding::{REPAIR_HEADER_LEN, RepairHeader};
use crate::wire::varint::Writer;

const SYMBOL: usize = 45;
const PACKET: usize = 40;
const MS: Duration = Duration::from_millis(1);

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn parameters() -> RatelessParameters {
    RatelessParameters {
        max_symbol_size: SYMBOL,
        receive_budget: 64 << 20,
        initial_credit: 4_000,
        over_relays: false,
        receivers: 1,
    }
}

fn receiver() -> RatelessReceiver {
    RatelessReceiver::new(parameters())
}

fn relayed() -> RatelessReceiver {
    RatelessReceiver::new(RatelessParameters { over_relays: true, ..parameters() })
}

fn content(source_packets: u16) -> Vec<u8> {
    (0..usize::from(source_packets) * PACKET - 1).map(|index| (index * 7 % 251) as u8).collect()
}

/// The first `count` coded packets of a block, in batches from 0.
fn coded(source_packets: u16, count: usize) -> Vec<(u32, Vec<u8>)> {
    let cache = Caches::new(64 << 20).open(u32::from(source_packets)).unwrap();
    let mut encoder = Encoder::new(cache, &content(source_packets), PACKET).unwrap();
    let mut packets = Vec::new();
    for bid in 0..count.div_ceil(BATCH) as u32 {
        let mut batch = vec![vec![0; encoder.coded_packet_len()]; BATCH];
        let mut outputs: Vec<&mut [u8]> = batch.iter_mut().map(Vec::as_mut_slice).collect();
        encoder.encode(bid, 0, &mut outputs).unwrap();
        packets.extend(batch.into_iter().map(|packet| (bid, packet)));
    }
    packets.truncate(count);
    packets
}

fn packet(sequence: u32, block: u32, source_packets: u16, batch: u32, coded: &[u8]) -> Vec<u8> {
    let packet_size = (coded.len() - BATCH) as u16;
    let header = RatelessHeader { sequence, block, source_packets, packet_size, batch };
    let mut bytes = vec![0; RATELESS_HEADER_LEN - BATCH];
    header.encode(&mut Writer::new(&mut bytes)).unwrap();
    bytes.extend_from_slice(coded);
    bytes
}

fn relayed_packet(block: u32, count: u16, batch: u32, column: u8, coded: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; REPAIR_HEADER_LEN];
    let header = RepairHeader { batch, column, first: block, count };
    header.encode(&mut Writer::new(&mut bytes)).unwrap();
    bytes.extend_from_slice(coded);
    bytes
}

/// Receives the first `count` packets of a block of this many source packets.
fn push(receiver: &mut RatelessReceiver, block: u32, source_packets: u16, count: usize) {
    for (index, (batch, coded)) in coded(source_packets, count).iter().enumerate() {
        let column = (index % BATCH) as u8;
        let bytes = if receiver.over_relays {
            relayed_packet(block, source_packets, *batch, column, coded)
        } else {
            packet(index as u32, block, source_packets, *batch, coded)
        };
        receiver.on_packet(at(1), PacketKind::Repair, &bytes, MS).unwrap();
    }
    receiver.check_totals();
}

/// A packet of this size that no test decodes.
fn some_packet(block: u32, source_packets: u16, size: usize) -> Vec<u8> {
    packet(0, block, source_packets, 0, &vec![1; BATCH + size])
}

fn receive(receiver: &mut RatelessReceiver, bytes: &[u8]) -> Result<(), FlowError> {
    receiver.on_packet(at(1), PacketKind::Repair, bytes, MS)
}

#[test]
fn decoded_blocks_are_taken_in_order() {
    let mut receiver = receiver();
    push(&mut receiver, 1, 3, 3);
    assert!(!receiver.has_ready());
    assert_eq!(receiver.next_block(), None);
    push(&mut receiver, 0, 5, 4);
    assert!(!receiver.has_ready());
    push(&mut receiver, 0, 5, 5);
    assert!(receiver.has_ready());
    assert!(receiver.trim());
    assert_eq!(receiver.bytes_held(), content(5).len() + content(3).len());
    assert_eq!(receiver.next_block(), Some(content(5)));
    assert_eq!((receiver.next, receiver.consumed), (1, 5));
    assert_eq!(receiver.next_block(), Some(content(3)));
    assert_eq!((receiver.next, receiver.consumed), (2, 8));
    assert!(!receiver.has_ready() && !receiver.holds_blocks());
    assert_eq!(receiver.bytes_held(), 0);
    let counters = receiver.counters();
    assert_eq!((counters.symbols_decoded, counters.coded_received), (8, 12));
    assert_eq!((counters.wasted, counters.refused), (4, 0));
    push(&mut receiver, 0, 5, 1);
    assert_eq!(receiver.counters().wasted, 5, "the block was taken");
}

#[test]
fn packets_of_a_decoded_block_are_wasted() {
    let mut receiver = receiver();
    push(&mut receiver, 0, 3, 5);
    assert_eq!(receiver.counters().wasted, 2);
}

#[test]
fn sizes_of_blocks_are_limited() {
    let mut receiver = receiver();
    assert_eq!(receive(&mut receiver, &some_packet(0, 512, SYMBOL)), Ok(()));
    assert_eq!(receive(&mut receiver, &some_packet(1, 513, SYMBOL)), Err(FlowError::Malformed));
    assert_eq!(receive(&mut receiver, &some_packet(1, 5, SYMBOL + 1)), Err(FlowError::Malformed));
    let source = receiver.on_packet(at(1), PacketKind::Source, &some_packet(1, 5, 5), MS);
    assert_eq!(source, Err(FlowError::Malformed));
    let mut relayed = relayed();
    let empty = relayed_packet(0, 5, 0, 0, &[1; BATCH]);
    assert_eq!(receive(&mut relayed, &empty), Err(FlowError::Malformed));
    let none = relayed_packet(0, 0, 0, 0, &[1; BATCH + 1]);
    assert_eq!(receive(&mut relayed, &none), Err(FlowError::Malformed));
    assert!(receive(&mut relayed, &relayed_packet(0, 2, 0, 0, &[1; BATCH + 1])).is_ok());
}

#[test]
fn sixty_four_blocks_may_be_open() {
    let mut receiver = receiver();
    let beyond = |symbol, credit| Err(FlowError::BeyondCredit { symbol, credit });
    assert_eq!(receive(&mut receiver, &some_packet(64, 2, 5)), beyond(64, 64));
    assert_eq!(receive(&mut receiver, &some_packet(63, 2, 5)), Ok(()));
    push(&mut receiver, 0, 1, 1);
    receiver.next_block().unwrap();
    assert_eq!(receive(&mut receiver, &some_packet(65, 2, 5)), beyond(65, 65));
    assert_eq!(receive(&mut receiver, &some_packet(64, 2, 5)), Ok(()));
    assert_eq!(receiver.seen_end, 65);
}

#[test]
fn blocks_are_opened_within_the_credit() {
    let mut receiver =
        RatelessReceiver::new(RatelessParameters { initial_credit: 80, ..parameters() });
    let beyond = Err(FlowError::BeyondCredit { symbol: 20, credit: 20 });
    push(&mut receiver, 0, 4, 4);
    receiver.next_block().unwrap();
    assert_eq!(receive(&mut receiver, &some_packet(1, 10, 5)), Ok(()));
    assert_eq!(receive(&mut receiver, &some_packet(2, 7, 5)), beyond);
    assert_eq!(receive(&mut receiver, &some_packet(2, 6, 5)), Ok(()));
    assert_eq!(receiver.credit(), 20);
}

#[test]
fn report_follows_after_an_interval_that_grows_with_the_receivers() {
    for receivers in [1, 3] {
        let mut receiver = RatelessReceiver::new(RatelessParameters { receivers, ..parameters() });
        let send = |receiver: &mut RatelessReceiver, now, rtt| {
            let bytes = some_packet(0, 9, 5);
            receiver.on_packet(now, PacketKind::Repair, &bytes, rtt).unwrap();
            receiver.feedback_at()
        };
        assert_eq!(receiver.feedback_at(), None);
        let rtt = MS * 160;
        assert_eq!(send(&mut receiver, at(100), rtt), Some(at(100)));
        receiver.feedback(at(100), MS * 4_000);
        assert_eq!(receiver.feedback_at(), Some(at(1_100)), "repeated");
        assert_eq!(send(&mut receiver, at(101), rtt), Some(at(100) + MS * 10 * receivers));
        assert_eq!(send(&mut receiver, at(101), MS), Some(at(100) + MS * receivers));
        receiver.feedback(at(200), MS);
        assert_eq!(receiver.feedback_at(), Some(at(200) + MS * 4 * receivers));
        receiver.set_feedback_delay(MS * 800);
        receiver.feedback(at(200), MS * 160);
        assert_eq!(receiver.feedback_at(), Some(at(400)), "relays repair");
    }
}

#[test]
fn report_has_the_missing_packets_of_each_block() {
    let mut receiver = receiver();
    push(&mut receiver, 0, 2, 2);
    push(&mut receiver, 1, 9, 5);
    push(&mut receiver, 3, 4, 4);
    push(&mut receiver, 4, 20, 18);
    let expected = RankFeedback {
        decoded_below: 1,
        seen_end: 5,
        repair_seen: Some(17),
        coded: 29,
        wasted: 0,
        entries: [(1, 4), (2, 1), (4, 2)]
            .map(|(first, missing)| RankEntry { first, span: 1, missing })
            .to_vec(),
    };
    assert_eq!(receiver.feedback(at(2), MS), expected);
    receiver.next_block().unwrap();
    assert_eq!(receiver.feedback(at(2), MS), expected, "taken blocks are decoded");
    push(&mut receiver, 1, 9, 9);
    push(&mut receiver, 2, 3, 3);
    assert_eq!(receiver.feedback(at(2), MS).decoded_below, 4);
    push(&mut receiver, 4, 20, 20);
    let report = receiver.feedback(at(2), MS);
    assert_eq!((report.decoded_below, report.entries.len()), (5, 0));
    assert_eq!(receiver.feedback_at(), None, "nothing is missing");
}

#[test]
fn sequence_numbers_of_relayed_packets_are_those_of_their_columns() {
    let mut receiver = relayed();
    let mut seen = |batch, column| {
        let bytes = relayed_packet(0, 400, batch, column, &[1; BATCH + 5]);
        receive(&mut receiver, &bytes).unwrap();
        receiver.feedback(at(2), MS).repair_seen
    };
    assert_eq!(seen(2, 1), Some(33));
    assert_eq!(seen(1, 15), Some(33));
    assert_eq!(seen(0x0070_0000, 0), Some(0x0700_0000));
    assert_eq!(seen(0x00e0_0000, 0), Some(0x0e00_0000));
    assert_eq!(seen(0, 3), Some((1 << 28) + 3), "batch numbers have 24 bits");
}

#[test]
fn relayed_blocks_are_taken_when_they_are_verified() {
    let mut receiver = relayed();
    push(&mut receiver, 0, 3, 3);
    push(&mut receiver, 1, 4, 4);
    assert!(!receiver.has_ready());
    assert_eq!(receiver.next_block(), None);
    let report = receiver.feedback(at(2), MS);
    assert_eq!((report.decoded_below, report.entries.len()), (0, 2));
    let polluted = receiver.verify(|number, data| {
        data.truncate(50);
        number == 0
    });
    receiver.check_totals();
    assert_eq!(polluted, 1);
    assert!(receiver.has_ready());
    let report = receiver.feedback(at(2), MS);
    assert_eq!((report.decoded_below, report.entries[0].missing), (1, 4), "missing again");
    push(&mut receiver, 1, 4, 4);
    assert_eq!(receiver.verify(|number, _| number == 1), 0, "the first was verified before");
    receiver.check_totals();
    assert_eq!(receiver.next_block(), Some(content(3)[..50].to_vec()));
    assert_eq!(receiver.next_block(), Some(content(4)));
}

#[test]
fn blocks_of_direct_sessions_are_taken_without_a_seal() {
    let mut receiver = relayed().without_seals();
    push(&mut receiver, 0, 3, 3);
    assert!(receiver.has_ready());
    assert_eq!(receiver.next_block(), Some(content(3)));
}

#[test]
fn majority_of_relayed_packets_decides_the_sizes_of_a_block() {
    let mut receiver = relayed();
    let packets =
        |receiver: &RatelessReceiver| receiver.blocks.get(&0).map(RatelessReceiver::source_packets);
    push(&mut receiver, 0, 9, 3);
    for size in [5, 6, 5] {
        assert_eq!(packets(&receiver), Some(9));
        receive(&mut receiver, &relayed_packet(0, 9, 7, 0, &vec![1; BATCH + size])).unwrap();
    }
    assert_eq!(receiver.counters().refused, 3);
    // The block was opened again, with the size of the last packet.
    receive(&mut receiver, &relayed_packet(0, 9, 7, 0, &[1; BATCH + 5])).unwrap();
    receive(&mut receiver, &relayed_packet(0, 8, 7, 0, &[1; BATCH + 5])).unwrap();
    assert_eq!(packets(&receiver), Some(8));
    assert_eq!(receiver.counters().refused, 4);
    receiver.check_totals();
}

#[test]
fn without_relays_sizes_of_a_block_must_not_change() {
    for (packets, size) in [(9, PACKET - 1), (8, PACKET)] {
        let mut receiver = receiver();
        push(&mut receiver, 0, 9, 3);
        let answer = receive(&mut receiver, &some_packet(0, packets, size));
        assert_eq!(answer, Err(FlowError::Malformed));
    }
}

/// Most memory of a block, and what it may take now.
fn limits(receiver: &RatelessReceiver, number: u64) -> (usize, usize) {
    match receiver.blocks.get(&number) {
        Some(Block::Open { max_bytes, .. }) => (*max_bytes, receiver.block_limit(number)),
        _ => panic!("not open"),
    }
}

#[test]
fn memory_of_a_block_is_limited_by_its_packets_and_the_other_blocks() {
    let mut receiver = receiver();
    for block in 0..3 {
        receive(&mut receiver, &some_packet(block, 42, PACKET)).unwrap();
    }
    let packets = 42 + 10 + 64;
    let most = packets * (3 * padded_length(PACKET) + (16 << 10)) + (1 << 20);
    assert_eq!(limits(&receiver, 0), (most, most));
    assert_eq!(limits(&receiver, 2), (most, most));
    receiver.budget = 2_000_000;
    let others = receiver.held - receiver.blocks[&2].bytes();
    assert!(others > 0);
    assert_eq!(limits(&receiver, 0), (most, most), "the next block");
    assert_eq!(limits(&receiver, 2), (most, 1_500_000 - others));
    assert_eq!(receiver.block_limit(7), 0);
}

/// A receiver with an open block of each of these sizes, each of many batches. Without the first source packet none can
/// be decoded.
fn receiver_of_many_batches(budget: usize, sizes: &[u16]) -> RatelessReceiver {
    let mut receiver =
        RatelessReceiver::new(RatelessParameters { receive_budget: budget, ..parameters() });
    for (block, &packets) in (0..).zip(sizes) {
        let code = OuterCode::recommended(packets.into(), inner_code().unwrap()).unwrap();
        for number in 0..2_000 {
            let batch = code.batch(number);
            let first = batch.indices().iter().position(|&index| index == 0);
            let mut coded = vec![0; BATCH + PACKET];
            (coded[0], coded[1]) =
                first.map_or((1, 0), |at| (batch.generator(1)[at], batch.generator(0)[at]));
            receive(&mut receiver, &packet(0, block, packets, number, &coded)).unwrap();
        }
    }
    receiver.check_totals();
    receiver
}

#[test]
fn cached_batches_are_counted_and_take_at_most_an_eighth_of_the_budget() {
    const SIZES: [u16; 6] = [9, 10, 11, 12, 13, 14];
    for budget in [4 << 20, 16 << 20, 1 << 30] {
        let mut receiver = receiver_of_many_batches(budget, &SIZES);
        let most = (budget / 8).min(8 << 20);
        let cached = receiver.bytes_held() - receiver.held;
        assert!(most / 10 * 9 < cached && cached <= most, "{cached} bytes, budget {budget}");
        let for_others = budget / 4 * 3 - (receiver.held - receiver.blocks[&1].bytes()) - cached;
        let (most, limit) = limits(&receiver, 1);
        assert_eq!(limit, for_others.min(most));
        assert!(receiver.trim() && !receiver.trim());
        assert_eq!(receiver.bytes_held(), receiver.held);
        receiver.check_totals();
    }
}

#[test]
fn raised_budget_raises_the_limit_of_caches() {
    let mut receiver = receiver_of_many_batches(1 << 20, &[9]);
    receiver.raise_budget(1 << 20);
    assert!(receiver.caches.bytes() > 0);
    receiver.raise_budget(1 << 30);
    assert_eq!(receiver.caches.bytes(), 0);
    for block in [1, 2] {
        push(&mut receiver, block, 9, 9);
    }
    assert!(receiver.caches.bytes() > 0);
}

#[test]
fn credit_leaves_room_for_the_session_and_for_open_blocks() {
    let row = padded_length(SYMBOL) * 3;
    let mut receiver = RatelessReceiver::new(RatelessParameters {
        initial_credit: 80,
        receive_budget: 8_000_000,
        ..parameters()
    });
    push(&mut receiver, 0, 4, 4);
    receiver.next_block().unwrap();
    push(&mut receiver, 1, 5, 3);
    let session = 5_000_000;
    assert!(receiver.update_credit(at(1), MS * 10, session));
    let elsewhere = session + receiver.bytes_held().saturating_sub(5 * row);
    assert_eq!(receiver.credit(), 4 + ((8_000_000 - elsewhere) / row) as u64);
    assert!(!receiver.update_credit(at(1), MS * 10, session), "it was advertised");
    receiver.raise_budget(80_000_000);
    assert_eq!(receiver.budget, 80_000_000);
    receiver.update_credit(at(1), MS * 10, 0);
    assert_eq!(receiver.credit(), 4 + (40_000_000 / row) as u64);
}
