//! Delay-based control for real-time traffic, after Google Congestion Control
//! (draft-ietf-rmcat-gcc-02): send less as soon as the delay rises, not when the queue is full.
//!
//! Three things differ from the draft. The arrival rate includes lost packets, and the loss-based
//! part reacts only to loss beyond the random loss of the path, which coding repairs. Start-up grows
//! with every round trip instead of by 8 % per second. And a standing queue, which a trend does not
//! show, counts as over-use, too. A queue that stays although this flow sends less belongs to
//! competing flows: the tolerated queue delay then rises, so that this flow does not starve next to
//! one that fills the queue.

mod losses;
mod trend;

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

use super::{AckSample, Controller};
use losses::Losses;
use trend::{Trend, Usage};

/// Packets of the first flight, sent in one round trip, and minimum rate in packets per second.
const INITIAL_PACKETS: f64 = 10.0;
const LEAST_PACKETS: f64 = 10.0;
/// Factor for the arrival rate at a decrease (section 5.5).
const BETA: f64 = 0.85;
/// Growth per second far from the last decrease (section 5.5), and per round trip in start-up.
const GROWTH: f64 = 1.08;
const START_GROWTH: f64 = 1.5;
/// Maximum rate as a multiple of the arrival rate (section 5.5); twice that in start-up.
const MOST_ARRIVALS: f64 = 1.5;
/// Growth is slow within this many standard deviations of the rates at the last decreases (section
/// 5.5).
const NEAR: f64 = 3.0;
/// Weight of the newest value in the mean of the rates at decreases.
const NEAR_SHARE: f64 = 0.05;
/// Response time in addition to a round trip (section 5.5).
const RESPONSE: Duration = Duration::from_millis(100);
/// Time and number of acknowledgements over which the arrival rate is measured.
const ARRIVALS: Duration = Duration::from_millis(250);
const LEAST_ARRIVALS: usize = 6;
const MOST_HISTORY: usize = 512;
/// Time after which a queue counts as standing.
const STANDING: Duration = Duration::from_millis(60);
/// In start-up a shorter time applies: a quarter of a round trip, at least this.
const LEAST_STANDING: Duration = Duration::from_millis(4);
/// Delay of a standing queue above which it counts as over-use: without competing flows, and the
/// maximum with them.
const TARGET: Duration = Duration::from_millis(10);
const MOST_TARGET: Duration = Duration::from_millis(200);
/// Number of consecutive decreases after which a standing queue is attributed to competing flows.
const MAX_FUTILE_DECREASES: u32 = 6;
/// How long a minimum of the delay is valid, in two halves.
const MEMORY: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Startup,
    Increase,
    Hold,
    Decrease,
}

#[derive(Clone, Copy, Debug)]
struct Arrival {
    at: Timestamp,
    cumulative: u64,
    queue: Duration,
}

#[derive(Debug)]
pub(super) struct Gcc {
    state: State,
    packet: f64,
    /// In bytes per second.
    rate: f64,
    trend: Trend,
    losses: Losses,
    arrivals: VecDeque<Arrival>,
    /// Minimum of clock difference plus delay in the current and in the previous half, in
    /// nanoseconds.
    least: Option<(i64, i64)>,
    least_since: Timestamp,
    /// Mean and variance of the arrival rates at decreases.
    capacity: Option<(f64, f64)>,
    target: Duration,
    /// Decreases in a row that did not remove a standing queue.
    futile_decreases: u32,
    decreased: Timestamp,
    updated: Option<Timestamp>,
    rtt: Duration,
    min_rtt: Duration,
    queue: Duration,
    silent: bool,
}

impl Gcc {
    pub(super) fn new(initial_rtt: Duration, packet: u16) -> Self {
        let packet = f64::from(packet.max(1));
        Self {
            state: State::Startup,
            packet,
            rate: INITIAL_PACKETS * packet / initial_rtt.as_secs_f64().max(1e-3),
            trend: Trend::default(),
            losses: Losses::default(),
            arrivals: VecDeque::new(),
            least: None,
            least_since: Timestamp::ZERO,
            capacity: None,
            target: TARGET,
            futile_decreases: 0,
            decreased: Timestamp::ZERO,
            updated: None,
            rtt: initial_rtt,
            min_rtt: initial_rtt,
            queue: Duration::ZERO,
            silent: false,
        }
    }

