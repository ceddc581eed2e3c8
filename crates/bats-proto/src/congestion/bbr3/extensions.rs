//! Mechanisms beyond the draft, which make `ltcc` of BBRv3: their state and what they decide. The
//! controller asks them where the draft leaves room; it passes its `state` and `min_rtt`.

use core::time::Duration;

use super::bounds::Bounds;
use super::constants::{DOWN_PACING_GAIN, LOSS_THRESH, MIN_PIPE_PACKETS};
use super::credit::Credit;
use super::delay_step::DelayStep;
use super::light_probe::LightProbe;
use super::loss_threshold::LossThreshold;
use super::min_rtt::MinRtt;
use super::queue_delay::{QueueDelay, queue_threshold};
use super::reverse_delay::ReverseDelay;
use super::startup_rate::StartupRate;
use super::state::{Phase, State};
use super::trial::{Change, TrialClock};
use super::variation::{Constant, Mechanism, Variation};
use crate::congestion::{AckSample, LostPacket, RateSample};

/// Window of a flow that shares its bottleneck with more flows than packets fit (RFC 9002 section 7.2).
const SMALL_PIPE_PACKETS: u64 = 2;

/// State of the mechanisms.
#[derive(Debug)]
pub(super) struct Extensions {
    /// `None` is the draft to the letter.
    variation: Option<Variation>,
    pub(super) credit: Credit,
    pub(super) queue: QueueDelay,
    trial: TrialClock,
    /// The application limited the flow when the trial began: the flow adds no queue, and a lower pace
    /// would only delay its messages.
    is_trial_app_limited: bool,
    /// A probe timeout expired since the last trial began: packets sent in a blackout count as limited
    /// by the application, too.
    pub(super) had_timeout: bool,
    pub(super) light: LightProbe,
    /// Queueing delay when ProbeBW_UP began.
    up_queue: Duration,
    /// Consecutive rounds in which a queue stood.
    standing_rounds: u32,
    delay_step: DelayStep,
    reverse_delay: ReverseDelay,
    startup_rate: StartupRate,
    /// Packets lost and acknowledged in this loss round.
    round_lost: u64,
    round_acked: u64,
    /// Mean delivery rate of the last rounds outside of trials, bytes per second.
    delivered_mean: f64,
    /// The path's own loss that was proven when Startup ended.
    startup_left_at: Option<f64>,
    /// Startup has ended before: it is resumed once at most.
    had_startup: bool,
}

impl Extensions {
    pub(super) fn new(variation: Option<Variation>) -> Self {
        let constants = variation.unwrap_or_default();
        Self {
            variation,
            credit: Credit::new(constants),
            queue: QueueDelay::default(),
            trial: TrialClock::new(constants),
            is_trial_app_limited: false,
            had_timeout: false,
            light: LightProbe::default(),
            up_queue: Duration::ZERO,
            standing_rounds: 0,
            delay_step: DelayStep::default(),
            reverse_delay: ReverseDelay::default(),
            startup_rate: StartupRate::default(),
            round_lost: 0,
            round_acked: 0,
            delivered_mean: 0.0,
            startup_left_at: None,
            had_startup: false,
        }
    }

    pub(super) fn has(&self, mechanism: Mechanism) -> bool {
        self.variation.is_some_and(|variation| variation.has(mechanism))
    }

    /// The path's own loss.
    pub(super) fn own_loss(&self) -> f64 {
        if self.has(Mechanism::LossCredit) { self.credit.own_loss() } else { 0.0 }
    }

    fn value(&self, constant: Constant) -> f64 {
        self.variation.unwrap_or_default().value(constant)
    }
    /// MinPipeCwnd, section 2.8, in bytes.
    pub(super) fn min_pipe_cwnd(&self, packet: u64) -> u64 {
        let is_small = self.has(Mechanism::SmallPipe);
        let packets = if is_small { SMALL_PIPE_PACKETS } else { MIN_PIPE_PACKETS };
        // So many must arrive.
        (packets as f64 / (1.0 - self.own_loss()) * packet as f64) as u64
    }

    /// Whether the path's own loss is credited now: no queue has stood for several rounds, or it is
    /// the one that this flow's own probe builds. With a standing queue every loss counts, as in the
    /// draft.
    fn is_credit_open(&self, state: State, min_rtt: Duration) -> bool {
        let is_probing = matches!(state, State::ProbeBw(Phase::Up | Phase::Down));
        let is_own_queue = is_probing && self.up_queue < queue_threshold(min_rtt);
        let most = self.value(Constant::StandingRounds);
        self.has(Mechanism::LossCredit) && (f64::from(self.standing_rounds) < most || is_own_queue)
    }

