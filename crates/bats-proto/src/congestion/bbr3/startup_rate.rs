//! The rate in Startup, measured over a part of a round trip by the receiver's clock.
//!
//! A delivery rate sample of the draft covers a round trip, in which Startup multiplies the rate:
//! it is always late. What arrived in the last span, a small part of a round trip, is known sooner, so
//! that a smaller gain brings more growth in each round trip.

use core::time::Duration;

use bats_types::Timestamp;

use super::queue_delay::span;

/// Packets of the first flight, and the part of a round trip in which they are sent: more than a span.
pub(super) const FIRST_FLIGHT_PACKETS: u64 = 20;
pub(super) const FIRST_FLIGHT_RATE: f64 = 12.0;
/// Fewer packets say nothing about the rate: those of other flows come in between.
const MIN_PACKETS: u64 = 6;
/// Pacing gain in Startup above that rate.
pub(super) const STARTUP_GAIN: f64 = 2.2;

/// The rate over the last span.
#[derive(Debug, Default)]
pub(super) struct StartupRate {
    /// Receive time and delivered bytes at which the span began.
    begin: Option<(Timestamp, u64)>,
    delivered: u64,
    rate: f64,
}

impl StartupRate {
    /// `bytes` were newly acknowledged, the newest of which the receiver got at `received_at`.
    pub(super) fn on_ack(
        &mut self,
        received_at: Timestamp,
        bytes: u64,
        rtt: Duration,
        packet: u64,
    ) {
        self.delivered += bytes;
        let Some((since, before)) = self.begin else {
            self.begin = Some((received_at, self.delivered));
            return;
        };
        let time = received_at.saturating_since(since);
        let arrived = self.delivered - before;
        if time >= span(rtt) && arrived >= MIN_PACKETS * packet {
            self.rate = arrived as f64 / time.as_secs_f64();
            self.begin = Some((received_at, self.delivered));
        }
    }

    /// Bytes per second; 0 before the first span ended.
    pub(super) fn get(&self) -> f64 {
        self.rate
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(64);

    /// The rate in packets of 1,000 bytes per second after packets that arrive at these milliseconds.
    fn rate(arrivals: &[u64]) -> f64 {
        let mut rate = StartupRate::default();
        for &ms in arrivals {
            rate.on_ack(Timestamp::from_millis(ms), 1_000, RTT, 1_000);
        }
        rate.get() / 1_000.0
    }

    #[test]
    fn the_rate_is_that_of_the_last_span_with_enough_packets() {
        assert_eq!(rate(&[1, 2, 3, 4, 5, 6]), 0.0, "five packets after the first");
        assert_eq!(rate(&[1, 2, 3, 4, 5, 6, 7]), 1_000.0);
        // Twice as fast in the next span.
        assert_eq!(rate(&[1, 2, 3, 4, 5, 6, 7, 7, 8, 8, 9, 9, 10]), 2_000.0);
    }

    #[test]
    fn packets_that_arrive_at_once_give_no_rate() {
        assert_eq!(rate(&[1; 20]), 0.0);
    }
}
