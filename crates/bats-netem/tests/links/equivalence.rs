//! A link with precomputed arrivals and a link with a real queue give the same results.

use bats_netem::{AlternateLoss, DelaySchedule, Jitter, LinkConfig, Loss, RateSchedule, Timestamp};
use core::time::Duration;
use proptest::prelude::*;

use super::{MS, Packet, packet, run};

fn losses() -> impl Strategy<Value = Loss> {
    prop_oneof![
        Just(Loss::None),
        (0.0..=1.0).prop_map(Loss::Iid),
        (0.01..0.5, 1.0..10.0).prop_map(|(loss, burst)| Loss::bursts(loss, burst)),
        Just(Loss::FourState { p13: 0.1, p31: 0.3, p32: 0.2, p23: 0.3, p14: 0.02 }),
    ]
}

prop_compose! {
    fn configs()(
        rate_bps in 100_000_u64..1_000_000_000,
        queue_bytes in proptest::option::of(0_usize..50_000),
        queue_packets in proptest::option::of(0_usize..40),
        delay in 0_u64..30_000,
        jitter in proptest::option::of((0_u64..20_000, any::<bool>())),
        loss in losses(),
        duplicate in prop_oneof![Just(0.0), 0.0..1.0],
        corrupt in prop_oneof![Just(0.0), 0.0..1.0],
        black_hole in proptest::bool::weighted(0.05),
        mark_threshold in proptest::option::of(0_usize..10_000),
        flow_delays in proptest::collection::vec((0_u64..50).prop_map(Duration::from_millis), 0..3),
    ) -> LinkConfig {
        LinkConfig {
            rate_bps: Some(rate_bps),
            queue_bytes,
            queue_packets,
            delay: Duration::from_micros(delay),
            jitter: jitter.map(|(micros, reorder)| {
                Jitter { amplitude: Duration::from_micros(micros), reorder }
            }),
            loss,
            duplicate,
            corrupt,
            black_hole,
            mark_threshold,
            flow_delays,
            mtu: Some(1_900),
            ..LinkConfig::default()
        }
    }
}

fn packets() -> impl Strategy<Value = Vec<(Timestamp, Packet)>> {
    let one = (prop_oneof![Just(0), 0_u64..4_000], 0_usize..2_000, 0_u64..3);
    proptest::collection::vec(one, 1..150).prop_map(|packets| {
        let mut micros = 1_000;
        let numbered = packets.into_iter().zip(0..);
        numbered
            .map(|((gap, len, flow), number)| {
                micros += gap;
                (Timestamp::from_micros(micros), Packet { flow, ..packet(number, len) })
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn queued_and_precomputed_frames_arrive_at_the_same_times(
        config in configs(), packets in packets(), seed: u64,
    ) {
        prop_assert_eq!(config.validate(), Ok(()));
        let (fates, expected, link) = run(&config, seed, &packets);
        // A schedule with a constant rate: random decisions are made on entry.
        let steps = [(7 * MS, config.rate_bps.unwrap())];
        let schedule = RateSchedule::steps(&steps, true).unwrap();
        let scheduled = LinkConfig { rate_schedule: Some(schedule), ..config.clone() };
        let (same_fates, arrivals, other) = run(&scheduled, seed, &packets);
        prop_assert_eq!(&fates, &same_fates);
        if config.flow_delays.len() < 2 && !config.jitter.is_some_and(|jitter| jitter.reorder) {
            prop_assert_eq!(&expected, &arrivals);
        } else {
            prop_assert_eq!(sorted(&expected), sorted(&arrivals));
        }
        let (a, b) = (link.stats(), other.stats());
        prop_assert!((a.queue_byte_seconds - b.queue_byte_seconds).abs() < 1e-6);
        prop_assert_eq!(
            bats_netem::LinkStats { queue_byte_seconds: 0.0, ..a },
            bats_netem::LinkStats { queue_byte_seconds: 0.0, ..b }
        );
        prop_assert_eq!(link.flows().collect::<Vec<_>>(), other.flows().collect::<Vec<_>>());

        // A second loss model that never applies and a delay spike of zero: random decisions are
        // made at the end of the transmission.
        let every = Duration::from_secs(1_000_000);
        let zero = Duration::ZERO;
        let late = LinkConfig {
            alternate_loss: Some(AlternateLoss { loss: Loss::None, every }),
            delay_schedule: Some(DelaySchedule::Spikes { extra: zero, length: zero, period: MS }),
            ..config.clone()
        };
        let (_, arrivals, other) = run(&late, seed, &packets);
        prop_assert_eq!(sorted(&expected), sorted(&arrivals));
        prop_assert_eq!(link.stats().dropped_loss, other.stats().dropped_loss);
        prop_assert_eq!(link.stats().dropped_queue, other.stats().dropped_queue);
        prop_assert_eq!(other.stats().in_flight(), 0);
    }
}

/// Packets that arrive at the same time may be delivered in either order.
fn sorted(arrivals: &[(Timestamp, Packet)]) -> Vec<(Timestamp, u64, bool, bool)> {
    let mut all: Vec<_> = arrivals
        .iter()
        .map(|(at, packet)| (*at, packet.number, packet.is_marked, packet.is_changed))
        .collect();
    all.sort_unstable();
    all
}
