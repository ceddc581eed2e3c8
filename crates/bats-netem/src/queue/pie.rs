use core::time::Duration;

use bats_types::Timestamp;
use rand::{Rng, RngExt};

/// Parameters of PIE (RFC 8033).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pie {
    /// Target delay (section 4.2: QDELAY_REF, 15 ms).
    pub target: Duration,
    /// Interval between updates of the drop probability (section 4.2: T_UPDATE, 15 ms), at least
    /// 100 us.
    pub update: Duration,
    /// Duration for which bursts pass without drops (section 4.4: MAX_BURST, 150 ms).
    pub max_burst: Duration,
    /// Weight of the deviation from the target delay, per second (section 4.2: alpha, 0.125).
    pub alpha: f64,
    /// Weight of the change of the delay, per second (section 4.2: beta, 1.25).
    pub beta: f64,
    /// Whether ECN-capable packets are marked instead of dropped while the probability is at most
    /// 0.1 (section 5.1).
    pub ecn: bool,
}

impl Default for Pie {
    fn default() -> Self {
        Self {
            target: Duration::from_millis(15),
            update: Duration::from_millis(15),
            max_burst: Duration::from_millis(150),
            alpha: 0.125,
            beta: 1.25,
            ecn: true,
        }
    }
}

/// Mean packet size, for the rule that a short queue is not dropped from (section 4.1). Linux uses
/// the MTU.
const MEAN_PKTSIZE: usize = 1_024;
/// Probability up to which ECN-capable packets are marked (section 5.1: 10 %).
const MARK_ECNTH: f64 = 0.1;
/// Bounds of the accumulated probability between two drops (section 5.4).
const ACCUMULATED: (f64, f64) = (0.85, 8.5);
/// Maximum step of a probability of 0.1 and above (section 5.5).
const MAX_STEP: f64 = 0.02;
/// Maximum number of missed updates that are computed after an idle time. After 2,048 updates
/// without delay, a probability of 1 is below 10^-17.
const MAX_UPDATES: u64 = 4_096;

/// Decision about a packet that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    Mark,
    Drop,
}

/// The controller of section 4. It uses the sojourn times of packets, as section 4.3 allows and
/// Linux does by default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieState {
    drop_prob: f64,
    accu_prob: f64,
    /// In seconds.
    qdelay: f64,
    qdelay_old: f64,
    burst_allowance: Duration,
    next_update: Option<Timestamp>,
}

impl PieState {
    pub(super) fn new(config: &Pie) -> Self {
        Self {
            drop_prob: 0.0,
            accu_prob: 0.0,
            qdelay: 0.0,
            qdelay_old: 0.0,
            burst_allowance: config.max_burst,
            next_update: None,
        }
    }

    /// Section 4.2, `calculate_drop_prob`, and the burst allowance of section 4.4.
    fn update(&mut self, config: &Pie) {
        let target = config.target.as_secs_f64();
        let mut p =
            config.alpha * (self.qdelay - target) + config.beta * (self.qdelay - self.qdelay_old);
        p /= match self.drop_prob {
            x if x < 0.000_001 => 2_048.0,
            x if x < 0.000_01 => 512.0,
            x if x < 0.000_1 => 128.0,
            x if x < 0.001 => 32.0,
            x if x < 0.01 => 8.0,
            x if x < 0.1 => 2.0,
            _ => 1.0,
        };
        if self.drop_prob >= 0.1 && p > MAX_STEP {
            p = MAX_STEP;
        }
        self.drop_prob += p;
        if self.qdelay == 0.0 && self.qdelay_old == 0.0 {
            self.drop_prob *= 0.98;
        }
        self.drop_prob = if self.drop_prob.is_nan() { 0.0 } else { self.drop_prob.clamp(0.0, 1.0) };
        self.burst_allowance = self.burst_allowance.saturating_sub(config.update);
        let is_calm = |delay: f64| delay < target / 2.0;
        if self.drop_prob == 0.0 && is_calm(self.qdelay) && is_calm(self.qdelay_old) {
            self.burst_allowance = config.max_burst;
        }
        self.qdelay_old = self.qdelay;
    }

