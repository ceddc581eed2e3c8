//! The congestion window of CUBIC between two losses (RFC 9438), in packets and seconds.

/// `C`: steepness of the curve in packets per second cubed (section 4.1.2).
const STEEPNESS: f64 = 0.4;
/// `beta_cubic`: fraction of the window that remains after a loss (section 4.6).
pub(super) const BETA: f64 = 0.7;
/// Maximum growth per round trip as a fraction of the window (section 4.2).
const MAX_GROWTH: f64 = 1.5;

/// One epoch of congestion avoidance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Curve {
    /// `W_max`: the window at the plateau of the curve.
    w_max: f64,
    /// `K`: time from the start of the epoch to the plateau, in seconds.
    k: f64,
    /// `cwnd_prior`: the window before the last loss.
    prior: f64,
    /// `W_est`: the window that Reno would have.
    estimate: f64,
}

impl Curve {
    /// Starts an epoch after a loss at the window `prior`; `last_max` is the previous `W_max`. A
    /// flow that did not reach `W_max` again releases bandwidth (fast convergence, RFC 9438 section
    /// 4.7).
    pub(super) fn after_loss(prior: f64, last_max: f64) -> Self {
        let w_max = if prior < last_max { prior * (1.0 + BETA) / 2.0 } else { prior };
        Self::from(prior * BETA, w_max, prior)
    }

    /// Starts an epoch after slow start without a loss: the curve begins at its plateau (section
    /// 4.10).
    pub(super) fn from_slow_start(window: f64) -> Self {
        Self::from(window, window, window)
    }

    fn from(begin: f64, w_max: f64, prior: f64) -> Self {
        let k = ((w_max - begin).max(0.0) / STEEPNESS).cbrt();
        Self { w_max, k, prior, estimate: begin }
    }

    pub(super) fn w_max(&self) -> f64 {
        self.w_max
    }

    /// `W_cubic(t)` (equation 1).
    pub(super) fn at(&self, t: f64) -> f64 {
        STEEPNESS * (t - self.k).powi(3) + self.w_max
    }

    /// The window after `acked` packets at time `t` of the epoch.
    pub(super) fn grow(&mut self, window: f64, t: f64, rtt: f64, acked: f64) -> f64 {
        // Reno's slope for the same mean window at this beta, and Reno's own slope once it has
        // reached the former window (section 4.3).
        let alpha =
            if self.estimate < self.prior { 3.0 * (1.0 - BETA) / (1.0 + BETA) } else { 1.0 };
        self.estimate += alpha * acked / window.max(1.0);
        if self.at(t) < self.estimate {
            return window.max(self.estimate);
        }
        let target = self.at(t + rtt).clamp(window, window * MAX_GROWTH);
        window + (target - window) / window.max(1.0) * acked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_is_that_of_the_rfc() {
        let curve = Curve::after_loss(1_000.0, 0.0);
        let k = (1_000.0_f64 * 0.3 / 0.4).cbrt();
        assert!((curve.at(0.0) - 700.0).abs() < 1e-9, "begins at beta times the window");
        assert!((curve.at(k) - 1_000.0).abs() < 1e-9, "is back after K");
        assert!((curve.at(2.0 * k) - 1_300.0).abs() < 1e-9, "and symmetric about it");
    }

    #[test]
    fn fast_convergence_lowers_w_max() {
        assert!((Curve::after_loss(800.0, 1_000.0).w_max() - 680.0).abs() < 1e-9);
        assert!((Curve::after_loss(1_000.0, 1_000.0).w_max() - 1_000.0).abs() < 1e-9);
    }

    /// The window follows `W_cubic` where that is above Reno's window.
    #[test]
    fn the_window_follows_the_curve_and_is_back_after_k() {
        let (rtt, mut curve) = (0.1, Curve::after_loss(1_000.0, 0.0));
        let (mut window, mut t) = (700.0, 0.0);
        let k = (1_000.0_f64 * 0.3 / 0.4).cbrt();
        while t < k {
            // Fifty acknowledgements per round trip.
            for _ in 0..50 {
                window = curve.grow(window, t, rtt, window / 50.0);
                t += rtt / 50.0;
            }
            assert!((window / curve.at(t) - 1.0).abs() < 0.03, "{t}: {window}");
        }
        assert!((window / 1_000.0 - 1.0).abs() < 0.02, "{window}");
    }

    /// On short paths Reno grows faster, and CUBIC grows at least as fast: alpha per round trip.
    #[test]
    fn on_short_paths_it_is_reno() {
        let (rtt, mut curve) = (0.001, Curve::after_loss(20.0, 0.0));
        let mut window = 14.0;
        for round in 1..=10 {
            window = curve.grow(window, f64::from(round) * rtt, rtt, window);
        }
        let alpha = 3.0 * 0.3 / 1.7;
        assert!((window - 14.0 - 10.0 * alpha).abs() < 0.1, "{window}");
    }

    #[test]
    fn a_round_adds_half_at_most() {
        let mut curve = Curve::after_loss(10.0, 0.0);
        assert!(curve.grow(100.0, 1_000.0, 0.1, 100.0) <= 150.0 + 1e-9);
    }
}
