use core::time::Duration;

use bats_code::stream::StreamEncoder;

use super::super::{Generation, SenderParameters};
use super::*;
use crate::config::Goal;
use crate::wire::rank::RankEntry;
use crate::wire::varint::Reader;

const SYMBOL: usize = 100;
const MS: Duration = Duration::from_millis(1);

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

/// Without loss, a missing rank needs as many repairs. They are in flight for 24.5 ms.
fn path() -> PathView {
    PathView {
        rate_bytes_per_second: 1_000_000,
        smoothed_rtt: MS * 20,
        ack_interval: MS,
        loss: 0.0,
        burst_factor: 1.0,
        loss_packets: 1_000,
        queue_delay: Duration::ZERO,
    }
}

/// A sender that has sent the symbols of closed generations with these ends.
fn sender(ends: &[u64]) -> FlowSender {
    let mut sender = FlowSender::new(SenderParameters {
        max_symbol_size: SYMBOL,
        window_cap: 64,
        seed: 1,
        initial_credit: 10_000,
        goal: Goal::Balanced,
        budget: 1 << 20,
    });
    let mut first = 0;
    for &end in ends {
        for number in first..end {
            assert!(sender.push_symbol(SYMBOL, |bytes| {
                bytes.fill(number as u8);
                bytes.len()
            }));
        }
        sender.generations.push_back(Generation {
            first,
            end,
            closed: true,
            tail: false,
            rounds: 0,
            missing: 0,
            reach: first,
            repairs: VecDeque::new(),
        });
        first = end;
    }
    sender.next_unsent = first;
    sender
}

fn report(decoded_below: u64, seen_end: u64, ranges: &[(u64, u64, u64)]) -> RankFeedback {
    let entry = |&(first, span, missing): &(u64, u64, u64)| RankEntry { first, span, missing };
    let entries = ranges.iter().map(entry).collect();
    RankFeedback { decoded_below, seen_end, entries, ..RankFeedback::default() }
}

fn answer(sender: &mut FlowSender, feedback: &RankFeedback) {
    sender.on_rank_feedback(at(1_000), feedback, &path()).unwrap();
}

/// Windows of the queued repairs, and how many have it.
fn windows(sender: &FlowSender) -> Vec<(u64, u64, usize)> {
    let mut windows: Vec<(u64, u64, usize)> = Vec::new();
    for repair in &sender.queue {
        match windows.last_mut() {
            Some(last) if (last.0, last.1) == (repair.first, repair.end) => last.2 += 1,
            _ => windows.push((repair.first, repair.end, 1)),
        }
    }
    windows
}

#[test]
fn repairs_are_columns_of_batches() {
    let mut sender = sender(&[32]);
    sender.next_batch = (1 << 24) - 1;
    sender.make_repairs(0, 0, 32, 20, true);
    sender.make_repairs(0, 0, 32, 1, false);
    let queued: Vec<_> =
        sender.queue.iter().map(|repair| (repair.sequence, repair.batch, repair.column)).collect();
    let start = (1 << 28) - 16;
    let mut expected: Vec<_> =
        (0..16).map(|column| (start + u64::from(column), 0x00ff_ffff, column)).collect();
    expected.extend((0..4).map(|column| (start + 16 + u64::from(column), 0, column)));
    expected.push((start + 32, 1, 0));
    assert_eq!(queued, expected);
    assert_eq!((sender.urgent, sender.next_batch), (20, (1 << 24) + 2));
    let in_flight: Vec<_> = sender.generations[0].repairs.iter().copied().collect();
    assert_eq!(in_flight, expected.iter().map(|one| (one.0, None)).collect::<Vec<_>>());
    sender.make_repairs(0, 32, 32, 5, false);
    assert_eq!(sender.queue.len(), 21, "there is nothing to repair");
}

#[test]
fn number_of_queued_repairs_follows_the_budget() {
    let mut sender = sender(&[32]);
    let mut limit = |budget| {
        sender.budget = budget;
        sender.max_repairs()
    };
    assert_eq!([0, 40_000, 400_000_000].map(&mut limit), [64, 100, 1_024]);
    sender.budget = 40_000;
    sender.make_repairs(0, 0, 32, 90, false);
    sender.make_repairs(0, 0, 32, 90, false);
    assert_eq!(sender.queue.len(), 100);
}

