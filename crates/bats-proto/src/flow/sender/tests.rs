use super::*;
use crate::wire::coding::RepairHeader;
use crate::wire::varint::Reader;

const SYMBOL: usize = 100;
const MS: Duration = Duration::from_millis(1);

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

/// 100 symbols in a generation of half a round trip.
fn path(loss: f64) -> PathView {
    PathView {
        rate_bytes_per_second: 1_000_000,
        smoothed_rtt: MS * 20,
        ack_interval: MS,
        loss,
        burst_factor: 1.0,
        loss_packets: 1_000,
        queue_delay: Duration::ZERO,
    }
}

fn parameters() -> SenderParameters {
    SenderParameters {
        max_symbol_size: SYMBOL,
        window_cap: 256,
        seed: 1,
        initial_credit: 10_000,
        goal: Goal::Balanced,
        budget: 1 << 20,
    }
}

fn sender() -> FlowSender {
    FlowSender::new(parameters())
}

fn push(sender: &mut FlowSender, count: u64) {
    for _ in 0..count {
        assert!(sender.push_symbol(SYMBOL, |bytes| bytes.len()));
    }
}

/// What `poll` returns: the number of a symbol, or the window of a repair.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    Source(u64),
    Repair(u32, u16),
}

fn poll_more(sender: &mut FlowSender, now: Timestamp, path: &PathView, more: bool) -> Option<Sent> {
    let mut out = Vec::new();
    let kind = sender.poll(now, path, more, &mut out)?;
    let mut reader = Reader::new(&out);
    if kind == PacketKind::Source {
        return Some(Sent::Source(SourceHeader::decode(&mut reader)?.number(0)));
    }
    let header = RepairHeader::decode(&mut reader)?;
    Some(Sent::Repair(header.first, header.count))
}

fn poll(sender: &mut FlowSender) -> Option<Sent> {
    poll_more(sender, at(100), &path(0.0), true)
}

/// Sends `count` symbols that further ones follow, and drops the repairs.
fn send(sender: &mut FlowSender, count: u64, path: &PathView) {
    for _ in 0..count {
        push(sender, 1);
        sender.queue.clear();
        assert!(matches!(poll_more(sender, at(100), path, true), Some(Sent::Source(_))));
    }
}

fn bounds(sender: &FlowSender) -> Vec<(u64, u64, bool, bool)> {
    let fields = |one: &Generation| (one.first, one.end, one.closed, one.tail);
    sender.generations.iter().map(fields).collect()
}

/// Windows of the queued repairs.
fn queued(sender: &FlowSender) -> Vec<(u64, u64)> {
    sender.queue.iter().map(|repair| (repair.first, repair.end)).collect()
}

#[test]
fn symbols_are_sent_in_order_within_the_credit() {
    let mut sender = FlowSender::new(SenderParameters { initial_credit: 3, ..parameters() });
    assert!(!sender.wants_to_send());
    assert!(sender.all_acknowledged() && !sender.awaits_decoding());
    push(&mut sender, 5);
    assert_eq!((sender.next_symbol(), sender.unsent_bytes()), (5, 500));
    assert!(!sender.all_acknowledged() && !sender.awaits_decoding());
    for number in 0..3 {
        assert!(sender.wants_to_send());
        assert_eq!(poll(&mut sender), Some(Sent::Source(number)));
    }
    assert!(!sender.wants_to_send() && sender.awaits_decoding());
    assert_eq!(poll(&mut sender), None);
    assert_eq!((sender.sent_end(), sender.unsent_bytes()), (3, 200));
    sender.on_credit(4);
    sender.on_credit(2);
    assert!(sender.wants_to_send());
    assert_eq!(poll(&mut sender), Some(Sent::Source(3)));
    assert_eq!(poll(&mut sender), None);
    assert_eq!(sender.counters().source_packets, 4);
    sender.decoded_below = 4;
    assert!(!sender.all_acknowledged() && !sender.awaits_decoding());
    sender.decoded_below = 5;
    assert!(sender.all_acknowledged());
}

