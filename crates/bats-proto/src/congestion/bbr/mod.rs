//! Model-based congestion control: paces at the path's rate and keeps its queue short.
//!
//! After BBR (Cardwell and others, draft-ietf-ccwg-bbr), with another idea of rate and of loss
//! (ADR 0003): the rate is read off the receiver's clock with lost packets counted, so that
//! random loss changes neither the estimate nor the end of start-up; delay, marks, and loss
//! beyond the path's own are what counts as congestion.

mod loss_trial;
mod path_model;
mod yielding;

use core::time::Duration;

use bats_types::Timestamp;

use super::{AckSample, Controller};
use loss_trial::{Conclusion, Level};
use path_model::PathModel;
use yielding::{View, Yielding};

/// Packets of the first flight, and how long it takes: an eighth of the round trip, within limits.
/// Its spacing at the receiver is the first sample of the rate.
const FIRST_FLIGHT_PACKETS: u64 = 40;
const FIRST_FLIGHT_MIN: Duration = Duration::from_millis(2);
const FIRST_FLIGHT_MAX: Duration = Duration::from_millis(25);
/// Growth per round trip in start-up, on paths of up to 60 ms and from 200 ms on. The overshoot
/// before the first feedback from a full link is (g - 1) / ln g - 1 bandwidth-delay products, 0.44
/// and 0.67, and what is sent while it is recognised: that takes some milliseconds, which are
/// little only on long paths, and only these need the faster growth.
const STARTUP_GAIN_SHORT: f64 = 2.0;
const STARTUP_GAIN_LONG: f64 = 2.6;
/// Growth right after the first sample: should the first flight have found the link full, half
/// a bandwidth-delay product waits before that is known.
const FIRST_GAIN: f64 = 1.6;
/// What one round trip of start-up may add at most, whatever is measured.
const MAX_ROUND_GROWTH: f64 = 2.9;
/// Pace while the queue of start-up empties.
const DRAIN_GAIN: f64 = 0.5;
/// Pace between probes, a little below the rate so that no queue stands.
const CRUISE_GAIN: f64 = 0.99;
const UP_GAIN: f64 = 1.25;
const MAX_UP_GAIN: f64 = 2.0;
const DOWN_GAIN: f64 = 0.75;
/// Time between probes for more bandwidth.
const PROBE_INTERVAL: Duration = Duration::from_millis(2_500);
/// A round lasts at least this long: on paths with hardly any delay acknowledgements come less
/// often than once in a round trip, and scheduling of the hosts is what is measured.
const MIN_ROUND: Duration = Duration::from_millis(5);
/// Least time between two trials of loss that looks like congestion.
const MIN_TRIAL_INTERVAL: Duration = Duration::from_millis(500);
/// Loss beyond the path's own that ends start-up although no queue is seen: a queue that is too
/// short for that.
const STARTUP_LOSS: f64 = 0.15;
/// A queue that is shorter-lived than this is the hosts' scheduling and not the path's.
const MIN_FULL: Duration = Duration::from_millis(10);
/// What marked packets take of the rate at most, in a round.
const CE_CUT: f64 = 0.85;
/// What one trial may take of the rate: losses in bursts can look like overflow.
const MIN_TRIAL_SHARE: f64 = 0.8;
/// Loss within a round, beyond the path's own, from which on a much slower link is suspected, and the
/// share of what should arrive that must not arrive for that.
const SUDDEN_LOSS: f64 = 0.3;
const SUDDEN_FALL: f64 = 0.6;
/// By how much a probe's arrivals may be fewer than they seem, for noise.
const PROBE_TOLERANCE: f64 = 1.02;
/// Rounds after which a queue that stands although less is sent is looked into, and how much lower
/// the rate is taken to be at least if it was one.
const STANDING_ROUNDS: u32 = 8;
const MIN_STANDING_GAIN: f64 = 0.95;
/// Rounds that the rate stays below the path's for a queue that does not become empty.
const MAX_YIELD_ROUNDS: u32 = 6;
/// Multiple of the jitter below which nothing counts as a queue.
const QUEUE_JITTER: u32 = 6;
/// Rounds without a quarter of growth that end start-up.
const PLATEAU_ROUNDS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    Cruise,
    Up,
    Down,
}

/// A sudden fall of what arrives, in octets a second.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// The rate believed before.
    bandwidth: u64,
    /// What arrived.
    arrivals: u64,
}

