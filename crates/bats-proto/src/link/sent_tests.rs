//! Packets in flight and loss detection, compared with a list of all packets sent.

use core::time::Duration;
use std::collections::BTreeSet;

use bats_types::Timestamp;
use proptest::prelude::*;

use super::sent::{AckViolation, Contents, SentPackets};

const RTT: Duration = Duration::from_millis(16);
const LONG: Duration = Duration::from_secs(100);
const PLAIN: Contents = Contents {
    credit: false,
    end: false,
    handshake_done: false,
    crypto: false,
    mtu_probe: false,
    coded: false,
};
const PROBE: Contents = Contents { mtu_probe: true, ..PLAIN };

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn send(sent: &mut SentPackets, ms: u64, size: usize, contents: Contents) -> u64 {
    let pn = sent.next_number(at(ms), 0);
    sent.on_sent(at(ms), size, true, false, contents);
    pn
}

fn send_not_eliciting(sent: &mut SentPackets, ms: u64, size: usize) -> u64 {
    let pn = sent.next_number(at(ms), 0);
    sent.on_sent(at(ms), size, false, false, PLAIN);
    pn
}

fn ack(sent: &mut SentPackets, ms: u64, pn: u64) {
    sent.on_ack(at(ms), &[(pn, pn)], RTT).unwrap();
}

/// The first number skipped is 8 plus the phase below 64; the next ones follow at one to three
/// halves of an interval that doubles up to 4,096.
#[test]
fn skipped_numbers_become_rarer() {
    for (phase, random) in [(0, 0), (63, u64::MAX), (64, 127)] {
        let mut sent = SentPackets::new(phase);
        let (mut skipped, mut last) = (Vec::new(), None);
        for _ in 0..15_000 {
            assert_eq!(sent.peek_next(), last.map_or(0, |last| last + 1));
            let pn = sent.next_number(at(1), random);
            sent.on_sent(at(1), 10, false, false, PLAIN);
            if last.map_or(0, |last: u64| last + 1) != pn {
                skipped.push(pn - 1);
            }
            last = Some(pn);
        }
        let mut next = 8 + phase % 64;
        for (interval, pn) in [128, 256, 512, 1_024, 2_048, 4_096, 4_096, 4_096].iter().zip(skipped)
        {
            assert_eq!(pn, next);
            next = pn + 1 + interval / 2 + random % interval;
        }
    }
}

#[test]
fn packets_of_an_acknowledgement_are_counted_with_their_contents() {
    let all = [
        Contents { handshake_done: true, ..PLAIN },
        Contents { crypto: true, ..PLAIN },
        Contents { end: true, ..PLAIN },
        Contents { coded: true, ..PLAIN },
    ];
    for contents in all {
        let mut sent = SentPackets::new(40);
        send(&mut sent, 1, 500, PLAIN);
        send(&mut sent, 2, 1_300, contents);
        sent.on_sent(at(3), 700, true, true, PLAIN);
        let last = send_not_eliciting(&mut sent, 4, 100);
        assert_eq!((sent.bytes_sent(), sent.bytes_in_flight()), (2_600, 2_500));
        assert_eq!(sent.last_eliciting_at(), at(3));
        let outcome = sent.on_ack(at(20), &[(1, 3)], RTT).unwrap();
        let flags = (outcome.handshake_done_acked, outcome.end_acked, outcome.coded_acked);
        assert_eq!(flags, (contents.handshake_done, contents.end, contents.coded));
        assert_eq!(outcome.crypto_acked, contents.crypto);
        assert_eq!((outcome.packets, outcome.acked_packets, outcome.acked_bytes), (3, 2, 2_000));
        assert_eq!((outcome.largest_size, outcome.spurious_packets), (1_300, 0));
        let largest = outcome.largest.unwrap();
        assert_eq!((largest.pn, largest.sent_at, largest.cumulative), (last, at(4), 2_600));
        assert_eq!((largest.ack_eliciting, largest.app_limited), (false, false));
        assert_eq!((sent.largest_acked(), sent.bytes_acked()), (Some(3), 2_000));
        // Once more, with the first packet.
        let outcome = sent.on_ack(at(21), &[(0, 3)], RTT).unwrap();
        assert_eq!((outcome.packets, outcome.acked_bytes), (1, 500));
        let largest = outcome.largest.unwrap();
        assert_eq!((largest.pn, largest.cumulative, largest.ack_eliciting), (0, 500, true));
        assert_eq!((sent.largest_acked(), sent.expects_ack()), (Some(3), false));
        let outcome = sent.on_ack(at(22), &[(0, 3)], RTT).unwrap();
        assert_eq!((outcome.packets, outcome.largest.is_none()), (0, true));
    }
}