    fn note_arrival(&mut self, sample: &AckSample) {
        let delay =
            sample.largest_received_at.as_nanos() as i64 - sample.largest_sent_at.as_nanos() as i64;
        let (current, last) = self.least.unwrap_or((delay, delay));
        self.least = Some(if sample.now - self.least_since > MEMORY / 2 {
            self.least_since = sample.now;
            (delay, current)
        } else {
            (current.min(delay), last)
        });
        let least = current.min(last).min(delay);
        self.queue = Duration::from_nanos(delay.saturating_sub(least) as u64);
        if self.arrivals.back().is_some_and(|last| last.at > sample.largest_received_at) {
            self.arrivals.clear();
        }
        if self.arrivals.len() == MOST_HISTORY {
            self.arrivals.pop_front();
        }
        self.arrivals.push_back(Arrival {
            at: sample.largest_received_at,
            cumulative: sample.cumulative_sent,
            queue: self.queue,
        });
    }

    /// Bytes per second that passed the receiver, including lost ones.
    fn arriving(&self) -> Option<f64> {
        let newest = self.arrivals.back()?;
        // In start-up the arrival rate grows continuously.
        let span = match self.state {
            State::Startup => self.rtt / 4,
            _ => ARRIVALS.min(self.rtt * 4),
        };
        let older =
            self.arrivals.iter().rev().enumerate().find(|(count, arrival)| {
                *count >= LEAST_ARRIVALS && newest.at - arrival.at >= span
            });
        let older = older.map_or(self.arrivals.front()?, |(_, arrival)| arrival);
        let seconds = (newest.at - older.at).as_secs_f64();
        let bytes = newest.cumulative.saturating_sub(older.cumulative) as f64;
        (seconds > 1e-3).then(|| bytes / seconds)
    }

    /// Minimum recent queueing delay, if there were enough acknowledgements.
    fn standing(&self) -> Option<Duration> {
        let newest = self.arrivals.back()?;
        let span = match self.state {
            State::Startup => STANDING.min(self.min_rtt / 4).max(LEAST_STANDING),
            _ => STANDING,
        };
        let recent = self.arrivals.iter().rev().take_while(|a| newest.at - a.at <= span);
        let (count, least) = recent.fold((0, Duration::MAX), |(count, least), arrival| {
            (count + 1, least.min(arrival.queue))
        });
        (count >= 3).then_some(least)
    }

    /// Whether there is a standing queue, although the last decrease has had time to take effect.
    fn is_standing(&self, now: Timestamp) -> bool {
        now - self.decreased > self.rtt + STANDING
            && self.standing().is_some_and(|queue| queue > self.target)
    }

    fn decrease(&mut self, now: Timestamp, arriving: f64) {
        let (mean, variance) = self.capacity.unwrap_or((arriving, 0.0));
        let off = arriving - mean;
        self.capacity = Some(if off.abs() > NEAR * variance.sqrt() + mean / 4.0 {
            (arriving, 0.0)
        } else {
            let variance = (1.0 - NEAR_SHARE) * (variance + NEAR_SHARE * off * off);
            (mean + NEAR_SHARE * off, variance)
        });
        self.rate = self.rate.min(BETA * arriving);
        self.state = State::Decrease;
        self.decreased = now;
    }

