use bats_code::stream::StreamEncoder;

use super::*;
use crate::wire::coding::RepairHeader;
use crate::wire::varint::Writer;

const SYMBOL: usize = 100;
const SEED: u64 = 1;
const MS: Duration = Duration::from_millis(1);

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn receiver_of(initial_credit: u64, receive_budget: usize) -> FlowReceiver {
    FlowReceiver::new(ReceiverParameters {
        max_symbol_size: SYMBOL,
        seed: SEED,
        receive_budget,
        initial_credit,
    })
}

fn receiver() -> FlowReceiver {
    receiver_of(10_000, 4 << 20)
}

fn symbol(number: u64) -> Vec<u8> {
    vec![number as u8; SYMBOL]
}

fn source(number: u64) -> Vec<u8> {
    let mut payload = vec![0; 4];
    SourceHeader::new(number).encode(&mut Writer::new(&mut payload)).unwrap();
    payload.extend_from_slice(&symbol(number));
    payload
}

/// A repair over the symbols from `first` to `end`.
fn repair(first: u64, end: u64, batch: u32, column: u8) -> Vec<u8> {
    let mut encoder = StreamEncoder::new(SYMBOL, SEED);
    for number in 0..end {
        encoder.push(&symbol(number)).unwrap();
    }
    let mut payload = vec![0; 10 + SYMBOL + 2];
    let window = Window { first, count: (end - first) as u16 };
    let len = encoder.encode(window, batch, column, &mut [&mut payload[10..]]).unwrap();
    payload.truncate(10 + len);
    let header = RepairHeader { batch, column, first: first as u32, count: window.count };
    header.encode(&mut Writer::new(&mut payload)).unwrap();
    payload
}

fn push(receiver: &mut FlowReceiver, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        receiver.on_packet(at(1), PacketKind::Source, &source(number), MS).unwrap();
    }
}

fn push_repair(receiver: &mut FlowReceiver, first: u64, end: u64, batch: u32, column: u8) {
    let payload = repair(first, end, batch, column);
    receiver.on_packet(at(1), PacketKind::Repair, &payload, MS).unwrap();
}

#[test]
fn symbols_are_taken_in_order_and_readable_before_that() {
    let mut receiver = receiver();
    push(&mut receiver, [0, 2]);
    assert!(receiver.has_ready());
    assert_eq!(receiver.next_symbol(), Some(&symbol(0)[..]));
    assert!(!receiver.has_ready());
    assert_eq!(receiver.next_symbol(), None);
    assert_eq!((receiver.next_number(), receiver.seen_end()), (1, 3));
    assert_eq!(receiver.symbol(0), None, "it was taken");
    assert_eq!(receiver.symbol(2), Some(&symbol(2)[..]));
    push_repair(&mut receiver, 0, 3, 0, 0);
    assert!(receiver.has_ready());
    assert_eq!(receiver.next_symbol(), Some(&symbol(1)[..]));
    assert_eq!(receiver.next_symbol(), Some(&symbol(2)[..]));
    assert!(!receiver.has_ready());
}

#[test]
fn packets_are_counted_by_what_they_bring() {
    let mut receiver = receiver();
    push(&mut receiver, [0, 1, 1, 3]);
    push_repair(&mut receiver, 0, 4, 0, 0);
    push_repair(&mut receiver, 0, 4, 0, 1);
    push_repair(&mut receiver, 0, 4, 0, 2);
    let counters = receiver.counters();
    assert_eq!((counters.coded_received, counters.wasted, counters.refused), (7, 3, 0));
    assert_eq!(counters.symbols_decoded, 1);
    // Released symbols are out of range, or known.
    while receiver.next_symbol().is_some() {}
    push(&mut receiver, [3]);
    let counters = receiver.counters();
    assert_eq!(counters.coded_received, 8);
    assert_eq!(counters.wasted + counters.refused, 4);
}

#[test]
fn symbols_are_accepted_below_the_credit_only() {
    let mut receiver = receiver_of(10, 4 << 20);
    let beyond = Err(FlowError::BeyondCredit { symbol: 10, credit: 10 });
    let mut send = |kind, payload: &[u8]| receiver.on_packet(at(1), kind, payload, MS);
    assert_eq!(send(PacketKind::Source, &source(9)), Ok(()));
    assert_eq!(send(PacketKind::Source, &source(10)), beyond);
    assert_eq!(send(PacketKind::Repair, &repair(8, 10, 0, 0)), Ok(()));
    assert_eq!(send(PacketKind::Repair, &repair(8, 11, 0, 1)), beyond);
    assert_eq!(receiver.seen_end(), 10);
}

