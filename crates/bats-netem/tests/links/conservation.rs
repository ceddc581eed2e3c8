//! For any configuration of a link: each packet is delivered or counted as dropped, time advances,
//! and equal seeds give equal results.

use core::time::Duration;

use bats_netem::{
    AckThinning, AlternateLoss, CoDel, Contention, DelaySchedule, DelaySteps, Discipline, Fade,
    FqCoDel, Holes, Jitter, LeoRate, Link, LinkConfig, Loss, LteRate, Pie, Policer, RateSchedule,
    Slots, StepMark, Timestamp, Trace,
};
use proptest::option::of;
use proptest::prelude::*;

use super::{MS, Packet, arrivals, run};

fn micros(range: core::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_micros)
}

fn schedules() -> impl Strategy<Value = RateSchedule> {
    prop_oneof![
        (1_u64..50_000_000, 1_u64..50, 1_u64..50).prop_map(|(rate, on, off)| {
            RateSchedule::steps(&[(MS * on as u32, rate), (MS * off as u32, 0)], true).unwrap()
        }),
        (0_u64..5_000_000, 5_000_000_u64..50_000_000, micros(1..90_000), micros(0..90_000))
            .prop_map(|(low, high, rise, fall)| RateSchedule::saw(low, high, rise, fall).unwrap()),
        proptest::collection::vec(0_u64..300, 1..60).prop_map(|mut times| {
            times.push(300);
            times.sort_unstable();
            let text: String = times.iter().map(|time| format!("{time}\n")).collect();
            RateSchedule::trace(&Trace::parse(text).unwrap())
        }),
        (100_000_u64..50_000_000, any::<u64>()).prop_map(|(mean, seed)| {
            RateSchedule::Lte(LteRate { step: 10 * MS, ..LteRate::new(mean, seed) })
        }),
        (100_000_u64..50_000_000, any::<u64>()).prop_map(|(base_bps, seed)| {
            RateSchedule::Leo(LeoRate { base_bps, low: 0.1, high: 2.0, period: 40 * MS, seed })
        }),
    ]
}

fn disciplines() -> impl Strategy<Value = Discipline> {
    let codel = CoDel { target: MS, interval: 10 * MS, ..CoDel::default() };
    let pie = Pie { target: 2 * MS, update: MS, max_burst: 5 * MS, ..Pie::default() };
    prop_oneof![
        Just(Discipline::DropTail),
        Just(Discipline::CoDel(codel)),
        Just(Discipline::CoDel(CoDel { ecn: false, ..codel })),
        Just(Discipline::FqCoDel(FqCoDel { codel, quantum: 300, flows: 2 })),
        Just(Discipline::Pie(pie)),
        Just(Discipline::StepMark(StepMark { threshold: 2 * MS })),
    ]
}

prop_compose! {
    fn queues()(
        rate_bps in of(0_u64..100_000_000),
        rate_schedule in of(schedules()),
        queue_bytes in of(0_usize..40_000),
        queue_packets in of(0_usize..40),
        discipline in disciplines(),
        policer in of((0_u64..10_000_000, 0_usize..20_000, any::<bool>())),
        thinning in of((0_usize..800, 0_u32..6, micros(0..9_000))),
        mark_threshold in of(0_usize..10_000),
        epoch in 0_u64..20_000,
    ) -> LinkConfig {
        LinkConfig {
            rate_bps: rate_bps.or(Some(2_000_000)),
            rate_schedule,
            queue_bytes,
            queue_packets,
            discipline,
            policer: policer.map(|(rate_bps, burst_bytes, per_flow)| {
                Policer { rate_bps, burst_bytes, per_flow }
            }),
            thinning: thinning.map(|(max_len, keep_one_of, window)| {
                AckThinning { max_len, keep_one_of, window }
            }),
            mark_threshold,
            epoch: Timestamp::from_micros(epoch),
            ..LinkConfig::default()
        }
    }
}

