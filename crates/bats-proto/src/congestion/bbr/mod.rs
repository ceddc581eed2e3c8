//! Model-based congestion control: paces at the path's rate and keeps its queue short.
//!
//! After BBR (Cardwell and others, draft-ietf-ccwg-bbr), with another idea of rate and of loss
//! (ADR 0003): the rate is read off the receiver's clock with lost packets counted, so that
//! random loss changes neither the estimate nor the end of start-up; delay, marks, and loss
//! beyond the path's own are what counts as congestion.

mod loss_trial;
mod path_model;
mod pauses;
mod restart;
mod rivals;
mod rounds;
mod steps;
mod yielding;

use core::time::Duration;

use bats_types::Timestamp;

use super::{AckSample, Controller};
use loss_trial::Level;
use path_model::PathModel;
use restart::Restart;
use rivals::Rivals;
use yielding::{View, Yielding};

/// Packets of the first flight, and how long it takes: an eighth of the round trip, within limits.
/// Its spacing at the receiver is the first sample of the rate.
const FIRST_FLIGHT_PACKETS: u64 = 40;
const FIRST_FLIGHT_MIN: Duration = Duration::from_millis(2);
const FIRST_FLIGHT_MAX: Duration = Duration::from_millis(25);
/// On paths of this round-trip time and more, where a round trip of start-up costs most, the first flight
/// begins with packets that are sent fast enough to tell fast links from slow ones, and few enough for
/// the queue of a slow one.
const LONG_PATH: Duration = Duration::from_millis(250);
const FAST_PACKETS: u64 = 24;
const FAST_TIME: Duration = Duration::from_millis(3);
/// Growth per round trip in start-up, on paths of up to 60 ms and from 200 ms on. The overshoot
/// before the first feedback from a full link is (g - 1) / ln g - 1 bandwidth-delay products, 0.44
/// and 0.67, and what is sent while it is recognised: that takes some milliseconds, which are
/// little only on longer paths. Long ones know their rate soon enough for the least growth (ADR 0005).
const STARTUP_GAIN: f64 = 2.0;
const STARTUP_GAIN_MAX: f64 = 2.6;
/// Growth right after the first sample: should the first flight have found the link full, half
/// a bandwidth-delay product waits before that is known. On long paths it begins with none.
const FIRST_GAIN: f64 = 1.6;
/// What one round trip of start-up may add at most, whatever is measured.
const MAX_ROUND_GROWTH: f64 = 2.9;
/// Pace while the queue of start-up empties.
const DRAIN_GAIN: f64 = 0.5;
/// Pace between probes, a little below the rate so that no queue stands.
const CRUISE_GAIN: f64 = 0.99;
const UP_GAIN: f64 = 1.25;
const MAX_UP_GAIN: f64 = 2.0;
/// Successes of a probe before it asks for more: the room that others leave is small.
const PATIENT_STEPS: u32 = 2;
const DOWN_GAIN: f64 = 0.75;
/// Time between probes for more bandwidth.
const PROBE_INTERVAL: Duration = Duration::from_millis(2_500);
/// Power of the part kept of what such a probe found (ADR 0016).
const KEPT_POWER: i32 = 2;
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
/// Rounds for which a queue may be that of somebody else's probe.
const PROBING_ROUNDS: u32 = 3;
/// Share of what is sent that arrives at least beside a flow that probes.
const PROBED_RATE: f64 = 0.85;
/// The same for a queue that becomes shorter.
const SHRINKING: f64 = 1.02;
/// Rounds that the rate stays below the path's for a queue that does not become empty.
const MAX_YIELD_ROUNDS: u32 = 6;
/// Rounds after which a queue that has become shorter, but by less than half, is that of rivals.
/// [`Yielding`] sees sooner when it does not become shorter at all.
const RIVAL_ROUNDS: u32 = 14;
/// Multiple of the jitter below which nothing counts as a queue.
const QUEUE_JITTER: u32 = 6;
/// Rounds without a quarter of growth that end start-up.
const PLATEAU_ROUNDS: u32 = 3;

/// A path that was taken for longer and is as short as before within this time was not: others kept
/// a queue. For how long that is remembered.
const REBASE_DOUBT: Duration = Duration::from_secs(30);
const CERTAINTY: Duration = Duration::from_secs(120);
/// Packets that may be in flight at least, beside others.
const MIN_WINDOW_PACKETS: u64 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    Cruise,
    Up,
    Down,
    /// Others keep a queue standing.
    Rivals,
}