#[derive(Debug)]
pub(super) struct Bbr {
    state: State,
    path: PathModel,
    packet: u64,
    /// Estimate of the path's rate, bytes per second.
    bandwidth: u64,
    /// Rate of the first flight.
    initial: u64,
    has_sample: bool,
    min_rtt: Duration,
    /// The round ends when this many bytes are acknowledged.
    round_end: u64,
    round_since: Timestamp,
    sent: u64,
    rounds_in_state: u32,
    plateau_rounds: u32,
    bandwidth_at_round: u64,
    /// Octets a second that arrived over the last round.
    arrivals_at_round: u64,
    /// The rate was cut, perhaps too far: probe soon.
    is_doubtful: bool,
    /// The rate was cut because much less arrived than before.
    cut: Option<Cut>,
    /// What the rate was before the probe, or before its last success.
    before_up: u64,
    /// Octets a second that arrived then.
    arrivals_before_up: u64,
    up_gain: f64,
    /// Pace, as a share of the rate believed, at which a queue stood for long.
    stood_at: Option<f64>,
    /// The state before was a probe.
    probed: bool,
    /// Grows over the round after the first sample, so that the first flight's steady
    /// rate does not turn into a step that overshoots for a whole round.
    startup_gain: f64,
    first_sample_at: Timestamp,
    next_probe: Timestamp,
    /// The probe that a trial came before.
    due_probe: Option<Timestamp>,
    /// Rounds in a row in which much less arrived than expected.
    poor_rounds: u32,
    next_trial: Timestamp,
    full_since: Option<Timestamp>,
    yielding: Yielding,
    state_since: Timestamp,
    /// Until then the delays seen are those of a queue that is known to be gone.
    blind_until: Timestamp,
    /// Arrival of the last acknowledgement.
    heard_at: Timestamp,
    probes: u64,
    /// After a silence: send carefully until something is heard.
    silent: bool,
}

impl Bbr {
    pub(super) fn new(initial_rtt: Duration, packet: u16) -> Self {
        let flight = (initial_rtt / 8).clamp(FIRST_FLIGHT_MIN, FIRST_FLIGHT_MAX);
        let packet = u64::from(packet);
        let rate = (FIRST_FLIGHT_PACKETS * packet) as f64 / flight.as_secs_f64();
        Self {
            state: State::Startup,
            path: PathModel::default(),
            packet,
            bandwidth: rate as u64,
            initial: rate as u64,
            has_sample: false,
            min_rtt: initial_rtt,
            round_end: 0,
            round_since: Timestamp::ZERO,
            sent: 0,
            rounds_in_state: 0,
            plateau_rounds: 0,
            bandwidth_at_round: 0,
            arrivals_at_round: 0,
            is_doubtful: false,
            cut: None,
            before_up: 0,
            arrivals_before_up: 0,
            up_gain: UP_GAIN,
            stood_at: None,
            probed: false,
            startup_gain: 1.0,
            first_sample_at: Timestamp::ZERO,
            next_probe: Timestamp::ZERO,
            due_probe: None,
            poor_rounds: 0,
            next_trial: Timestamp::ZERO,
            full_since: None,
            yielding: Yielding::default(),
            state_since: Timestamp::ZERO,
            blind_until: Timestamp::ZERO,
            heard_at: Timestamp::ZERO,
            probes: 0,
            silent: false,
        }
    }

