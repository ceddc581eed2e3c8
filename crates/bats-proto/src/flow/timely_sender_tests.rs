use super::*;
use crate::wire::varint::Reader;

const MS: Duration = Duration::from_millis(1);
const SYMBOL: usize = 60;
/// An expiry time that no test reaches.
const LATE: Timestamp = Timestamp::from_millis(1 << 40);

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn path(loss: f64) -> PathView {
    PathView {
        rate_bytes_per_second: 1_000_000,
        smoothed_rtt: MS * 64,
        ack_interval: MS,
        loss,
        burst_factor: 1.0,
        loss_packets: 10_000,
        queue_delay: Duration::ZERO,
    }
}

fn sender_of(goal: Option<Goal>, window_cap: u16) -> TimelySender {
    TimelySender::new(TimelyParameters { max_symbol_size: SYMBOL, window_cap, seed: 1, goal })
}

fn sender() -> TimelySender {
    sender_of(Some(Goal::Balanced), 512)
}

fn push(sender: &mut TimelySender, expires: Timestamp) {
    let number = sender.symbols();
    assert!(sender.push_symbol(SYMBOL, |bytes| {
        bytes.fill(number as u8);
        (bytes.len(), expires)
    }));
}

fn poll(sender: &mut TimelySender, now: Timestamp, path: &PathView) -> Option<PacketKind> {
    sender.poll(now, path, false, &mut Vec::new())
}

/// Sends `count` symbols at once, and drops the repairs that they require.
fn send(sender: &mut TimelySender, count: u64, now: Timestamp) {
    for _ in 0..count {
        push(sender, LATE);
        sender.due_repairs = 0.0;
        assert_eq!(poll(sender, now, &path(0.1)), Some(PacketKind::Source));
    }
    sender.due_repairs = 0.0;
}

/// The repairs due after each symbol, from the send times of all symbols.
#[derive(Default)]
struct NaiveRepairs {
    sent: Vec<Timestamp>,
    due: f64,
    waits_since: Option<Timestamp>,
    spare: SpareRate,
    limited: u64,
}

impl NaiveRepairs {
    fn on_symbol(&mut self, now: Timestamp, last: bool, goal: Goal, path: &PathView) {
        let rate = RateController::new(goal);
        self.sent.push(now);
        let within = |time| self.sent.iter().filter(|&&at| at + time > now).count() as u64;
        let waited = now - *self.waits_since.get_or_insert(now);
        if last {
            self.waits_since = None;
        }
        let share =
            if goal == Goal::Latency { self.spare.on_symbol(now, waited, path) } else { 0.0 };
        if within(path.smoothed_rtt) < 12 {
            self.due = if last { rate.thin(path) } else { self.due };
            return;
        }
        let is_limited = waited > path.smoothed_rtt;
        self.limited += u64::from(is_limited);
        let window = (64.0 * path.burst_factor) as u64;
        let each = rate.timely(window, is_limited, path) / window as f64;
        let recent = within(path.smoothed_rtt / 16);
        let most = rate.proactive(RepairClass::Tail, recent, path) / recent as f64;
        self.due += each + share * (most - each).max(0.0);
    }
}

/// Bursts of some symbols alternate with times in which the send queue is never empty, for exactly
/// a round trip or longer.
#[test]
fn repairs_follow_the_rate_of_the_goal() {
    for goal in [Goal::Latency, Goal::Balanced, Goal::Throughput] {
        let view = PathView { burst_factor: 1.5, ..path(0.2) };
        let (mut sender, mut naive) = (sender_of(Some(goal), 512), NaiveRepairs::default());
        let mut now = at(1_000);
        for step in 0..3_000_u64 {
            now += MS * [1, 1, 2, 4][step as usize % 4];
            let last = if step % 1_000 < 900 { step % 3 == 2 } else { step % 41 == 40 };
            push(&mut sender, LATE);
            let kind = sender.poll(now, &view, !last, &mut Vec::new());
            assert_eq!(kind, Some(PacketKind::Source), "step {step}");
            naive.on_symbol(now, last, goal, &view);
            let difference = (sender.due_repairs - naive.due).abs();
            assert!(difference < 1e-6, "step {step}: {} of {}", sender.due_repairs, naive.due);
            while sender.wants_to_send() {
                assert_eq!(poll(&mut sender, now, &view), Some(PacketKind::Repair));
                naive.due -= 1.0;
            }
            assert!(naive.due < 1.0);
        }
        assert!(naive.limited > 10, "{}", naive.limited);
    }
}