#[test]
fn report_follows_within_a_sixteenth_of_the_round_trip() {
    let mut receiver = receiver();
    let mut number = 0;
    let mut send = |receiver: &mut FlowReceiver, now, rtt| {
        receiver.on_packet(now, PacketKind::Source, &source(number), rtt).unwrap();
        number += 1;
        receiver.feedback_at()
    };
    let rtt = MS * 160;
    assert_eq!(receiver.feedback_at(), None);
    assert_eq!(send(&mut receiver, at(100), rtt), Some(at(100)), "no report was sent before");
    while receiver.next_symbol().is_some() {}
    receiver.feedback(at(100), rtt);
    assert_eq!(receiver.feedback_at(), None, "nothing is missing");
    assert_eq!(send(&mut receiver, at(103), rtt), Some(at(110)));
    assert_eq!(send(&mut receiver, at(105), rtt), Some(at(110)));
    assert_eq!(send(&mut receiver, at(106), MS * 32), Some(at(106)), "sooner by a shorter one");
    receiver.feedback(at(106), rtt);
    assert_eq!(send(&mut receiver, at(106), MS), Some(at(107)), "at least a millisecond");
}

#[test]
fn report_is_repeated_while_a_symbol_is_missing() {
    let mut receiver = receiver();
    push(&mut receiver, [1]);
    receiver.feedback(at(10), MS * 160);
    assert_eq!(receiver.feedback_at(), Some(at(50)), "a quarter of the round trip");
    receiver.feedback(at(10), MS * 8);
    assert_eq!(receiver.feedback_at(), Some(at(14)), "four times the shortest interval");
    receiver.set_feedback_delay(MS * 1_000);
    receiver.feedback(at(10), MS * 160);
    assert_eq!(receiver.feedback_at(), Some(at(260)), "a quarter of the relays' time");
}

#[test]
fn report_has_the_missing_ranges_and_counts() {
    let mut receiver = receiver();
    push(&mut receiver, [0, 1, 4, 4]);
    push_repair(&mut receiver, 2, 7, 2, 1);
    assert_eq!(receiver.feedback(at(2), MS).entries, [], "they may still arrive");
    let report = receiver.feedback(at(3), MS);
    let entry = RankEntry { first: 2, span: 5, missing: 3 };
    let expected = RankFeedback {
        decoded_below: 2,
        seen_end: 7,
        repair_seen: Some(33),
        coded: 5,
        wasted: 1,
        entries: vec![entry],
    };
    assert_eq!(report, expected);
}

#[test]
fn newest_repair_is_the_one_with_the_highest_sequence_number() {
    let mut receiver = receiver();
    let mut seen = |batch, column| {
        push_repair(&mut receiver, 0, 40, batch, column);
        receiver.feedback(at(2), MS).repair_seen
    };
    assert_eq!(seen(2, 1), Some(33));
    assert_eq!(seen(1, 15), Some(33));
    assert_eq!(seen(2, 2), Some(34));
    assert_eq!(seen(0x0070_0000, 0), Some(0x0700_0000));
    assert_eq!(seen(0x00e0_0000, 0), Some(0x0e00_0000));
    assert_eq!(seen(0, 3), Some((1 << 28) + 3), "batch numbers have 24 bits");
}

#[test]
fn gaps_are_reported_when_relays_had_their_time() {
    let mut receiver = receiver();
    receiver.set_feedback_delay(MS * 100);
    let missing = |receiver: &mut FlowReceiver, now| -> Vec<_> {
        receiver.feedback(at(now), MS).entries.iter().map(|entry| entry.first).collect()
    };
    push(&mut receiver, [0, 1, 3]);
    assert_eq!(missing(&mut receiver, 10), []);
    assert_eq!(missing(&mut receiver, 20), []);
    push(&mut receiver, [5]);
    assert_eq!(missing(&mut receiver, 50), []);
    assert_eq!(receiver.seen_ends.len(), 2, "one mark for each progress");
    assert_eq!(missing(&mut receiver, 109), []);
    assert_eq!(missing(&mut receiver, 110), [2]);
    assert_eq!(missing(&mut receiver, 149), [2]);
    assert_eq!(missing(&mut receiver, 150), [2, 4]);
    // Symbols that the session has not taken may still be rejected.
    assert_eq!(receiver.feedback(at(150), MS).decoded_below, 0);
    receiver.next_symbol();
    assert_eq!(receiver.feedback(at(150), MS).decoded_below, 1);
}

#[test]
fn marks_of_seen_symbols_are_limited() {
    let mut receiver = receiver();
    receiver.set_feedback_delay(MS * 1_000_000);
    for report in 0..MAX_SEEN_MARKS as u64 + 2 {
        receiver.seen_end = report + 1;
        receiver.feedback(at(report), MS);
    }
    assert_eq!(receiver.seen_ends.len(), MAX_SEEN_MARKS);
}

