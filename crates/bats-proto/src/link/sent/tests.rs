use proptest::prelude::*;

use super::*;

const RTT: Duration = Duration::from_millis(16);
const NOW: Timestamp = Timestamp::from_millis(1_000);

fn send(sent: &mut SentPackets, ms: u64) -> u64 {
    let now = Timestamp::from_millis(ms);
    let pn = sent.next_number(now, ms);
    sent.on_sent(now, 1000, true, false, Contents { coded: true, ..Contents::default() });
    pn
}

#[test]
fn unanswered_packets_follow_the_largest_acknowledged_packet() {
    let mut sent = SentPackets::new(0);
    let numbers: Vec<u64> = (0..20).map(|ms| send(&mut sent, ms)).collect();
    assert_eq!(sent.unanswered(1), None, "before the first acknowledgement");
    sent.on_ack(NOW, &[(numbers[9], numbers[9])], RTT).unwrap();
    let at = |ms| Some(Timestamp::from_millis(ms));
    assert_eq!((sent.unanswered(1), sent.unanswered(10)), (at(10), at(19)));
    assert_eq!((sent.unanswered(11), sent.unanswered(0)), (None, None));
    // Packets that are not ack-eliciting do not count.
    let plain = sent.next_number(Timestamp::from_millis(20), 20);
    sent.on_sent(Timestamp::from_millis(20), 100, false, false, Contents::default());
    assert_eq!(sent.unanswered(11), None);
    sent.on_ack(NOW, &[(plain, plain)], RTT).unwrap();
    assert_eq!(sent.unanswered(1), None);
}

proptest! {
    #[test]
    fn unanswered_packets_are_overdue_from_the_time_of_the_last_of_them(
        eliciting in prop::collection::vec(prop::bool::weighted(0.8), 1..30),
        acked in 0_usize..30,
        count in 0_usize..12,
        delay in 0_u64..40,
        now in 0_u64..80,
    ) {
        let mut sent = SentPackets::new(0);
        let mut numbers = Vec::new();
        for (ms, &is_eliciting) in eliciting.iter().enumerate() {
            let at = Timestamp::from_millis(ms as u64);
            numbers.push(sent.next_number(at, 1));
            sent.on_sent(at, 100, is_eliciting, false, Contents::default());
        }
        if let Some(&number) = numbers.get(acked) {
            sent.on_ack(NOW, &[(number, number)], RTT).unwrap();
        }
        let (delay, now) = (Duration::from_millis(delay), Timestamp::from_millis(now));
        let expected = sent.unanswered(count).is_some_and(|at| at + delay <= now);
        prop_assert_eq!(sent.has_unanswered(count, delay, now), expected);
    }
}

/// Forty losses that one acknowledgement reveals at once, with and without a large packet after
/// them that was acknowledged.
#[test]
fn large_losses_count_only_without_a_later_large_acknowledgement() {
    for (last_size, expected) in [(1_400, 0), (100, 40)] {
        let mut sent = SentPackets::new(0);
        let mut last = 0;
        for number in 0..=40 {
            let now = Timestamp::from_millis(1 + number);
            last = sent.next_number(now, 0);
            let size = if number == 40 { last_size } else { 1_400 };
            sent.on_sent(now, size, true, false, Contents::default());
        }
        sent.largest_acked_sent_at = Timestamp::from_millis(1_000);
        sent.on_ack(NOW, &[(last, last)], RTT).unwrap();
        sent.largest_acked_sent_at = Timestamp::from_millis(1_000);
        assert_eq!(sent.detect_losses(RTT, 10 * RTT, |_| {}).large_lost, expected, "{last_size}");
    }
}

