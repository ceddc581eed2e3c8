use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BinaryHeap, VecDeque};

use bats_types::Timestamp;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::LinkConfig;

/// A packet as the link sees it.
pub trait Payload: Clone {
    /// Bytes.
    fn len(&self) -> usize;
    /// Changes one byte; `at` is below `len`.
    fn corrupt(&mut self, at: usize, flip: u8);
    /// Sets the ECN-CE mark.
    fn mark(&mut self);
    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a link tells its driver.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<P> {
    /// A packet arrives.
    Deliver(P),
    /// Nothing before this time.
    Timeout(Option<Timestamp>),
}

/// What became of a packet at a link's entrance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It will arrive, perhaps changed or twice.
    Carried,
    /// Dropped because the queue is full.
    QueueFull,
    /// Dropped by the loss model.
    Lost,
    /// Dropped because it is too long.
    TooLong,
    /// Dropped by a black hole.
    BlackHole,
}

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkStats {
    /// Packets handed in.
    pub offered: u64,
    /// Packets delivered, duplicates included.
    pub delivered: u64,
    /// Bytes delivered.
    pub delivered_bytes: u64,
    /// Dropped because the queue was full.
    pub dropped_queue: u64,
    /// Dropped by the loss model.
    pub dropped_loss: u64,
    /// Dropped because they were too long.
    pub dropped_mtu: u64,
    /// Dropped by a black hole.
    pub dropped_black_hole: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Changed.
    pub corrupted: u64,
    /// Marked with ECN-CE.
    pub marked: u64,
    /// Integral of the bytes waiting over time, in byte-seconds.
    pub queue_byte_seconds: f64,
    /// Most bytes that waited.
    pub queue_bytes_max: usize,
}

#[derive(Debug)]
struct Flying<P> {
    at: Timestamp,
    order: u64,
    packet: P,
}

impl<P> PartialEq for Flying<P> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl<P> Eq for Flying<P> {}

impl<P> PartialOrd for Flying<P> {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for Flying<P> {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// One direction of a link.
#[derive(Debug)]
pub struct Link<P> {
    config: LinkConfig,
    rng: ChaCha8Rng,
    bad: bool,
    /// When the rate has dealt with everything handed in.
    busy_until: Timestamp,
    /// Frames that wait for the rate: when each is through, and its bytes.
    waiting: VecDeque<(Timestamp, usize)>,
    waiting_bytes: usize,
    waiting_since: Timestamp,
    in_order: VecDeque<Flying<P>>,
    out_of_order: BinaryHeap<Reverse<Flying<P>>>,
    order: u64,
    stats: LinkStats,
}

impl<P: Payload> Link<P> {
    /// A link whose every random choice follows from `seed`.
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        Self {
            config,
            rng: ChaCha8Rng::seed_from_u64(seed),
            bad: false,
            busy_until: Timestamp::ZERO,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            waiting_since: Timestamp::ZERO,
            in_order: VecDeque::new(),
            out_of_order: BinaryHeap::new(),
            order: 0,
            stats: LinkStats::default(),
        }
    }

    /// How it behaves.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Changes how it behaves; packets on their way are not affected, those that wait keep the
    /// time at which the old rate lets them through.
    pub fn set_config(&mut self, now: Timestamp, config: LinkConfig) {
        self.drain(now);
        self.config = config;
    }

    /// Counters.
    pub fn stats(&self) -> LinkStats {
        self.stats
    }

    /// Bytes that wait for the rate.
    pub fn queue_bytes(&mut self, now: Timestamp) -> usize {
        self.drain(now);
        self.waiting_bytes
    }

    /// Removes from the queue what the rate has let through.
    fn drain(&mut self, now: Timestamp) {
        while let Some(&(through, bytes)) = self.waiting.front()
            && through <= now
        {
            self.account(through);
            self.waiting_bytes -= bytes;
            self.waiting.pop_front();
        }
        self.account(now);
    }

    fn account(&mut self, until: Timestamp) {
        let elapsed = (until - self.waiting_since).as_secs_f64();
        self.stats.queue_byte_seconds += self.waiting_bytes as f64 * elapsed;
        self.waiting_since = self.waiting_since.max(until);
    }