#[test]
fn symbols_are_wanted_up_to_a_burst_and_to_the_budget() {
    let mut sender = sender();
    send(&mut sender, 3, &path(0.0));
    push(&mut sender, 63);
    assert!(sender.wants_symbol());
    push(&mut sender, 1);
    assert!(!sender.wants_symbol());

    let mut one = FlowSender::new(parameters());
    push(&mut one, 1);
    let held = one.bytes_held();
    assert!(held >= SYMBOL);
    one.budget = held + SYMBOL;
    assert!(one.wants_symbol());
    one.budget -= 1;
    assert!(!one.wants_symbol());
}

#[test]
fn queued_repairs_count_as_bytes_held() {
    let mut sender = sender();
    send(&mut sender, 20, &path(0.0));
    let symbols = sender.bytes_held();
    sender.make_repairs(0, 0, 20, 7, false);
    assert_eq!(sender.bytes_held(), symbols + 7 * SYMBOL);
}

#[test]
fn empty_symbols_are_not_added() {
    let mut sender = sender();
    assert!(!sender.push_symbol(SYMBOL, |_| 0));
    assert_eq!(sender.next_symbol(), 0);
    assert!(sender.push_symbol(10 * SYMBOL, |bytes| bytes.len()));
    assert_eq!(sender.encoder.symbol(0).map(<[u8]>::len), Some(SYMBOL));
}