#[test]
fn flow_that_waits_for_longer_than_a_round_trip_is_limited() {
    let due = |waited: Duration| {
        let mut sender = sender_of(Some(Goal::Latency), 512);
        send(&mut sender, 20, at(1_000));
        let now = at(1_000);
        sender.backlog_since = Some(now);
        for _ in 0..12 {
            push(&mut sender, LATE);
            sender.due_repairs = 0.0;
            sender.poll(now + waited, &path(0.2), true, &mut Vec::new());
        }
        sender.due_repairs
    };
    let rate = RateController::new(Goal::Latency);
    let round = path(0.2).smoothed_rtt;
    assert_eq!(due(round), rate.timely(64, false, &path(0.2)) / 64.0);
    assert_eq!(due(round + MS), rate.timely(64, true, &path(0.2)) / 64.0);
}

#[test]
fn without_a_goal_nothing_is_repaired() {
    let mut sender = sender_of(None, 512);
    for ms in 0..100 {
        push(&mut sender, LATE);
        assert_eq!(poll(&mut sender, at(ms), &path(0.3)), Some(PacketKind::Source));
        assert_eq!(poll(&mut sender, at(ms), &path(0.3)), None);
    }
    assert!(sender.is_idle());
}

#[test]
fn window_grows_with_bursts_up_to_its_limits() {
    let window =
        |cap, burst_factor| sender_of(None, cap).window(&PathView { burst_factor, ..path(0.1) });
    assert_eq!([1.0, 1.5, 4.0, 9.0].map(|burst| window(512, burst)), [64, 96, 256, 256]);
    assert_eq!((window(40, 1.0), window(0, 1.0)), (40, 1));
}

#[test]
fn flow_is_thin_with_fewer_than_twelve_symbols_in_a_round_trip() {
    let mut sender = sender();
    send(&mut sender, 11, at(100));
    assert!(sender.is_thin(at(100), &path(0.1)));
    send(&mut sender, 1, at(101));
    assert!(!sender.is_thin(at(163), &path(0.1)));
    assert!(sender.is_thin(at(164), &path(0.1)), "eleven are a round trip old");
    let near = PathView { smoothed_rtt: MS, ..path(0.1) };
    assert!(!sender.is_thin(at(149), &near), "a shorter one counts as 50 ms");
    assert!(sender.is_thin(at(150), &near));
    push(&mut sender, LATE);
    assert!(!sender.is_thin(at(163), &path(0.1)), "unsent symbols do not count");
    assert!(sender.is_thin(at(164), &path(0.1)));
}

#[test]
fn message_of_a_thin_flow_is_repaired_at_its_end() {
    let mut sender = sender();
    push(&mut sender, LATE);
    push(&mut sender, LATE);
    let repairs = RateController::new(Goal::Balanced).thin(&path(0.1));
    assert_eq!(poll(&mut sender, at(1), &path(0.1)), Some(PacketKind::Source));
    assert_eq!(sender.due_repairs, 0.0, "another symbol follows");
    sender.poll(at(1), &path(0.1), true, &mut Vec::new());
    assert_eq!(sender.due_repairs, 0.0, "another symbol follows");
    push(&mut sender, LATE);
    poll(&mut sender, at(1), &path(0.1));
    assert_eq!((sender.due_repairs, sender.flush_at), (repairs, None));
    assert_eq!(repairs, 2.0);
    for _ in 0..2 {
        assert!(sender.wants_to_send() && !sender.is_idle());
        assert_eq!(poll(&mut sender, at(1), &path(0.1)), Some(PacketKind::Repair));
    }
    assert!(!sender.wants_to_send() && sender.is_idle());
    assert_eq!(poll(&mut sender, at(1), &path(0.1)), None);
    let counters = sender.counters();
    assert_eq!((counters.source_packets, counters.proactive_packets), (3, 2));
    assert_eq!((sender.unflushed, sender.unflushed_repairs), (0, 2));
}

