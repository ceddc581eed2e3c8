//! CUBIC as TCP has it (RFC 9438), slow start ended by loss or by the delay of HyStart (RFC 9406,
//! without its conservative phase). Written apart from the protocol's own, so that one checks the
//! other.

use core::time::Duration;

use bats_types::Timestamp;

use super::{Control, Progress};

const C: f64 = 0.4;
const BETA: f64 = 0.7;
const INITIAL: f64 = 10.0;

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
    round_least: Duration,
    round_before: Option<Duration>,
    samples: u32,
}

impl Default for Cubic {
    fn default() -> Self {
        Self {
            window: INITIAL,
            threshold: f64::INFINITY,
            w_max: 0.0,
            k: 0.0,
            reno: 0.0,
            prior: 0.0,
            epoch: None,
            rtt: Duration::from_millis(100),
            round_end: 0,
            round_least: Duration::MAX,
            round_before: None,
            samples: 0,
        }
    }
}

impl Cubic {
    fn reduce(&mut self, now: Timestamp) {
        let given_way = if self.window < self.w_max { (1.0 + BETA) / 2.0 } else { 1.0 };
        self.prior = self.window;
        self.w_max = self.window * given_way;
        self.window = (self.window * BETA).max(2.0);
        self.threshold = self.window;
        self.begin(now);
    }

    fn begin(&mut self, now: Timestamp) {
        self.epoch = Some(now);
        self.reno = self.window;
        self.k = ((self.w_max - self.window).max(0.0) / C).cbrt();
    }

    fn avoid(&mut self, now: Timestamp, acked: f64) {
        if self.epoch.is_none() {
            (self.w_max, self.prior) = (self.window, self.window);
            self.begin(now);
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

    fn start(&mut self, progress: &Progress) {
        self.window += progress.acked as f64;
        if let Some(rtt) = progress.rtt {
            self.round_least = self.round_least.min(rtt);
            self.samples += 1;
        }
        if let Some(before) = self.round_before
            && self.samples >= 8
            && self.round_least != Duration::MAX
        {
            let more = (before / 8).clamp(Duration::from_millis(4), Duration::from_millis(16));
            if self.round_least >= before + more {
                self.threshold = self.window;
            }
        }
        if progress.delivered_before >= self.round_end {
            self.round_end = progress.delivered;
            self.round_before = Some(self.round_least).filter(|&least| least != Duration::MAX);
            (self.round_least, self.samples) = (Duration::MAX, 0);
        }
    }
}

impl Control for Cubic {
    fn on_ack(&mut self, progress: &Progress) {
        if let Some(rtt) = progress.rtt {
            self.rtt = rtt;
        }
        if progress.is_loss_event {
            self.reduce(progress.now);
        } else if self.window < self.threshold {
            self.start(progress);
        } else {
            self.avoid(progress.now, progress.acked as f64);
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
    fn it_is_back_at_the_window_of_a_loss_after_k() {
        let mut cubic = Cubic { window: 500.0, threshold: 1.0, ..Cubic::default() };
        let progress = |now, acked, is_loss_event| Progress {
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
        cubic.on_ack(&progress(at(0), 1, true));
        assert_eq!(cubic.window(), 350);
        let k = (500.0_f64 * 0.3 / 0.4).cbrt();
        let mut ms = 0;
        while (ms as f64) < k * 1e3 {
            ms += 50;
            cubic.on_ack(&progress(at(ms), cubic.window(), false));
        }
        assert!((cubic.window / 500.0 - 1.0).abs() < 0.02, "{}", cubic.window);
    }
}