prop_compose! {
    fn links()(
        queue in queues(),
        is_unlimited in proptest::bool::weighted(0.1),
        delay in micros(0..20_000),
        jitter in of((micros(0..20_000), any::<bool>())),
        extra in of((micros(1..9_000), micros(0..90_000), any::<bool>())),
        flow_delays in proptest::collection::vec(micros(0..30_000), 0..3),
        contention in of(micros(0..9_000)),
        slots in of((micros(1..9_000), 0_u32..4)),
        loss in 0.0..0.3,
        other in of(micros(1..50_000)),
        holes in of((micros(1..60_000), micros(0..60_000), any::<bool>())),
        fade in of(0.0..1.0),
        twice in 0.0..0.2,
        black_hole in proptest::bool::weighted(0.05),
    ) -> LinkConfig {
        let rate_bps = queue.rate_bps.filter(|_| !is_unlimited);
        let rate_schedule = queue.rate_schedule.filter(|_| !is_unlimited);
        LinkConfig {
            rate_bps,
            rate_schedule,
            delay,
            jitter: jitter.map(|(amplitude, reorder)| Jitter { amplitude, reorder }),
            delay_schedule: extra.map(|(length, extra, is_spike)| {
                if is_spike {
                    DelaySchedule::Spikes { extra, length, period: 10 * MS }
                } else {
                    let steps = [(length, extra), (MS, extra / 2)];
                    DelaySchedule::Steps(DelaySteps::new(&steps, true).unwrap())
                }
            }),
            flow_delays,
            contention: contention.map(Contention::wifi),
            slots: slots.map(|(interval, limit)| Slots { interval, limit }),
            loss: Loss::bursts(loss, 3.0),
            alternate_loss: other.map(|every| AlternateLoss { loss: Loss::Iid(0.5), every }),
            holes: holes.map(|(a, b, is_random)| if is_random {
                Holes::Random { mean_gap: a, mean_length: b }
            } else {
                Holes::Periodic { period: a, length: b }
            }),
            fade: fade.map(|loss| Fade { high_bps: 5_000_000, low_bps: 1_000_000, loss }),
            duplicate: twice,
            corrupt: twice,
            mtu: Some(1_900),
            black_hole,
            ..queue
        }
    }
}

fn packets() -> impl Strategy<Value = Vec<(Timestamp, Packet)>> {
    let one = (prop_oneof![Just(0), 0_u64..4_000], 0_usize..2_000, 0_u64..4, any::<bool>());
    proptest::collection::vec(one, 1..150).prop_map(|packets| {
        let mut micros = 1_000;
        let numbered = packets.into_iter().zip(0..);
        numbered
            .map(|((gap, len, flow, is_ect), number)| {
                micros += gap;
                let packet = Packet { number, len, flow, is_ect, ..Packet::default() };
                (Timestamp::from_micros(micros), packet)
            })
            .collect()
    })
}

/// Every packet that was sent is delivered or counted as dropped.
fn check(link: &mut Link<Packet>, delivered: usize, at: Timestamp) {
    let precomputed = link.queue_packets(at);
    let stats = link.stats();
    assert_eq!(stats.delivered, delivered as u64);
    assert_eq!(
        stats.offered + stats.duplicated,
        stats.delivered + stats.dropped() + stats.in_flight(),
        "{stats:?}"
    );
    assert!(precomputed > 0 || link.queue_bytes(at) == 0);
}

proptest! {
    #[test]
    fn packets_are_conserved(config in links(), packets in packets(), seed: u64) {
        let (fates, delivered, mut link) = run(&config, seed, &packets);
        let end = Timestamp::from_millis(10_000_000);
        let mut delivered = delivered;
        // A rate of a few bits per second takes too long: an unlimited rate releases the remaining
        // packets.
        let free = LinkConfig { delay: config.delay, ..LinkConfig::default() };
        link.set_config(end, free);
        delivered.extend(arrivals(&mut link, end, end + Duration::from_secs(1_000)));
        check(&mut link, delivered.len(), end + Duration::from_secs(1_000));
        prop_assert_eq!(link.stats().in_flight(), 0, "{:?}", link.stats());
        prop_assert_eq!(link.queue_bytes(end), 0);
        // The same run again.
        let (same_fates, same, _) = run(&config, seed, &packets);
        prop_assert_eq!(fates, same_fates);
        prop_assert_eq!(&same[..], &delivered[..same.len()]);
    }

    #[test]
    fn late_polls_return_the_same_packets(config in links(), packets in packets(), seed: u64) {
        let (_, expected, _) = run(&config, seed, &packets);
        let mut link = Link::new(config, seed);
        let mut found = Vec::new();
        for (at, packet) in &packets {
            link.handle(*at, packet.clone());
        }
        let last = packets.last().map_or(Timestamp::ZERO, |(at, _)| *at);
        let until = last + Duration::from_secs(1_000);
        while let bats_netem::Output::Deliver(packet) = link.poll(until) {
            found.push((link.last_due(), packet));
        }
        let key = |(at, packet): &(Timestamp, Packet)| (*at, packet.number, packet.is_changed);
        let sort = |list: &[(Timestamp, Packet)]| {
            let mut list: Vec<_> = list.iter().map(key).collect();
            list.sort_unstable();
            list
        };
        prop_assert_eq!(sort(&expected), sort(&found));
    }

    #[test]
    fn configuration_changes_lose_no_packets(
        configs in proptest::collection::vec(links(), 2..5), packets in packets(), seed: u64,
    ) {
        let mut link = Link::new(configs[0].clone(), seed);
        let (mut count, mut last) = (0, Timestamp::ZERO);
        let every = packets.len().div_ceil(configs.len());
        for (index, (at, packet)) in packets.iter().enumerate() {
            count += arrivals(&mut link, last, *at).len();
            last = *at;
            if index % every == 0 {
                link.set_config(*at, configs[index / every].clone());
                check(&mut link, count, *at);
            }
            link.handle(*at, packet.clone());
        }
        count += arrivals(&mut link, last, last + MS).len();
        last += MS;
        link.set_config(last, LinkConfig::default());
        count += arrivals(&mut link, last, last + Duration::from_secs(1_000)).len();
        check(&mut link, count, last + Duration::from_secs(1_000));
        prop_assert_eq!(link.stats().in_flight(), 0, "{:?}", link.stats());
    }
}