/// A sudden fall of what arrives, in bytes a second.
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
    /// Rate of the first flight's beginning, and of its rest.
    initial: u64,
    initial_rest: u64,
    has_sample: bool,
    min_rtt: Duration,
    /// The round ends when this many bytes are acknowledged.
    round_end: u64,
    round_since: Timestamp,
    sent: u64,
    rounds_in_state: u32,
    plateau_rounds: u32,
    bandwidth_at_round: u64,
    /// Bytes a second that arrived over the last round.
    arrivals_at_round: u64,
    /// The rate was cut, perhaps too far: probe soon.
    is_doubtful: bool,
    /// The rate was cut because much less arrived than before.
    cut: Option<Cut>,
    /// What the rate was before the probe, or before its last success.
    before_up: u64,
    /// Bytes a second that arrived then.
    arrivals_before_up: u64,
    up_gain: f64,
    /// Successes of this probe.
    up_steps: u32,
    /// The queue when it began.
    up_queue: Duration,
    /// The probe made a queue of its own.
    filled: bool,
    /// The longest queue since this state began.
    longest_queue: Duration,
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
    restart: Restart,
    rivals: Option<Rivals>,
    /// When the path was last taken for longer, and the rate then.
    rebased: Option<(Timestamp, u64)>,
    /// Until then a queue that does not yield is known to be that of others.
    certain_until: Timestamp,
    /// The rate beside them, our share of the queue, and what was in flight at an equal share then.
    rate_with_rivals: u64,
    share_with_rivals: f64,
    products_with_rivals: f64,
    /// What the rate was when the queue that stands began to.
    bandwidth_at_full: u64,
    state_since: Timestamp,
    /// Until then the delays seen are those of a queue that is known to be gone.
    blind_until: Timestamp,
    /// Arrival of the last acknowledgement.
    heard_at: Timestamp,
    probes: u64,
}

impl Bbr {
    pub(super) fn new(initial_rtt: Duration, packet: u16) -> Self {
        let flight = (initial_rtt / 8).clamp(FIRST_FLIGHT_MIN, FIRST_FLIGHT_MAX);
        let packet = u64::from(packet);
        let rate = |packets: u64, time: Duration| (packets * packet) as f64 / time.as_secs_f64();
        let (initial, then) = if initial_rtt >= LONG_PATH {
            let slow = FIRST_FLIGHT_PACKETS - FAST_PACKETS;
            (rate(FAST_PACKETS, FAST_TIME), rate(slow, flight - FAST_TIME))
        } else {
            let even = rate(FIRST_FLIGHT_PACKETS, flight);
            (even, even)
        };
        Self {
            state: State::Startup,
            path: PathModel::default(),
            packet,
            bandwidth: initial as u64,
            initial: initial as u64,
            initial_rest: then as u64,
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
            up_steps: 0,
            up_queue: Duration::ZERO,
            filled: false,
            longest_queue: Duration::ZERO,
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
            restart: Restart::default(),
            rivals: None,
            rebased: None,
            certain_until: Timestamp::ZERO,
            rate_with_rivals: 0,
            share_with_rivals: rivals::EQUAL_SHARE,
            products_with_rivals: rivals::CWND_GAIN,
            bandwidth_at_full: 0,
            state_since: Timestamp::ZERO,
            blind_until: Timestamp::ZERO,
            heard_at: Timestamp::ZERO,
            probes: 0,
        }
    }

