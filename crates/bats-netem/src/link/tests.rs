use super::*;
use crate::{Jitter, Loss};

#[derive(Clone, Debug, PartialEq, Eq)]
struct Packet(u64, usize);

impl Payload for Packet {
    fn len(&self) -> usize {
        self.1
    }
    fn corrupt(&mut self, _at: usize, flip: u8) {
        self.0 ^= u64::from(flip) << 32;
    }
    fn mark(&mut self) {}
}

/// Sends `count` packets of 958 bytes (frames of 1,000 bytes) at `interval`. Returns the packets
/// with their arrival times.
fn run(config: LinkConfig, count: u64, interval: Duration) -> (Vec<(Timestamp, u64)>, LinkStats) {
    let config = LinkConfig { frame_overhead: 42, ..config };
    let mut link = Link::new(config, 7);
    let mut arrivals = Vec::new();
    let mut now = Timestamp::from_millis(1);
    let mut drain = |link: &mut Link<Packet>, until: Timestamp| {
        while let Output::Deliver(packet) = link.poll(until) {
            arrivals.push((until, packet.0));
        }
    };
    for i in 0..count {
        link.handle(now, Packet(i, 958));
        now += interval;
        drain(&mut link, now);
    }
    drain(&mut link, now + Duration::from_secs(100));
    let stats = link.stats();
    (arrivals, stats)
}

#[test]
fn rate_delay_and_queue() {
    let mut link = Link::new(
        LinkConfig {
            rate_bps: Some(8_000_000),
            queue_bytes: Some(5_000),
            delay: Duration::from_millis(10),
            frame_overhead: 42,
            ..LinkConfig::default()
        },
        1,
    );
    let now = Timestamp::from_millis(1);
    for i in 0..10 {
        let fate = if i < 5 { Fate::Carried } else { Fate::QueueFull };
        assert_eq!(link.handle(now, Packet(i, 958)), fate);
    }
    // One frame of 1,000 bytes per millisecond: the first packet arrives after 1 + 10 ms, and five
    // fit in the queue.
    assert_eq!(link.poll(now), Output::Timeout(Some(Timestamp::from_millis(12))));
    assert_eq!(link.poll(Timestamp::from_millis(12)), Output::Deliver(Packet(0, 958)));
    assert_eq!(
        link.poll(Timestamp::from_millis(12)),
        Output::Timeout(Some(Timestamp::from_millis(13)))
    );
    assert_eq!(link.stats().dropped_queue, 5);
    assert_eq!(link.queue_bytes(Timestamp::from_millis(3)), 3_000);
}

#[test]
fn every_offered_packet_is_accounted_for() {
    let config = LinkConfig {
        rate_bps: Some(7_000_000),
        queue_bytes: Some(20_000),
        loss: Loss::Iid(0.1),
        duplicate: 0.05,
        corrupt: 0.05,
        jitter: Some(Jitter { amplitude: Duration::from_millis(3), reorder: true }),
        delay: Duration::from_millis(5),
        ..LinkConfig::default()
    };
    let (arrivals, stats) = run(config, 20_000, Duration::from_millis(1));
    assert_eq!(stats.offered, 20_000);
    assert_eq!(
        stats.offered + stats.duplicated,
        stats.delivered + stats.dropped_queue + stats.dropped_loss
    );
    assert_eq!(arrivals.len() as u64, stats.delivered);
    assert!(arrivals.windows(2).any(|pair| pair[0].1 & 0xffff_ffff > pair[1].1 & 0xffff_ffff));
    // 8 Mbit/s are offered to a link of 7 Mbit/s: the queue drops one packet in eight.
    assert!((stats.dropped_queue as f64 / 20_000.0 - 0.125).abs() < 0.01, "{stats:?}");
    assert!(stats.corrupted > 500);
}

#[test]
fn jitter_without_reordering_keeps_the_order() {
    let config = LinkConfig {
        delay: Duration::from_millis(5),
        jitter: Some(Jitter { amplitude: Duration::from_millis(3), reorder: false }),
        ..LinkConfig::default()
    };
    let (arrivals, _) = run(config, 5_000, Duration::from_micros(100));
    assert!(arrivals.windows(2).all(|pair| pair[0].1 < pair[1].1));
}

#[test]
fn mtu_and_black_hole_drop() {
    let small = LinkConfig { mtu: Some(900), ..LinkConfig::default() };
    assert_eq!(run(small, 10, Duration::ZERO).1.dropped_mtu, 10);
    let hole = LinkConfig { black_hole: true, ..LinkConfig::default() };
    assert_eq!(run(hole, 10, Duration::ZERO).1.dropped_black_hole, 10);
}

#[test]
fn equal_seeds_give_equal_fates() {
    let config = LinkConfig { loss: Loss::bursts(0.2, 3.0), ..LinkConfig::default() };
    let a = run(config.clone(), 2_000, Duration::from_micros(10));
    assert_eq!(a, run(config, 2_000, Duration::from_micros(10)));
}
