//! BBR as TCP had it first (v1; Cardwell and others, "BBR: Congestion-Based Congestion Control",
//! 2016): the maximum of the delivery rate over ten round trips, the minimum of the round-trip time
//! over ten seconds, a window of two products, and no answer to loss. Left out: packet conservation
//! in the first round of recovery, aggregation of acknowledgements, the long-term rate of policers.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

use super::{Control, Progress};

const HIGH_GAIN: f64 = 2.885;
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const RATE_ROUNDS: u64 = 10;
const RTT_LIFETIME: Duration = Duration::from_secs(10);
const PROBE_RTT: Duration = Duration::from_millis(200);
const LEAST_WINDOW: u64 = 4;
const INITIAL: u64 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    ProbeBandwidth,
    ProbeRtt,
}

/// The controller.
#[derive(Debug)]
pub struct Bbr {
    state: State,
    /// (round, rate) with falling rates: the first is the maximum.
    rates: VecDeque<(u64, f64)>,
    min_rtt: Option<(Duration, Timestamp)>,
    round: u64,
    round_end: u64,
    full_rate: f64,
    full_rounds: u32,
    is_full: bool,
    phase: usize,
    phase_since: Timestamp,
    probe_until: Option<Timestamp>,
}

impl Bbr {
    /// Begins the cycle of gains at phase `phase`.
    pub fn new(phase: usize) -> Self {
        Self {
            state: State::Startup,
            rates: VecDeque::new(),
            min_rtt: None,
            round: 0,
            round_end: 0,
            full_rate: 0.0,
            full_rounds: 0,
            is_full: false,
            // The phase that drains is never the first.
            phase: [0, 2, 3, 4, 5, 6, 7][phase % 7],
            phase_since: Timestamp::ZERO,
            probe_until: None,
        }
    }

    fn rate(&self) -> Option<f64> {
        self.rates.front().map(|&(_, rate)| rate)
    }

    fn product(&self) -> Option<f64> {
        Some(self.rate()? * self.min_rtt?.0.as_secs_f64())
    }

    fn note_rate(&mut self, progress: &Progress) {
        let is_round = progress.delivered_before >= self.round_end;
        if is_round {
            self.round_end = progress.delivered;
            self.round += 1;
        }
        if let Some(rate) = progress.rate {
            while self.rates.back().is_some_and(|&(_, last)| last <= rate) {
                self.rates.pop_back();
            }
            self.rates.push_back((self.round, rate));
        }
        while self.rates.len() > 1
            && self.rates.front().is_some_and(|&(round, _)| round + RATE_ROUNDS <= self.round)
        {
            self.rates.pop_front();
        }
        if is_round && !self.is_full {
            let rate = self.rate().unwrap_or(0.0);
            if rate >= self.full_rate * 1.25 {
                (self.full_rate, self.full_rounds) = (rate, 0);
            } else {
                self.full_rounds += 1;
                self.is_full = self.full_rounds >= 3;
            }
        }
    }

    /// True if the minimum is too old to be believed.
    fn note_rtt(&mut self, progress: &Progress) -> bool {
        let expired = self.min_rtt.is_some_and(|(_, at)| progress.now - at > RTT_LIFETIME);
        if let Some(rtt) = progress.rtt
            && (expired || self.min_rtt.is_none_or(|(least, _)| rtt <= least))
        {
            self.min_rtt = Some((rtt, progress.now));
        }
        expired
    }

    fn cycle(&mut self, progress: &Progress) {
        let (Some((rtt, _)), Some(product)) = (self.min_rtt, self.product()) else { return };
        let gain = CYCLE[self.phase];
        let is_long = progress.now - self.phase_since > rtt;
        let in_flight = progress.in_flight as f64;
        let is_over = match gain {
            gain if gain > 1.0 => {
                is_long && (progress.is_loss_event || in_flight >= gain * product)
            }
            gain if gain < 1.0 => is_long || in_flight <= product,
            _ => is_long,
        };
        if is_over {
            self.phase = (self.phase + 1) % CYCLE.len();
            self.phase_since = progress.now;
        }
    }
}

impl Control for Bbr {
    fn on_ack(&mut self, progress: &Progress) {
        self.note_rate(progress);
        let expired = self.note_rtt(progress);
        let product = self.product().unwrap_or(0.0);
        if expired && self.state != State::ProbeRtt {
            self.state = State::ProbeRtt;
            self.probe_until = None;
        }
        match self.state {
            State::Startup if self.is_full => self.state = State::Drain,
            State::Drain if progress.in_flight as f64 <= product => {
                self.state = State::ProbeBandwidth;
                self.phase_since = progress.now;
            }
            State::ProbeBandwidth => self.cycle(progress),
            State::ProbeRtt => match self.probe_until {
                None if progress.in_flight <= LEAST_WINDOW => {
                    self.probe_until = Some(progress.now + PROBE_RTT);
                }
                Some(until) if progress.now >= until => {
                    if let Some((_, at)) = &mut self.min_rtt {
                        *at = progress.now;
                    }
                    self.state = if self.is_full { State::ProbeBandwidth } else { State::Startup };
                    self.phase_since = progress.now;
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn on_timeout(&mut self, _now: Timestamp) {}

    fn window(&self) -> u64 {
        let Some(product) = self.product() else { return INITIAL };
        match self.state {
            State::ProbeRtt => LEAST_WINDOW,
            State::Startup | State::Drain => (product * HIGH_GAIN) as u64 + INITIAL,
            State::ProbeBandwidth => ((product * 2.0) as u64).max(LEAST_WINDOW),
        }
    }

    fn pace(&self) -> Option<f64> {
        let gain = match self.state {
            State::Startup => HIGH_GAIN,
            State::Drain => 1.0 / HIGH_GAIN,
            State::ProbeBandwidth => CYCLE[self.phase],
            State::ProbeRtt => 1.0,
        };
        // Before the first sample: the first window over a short round trip.
        Some(self.rate().map_or(INITIAL as f64 / 0.001 * HIGH_GAIN, |rate| rate * gain))
    }
}
