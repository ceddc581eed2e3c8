//! Delays from the end of the transmission to the arrival.

use core::time::Duration;

use bats_netem::{Contention, DelaySchedule, LinkConfig, Slots, Timestamp};

use super::{MS, Packet, ms, packet, run};

#[test]
fn a_spike_delays_and_keeps_the_order() {
    let spikes = DelaySchedule::Spikes { extra: 100 * MS, length: 200 * MS, period: 2_000 * MS };
    let config =
        LinkConfig { delay: 20 * MS, delay_schedule: Some(spikes), ..LinkConfig::default() };
    let packets: Vec<_> = (0..400).map(|number| (ms(10 * number), packet(number, 100))).collect();
    let (_, all, _) = run(&config, 1, &packets);
    for (index, (at, packet)) in all.iter().enumerate() {
        assert_eq!(packet.number, index as u64);
        let sent = 10 * packet.number;
        // The last packet of the spike arrives at 2,110 ms; earlier arrivals wait for it.
        let due = match sent % 2_000 {
            0..=80 if sent >= 2_000 => sent - sent % 2_000 + 110,
            1_800.. => sent + 120,
            _ => sent + 20,
        };
        assert_eq!(at.as_micros() / 1_000, due.max(sent + 20), "{sent}");
    }
}

#[test]
fn each_flow_has_its_own_delay() {
    let config = LinkConfig {
        flow_delays: vec![Duration::ZERO, 45 * MS],
        delay: 5 * MS,
        ..LinkConfig::with_rate(8_000_000, 5 * MS)
    };
    let packets: Vec<_> = (0..10)
        .map(|number| (ms(1), Packet { flow: number % 2, ..packet(number, 1_000) }))
        .collect();
    let (_, all, _) = run(&config, 1, &packets);
    let seen: Vec<_> = all.iter().map(|(at, p)| (at.as_micros() / 1_000, p.number)).collect();
    let (fast, slow) = seen.split_at(5);
    assert_eq!(fast, [(7, 0), (9, 2), (11, 4), (13, 6), (15, 8)]);
    assert_eq!(slow, [(53, 1), (55, 3), (57, 5), (59, 7), (61, 9)]);
}

#[test]
fn slots_deliver_in_batches() {
    let slots = Slots { interval: 10 * MS, limit: 4 };
    let config = LinkConfig { slots: Some(slots), epoch: ms(3), ..LinkConfig::default() };
    let packets: Vec<_> = (0..10).map(|number| (ms(5 + number), packet(number, 9))).collect();
    let (_, all, _) = run(&config, 1, &packets);
    let seen: Vec<_> = all.iter().map(|(at, p)| (at.as_micros() / 1_000, p.number)).collect();
    let at = |slot: u64, numbers: core::ops::Range<u64>| numbers.map(move |n| (slot, n));
    // 9 packets are due by 13 ms.
    let expected: Vec<_> = at(13, 0..4).chain(at(23, 4..8)).chain(at(33, 8..10)).collect();
    assert_eq!(seen, expected);
}

#[test]
fn contention_delays_and_keeps_the_order() {
    let config = LinkConfig { contention: Some(Contention::wifi(7 * MS)), ..LinkConfig::default() };
    let packets: Vec<_> = (0..5_000)
        .map(|number| (Timestamp::from_micros(500 * number), packet(number, 9)))
        .collect();
    let (_, all, _) = run(&config, 1, &packets);
    assert!(all.windows(2).all(|pair| pair[0].1.number < pair[1].1.number));
    let late = all.iter().filter(|(at, p)| at.as_micros() > 500 * p.number + 50_000).count();
    assert!((1_000..5_000).contains(&late), "{late}");
}
