//! Over-use detection: the trend of the delay, compared with an adaptive threshold
//! (draft-ietf-rmcat-gcc-02 section 5). The trend is a line through the last groups, as in later
//! implementations, instead of the draft's Kalman filter.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

/// Packets sent within this time form a group (section 5.2).
const GROUP: Duration = Duration::from_millis(5);
/// Number of groups for the line.
const GROUPS: usize = 20;
/// Weight of the newest value in the smoothed delay.
const SMOOTHING: f64 = 0.9;
/// Factor for the slope. The slope times this times the number of groups (at most `MOST_GROUPS`) is
/// compared with the threshold in milliseconds.
const GAIN: f64 = 4.0;
const MOST_GROUPS: u32 = 60;
/// `del_var_th(0)` and its bounds, in milliseconds (section 5.4).
const FIRST_THRESHOLD: f64 = 12.5;
const LEAST_THRESHOLD: f64 = 6.0;
const MOST_THRESHOLD: f64 = 600.0;
/// `K_u` and `K_d`: rates per millisecond at which the threshold rises to a trend above it and
/// falls to one below it.
const RISE: f64 = 0.01;
const FALL: f64 = 0.000_18;
/// A trend this far above the threshold, in milliseconds, is a jump, to which the threshold does
/// not adapt.
const LEAP: f64 = 15.0;
/// Maximum time between two adaptations that counts, in milliseconds.
const MOST_STEP: f64 = 100.0;
/// `overuse_time_th`: time for which the trend must exceed the threshold.
const OVERUSE: Duration = Duration::from_millis(10);

/// Result of the detector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    Normal,
    /// The queue grows.
    Over,
    /// The queue shrinks.
    Under,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    first_sent: Timestamp,
    last_sent: Timestamp,
    arrived: Timestamp,
}

/// Arrival-time filter and detector.
#[derive(Debug)]
pub(super) struct Trend {
    group: Option<Group>,
    last: Option<Group>,
    began: Option<Timestamp>,
    /// (arrival time, smoothed delay), both in milliseconds.
    points: VecDeque<(f64, f64)>,
    groups: u32,
    delay: f64,
    smoothed: f64,
    threshold: f64,
    value: f64,
    adapted: Option<Timestamp>,
    over_since: Option<Timestamp>,
    usage: Usage,
}

impl Default for Trend {
    fn default() -> Self {
        Self {
            group: None,
            last: None,
            began: None,
            points: VecDeque::new(),
            groups: 0,
            delay: 0.0,
            smoothed: 0.0,
            threshold: FIRST_THRESHOLD,
            value: 0.0,
            adapted: None,
            over_since: None,
            usage: Usage::Normal,
        }
    }
}

/// Difference of two times in milliseconds; negative if `later` is before `earlier`.
fn millis(later: Timestamp, earlier: Timestamp) -> f64 {
    if later >= earlier {
        (later - earlier).as_secs_f64() * 1e3
    } else {
        -(earlier - later).as_secs_f64() * 1e3
    }
}

impl Trend {
    /// Records a packet sent at `sent` that arrived at `arrived` by the receiver's clock; `now` is
    /// the sender's time.
    pub(super) fn on_packet(
        &mut self,
        now: Timestamp,
        sent: Timestamp,
        arrived: Timestamp,
    ) -> Usage {
        match &mut self.group {
            Some(group) if sent < group.first_sent => {}
            Some(group) if sent - group.first_sent < GROUP => {
                group.last_sent = group.last_sent.max(sent);
                group.arrived = group.arrived.max(arrived);
            }
            _ => {
                let fresh = Group { first_sent: sent, last_sent: sent, arrived };
                if let Some(complete) = self.group.replace(fresh) {
                    self.on_group(now, complete);
                }
            }
        }
        self.usage
    }

    fn on_group(&mut self, now: Timestamp, group: Group) {
        if let Some(last) = self.last.replace(group) {
            let change =
                millis(group.arrived, last.arrived) - millis(group.last_sent, last.last_sent);
            self.groups = (self.groups + 1).min(MOST_GROUPS);
            self.delay += change;
            self.smoothed = SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * self.delay;
            let began = *self.began.get_or_insert(group.arrived);
            if self.points.len() == GROUPS {
                self.points.pop_front();
            }
            self.points.push_back((millis(group.arrived, began), self.smoothed));
            self.detect(now);
        }
    }

