use core::time::Duration;

use bats_types::Timestamp;

/// Duration of a burst at the pacing rate: short compared with any queue, long compared with a
/// timer.
const BURST_TIME: Duration = Duration::from_micros(250);
/// Minimum and maximum size of a burst in bytes: two full packets, and the limit of one GSO call.
const MIN_BURST: u64 = 2 * 1_472;
const MAX_BURST: u64 = 64 << 10;
/// Maximum delay of a timer that is compensated by sending more.
const CATCH_UP: Duration = Duration::from_millis(2);
/// Minimum rate in bytes per second: a packet in a second, as Linux's fq waits at most. A rate may follow
/// from a few small packets, and what was sent at it would hold packets back long after it has risen.
const MIN_RATE: u64 = 1_472;

/// Paces packets at a rate, in small bursts.
#[derive(Debug)]
pub struct Pacer {
    rate: u64,
    /// Time at which the bytes sent so far would have left at exactly the rate.
    drained_at: Timestamp,
    /// Until then the bytes sent so far take the time of the rate as it rises.
    rising_until: Timestamp,
}

impl Pacer {
    /// A pacer at `rate` bytes per second, `u64::MAX` for no pacing.
    pub fn new(rate: u64) -> Self {
        Self { rate, drained_at: Timestamp::ZERO, rising_until: Timestamp::ZERO }
    }

    /// Changes the rate from now on. What was sent before keeps its time: flows that share a full link and
    /// lose all of a window then leave room for the others.
    pub fn set_rate(&mut self, now: Timestamp, rate: u64) {
        let rate = rate.max(MIN_RATE);
        let ahead = self.drained_at - now;
        if rate > self.rate && now < self.rising_until && ahead > Duration::ZERO {
            let nanos = ahead.as_nanos() * u128::from(self.rate) / u128::from(rate);
            self.drained_at = now + Duration::from_nanos(nanos as u64);
        }
        self.rate = rate;
    }

    /// Lets the next packet leave now: what was sent at the rate of a blackout, or was too large for the path, does not
    /// delay packets after it. Nor does, until `rising_until`, what is sent at the first rates after it.
    pub fn end_blackout(&mut self, now: Timestamp, rising_until: Timestamp) {
        self.drained_at = self.drained_at.min(now);
        self.rising_until = rising_until;
    }

    fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(self.rate)) as u64)
    }

    /// Start time for the next packet: the delay of a late timer is compensated, idle time is not.
    fn start(&self, now: Timestamp) -> Timestamp {
        if now - self.drained_at > CATCH_UP { now } else { self.drained_at }
    }

    fn burst(&self) -> u64 {
        let bytes = self.rate as f64 * BURST_TIME.as_secs_f64();
        (bytes as u64).clamp(MIN_BURST, MAX_BURST)
    }

    /// Time at which `bytes` more may be sent; `None` for now.
    pub fn next_send_time(&self, now: Timestamp, bytes: u64) -> Option<Timestamp> {
        if self.rate == u64::MAX {
            return None;
        }
        // A burst may be ahead of the rate by its duration. After it the pacer waits for a whole
        // burst, so that one timer serves many packets.
        let ahead = self.time_of(self.burst());
        let at = self.start(now);
        if at + self.time_of(bytes) <= now + ahead { None } else { Some(at.max(now)) }
    }

    /// Records that `bytes` were sent now.
    pub fn on_sent(&mut self, now: Timestamp, bytes: u64) {
        if self.rate != u64::MAX {
            self.drained_at = self.start(now) + self.time_of(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends as early as allowed, with a timer that fires `late` after its time.
    fn run(rate: u64, late: Duration) -> (u64, u64) {
        let mut pacer = Pacer::new(rate);
        let (mut now, mut sent, mut largest) = (Timestamp::from_millis(1_000), 0, 0);
        while now < Timestamp::from_millis(2_000) {
            let mut burst = 0;
            while pacer.next_send_time(now, 1_437).is_none() {
                pacer.on_sent(now, 1_437);
                burst += 1_437;
            }
            sent += burst;
            largest = largest.max(burst);
            now = pacer.next_send_time(now, 1_437).unwrap() + late;
        }
        (sent, largest)
    }

    #[test]
    fn rate_is_kept_also_with_late_timers_and_bursts_stay_small() {
        for rate in [125_000, 1_250_000, 125_000_000] {
            for late in [0, 50, 500] {
                let (sent, largest) = run(rate, Duration::from_micros(late));
                let ratio = sent as f64 / rate as f64;
                assert!((0.97..1.05).contains(&ratio), "{rate} {late}: {ratio}");
                assert!(largest <= 2 * MIN_BURST + rate / 1_000, "{rate} {late}: {largest}");
            }
        }
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let mut pacer = Pacer::new(125_000_000);
        pacer.on_sent(Timestamp::from_millis(1), 1_437);
        let now = Timestamp::from_millis(10_000);
        let mut burst = 0;
        while pacer.next_send_time(now, 1_437).is_none() {
            pacer.on_sent(now, 1_437);
            burst += 1_437;
        }
        assert!(burst < 125_000_000 / 1_000, "{burst}");
    }

    #[test]
    fn packets_of_a_blackout_do_not_delay_those_after_it() {
        let mut pacer = Pacer::new(8_000);
        let now = Timestamp::from_millis(1_000);
        pacer.on_sent(now, 4_000);
        pacer.set_rate(now, 1_000_000);
        assert_eq!(pacer.next_send_time(now, 1_200), Some(now + Duration::from_millis(500)));
        pacer.end_blackout(now, now);
        assert_eq!(pacer.next_send_time(now, 1_200), None);
    }

    #[test]
    fn bytes_sent_ahead_take_the_time_of_a_rate_that_rises_after_a_blackout() {
        let now = Timestamp::from_millis(1_000);
        let rising_until = now + Duration::from_millis(10);
        let at = |ms| now + Duration::from_millis(ms);
        let ahead_after = |changed_at: u64, rate| {
            let mut pacer = Pacer::new(8_000);
            pacer.end_blackout(now, rising_until);
            pacer.on_sent(now, 4_000);
            pacer.set_rate(at(changed_at), rate);
            pacer.next_send_time(at(changed_at), 4_000)
        };
        // 500 ms ahead at 8,000 bytes per second, and 492 after 8 ms.
        assert_eq!(ahead_after(0, 1_000_000), Some(at(4)));
        assert_eq!(ahead_after(8, 16_000), Some(at(8 + 246)));
        assert_eq!(ahead_after(8, 4_000), Some(at(500)), "a rate that falls");
        assert_eq!(ahead_after(10, 16_000), Some(at(500)), "later");
    }

    /// A quarter of a millisecond, but at least two packets and at most one GSO call.
    #[test]
    fn a_burst_has_its_length_to_the_byte() {
        let now = Timestamp::from_millis(1_000);
        for (rate, burst) in [(1_000_000, 2_944), (100_000_000, 25_000), (1_000_000_000, 65_536)] {
            let mut pacer = Pacer::new(rate);
            assert_eq!(pacer.next_send_time(now, burst), None);
            assert_eq!(pacer.next_send_time(now, burst + 1), Some(now));
            pacer.on_sent(now, burst);
            let drained = now + Duration::from_nanos(burst * 1_000_000_000 / rate);
            assert_eq!(pacer.next_send_time(now, 1), Some(drained));
        }
    }

    #[test]
    fn two_milliseconds_are_made_up_for_and_no_more() {
        let mut pacer = Pacer::new(1_000_000);
        let start = Timestamp::from_millis(1_000);
        pacer.on_sent(start, 1_000);
        let drained = start + Duration::from_millis(1);
        for (late, burst) in [(2_000, 4_944), (2_001, 2_944)] {
            let now = drained + Duration::from_micros(late);
            assert_eq!(pacer.next_send_time(now, burst), None);
            assert_eq!(pacer.next_send_time(now, burst + 1), Some(now));
        }
    }

    #[test]
    fn packets_sent_at_the_lowest_rate_do_not_delay_others_for_more_than_seconds() {
        let mut pacer = Pacer::new(1_000_000);
        let now = Timestamp::from_millis(1_000);
        pacer.set_rate(now, 28);
        while pacer.next_send_time(now, 1_180).is_none() {
            pacer.on_sent(now, 1_180);
        }
        pacer.set_rate(now, 4_480);
        let at = pacer.next_send_time(now, 1_180).unwrap();
        assert!(at <= now + Duration::from_secs(2), "{at:?}");
    }

    #[test]
    fn rates_have_their_ends() {
        let now = Timestamp::from_millis(1_000);
        let mut pacer = Pacer::new(u64::MAX);
        pacer.on_sent(now, u64::MAX);
        assert_eq!(pacer.next_send_time(now, u64::MAX), None);
        pacer.set_rate(now, 0);
        pacer.on_sent(now, 2_944);
        assert_eq!(pacer.next_send_time(now, 1), Some(now + Duration::from_secs(2)));
    }
}