    /// What losses are compared with, on a path with packets of `packet` bytes.
    pub(super) fn loss_threshold(
        &self,
        state: State,
        min_rtt: Duration,
        packet: u64,
    ) -> LossThreshold<'_> {
        LossThreshold {
            credit: self.is_credit_open(state, min_rtt).then_some(&self.credit),
            has_credit: self.has(Mechanism::LossCredit),
            packet,
        }
    }

    /// Takes an acknowledgement before the model does, and credits `rs`. `is_full`: the pipe has been
    /// full.
    pub(super) fn on_ack(
        &mut self,
        sample: &AckSample,
        rs: &mut RateSample,
        state: State,
        is_full: bool,
        min_rtt: &mut MinRtt,
    ) {
        let (now, sent) = (sample.now, sample.largest_sent_at);
        let threshold = queue_threshold(min_rtt.get());
        self.queue.on_ack(now, sent, sample.largest_received_at, sample.min_rtt);
        if self.has(Mechanism::DelayStep)
            && let Some(delay) = self.queue.latest_delay()
            && let Some((delay, rtt)) =
                self.delay_step.on_ack(now, sent, delay, sample.rtt, threshold)
        {
            self.queue.set_base(now, delay);
            min_rtt.set(now, rtt);
        }
        let min_rtt = min_rtt.get();
        if self.has(Mechanism::ReverseWindow) {
            self.reverse_delay.on_ack(sample.rtt, min_rtt, self.queue.latest());
        }
        if state == State::Startup && self.has(Mechanism::FastStartup) {
            let received_at = sample.largest_received_at;
            self.startup_rate.on_ack(
                received_at,
                sample.acked_bytes,
                sample.min_rtt,
                sample.packet,
            );
        }
        self.round_acked += sample.acked_packets;
        self.credit.on_ack(sent, sample.acked_packets, self.queue.latest() < threshold);
        if self.has(Mechanism::LossCredit) && is_full {
            let has_losses = self.credit.has_losses();
            match self.trial.update(now, min_rtt, has_losses) {
                Change::Begin(from) => {
                    let had_timeout = core::mem::take(&mut self.had_timeout);
                    self.is_trial_app_limited = sample.app_limited && !had_timeout;
                    self.credit.begin_trial(from);
                }
                Change::End => self.credit.end_trial(now),
                Change::None => {}
            }
        }
        if self.is_credit_open(state, min_rtt) {
            self.credit_sample(rs);
        }
    }

    /// What the path's own loss took had passed the bottleneck: it counts for the rate.
    fn credit_sample(&self, rs: &mut RateSample) {
        let sent = (rs.delivered + rs.lost) as f64;
        let own = self.credit.own_loss();
        let forgiven = (own * sent).min(rs.lost as f64);
        if forgiven <= 0.0 || rs.delivered == 0 {
            return;
        }
        let factor = (rs.delivered as f64 + forgiven) / rs.delivered as f64;
        rs.delivery_rate = (rs.delivery_rate as f64 * factor.min(1.0 / (1.0 - own))) as u64;
        rs.lost -= forgiven as u64;
        rs.delivered += forgiven as u64;
    }

    /// A packet was lost.
    pub(super) fn on_lost(&mut self, packet: &LostPacket) {
        self.credit.on_lost(packet.sent_at, packet.continues_run);
        self.round_lost += 1;
    }

    /// A loss round ends. Returns whether chance and the path's own loss explain its losses.
    pub(super) fn end_loss_round(&mut self, state: State, min_rtt: Duration, packet: u64) -> bool {
        let lost = core::mem::take(&mut self.round_lost);
        let acked = core::mem::take(&mut self.round_acked);
        self.loss_threshold(state, min_rtt, packet).is_random(lost, acked) || self.trial.is_on()
    }

    /// A round began; `measured` is the delivery rate without credit.
    pub(super) fn on_round(&mut self, measured: u64, min_rtt: Duration) {
        let mean_rounds = self.value(Constant::MeanRounds);
        self.queue.on_round();
        self.reverse_delay.on_round();
        let stands = self.queue.last_round >= queue_threshold(min_rtt);
        self.standing_rounds = if stands { self.standing_rounds.saturating_add(1) } else { 0 };
        if measured > 0 && !self.trial.is_on() {
            let weight = if self.delivered_mean > 0.0 { 1.0 / mean_rounds } else { 1.0 };
            self.delivered_mean += weight * (measured as f64 - self.delivered_mean);
        }
    }

    /// A round began: begins, goes on with or ends a light probe. `bw` in bytes per second.
    pub(super) fn update_light_probe(
        &mut self,
        state: State,
        min_rtt: Duration,
        bw: u64,
        bounds: &Bounds,
    ) {
        let is_cruise = state == State::ProbeBw(Phase::Cruise);
        let threshold = queue_threshold(min_rtt);
        let is_short = self.queue.last_round * 2 < threshold;
        let is_possible = self.has(Mechanism::LightProbes) && is_cruise && !self.trial.is_on();
        // A shallow buffer or a policer drops the excess without a queue before it. Losses behind a
        // queue say that the rate has fallen: once the queue is gone, it may rise again.
        let is_excess_lost = bounds.had_congestion && self.queue.last_round < threshold;
        let growth = self.light_probe_growth();
        let most_rounds = self.value(Constant::LightRounds) as u32;
        self.light.on_round(is_cruise, is_excess_lost);
        self.light.probe(is_possible && is_short, bw, bounds.bw_latest, growth, most_rounds);
    }

    /// Growth of the bandwidth that a light probe looks for.
    pub(super) fn light_probe_growth(&self) -> f64 {
        1.0 + 2.0 * self.value(Constant::LightGain)
    }

    /// Whether to resume Startup: it ended before trials had shown the path's own loss. Once only: with
    /// a short queue each time would overshoot again.
    pub(super) fn take_resumed_startup(&mut self, state: State, min_rtt: Duration) -> bool {
        let Some(known) = self.startup_left_at else { return false };
        let is_short = self.queue.last_round < queue_threshold(min_rtt);
        let is_due = state.is_probe_bw()
            && !self.trial.is_on()
            && is_short
            && self.has(Mechanism::ResumedStartup)
            && self.credit.proven_loss() > known + LOSS_THRESH;
        if is_due {
            self.startup_left_at = None;
        }
        is_due
    }

    /// A queue ends Startup: the bottleneck's rate, in bytes per second, is what arrived last.
    pub(super) fn take_startup_rate(&mut self, state: State, min_rtt: Duration) -> u64 {
        let is_open = self.is_credit_open(state, min_rtt);
        let own = if is_open { self.credit.own_loss() } else { 0.0 };
        self.delivered_mean = self.delivered_mean.max(self.startup_rate.get());
        (self.startup_rate.get() / (1.0 - own)) as u64
    }

    /// Startup ends.
    pub(super) fn note_end_of_startup(&mut self) {
        if !core::mem::replace(&mut self.had_startup, true) {
            self.startup_left_at = Some(self.credit.proven_loss());
        }
    }

    /// Bound of the bandwidth in bytes per second, which holds whatever is credited; none before the
    /// pipe has been full.
    pub(super) fn max_credited_bw(&self, is_full: bool) -> u64 {
        let mean = self.delivered_mean;
        let is_bounded = self.has(Mechanism::LossCredit) && is_full && mean > 0.0;
        if is_bounded { (self.value(Constant::MaxOverMean) * mean) as u64 } else { u64::MAX }
    }

    /// The rate that Startup follows in bytes per second; 0 if the draft's samples have it.
    pub(super) fn startup_rate(&self, state: State) -> u64 {
        if state != State::Startup {
            return 0;
        }
        self.startup_rate.get() as u64
    }

    /// The pacing gain: `gain` of the state, less while a queue stands in ProbeBW_CRUISE, more in a
    /// light probe.
    pub(super) fn pacing_gain(&self, state: State, min_rtt: Duration, gain: f64) -> f64 {
        let is_cruise = state == State::ProbeBw(Phase::Cruise);
        let stands = self.queue.last_round > queue_threshold(min_rtt);
        if is_cruise && stands && self.has(Mechanism::QueueDrain) {
            DOWN_PACING_GAIN
        } else if self.light.is_on() {
            1.0 + self.value(Constant::LightGain)
        } else {
            gain
        }
    }

    /// Bound of the pacing rate in bytes per second: in a trial below what was delivered, not below
    /// what was sent. See [`super::credit`].
    pub(super) fn trial_pacing_rate(&self) -> Option<u64> {
        let is_on = self.trial.is_on() && self.delivered_mean > 0.0;
        (is_on && !self.is_trial_app_limited)
            .then_some((DOWN_PACING_GAIN * self.delivered_mean) as u64)
    }

    /// Bytes that are delivered at `bw` bytes per second while their acknowledgements wait in the
    /// reverse direction.
    pub(super) fn reverse_window(&self, bw: u64) -> u64 {
        (bw as f64 * self.reverse_delay.last_round().as_secs_f64()) as u64
    }

    /// The queue when ProbeBW_UP begins.
    pub(super) fn note_queue_before_up(&mut self) {
        self.up_queue = self.queue.last_round;
    }

    /// A queue of at least the threshold was added by this probe.
    pub(super) fn is_queue_growing(&self, min_rtt: Duration) -> bool {
        self.has(Mechanism::DelayExit)
            && self.queue.standing() > self.up_queue + queue_threshold(min_rtt)
    }

    /// A queue stands: Startup has filled the pipe.
    pub(super) fn is_startup_queue(&self, min_rtt: Duration) -> bool {
        self.has(Mechanism::DelayExit) && self.queue.standing() > queue_threshold(min_rtt)
    }

    /// Whether bw_shortterm and inflight_shortterm follow what is delivered upwards while nothing is
    /// lost, so that light probes can raise them.
    pub(super) fn raises_lower_bounds(&self, state: State) -> bool {
        self.has(Mechanism::LightProbes)
            && !self.trial.is_on()
            && state == State::ProbeBw(Phase::Cruise)
    }
}