    /// Takes a packet at the link's entrance and says what becomes of it.
    pub fn handle(&mut self, now: Timestamp, mut packet: P) -> Fate {
        self.stats.offered += 1;
        if self.config.mtu.is_some_and(|mtu| packet.len() > mtu) {
            self.stats.dropped_mtu += 1;
            return Fate::TooLong;
        }
        let frame = packet.len() + self.config.frame_overhead;
        let through = match self.config.rate_bps {
            None => now,
            Some(rate) => {
                self.drain(now);
                if self.config.queue_bytes.is_some_and(|limit| self.waiting_bytes + frame > limit) {
                    self.stats.dropped_queue += 1;
                    return Fate::QueueFull;
                }
                if self.config.mark_threshold.is_some_and(|limit| self.waiting_bytes > limit) {
                    self.stats.marked += 1;
                    packet.mark();
                }
                let nanos = frame as u128 * 8_000_000_000 / u128::from(rate.max(1));
                let through = self.busy_until.max(now) + Duration::from_nanos(nanos as u64);
                self.busy_until = through;
                self.waiting.push_back((through, frame));
                self.waiting_bytes += frame;
                self.stats.queue_bytes_max = self.stats.queue_bytes_max.max(self.waiting_bytes);
                through
            }
        };
        if self.config.black_hole {
            self.stats.dropped_black_hole += 1;
            return Fate::BlackHole;
        }
        if self.config.loss.draw(&mut self.bad, &mut self.rng) {
            self.stats.dropped_loss += 1;
            return Fate::Lost;
        }
        if self.config.corrupt > 0.0
            && !packet.is_empty()
            && self.rng.random::<f64>() < self.config.corrupt
        {
            self.stats.corrupted += 1;
            let at = self.rng.random_range(0..packet.len());
            packet.corrupt(at, self.rng.random_range(1..=255));
        }
        if self.config.duplicate > 0.0 && self.rng.random::<f64>() < self.config.duplicate {
            self.stats.duplicated += 1;
            self.fly(through, packet.clone());
        }
        self.fly(through, packet);
        Fate::Carried
    }

    fn fly(&mut self, through: Timestamp, packet: P) {
        let mut at = through + self.config.delay;
        let mut reorder = false;
        if let Some(jitter) = self.config.jitter {
            let amplitude = jitter.amplitude.as_nanos() as u64;
            let shift = self.rng.random_range(0..=2 * amplitude);
            at = (at + Duration::from_nanos(shift)).saturating_sub(jitter.amplitude).max(through);
            reorder = jitter.reorder;
        }
        self.order += 1;
        let flying = Flying { at, order: self.order, packet };
        if reorder {
            self.out_of_order.push(Reverse(flying));
        } else {
            let last = self.in_order.back().map_or(Timestamp::ZERO, |last| last.at);
            self.in_order.push_back(Flying { at: at.max(last), ..flying });
        }
    }

    /// The next packet that has arrived by `now`, or when there will be one.
    pub fn poll(&mut self, now: Timestamp) -> Output<P> {
        let first = self.in_order.front().map(|flying| (flying.at, flying.order));
        let other = self.out_of_order.peek().map(|Reverse(flying)| (flying.at, flying.order));
        let next = match (first, other) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if next.is_none_or(|(at, _)| at > now) {
            return Output::Timeout(next.map(|(at, _)| at));
        }
        let flying = if next == first {
            self.in_order.pop_front()
        } else {
            self.out_of_order.pop().map(|Reverse(flying)| flying)
        };
        let Some(flying) = flying else { return Output::Timeout(None) };
        self.stats.delivered += 1;
        self.stats.delivered_bytes += flying.packet.len() as u64;
        Output::Deliver(flying.packet)
    }
}

#[cfg(test)]
mod tests {
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

    /// Sends `count` packets of 958 bytes (1000 with the frame) at `interval` and returns
    /// arrivals with their times.
    fn run(
        config: LinkConfig,
        count: u64,
        interval: Duration,
    ) -> (Vec<(Timestamp, u64)>, LinkStats) {
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
        // 1000 bytes a millisecond: the first arrives after 1 + 10 ms, five fit the queue.
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
    fn everything_offered_is_accounted_for() {
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
        // 8 Mbit/s offered to 7: one in eight is dropped by the queue.
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
    fn same_seed_same_fate() {
        let config = LinkConfig { loss: Loss::bursts(0.2, 3.0), ..LinkConfig::default() };
        let a = run(config.clone(), 2_000, Duration::from_micros(10));
        assert_eq!(a, run(config, 2_000, Duration::from_micros(10)));
    }
}