#[test]
fn sent_repairs_have_the_columns_of_the_code() {
    let mut sender = sender(&[32]);
    let mut encoder = StreamEncoder::new(SYMBOL, 1);
    for number in 0..32 {
        encoder.push(&[number; SYMBOL]).unwrap();
    }
    sender.make_repairs(0, 4, 20, 18, false);
    sender.make_repairs(0, 0, 32, 2, true);
    let mut out = Vec::new();
    for index in 0..20_u32 {
        let now = at(u64::from(index));
        out.clear();
        assert_eq!(sender.send_repair(now, &mut out), Some(PacketKind::Repair));
        let header = RepairHeader::decode(&mut Reader::new(&out)).unwrap();
        let (batch, first, count) = match index {
            0..16 => (0, 4, 16),
            16..18 => (1, 4, 16),
            _ => (2, 0, 32),
        };
        let column = if batch == 2 { index - 18 } else { index % 16 } as u8;
        assert_eq!(header, RepairHeader { batch, column, first, count });
        let mut content = [0; SYMBOL + 2];
        let window = Window { first: u64::from(first), count };
        let len = encoder.encode(window, batch, column, &mut [&mut content[..]]).unwrap();
        assert_eq!(out[REPAIR_HEADER_LEN..], content[..len]);
        let sent = sender.generations[0].repairs[index as usize];
        assert_eq!(sent, (u64::from(batch) * 16 + u64::from(column), Some(now)));
    }
    out.clear();
    assert_eq!(sender.send_repair(at(1), &mut out), None);
    let counters = sender.counters();
    assert_eq!((counters.proactive_packets, counters.top_up_packets), (18, 2));
    assert_eq!(sender.urgent, 0);
}

#[test]
fn buffers_of_sent_repairs_are_reused() {
    let mut sender = sender(&[32]);
    sender.make_repairs(0, 0, 32, 3, false);
    sender.spare = vec![Vec::new(); MAX_SPARE_BUFFERS + 1];
    let mut spare = Vec::new();
    for _ in 0..3 {
        sender.send_repair(at(1), &mut Vec::new()).unwrap();
        spare.push(sender.spare.len());
    }
    assert_eq!(spare, [MAX_SPARE_BUFFERS - 1, MAX_SPARE_BUFFERS, MAX_SPARE_BUFFERS]);
}

#[test]
fn repair_leaves_out_symbols_that_were_released_meanwhile() {
    let mut sender = sender(&[32]);
    sender.make_repairs(0, 0, 20, 2, false);
    sender.encoder.release_below(8);
    let mut out = Vec::new();
    for column in 0..2 {
        out.clear();
        sender.send_repair(at(1), &mut out).unwrap();
        let header = RepairHeader::decode(&mut Reader::new(&out)).unwrap();
        assert_eq!(header, RepairHeader { batch: 0, column, first: 8, count: 12 });
    }
    sender.make_repairs(0, 0, 20, 1, false);
    assert_eq!(sender.queue[0].first, 8);
    sender.encoder.release_below(20);
    out.clear();
    assert_eq!(sender.send_repair(at(1), &mut out), None, "nothing is left of its window");
    assert_eq!(sender.generations[0].repairs.len(), 2);
}

#[test]
fn reports_about_symbols_that_were_not_sent_are_errors() {
    let mut sender = sender(&[32]);
    let mut reply = |report| sender.on_rank_feedback(at(1), &report, &path());
    assert_eq!(reply(report(0, 33, &[])), Err(FlowError::NotSent(32)));
    assert_eq!(reply(report(0, 20, &[(10, 11, 1)])), Err(FlowError::NotSent(20)));
    assert_eq!(reply(report(0, 20, &[(10, 10, 11)])), Err(FlowError::Malformed));
    assert_eq!(reply(report(0, 32, &[(10, 10, 10)])), Ok(()));
    assert_eq!(reply(report(0, 32, &[(10, 22, 1)])), Ok(()));
}

#[test]
fn decoded_symbols_are_released_with_their_generation() {
    let mut sender = sender(&[16, 32, 48]);
    let state = |sender: &FlowSender| {
        (sender.generations.len(), sender.encoder.first(), sender.decoded_below, sender.seen_end)
    };
    let mut first = report(15, 40, &[]);
    (first.coded, first.wasted) = (50, 5);
    answer(&mut sender, &first);
    assert_eq!(state(&sender), (3, 0, 15, 40));
    answer(&mut sender, &report(16, 30, &[]));
    assert_eq!(state(&sender), (2, 16, 16, 40));
    answer(&mut sender, &report(15, 48, &[(15, 1, 1)]));
    assert_eq!(state(&sender), (2, 16, 16, 40), "a report that was overtaken");
    assert!(sender.queue.is_empty());
    sender.generations[1].closed = false;
    answer(&mut sender, &report(48, 48, &[]));
    assert_eq!(state(&sender), (1, 32, 48, 48), "the last generation is open");
    assert_eq!((sender.counters().peer_coded, sender.counters().peer_wasted), (50, 5));
    sender.generations[0].closed = true;
    answer(&mut sender, &report(48, 48, &[]));
    assert_eq!(state(&sender), (0, 48, 48, 48));
}