#[test]
fn losses_are_reported_with_their_contents_unless_they_were_probes() {
    let contents = [
        Contents { credit: true, ..PLAIN },
        Contents { end: true, ..PLAIN },
        Contents { handshake_done: true, ..PLAIN },
        Contents { crypto: true, ..PLAIN },
        Contents { coded: true, ..PLAIN },
    ];
    for lost in contents {
        let mut sent = SentPackets::new(40);
        send(&mut sent, 1, 500, lost);
        send(&mut sent, 2, 600, PLAIN);
        send(&mut sent, 3, 1_400, PROBE);
        send_not_eliciting(&mut sent, 4, 50);
        send(&mut sent, 10, 1_000, PLAIN);
        ack(&mut sent, 26, 4);
        let mut reported = Vec::new();
        let outcome = sent.detect_losses(RTT, LONG, |lost| {
            reported.push((lost.bytes, lost.sent_at, lost.continues_run, lost.lost_since_sent));
        });
        assert_eq!((outcome.lost_packets, outcome.lost_bytes, sent.lost), (3, 1_150, 3));
        assert_eq!(outcome.lost_sent_at, Some(at(4)));
        // Coded data is repaired, not sent again.
        assert_eq!(outcome.contents, Contents { coded: false, ..lost });
        assert_eq!(reported, [(500, at(1), false, 500), (600, at(2), true, 1_100)]);
        assert_eq!((sent.bytes_in_flight(), sent.expects_ack()), (0, false));
        assert_eq!(sent.loss.losses(), 3);
    }
}

#[test]
fn run_of_losses_is_interrupted_by_arrivals_but_not_by_skipped_numbers() {
    let mut sent = SentPackets::new(3);
    for (ms, is_acked) in [(1, true), (2, false), (3, true), (4, false), (5, false), (30, true)] {
        let pn = send(&mut sent, ms, 1_000, PLAIN);
        if is_acked {
            ack(&mut sent, ms + 16, pn);
        }
    }
    let mut runs = Vec::new();
    sent.detect_losses(RTT, LONG, |lost| runs.push(lost.continues_run));
    assert_eq!(runs, [false, false, true]);
    // The number 11 is skipped.
    for ms in 50..60 {
        send(&mut sent, ms, 1_000, PLAIN);
    }
    let last = send(&mut sent, 90, 1_000, PLAIN);
    ack(&mut sent, 106, last);
    runs.clear();
    sent.detect_losses(RTT, LONG, |lost| runs.push(lost.continues_run));
    assert_eq!((last, runs.len()), (17, 10));
    assert!(!runs[0] && runs[1..].iter().all(|&is_run| is_run));
}

/// The least reordering window is 1 ms or a sixteenth of the minimum RTT.
#[test]
fn packet_is_lost_exactly_after_the_reordering_window() {
    for (rtt_ms, window) in [(1, 1_000), (16, 1_000), (64, 4_000)] {
        for (late, lost) in [(window - 1, 0), (window, 1)] {
            let mut sent = SentPackets::new(40);
            let first = Timestamp::from_micros(10_000);
            sent.on_sent(first, 1_000, true, false, PLAIN);
            sent.on_sent(Timestamp::from_micros(10_000 + late), 1_000, true, false, PLAIN);
            let rtt = Duration::from_millis(rtt_ms);
            sent.on_ack(at(100), &[(1, 1)], rtt).unwrap();
            assert_eq!(sent.detect_losses(rtt, LONG, |_| {}).lost_packets, lost);
        }
    }
}

#[test]
fn late_acknowledgement_of_a_lost_packet_takes_its_bytes_from_the_losses() {
    let mut sent = SentPackets::new(40);
    send(&mut sent, 1, 1_000, PLAIN);
    send(&mut sent, 1, 1_400, PROBE);
    send_not_eliciting(&mut sent, 1, 100);
    let lost_since_sent = |sent: &mut SentPackets, ms: u64| {
        let last = send(sent, ms + 5, 1_000, PLAIN);
        ack(sent, ms + 20, last);
        let mut lost = Vec::new();
        sent.detect_losses(RTT, LONG, |packet| lost.push(packet.lost_since_sent));
        lost
    };
    assert_eq!(lost_since_sent(&mut sent, 1), [1_000]);
    send(&mut sent, 30, 300, PLAIN);
    let outcome = sent.on_ack(at(40), &[(0, 2)], RTT).unwrap();
    assert_eq!((outcome.packets, outcome.acked_packets, outcome.spurious_packets), (3, 2, 2));
    assert_eq!((sent.spurious, sent.loss.losses()), (2, 0));
    assert_eq!(lost_since_sent(&mut sent, 30), [0]);
}

