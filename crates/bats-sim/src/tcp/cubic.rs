//! CUBIC as in Linux (`tcp_cubic.c`, RFC 9438), with Linux's HyStart: acknowledgement train and
//! delay. Independent of the implementation in `bats-proto`, so that each checks the other.

use core::time::Duration;

use bats_types::Timestamp;

use super::hystart::{HyStart, Observation};
use super::{Control, INITIAL_WINDOW, Progress, Reduction};

/// RFC 9438 section 4.6 and Linux `beta` (717/1024), `bic_scale` (41), `fast_convergence`.
const C: f64 = 0.4;
const BETA: f64 = 717.0 / 1024.0;
const MIN_WINDOW: f64 = 2.0;
/// Growth by at most half of the acknowledged segments (`bictcp_update`: `cnt` is at least 2).
const MIN_COUNT: f64 = 2.0;
/// Maximum of `cnt` before the first loss.
const INITIAL_COUNT: f64 = 20.0;
/// Minimum time between computations at the same window (`HZ / 32`).
const UPDATE_INTERVAL: Duration = Duration::from_nanos(31_250_000);
/// Samples this soon after the start of an epoch do not count for the minimum.
const QUIET: Duration = Duration::from_secs(1);

/// The controller.
#[derive(Debug)]
pub struct Cubic {
    window: f64,
    threshold: f64,
    prior: (f64, f64),
    last_max: f64,
    epoch: Option<Timestamp>,
    origin: f64,
    k: f64,
    reno_window: f64,
    reno_acked: f64,
    /// Number of acknowledged segments per increment of the window.
    count: f64,
    updated: Option<(u64, Timestamp)>,
    min_rtt: Option<Duration>,
    hystart: HyStart,
}

impl Default for Cubic {
    fn default() -> Self {
        Self {
            window: INITIAL_WINDOW as f64,
            threshold: f64::INFINITY,
            prior: (0.0, 0.0),
            last_max: 0.0,
            epoch: None,
            origin: 0.0,
            k: 0.0,
            reno_window: 0.0,
            reno_acked: 0.0,
            count: 1.0,
            updated: None,
            min_rtt: None,
            hystart: HyStart::default(),
        }
    }
}

impl Cubic {
    /// Linux `cubictcp_recalc_ssthresh`.
    fn reduced(&mut self) -> f64 {
        self.epoch = None;
        let window = self.window.floor();
        // Fast convergence, RFC 9438 section 4.7.
        self.last_max = if window < self.last_max { window * (1.0 + BETA) / 2.0 } else { window };
        (window * BETA).floor().max(MIN_WINDOW)
    }

    /// Linux `cubictcp_acked`.
    fn on_rtt(&mut self, progress: &Progress, rtt: Duration) {
        if self.epoch.is_some_and(|epoch| progress.now - epoch < QUIET) {
            return;
        }
        let min_rtt = self.min_rtt.map_or(rtt, |min| min.min(rtt));
        self.min_rtt = Some(min_rtt);
        let observation = Observation {
            now: progress.now,
            rtt,
            min_rtt,
            smoothed_rtt: progress.smoothed_rtt.unwrap_or(rtt),
            window: self.window,
            base: progress.base,
            next: progress.next,
        };
        if self.window < self.threshold && self.hystart.on_ack(&observation) {
            self.threshold = self.window;
        }
    }

    /// Linux `bictcp_update`.
    fn update(&mut self, now: Timestamp, acked: f64) {
        let window = self.window.floor();
        self.reno_acked += acked;
        if self
            .updated
            .is_some_and(|(last, at)| last == window as u64 && now - at <= UPDATE_INTERVAL)
        {
            return;
        }
        self.updated = Some((window as u64, now));
        if self.epoch.is_none() {
            self.epoch = Some(now);
            (self.reno_acked, self.reno_window) = (acked, window);
            self.k = ((self.last_max - window).max(0.0) / C).cbrt();
            self.origin = self.last_max.max(window);
        }
        let rtt = self.min_rtt.unwrap_or_default();
        let time = self.epoch.map_or(Duration::ZERO, |epoch| now - epoch) + rtt;
        // In whole segments, as in Linux.
        let target = self.origin + (C * (time.as_secs_f64() - self.k).powi(3)).trunc();
        self.count = if target > window { window / (target - window) } else { 100.0 * window };
        if self.last_max == 0.0 {
            self.count = self.count.min(INITIAL_COUNT);
        }
        // The Reno-friendly region, RFC 9438 section 4.3.
        let per_segment = window * (1.0 + BETA) / (3.0 * (1.0 - BETA));
        let steps = (self.reno_acked / per_segment).floor();
        self.reno_acked -= steps * per_segment;
        self.reno_window += steps;
        if self.reno_window > window {
            self.count = self.count.min(window / (self.reno_window - window));
        }
        self.count = self.count.max(MIN_COUNT);
    }
}

