//! BBRv1 for TCP (Cardwell et al., "BBR: Congestion-Based Congestion Control", 2016): a maximum
//! filter of the delivery rate over ten round trips, a minimum filter of the RTT over ten seconds,
//! a window of 2 BDP, and no response to loss. Not modelled: packet conservation in the first round
//! of recovery, ACK aggregation, and long-term bandwidth sampling for policers.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

use super::{AckSample, Control};

const HIGH_GAIN: f64 = 2.885;
const GAIN_CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const RATE_ROUNDS: u64 = 10;
const MIN_RTT_EXPIRY: Duration = Duration::from_secs(10);
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);
const MIN_WINDOW: u64 = 4;
const INITIAL_WINDOW: u64 = 10;

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
    /// (round, rate) in order of falling rates: the first is the maximum.
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
    /// Starts the ProbeBW gain cycle at phase `phase`.
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
            // The cycle never starts in the draining phase, as in Linux.
            phase: [0, 2, 3, 4, 5, 6, 7][phase % 7],
            phase_since: Timestamp::ZERO,
            probe_until: None,
        }
    }

    fn rate(&self) -> Option<f64> {
        self.rates.front().map(|&(_, rate)| rate)
    }

    fn bdp(&self) -> Option<f64> {
        Some(self.rate()? * self.min_rtt?.0.as_secs_f64())
    }

    fn update_rate(&mut self, sample: &AckSample) {
        let is_round = sample.delivered_before >= self.round_end;
        if is_round {
            self.round_end = sample.delivered;
            self.round += 1;
        }
        if let Some(rate) = sample.rate {
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

    /// True if the minimum RTT has expired.
    fn update_min_rtt(&mut self, sample: &AckSample) -> bool {
        let expired = self.min_rtt.is_some_and(|(_, at)| sample.now - at > MIN_RTT_EXPIRY);
        if let Some(rtt) = sample.rtt
            && (expired || self.min_rtt.is_none_or(|(least, _)| rtt <= least))
        {
            self.min_rtt = Some((rtt, sample.now));
        }
        expired
    }

    fn advance_cycle(&mut self, sample: &AckSample) {
        let (Some((rtt, _)), Some(bdp)) = (self.min_rtt, self.bdp()) else { return };
        let gain = GAIN_CYCLE[self.phase];
        let is_long = sample.now - self.phase_since > rtt;
        let in_flight = sample.in_flight as f64;
        let is_over = match gain {
            gain if gain > 1.0 => is_long && (sample.is_loss_event || in_flight >= gain * bdp),
            gain if gain < 1.0 => is_long || in_flight <= bdp,
            _ => is_long,
        };
        if is_over {
            self.phase = (self.phase + 1) % GAIN_CYCLE.len();
            self.phase_since = sample.now;
        }
    }
}

impl Control for Bbr {
    fn on_ack(&mut self, sample: &AckSample) {
        self.update_rate(sample);
        let expired = self.update_min_rtt(sample);
        let bdp = self.bdp().unwrap_or(0.0);
        if expired && self.state != State::ProbeRtt {
            self.state = State::ProbeRtt;
            self.probe_until = None;
        }
        match self.state {
            State::Startup if self.is_full => self.state = State::Drain,
            State::Drain if sample.in_flight as f64 <= bdp => {
                self.state = State::ProbeBandwidth;
                self.phase_since = sample.now;
            }
            State::ProbeBandwidth => self.advance_cycle(sample),
            State::ProbeRtt => match self.probe_until {
                None if sample.in_flight <= MIN_WINDOW => {
                    self.probe_until = Some(sample.now + PROBE_RTT_DURATION);
                }
                Some(until) if sample.now >= until => {
                    if let Some((_, at)) = &mut self.min_rtt {
                        *at = sample.now;
                    }
                    self.state = if self.is_full { State::ProbeBandwidth } else { State::Startup };
                    self.phase_since = sample.now;
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn on_timeout(&mut self, _now: Timestamp) {}

    fn window(&self) -> u64 {
        let Some(bdp) = self.bdp() else { return INITIAL_WINDOW };
        match self.state {
            State::ProbeRtt => MIN_WINDOW,
            State::Startup | State::Drain => (bdp * HIGH_GAIN) as u64 + INITIAL_WINDOW,
            State::ProbeBandwidth => ((bdp * 2.0) as u64).max(MIN_WINDOW),
        }
    }

    fn pace(&self) -> Option<f64> {
        let gain = match self.state {
            State::Startup => HIGH_GAIN,
            State::Drain => 1.0 / HIGH_GAIN,
            State::ProbeBandwidth => GAIN_CYCLE[self.phase],
            State::ProbeRtt => 1.0,
        };
        // Before the first rate sample: the initial window over an RTT of 1 ms.
        Some(self.rate().map_or(INITIAL_WINDOW as f64 / 0.001 * HIGH_GAIN, |rate| rate * gain))
    }
}