    fn enter(&mut self, now: Timestamp, state: State) {
        let level = match state {
            State::Drain | State::Down => Level::Low,
            State::Cruise => Level::Even,
            State::Startup | State::Up | State::Rivals => Level::High,
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
        self.longest_queue = Duration::ZERO;
        self.bandwidth_at_round = self.bandwidth;
        if state == State::Cruise {
            self.stood_at = None;
        }
        if state == State::Up {
            self.up_gain = UP_GAIN;
            self.up_steps = 0;
            self.filled = false;
            self.up_queue = self.path.standing_queue(self.standing_span());
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

    /// The path is there again after a silence. What arrived before and what was lost in between do not
    /// measure it, and it is taken for what it was: if that is wrong, a round trip or two show it.
    fn resume(&mut self, now: Timestamp) {
        self.path.forget_arrivals();
        self.cut = None;
        self.poor_rounds = 0;
        self.plateau_rounds = 0;
        self.arrivals_at_round = 0;
        self.full_since = None;
        self.round_end = self.sent;
        self.round_since = now;
        if matches!(self.state, State::Drain | State::Up | State::Down) {
            self.enter(now, State::Cruise);
        }
        self.path.void_trial(now);
    }

    /// Growth of start-up in a round trip.
    fn growth(&self) -> f64 {
        if self.is_long() {
            return STARTUP_GAIN;
        }
        let share = (self.min_rtt.as_secs_f64() - 0.060) / 0.140;
        STARTUP_GAIN + (STARTUP_GAIN_MAX - STARTUP_GAIN) * share.clamp(0.0, 1.0)
    }

    fn is_long(&self) -> bool {
        self.min_rtt >= LONG_PATH
    }

    /// What counts as a round trip.
    fn round_time(&self) -> Duration {
        self.min_rtt.max(MIN_ROUND)
    }

    /// A packet in a round trip: no link is slower than that, because its packets take as long. Nothing
    /// that is concluded from a few packets may stop the flow for good.
    fn least_bandwidth(&self) -> u64 {
        (self.packet as f64 / self.round_time().as_secs_f64()) as u64
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
            State::Rivals => return,
            State::Startup | State::Up => 1.0,
            _ => self.gain(),
        };
        // A queue that overflows does not become shorter either.
        let overflows = self.path.is_suspicious();
        let standing = self.path.standing_queue(self.standing_span());
        if let Some((at, rate)) = self.rebased
            && self.path.fall() > self.queue_threshold()
        {
            self.rebased = None;
            if sample.now - at < REBASE_DOUBT {
                // The path was not longer after all.
                self.certain_until = sample.now + CERTAINTY;
                self.bandwidth = self.bandwidth.max(rate);
                return self.meet_rivals(sample.now);
            }
        }
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
            self.bandwidth = self.bandwidth.max(longer.bandwidth);
            self.meet_rivals(sample.now);
        }
    }

    /// By which part more arrives than before the probe.
    fn probe_growth(&self) -> f64 {
        let arriving = self.path.arrivals(self.round_time()).map_or(0, |(rate, _)| rate);
        let growth = arriving as f64 / self.arrivals_before_up.max(1) as f64;
        (growth - 1.0).max(0.0)
    }

    /// More is proven by what arrives, not by what is sent: where no queue keeps the excess it is
    /// lost, and lost packets count as passed.
    ///
    /// Of what a probe found before it filled the link the less is kept the less that is of what it
    /// asked for. A flow with the share s of the link gets (1 - s) / (1 + (g - 1) s) of what a probe at the
    /// gain g asks for, and who has little keeps more than who has much: that is what makes shares equal.
    fn probe_ceiling(&self) -> u64 {
        let growth = self.probe_growth();
        let kept = if self.filled {
            (growth / (self.up_gain - 1.0)).clamp(0.0, 1.0).powi(KEPT_POWER)
        } else {
            1.0
        };
        (self.before_up as f64 * (1.0 + growth * kept) * PROBE_TOLERANCE) as u64
    }

    /// Packets whose arrival is seen now were sent faster than the rate: only they can prove more.
    /// Others that seem to are older than what has been concluded since.
    fn is_above_rate(&self) -> bool {
        match self.state {
            State::Startup | State::Drain | State::Up | State::Rivals => true,
            // Whoever filled the link takes what the others leave to it: that proves nothing.
            State::Down => self.probed && !self.filled,
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
            State::Rivals => self.rivals.as_ref().map_or(1.0, Rivals::gain),
        }
    }
}

impl Controller for Bbr {
    fn on_sent(&mut self, now: Timestamp, bytes: u64, _in_flight: u64) {
        self.sent += bytes;
        if self.state == State::Startup && self.has_sample && self.is_long() {
            // After the few acknowledgements of the first flight none comes for nearly a round trip.
            self.ramp(now);
        }
    }

    fn on_ack(&mut self, sample: &AckSample) {
        self.heard_at = sample.now;
        if sample.after_blackout {
            self.resume(sample.now);
        }
        // At the least window the path may have become much longer.
        let is_held =
            self.state == State::Rivals && self.window() > MIN_WINDOW_PACKETS * self.packet;
        self.path.set_standing_queue(is_held);
        self.path.on_ack(sample);
        self.min_rtt = self.path.min_rtt().unwrap_or(sample.min_rtt);
        self.tell_path_from_queue(sample);
        if self.state == State::Rivals {
            return self.on_ack_with_rivals(sample);
        }
        let signs = self.read_signs(sample);
        self.take_conclusion(sample.now);
        if signs.is_congestive && self.state == State::Down && self.probed {
            // Lost packets count as passed: what the probe found since its last success is void.
            self.bandwidth = self.bandwidth.min(self.before_up);
        }
        self.take_rate(sample.now, &signs);
        self.grow(sample.now);
        self.change_state(sample, &signs);
        if sample.cumulative_sent >= self.round_end && sample.now - self.round_since >= MIN_ROUND {
            self.round_end = self.sent;
            self.round_since = sample.now;
            self.on_round(sample.now, self.path.was_idle(self.round_time()));
        }
        self.bandwidth = self.bandwidth.max(self.least_bandwidth());
    }

    fn on_probe_timeout(&mut self, _now: Timestamp, _count: u32) {}

    fn window(&self) -> u64 {
        if let (State::Rivals, Some(rivals)) = (self.state, &self.rivals) {
            return rivals.window().max(MIN_WINDOW_PACKETS * self.packet);
        }
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
        if self.state == State::Startup
            && self.bandwidth == self.initial
            && !self.has_sample
            && self.sent >= FAST_PACKETS * self.packet
        {
            return self.initial_rest;
        }
        // A probe asks for a part more than what it began with: what it finds does not add to that.
        let rate = if self.state == State::Up { self.before_up } else { self.bandwidth };
        ((rate as f64 * self.gain()) as u64).max(2 * self.packet)
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
            State::Rivals => "rivals",
        }
    }
}