    /// Slope of the least-squares line.
    fn slope(&self) -> Option<f64> {
        if self.points.len() < GROUPS / 2 {
            return None;
        }
        let count = self.points.len() as f64;
        let (x, y) =
            self.points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
        let (x, y) = (x / count, y / count);
        let (product, square) = self.points.iter().fold((0.0, 0.0), |(product, square), point| {
            (product + (point.0 - x) * (point.1 - y), square + (point.0 - x).powi(2))
        });
        (square > 0.0).then(|| product / square)
    }

    fn detect(&mut self, now: Timestamp) {
        let Some(slope) = self.slope() else { return };
        let value = slope * f64::from(self.groups) * GAIN;
        let rising = value >= self.value;
        self.value = value;
        if value > self.threshold {
            let since = *self.over_since.get_or_insert(now);
            if now - since >= OVERUSE && rising {
                self.usage = Usage::Over;
            }
        } else {
            self.over_since = None;
            self.usage = if value < -self.threshold { Usage::Under } else { Usage::Normal };
        }
        self.adapt(now, value.abs());
    }

    /// The threshold follows the trend, upwards faster than downwards: otherwise the flow would
    /// starve next to flows that fill the queue.
    fn adapt(&mut self, now: Timestamp, value: f64) {
        let step = self.adapted.replace(now).map_or(0.0, |at| millis(now, at).min(MOST_STEP));
        if value > self.threshold + LEAP {
            return;
        }
        let speed = if value < self.threshold { FALL } else { RISE };
        self.threshold = (self.threshold + step * speed * (value - self.threshold))
            .clamp(LEAST_THRESHOLD, MOST_THRESHOLD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs packets every 5 ms with the delay that `delay` gives, in microseconds. Returns the
    /// results of the detector.
    fn run(delay: impl Fn(u64) -> u64, packets: u64) -> (Trend, Vec<Usage>) {
        let mut trend = Trend::default();
        let said = (0..packets)
            .map(|i| {
                let sent = Timestamp::from_nanos(i * 5_000_000);
                let arrived = sent + Duration::from_micros(1_000_000 + delay(i));
                trend.on_packet(arrived, sent, arrived)
            })
            .collect();
        (trend, said)
    }

    #[test]
    fn the_slope_is_that_of_the_delay() {
        // 0.5 ms of delay per 5 ms of sending, which is 5.5 ms of arrivals.
        let (trend, _) = run(|i| i * 500, 200);
        assert!((trend.slope().expect("points") - 0.5 / 5.5).abs() < 1e-6);
    }

    #[test]
    fn a_queue_that_grows_shrinks_or_stands() {
        assert!(run(|i| i * 500, 100).1.contains(&Usage::Over));
        let (_, said) = run(|i| 100_000 - i * 500, 100);
        assert!(said.contains(&Usage::Under) && !said.contains(&Usage::Over));
        assert!(run(|_| 80_000, 100).1.iter().all(|&usage| usage == Usage::Normal));
    }

    /// A new threshold takes jitter for growth at times; it adapts.
    #[test]
    fn the_threshold_adapts_to_what_comes_again_and_again() {
        let wave = |i: u64| ((i as f64 / 12.0).sin() * 9_000.0 + 9_000.0) as u64;
        let (trend, said) = run(wave, 6_000);
        let over = |said: &[Usage]| said.iter().filter(|&&usage| usage == Usage::Over).count();
        assert!(trend.threshold > FIRST_THRESHOLD, "{}", trend.threshold);
        assert!(over(&said[5_000..]) < over(&said[..1_000]), "less than in the beginning");
    }

    #[test]
    fn times_that_run_backwards_do_no_harm() {
        let mut trend = Trend::default();
        for i in 0..1_000_u64 {
            let sent = Timestamp::from_nanos(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24);
            let arrived = Timestamp::from_nanos(i.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 2);
            trend.on_packet(Timestamp::from_millis(i), sent, arrived);
        }
        assert!(trend.value.is_finite() && trend.points.len() <= GROUPS);
    }
}
