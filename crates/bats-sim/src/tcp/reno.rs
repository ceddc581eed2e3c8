//! Reno as Linux has it (RFC 5681, RFC 6582): `tcp_reno_cong_avoid`, `tcp_reno_ssthresh`. Every
//! acknowledged segment counts in slow start, so delayed acknowledgements do not slow it down.

use bats_types::Timestamp;

use super::{Control, INITIAL_WINDOW, Progress, Reduction};

/// Least threshold (RFC 5681, equation 4).
const MIN_THRESHOLD: f64 = 2.0;

/// The controller.
#[derive(Debug)]
pub struct Reno {
    window: f64,
    threshold: f64,
    /// Window and threshold before the last reduction.
    prior: (f64, f64),
}

impl Default for Reno {
    fn default() -> Self {
        Self { window: INITIAL_WINDOW as f64, threshold: f64::INFINITY, prior: (0.0, 0.0) }
    }
}

impl Control for Reno {
    fn on_ack(&mut self, progress: &Progress) {
        if !progress.may_grow {
            return;
        }
        let mut acked = progress.acked as f64;
        if self.window < self.threshold {
            let window = (self.window + acked).min(self.threshold);
            acked -= window - self.window;
            self.window = window;
        }
        self.window += acked / self.window;
    }

    fn on_recovery(&mut self, _now: Timestamp, _in_flight: u64) -> Reduction {
        self.prior = (self.window, self.threshold);
        self.threshold = (self.window / 2.0).floor().max(MIN_THRESHOLD);
        self.window = self.threshold;
        Reduction::Proportional(self.threshold as u64)
    }

    fn on_timeout(&mut self, _now: Timestamp, in_flight: u64, is_new: bool) {
        if is_new {
            self.prior = (self.window, self.threshold);
            self.threshold = (self.window / 2.0).floor().max(MIN_THRESHOLD);
        }
        self.window = in_flight as f64 + 1.0;
    }

    fn on_undo(&mut self, _now: Timestamp) {
        // Linux `tcp_reno_undo_cwnd`.
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

    fn ack(acked: u64) -> Progress {
        Progress { acked, may_grow: true, ..Progress::default() }
    }

    #[test]
    fn the_window_is_halved_and_grows_by_one_segment_in_a_round_trip() {
        let mut reno = Reno::default();
        for _ in 0..30 {
            reno.on_ack(&ack(1));
        }
        assert_eq!(reno.window(), 40);
        assert_eq!(reno.on_recovery(Timestamp::ZERO, 40), Reduction::Proportional(20));
        reno.on_ack(&Progress { may_grow: false, ..ack(1) });
        assert_eq!(reno.window(), 20);
        for _ in 0..21 {
            reno.on_ack(&ack(1));
        }
        assert_eq!(reno.window(), 21);
    }

    #[test]
    fn a_timeout_leaves_one_segment_and_the_next_keeps_the_threshold() {
        let mut reno = Reno { window: 40.0, ..Reno::default() };
        reno.on_timeout(Timestamp::ZERO, 0, true);
        assert_eq!((reno.window(), reno.threshold), (1, 20.0));
        reno.on_timeout(Timestamp::ZERO, 0, false);
        assert_eq!((reno.window(), reno.threshold), (1, 20.0));
        reno.on_undo(Timestamp::ZERO);
        assert_eq!((reno.window(), reno.threshold), (40, f64::INFINITY));
    }
}
