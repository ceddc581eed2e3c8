use core::time::Duration;

use bats_code::stream::{StreamEncoder, Window};
use proptest::prelude::*;

use super::*;
use crate::wire::coding::RepairHeader;
use crate::wire::varint::Writer;

const SYMBOL: usize = 60;
const SEED: u64 = 1;

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn receiver() -> TimelyReceiver {
    TimelyReceiver::new(SYMBOL, SEED)
}

fn symbol(number: u64) -> Vec<u8> {
    vec![number as u8; SYMBOL]
}

fn push(receiver: &mut TimelyReceiver, now: Timestamp, number: u64) {
    let mut payload = vec![0; 4];
    SourceHeader::new(number).encode(&mut Writer::new(&mut payload)).unwrap();
    payload.extend_from_slice(&symbol(number));
    receiver.on_packet(now, PacketKind::Source, &payload).unwrap();
}

/// Receives a repair over the symbols from `first` to `end`.
fn push_repair(receiver: &mut TimelyReceiver, now: Timestamp, first: u64, end: u64, column: u8) {
    let mut payload = vec![0; 10 + SYMBOL];
    let header =
        RepairHeader { batch: 0, column, first: first as u32, count: (end - first) as u16 };
    if end < 10_000 {
        let mut encoder = StreamEncoder::new(SYMBOL, SEED);
        for number in 0..end {
            encoder.push(&symbol(number)).unwrap();
        }
        let window = Window { first, count: header.count };
        let len = encoder.encode(window, 0, column, &mut [&mut payload[10..]]).unwrap();
        assert_eq!(len, SYMBOL);
    }
    header.encode(&mut Writer::new(&mut payload)).unwrap();
    receiver.on_packet(now, PacketKind::Repair, &payload).unwrap();
}

fn taken(receiver: &mut TimelyReceiver) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let Some((number, bytes)) = receiver.next_symbol() {
        assert_eq!(bytes, symbol(number));
        numbers.push(number);
    }
    assert!(!receiver.has_ready());
    numbers
}

proptest! {
    /// Whatever arrives, is taken or is given up: symbols are missing as long as one of them was not delivered.
    #[test]
    fn missing_symbols_are_counted(
        steps in prop::collection::vec((0_u8..6, 0_u64..1_500, 1_u64..6), 1..60)
    ) {
        let mut receiver = receiver();
        let mut next = 0;
        for (step, far, near) in steps {
            match step {
                0 => (next..next + near).for_each(|number| push(&mut receiver, at(1), number)),
                1 => push(&mut receiver, at(1), next.saturating_sub(near)),
                2 => push(&mut receiver, at(1), next + far),
                3 => push_repair(&mut receiver, at(1), next.saturating_sub(near), next + 1, 1),
                4 => receiver.finish(next + near),
                _ => receiver.trim(),
            }
            next = receiver.seen_end();
            let missing = receiver.slots.iter().filter(|slot| !slot.delivered).count();
            prop_assert_eq!(receiver.missing, missing);
            prop_assert_eq!(receiver.has_all_below(next), missing == 0);
            prop_assert!(!receiver.has_all_below(next + 1));
        }
    }
}

#[test]
fn symbols_are_delivered_once_in_the_order_of_arrival() {
    let mut receiver = receiver();
    assert!(!receiver.has_ready() && receiver.has_all_below(0));
    for number in [0, 3, 1, 3] {
        push(&mut receiver, at(1), number);
    }
    assert!(receiver.has_ready());
    assert_eq!(taken(&mut receiver), [0, 3, 1]);
    assert_eq!(receiver.seen_end(), 4);
    assert!(!receiver.has_all_below(1));
    push(&mut receiver, at(1), 2);
    assert!(receiver.has_all_below(4) && !receiver.has_all_below(5));
    let counters = receiver.counters();
    assert_eq!((counters.coded_received, counters.wasted, counters.refused), (5, 1, 0));
    assert!(receiver.bytes_held() >= 4 * SYMBOL);
}

#[test]
fn repairs_deliver_symbols_and_their_delay_is_measured() {
    let mut receiver = receiver();
    push(&mut receiver, at(1), 0);
    push(&mut receiver, at(10), 2);
    push(&mut receiver, at(20), 4);
    push_repair(&mut receiver, at(25), 0, 5, 0);
    assert_eq!(taken(&mut receiver), [0, 2, 4]);
    push_repair(&mut receiver, at(30), 0, 5, 1);
    assert_eq!(taken(&mut receiver), [1, 3]);
    let expected = ResidualStats {
        symbols_repaired: 2,
        repair_delay: Duration::from_millis(20 + 10),
        longest_repair_delay: Duration::from_millis(20),
        ..ResidualStats::default()
    };
    assert_eq!(receiver.residual(), expected);
    let counters = receiver.counters();
    assert_eq!((counters.coded_received, counters.wasted, counters.refused), (5, 0, 0));
    assert_eq!(counters.symbols_decoded, 2);
    push_repair(&mut receiver, at(30), 0, 5, 2);
    assert_eq!(receiver.counters().wasted, 1);
}

