//! The sending side of a hop at the exact limits of its times and counts.

use core::time::Duration;

use bats_code::BATCH_SIZE;
use bats_types::Timestamp;
use bats_wire::batch_rank::{BatchRank, MAX_BATCHES, Space};
use bats_wire::short_header::PacketKind;
use proptest::prelude::{prop, proptest};

use super::adaptive::recoded_per_packet;
use super::batch::{Batch, CLOSE_AFTER, row_bytes};
use super::coding::Coded;
use super::config::{MAX_RECODED, QUEUE_PACKETS, RelayStats};
use super::inbound::batch_timeout;
use super::link_view::LinkView;
use super::outbound::Outbound;
use super::rate_limit::RateLimits;
use super::room::round_trip_packets;
use super::tests::{KEY, NOW, report, view};

const NANOSECOND: Duration = Duration::from_nanos(1);
const LEN: usize = 40;

/// The sending side with its clock's packets and counters.
struct Hop {
    out: Outbound,
    stats: RelayStats,
    view: LinkView,
    number: u64,
}

impl Hop {
    fn new(feedback: bool, view: LinkView) -> Self {
        Self {
            out: Outbound::new(1, feedback, false),
            stats: RelayStats::default(),
            view,
            number: 0,
        }
    }

    /// Adds packet `index` of a batch.
    fn add(&mut self, now: Timestamp, space: Space, batch: u64, index: usize) -> bool {
        let mut vector = [0; BATCH_SIZE];
        vector[index] = 1;
        let payload = &[index as u8 + 1; LEN];
        let (window, hop_limit, limit) = ((0, 16), 9, None);
        let coded = Coded { space, batch, window, vector, payload, hop_limit, limit };
        self.out.add(now, &coded, &mut self.stats)
    }

    fn pull(&mut self, now: Timestamp) -> Option<PacketKind> {
        let limits = &mut RateLimits::default();
        let (view, stats) = (self.view, &mut self.stats);
        let mut bytes = Vec::new();
        let pulled = self.out.pull(now, self.number + 1, &view, &mut bytes, stats, (KEY, limits));
        let (kind, _) = pulled?;
        self.number += 1;
        Some(kind)
    }

    /// Number of packets that are sent now.
    fn pull_all(&mut self, now: Timestamp) -> usize {
        core::iter::from_fn(|| self.pull(now)).count()
    }

    fn report(&mut self, now: Timestamp, report: &BatchRank) {
        let view = self.view;
        self.out.on_report(now, report, &view, &mut self.stats);
    }

    fn check(&mut self, now: Timestamp) {
        self.out.check(now, &mut self.stats);
    }
}

#[test]
fn unreported_batch_is_given_up_exactly_after_its_timeout() {
    let seen = view(1_000_000, 300);
    let end = NOW + batch_timeout(&seen);
    for (now, held) in [(end.saturating_sub(NANOSECOND), 2), (end, 0)] {
        let mut hop = Hop::new(true, seen);
        // The third packet is not sent: its batch is kept.
        for (space, batch, index) in
            [(Space::Source, 3, 0), (Space::Repair, 5, 7), (Space::Source, 4, 1)]
        {
            assert!(hop.add(NOW, space, batch, index));
        }
        assert!(hop.pull(NOW).is_some() && hop.pull(NOW).is_some());
        hop.check(now);
        let (bytes, expired) = ((held + 1) * row_bytes(LEN), 2 - held as u64);
        assert_eq!((hop.out.bytes(), hop.stats.batches.expired), (bytes, expired));
        assert_eq!(hop.out.holds(Space::Repair, 5), held > 0);
        assert!(hop.out.holds(Space::Source, 4));
        // Progress of the next node keeps a batch for longer.
        let mut hop = Hop::new(true, seen);
        (0..2).for_each(|index| assert!(hop.add(NOW, Space::Source, 0, index)));
        assert_eq!(hop.pull_all(NOW), 2);
        hop.report(NOW + NANOSECOND, &report(100));
        hop.check(now);
        assert_eq!(hop.stats.batches.expired, 0);
    }
}