    /// Computes the updates that were due by `now`.
    fn catch_up(&mut self, config: &Pie, now: Timestamp) {
        let interval = config.update.max(Duration::from_micros(100));
        let mut next = *self.next_update.get_or_insert(now + interval);
        let mut done = 0;
        while next <= now {
            if done >= MAX_UPDATES {
                next = now + interval;
                break;
            }
            self.update(config);
            next += interval;
            done += 1;
            if next == Timestamp::MAX {
                break;
            }
        }
        self.next_update = Some(next);
    }

    /// Section 4.1, `drop_early`, with the burst allowance of section 4.4, ECN of section 5.1 and
    /// de-randomisation of section 5.4. `backlog` is the number of queued bytes without this
    /// packet.
    pub(super) fn on_arrival(
        &mut self,
        config: &Pie,
        now: Timestamp,
        backlog: usize,
        is_ect: bool,
        rng: &mut impl Rng,
    ) -> Verdict {
        self.catch_up(config, now);
        if !self.burst_allowance.is_zero() {
            return Verdict::Pass;
        }
        if (self.qdelay_old < config.target.as_secs_f64() / 2.0 && self.drop_prob < 0.2)
            || backlog <= 2 * MEAN_PKTSIZE
        {
            return Verdict::Pass;
        }
        if self.drop_prob == 0.0 {
            self.accu_prob = 0.0;
        }
        self.accu_prob += self.drop_prob;
        if self.accu_prob < ACCUMULATED.0 {
            return Verdict::Pass;
        }
        if self.accu_prob < ACCUMULATED.1 && rng.random::<f64>() >= self.drop_prob {
            return Verdict::Pass;
        }
        self.accu_prob = 0.0;
        if config.ecn && is_ect && self.drop_prob <= MARK_ECNTH {
            Verdict::Mark
        } else {
            Verdict::Drop
        }
    }