#[test]
fn symbols_far_behind_the_newest_are_given_up() {
    let mut receiver = receiver();
    push(&mut receiver, at(1), 1);
    push(&mut receiver, at(1), HISTORY);
    assert_eq!((receiver.base, receiver.residual().symbols_lost), (1, 1));
    assert_eq!(receiver.slots.len() as u64, HISTORY);
    push(&mut receiver, at(1), HISTORY + 2);
    assert_eq!((receiver.base, receiver.residual().symbols_lost), (3, 2));
    assert_eq!(taken(&mut receiver), [HISTORY, HISTORY + 2], "symbol 1 was not taken in time");
    push(&mut receiver, at(1), 2);
    push_repair(&mut receiver, at(1), 2, 6, 0);
    let counters = receiver.counters();
    assert_eq!((counters.coded_received, counters.refused), (5, 2));
    push_repair(&mut receiver, at(1), 3, 6, 0);
    push(&mut receiver, at(1), 3);
    assert_eq!(receiver.counters().refused, 2, "symbol 3 is the oldest that is wanted");
    assert_eq!(taken(&mut receiver), [3]);
    // A jump beyond everything that is known: the symbols between were never seen.
    push(&mut receiver, at(1), 5_000);
    assert_eq!(receiver.base, 5_001 - HISTORY);
    assert_eq!(receiver.residual().symbols_lost, 5_001 - HISTORY - 4);
    assert_eq!(receiver.seen_end(), 5_001);
    assert_eq!(taken(&mut receiver), [5_000]);
}

#[test]
fn jumps_of_the_numbers_are_limited() {
    let mut receiver = receiver();
    push(&mut receiver, at(1), 9);
    push(&mut receiver, at(1), 10 + MAX_JUMP);
    push_repair(&mut receiver, at(1), MAX_JUMP, 11 + MAX_JUMP, 0);
    assert_eq!((receiver.seen_end(), receiver.counters().refused), (10, 2));
    push(&mut receiver, at(1), 9 + MAX_JUMP);
    assert_eq!((receiver.seen_end(), receiver.counters().refused), (10 + MAX_JUMP, 2));
    let mut other = self::receiver();
    push(&mut other, at(1), 9);
    push_repair(&mut other, at(1), MAX_JUMP, 10 + MAX_JUMP, 0);
    assert_eq!((other.seen_end(), other.counters().refused), (10 + MAX_JUMP, 0));
}

#[test]
fn symbols_missing_at_the_end_of_the_flow_are_lost() {
    let mut receiver = receiver();
    push(&mut receiver, at(1), 0);
    push(&mut receiver, at(1), 2);
    receiver.finish(6);
    assert_eq!((receiver.seen_end(), receiver.residual().symbols_lost), (6, 4));
    assert!(receiver.has_all_below(6));
    receiver.finish(6);
    assert_eq!(receiver.residual().symbols_lost, 4);
    receiver.finish(u64::MAX);
    assert_eq!(receiver.seen_end(), 6 + MAX_JUMP);
    assert_eq!(receiver.residual().symbols_lost, 4 + MAX_JUMP);
}

#[test]
fn memory_is_bounded_by_the_history_and_the_equations() {
    assert_eq!(TimelyReceiver::bound(SYMBOL), 3_072 * padded_length(SYMBOL));
    let mut receiver = receiver();
    receiver.slots.reserve(1_000);
    receiver.trim();
    assert_eq!(receiver.slots.capacity(), 0);
}

#[test]
fn idle_receiver_gives_up_missing_symbols_and_keeps_those_not_taken() {
    let mut receiver = receiver();
    [0, 1, 3, 5].into_iter().for_each(|number| push(&mut receiver, at(1), number));
    receiver.trim();
    assert_eq!((receiver.residual().symbols_lost, taken(&mut receiver)), (0, vec![0, 1, 3, 5]));
    receiver.trim();
    assert_eq!((receiver.residual().symbols_lost, receiver.bytes_held()), (2, 0));
    [2, 4, 6].into_iter().for_each(|number| push(&mut receiver, at(9_000), number));
    assert_eq!((receiver.counters().refused, receiver.seen_end()), (2, 7));
    assert_eq!((taken(&mut receiver), receiver.residual().symbols_lost), (vec![6], 2));
    push(&mut receiver, at(9_000), 8);
    push_repair(&mut receiver, at(9_001), 6, 9, 0);
    assert_eq!(taken(&mut receiver), [8, 7]);
}