#[test]
fn settled_packets_are_forgotten_and_lost_ones_are_retained() {
    let mut sent = SentPackets::new(40);
    for ms in [1, 2, 10, 11, 40] {
        send(&mut sent, ms, 1_000, PLAIN);
    }
    ack(&mut sent, 20, 0);
    ack(&mut sent, 60, 4);
    let retain = |sent: &mut SentPackets, ms| {
        sent.detect_losses(RTT, Duration::from_millis(ms), |_| {});
        sent.packets_tracked()
    };
    // The packet in flight at the end of the scan was sent 40 ms before; the lost ones 38 to 29.
    assert_eq!(retain(&mut sent, 39), 4);
    assert_eq!(retain(&mut sent, 38), 3);
    assert_eq!(sent.on_ack(at(61), &[(0, 2)], RTT).unwrap().packets, 1);
    assert_eq!(
        retain(&mut sent, 30),
        2,
        "the acknowledged one before the one retained is forgotten"
    );
    assert_eq!(retain(&mut sent, 0), 1, "the scan has not passed the newest packet");
    assert_eq!(sent.peek_next(), 5);
}

/// 32 packets are too many for random loss; numbers that were skipped do not count.
#[test]
fn interval_without_any_arrival_is_a_blackout() {
    for (packets, phase, is_blackout) in [(31, 40, false), (32, 40, true), (31, 3, false)] {
        let mut sent = SentPackets::new(phase);
        for ms in 0..packets {
            send(&mut sent, 100 + ms, 1_000, PLAIN);
        }
        assert_eq!(sent.was_blackout(at(100), at(200)), is_blackout);
        assert!(!sent.was_blackout(at(101), at(200)), "the first packet was sent before");
        assert!(!sent.was_blackout(at(100), at(100 + packets - 1)), "the last one was sent later");
        assert_eq!(sent.was_blackout(at(50), at(100 + packets)), is_blackout);
    }
    for arrived in 0..40 {
        let mut sent = SentPackets::new(50);
        (0..40).for_each(|_| _ = send(&mut sent, 100, 1_000, PLAIN));
        assert!(sent.was_blackout(at(100), at(101)));
        ack(&mut sent, 120, arrived);
        assert!(!sent.was_blackout(at(100), at(101)), "packet {arrived} arrived");
    }
}

#[test]
fn packets_in_flight_during_a_blackout_are_not_losses() {
    let mut sent = SentPackets::new(3);
    assert_eq!(sent.end_blackout().contents, PLAIN, "before the first acknowledgement");
    send(&mut sent, 1, 1_000, Contents { crypto: true, ..PLAIN });
    send(&mut sent, 2, 1_400, PLAIN);
    let lost = send(&mut sent, 10, 1_000, PLAIN);
    ack(&mut sent, 20, lost);
    assert_eq!(sent.detect_losses(RTT, LONG, |_| {}).lost_packets, 2);
    send(&mut sent, 30, 1_201, Contents { end: true, ..PLAIN });
    send(&mut sent, 31, 1_300, PLAIN);
    send(&mut sent, 32, 1_200, PLAIN);
    send_not_eliciting(&mut sent, 33, 100);
    (0..5).for_each(|_| _ = send(&mut sent, 34, 1_500, PROBE));
    let last = send(&mut sent, 50, 1_000, PLAIN);
    send(&mut sent, 51, 900, PLAIN);
    ack(&mut sent, 60, last);
    let outcome = sent.end_blackout();
    assert_eq!((outcome.lost_packets, outcome.lost_bytes), (0, 0));
    assert_eq!(outcome.contents, Contents { end: true, ..PLAIN });
    assert_eq!((outcome.large_lost, outcome.large_size), (2, 1_300), "MTU probes do not count");
    assert_eq!((sent.lost, sent.loss.losses()), (2, 2));
    assert_eq!((sent.bytes_in_flight(), sent.bytes_in_window()), (900, 900));
    // Each is handled once, and an abandoned packet may still arrive.
    assert_eq!(sent.end_blackout().large_lost, 0);
    let outcome = sent.on_ack(at(61), &[(4, 4)], RTT).unwrap();
    assert_eq!((outcome.acked_bytes, outcome.spurious_packets), (1_300, 0));
    assert_eq!((sent.bytes_in_flight(), sent.spurious), (900, 0));
}