/// Repairs are columns of consecutive batches; a thin flow's cover 32 symbols, others the window.
#[test]
fn repair_covers_the_newest_symbols() {
    let mut sender = sender();
    let mut encoder = StreamEncoder::new(SYMBOL, 1);
    send(&mut sender, 100, at(100));
    for number in 0..100 {
        encoder.push(&[number; SYMBOL]).unwrap();
    }
    let mut check = |sequence, now, first, count, batch, column| {
        sender.next_sequence = sequence;
        sender.due_repairs = 1.0;
        let mut out = Vec::new();
        assert_eq!(sender.poll(now, &path(0.1), false, &mut out), Some(PacketKind::Repair));
        let header = RepairHeader::decode(&mut Reader::new(&out)).unwrap();
        assert_eq!(header, RepairHeader { batch, column, first, count });
        let mut content = [0; SYMBOL + 2];
        let window = Window { first: u64::from(first), count };
        let len = encoder.encode(window, batch, column, &mut [&mut content[..]]).unwrap();
        assert_eq!(out[REPAIR_HEADER_LEN..], content[..len]);
        assert_eq!((sender.next_sequence, sender.due_repairs), (sequence + 1, 0.0));
    };
    check(0, at(100), 36, 64, 0, 0);
    check(5 * 16 + 3, at(100), 36, 64, 5, 3);
    check((1 << 28) + 31, at(100), 36, 64, 1, 15);
    check(7, at(10_000), 68, 32, 0, 7);
}

#[test]
fn repair_needs_a_sent_symbol_that_is_not_expired() {
    let mut sender = sender();
    sender.due_repairs = 5.0;
    assert!(!sender.wants_to_send());
    push(&mut sender, at(50));
    assert!(sender.wants_to_send(), "a symbol waits");
    assert_eq!(poll(&mut sender, at(1), &path(0.1)), Some(PacketKind::Source));
    sender.due_repairs = 0.99;
    assert!(!sender.wants_to_send());
    sender.due_repairs = 1.0;
    assert!(sender.wants_to_send());
    sender.on_timeout(at(49), &path(0.1));
    assert!(sender.wants_to_send());
    sender.on_timeout(at(50), &path(0.1));
    assert!(!sender.wants_to_send());
    assert_eq!(poll(&mut sender, at(50), &path(0.1)), None);
    assert_eq!(sender.bytes_held(), 0);
}

#[test]
fn symbols_are_kept_until_they_expire_or_no_repair_covers_them() {
    let mut sender = sender();
    send(&mut sender, MAX_WINDOW, at(1));
    assert_eq!((sender.encoder.first(), sender.kept.len()), (0, 256));
    assert_eq!(sender.bytes_held(), sender.encoder.bytes_held());
    assert!(sender.bytes_held() >= 256 * SYMBOL);
    send(&mut sender, 44, at(2));
    assert_eq!((sender.encoder.first(), sender.kept.len()), (44, 256));
    assert!(sender.kept.iter().all(|kept| kept.sent_at.is_some()));
    push(&mut sender, at(3));
    sender.on_timeout(LATE, &path(0.1));
    assert_eq!((sender.encoder.first(), sender.kept.len()), (300, 1), "it was not sent");
    sender.due_repairs = 0.0;
    assert_eq!(poll(&mut sender, LATE, &path(0.1)), Some(PacketKind::Source));
    assert_eq!((sender.encoder.first(), sender.kept.len()), (301, 0));
}

#[test]
fn timer_is_that_of_the_end_or_of_the_oldest_sent_symbol() {
    let mut sender = sender();
    assert_eq!(sender.next_timeout(), None);
    push(&mut sender, at(500));
    assert_eq!(sender.next_timeout(), None, "it was not sent");
    poll(&mut sender, at(1), &path(0.1));
    assert_eq!(sender.next_timeout(), Some(at(500)));
    send(&mut sender, 20, at(100));
    assert_eq!(sender.flush_at, Some(at(104)));
    assert_eq!(sender.next_timeout(), Some(at(104)));
    assert!(!sender.is_idle() && !sender.wants_to_send());
    sender.flush_at = Some(at(600));
    assert_eq!(sender.next_timeout(), Some(at(500)));
    sender.kept.clear();
    assert_eq!(sender.next_timeout(), Some(at(600)));
}

#[test]
fn end_of_a_flow_is_protected_once_when_no_symbols_follow() {
    let mut sender = sender();
    send(&mut sender, 40, at(100));
    assert_eq!(sender.unflushed, 40 - 11, "the first symbols were those of a thin flow");
    sender.on_timeout(at(103), &path(0.1));
    assert_eq!(sender.due_repairs, 0.0);
    sender.on_timeout(at(104), &path(0.1));
    let wanted = RateController::new(Goal::Balanced).timely_end(29, &path(0.1));
    assert_eq!(sender.due_repairs, wanted.ceil());
    assert_eq!((sender.flush_at, sender.unflushed, sender.unflushed_repairs), (None, 0, 0));
}

