//! Rate changes while packets are queued.

use bats_netem::{CoDel, Discipline, Fate, FqCoDel, Link, LinkConfig, Output, Timestamp};

use super::{MS, RATE, arrivals, ms, packet};

fn times(all: &[(Timestamp, super::Packet)]) -> Vec<u64> {
    all.iter().map(|(at, _)| at.as_micros()).collect()
}

#[test]
fn a_new_rate_applies_to_queued_frames_and_the_rest_of_the_current_one() {
    let config = LinkConfig::with_rate(RATE, 10 * MS);
    let mut link = Link::new(config.clone(), 1);
    for number in 0..4 {
        assert_eq!(link.handle(ms(1), packet(number, 1_000)), Fate::Carried);
    }
    // One packet has left at 2 ms, and half of the next one at 2.5 ms. The rest takes 5 ms at a
    // tenth of the rate.
    let change = Timestamp::from_micros(2_500);
    link.set_config(change, LinkConfig { rate_bps: Some(RATE / 10), ..config.clone() });
    assert_eq!(link.queue_bytes(change), 3_000);
    assert_eq!(times(&arrivals(&mut link, change, ms(22))), [12_000, 17_500]);
    // The third packet leaves at 17.5 ms. At 22 ms 550 bytes of the fourth remain, at the old rate
    // again.
    link.set_config(ms(22), LinkConfig { rate_bps: Some(RATE), ..config });
    assert_eq!(times(&arrivals(&mut link, ms(22), ms(90))), [27_500, 32_550]);
    assert_eq!(link.stats().in_flight(), 0);
}

#[test]
fn an_unlimited_rate_releases_all_queued_packets() {
    let config = LinkConfig::with_rate(RATE, MS);
    for discipline in [Discipline::DropTail, Discipline::CoDel(CoDel::default())] {
        let mut link = Link::new(LinkConfig { discipline, ..config.clone() }, 1);
        (0..5).for_each(|number| {
            link.handle(ms(1), packet(number, 1_000));
        });
        link.set_config(ms(3), LinkConfig { rate_bps: None, discipline, ..config.clone() });
        // Two packets have left, at 2 and 3 ms.
        assert_eq!(times(&arrivals(&mut link, ms(3), ms(9))), [3_000, 4_000, 4_000, 4_000, 4_000]);
        assert_eq!((link.queue_bytes(ms(9)), link.stats().in_flight()), (0, 0));
    }
}

#[test]
fn queued_packets_move_to_a_new_discipline() {
    let config = LinkConfig::with_rate(RATE, MS);
    let mut link = Link::new(config.clone(), 1);
    for number in 0..6 {
        let flow = u64::from(number >= 4);
        link.handle(ms(1), super::Packet { flow, ..packet(number, 1_000) });
    }
    let fair = Discipline::FqCoDel(FqCoDel { quantum: 1_000, ..FqCoDel::default() });
    link.set_config(ms(1), LinkConfig { discipline: fair, ..config.clone() });
    let order: Vec<u64> =
        arrivals(&mut link, ms(1), ms(5)).iter().map(|(_, packet)| packet.number).collect();
    // Packet 0 was in transmission; then the flows alternate.
    assert_eq!(order, [0, 1, 4]);
    link.set_config(ms(5), config);
    let order: Vec<u64> =
        arrivals(&mut link, ms(5), ms(9)).iter().map(|(_, packet)| packet.number).collect();
    assert_eq!(order, [2, 5, 3]);
    // The queue is empty: arrivals are computed on entry again.
    link.handle(ms(20), packet(9, 1_000));
    assert_eq!(link.poll(ms(20)), Output::Timeout(Some(ms(22))));
}

#[test]
fn setting_the_same_configuration_changes_nothing() {
    let config = LinkConfig { queue_bytes: Some(9_000), ..LinkConfig::with_rate(RATE, MS) };
    let mut link = Link::new(config.clone(), 1);
    (0..3).for_each(|number| {
        link.handle(ms(1), packet(number, 1_000));
    });
    link.set_config(ms(2), LinkConfig { delay: 5 * MS, ..config });
    // Queued packets keep the delay that was drawn on entry.
    assert_eq!(times(&arrivals(&mut link, ms(2), ms(90))), [3_000, 4_000, 5_000]);
}