#[test]
fn abandoned_packets_neither_fill_the_window_nor_count_as_losses() {
    for ends_by_loss_detection in [true, false] {
        let mut sent = SentPackets::new(40);
        send(&mut sent, 1, 1_201, Contents { credit: true, ..PLAIN });
        send(&mut sent, 2, 1_200, Contents { crypto: true, ..PLAIN });
        send(&mut sent, 3, 1_400, PROBE);
        ack(&mut sent, 17, 1);
        assert_eq!(sent.abandon_in_flight().contents, Contents { credit: true, ..PLAIN });
        assert_eq!((sent.bytes_in_flight(), sent.bytes_in_window()), (0, 0));
        assert_eq!((sent.expects_ack(), sent.abandon_in_flight().contents), (false, PLAIN));
        let last = send(&mut sent, 1_000, 100, PLAIN);
        assert_eq!((sent.bytes_in_window(), sent.expects_ack()), (100, true));
        ack(&mut sent, 1_016, last);
        let outcome = if ends_by_loss_detection {
            sent.detect_losses(RTT, LONG, |_| panic!("none is lost"))
        } else {
            sent.end_blackout()
        };
        assert_eq!((outcome.large_lost, outcome.large_size), (1, 1_201), "no MTU probe counts");
        assert_eq!((outcome.lost_packets, outcome.contents), (0, PLAIN));
    }
}

/// Only what is above the base size and was sent after the newest such packet that was acknowledged.
#[test]
fn large_losses_are_counted_after_the_newest_large_arrival() {
    for (acked_size, large_lost) in [(1_200, 3), (1_201, 1)] {
        let mut sent = SentPackets::new(40);
        let sizes = [(1, 1_300), (2, acked_size), (2, 1_250), (3, 1_200), (4, 1_201), (10, 100)];
        for (ms, size) in sizes {
            send(&mut sent, ms, size, PLAIN);
        }
        sent.on_ack(at(26), &[(5, 5), (1, 1)], RTT).unwrap();
        let outcome = sent.detect_losses(RTT, LONG, |_| {});
        assert_eq!((outcome.lost_packets, outcome.large_lost), (4, large_lost));
        assert_eq!(outcome.large_size, if large_lost == 1 { 1_201 } else { 1_300 });
    }
}

#[test]
fn large_losses_of_the_path_before_say_nothing_about_its_mtu() {
    let mut sent = SentPackets::new(40);
    (1..=3).for_each(|ms| _ = send(&mut sent, ms, 1_300, PLAIN));
    sent.abandon_path(at(3));
    send(&mut sent, 4, 1_300, PLAIN);
    let last = send(&mut sent, 20, 100, PLAIN);
    ack(&mut sent, 40, last);
    let outcome = sent.detect_losses(RTT, LONG, |_| {});
    assert_eq!((outcome.lost_packets, outcome.large_lost), (1, 1));
}

#[test]
fn ranges_of_forgotten_packets_are_ignored() {
    let mut sent = SentPackets::new(40);
    (0..10).for_each(|ms| _ = send(&mut sent, ms, 1_000, PLAIN));
    sent.on_ack(at(16), &[(0, 4)], RTT).unwrap();
    sent.detect_losses(RTT, LONG, |_| {});
    // The newest acknowledged packet is within the reordering window.
    assert_eq!(sent.packets_tracked(), 6);
    sent.on_ack(at(20), &[(6, 6)], RTT).unwrap();
    sent.detect_losses(RTT, Duration::ZERO, |_| {});
    assert_eq!(sent.packets_tracked(), 4);
    for (ranges, packets) in
        [(vec![(0, 5)], 0), (vec![(8, 8), (3, 6), (0, 1)], 1), (vec![(2, 7), (0, 1)], 1)]
    {
        assert_eq!(sent.on_ack(at(21), &ranges, RTT).unwrap().packets, packets, "{ranges:?}");
    }
    assert_eq!(sent.on_ack(at(21), &[(10, 10)], RTT).unwrap_err(), AckViolation::NotSent(10));
    assert_eq!(sent.on_ack(at(22), &[(9, 9)], RTT).unwrap().packets, 1);
    assert_eq!(sent.bytes_in_flight(), 0);
}

