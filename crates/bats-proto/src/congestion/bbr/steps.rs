//! What an acknowledgement changes, step by step.

use core::time::Duration;

use bats_types::Timestamp;

use super::loss_trial::Conclusion;
use super::path_model::Rate;
use super::rivals::{EQUAL_SHARE, Finding, Round};
use super::*;

/// What an acknowledgement says of congestion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signs {
    /// The queue that stands.
    standing: Duration,
    /// It means a full link.
    is_full: bool,
    /// For how long it has.
    full_for: Duration,
    /// Marks, or loss beyond the path's own.
    pub(super) is_congestive: bool,
    /// So much loss beyond the path's own that start-up must have overflowed the queue.
    overflows: bool,
}

impl Bbr {
    pub(super) fn read_signs(&mut self, sample: &AckSample) -> Signs {
        let now = sample.now;
        let standing = self.path.standing_queue(self.standing_span());
        let confirmed = self.path.samples_in(self.standing_span()) >= 3;
        let outrun = self.state == State::Startup
            && self.path.samples_in(self.rate_span()) >= 3
            && self.path.is_outrun(self.rate_span(), self.min_rtt);
        // A probe makes a queue of its own, on top of what stood when it began.
        let before = if self.state == State::Up { self.up_queue } else { Duration::ZERO };
        let is_full = (confirmed && standing > self.queue_threshold() + before) || outrun;
        let excess = self.path.excess_loss(self.min_rtt.max(self.rate_span()));
        let overflows =
            excess > STARTUP_LOSS && self.path.excess_loss(self.rate_span()) > STARTUP_LOSS;
        if is_full {
            if self.full_since.is_none() {
                self.full_since = Some(now);
                self.bandwidth_at_full = self.bandwidth;
            }
        } else if standing <= self.queue_threshold() {
            self.full_since = None;
        }
        Signs {
            standing,
            is_full,
            full_for: self.full_since.map_or(Duration::ZERO, |since| now - since),
            is_congestive: sample.ce_packets > 0 || excess > 0.0,
            overflows,
        }
    }

    /// A trial may have ended: what it says of the rate.
    pub(super) fn take_conclusion(&mut self, now: Timestamp) {
        let Some(conclusion) = self.path.conclude_trial() else { return };
        let cut = self.cut.take();
        let rate = match conclusion {
            Conclusion::Own(own) => {
                // Fewer arrive because more is lost: the link is as fast as before.
                if let Some(cut) = cut {
                    let real = cut.arrivals as f64 / (1.0 - own).max(0.01);
                    self.bandwidth = self.bandwidth.max(cut.bandwidth.min(real as u64));
                }
                self.bandwidth as f64
            }
            Conclusion::Share(share) => self.bandwidth as f64 * share.max(MIN_TRIAL_SHARE),
            Conclusion::Overrun(bytes) => bytes,
        };
        if (rate as u64) < self.bandwidth {
            self.bandwidth = rate as u64;
            self.next_probe = self.next_probe.min(now + self.round_time() * 4);
            self.is_doubtful = self.state != State::Cruise;
            // A large correction may not be the last.
            self.next_trial = now + self.round_time() * 3;
        }
    }

    /// What the arrivals of late say of the rate.
    pub(super) fn take_rate(&mut self, now: Timestamp, signs: &Signs) {
        let Some(rate) = self.path.rate(self.rate_span()) else { return };
        // Start-up may have ended before there was anything to measure; no probe set a ceiling then.
        let ceiling = if self.state == State::Startup || !self.has_sample {
            // Bursts may cross a shared link faster than a whole flow could.
            (self.bandwidth_at_round.max(self.initial) as f64 * MAX_ROUND_GROWTH) as u64
        } else if self.state == State::Drain {
            // What start-up sent is still arriving; what was lost of it in a queue proves nothing.
            self.path.arrivals(self.round_time()).map_or(0, |(rate, _)| rate)
        } else {
            self.probe_ceiling()
        };
        let proven = rate.proven.min(ceiling);
        if !self.has_sample && !rate.app_limited && rate.proven > 0 {
            self.has_sample = true;
            self.first_sample_at = now;
            self.bandwidth = proven;
        } else if proven > self.bandwidth && self.is_above_rate() {
            self.bandwidth = proven;
        } else if signs.full_for >= MIN_FULL
            && self.state != State::Startup
            && rate.arrived > 0
            && rate.changed
        {
            // The link is busy and yet slower than believed: believe it.
            self.bandwidth -=
                self.bandwidth.saturating_sub(rate.busy.max(self.spared(signs, &rate))) / 4;
        }
        // Of an application that has little to send little arrives, however fast the link.
        if (signs.is_full || signs.overflows) && self.state == State::Startup && !rate.app_limited {
            self.bandwidth = rate.arrived.min(self.bandwidth);
        }
    }

