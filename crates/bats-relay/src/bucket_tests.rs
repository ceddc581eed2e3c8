//! Token buckets at their exact times.

use core::num::NonZeroU64;
use core::time::Duration;
use std::collections::BTreeSet;

use bats_types::Timestamp;
use bats_wire::flow::FlowKey;

use super::rate_limit::{LimitGroup, RateLimit, RateLimits};
use super::tests::{KEY, NOW, view};

const GROUP: LimitGroup = LimitGroup(1);
const NANOSECOND: Duration = Duration::from_nanos(1);

/// A byte takes 8 us at the rate of 1 Mbit/s.
fn limits(bits_per_second: u64) -> RateLimits {
    let mut limits = RateLimits::default();
    let bits_per_second = NonZeroU64::new(bits_per_second).unwrap();
    limits.set(RateLimit { bits_per_second, group: GROUP });
    limits
}

fn is_open(limits: &RateLimits, now: Timestamp, flow: u32) -> bool {
    limits.of(FlowKey { flow, ..KEY }).is_open(now, Some(GROUP))
}

fn flow(flow: u32) -> FlowKey {
    FlowKey { flow, ..KEY }
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Three packets of 1,500 bytes, or what the rate allows in 10 ms.
#[test]
fn bucket_is_open_until_its_burst_is_used_up() {
    for (bits_per_second, burst, byte) in
        [(1_000_000, 4_500, micros(8)), (10_000_000, 12_500, Duration::from_nanos(800))]
    {
        let mut limits = limits(bits_per_second);
        assert!(is_open(&limits, NOW, 1));
        limits.charge(NOW, Some(GROUP), burst - 1);
        limits.charge(NOW, Some(GROUP), 1);
        assert!(is_open(&limits, NOW, 1), "a part of another packet fits");
        limits.charge(NOW, Some(GROUP), 1);
        assert!(!is_open(&limits, NOW + byte.saturating_sub(NANOSECOND), 1));
        assert!(is_open(&limits, NOW + byte, 1));
        // Other groups, and packets without a limit, are not held back.
        let of = limits.of(KEY);
        assert!(of.is_open(NOW, None) && of.is_open(NOW, Some(LimitGroup(2))));
        // Unused tokens beyond the burst are lost.
        let later = NOW + Duration::from_secs(9);
        limits.charge(later, Some(GROUP), burst + 1);
        assert!(!is_open(&limits, later, 1) && is_open(&limits, later + byte, 1));
    }
}

#[test]
fn end_to_end_packets_overdraw_the_bucket_by_one_burst() {
    let mut limits = limits(1_000_000);
    // 72 ms for two bursts, and 8 ms for a packet.
    let mut accepted =
        |now| (0..99).take_while(|_| limits.accepts(now, Some(GROUP), 1_000)).count();
    assert_eq!(accepted(NOW), 10);
    assert_eq!(accepted(NOW + micros(7_999)), 0);
    assert_eq!(accepted(NOW + micros(8_000)), 1);
    assert_eq!(accepted(NOW + micros(24_000)), 2);
    assert!((0..99).all(|_| limits.accepts(NOW, None, 1_000)));
}

/// A flow that waits is woken when there are tokens, and further ones as far as they suffice for packets
/// of the mean size.
#[test]
fn waiting_flows_are_woken_as_the_tokens_allow() {
    for (late, woken) in [(0, 1), (7_999, 1), (8_000, 2), (16_000, 3), (90_000, 5)] {
        let mut limits = limits(1_000_000);
        limits.charge(NOW, Some(GROUP), 1_000);
        (0..4).for_each(|_| limits.charge(NOW, Some(GROUP), 1_000));
        // 40 ms are used up, of which the burst covers 36.
        let open = NOW + micros(4_000);
        assert_eq!(limits.next_timeout(), None, "no flow waits");
        for number in [1, 2, 3, 1, 4, 5] {
            limits.wait(GROUP, flow(number));
        }
        assert_eq!(limits.next_timeout(), Some(open));
        assert_eq!(limits.due(open.saturating_sub(NANOSECOND)), []);
        let now = open + micros(late);
        let due: Vec<FlowKey> = (1..=woken).map(flow).collect();
        assert_eq!(limits.due(now), due, "{late} us later");
        for number in 1..=5 {
            assert_eq!(is_open(&limits, now, number), number <= woken, "{number} of {woken}");
        }
        // They may use the tokens; the next ones wait that long.
        let next = now + micros(8_000) * woken;
        assert_eq!(limits.next_timeout(), (woken < 5).then_some(next));
        assert_eq!(limits.due(next.saturating_sub(NANOSECOND)), []);
        let others = limits.due(next);
        assert_eq!(others.first(), (woken < 5).then(|| flow(woken + 1)).as_ref());
    }
}

#[test]
fn forgotten_flows_and_unused_groups_wait_no_longer() {
    let mut limits = limits(1_000_000);
    limits.charge(NOW, Some(GROUP), 9_000);
    (1..=3).for_each(|number| limits.wait(GROUP, flow(number)));
    limits.wait(LimitGroup(9), flow(4));
    limits.forget(flow(1));
    assert_eq!(limits.retain(&BTreeSet::from([GROUP])), []);
    assert_eq!(limits.due(NOW + Duration::from_secs(1)), [flow(2), flow(3)]);
    limits.wait(GROUP, flow(5));
    assert_eq!(limits.retain(&BTreeSet::new()), [flow(5)]);
    assert!(is_open(&limits, NOW, 1), "there is no limit any more");
}

/// What the rate allows in a round trip, two intervals of reports and the burst.
#[test]
fn room_is_shared_by_the_flows_that_wait() {
    let (seen, interval) = (view(9_000_000, 100), Duration::from_millis(5));
    let mut limits = limits(1_000_000);
    let room = |limits: &RateLimits| limits.room(Some(GROUP), interval, &seen);
    assert_eq!(limits.room(None, interval, &seen), None);
    assert_eq!(limits.room(Some(LimitGroup(2)), interval, &seen), None);
    // 125 bytes in each of 100 + 10 + 36 ms, in packets of 1,200 bytes before the first.
    assert_eq!(room(&limits), Some(18_250 / 1_200));
    limits.charge(NOW, Some(GROUP), 1_000);
    assert_eq!(room(&limits), Some(18));
    // A packet changes the mean by an eighth of the difference.
    limits.charge(NOW, Some(GROUP), 200);
    assert_eq!(room(&limits), Some(18_250 / 900));
    limits.charge(NOW, Some(GROUP), 901);
    assert_eq!(room(&limits), Some(18_250 / 901));
    for (waiting, each) in [(1, 20), (2, 10), (3, 6), (5, 4), (9, 4)] {
        (0..waiting).for_each(|number| limits.wait(GROUP, flow(number)));
        assert_eq!(room(&limits), Some(each), "{waiting} wait");
    }
    // The rate is changed.
    let bits_per_second = NonZeroU64::new(10_000_000).unwrap();
    limits.set(RateLimit { bits_per_second, group: GROUP });
    assert_eq!(room(&limits), Some(1_250 * (100 + 10 + 10) / 901 / 9));
}
