//! Links with changing rates, timed loss, policers and thinning.

use core::time::Duration;

use bats_netem::{
    AckThinning, AlternateLoss, ETHERNET_OVERHEAD, Fade, Fate, Holes, Link, LinkConfig, Loss,
    LteRate, Pie, Policer, RateSchedule, StepMark, Timestamp, Trace,
};
use bats_netem::{CoDel, Discipline};

use super::{MS, Packet, RATE, arrivals, ms, packet, run};

#[test]
fn a_link_with_rate_zero_pauses_and_resumes() {
    let steps = [(10 * MS, RATE), (20 * MS, 0)];
    let schedule = RateSchedule::steps(&steps, true).unwrap();
    let config = LinkConfig::with_schedule(schedule, MS);
    let packets: Vec<_> = (0..15).map(|number| (ms(5), packet(number, 1_000))).collect();
    let (_, all, link) = run(&config, 1, &packets);
    let at: Vec<u64> = all.iter().map(|(at, _)| at.as_micros() / 1_000).collect();
    assert_eq!(at, [7, 8, 9, 10, 11, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41]);
    assert_eq!(link.sojourn().max(), 34 * MS);
    assert_eq!(link.sojourn().count(), 15);
}

#[test]
fn a_trace_delivers_its_opportunities() {
    let text: String = (0..1_000).map(|k| format!("{}\n", 1 + k / 3 + k % 2)).collect();
    let mut lines: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
    lines.sort_unstable();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let trace = Trace::parse(&text).unwrap();
    let config = LinkConfig::with_schedule(RateSchedule::trace(&trace), Duration::ZERO);
    let packets: Vec<_> =
        (0..1_500).map(|number| (Timestamp::ZERO, packet(number, 1_500))).collect();
    let (_, all, _) = run(&config, 1, &packets);
    // A full queue is sent at the opportunities, each packet within its millisecond.
    let length = trace.length().as_micros() as u64;
    for (index, (at, _)) in all.iter().enumerate() {
        let line = lines[index % lines.len()] * 1_000 + index as u64 / 1_000 * length;
        assert!(at.as_micros() <= line && at.as_micros() + 1_000 >= line, "{index}: {at} {line}");
    }
}

#[test]
fn a_generated_rate_is_fully_used() {
    let rate = RateSchedule::Lte(LteRate::new(10_000_000, 4));
    let epoch = ms(50);
    let config = LinkConfig { epoch, ..LinkConfig::with_schedule(rate.clone(), Duration::ZERO) };
    let packets: Vec<_> = (0..20_000).map(|number| (ms(1), packet(number, 1_000))).collect();
    let (_, all, _) = run(&config, 1, &packets);
    let last = all.last().unwrap().0;
    let bits = rate.bits(epoch, ms(1), last);
    // Each frame is rounded down to a nanosecond: less than one bit at these rates.
    assert!((bits - 20_000.0 * 8_000.0).abs() < 20_000.0, "{bits}");
    assert!(rate.rate_at(epoch, ms(5_000)) >= 200_000);
}

#[test]
fn timed_loss_applies_at_the_end_of_the_transmission() {
    let packets: Vec<_> = (0..1_000).map(|number| (ms(number), packet(number, 100))).collect();
    let lost = |config: LinkConfig| {
        let (fates, all, link) = run(&config, 1, &packets);
        assert!(fates.iter().all(|fate| matches!(fate, Fate::Carried | Fate::Lost)));
        let arrived: Vec<u64> = all.iter().map(|(_, packet)| packet.number).collect();
        let lost: Vec<u64> = (0..1_000).filter(|number| !arrived.contains(number)).collect();
        (lost, link.stats())
    };
    let holes = Some(Holes::Periodic { period: 500 * MS, length: 50 * MS });
    let (numbers, stats) = lost(LinkConfig { holes, ..LinkConfig::default() });
    assert_eq!(numbers, (450..500).chain(950..1_000).collect::<Vec<_>>());
    assert_eq!((stats.dropped_hole, stats.dropped_loss), (100, 0));
    // With a rate, the end of the transmission counts: 0.1 ms later.
    let (numbers, stats) = lost(LinkConfig { holes, ..LinkConfig::with_rate(RATE, MS) });
    assert_eq!(numbers, (450..500).chain(950..1_000).collect::<Vec<_>>());
    assert_eq!(stats.dropped(), 100);

    let alternate_loss = Some(AlternateLoss { loss: Loss::Iid(1.0), every: 300 * MS });
    let (numbers, stats) = lost(LinkConfig { alternate_loss, ..LinkConfig::default() });
    assert_eq!(numbers, (300..600).chain(900..1_000).collect::<Vec<_>>());
    assert_eq!(stats.dropped_loss, 400);

    let steps = [(400 * MS, 10 * RATE), (600 * MS, RATE)];
    let rate = RateSchedule::steps(&steps, true).unwrap();
    let fade = Some(Fade { high_bps: 10 * RATE, low_bps: RATE, loss: 1.0 });
    let (numbers, stats) = lost(LinkConfig { fade, ..LinkConfig::with_schedule(rate, MS) });
    assert_eq!(numbers, (400..1_000).collect::<Vec<_>>());
    assert_eq!(stats.dropped_fade, 600);
}

