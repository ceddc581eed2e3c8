/// Proportional rate reduction (RFC 9937 with the SafeACK heuristic; Linux `tcp_cwnd_reduction`).
#[derive(Debug)]
pub(super) struct Prr {
    threshold: u64,
    prior_window: u64,
    delivered: u64,
    sent: u64,
    window: u64,
}

impl Prr {
    /// Starts a recovery from `prior_window` to `threshold`.
    pub(super) fn new(threshold: u64, prior_window: u64, in_flight: u64) -> Self {
        Self {
            threshold,
            prior_window: prior_window.max(1),
            delivered: 0,
            sent: 0,
            window: in_flight,
        }
    }

    pub(super) fn on_sent(&mut self) {
        self.sent += 1;
    }

    /// Handles an acknowledgement that delivered segments; `is_safe` if it advanced the cumulative
    /// number and indicated no loss.
    pub(super) fn on_ack(&mut self, delivered: u64, in_flight: u64, is_safe: bool) {
        if delivered == 0 {
            return;
        }
        self.delivered += delivered;
        let count = if in_flight > self.threshold {
            let target = (self.threshold * self.delivered).div_ceil(self.prior_window);
            target.saturating_sub(self.sent)
        } else {
            let count = self.delivered.saturating_sub(self.sent).max(delivered);
            (count + u64::from(is_safe)).min(self.threshold - in_flight)
        };
        // The fast retransmission is always sent.
        self.window = in_flight + count.max(u64::from(self.sent == 0));
    }

    /// Segments that may be in flight.
    pub(super) fn window(&self) -> u64 {
        self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_falls_evenly_over_a_round_trip() {
        let (mut prr, mut in_flight) = (Prr::new(50, 100, 99), 99_u64);
        let mut sent_at = Vec::new();
        for ack in 0..99 {
            in_flight -= 1;
            prr.on_ack(1, in_flight, false);
            while in_flight < prr.window() {
                prr.on_sent();
                in_flight += 1;
                sent_at.push(ack);
            }
        }
        assert_eq!(in_flight, 50);
        // One segment per two acknowledgements.
        assert!(sent_at.windows(2).all(|pair| (1..=3).contains(&(pair[1] - pair[0]))));
    }

    #[test]
    fn window_grows_after_heavy_loss_only_on_safe_acknowledgements() {
        let mut prr = Prr::new(50, 100, 10);
        prr.on_ack(1, 9, false);
        assert_eq!(prr.window(), 10);
        prr.on_sent();
        prr.on_ack(1, 9, true);
        assert_eq!(prr.window(), 11);
    }
}