#[test]
fn repairs_sent_before_the_end_count_up_to_the_expected_losses() {
    let view = path(0.2);
    let due_after = |unflushed, repairs, due| {
        let mut sender = sender();
        (sender.unflushed, sender.unflushed_repairs) = (unflushed, repairs);
        sender.due_repairs = due;
        sender.flush(&view);
        sender.due_repairs
    };
    let wanted = |symbols| RateController::new(Goal::Balanced).timely_end(symbols, &view);
    assert_eq!(due_after(40, 3, 0.0), (wanted(40) - 3.0).ceil());
    assert_eq!(due_after(40, 30, 0.0), (wanted(40) - 8.0).ceil());
    assert_eq!(due_after(1_000, 100, 0.0), (wanted(64) - 12.8).ceil());
    assert_eq!(due_after(40, 0, 50.5), 51.0);
    assert_eq!(due_after(0, 0, -0.5), 0.0);
}

#[test]
fn recent_symbols_are_those_of_the_last_time() {
    let mut sender = sender();
    for ms in 0..50 {
        send(&mut sender, 1, at(100 + ms));
    }
    assert_eq!(sender.recent_symbols(at(149), MS * 10), 10);
    assert_eq!(sender.recent_symbols(at(300), MS * 10), 1, "this one at least");
    push(&mut sender, LATE);
    assert_eq!(sender.recent_symbols(at(149), MS * 10), 10, "unsent symbols do not count");
}

#[test]
fn sixteen_symbols_may_wait_to_be_sent() {
    let mut sender = sender();
    send(&mut sender, 3, at(1));
    for _ in 0..16 {
        assert!(sender.wants_symbol());
        push(&mut sender, LATE);
    }
    assert!(!sender.wants_symbol());
    assert_eq!(sender.symbols(), 19);
    sender.due_repairs = 0.0;
    poll(&mut sender, at(1), &path(0.1));
    assert!(sender.wants_symbol());
}

#[test]
fn empty_symbols_are_not_added() {
    let mut sender = sender();
    assert!(!sender.push_symbol(SYMBOL, |_| (0, LATE)));
    assert!(!sender.wants_to_send());
    assert!(sender.kept.is_empty());
    // The size is limited to that of the parameters.
    assert!(sender.push_symbol(10 * SYMBOL, |bytes| (bytes.len(), LATE)));
    let mut out = Vec::new();
    sender.poll(at(1), &path(0.1), false, &mut out);
    assert_eq!(out.len(), SOURCE_HEADER_LEN + SYMBOL);
}

#[test]
fn trimmed_sender_keeps_no_spare_memory() {
    let mut sender = sender();
    sender.kept.reserve(1_000);
    sender.trim();
    assert_eq!(sender.kept.capacity(), 0);
}

/// The receiver forgets symbols during a pause, so that later repairs must not contain them.
#[test]
fn repairs_contain_no_symbols_from_before_a_pause() {
    let (mut sender, path) = (sender(), path(0.1));
    (0..20).for_each(|_| push(&mut sender, LATE));
    sender.trim();
    assert_eq!(sender.kept.len(), 20, "they are not sent yet");
    let mut sent = Vec::new();
    let mut run = |sender: &mut TimelySender, from: u64| {
        sent.clear();
        for now in (from..from + 200).map(at) {
            sender.on_timeout(now, &path);
            let mut out = Vec::new();
            while let Some(kind) = sender.poll(now, &path, false, &mut out) {
                if kind == PacketKind::Repair {
                    sent.push(RepairHeader::decode(&mut Reader::new(&out)).unwrap().first);
                }
            }
        }
        sent.clone()
    };
    assert!(run(&mut sender, 1).iter().any(|&first| first < 10));
    sender.trim();
    assert_eq!((sender.kept.len(), sender.bytes_held(), sender.symbols()), (0, 0, 20));
    (0..3).for_each(|_| push(&mut sender, LATE));
    let repairs = run(&mut sender, 10_000);
    assert!(!repairs.is_empty() && repairs.iter().all(|&first| first >= 20), "{repairs:?}");
}