#[test]
fn a_policer_drops_on_entry() {
    let policer = Policer { rate_bps: RATE, burst_bytes: 3_114, per_flow: true };
    let config = LinkConfig {
        policer: Some(policer),
        frame_overhead: ETHERNET_OVERHEAD,
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 1);
    let fates: Vec<Fate> = (0..4).map(|number| link.handle(ms(1), packet(number, 1_000))).collect();
    assert_eq!(fates, [Fate::Carried, Fate::Carried, Fate::Carried, Fate::Policed]);
    assert_eq!(link.handle(ms(1), Packet { flow: 5, ..packet(9, 1_000) }), Fate::Carried);
    // 1,038 bytes of tokens return within 1.038 ms.
    assert_eq!(link.handle(Timestamp::from_micros(2_037), packet(5, 1_000)), Fate::Policed);
    assert_eq!(link.handle(Timestamp::from_micros(2_038), packet(6, 1_000)), Fate::Carried);
    assert_eq!((link.stats().dropped_policer, link.flow_stats(0).dropped), (2, 2));
    assert_eq!(link.flows().count(), 1);
}

#[test]
fn thinned_acknowledgements_wait_at_most_for_their_window() {
    let thinning = AckThinning { max_len: 80, keep_one_of: 4, window: 2 * MS };
    let config = LinkConfig { thinning: Some(thinning), delay: MS, ..LinkConfig::default() };
    let mut link = Link::new(config, 1);
    for number in 0..6 {
        assert_eq!(link.handle(ms(1), packet(number, 60)), Fate::Carried);
    }
    // The fourth packet is sent at once, the sixth after the window.
    let all = arrivals(&mut link, ms(1), ms(100));
    let seen: Vec<_> = all.iter().map(|(at, packet)| (at.as_micros(), packet.number)).collect();
    assert_eq!(seen, [(2_000, 3), (4_000, 5)]);
    assert_eq!(link.stats().dropped_thinned, 4);
    // A larger packet releases the held one before it.
    link.handle(ms(200), packet(7, 60));
    link.handle(ms(200), packet(8, 1_000));
    let all = arrivals(&mut link, ms(200), ms(300));
    let seen: Vec<_> = all.iter().map(|(at, packet)| (at.as_micros(), packet.number)).collect();
    assert_eq!(seen, [(201_000, 7), (201_000, 8)]);
}

/// Offers a queue a fifth more than its rate for ten seconds. Returns the 95th percentile of the
/// sojourn time in milliseconds, drops and marks.
fn overload(discipline: Discipline, is_ect: bool) -> (f64, u64, u64) {
    let config = LinkConfig::with_rate(RATE, MS).queue(200_000, discipline);
    let packets: Vec<_> = (0..12_000)
        .map(|number| {
            let at = Timestamp::from_nanos(1 + number * 833_333);
            (at, Packet { is_ect, ..packet(number, 1_000) })
        })
        .collect();
    let (_, _, link) = run(&config, 1, &packets);
    let (stats, sojourn) = (link.stats(), link.sojourn());
    assert_eq!(sojourn.count() + stats.dropped(), 12_000);
    (sojourn.quantile(0.95).as_secs_f64() * 1e3, stats.dropped(), stats.marked_aqm)
}

#[test]
fn disciplines_bound_the_delay_under_overload() {
    let (tail, tail_drops, _) = overload(Discipline::DropTail, true);
    assert!((190.0..210.0).contains(&tail) && tail_drops > 1_500, "{tail} {tail_drops}");
    let pie = Discipline::Pie(Pie::default());
    let (delay, drops, marks) = overload(pie, false);
    assert!(delay < 190.0 && drops > 800 && marks == 0, "{delay} {drops}");
    let (_, _, marks) = overload(pie, true);
    // Marks are used only while the probability is at most a tenth, and this overload needs more.
    assert!((1..100).contains(&marks), "{marks}");
    let (_, drops, marks) = overload(Discipline::CoDel(CoDel::default()), false);
    assert!(drops > 500 && marks == 0, "{drops}");
    let (_, drops, marks) = overload(Discipline::StepMark(StepMark::default()), true);
    assert!(marks > 9_000 && drops == tail_drops, "{marks} {drops}");
}
