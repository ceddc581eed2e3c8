//! What is decided once in a round trip.

use bats_types::Timestamp;

use super::*;

/// Packets that a fall of the rate is concluded from.
const SURE_PACKETS: u64 = 60;

impl Bbr {
    /// Packets of a round at the rate believed.
    fn round_packets(&self) -> u64 {
        (self.bandwidth as f64 * self.round_time().as_secs_f64()) as u64 / self.packet
    }

    /// Poor rounds in a row that are no chance.
    fn rounds_to_be_sure(&self) -> u32 {
        SURE_PACKETS.div_ceil(self.round_packets().max(1)).clamp(2, 8) as u32
    }

    /// Flows that yield to every queue leave a shorter one among them.
    fn strange_queue(&self) -> Duration {
        (self.min_rtt / 10).max(Duration::from_millis(3))
    }

    pub(super) fn on_round(&mut self, now: Timestamp, app_limited: bool) {
        self.rounds_in_state += 1;
        let grown = self.bandwidth as f64 / self.bandwidth_at_round.max(1) as f64;
        let arrivals = self.path.arrivals(self.round_time());
        let before = core::mem::replace(&mut self.arrivals_at_round, arrivals.map_or(0, |a| a.0));
        let own = self.path.own_loss();
        let expected = self.bandwidth as f64 * (1.0 - own);
        let is_poor = arrivals.is_some_and(|(arriving, lost)| {
            lost > own + SUDDEN_LOSS && (arriving as f64) < expected * SUDDEN_FALL
        }) && !app_limited
            && self.cut.is_none()
            // Start-up is a round trip ahead of what arrives.
            && !matches!(self.state, State::Startup | State::Drain);
        self.poor_rounds = if is_poor { self.poor_rounds + 1 } else { 0 };
        match (self.state, arrivals) {
            // What is sent in excess is lost where no queue keeps it: more is sent, no more arrives.
            (State::Startup, Some((now_arriving, lost)))
                if before > 0
                    && now - self.first_sample_at > self.round_time() * 2
                    && lost > STARTUP_LOSS
                    && !app_limited
                    && grown > 1.25
                    && self.round_packets() >= SURE_PACKETS / 2
                    && now_arriving < before / 8 * 9 =>
            {
                self.bandwidth = now_arriving;
                self.path.forget_own_loss();
                self.enter(now, State::Drain);
            }
            (State::Cruise, Some((now_arriving, _)))
                if is_poor && self.poor_rounds >= self.rounds_to_be_sure() =>
            {
                // The link has become much slower, or loses much more. A trial tells which; in the
                // meantime the worse is assumed.
                self.cut = Some(Cut { bandwidth: self.bandwidth, arrivals: now_arriving });
                self.bandwidth = now_arriving;
                self.is_doubtful = true;
                self.path.forget_own_loss();
                self.enter(now, State::Down);
            }
            _ => {}
        }
        match self.state {
            State::Startup => {
                // Growth shows two round trips after the first sample.
                let began = self.has_sample && now - self.first_sample_at > self.round_time() * 2;
                if grown < 1.25 && !app_limited && began {
                    self.plateau_rounds += 1;
                } else {
                    self.plateau_rounds = 0;
                }
                if self.plateau_rounds >= PLATEAU_ROUNDS {
                    self.enter(now, State::Drain);
                }
            }
            // What is sent faster shows a round trip later, and over a whole one.
            State::Up if self.rounds_in_state >= 2 && self.bandwidth > self.before_up / 10 * 11 => {
                self.before_up = self.bandwidth;
                self.arrivals_before_up = arrivals.map_or(0, |(rate, _)| rate);
                self.rounds_in_state = 0;
                self.up_steps += 1;
                if self.up_steps > PATIENT_STEPS {
                    self.up_gain = (self.up_gain * UP_GAIN).min(MAX_UP_GAIN);
                }
            }
            State::Up if self.rounds_in_state >= 3 => self.enter(now, State::Down),
            State::Cruise if now >= self.next_trial && self.path.is_suspicious() => {
                self.next_trial = now + (self.round_time() * 8).max(MIN_TRIAL_INTERVAL);
                self.enter(now, State::Down);
            }
            _ => {}
        }
        self.bandwidth_at_round = self.bandwidth;
        let has_queue = self.path.standing_queue(self.round_time()) > self.empty_threshold();
        let stands = self.path.standing_queue(self.round_time()) > self.strange_queue();
        let is_steady = matches!(self.state, State::Cruise | State::Up | State::Down);
        if is_steady && self.restart.starves(self.bandwidth, stands) {
            return self.meet_rivals(now);
        }
        if is_steady && !app_limited && self.restart.on_round(now, self.bandwidth, has_queue) {
            self.path.start_anew();
            self.cut = None;
            self.poor_rounds = 0;
            self.plateau_rounds = 0;
            self.first_sample_at = now;
            self.full_since = None;
            self.enter(now, State::Startup);
        }
    }
}
