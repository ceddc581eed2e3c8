//! Copa (Arun and Balakrishnan, "Copa: Practical Delay-Based Congestion Control for the Internet",
//! NSDI 2018): the rate aims at 1 / (delta x queueing delay), by velocity, with a competitive mode where
//! the queue never empties.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

use super::{Control, INITIAL_WINDOW, Progress, Reduction};

/// Section 2.1: delta of the default mode. The velocity rises after three round trips (section 2.1,
/// step 4).
const DEFAULT_DELTA: f64 = 0.5;
const DIRECTION_ROUNDS: u32 = 3;
/// Section 2.1: windows of the minimum and of the standing RTT.
const MIN_RTT_WINDOW: Duration = Duration::from_secs(10);
/// Section 2.2: the queue counts as nearly empty below a tenth of its range in four round trips.
/// After five round trips without that, the mode is competitive.
const NEARLY_EMPTY: f64 = 0.1;
const MAX_RTT_ROUNDS: u32 = 4;
const EMPTY_ROUNDS: u32 = 5;
const MIN_WINDOW: f64 = 2.0;

/// A minimum or maximum over time.
#[derive(Debug, Default)]
struct Extreme {
    /// (time, nanoseconds); the first one is the extreme.
    values: VecDeque<(Timestamp, u64)>,
}

impl Extreme {
    fn update(
        &mut self,
        now: Timestamp,
        rtt: Duration,
        window: Duration,
        is_max: bool,
    ) -> Duration {
        let value = rtt.as_nanos() as u64;
        let is_beaten = |last: u64| if is_max { last <= value } else { last >= value };
        while self.values.back().is_some_and(|&(_, last)| is_beaten(last)) {
            self.values.pop_back();
        }
        self.values.push_back((now, value));
        while self.values.front().is_some_and(|&(at, _)| at + window < now) {
            self.values.pop_front();
        }
        Duration::from_nanos(self.values.front().map_or(value, |&(_, value)| value))
    }
}

/// The controller.
#[derive(Debug)]
pub struct Copa {
    window: f64,
    prior_window: f64,
    in_slow_start: bool,
    delta: f64,
    is_competitive: bool,
    velocity: f64,
    is_rising: bool,
    /// Number of round trips in the same direction.
    same_rounds: u32,
    /// The window at the start of the round trip.
    round_window: f64,
    round_end: u64,
    standing: Extreme,
    min: Extreme,
    max: Extreme,
    standing_rtt: Option<Duration>,
    smoothed: Duration,
    /// Last time at which the queue was nearly empty.
    emptied: Option<Timestamp>,
    /// Whether a loss was handled in this round trip.
    has_lost: bool,
}

impl Default for Copa {
    fn default() -> Self {
        Self {
            window: INITIAL_WINDOW as f64,
            prior_window: 0.0,
            in_slow_start: true,
            delta: DEFAULT_DELTA,
            is_competitive: false,
            velocity: 1.0,
            is_rising: true,
            same_rounds: 0,
            round_window: INITIAL_WINDOW as f64,
            round_end: 0,
            standing: Extreme::default(),
            min: Extreme::default(),
            max: Extreme::default(),
            standing_rtt: None,
            smoothed: Duration::ZERO,
            emptied: None,
            has_lost: false,
        }
    }
}

impl Copa {
    /// Whether the mode is competitive.
    pub fn is_competitive(&self) -> bool {
        self.is_competitive
    }

    /// Section 2.2: chooses the mode and its delta.
    fn update_mode(&mut self, now: Timestamp, queue: Duration, range: Duration) {
        if queue.as_secs_f64() <= NEARLY_EMPTY * range.as_secs_f64() || self.emptied.is_none() {
            self.emptied = Some(now);
        }
        let silent = self.emptied.map_or(Duration::ZERO, |at| now - at);
        let is_competitive = silent > self.smoothed * EMPTY_ROUNDS;
        if self.is_competitive && !is_competitive {
            self.delta = DEFAULT_DELTA;
        }
        self.is_competitive = is_competitive;
    }