    fn enter(&mut self, now: Timestamp, state: State) {
        let level = match state {
            State::Drain | State::Down => Level::Low,
            State::Cruise => Level::Even,
            State::Startup | State::Up => Level::High,
        };
        if level == Level::Low {
            // The rate of start-up was measured over its last moments.
            let before = match self.state {
                State::Startup => self.path.loss_over(self.rate_span()),
                _ => None,
            };
            let span = match self.state {
                State::Startup => self.rate_span(),
                _ => self.round_time(),
            };
            self.path.begin_trial(before, span);
        }
        self.path.set_level(now, level);
        self.probed = self.state == State::Up;
        if state == State::Down && self.state == State::Cruise {
            // A trial does not put off the next probe.
            self.due_probe = Some(self.next_probe).filter(|&at| at > now);
        }
        self.state = state;
        self.state_since = now;
        self.rounds_in_state = 0;
        self.bandwidth_at_round = self.bandwidth;
        if state == State::Cruise {
            self.stood_at = None;
        }
        if state == State::Up {
            self.up_gain = UP_GAIN;
            self.before_up = self.bandwidth;
            self.arrivals_before_up =
                self.path.arrivals(self.round_time()).map_or(0, |(rate, _)| rate);
        }
        if state == State::Cruise {
            // Probes of different connections should not fall together: the interval differs by
            // a fifth from probe to probe.
            self.probes += 1;
            let spread = (self.probes.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u32;
            let rounds = self.round_time() * 8;
            let due = self.due_probe.take();
            self.next_probe = if self.probes == 1 || core::mem::take(&mut self.is_doubtful) {
                // Start-up may have ended, or the rate may have been cut, by mistake: find out soon.
                now + self.round_time() * 4
            } else if let Some(at) = due {
                at.max(now + self.round_time() * 2)
            } else {
                now + PROBE_INTERVAL.max(rounds) + PROBE_INTERVAL / 1_280 * spread
            };
        }
    }

    /// Growth of start-up in a round trip.
    fn growth(&self) -> f64 {
        let share = (self.min_rtt.as_secs_f64() - 0.060) / 0.140;
        STARTUP_GAIN_SHORT + (STARTUP_GAIN_LONG - STARTUP_GAIN_SHORT) * share.clamp(0.0, 1.0)
    }

    /// What counts as a round trip.
    fn round_time(&self) -> Duration {
        self.min_rtt.max(MIN_ROUND)
    }

    /// The bandwidth-delay product, in bytes.
    fn product(&self) -> u64 {
        (self.bandwidth as f64 * self.min_rtt.as_secs_f64()) as u64
    }

    /// Queueing delay that means a full link rather than noise.
    fn queue_threshold(&self) -> Duration {
        let queue = (self.min_rtt / 16).clamp(Duration::from_millis(3), Duration::from_millis(12));
        queue.max(self.path.jitter() * QUEUE_JITTER)
    }

    /// Queueing delay below which the queue counts as empty.
    fn empty_threshold(&self) -> Duration {
        let queue = (self.min_rtt / 50).clamp(Duration::from_millis(1), Duration::from_millis(3));
        queue.max(self.path.jitter() * QUEUE_JITTER / 2)
    }

    /// Over which time the rate is measured: short in start-up, where it grows by the moment.
    fn rate_span(&self) -> Duration {
        match self.state {
            State::Startup => {
                (self.min_rtt / 10).clamp(Duration::from_millis(2), Duration::from_millis(14))
            }
            _ => (self.min_rtt / 2).clamp(Duration::from_millis(5), Duration::from_millis(100)),
        }
    }

    /// How long a queue must stand. Acknowledgements come up to 48 times in a round trip and not
    /// less often than every 3 ms: three of them fit, also where some are lost.
    fn standing_span(&self) -> Duration {
        (self.min_rtt / 10).clamp(Duration::from_millis(3), Duration::from_millis(14))
    }

    /// A delay that does not become shorter when less is sent is the path's.
    fn tell_path_from_queue(&mut self, sample: &AckSample) {
        let gain = match self.state {
            State::Startup | State::Up => 1.0,
            _ => self.gain(),
        };
        // A queue that overflows does not become shorter either.
        let overflows = self.path.is_suspicious();
        let standing = self.path.standing_queue(self.standing_span());
        let longer = self.yielding.on_ack(&View {
            now: sample.now,
            standing: if overflows { Duration::ZERO } else { standing },
            threshold: self.queue_threshold(),
            gain,
            min_rtt: self.round_time(),
            smoothed_rtt: sample.smoothed_rtt,
            bandwidth: self.bandwidth,
        });
        if let Some(longer) = longer {
            self.is_doubtful = true;
            self.path.rebase(longer.by);
            self.min_rtt = self.path.min_rtt().unwrap_or(self.min_rtt);
            self.bandwidth = self.bandwidth.max(longer.bandwidth);
        }
    }

    /// More is proven by what arrives, not by what is sent: where no queue keeps the excess it is
    /// lost, and lost packets count as passed.
    fn probe_ceiling(&self) -> u64 {
        let arriving = self.path.arrivals(self.round_time()).map_or(0, |(rate, _)| rate);
        let growth = arriving as f64 / self.arrivals_before_up.max(1) as f64;
        (self.before_up as f64 * (growth * PROBE_TOLERANCE).max(1.0)) as u64
    }

    /// Packets whose arrival is seen now were sent faster than the rate: only they can prove more.
    /// Others that seem to are older than what has been concluded since.
    fn is_above_rate(&self) -> bool {
        match self.state {
            State::Startup | State::Drain | State::Up => true,
            State::Down => self.probed,
            State::Cruise => false,
        }
    }

    fn is_blind(&self) -> bool {
        self.heard_at < self.blind_until
    }

    /// Pace, as a share of the path's rate.
    fn gain(&self) -> f64 {
        match self.state {
            State::Startup if !self.has_sample => 1.0,
            State::Startup => self.startup_gain,
            State::Drain => DRAIN_GAIN,
            State::Cruise if self.is_blind() => CRUISE_GAIN,
            State::Cruise => {
                // What stands in spite of all is worked off within a few rounds.
                let standing = self.path.standing_queue(self.standing_span());
                let excess = standing.saturating_sub(self.empty_threshold());
                let share = excess.as_secs_f64() / self.min_rtt.as_secs_f64().max(1e-3);
                CRUISE_GAIN - (share / 2.0).min(0.25)
            }
            State::Up => self.up_gain,
            State::Down => DOWN_GAIN,
        }
    }

    fn on_round(&mut self, now: Timestamp, app_limited: bool) {
        self.rounds_in_state += 1;
        let grown = self.bandwidth as f64 / self.bandwidth_at_round.max(1) as f64;
        let arrivals = self.path.arrivals(self.round_time());
        let before = core::mem::replace(&mut self.arrivals_at_round, arrivals.map_or(0, |a| a.0));
        let own = self.path.own_loss();
        let expected = self.bandwidth as f64 * (1.0 - own);
        let is_poor = arrivals.is_some_and(|(arriving, lost)| {
            lost > own + SUDDEN_LOSS && (arriving as f64) < expected * SUDDEN_FALL
        }) && !app_limited
            && self.cut.is_none();
        self.poor_rounds = if is_poor { self.poor_rounds + 1 } else { 0 };
        match (self.state, arrivals) {
            // What is sent in excess is lost where no queue keeps it: more is sent, no more arrives.
            (State::Startup, Some((now_arriving, lost)))
                if before > 0
                    && now - self.first_sample_at > self.round_time() * 2
                    && lost > STARTUP_LOSS
                    && !app_limited
                    && grown > 1.25
                    && now_arriving < before / 8 * 9 =>
            {
                self.bandwidth = now_arriving;
                self.path.forget_own_loss();
                self.enter(now, State::Drain);
            }
            (State::Cruise, Some((now_arriving, _))) if is_poor && self.poor_rounds >= 2 => {
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
                self.up_gain = (self.up_gain * 1.25).min(MAX_UP_GAIN);
            }
            State::Up if self.rounds_in_state >= 3 => self.enter(now, State::Down),
            State::Cruise if now >= self.next_trial && self.path.is_suspicious() => {
                self.next_trial = now + (self.round_time() * 8).max(MIN_TRIAL_INTERVAL);
                self.enter(now, State::Down);
            }
            _ => {}
        }
        self.bandwidth_at_round = self.bandwidth;
    }
}

impl Controller for Bbr {
    fn on_sent(&mut self, _now: Timestamp, bytes: u64, _in_flight: u64) {
        self.sent += bytes;
    }

