//! CUBIC for TCP (RFC 9438). Slow start ends at a loss or by the delay increase of HyStart++
//! (RFC 9406, without conservative slow start). Independent of the protocol's implementation, so
//! that each can be checked against the other.

use core::time::Duration;

use bats_types::Timestamp;

use super::{AckSample, Control};

const C: f64 = 0.4;
const BETA: f64 = 0.7;
const INITIAL_WINDOW: f64 = 10.0;

/// The controller.
#[derive(Debug)]
pub struct Cubic {
    window: f64,
    threshold: f64,
    w_max: f64,
    k: f64,
    reno: f64,
    prior: f64,
    epoch: Option<Timestamp>,
    rtt: Duration,
    round_end: u64,
    round_min_rtt: Duration,
    previous_min_rtt: Option<Duration>,
    samples: u32,
}

impl Default for Cubic {
    fn default() -> Self {
        Self {
            window: INITIAL_WINDOW,
            threshold: f64::INFINITY,
            w_max: 0.0,
            k: 0.0,
            reno: 0.0,
            prior: 0.0,
            epoch: None,
            rtt: Duration::from_millis(100),
            round_end: 0,
            round_min_rtt: Duration::MAX,
            previous_min_rtt: None,
            samples: 0,
        }
    }
}

impl Cubic {
    fn reduce(&mut self, now: Timestamp) {
        let convergence_factor = if self.window < self.w_max { (1.0 + BETA) / 2.0 } else { 1.0 };
        self.prior = self.window;
        self.w_max = self.window * convergence_factor;
        self.window = (self.window * BETA).max(2.0);
        self.threshold = self.window;
        self.start_epoch(now);
    }

    fn start_epoch(&mut self, now: Timestamp) {
        self.epoch = Some(now);
        self.reno = self.window;
        self.k = ((self.w_max - self.window).max(0.0) / C).cbrt();
    }

    fn avoid_congestion(&mut self, now: Timestamp, acked: f64) {
        if self.epoch.is_none() {
            (self.w_max, self.prior) = (self.window, self.window);
            self.start_epoch(now);
        }
        let t = self.epoch.map_or(0.0, |since| (now - since).as_secs_f64());
        let curve = |t: f64| C * (t - self.k).powi(3) + self.w_max;
        let alpha = if self.reno < self.prior { 3.0 * (1.0 - BETA) / (1.0 + BETA) } else { 1.0 };
        self.reno += alpha * acked / self.window;
        self.window = if curve(t) < self.reno {
            self.window.max(self.reno)
        } else {
            let target = curve(t + self.rtt.as_secs_f64()).clamp(self.window, 1.5 * self.window);
            self.window + (target - self.window) / self.window * acked
        };
    }

    fn slow_start(&mut self, sample: &AckSample) {
        self.window += sample.acked as f64;
        if let Some(rtt) = sample.rtt {
            self.round_min_rtt = self.round_min_rtt.min(rtt);
            self.samples += 1;
        }
        if let Some(before) = self.previous_min_rtt
            && self.samples >= 8
            && self.round_min_rtt != Duration::MAX
        {
            let more = (before / 8).clamp(Duration::from_millis(4), Duration::from_millis(16));
            if self.round_min_rtt >= before + more {
                self.threshold = self.window;
            }
        }
        if sample.delivered_before >= self.round_end {
            self.round_end = sample.delivered;
            self.previous_min_rtt =
                Some(self.round_min_rtt).filter(|&least| least != Duration::MAX);
            (self.round_min_rtt, self.samples) = (Duration::MAX, 0);
        }
    }
}

impl Control for Cubic {
    fn on_ack(&mut self, sample: &AckSample) {
        if let Some(rtt) = sample.rtt {
            self.rtt = rtt;
        }
        if sample.is_loss_event {
            self.reduce(sample.now);
        } else if self.window < self.threshold {
            self.slow_start(sample);
        } else {
            self.avoid_congestion(sample.now, sample.acked as f64);
        }
    }

    fn on_timeout(&mut self, now: Timestamp) {
        self.reduce(now);
        self.window = 1.0;
        self.epoch = None;
    }

    fn window(&self) -> u64 {
        self.window as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_back_at_w_max_after_k_seconds() {
        let mut cubic = Cubic { window: 500.0, threshold: 1.0, ..Cubic::default() };
        let sample = |now, acked, is_loss_event| AckSample {
            now,
            acked,
            is_loss_event,
            rtt: Some(Duration::from_millis(50)),
            in_flight: 0,
            delivered: 0,
            delivered_before: 0,
            rate: None,
        };
        let at = Timestamp::from_millis;
        cubic.on_ack(&sample(at(0), 1, true));
        assert_eq!(cubic.window(), 350);
        let k = (500.0_f64 * 0.3 / 0.4).cbrt();
        let mut ms = 0;
        while (ms as f64) < k * 1e3 {
            ms += 50;
            cubic.on_ack(&sample(at(ms), cubic.window(), false));
        }
        assert!((cubic.window / 500.0 - 1.0).abs() < 0.02, "{}", cubic.window);
    }
}