    /// Once per round trip: AIMD on 1 / delta, and velocity.
    fn end_round(&mut self) {
        if self.is_competitive && !self.has_lost {
            self.delta = 1.0 / (1.0 / self.delta + 1.0);
        }
        self.has_lost = false;
        let is_rising = self.window > self.round_window;
        if is_rising == self.is_rising {
            self.same_rounds += 1;
            if self.same_rounds >= DIRECTION_ROUNDS {
                self.velocity *= 2.0;
            }
        } else {
            (self.velocity, self.same_rounds) = (1.0, 0);
        }
        self.is_rising = is_rising;
        self.round_window = self.window;
    }
}

impl Control for Copa {
    fn on_ack(&mut self, progress: &Progress) {
        if let Some(rtt) = progress.rtt {
            let now = progress.now;
            self.smoothed = progress.smoothed_rtt.unwrap_or(rtt);
            let standing = self.standing.update(now, rtt, self.smoothed / 2, false);
            let min = self.min.update(now, rtt, MIN_RTT_WINDOW, false);
            let max = self.max.update(now, rtt, self.smoothed * MAX_RTT_ROUNDS, true);
            self.standing_rtt = Some(standing);
            self.update_mode(now, standing - min, max - min);
        }
        let Some(standing) = self.standing_rtt else { return };
        let min =
            self.min.values.front().map_or(standing, |&(_, value)| Duration::from_nanos(value));
        let queue = standing.saturating_sub(min).as_secs_f64();
        let rate = self.window / standing.as_secs_f64().max(1e-6);
        let is_below = rate * self.delta * queue <= 1.0;
        let is_round = progress.delivered_before >= self.round_end;
        if is_round {
            self.round_end = progress.delivered;
            self.end_round();
        }
        let acked = progress.acked as f64;
        if self.in_slow_start {
            if is_below {
                // The window doubles once per round trip.
                self.window += acked;
                return;
            }
            self.in_slow_start = false;
            (self.velocity, self.same_rounds) = (1.0, 0);
        }
        // The velocity resets if the direction differs from that of the last round trip.
        if is_below != self.is_rising && self.velocity > 1.0 {
            (self.velocity, self.same_rounds) = (1.0, 0);
        }
        // At most a doubling of the window per round trip.
        let step = (self.velocity / (self.delta * self.window)).min(1.0) * acked;
        self.window = if is_below { self.window + step } else { self.window - step };
        self.window = self.window.max(MIN_WINDOW);
    }

    fn on_recovery(&mut self, _now: Timestamp, _in_flight: u64) -> Reduction {
        if self.is_competitive {
            // 1 / delta is halved; delta is at most that of the default mode.
            self.delta = (self.delta * 2.0).min(DEFAULT_DELTA);
            self.has_lost = true;
        }
        Reduction::OwnWindow
    }

    fn on_timeout(&mut self, _now: Timestamp, in_flight: u64, is_new: bool) {
        if is_new {
            self.prior_window = self.window;
        }
        self.window = (in_flight as f64 + 1.0).max(MIN_WINDOW);
        self.in_slow_start = true;
        (self.velocity, self.same_rounds) = (1.0, 0);
    }

    fn on_undo(&mut self, _now: Timestamp) {
        self.window = self.window.max(self.prior_window);
    }

    fn window(&self) -> u64 {
        self.window as u64
    }

    fn pace(&self) -> Option<f64> {
        let rtt = self.standing_rtt?.as_secs_f64();
        Some(2.0 * self.window / rtt.max(1e-6))
    }

    fn max_burst(&self) -> u64 {
        // The authors' sender paces single packets. Bursts would look like a queue that never
        // empties.
        1
    }

    fn state(&self) -> &'static str {
        match (self.in_slow_start, self.is_competitive) {
            (true, _) => "slow start",
            (false, true) => "competitive",
            (false, false) => "default",
        }
    }
}