/// MTU discovery sends dozens of packets that never arrive. They must not fill a small
/// congestion window forever, because then no packet could reveal their loss.
#[test]
fn mtu_probes_alone_use_no_congestion_window_but_expect_an_ack() {
    let mut sent = SentPackets::new(1000);
    let probe = Contents { mtu_probe: true, ..Contents::default() };
    for number in 0..30 {
        let now = Timestamp::from_millis(number);
        sent.next_number(now, number);
        sent.on_sent(now, 1_400, true, false, probe);
    }
    assert_eq!((sent.bytes_in_window(), sent.expects_ack()), (0, true));
    let last = send(&mut sent, 30);
    assert_eq!(sent.bytes_in_window(), sent.bytes_in_flight());
    assert_eq!(sent.bytes_in_flight(), 30 * 1_400 + 1_000);
    // One of the probes passes, the others are lost.
    sent.on_ack(NOW, &[(last, last), (3, 3)], RTT).unwrap();
    let outcome = sent.detect_losses(RTT, 10 * RTT, |_| {});
    assert_eq!((sent.bytes_in_flight(), sent.expects_ack()), (0, false));
    assert_eq!(outcome.lost_packets, 0, "lost probes do not count as losses");
}

#[test]
fn late_packets_are_declared_lost_and_counted_as_spurious_on_arrival() {
    let mut sent = SentPackets::new(1000);
    (0..10).for_each(|i| assert_eq!(send(&mut sent, i), i));
    sent.on_ack(NOW, &[(9, 9), (0, 3)], RTT).unwrap();
    let outcome = sent.detect_losses(RTT, 10 * RTT, |_| {});
    // Packet 9 was sent at 9 ms; packets 4 to 8 were sent at least 1 ms earlier.
    assert_eq!(outcome.lost_packets, 5);
    assert_eq!(sent.bytes_in_flight(), 0);
    let late = sent.on_ack(NOW, &[(8, 9)], RTT).unwrap();
    assert_eq!((late.acked_packets, sent.spurious), (1, 1));
    assert_eq!(sent.loss.losses(), 4);
}

/// RFC 9002, section 6.1: a packet that was declared lost too early widens the window, so that one
/// that is as late is not declared lost again.
#[test]
fn reordering_window_grows_with_each_spurious_loss() {
    let mut sent = SentPackets::new(1_000);
    let mut ms = 1_000;
    for late in [1, 3, 7, 15] {
        for (losses, is_wider) in [(1, false), (0, true)] {
            let first = send(&mut sent, ms);
            let second = send(&mut sent, ms + late);
            let now = Timestamp::from_millis(ms + late + 16);
            sent.on_ack(now, &[(second, second)], RTT).unwrap();
            let outcome = sent.detect_losses(RTT, 10 * RTT, |_| {});
            assert_eq!(outcome.lost_packets, losses, "{late} ms late, wider: {is_wider}");
            let outcome = sent.on_ack(now, &[(first, first)], RTT).unwrap();
            assert_eq!(outcome.spurious_packets, losses);
            ms += 100;
        }
    }
    // It is never wider than a round trip.
    for _ in 0..2 {
        let (first, second) = (send(&mut sent, ms), send(&mut sent, ms + 17));
        let now = Timestamp::from_millis(ms + 40);
        sent.on_ack(now, &[(second, second)], RTT).unwrap();
        assert_eq!(sent.detect_losses(RTT, 10 * RTT, |_| {}).lost_packets, 1);
        sent.on_ack(now, &[(first, first)], RTT).unwrap();
        ms += 100;
    }
}

#[test]
fn acknowledging_an_unsent_packet_is_a_violation() {
    let mut sent = SentPackets::new(0);
    send(&mut sent, 0);
    assert_eq!(sent.on_ack(NOW, &[(1, 1)], RTT).unwrap_err(), AckViolation::NotSent(1));
}

#[test]
fn optimistic_ack_is_detected_within_a_few_hundred_packets() {
    let mut sent = SentPackets::new(5);
    let mut last = 0;
    for i in 0..200 {
        last = send(&mut sent, i);
    }
    assert!(last > 199, "numbers are skipped");
    assert!(matches!(sent.on_ack(NOW, &[(0, last)], RTT), Err(AckViolation::Skipped(_))));
}

