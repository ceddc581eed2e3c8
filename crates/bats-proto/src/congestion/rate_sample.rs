//! Delivery rate samples (draft-ietf-ccwg-bbr-06 section 4.1), with the receiver's clock where a
//! report carries it (section 4.1.3.3).

use core::time::Duration;

use bats_types::Timestamp;

/// State of the sampler when a packet was sent (section 4.1.2.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SendState {
    /// Total bytes delivered when the packet was sent.
    pub delivered: u64,
    /// Total bytes lost when the packet was sent.
    pub lost: u64,
    /// When the newest packet delivered by then was acknowledged.
    pub delivered_at: Timestamp,
    /// When that packet was received, by the receiver's clock; zero if unknown.
    pub received_at: Timestamp,
    /// When that packet had been sent.
    pub first_sent_at: Timestamp,
    /// Inflight including this packet, in bytes; 32 bits keep idle connections small.
    pub in_flight: u32,
    /// Whether the application or the peer's credit limited the sender.
    pub app_limited: bool,
}

/// A delivery rate sample (section 4.1.2.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RateSample {
    /// Bytes delivered since the newest acknowledged packet was sent.
    pub delivered: u64,
    /// Total bytes delivered when that packet was sent.
    pub prior_delivered: u64,
    /// Length of the sampling interval; zero if the sample is not reliable.
    pub interval: Duration,
    /// Bytes per second; 0 if the sample is not reliable.
    pub delivery_rate: u64,
    /// Bytes lost between the sending of the packet and its acknowledgement.
    pub lost: u64,
    /// Inflight when the packet was sent, including it.
    pub tx_in_flight: u64,
    /// Whether the sample is application-limited.
    pub is_app_limited: bool,
}

/// A packet that was declared lost.
#[derive(Clone, Copy, Debug)]
pub struct LostPacket {
    /// UDP payload bytes.
    pub bytes: u64,
    /// When it was sent.
    pub sent_at: Timestamp,
    /// Whether the packet sent just before it was lost, too, so that it continues a run of losses.
    pub continues_run: bool,
    /// Bytes lost since it was sent, including it.
    pub lost_since_sent: u64,
    /// State of the sampler when it was sent.
    pub state: SendState,
}

/// Takes delivery rate samples of one link.
#[derive(Debug, Default)]
pub struct RateSampler {
    delivered: u64,
    lost: u64,
    delivered_at: Timestamp,
    received_at: Timestamp,
    first_sent_at: Timestamp,
    /// The link counts as application-limited until more than this is delivered; 0 if it is not.
    app_limited_until: u64,
    /// The newest packet of the acknowledgement being processed.
    newest: Option<(Timestamp, SendState)>,
}