#[test]
fn out_of_range_settings_neither_panic_nor_hang() {
    let max = Duration::MAX;
    let wild = LinkConfig {
        rate_bps: Some(u64::MAX),
        queue_bytes: Some(usize::MAX),
        queue_packets: Some(usize::MAX),
        delay: max,
        jitter: Some(Jitter { amplitude: max, reorder: true }),
        delay_schedule: Some(DelaySchedule::Leo { period: max, span: max, seed: 0 }),
        flow_delays: vec![max],
        contention: Some(Contention {
            slot: max,
            long_probability: f64::INFINITY,
            long_slot: max,
            long_mean: f64::NAN,
        }),
        policer: Some(Policer { rate_bps: u64::MAX, burst_bytes: usize::MAX, per_flow: true }),
        thinning: Some(AckThinning { max_len: usize::MAX, keep_one_of: 0, window: max }),
        slots: Some(Slots { interval: Duration::ZERO, limit: 1 }),
        loss: Loss::Iid(f64::NAN),
        alternate_loss: Some(AlternateLoss { loss: Loss::Iid(-1.0), every: Duration::ZERO }),
        holes: Some(Holes::Random { mean_gap: Duration::ZERO, mean_length: Duration::ZERO }),
        fade: Some(Fade { high_bps: u64::MAX, low_bps: u64::MAX - 1, loss: -1.0 }),
        duplicate: f64::INFINITY,
        corrupt: f64::NEG_INFINITY,
        frame_overhead: usize::MAX,
        epoch: Timestamp::MAX,
        ..LinkConfig::default()
    };
    assert!(wild.validate().is_err());
    let lte = LteRate {
        mean_bps: u64::MAX,
        correlation: f64::NAN,
        sigma: f64::INFINITY,
        step: Duration::ZERO,
        floor_bps: u64::MAX,
        ceiling_bps: 0,
        seed: 1,
    };
    let zero = LteRate { mean_bps: 0, floor_bps: 0, ..lte };
    let schedules = [
        None,
        Some(RateSchedule::Lte(lte)),
        Some(RateSchedule::Lte(zero)),
        Some(RateSchedule::steps(&[(MS, 0)], true).unwrap()),
    ];
    let disciplines = [
        Discipline::DropTail,
        Discipline::CoDel(CoDel { target: max, interval: Duration::ZERO, mtu: 0, ecn: false }),
        Discipline::Pie(Pie {
            target: max,
            update: Duration::ZERO,
            max_burst: max,
            alpha: f64::INFINITY,
            beta: f64::NAN,
            ecn: true,
        }),
    ];
    for schedule in schedules {
        for discipline in disciplines {
            for (epoch, overhead) in [(Timestamp::MAX, usize::MAX), (Timestamp::ZERO, 0)] {
                let config = LinkConfig {
                    rate_schedule: schedule.clone(),
                    discipline,
                    epoch,
                    frame_overhead: overhead,
                    ..wild.clone()
                };
                let mut link = Link::new(config, 1);
                for step in 0..40 {
                    let now = Timestamp::from_nanos(step * (u64::MAX / 40));
                    link.handle(now, Packet { len: 1_000, number: step, ..Packet::default() });
                    link.poll(now);
                }
                link.poll(Timestamp::MAX);
                link.set_config(Timestamp::MAX, LinkConfig::default());
                link.queue_bytes(Timestamp::MAX);
            }
        }
    }
}