    fn on_ack(&mut self, sample: &AckSample) {
        let now = sample.now;
        self.silent = false;
        self.heard_at = now;
        self.path.on_ack(sample);
        self.min_rtt = self.path.min_rtt().unwrap_or(sample.min_rtt);
        self.tell_path_from_queue(sample);
        let standing = self.path.standing_queue(self.standing_span());
        let confirmed = self.path.samples_in(self.standing_span()) >= 3;
        let outrun = self.state == State::Startup
            && self.path.samples_in(self.rate_span()) >= 3
            && self.path.is_outrun(self.rate_span(), self.min_rtt);
        let full = (confirmed && standing > self.queue_threshold()) || outrun;
        let excess = self.path.excess_loss(self.min_rtt.max(self.rate_span()));
        let congestive = sample.ce_packets > 0 || excess > 0.0;
        let overflows =
            excess > STARTUP_LOSS && self.path.excess_loss(self.rate_span()) > STARTUP_LOSS;
        if full {
            self.full_since.get_or_insert(now);
        } else if standing <= self.queue_threshold() {
            self.full_since = None;
        }
        let full_for = self.full_since.map_or(Duration::ZERO, |since| now - since);
        if let Some(conclusion) = self.path.conclude_trial() {
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
                Conclusion::Overrun(packets) => packets * self.packet as f64,
            };
            if (rate as u64) < self.bandwidth {
                self.bandwidth = rate as u64;
                self.next_probe = self.next_probe.min(now + self.round_time() * 4);
                self.is_doubtful = self.state != State::Cruise;
                // A large correction may not be the last.
                self.next_trial = now + self.round_time() * 3;
            }
        }