impl RateSampler {
    /// Total bytes delivered.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Total bytes lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Records that a packet is sent. `in_flight` includes it; `is_idle` says that nothing else was
    /// in flight.
    pub fn on_sent(&mut self, now: Timestamp, in_flight: u64, is_idle: bool) -> SendState {
        if is_idle {
            self.first_sent_at = now;
            self.delivered_at = now;
            self.received_at = Timestamp::ZERO;
        }
        SendState {
            delivered: self.delivered,
            lost: self.lost,
            in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX),
            delivered_at: self.delivered_at,
            received_at: self.received_at,
            first_sent_at: self.first_sent_at,
            app_limited: self.app_limited_until != 0,
        }
    }

    /// Records that there is no data to send although window and pacing allow it.
    pub fn mark_app_limited(&mut self, in_flight: u64) {
        self.app_limited_until = (self.delivered + in_flight).max(1);
    }

    /// A packet of `bytes` sent at `sent_at` was acknowledged now.
    pub fn on_delivered(
        &mut self,
        now: Timestamp,
        bytes: u64,
        sent_at: Timestamp,
        state: SendState,
    ) {
        self.delivered += bytes;
        self.delivered_at = now;
        if self.newest.is_none_or(|(newest, _)| sent_at >= newest) {
            self.newest = Some((sent_at, state));
        }
    }

    /// A packet of `bytes` was declared lost.
    pub fn on_lost(&mut self, bytes: u64) {
        self.lost += bytes;
    }

    /// A packet that was declared lost was acknowledged.
    pub fn on_spurious(&mut self, bytes: u64) {
        self.lost = self.lost.saturating_sub(bytes);
    }

    /// The sample of the last acknowledgement; `received_at` is the arrival time of its newest
    /// packet by the receiver's clock. `None` if nothing was delivered.
    pub fn sample(
        &mut self,
        received_at: Option<Timestamp>,
        min_rtt: Duration,
    ) -> Option<RateSample> {
        if self.app_limited_until != 0 && self.delivered > self.app_limited_until {
            self.app_limited_until = 0;
        }
        let (sent_at, state) = self.newest.take()?;
        self.first_sent_at = self.first_sent_at.max(sent_at);
        self.received_at = received_at.unwrap_or(self.received_at);
        let send_elapsed = sent_at - state.first_sent_at;
        let then = Some(state.received_at).filter(|&at| at != Timestamp::ZERO);
        let on_receiver = received_at.zip(then).map(|(now, then)| now - then);
        let ack_elapsed = on_receiver.unwrap_or(self.delivered_at - state.delivered_at);
        let mut sample = RateSample {
            delivered: self.delivered - state.delivered,
            prior_delivered: state.delivered,
            lost: self.lost.saturating_sub(state.lost),
            tx_in_flight: u64::from(state.in_flight),
            is_app_limited: state.app_limited,
            ..RateSample::default()
        };
        let interval = send_elapsed.max(ack_elapsed);
        // Shorter intervals hold too little data to be reliable (section 4.1.2.3).
        if interval >= min_rtt && !interval.is_zero() {
            sample.interval = interval;
            sample.delivery_rate = (sample.delivered as f64 / interval.as_secs_f64()) as u64;
        }
        Some(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(1_000 + ms)
    }

    /// Sends a window of 50 packets of 1,000 bytes over a path that delivers one per 2 ms.
    fn run(received: impl Fn(u64) -> Option<Timestamp>, acked: impl Fn(u64) -> Timestamp) -> u64 {
        const WINDOW: u64 = 50;
        let mut sampler = RateSampler::default();
        let send = |sampler: &mut RateSampler, now, is_idle| {
            (now, sampler.on_sent(now, WINDOW * 1_000, is_idle))
        };
        let mut states: Vec<_> = (0..WINDOW).map(|i| send(&mut sampler, at(i), i == 0)).collect();
        let mut rate = 0;
        for n in 0..3 * WINDOW {
            let slot = &mut states[(n % WINDOW) as usize];
            let (sent_at, state) = *slot;
            sampler.on_delivered(acked(n), 1_000, sent_at, state);
            rate = sampler.sample(received(n), RTT / 2).unwrap().delivery_rate;
            *slot = send(&mut sampler, acked(n), false);
        }
        rate
    }

    #[test]
    fn rate_is_data_acknowledged_over_the_longer_interval() {
        assert_eq!(run(|_| None, |n| at(100 + 2 * n)), 500_000);
    }

    #[test]
    fn compressed_acknowledgements_do_not_raise_the_rate_where_the_receiver_stamps() {
        let rate = run(|n| Some(at(50 + 2 * n)), |n| at(100 + 20 * (n / 10 + 1)));
        assert_eq!(rate, 500_000);
    }

    #[test]
    fn samples_stay_app_limited_until_the_bubble_is_delivered() {
        let mut sampler = RateSampler::default();
        let first = sampler.on_sent(at(0), 1_000, true);
        sampler.mark_app_limited(1_000);
        let second = sampler.on_sent(at(5), 2_000, false);
        assert!(!first.app_limited && second.app_limited);
        sampler.on_delivered(at(100), 1_000, at(0), first);
        sampler.sample(None, RTT).unwrap();
        sampler.on_delivered(at(105), 1_000, at(5), second);
        assert!(sampler.sample(None, RTT).unwrap().is_app_limited);
        assert!(!sampler.on_sent(at(110), 1_000, true).app_limited);
    }

    #[test]
    fn losses_since_departure_are_counted_and_taken_back() {
        let mut sampler = RateSampler::default();
        let lost = sampler.on_sent(at(0), 1_000, true);
        let state = sampler.on_sent(at(1), 2_000, false);
        sampler.on_lost(1_000);
        assert_eq!(lost.lost, 0);
        sampler.on_delivered(at(101), 1_000, at(1), state);
        assert_eq!(sampler.sample(None, RTT).unwrap().lost, 1_000);
        sampler.on_spurious(1_000);
        assert_eq!(sampler.lost(), 0);
    }
}