impl Control for Cubic {
    fn on_ack(&mut self, progress: &Progress) {
        if let Some(rtt) = progress.rtt {
            self.on_rtt(progress, rtt);
        }
        if !progress.may_grow {
            return;
        }
        let mut acked = progress.acked as f64;
        if self.window < self.threshold {
            let window = (self.window + acked).min(self.threshold);
            acked -= window - self.window;
            self.window = window;
            if acked <= 0.0 {
                return;
            }
        }
        self.update(progress.now, acked);
        self.window += acked / self.count;
    }

    fn on_idle_restart(&mut self, now: Timestamp, since: Timestamp, _app_limited: bool) {
        // Idle time does not count for the epoch (Linux `cubictcp_cwnd_event`).
        self.epoch = self.epoch.map(|epoch| (epoch + (now - since)).min(now));
    }

    fn on_recovery(&mut self, _now: Timestamp, _in_flight: u64) -> Reduction {
        self.prior = (self.window, self.threshold);
        self.threshold = self.reduced();
        self.window = self.threshold;
        Reduction::Proportional(self.threshold as u64)
    }

    fn on_timeout(&mut self, _now: Timestamp, in_flight: u64, is_new: bool) {
        if is_new {
            self.prior = (self.window, self.threshold);
            self.threshold = self.reduced();
        }
        self.window = in_flight as f64 + 1.0;
        // Linux `cubictcp_state`: `bictcp_reset`.
        (self.last_max, self.epoch, self.min_rtt) = (0.0, None, None);
        (self.updated, self.count) = (None, 1.0);
        self.hystart.reset();
    }

    fn on_undo(&mut self, _now: Timestamp) {
        self.window = self.window.max(self.prior.0);
        self.threshold = self.threshold.max(self.prior.1);
    }

    fn window(&self) -> u64 {
        self.window as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_returns_to_its_value_before_the_loss_after_k() {
        let mut cubic = Cubic { window: 500.0, threshold: 1.0, ..Cubic::default() };
        assert_eq!(cubic.on_recovery(Timestamp::ZERO, 500), Reduction::Proportional(350));
        let k = (500.0_f64 * (1.0 - BETA) / C).cbrt();
        let mut ms = 0;
        while (ms as f64) < k * 1e3 {
            ms += 50;
            // The acknowledgements of a round trip.
            for part in 0..10 {
                cubic.on_ack(&Progress {
                    now: Timestamp::from_millis(ms) + Duration::from_millis(5) * part,
                    acked: cubic.window() / 10,
                    may_grow: true,
                    rtt: Some(Duration::from_millis(50)),
                    ..Progress::default()
                });
            }
        }
        assert!((cubic.window / 500.0 - 1.0).abs() < 0.02, "{}", cubic.window);
    }

    #[test]
    fn fast_convergence_lowers_the_maximum_and_undo_restores_the_window() {
        let mut cubic = Cubic { window: 100.0, threshold: 50.0, ..Cubic::default() };
        cubic.on_recovery(Timestamp::ZERO, 100);
        assert_eq!((cubic.last_max, cubic.window()), (100.0, 70));
        cubic.on_recovery(Timestamp::ZERO, 70);
        assert!((cubic.last_max - 70.0 * (1.0 + BETA) / 2.0).abs() < 1e-9);
        cubic.on_undo(Timestamp::ZERO);
        assert_eq!((cubic.window(), cubic.threshold), (70, 70.0));
    }
}