#[test]
fn tracked_packets_are_bounded_without_acknowledgements() {
    let mut sent = SentPackets::new(9);
    for i in 0..MAX_TRACKED as u64 + 1_000 {
        send(&mut sent, i / 100);
    }
    assert_eq!(sent.packets_tracked(), MAX_TRACKED);
    let in_flight = sent.packets.iter().filter(|p| p.fate == Fate::InFlight).count();
    assert_eq!(sent.bytes_in_flight(), in_flight as u64 * 1000);
    let last = sent.peek_next() - 1;
    sent.on_ack(NOW, &[(last, last), (0, 10)], RTT).unwrap();
    sent.detect_losses(RTT, RTT, |_| {});
    assert!(sent.bytes_in_flight() < 100 * 1000, "all but the last millisecond is lost");
}

proptest! {
    /// Bytes in flight equal a recount for acknowledgements in any order.
    #[test]
    fn in_flight_equals_a_recount(acks in prop::collection::vec((0_u64..300, 0_u64..20), 1..60)) {
        let mut sent = SentPackets::new(9);
        let mut real = Vec::new();
        for i in 0..250 {
            real.push(send(&mut sent, i));
        }
        let mut now_lost = 0;
        for (first, len) in acks {
            let last = first + len;
            let valid: Vec<u64> = (first..=last).filter(|pn| real.contains(pn)).collect();
            for pn in valid.iter().rev() {
                sent.on_ack(NOW, &[(*pn, *pn)], RTT).unwrap();
            }
            now_lost += sent.detect_losses(RTT, Duration::from_secs(100), |_| {}).lost_packets;
            let in_flight = sent.packets.iter().filter(|p| p.fate == Fate::InFlight).count() as u64;
            prop_assert_eq!(sent.bytes_in_flight(), in_flight * 1000);
        }
        prop_assert_eq!(now_lost, sent.lost);
    }
}

/// Acknowledgements of packets that an idle link has forgotten change nothing, and later packets are handled
/// as before.
#[test]
fn idle_link_keeps_the_records_of_packets_that_await_an_answer() {
    let mut sent = SentPackets::new(1_000);
    let numbers: Vec<u64> = (1..=40).map(|ms| send(&mut sent, ms)).collect();
    sent.on_ack(NOW, &[(numbers[0], numbers[29])], RTT).unwrap();
    for ms in 41..60 {
        let now = Timestamp::from_millis(ms);
        sent.next_number(now, ms);
        sent.on_sent(now, 50, false, false, Contents::default());
    }
    sent.trim();
    // One number was skipped.
    assert_eq!((sent.packets_tracked(), sent.bytes_in_flight()), (30, 10_000));
    sent.on_ack(NOW, &[(numbers[30], numbers[39])], RTT).unwrap();
    sent.trim();
    assert_eq!((sent.packets_tracked(), sent.bytes_held(), sent.bytes_in_flight()), (0, 0, 0));
    let next = sent.peek_next();
    let outcome = sent.on_ack(NOW, &[(0, next - 1)], RTT).unwrap();
    assert_eq!((outcome.packets, sent.spurious), (0, 0));
    assert_eq!(sent.on_ack(NOW, &[(next, next)], RTT).unwrap_err(), AckViolation::NotSent(next));
    assert_eq!(sent.detect_losses(RTT, 10 * RTT, |_| {}).lost_packets, 0);
    assert_eq!(sent.end_blackout().contents, Contents::default());

    let later: Vec<u64> = (2_000..2_100).map(|ms| send(&mut sent, ms)).collect();
    sent.on_ack(NOW, &[(later[50], later[99])], RTT).unwrap();
    assert_eq!(sent.detect_losses(RTT, 10 * RTT, |_| {}).lost_packets, 50);
    assert_eq!(sent.bytes_in_flight(), 0);
}