#[test]
fn fully_missing_range_is_repaired_in_each_generation() {
    let mut sender = sender(&[16, 32, 48]);
    answer(&mut sender, &report(4, 48, &[(4, 30, 30)]));
    assert_eq!(windows(&sender), [(4, 16, 12), (16, 32, 16), (32, 34, 2)]);
    assert_eq!(sender.urgent, 30);
}

#[test]
fn range_that_ends_with_a_generation_needs_nothing_from_the_next() {
    let mut sender = sender(&[16, 32]);
    answer(&mut sender, &report(4, 32, &[(4, 12, 12)]));
    assert_eq!(windows(&sender), [(4, 16, 12)]);
    assert_eq!(sender.generations[1].rounds, 0);
}

#[test]
fn linked_range_is_repaired_as_a_whole_up_to_the_longest_window() {
    let mut sender = sender(&[16, 128]);
    answer(&mut sender, &report(4, 128, &[(4, 20, 5)]));
    assert_eq!(windows(&sender), [(4, 24, 5)]);
    sender.queue.clear();
    sender.generations[0].repairs.clear();
    answer(&mut sender, &report(4, 128, &[(4, 100, 5)]));
    assert_eq!(windows(&sender), [(4, 68, 5)]);
}

#[test]
fn missing_ranges_of_a_generation_are_repaired_together() {
    let mut sender = sender(&[16, 32]);
    answer(&mut sender, &report(4, 32, &[(4, 2, 2), (8, 4, 1), (14, 6, 6)]));
    assert_eq!(windows(&sender), [(4, 16, 5)]);
    let mut next = self::sender(&[16, 32]);
    answer(&mut next, &report(4, 32, &[(4, 2, 2), (8, 3, 1), (16, 3, 3)]));
    assert_eq!(windows(&next), [(4, 11, 3), (16, 19, 3)]);
}

#[test]
fn open_generation_gets_its_repairs_when_it_is_complete() {
    let mut sender = sender(&[16]);
    sender.generations[0].closed = false;
    answer(&mut sender, &report(4, 16, &[(4, 2, 2)]));
    assert!(sender.queue.is_empty());
}

/// Repairs queued by a report of five missing symbols.
fn topped_up(now: Timestamp, repair_seen: Option<u64>, change: fn(&mut FlowSender)) -> usize {
    let mut sender = sender(&[16, 32, 48]);
    sender.generations[0].repairs =
        [(10, Some(at(100))), (11, None), (12, Some(at(110)))].into_iter().collect();
    change(&mut sender);
    let report = RankFeedback { repair_seen, ..report(4, 48, &[(4, 5, 5)]) };
    sender.on_rank_feedback(now, &report, &path()).unwrap();
    sender.queue.len()
}

#[test]
fn repairs_in_flight_are_not_requested_again() {
    let lost = at(100) + Duration::from_micros(24_500);
    let before = lost.saturating_sub(Duration::from_nanos(1));
    assert_eq!(topped_up(before, None, |_| {}), 2);
    assert_eq!(topped_up(lost, None, |_| {}), 3, "one is older than a round trip");
    assert_eq!(topped_up(before, Some(10), |_| {}), 3);
    assert_eq!(topped_up(before, Some(11), |_| {}), 4);
    assert_eq!(topped_up(before, Some(12), |_| {}), 5);
}

#[test]
fn repairs_of_later_generations_that_reach_back_count_as_in_flight() {
    let lost = at(100) + Duration::from_micros(24_500);
    let before = lost.saturating_sub(Duration::from_nanos(1));
    let reaching = |sender: &mut FlowSender| {
        sender.generations[0].repairs.clear();
        sender.generations[1].reach = 4;
        sender.generations[1].repairs = [(20, Some(at(100))), (21, None)].into_iter().collect();
    };
    assert_eq!(topped_up(before, None, reaching), 3);
    assert_eq!(topped_up(lost, None, reaching), 4);
    assert_eq!(topped_up(before, Some(20), reaching), 4);
    assert_eq!(topped_up(before, Some(21), reaching), 5);
    let not_so_far = |sender: &mut FlowSender| {
        sender.generations[0].repairs.clear();
        sender.generations[1].reach = 5;
        sender.generations[1].repairs = [(21, None)].into_iter().collect();
        sender.generations[2].reach = 0;
        sender.generations[2].repairs = [(22, None)].into_iter().collect();
    };
    assert_eq!(topped_up(before, None, not_so_far), 5);
}