#[test]
fn bytes_and_packets_are_counted_until_the_next_node_has_them() {
    let mut hop = Hop::new(true, view(1_000_000, 100));
    for index in 0..3 {
        assert!(hop.add(NOW, Space::Source, 0, index));
        assert!(!hop.add(NOW, Space::Source, 0, index), "it is held already");
    }
    assert!(hop.add(NOW, Space::Repair, 0, 0));
    let counts = |hop: &Hop| (hop.out.queued(), hop.out.unreported());
    assert_eq!((counts(&hop), hop.out.bytes()), ((4, 0), 4 * row_bytes(LEN)));
    let entries = 4 * size_of::<(Space, u64)>();
    assert_eq!(hop.out.state_bytes(), 2 * size_of::<Batch>() + entries);
    assert_eq!(hop.pull(NOW), Some(PacketKind::Source));
    assert_eq!(counts(&hop), (3, 1));
    assert_eq!(hop.pull_all(NOW), 3);
    assert_eq!((counts(&hop), hop.stats.forwarded), ((0, 4), 4));
    // Number 2 is the newest that has arrived.
    let ranked = |mark, rank| BatchRank { mark, ranks: vec![rank], ..report(100) };
    hop.report(NOW, &ranked(2, 2));
    assert_eq!((counts(&hop), hop.out.bytes()), ((0, 2), 4 * row_bytes(LEN)));
    hop.report(NOW + Duration::from_millis(1), &ranked(4, 3));
    assert_eq!((counts(&hop), hop.out.bytes()), ((0, 0), row_bytes(LEN)));
    assert_eq!(hop.out.state_bytes(), 2 * size_of::<Batch>());
}

/// A packet counts as lost one and a quarter round trips and three intervals of reports after it was
/// sent.
#[test]
fn unreported_packets_are_repaired_exactly_after_the_horizon() {
    // An interval of reports is a sixteenth of the least round trip.
    let seen = view(1_000_000, 64);
    let horizon = Duration::from_millis(64 + 16 + 3 * 4);
    for (now, repaired) in
        [((NOW + horizon).saturating_sub(NANOSECOND), false), (NOW + horizon, true)]
    {
        let mut hop = Hop::new(true, seen);
        (0..5).for_each(|index| assert!(hop.add(NOW, Space::Source, 0, index)));
        assert_eq!(hop.pull_all(NOW), 5);
        assert_eq!(hop.out.check_at(), Some(NOW + CLOSE_AFTER));
        hop.check(now);
        let left = if repaired { 0 } else { 5 };
        assert_eq!((hop.out.unreported(), hop.stats.top_ups), (left, 0));
        assert_eq!(hop.pull_all(now), 5 - left as usize);
        assert_eq!(hop.stats.top_ups, 5 - left);
        if !repaired {
            assert_eq!(hop.out.check_at(), Some(NOW + horizon).max(Some(now + CLOSE_AFTER)));
        }
    }
}

/// The last three packets before the newest one may still arrive.
#[test]
fn packets_before_the_reordering_window_of_a_report_are_repaired() {
    for (mark, repaired) in [(3, 0), (4, 1), (5, 2), (9, 5)] {
        let mut hop = Hop::new(true, view(1_000_000, 100));
        (0..5).for_each(|index| assert!(hop.add(NOW, Space::Source, 0, index)));
        assert_eq!(hop.pull_all(NOW), 5);
        hop.report(NOW, &BatchRank { mark, ranks: vec![0], ..report(100) });
        assert_eq!(hop.pull_all(NOW), repaired, "after packet {mark}");
        assert_eq!(hop.stats.top_ups, repaired as u64);
    }
}

#[test]
fn packets_in_flight_are_limited_to_a_round_trip_and_the_room() {
    let seen = view(1_000_000, 100);
    let most = round_trip_packets(1_000_000, &seen) + QUEUE_PACKETS;
    for (room, sent) in [(None, most), (Some(most + 1), most), (Some(7), 7), (Some(0), 0)] {
        let mut hop = Hop::new(true, seen);
        for number in 0..most as usize + 10 {
            hop.add(NOW, Space::Source, number as u64 / 16, number % 16);
        }
        if let Some(room) = room {
            hop.report(NOW, &BatchRank { mark: 0, ranks: vec![0], ..report(room) });
        }
        let limits = &RateLimits::default();
        assert_eq!(hop.out.wants(NOW, limits.of(KEY)), sent > 0);
        assert_eq!(hop.pull_all(NOW) as u64, sent);
        assert_eq!((hop.out.unreported(), hop.out.wants(NOW, limits.of(KEY))), (sent, false));
    }
    let hop = Hop::new(true, seen);
    assert_eq!((hop.out.rate(), hop.out.round_trip_bytes()), (0, QUEUE_PACKETS * 1_200));
    let mut hop = Hop::new(true, seen);
    assert_eq!(hop.pull(NOW), None);
    assert_eq!((hop.out.rate(), hop.out.round_trip_bytes()), (1_000_000, most * 1_200));
}