#[test]
fn rejected_symbol_is_missing_again() {
    let mut receiver = receiver();
    receiver.reject();
    push(&mut receiver, [0, 1, 2]);
    receiver.next_symbol();
    receiver.next_symbol();
    receiver.reject();
    assert!(!receiver.has_ready());
    assert_eq!(receiver.next_number(), 1);
    push(&mut receiver, [1]);
    assert_eq!(receiver.next_symbol(), Some(&symbol(1)[..]));
    assert_eq!(receiver.next_symbol(), Some(&symbol(2)[..]));
}

#[test]
fn symbols_under_a_repair_of_relays_are_not_from_their_own_batch() {
    let mut receiver = receiver();
    push_repair(&mut receiver, 0, 4, 0, 0);
    assert!(receiver.is_from_own_batch(0), "no relay repairs");
    receiver.set_feedback_delay(MS);
    push_repair(&mut receiver, 4, 8, 1, 0);
    let own = |receiver: &FlowReceiver, numbers: [u64; 4]| {
        numbers.map(|number| receiver.is_from_own_batch(number))
    };
    assert_eq!(own(&receiver, [3, 4, 7, 8]), [true, false, false, true]);
    for batch in 0..MAX_REPAIR_WINDOWS as u32 - 1 {
        push_repair(&mut receiver, 20, 24, batch + 2, 0);
    }
    assert_eq!(own(&receiver, [3, 4, 7, 8]), [true, false, false, true]);
    push_repair(&mut receiver, 20, 24, 1_000, 0);
    // The window is no longer known, so everything below its end may be from it.
    assert_eq!(own(&receiver, [3, 4, 7, 8]), [false, false, false, true]);
    assert_eq!(own(&receiver, [19, 20, 23, 24]), [true, false, false, true]);
}

#[test]
fn symbols_that_the_last_packet_decoded_are_taken_once() {
    let mut receiver = receiver();
    let none: [u64; 0] = [];
    push(&mut receiver, [3]);
    assert_eq!(receiver.take_fresh(), [3]);
    assert_eq!(receiver.take_fresh(), none);
    push(&mut receiver, [3]);
    assert_eq!(receiver.take_fresh(), none, "it was known");
    push_repair(&mut receiver, 0, 4, 0, 0);
    push_repair(&mut receiver, 0, 4, 0, 1);
    assert_eq!(receiver.take_fresh(), none, "one symbol is missing in addition");
    push(&mut receiver, [0]);
    assert_eq!(receiver.take_fresh(), [0, 1, 2], "the repairs give two");
    push(&mut receiver, [2_000, 5_000]);
    push_repair(&mut receiver, 1_999, 2_001, 1, 0);
    assert_eq!(receiver.take_fresh(), [1_999]);
    push_repair(&mut receiver, 3, 5, 2, 0);
    while receiver.next_symbol().is_some() {}
    assert_eq!(receiver.take_fresh(), none, "it was taken in order");
    push(&mut receiver, [4_000]);
    push_repair(&mut receiver, 3_999, 4_001, 3, 0);
    receiver.take_fresh();
    push_repair(&mut receiver, 3_999, 4_001, 4, 0);
    assert_eq!(receiver.take_fresh(), none, "a redundant packet");
}

#[test]
fn equations_are_limited_by_number_place_and_overhead() {
    let mut receiver = receiver();
    push(&mut receiver, 0..4);
    let window = |first| Window { first, count: 10 };
    let push_equation = |receiver: &mut FlowReceiver, batch: u32| {
        let header = RepairHeader { batch, column: 0, first: 4, count: 400 };
        let mut payload = vec![batch as u8; 10 + SYMBOL];
        header.encode(&mut Writer::new(&mut payload)).unwrap();
        receiver.on_packet(at(1), PacketKind::Repair, &payload, MS).unwrap();
    };
    for batch in 0..MIN_LIMITED_EQUATIONS as u32 {
        push_equation(&mut receiver, batch);
    }
    receiver.max_overhead = 0;
    assert_eq!(receiver.decoder.equations_held(), MIN_LIMITED_EQUATIONS);
    assert!(!receiver.is_overloaded(window(5)), "few equations");
    push_equation(&mut receiver, 1_000);
    assert!(receiver.is_overloaded(window(5)));
    assert!(!receiver.is_overloaded(window(4)), "the first missing symbol is covered");
    assert!(!receiver.is_overloaded(window(3)), "the first missing symbol is covered");
    receiver.max_overhead = receiver.decoder.equation_overhead();
    assert!(!receiver.is_overloaded(window(5)), "at the limit");
    receiver.max_overhead -= 1;
    assert!(receiver.is_overloaded(window(5)), "beyond it");
}