    /// What of the rate a queue leaves at first. It may be that of somebody else's probe, which is over
    /// soon. Less arrives then because less is sent, too: only the share by which packets arrive
    /// slower than they were sent is too much.
    fn spared(&self, signs: &Signs, rate: &Rate) -> u64 {
        let is_new = signs.full_for <= self.round_time() * PROBING_ROUNDS;
        let shrinks = rate.slower > SHRINKING;
        if self.probed || self.state == State::Up || !(is_new || shrinks) {
            return 0;
        }
        let share = if rate.slower >= PROBED_RATE { 1.0 } else { rate.slower };
        (self.bandwidth_at_full as f64 * share) as u64
    }

    /// Start-up grows by the moment.
    pub(super) fn grow(&mut self, now: Timestamp) {
        self.ramp(now);
        if self.state == State::Startup {
            self.path.set_level(now, Level::High);
            self.path.note_start(self.rate_span());
        }
    }

    /// Growth itself grows over the first round. On long paths it begins with none: a step in the pace
    /// would come back each round trip.
    pub(super) fn ramp(&mut self, now: Timestamp) {
        let part = (now - self.first_sample_at).as_secs_f64() / self.round_time().as_secs_f64();
        let first = if self.is_long() { 1.0 } else { FIRST_GAIN };
        self.startup_gain = first * (self.growth() / first).powf(part.min(1.0));
    }

    pub(super) fn change_state(&mut self, sample: &AckSample, signs: &Signs) {
        let now = sample.now;
        self.longest_queue = self.longest_queue.max(signs.standing);
        match self.state {
            State::Startup
                if signs.is_full
                    || signs.overflows
                    || (signs.is_congestive && signs.standing > self.empty_threshold()) =>
            {
                self.enter(now, State::Drain);
            }
            State::Cruise | State::Down
                if now < self.certain_until && signs.full_for > self.round_time() * 2 =>
            {
                self.meet_rivals(now);
            }
            State::Drain | State::Down => self.end_low_phase(sample, signs),
            State::Cruise
                if signs.is_full && signs.full_for > self.round_time() * STANDING_ROUNDS =>
            {
                // Nothing to be found while a queue stands; but is it one?
                self.stood_at = Some(self.gain());
                self.full_since = None;
                self.enter(now, State::Down);
            }
            State::Cruise if sample.ce_packets > 0 && now >= self.next_trial => {
                self.yield_to_marks(sample);
            }
            // Nothing is to be found while a queue stands.
            State::Cruise
                if now >= self.next_probe
                    && signs.standing <= self.queue_threshold()
                    && !sample.app_limited =>
            {
                self.enter(now, State::Up);
            }
            State::Up if signs.is_full || signs.is_congestive => {
                self.filled = signs.is_full;
                if self.filled {
                    self.bandwidth = self.bandwidth.min(self.probe_ceiling());
                }
                self.enter(now, State::Down);
            }
            _ => {}
        }
    }

    /// Less than the rate is sent until the queue is gone.
    fn end_low_phase(&mut self, sample: &AckSample, signs: &Signs) {
        let now = sample.now;
        let empty = signs.standing <= self.empty_threshold();
        // What is in flight tells of an empty queue a round trip before the delay does.
        let drained = sample.in_flight <= self.product();
        let waited = now - self.state_since > self.round_time();
        let too_long = now - self.state_since > self.round_time() * MAX_YIELD_ROUNDS;
        if empty
            && waited
            && let Some(gain) = self.stood_at.take()
        {
            // Even this pace kept the queue standing, and less does not.
            self.bandwidth = (self.bandwidth as f64 * gain.max(MIN_STANDING_GAIN)) as u64;
        }
        if drained && (waited || self.state == State::Drain) && self.stood_at.is_none() {
            self.enter(now, State::Cruise);
            self.blind_until = now + self.round_time();
        } else if too_long
            && signs.is_full
            && signs.standing > (self.longest_queue / 2).max(self.queue_threshold() * 2)
            && !self.path.is_suspicious()
        {
            // Whoever is alone sees a queue become shorter, and whoever begins is done soon.
            if now - self.state_since > self.round_time() * RIVAL_ROUNDS {
                self.meet_rivals(now);
            }
        } else if (empty && waited) || too_long {
            self.enter(now, State::Cruise);
        }
    }