    /// A packet leaves the queue; `backlog` bytes remain.
    pub(super) fn on_departure(
        &mut self,
        config: &Pie,
        now: Timestamp,
        entered: Timestamp,
        backlog: usize,
    ) {
        self.catch_up(config, now);
        self.qdelay = if backlog == 0 { 0.0 } else { (now - entered).as_secs_f64() };
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::super::testing::{Bench, Packet};
    use super::super::{Discipline, Entry};
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn probability_updates_match_manual_computation() {
        let config = Pie::default();
        let mut state = PieState::new(&config);
        // alpha * (35 - 15) ms + beta * (35 - 0) ms = 2.5e-3 + 43.75e-3, scaled by 1/2048.
        state.qdelay = 0.035;
        state.update(&config);
        let first = 46.25e-3 / 2_048.0;
        assert!((state.drop_prob - first).abs() < 1e-12);
        assert_eq!(state.burst_allowance, 135 * MS);
        // 2.258e-5 is below 1e-4, so the scale is 1/128; the delay does not change.
        state.update(&config);
        let second = first + 2.5e-3 / 128.0;
        assert!((state.drop_prob - second).abs() < 1e-12);
        // Above 0.1 the step is not scaled, and is at most 2 %.
        state.drop_prob = 0.1;
        state.qdelay = 0.235;
        state.update(&config);
        assert!((state.drop_prob - 0.12).abs() < 1e-12);
        // A delay below the target lowers the probability: 0.125 * -5 ms, no change of the delay.
        (state.qdelay, state.qdelay_old) = (0.010, 0.010);
        state.update(&config);
        assert!((state.drop_prob - (0.12 - 0.625e-3)).abs() < 1e-12);
        // Without delay the probability decays to zero, and bursts are allowed again.
        (state.qdelay, state.qdelay_old, state.burst_allowance) = (0.0, 0.0, Duration::ZERO);
        state.drop_prob = 0.5;
        state.update(&config);
        assert!((state.drop_prob - (0.5 - 1.875e-3) * 0.98).abs() < 1e-12);
        (0..2_000).for_each(|_| state.update(&config));
        assert_eq!((state.drop_prob, state.burst_allowance), (0.0, config.max_burst));
    }

    #[test]
    fn drops_follow_the_probability_and_are_spread_out() {
        let config = Pie::default();
        let mut state = PieState::new(&config);
        state.burst_allowance = Duration::ZERO;
        (state.qdelay, state.qdelay_old, state.drop_prob) = (0.02, 0.02, 0.05);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let now = Timestamp::from_millis(1);
        let (mut gaps, mut gap) = (Vec::new(), 0);
        for _ in 0..200_000 {
            gap += 1;
            match state.on_arrival(&config, now, 10_000, false, &mut rng) {
                Verdict::Drop => gaps.push(core::mem::take(&mut gap)),
                verdict => assert_eq!(verdict, Verdict::Pass),
            }
        }
        // Drops are at least 0.85 / 0.05 and at most 8.5 / 0.05 packets apart; above the minimum 1
        // / 0.05 more on average.
        assert!(gaps.iter().all(|gap| (17..=171).contains(gap)), "{gaps:?}");
        let mean = gaps.iter().sum::<i32>() as f64 / gaps.len() as f64;
        assert!((mean - 36.0).abs() < 1.5, "{mean}");
        // A short queue, a burst and a queue with a short delay are not dropped from.
        let pass = |state: &mut PieState, backlog| {
            let mut rng = ChaCha8Rng::seed_from_u64(1);
            (0..1_000)
                .all(|_| state.on_arrival(&config, now, backlog, false, &mut rng) == Verdict::Pass)
        };
        assert!(!pass(&mut state, 2_049));
        assert!(pass(&mut state, 2_048));
        state.qdelay_old = 0.007;
        assert!(pass(&mut state, 10_000));
        (state.qdelay_old, state.burst_allowance) = (0.1, MS);
        assert!(pass(&mut state, 10_000));
    }

    #[test]
    fn a_queue_settles_at_the_target() {
        let mut bench = Bench::new(Discipline::Pie(Pie::default()));
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        // 12 Mbit/s: one packet of 1,500 bytes leaves per millisecond; 5 % more arrive.
        let (mut number, mut early, mut delays) = (0, 0, Vec::new());
        for ms in 0..200_000_u64 {
            let now = Timestamp::from_millis(1_000 + ms);
            for _ in 0..1 + u64::from(rng.random::<f64>() < 0.05) {
                number += 1;
                let packet = Packet { number, len: 1_500, ..Packet::default() };
                early += u64::from(bench.offer(now, packet) == Entry::Early);
            }
            if ms > 50_000 {
                delays.push(bench.backlog.packets as f64);
            }
            bench.next(now);
        }
        let mean = delays.iter().sum::<f64>() / delays.len() as f64;
        assert!((10.0..20.0).contains(&mean), "{mean} ms");
        let share = early as f64 / number as f64;
        assert!((share - 0.05 / 1.05).abs() < 0.01, "{share}");
    }

    #[test]
    fn ecn_capable_packets_are_marked_up_to_a_tenth() {
        let config = Pie::default();
        let now = Timestamp::from_millis(1);
        for (drop_prob, expected) in [(0.1, Verdict::Mark), (0.11, Verdict::Drop)] {
            let mut state = PieState { drop_prob, ..PieState::new(&config) };
            (state.qdelay_old, state.accu_prob, state.burst_allowance) = (0.1, 8.5, Duration::ZERO);
            let mut rng = ChaCha8Rng::seed_from_u64(1);
            assert_eq!(state.on_arrival(&config, now, 10_000, true, &mut rng), expected);
        }
    }

    #[test]
    fn updates_missed_during_idle_time_are_computed() {
        let config = Pie::default();
        let mut state = PieState::new(&config);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        state.on_arrival(&config, Timestamp::ZERO, 0, false, &mut rng);
        state.drop_prob = 1.0;
        state.on_arrival(&config, Timestamp::MAX, 0, false, &mut rng);
        assert!(state.drop_prob < 1e-9);
    }
}
