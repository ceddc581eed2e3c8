//! Steps of the path's delay: another route, a handover, a satellite that is farther away.
//!
//! A queue cannot grow faster than packets arrive, and it shrinks while the flow sends less than its
//! bandwidth. A delay that rises at once and then stays although less is sent is the path's.

use core::time::Duration;

use bats_types::Timestamp;

use super::constants::DOWN_PACING_GAIN;

/// Delay that is added in the time between two packets, as a multiple of that time: arrivals at so many
/// times the bottleneck's rate would be needed.
const STEEPNESS: i64 = 8;
/// Round trips for which the delay must stay.
const ROUNDS: u32 = 3;

/// A rise of the delay that may be the path's.
#[derive(Clone, Copy, Debug)]
struct Rise {
    at: Timestamp,
    /// One-way delay before and after it, by two clocks.
    before: i64,
    after: i64,
    /// Least delay and round-trip time since.
    least: i64,
    least_rtt: Duration,
}

/// Looks for steps.
#[derive(Debug, Default)]
pub(super) struct DelayStep {
    /// When the newest acknowledged packet was sent, and its delay.
    last: Option<(Timestamp, i64)>,
    rise: Option<Rise>,
}

impl DelayStep {
    /// A packet sent at `sent_at` had this one-way `delay` and this round-trip time. Returns the delay
    /// and the round-trip time of the path if they are known to have risen.
    pub(super) fn on_ack(
        &mut self,
        now: Timestamp,
        sent_at: Timestamp,
        delay: i64,
        rtt: Duration,
        threshold: Duration,
    ) -> Option<(i64, Duration)> {
        let last = self.last.replace((sent_at, delay));
        if let Some((before_at, before)) = last {
            let gap = sent_at.saturating_since(before_at).as_nanos() as i64;
            let growth = delay.saturating_sub(before);
            let is_steep = growth > threshold.as_nanos() as i64 && growth / STEEPNESS > gap;
            if is_steep && sent_at > before_at {
                let before = self.rise.map_or(before, |rise| rise.before.min(before));
                let rise = Rise { at: now, before, after: delay, least: delay, least_rtt: rtt };
                self.rise = Some(rise);
            }
        }
        let rise = self.rise.as_mut()?;
        rise.least = rise.least.min(delay);
        rise.least_rtt = rise.least_rtt.min(rtt);
        let fall = rise.after - rise.least;
        let time = now.saturating_since(rise.at);
        if fall > (rise.after - rise.before) / 2 {
            self.rise = None;
        } else if time >= rise.least_rtt * ROUNDS {
            // Half of what a queue would have lost.
            let drained = time.as_secs_f64() * (1.0 - DOWN_PACING_GAIN) / 2.0;
            let rise = self.rise.take()?;
            return ((fall as f64) < drained * 1e9).then_some((rise.least, rise.least_rtt));
        }
        None
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    const MS: i64 = 1_000_000;
    const RTT: Duration = Duration::from_millis(40);

    /// Packets each millisecond with these delays in milliseconds: when a step was found, and which.
    fn found(delays: impl Iterator<Item = f64>) -> Option<(usize, i64)> {
        let mut step = DelayStep::default();
        delays.enumerate().find_map(|(ms, delay)| {
            let sent_at = Timestamp::from_millis(ms as u64 + 1);
            let delay = (delay * MS as f64) as i64;
            let threshold = Duration::from_millis(5);
            let found = step.on_ack(sent_at + RTT, sent_at, delay, RTT, threshold)?;
            Some((ms, found.0 / MS))
        })
    }

    #[test]
    fn a_delay_that_rises_at_once_and_stays_is_the_paths() {
        let step = found((0..400).map(|ms| if ms < 100 { 20.0 } else { 60.0 }));
        assert_eq!(step, Some((220, 60)));
    }

    #[test]
    fn a_queue_that_grows_or_drains_is_none() {
        // 50 ms of queue in 100 ms.
        assert_eq!(found((0..400).map(|ms| 20.0 + (f64::from(ms) / 2.0).min(50.0))), None);
        // A pause of the link, after which the queue shrinks at a tenth of the time.
        let pause = |ms| if ms < 100 { 20.0 } else { (90.0 - f64::from(ms) / 10.0).max(20.0) };
        assert_eq!(found((0..900).map(pause)), None);
    }

    #[test]
    fn a_spike_is_none() {
        assert_eq!(found((0..600).map(|ms| if ms % 200 < 50 { 120.0 } else { 20.0 })), None);
    }
}