#[test]
fn decoder_limits_follow_the_budget() {
    assert_eq!(decoder_limits(64_000, 100), (640 + 512, 160));
    assert_eq!(decoder_limits(6_400, 100), (64 + 512, 64), "at least 64 equations");
    assert_eq!(decoder_limits(1 << 30, 1 << 10), ((1 << 20) + 512, MAX_EQUATIONS));
}

#[test]
fn higher_budget_raises_credit_and_overhead_and_a_lower_one_changes_nothing() {
    let mut receiver = receiver_of(0, 80_000);
    let row = padded_length(SYMBOL);
    assert_eq!(receiver.max_overhead, 10_000);
    receiver.raise_budget(8_000_000);
    receiver.raise_budget(8_000);
    assert_eq!(receiver.max_overhead, 1_000_000);
    receiver.update_credit(at(1), MS * 10, 0);
    assert_eq!(receiver.credit(), 3_500_000 / row as u64);
}

#[test]
fn credit_leaves_room_for_retained_rows_and_the_session() {
    let row = padded_length(SYMBOL);
    let mut receiver = receiver_of(50, 800_000);
    assert_eq!(receiver.credit(), 50);
    push_repair(&mut receiver, 0, 40, 0, 0);
    push_repair(&mut receiver, 0, 40, 0, 1);
    let session = 400_000;
    assert!(receiver.update_credit(at(1), MS * 10, session));
    let left = 700_000 - session - (2 + usize::from(MAX_WINDOW)) * row;
    assert_eq!(receiver.credit(), (left / row) as u64);
    assert!(!receiver.update_credit(at(1), MS * 10, session), "it was advertised");
}

#[test]
fn growth_counts_waiting_symbols_that_the_decoder_keeps() {
    let row = padded_length(SYMBOL);
    let mut receiver = receiver();
    assert_eq!(receiver.growth(), 0);
    push(&mut receiver, [9]);
    assert_eq!(receiver.growth(), 10 * row);
    push(&mut receiver, 0..5);
    while receiver.next_symbol().is_some() {}
    push(&mut receiver, [1_000]);
    assert_eq!(receiver.growth(), (usize::from(MAX_WINDOW) - 5) * row);
    assert_eq!(receiver.bytes_held(), receiver.decoder.bytes_held());
    assert!(receiver.bytes_held() >= 2 * row);
}

#[test]
fn late_symbols_widen_the_reordering_window() {
    let rtt = MS * 20;
    let mut receiver = receiver();
    let send = |receiver: &mut FlowReceiver, now, number| {
        receiver.on_packet(at(now), PacketKind::Source, &source(number), rtt).unwrap();
    };
    send(&mut receiver, 100, 1);
    receiver.feedback(at(100), rtt);
    send(&mut receiver, 104, 0);
    send(&mut receiver, 106, 4);
    for now in [106, 107, 110, 111] {
        assert_eq!(receiver.feedback(at(now), rtt).entries, [], "2 and 3 may be late as well");
    }
    assert_eq!(receiver.feedback(at(112), rtt).entries.len(), 1);
}

#[test]
fn symbols_in_order_are_not_late() {
    let rtt = MS * 20;
    let mut receiver = receiver();
    for number in 0..50 {
        let now = at(100 + number);
        receiver.on_packet(now, PacketKind::Source, &source(number), rtt).unwrap();
        receiver.feedback(now, rtt);
    }
    receiver.on_packet(at(150), PacketKind::Source, &source(51), rtt).unwrap();
    receiver.feedback(at(150), rtt);
    let entries = receiver.feedback(at(151), rtt).entries;
    assert_eq!(entries.len(), 1, "a gap is in the report after the first one");
}

#[test]
fn trimmed_receiver_keeps_no_spare_memory() {
    let mut receiver = receiver();
    receiver.seen_ends.reserve(1_000);
    receiver.trim();
    assert_eq!(receiver.seen_ends.capacity(), 0);
}

/// A sender that missed the last report makes a repair of symbols that an idle receiver has forgotten. The
/// next report names the first one that it needs.
#[test]
fn idle_receiver_forgets_symbols_and_reports_what_it_needs_next() {
    let mut receiver = receiver();
    push(&mut receiver, 0..10);
    while receiver.next_symbol().is_some() {}
    receiver.trim();
    assert_eq!(receiver.bytes_held(), 0);
    push(&mut receiver, 11..15);
    push_repair(&mut receiver, 0, 15, 0, 0);
    assert_eq!((receiver.counters().refused, receiver.has_ready()), (1, false));
    receiver.feedback(at(200), MS * 20);
    let report = receiver.feedback(at(201), MS * 20);
    assert_eq!((report.decoded_below, report.entries.len()), (10, 1));
    push_repair(&mut receiver, 10, 15, 0, 1);
    assert_eq!(receiver.next_symbol(), Some(&symbol(10)[..]));
}