#[test]
fn packets_beyond_the_limit_are_not_in_flight() {
    const LIMIT: usize = 1 << 16;
    let mut sent = SentPackets::new(0);
    send(&mut sent, 1, 1_000, PLAIN);
    send(&mut sent, 1, 1_400, PROBE);
    send(&mut sent, 1, 500, PLAIN);
    while sent.packets_tracked() < LIMIT + 3 {
        send_not_eliciting(&mut sent, 2, 10);
    }
    assert_eq!((sent.bytes_in_flight(), sent.bytes_in_window()), (2_900, 2_900));
    // The oldest packets that are not ack-eliciting are dropped, and those before them.
    for _ in 0..2 {
        send_not_eliciting(&mut sent, 3, 10);
        assert_eq!(sent.packets_tracked(), LIMIT);
        assert_eq!((sent.bytes_in_flight(), sent.bytes_in_window()), (0, 0));
        assert!(!sent.expects_ack());
    }
    // Packets in flight are kept beyond it.
    for tracked in LIMIT + 1..LIMIT + 10 {
        send(&mut sent, 4, 100, PLAIN);
        assert_eq!(sent.packets_tracked(), tracked);
    }
    let record = sent.record_bytes() / 9;
    assert!(
        record > 64 && sent.bytes_held() >= (LIMIT + 9) * record,
        "{record} bytes for a packet"
    );
}

#[test]
fn acknowledgement_gives_one_rate_sample_of_its_newest_packet() {
    let mut sent = SentPackets::new(40);
    assert_eq!(sent.rate_sample(None, RTT), None);
    // There is no more to send after the second packet.
    for (ms, size, app_limited) in [(10, 1_000, false), (12, 500, true), (14, 700, false)] {
        sent.next_number(at(ms), 0);
        sent.on_sent(at(ms), size, true, app_limited, PLAIN);
    }
    sent.on_ack(at(30), &[(2, 2), (0, 0)], RTT).unwrap();
    let sample = sent.rate_sample(None, RTT).unwrap();
    assert_eq!((sample.delivered, sample.prior_delivered, sample.lost), (1_700, 0, 0));
    assert_eq!((sample.tx_in_flight, sample.is_app_limited), (2_200, true));
    assert_eq!((sample.interval, sample.delivery_rate), (Duration::from_millis(20), 85_000));
    assert_eq!(sent.rate_sample(None, RTT), None);
    // A loss belongs to the sample of a packet that was sent before it was declared.
    assert_eq!(sent.detect_losses(RTT, LONG, |_| {}).lost_bytes, 500);
    send(&mut sent, 40, 300, PLAIN);
    ack(&mut sent, 60, 3);
    assert_eq!(sent.rate_sample(None, RTT).unwrap().lost, 0);
}

/// The maximal ranges of these numbers, newest first.
fn ranges_of(numbers: &BTreeSet<u64>) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    ranges.reverse();
    ranges
}

proptest! {
    /// Ranges that overlap those of acknowledgements before in any way acknowledge each packet once.
    #[test]
    fn acknowledgements_agree_with_a_set(
        acks in prop::collection::vec(prop::collection::vec((0_u64..400, 1_u64..200), 1..5), 1..40)
    ) {
        let mut sent = SentPackets::new(0);
        let numbers: BTreeSet<u64> = (0..300).map(|_| send(&mut sent, 1, 10, PLAIN)).collect();
        let mut acknowledged = BTreeSet::new();
        for parts in acks {
            let covered = |number: &&u64| {
                parts.iter().any(|&(first, length)| (first..first + length).contains(*number))
            };
            let ack: BTreeSet<u64> = numbers.iter().filter(covered).copied().collect();
            let new: BTreeSet<u64> = ack.difference(&acknowledged).copied().collect();
            let outcome = sent.on_ack(at(2), &ranges_of(&ack), RTT).unwrap();
            prop_assert_eq!(outcome.packets, new.len() as u64);
            prop_assert_eq!(outcome.acked_bytes, 10 * new.len() as u64);
            prop_assert_eq!(outcome.largest.map(|largest| largest.pn), new.last().copied());
            acknowledged.extend(new);
            prop_assert_eq!(sent.bytes_in_flight(), 10 * (300 - acknowledged.len() as u64));
        }
    }
}