    /// Marked packets are a queue that somebody else sees (RFC 3168, once in a round).
    fn yield_to_marks(&mut self, sample: &AckSample) {
        let marked = sample.ce_packets.min(sample.acked_packets) as f64;
        let share = marked / sample.acked_packets.max(1) as f64;
        self.bandwidth = (self.bandwidth as f64 * (1.0 - share / 2.0).max(CE_CUT)) as u64;
        self.next_trial = sample.now + self.round_time();
        self.enter(sample.now, State::Down);
    }

    /// A queue stands that does not become shorter, or hardly, when we send less.
    pub(super) fn meet_rivals(&mut self, now: Timestamp) {
        let before = if now < self.certain_until { self.rate_with_rivals } else { 0 };
        let rate = self.bandwidth.max(if before > 0 { before } else { self.bandwidth_at_full / 2 });
        self.rivals = Some(Rivals::new(
            now,
            rate,
            self.min_rtt,
            now < self.certain_until,
            self.share_with_rivals,
            self.products_with_rivals,
        ));
        self.stood_at = None;
        self.enter(now, State::Rivals);
    }

    pub(super) fn on_ack_with_rivals(&mut self, sample: &AckSample) {
        let now = sample.now;
        let Some(mut rivals) = self.rivals.take() else { return self.enter(now, State::Cruise) };
        // What arrives, not what passes: where the queue overflows, more sent would prove more.
        let own = (1.0 - self.path.own_loss()).max(0.1);
        let arrived = self.path.arrivals(self.round_time()).map_or(0, |(rate, _)| rate);
        let passed = self.path.rate(self.round_time()).map_or(0, |rate| rate.proven);
        let rate = passed.min((arrived as f64 / own) as u64);
        rivals.on_ack(now, self.min_rtt, rate);
        let mut finding = None;
        if sample.cumulative_sent >= self.round_end && now - self.round_since >= MIN_ROUND {
            let span = now - self.round_since;
            self.round_end = self.sent;
            self.round_since = now;
            finding = rivals.on_round(&Round {
                now,
                queue: self.path.standing_queue(span),
                empty: self.empty_threshold(),
                min_rtt: self.min_rtt,
                in_flight: sample.in_flight,
                excess: self.path.excess_loss(span),
            });
            self.bandwidth = rivals.rate().max(1);
            if rivals.is_certain() {
                self.certain_until = now + CERTAINTY;
            }
        }
        match finding {
            None => self.rivals = Some(rivals),
            Some(Finding::Alone) => {
                if rivals.is_certain() {
                    // Who had the most of a queue that is gone makes room: the others answer to
                    // loss and need time. If there are none, the next probe brings it back.
                    let left = (EQUAL_SHARE / rivals.share().max(0.1)).min(1.0);
                    self.bandwidth = (self.bandwidth as f64 * left) as u64;
                }
                self.products_with_rivals = rivals.products();
                self.share_with_rivals = rivals.share().min(EQUAL_SHARE + 0.2);
                // Whoever comes back soon finds us at the same rate.
                self.rate_with_rivals = self.bandwidth;
                self.full_since = None;
                self.is_doubtful = true;
                self.enter(now, State::Down);
            }
            // A path does not become longer every few seconds.
            Some(Finding::Longer)
                if self.rebased.is_some_and(|(at, _)| now - at < REBASE_DOUBT) =>
            {
                self.certain_until = now + CERTAINTY;
                self.meet_rivals(now);
            }
            Some(Finding::Longer) => {
                self.is_doubtful = true;
                // What stands may be seen on a clock that lies or drifts: the round trip knows.
                let seen = sample.smoothed_rtt.saturating_sub(self.min_rtt);
                let stands = self.path.standing_queue(self.standing_span());
                self.path.rebase(stands.min(seen));
                self.rebased = Some((now, self.bandwidth));
                self.min_rtt = self.path.min_rtt().unwrap_or(self.min_rtt);
                self.full_since = None;
                self.enter(now, State::Cruise);
            }
        }
    }
}