    fn increase(&mut self, elapsed: f64, arriving: f64) {
        let (most, grown) = if self.state == State::Startup {
            let rounds = elapsed / self.rtt.as_secs_f64().max(1e-3);
            (2.0 * MOST_ARRIVALS, self.rate * START_GROWTH.powf(rounds.min(1.0)))
        } else if self.capacity.is_some_and(|(mean, variance)| {
            (arriving - mean).abs() <= NEAR * variance.sqrt().max(mean * 0.05)
        }) {
            // Half a packet per response time, and 2 % of the rate per second: on a fast link
            // half a packet is negligible.
            let response = (self.rtt + RESPONSE).as_secs_f64();
            let packets = self.packet / 2.0 * (elapsed / response).min(1.0);
            (MOST_ARRIVALS, self.rate + packets + self.rate * 0.02 * elapsed.min(1.0))
        } else {
            (MOST_ARRIVALS, self.rate * GROWTH.powf(elapsed.min(1.0)))
        };
        // A rate that is not used is not proven; a rate that was used is kept.
        self.rate = grown.min((most * arriving).max(self.rate));
    }

    fn on_usage(&mut self, now: Timestamp, usage: Usage, arriving: f64, app_limited: bool) {
        let elapsed = self.updated.replace(now).map_or(0.0, |at| (now - at).as_secs_f64());
        let standing = self.is_standing(now);
        let spaced = now - self.decreased > self.rtt + RESPONSE / 4;
        if standing {
            self.futile_decreases += 1;
            if self.futile_decreases > MAX_FUTILE_DECREASES {
                self.target = (self.target * 2).min(MOST_TARGET);
                self.futile_decreases = 0;
            }
        } else if self.standing().is_some_and(|queue| queue < TARGET / 2) {
            self.futile_decreases = 0;
            self.target = TARGET.max(self.target.saturating_sub(self.target / 64));
        }
        if (standing || usage == Usage::Over) && spaced {
            self.decrease(now, arriving);
            return;
        }
        match (usage, self.state) {
            // The queue drains: wait for that.
            (Usage::Under | Usage::Over, State::Startup) => {}
            (Usage::Under, _) => self.state = State::Hold,
            (Usage::Over, _) => {}
            (Usage::Normal, State::Decrease) => self.state = State::Hold,
            (Usage::Normal, State::Hold) => {
                if self.standing().is_none_or(|queue| queue <= self.target) {
                    self.state = State::Increase;
                }
            }
            (Usage::Normal, State::Startup | State::Increase) => {
                if !app_limited {
                    self.increase(elapsed, arriving);
                }
            }
        }
    }
}

impl Controller for Gcc {
    fn on_sent(&mut self, _now: Timestamp, _bytes: u64, _in_flight: u64) {}

    fn on_ack(&mut self, sample: &AckSample) {
        self.silent = false;
        (self.rtt, self.min_rtt) = (sample.smoothed_rtt, sample.min_rtt);
        self.note_arrival(sample);
        let usage =
            self.trend.on_packet(sample.now, sample.largest_sent_at, sample.largest_received_at);
        let Some(arriving) = self.arriving() else { return };
        self.on_usage(sample.now, usage, arriving, sample.app_limited);
        let is_marked = sample.ce_packets > 0;
        if is_marked && sample.now - self.decreased > self.rtt {
            self.decrease(sample.now, arriving.min(self.rate));
        }
        if let Some(share) = self.losses.on_ack(sample) {
            self.rate *= share;
            self.state = State::Hold;
        }
        self.rate = self.rate.max(LEAST_PACKETS * self.packet);
    }

    fn on_probe_timeout(&mut self, _now: Timestamp, count: u32) {
        self.silent = count >= 2;
    }

    fn window(&self) -> u64 {
        let seconds = (self.min_rtt * 2 + RESPONSE / 2).as_secs_f64();
        (self.rate * seconds).max(2.0 * INITIAL_PACKETS * self.packet) as u64
    }

    fn pacing_rate(&self) -> u64 {
        (self.rate * if self.silent { 0.5 } else { 1.0 }) as u64
    }

    fn bandwidth(&self) -> u64 {
        self.rate as u64
    }

    fn queue_delay(&self) -> Duration {
        self.queue
    }

    fn state(&self) -> &'static str {
        match self.state {
            State::Startup => "startup",
            State::Increase => "increase",
            State::Hold => "hold",
            State::Decrease => "decrease",
        }
    }
}