#[test]
fn each_link_sends_the_remainder_of_a_batch() {
    let mut sender = sender();
    send(&mut sender, 5, &path(0.0));
    push(&mut sender, 40);
    let poll_on = |sender: &mut FlowSender, link| {
        sender.set_link(Some(link));
        match poll(sender) {
            Some(Sent::Source(number)) => number,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(poll_on(&mut sender, 1), 5);
    assert_eq!((sender.sent_end(), sender.unsent_bytes()), (16, (29 + 10) * SYMBOL));
    assert_eq!(poll_on(&mut sender, 2), 16);
    assert!(sender.has_assigned(1) && sender.has_assigned(2) && !sender.has_assigned(3));
    for number in 6..16 {
        assert_eq!(poll_on(&mut sender, 1), number);
    }
    assert!(!sender.has_assigned(1));
    assert_eq!(poll_on(&mut sender, 1), 32);
    for number in 33..45 {
        assert_eq!(poll_on(&mut sender, 1), number);
    }
    assert!(sender.wants_to_send(), "the other link has symbols left");
    sender.set_link(Some(1));
    assert_eq!(poll(&mut sender), None);
    sender.release_assigned(2);
    for number in 17..32 {
        assert_eq!(poll_on(&mut sender, 1), number);
    }
    assert!(!sender.wants_to_send());
    assert_eq!(poll(&mut sender), None);
    assert_eq!(bounds(&sender), [(0, 45, false, false)]);
    assert_eq!(sender.counters().source_packets, 45);
}

#[test]
fn assignment_to_a_link_ends_at_the_credit() {
    let mut sender = FlowSender::new(SenderParameters { initial_credit: 20, ..parameters() });
    push(&mut sender, 30);
    sender.set_link(Some(1));
    for number in 0..20 {
        assert_eq!(poll(&mut sender), Some(Sent::Source(number)));
    }
    assert_eq!(poll(&mut sender), None);
    assert_eq!(sender.sent_end(), 20);
}

#[test]
fn repairs_are_spread_between_the_symbols() {
    for links in [None, Some(1)] {
        let mut sender = sender();
        send(&mut sender, 20, &path(0.0));
        sender.set_link(links);
        push(&mut sender, 3);
        sender.make_repairs(0, 0, 20, 4, false);
        (sender.spread, sender.spread_step) = (0.99, 0.75);
        assert_eq!(poll(&mut sender), Some(Sent::Source(20)));
        assert_eq!(poll(&mut sender), Some(Sent::Repair(0, 20)));
        assert!((sender.spread - 0.74).abs() < 1e-9, "{}", sender.spread);
        assert_eq!(poll(&mut sender), Some(Sent::Source(21)));
        sender.spread = 1.0;
        assert_eq!(poll(&mut sender), Some(Sent::Repair(0, 20)));
        assert_eq!(sender.spread, 0.0);
        assert_eq!(poll(&mut sender), Some(Sent::Source(22)));
        // Without symbols the rest follows at once.
        assert_eq!(poll(&mut sender), Some(Sent::Repair(0, 20)));
        assert_eq!(sender.spread, 0.0);
        assert_eq!(poll(&mut sender), Some(Sent::Repair(0, 20)));
        assert_eq!(poll(&mut sender), None);
    }
}

#[test]
fn top_ups_go_before_symbols() {
    let mut sender = sender();
    send(&mut sender, 20, &path(0.0));
    push(&mut sender, 1);
    sender.make_repairs(0, 0, 20, 2, true);
    assert_eq!(poll(&mut sender), Some(Sent::Repair(0, 20)));
    assert_eq!(poll(&mut sender), Some(Sent::Repair(0, 20)));
    assert_eq!(poll(&mut sender), Some(Sent::Source(20)));
    let counters = sender.counters();
    assert_eq!((counters.top_up_packets, counters.proactive_packets), (2, 0));
}

#[test]
fn generation_lasts_half_a_round_trip_within_limits() {
    let sender = sender();
    let target = |rate_bytes_per_second, rtt| {
        let view = PathView { rate_bytes_per_second, smoothed_rtt: rtt, ..path(0.0) };
        sender.generation_target(&view)
    };
    assert_eq!(target(1_000_000, MS * 20), 100);
    assert_eq!(target(1_000_000, MS * 2), 30, "at least 3 ms");
    assert_eq!(target(0, MS * 20), 16);
    assert_eq!(target(100_000_000, MS * 20), 256);
}

#[test]
fn generations_end_at_their_target_or_with_the_data() {
    let mut sender = sender();
    send(&mut sender, 150, &path(0.0));
    assert_eq!(bounds(&sender), [(0, 100, true, false), (100, 150, false, false)]);
    push(&mut sender, 2);
    poll_more(&mut sender, at(100), &path(0.0), false);
    assert_eq!(bounds(&sender)[1], (100, 151, false, false), "another symbol follows");
    poll_more(&mut sender, at(100), &path(0.0), false);
    assert_eq!(bounds(&sender)[1], (100, 152, true, true));
    assert!(sender.queue.is_empty(), "no loss was seen");
    assert_eq!(sender.next_timeout(), None);
    let index = |symbol| sender.generation_of(symbol);
    assert_eq!([0, 99, 100, 151, 152].map(index), [Some(0), Some(0), Some(1), Some(1), None]);
    sender.generations.pop_front();
    assert_eq!([99, 100].map(|symbol| sender.generation_of(symbol)), [None, Some(0)]);
}

#[test]
fn fractions_of_repairs_are_kept_for_the_next_generation() {
    let view = path(0.0123);
    let mut sender = sender();
    let wanted = RateController::new(Goal::Balanced).proactive(RepairClass::Bulk, 100, &view);
    let mut total: f64 = 0.5;
    for generation in 1..20 {
        send(&mut sender, 100, &view);
        let count = (total + wanted).floor();
        total = (total + wanted).fract();
        assert_eq!(sender.queue.len(), count as usize, "generation {generation}");
        assert_eq!(sender.spread_step, count / 100.0);
        let end = 100 * generation;
        assert!(queued(&sender).iter().all(|&window| window == (end - 100, end)));
    }
    assert!((sender.repair_remainder - total).abs() < 1e-9);
    send(&mut sender, 100, &path(0.0));
    assert_eq!((sender.repair_remainder, sender.spread_step), (0.5, 0.0));
}

#[test]
fn end_of_the_data_gets_the_repairs_of_the_tail() {
    let view = path(0.1);
    let mut sender = sender();
    send(&mut sender, 49, &view);
    push(&mut sender, 1);
    poll_more(&mut sender, at(100), &view, false);
    let wanted = RateController::new(Goal::Balanced).proactive(RepairClass::Tail, 50, &view);
    assert_eq!(queued(&sender), vec![(0, 50); wanted.ceil() as usize]);
}

/// Messages of one symbol each, which are repaired together with up to 31 earlier ones as far as
/// the limit for thin flows allows.
#[test]
fn message_of_a_thin_flow_is_repaired_at_once() {
    let view = PathView { rate_bytes_per_second: 0, ..path(0.1) };
    let mut sender = FlowSender::new(SenderParameters { max_symbol_size: 1_000, ..parameters() });
    let mut naive = ThinFlow::default();
    let wanted = RateController::new(Goal::Balanced).proactive(RepairClass::Tail, 1, &view);
    let size_of = |message: u64| 400 + message as usize * 37 % 600;
    let mut limited = 0;
    for message in 0..60_u64 {
        let now = at(100 + 5 * message);
        let size = size_of(message);
        assert!(sender.push_symbol(size, |bytes| bytes.len()));
        sender.queue.clear();
        poll_more(&mut sender, now, &view, false);
        let first = (message + 1).saturating_sub(32);
        let longest = (first..=message).map(size_of).max().unwrap();
        let bytes = longest + REPAIR_HEADER_LEN;
        let count = naive.allow(now, wanted.ceil().max(2.0) as u64, bytes, &view);
        limited += u64::from(count < wanted.ceil() as u64);
        assert_eq!(queued(&sender), vec![(first, message + 1); count as usize], "{message}");
        assert_eq!(bounds(&sender).last(), Some(&(message, message + 1, true, true)));
    }
    assert!(limited > 10, "{limited}");
    // Decoded symbols need no repair.
    sender.decoded_below = 50;
    sender.queue.clear();
    push(&mut sender, 2);
    poll_more(&mut sender, at(1_000), &view, false);
    poll_more(&mut sender, at(1_000), &view, false);
    assert!(queued(&sender).iter().all(|&window| window == (50, 62)), "{:?}", queued(&sender));
    assert!(queued(&sender).len() >= 2);
}

#[test]
fn steady_flow_shares_repairs_of_its_newest_symbols() {
    let view = PathView { smoothed_rtt: MS * 16, ..path(0.1) };
    let mut sender = sender();
    send(&mut sender, 100, &view);
    sender.queue.clear();
    let rate = RateController::new(Goal::Balanced);
    let mut naive = SteadyFlow::default();
    for _ in 0..100 {
        naive.on_symbol(at(100));
    }
    let mut now = at(100);
    let mut repairs = 0;
    for message in 0..50_u64 {
        now += Duration::from_micros(200);
        push(&mut sender, 1);
        sender.queue.clear();
        poll_more(&mut sender, now, &view, false);
        naive.on_symbol(now);
        let end = 101 + message;
        let generation = bounds(&sender).last().copied().unwrap();
        assert_eq!(generation, (generation.0, end, true, true));
        let symbols = generation.1 - generation.0;
        if let Some(count) = naive.on_emptied(now, symbols, rate, &view) {
            assert_eq!(queued(&sender), vec![(end - 64, end); count as usize], "{message}");
            repairs += count;
        }
    }
    assert!(repairs > 10, "{repairs}");
    sender.queue.clear();
    let end = sender.next_timeout().expect("the end of the flow is repaired");
    assert_eq!(Some(end), naive.next_timeout());
    sender.on_timeout(now);
    assert!(sender.queue.is_empty());
    sender.on_timeout(end);
    assert_eq!(queued(&sender), vec![(86, 150); naive.on_timeout(end) as usize]);
    assert!(!sender.queue.is_empty());
}

#[test]
fn newest_symbols_are_repaired_only_if_some_are_not_decoded() {
    let mut sender = sender();
    send(&mut sender, 100, &path(0.0));
    sender.repair_recent(0);
    assert_eq!((sender.queue.len(), sender.generations[0].reach), (0, 0));
    sender.decoded_below = 100;
    sender.generations[0].reach = 77;
    sender.repair_recent(3);
    assert_eq!((sender.queue.len(), sender.generations[0].reach), (0, 77));
    sender.decoded_below = 99;
    sender.generations[0].first = 50;
    sender.repair_recent(3);
    assert_eq!((queued(&sender), sender.spread), (vec![(99, 100); 3], 3.0));
    assert_eq!(sender.generations[0].reach, 50);
    sender.decoded_below = 0;
    sender.repair_recent(1);
    assert_eq!((queued(&sender)[3], sender.spread), ((36, 100), 4.0));
    assert_eq!(sender.generations[0].reach, 36);
}

#[test]
fn trimmed_sender_keeps_no_spare_memory() {
    let mut sender = sender();
    push(&mut sender, 1);
    sender.spare.push(vec![0; 10]);
    sender.queue.reserve(1_000);
    sender.trim();
    assert_eq!((sender.symbol.capacity(), sender.queue.capacity()), (0, 0));
    assert!(sender.spare.is_empty());
}