#[test]
fn source_has_room_for_a_packet_that_fits_and_is_sent_at_once() {
    let row = row_bytes(1_200);
    let mut hop = Hop::new(true, view(1_000_000, 100));
    assert!(hop.out.has_room(0), "a flow that holds nothing may always add one");
    hop.add(NOW, Space::Source, 0, 0);
    assert!(!hop.out.has_room(usize::MAX), "a packet waits");
    hop.pull(NOW);
    let held = row_bytes(LEN);
    assert_eq!(hop.out.bytes(), held);
    assert!(!hop.out.has_room(held + row - 1) && hop.out.has_room(held + row));
    hop.report(NOW, &BatchRank { mark: 0, ranks: vec![0], ..report(1) });
    assert!(!hop.out.has_room(usize::MAX), "the next node has none");
}

/// Sent packets are freed before unsent ones, and older batches before newer ones.
#[test]
fn packets_are_freed_until_the_limit_is_reached() {
    let row = row_bytes(LEN);
    for (limit, held, unrepaired, dropped) in [
        (8 * row, [2, 2, 2, 2], 0, 0),
        (8 * row - 1, [0, 2, 2, 2], 1, 0),
        (6 * row, [0, 2, 2, 2], 1, 0),
        (6 * row - 1, [0, 0, 2, 2], 2, 0),
        (4 * row - 1, [0, 0, 0, 2], 2, 1),
        (0, [0, 0, 0, 0], 2, 2),
    ] {
        let mut hop = Hop::new(true, view(1_000_000, 100));
        for batch in 0..4 {
            (0..2).for_each(|index| assert!(hop.add(NOW, Space::Source, batch, index)));
        }
        // Two batches and half of the third.
        (0..5).for_each(|_| assert!(hop.pull(NOW).is_some()));
        hop.out.shed(limit, &mut hop.stats);
        let holds = [0, 1, 2, 3].map(|batch| hop.out.holds(Space::Source, batch));
        assert_eq!(holds, held.map(|rows| rows > 0), "limit {limit}");
        assert_eq!(hop.out.bytes(), held.iter().sum::<usize>() * row);
        let counted = (hop.stats.batches.unrepaired, hop.stats.batches.dropped);
        assert_eq!(counted, (unrepaired, dropped), "limit {limit}");
    }
}

/// In idle slots a closed batch of n packets gets those that its losses are expected to need, and three
/// standard deviations more.
#[test]
fn recoded_packets_in_idle_slots_cover_the_expected_losses() {
    for (loss, burst_factor, extras) in
        [(0.0, 1.0, 0), (0.1, 1.0, 6), (0.1, 4.0, 11), (0.5, 1.0, 33), (0.95, 1.0, 64)]
    {
        let seen = LinkView { loss, burst_factor, ..view(1_000_000, 100) };
        let np = 16.0 * f64::min(loss, 0.9);
        let rule = (np + 3.0 * (np * burst_factor).sqrt()) / (1.0 - f64::min(loss, 0.9));
        assert_eq!(usize::min(rule.ceil() as usize, 64), extras);
        let mut hop = Hop::new(true, seen);
        (0..16).for_each(|index| assert!(hop.add(NOW, Space::Source, 0, index)));
        assert_eq!(hop.pull_all(NOW), 16 + extras, "{loss}");
        assert_eq!((hop.stats.forwarded, hop.stats.extras), (16, extras as u64));
        assert_eq!(hop.stats.batches.capped, u64::from(extras == usize::from(MAX_RECODED)));
    }
}

#[test]
fn batch_that_is_not_complete_is_closed_after_two_milliseconds() {
    let seen = LinkView { loss: 0.1, ..view(1_000_000, 100) };
    let mut hop = Hop::new(true, seen);
    (0..4).for_each(|index| assert!(hop.add(NOW, Space::Source, 0, index)));
    assert_eq!(hop.pull_all(NOW), 4);
    assert_eq!(hop.out.check_at(), Some(NOW + CLOSE_AFTER));
    let before = (NOW + CLOSE_AFTER).saturating_sub(NANOSECOND);
    assert_eq!((hop.pull(before), hop.pull(NOW + CLOSE_AFTER)), (None, Some(PacketKind::Recoded)));
    // A packet of a later batch but one closes it, too.
    let mut hop = Hop::new(true, seen);
    for batch in [0, 1] {
        (0..4).for_each(|index| assert!(hop.add(NOW, Space::Source, batch, index)));
        assert_eq!(hop.pull_all(NOW), 4);
    }
    assert!(hop.add(NOW, Space::Source, 2, 0));
    assert!(hop.pull_all(NOW) > 1);
}

#[test]
fn packets_of_a_thin_flow_are_followed_by_recoded_ones() {
    for (loss, count) in [
        (0.0, 0),
        (0.004_999, 0),
        (0.005, 1),
        (0.02, 1),
        (0.020_001, 2),
        (0.2, 2),
        (0.200_001, 3),
        (0.9, 3),
    ] {
        assert_eq!(recoded_per_packet(loss), count, "{loss}");
    }
}