        if congestive && self.state == State::Down && self.probed {
            // Lost packets count as passed: what the probe found since its last success is void.
            self.bandwidth = self.bandwidth.min(self.before_up);
        }

        if let Some(rate) = self.path.rate(self.rate_span()) {
            let ceiling = if self.state == State::Startup {
                // Bursts may cross a shared link faster than a whole flow could.
                (self.bandwidth_at_round.max(self.initial) as f64 * MAX_ROUND_GROWTH) as u64
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
            } else if full_for >= MIN_FULL
                && self.state != State::Startup
                && rate.arrived > 0
                && rate.changed
            {
                // The link is busy and yet slower than believed: believe it.
                self.bandwidth -= self.bandwidth.saturating_sub(rate.busy) / 4;
            }
            if (full || overflows) && self.state == State::Startup {
                self.bandwidth = rate.arrived.min(self.bandwidth);
            }
        }

        let ramp = (now - self.first_sample_at).as_secs_f64() / self.round_time().as_secs_f64();
        let growth = self.growth();
        self.startup_gain = FIRST_GAIN * (growth / FIRST_GAIN).powf(ramp.min(1.0));
        if self.state == State::Startup {
            self.path.set_level(now, Level::High);
            self.path.note_start(self.rate_span());
        }
        match self.state {
            State::Startup
                if full || overflows || (congestive && standing > self.empty_threshold()) =>
            {
                self.enter(now, State::Drain);
            }
            State::Drain | State::Down => {
                let empty = standing <= self.empty_threshold();
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
                } else if (empty && waited) || too_long {
                    self.enter(now, State::Cruise);
                }
            }
            State::Cruise
                if full
                    && (now >= self.next_probe
                        || full_for > self.round_time() * STANDING_ROUNDS) =>
            {
                // Nothing to be found while a queue stands; but is it one?
                self.stood_at = Some(self.gain());
                self.full_since = None;
                self.enter(now, State::Down);
            }
            State::Cruise if sample.ce_packets > 0 && now >= self.next_trial => {
                // Marked packets are a queue that somebody else sees (RFC 3168, once in a round).
                let marked = sample.ce_packets.min(sample.acked_packets) as f64;
                let share = marked / sample.acked_packets.max(1) as f64;
                self.bandwidth = (self.bandwidth as f64 * (1.0 - share / 2.0).max(CE_CUT)) as u64;
                self.next_trial = now + self.round_time();
                self.enter(now, State::Down);
            }
            State::Cruise if now >= self.next_probe && !sample.app_limited => {
                self.enter(now, State::Up);
            }
            State::Up if full || congestive => self.enter(now, State::Down),
            _ => {}
        }
        if sample.cumulative_sent >= self.round_end && now - self.round_since >= MIN_ROUND {
            self.round_end = self.sent;
            self.round_since = now;
            self.on_round(now, sample.app_limited);
        }
    }

    fn on_probe_timeout(&mut self, _now: Timestamp, count: u32) {
        self.silent = count >= 2;
    }

    fn window(&self) -> u64 {
        if !self.has_sample {
            return FIRST_FLIGHT_PACKETS * self.packet;
        }
        let gain = match self.state {
            State::Startup => self.growth() * 1.5,
            State::Up => 2.0 * self.up_gain.max(1.0) / UP_GAIN,
            _ => 2.0,
        };
        let product = self.product() as f64;
        // Acknowledgements come in steps of a few milliseconds.
        let slack = self.bandwidth as f64 * 0.005;
        ((product * gain + slack) as u64).max(FIRST_FLIGHT_PACKETS * self.packet)
    }

    fn pacing_rate(&self) -> u64 {
        let silence = if self.silent { 0.5 } else { 1.0 };
        ((self.bandwidth as f64 * self.gain() * silence) as u64).max(2 * self.packet)
    }

    fn bandwidth(&self) -> u64 {
        self.bandwidth
    }

    fn queue_delay(&self) -> Duration {
        self.path.queue_delay
    }

    fn state(&self) -> &'static str {
        match self.state {
            State::Startup => "startup",
            State::Drain => "drain",
            State::Cruise => "cruise",
            State::Up => "probe_up",
            State::Down => "probe_down",
        }
    }
}
