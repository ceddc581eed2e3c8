//! Delay of acknowledgements: what a round trip takes above its minimum and above the queueing delay
//! of the forward direction.

use core::time::Duration;

/// Longest delay that is believed: the window grows by what is sent in it.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// The least delay in each round.
#[derive(Debug, Default)]
pub(super) struct ReverseDelay {
    round_min: Option<Duration>,
    last_round: Duration,
}

impl ReverseDelay {
    /// A round trip took `rtt`, of which the packet waited `queue` in the forward direction.
    pub(super) fn on_ack(&mut self, rtt: Duration, min_rtt: Duration, queue: Duration) {
        let delay = rtt.saturating_sub(min_rtt).saturating_sub(queue).min(MAX_DELAY);
        self.round_min = Some(self.round_min.map_or(delay, |min| min.min(delay)));
    }

    /// A round ended.
    pub(super) fn on_round(&mut self) {
        self.last_round = self.round_min.take().unwrap_or_default();
    }

    /// The least delay of the last full round.
    pub(super) fn last_round(&self) -> Duration {
        self.last_round
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn a_queue_in_the_forward_direction_is_no_reverse_delay() {
        let mut delay = ReverseDelay::default();
        delay.on_ack(MS(90), MS(40), MS(50));
        delay.on_round();
        assert_eq!(delay.last_round(), Duration::ZERO);
    }

    #[test]
    fn the_least_delay_of_a_round_counts_up_to_a_second() {
        let mut delay = ReverseDelay::default();
        delay.on_ack(MS(340), MS(40), MS(5));
        delay.on_ack(MS(240), MS(40), MS(0));
        delay.on_round();
        assert_eq!(delay.last_round(), MS(200));
        delay.on_ack(MS(5_000), MS(40), MS(0));
        delay.on_round();
        assert_eq!(delay.last_round(), MS(1_000));
        delay.on_round();
        assert_eq!(delay.last_round(), Duration::ZERO);
    }
}