/// After a restart the next node has none of the packets.
#[test]
fn restarted_neighbour_gets_everything_again() {
    let mut hop = Hop::new(true, view(1_000_000, 100));
    (0..4).for_each(|index| assert!(hop.add(NOW, Space::Source, 0, index)));
    assert_eq!(hop.pull_all(NOW), 4);
    hop.report(NOW, &BatchRank { mark: 4, ranks: vec![3], ..report(0) });
    hop.out.restart(true);
    assert_eq!(hop.out.unreported(), 0);
    hop.check(NOW);
    assert_eq!((hop.pull_all(NOW), hop.stats.top_ups), (4, 4));
    assert!(hop.out.has_room(usize::MAX), "its room is not known any more");
}

#[test]
fn oldest_batch_is_dropped_beyond_the_limit_of_batches() {
    for sent in [0, 1] {
        let mut hop = Hop::new(true, view(1_000_000, 100));
        for batch in 0..MAX_BATCHES as u64 {
            assert!(hop.add(NOW, Space::Source, batch, 0));
        }
        (0..sent).for_each(|_| assert!(hop.pull(NOW).is_some()));
        let bytes = MAX_BATCHES * row_bytes(LEN);
        assert_eq!((hop.out.bytes(), hop.stats.batches.dropped), (bytes, 0));
        assert!(hop.add(NOW, Space::Source, MAX_BATCHES as u64, 0));
        assert_eq!((hop.out.bytes(), hop.stats.batches.dropped), (bytes, 1 - sent));
        assert!(!hop.out.holds(Space::Source, 0) && hop.out.holds(Space::Source, 1));
        // Packets of the batch that is gone are neither counted nor sent.
        assert_eq!(hop.out.queued(), MAX_BATCHES);
        assert!(hop.pull(NOW).is_some());
        assert_eq!((hop.stats.forwarded, hop.out.queued()), (1 + sent, MAX_BATCHES - 1));
    }
}

/// A neighbour may send batches without end to a next node that has no room.
#[test]
fn queue_of_dropped_packets_is_bounded() {
    let mut hop = Hop::new(true, view(1_000_000, 100));
    let most = MAX_BATCHES * (size_of::<Batch>() + 2 * size_of::<(Space, u64)>()) + 4_096;
    for batch in 0..4 * MAX_BATCHES as u64 {
        assert!(hop.add(NOW, Space::Source, batch, 0));
        assert!(hop.out.state_bytes() <= most, "after {batch} batches");
    }
    assert_eq!(hop.out.queued(), MAX_BATCHES);
    assert!(hop.pull(NOW).is_some());
    // The next node needs none of the first ones.
    let first = (4 * MAX_BATCHES - 10) as u32;
    hop.report(NOW, &BatchRank { first, ranks: vec![], ..report(100) });
    assert_eq!(hop.out.queued(), 10);
    assert_eq!(hop.pull_all(NOW), 10);
    assert_eq!(hop.out.queued(), 0);
}

proptest! {
    /// What waits is what the batches hold, and packets are dropped in the order of the batches, those that were
    /// sent first, whatever happens in between.
    #[test]
    fn queue_and_batches_agree(
        operations in prop::collection::vec((0..6_u8, 0..12_u64, 0..BATCH_SIZE), 1..400),
    ) {
        let mut hop = Hop::new(true, view(1_000_000, 100));
        let mut now = NOW;
        for (operation, batch, index) in operations {
            let space = if index % 4 == 0 { Space::Repair } else { Space::Source };
            match operation {
                0..=2 => _ = hop.add(now, space, batch, index),
                3 => _ = hop.pull(now),
                4 => {
                    let (held, limit) = (hop.out.bytes(), index * row_bytes(LEN));
                    let (_, [first, first_sent]) = hop.out.counted();
                    hop.out.shed(limit, &mut hop.stats);
                    assert!(hop.out.bytes() <= limit);
                    let (_, [next, next_sent]) = hop.out.counted();
                    if held > limit {
                        match first_sent {
                            Some(first_sent) => assert!(next_sent.is_none_or(|next| next > first_sent)),
                            None => assert!(next.is_none_or(|next| next > first.unwrap())),
                        }
                    }
                }
                _ => {
                    now += Duration::from_millis(7);
                    let ranks = vec![index as u8; 1 + batch as usize % 3];
                    hop.report(now, &BatchRank { first: batch as u32 / 2, ranks, ..report(100) });
                    hop.check(now);
                }
            }
            assert_eq!(hop.out.queued(), hop.out.counted().0);
        }
    }
}