#[test]
fn round_ends_when_no_repair_is_in_flight() {
    let mut sender = sender(&[16]);
    let missing = report(4, 16, &[(4, 5, 5)]);
    for (report, rounds) in [(1, 1), (2, 1), (3, 1)] {
        answer(&mut sender, &missing);
        assert_eq!(sender.generations[0].rounds, rounds, "report {report}");
        assert_eq!(sender.queue.len(), 5);
    }
    sender.generations[0].repairs.clear();
    answer(&mut sender, &missing);
    assert_eq!((sender.generations[0].rounds, sender.queue.len()), (2, 10));
}

#[test]
fn queued_repairs_of_decoded_symbols_are_dropped() {
    let mut sender = sender(&[16, 32]);
    sender.make_repairs(0, 0, 16, 3, true);
    sender.make_repairs(16, 16, 32, 2, true);
    answer(&mut sender, &report(15, 32, &[]));
    assert_eq!(sender.queue.len(), 5);
    answer(&mut sender, &report(16, 32, &[]));
    assert_eq!((windows(&sender), sender.urgent), (vec![(16, 32, 2)], 2));
}

#[test]
fn all_that_was_not_reported_is_repaired_after_the_loss_of_a_path() {
    let mut sender = sender(&[8, 16, 30]);
    sender.generations[2].closed = false;
    sender.seen_end = 8;
    sender.generations[1].repairs = [(5, Some(at(1))), (6, None)].into_iter().collect();
    // They do not cover the end of the first generation.
    sender.generations[1].reach = 9;
    sender.on_path_lost(at(2), &path(), false);
    assert_eq!(windows(&sender), [(8, 16, 7), (16, 30, 14)]);
    assert!(sender.generations[2].closed && sender.generations[2].tail);
    assert!(!sender.generations[1].tail);
    let rounds: Vec<_> = sender.generations.iter().map(|one| one.rounds).collect();
    assert_eq!(rounds, [0, 0, 1], "the first was reported, the second has a repair in flight");
}

#[test]
fn what_was_reported_missing_is_repaired_again_after_the_loss_of_a_path() {
    let mut sender = sender(&[16, 32, 40]);
    sender.on_rank_feedback(at(1), &report(2, 20, &[(2, 3, 2), (9, 1, 1)]), &path()).unwrap();
    let mut out = Vec::new();
    while sender.send_repair(at(1), &mut out).is_some() {}
    sender.on_path_lost(at(2), &path(), false);
    assert_eq!(windows(&sender), [(2, 16, 3), (20, 32, 12), (32, 40, 8)], "the oldest first");
    while sender.send_repair(at(2), &mut out).is_some() {}
    sender.on_rank_feedback(at(3), &report(16, 32, &[]), &path()).unwrap();
    sender.on_path_lost(at(4), &path(), false);
    assert_eq!(windows(&sender), [(32, 40, 8)], "the newest report counts");
}

#[test]
fn oldest_symbols_are_repaired_one_by_one_before_an_address_is_validated() {
    let mut sender = sender(&[40, 80, 90]);
    sender.seen_end = 2;
    sender.on_path_lost(at(2), &path(), true);
    let mut expected: Vec<_> = (2..66).map(|symbol| (symbol, symbol + 1, 1)).collect();
    expected.push((40, 80, 14));
    expected.push((80, 90, 10));
    assert_eq!(windows(&sender), expected);
}

#[test]
fn probe_repairs_the_oldest_and_the_newest_generation() {
    let mut none = sender(&[]);
    assert!(!none.on_probe_timeout(10));
    let mut sender = sender(&[16, 32, 48]);
    sender.decoded_below = 3;
    sender.generations[2].closed = false;
    sender.generations[0].repairs.push_back((99, None));
    sender.generations[2].repairs.push_back((99, None));
    assert!(sender.on_probe_timeout(0));
    assert_eq!(windows(&sender), [(3, 16, 1), (32, 48, 1)]);
    assert_eq!(sender.urgent, 2);
    assert!(sender.generations[2].closed && sender.generations[2].tail);
    assert_eq!(sender.generations.iter().map(|one| one.repairs.len()).sum::<usize>(), 2);
    assert!(sender.on_probe_timeout(0), "the probe is still to be sent");
    assert_eq!(sender.queue.len(), 2);
}

#[test]
fn probes_of_a_single_generation_are_two_repairs() {
    let mut sender = sender(&[16]);
    assert!(sender.on_probe_timeout(2));
    assert_eq!(windows(&sender), [(0, 16, 2)]);
    assert!(!sender.generations[0].tail, "it was complete before");
}

#[test]
fn further_probes_fill_a_blackout() {
    let mut sender = sender(&[3, 6, 9]);
    sender.decoded_below = 1;
    assert!(sender.on_probe_timeout(9));
    assert_eq!(windows(&sender), [(1, 3, 1), (6, 9, 1), (1, 3, 2), (3, 6, 3), (6, 9, 2)]);
}
