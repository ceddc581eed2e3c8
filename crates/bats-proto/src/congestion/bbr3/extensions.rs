//! Mechanisms beyond the draft, which make `ltcc` of BBRv3: their state and where they take part.

use core::time::Duration;

use super::bounds::INFINITY;
use super::constants::{DOWN_PACING_GAIN, LOSS_THRESH, MIN_PIPE_PACKETS};
use super::credit::Credit;
use super::delay_step::DelayStep;
use super::full_pipe::FullPipe;
use super::light_probe::LightProbe;
use super::probe_bw::Phase;
use super::queue_delay::QueueDelay;
use super::reverse_delay::ReverseDelay;
use super::startup_rate::StartupRate;
use super::trial::{Change, TrialClock};
use super::variation::{Constant, Mechanism, Variation};
use super::{AckSample, Bbr3, RateSample, State};

/// Bounds of the queueing delay that counts as a queue: RFC 9406 section 4.2.
const MIN_QUEUE_THRESHOLD: Duration = Duration::from_millis(4);
const MAX_QUEUE_THRESHOLD: Duration = Duration::from_millis(16);
/// Window of a flow that shares its bottleneck with more flows than packets fit (RFC 9002 section 7.2).
const SMALL_PIPE_PACKETS: u64 = 2;

/// State of the mechanisms.
#[derive(Debug)]
pub(super) struct Extensions {
    /// `None` is the draft to the letter.
    variation: Option<Variation>,
    pub(super) credit: Credit,
    pub(super) queue: QueueDelay,
    pub(super) trial: TrialClock,
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
    pub(super) reverse_delay: ReverseDelay,
    startup_rate: StartupRate,
    /// Packets lost and acknowledged in this loss round.
    pub(super) round_lost: u64,
    pub(super) round_acked: u64,
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

    pub(super) fn value(&self, constant: Constant) -> f64 {
        self.variation.unwrap_or_default().value(constant)
    }
}

impl Bbr3 {
    /// Queueing delay that counts as a queue.
    pub(super) fn queue_threshold(&self) -> Duration {
        (self.min_rtt.get() / 8).clamp(MIN_QUEUE_THRESHOLD, MAX_QUEUE_THRESHOLD)
    }

    /// MinPipeCwnd, section 2.8, in bytes.
    pub(super) fn min_pipe_cwnd(&self) -> u64 {
        let is_small = self.ext.has(Mechanism::SmallPipe);
        let packets = if is_small { SMALL_PIPE_PACKETS } else { MIN_PIPE_PACKETS };
        // So many must arrive.
        (packets as f64 / (1.0 - self.ext.own_loss()) * self.packet as f64) as u64
    }

    /// Whether the path's own loss is credited now: no queue has stood for several rounds, or it is
    /// the one that this flow's own probe builds. With a standing queue every loss counts, as in the
    /// draft.
    fn is_credit_open(&self) -> bool {
        let is_probing = matches!(self.state, State::ProbeBw(Phase::Up | Phase::Down));
        let is_own_queue = is_probing && self.ext.up_queue < self.queue_threshold();
        let most = self.ext.value(Constant::StandingRounds);
        self.ext.has(Mechanism::LossCredit)
            && (f64::from(self.ext.standing_rounds) < most || is_own_queue)
    }

    /// Loss of `packets` that is no sign of congestion.
    pub(super) fn forgiven(&self, packets: f64) -> f64 {
        if self.is_credit_open() { self.ext.credit.forgiven(packets) } else { 0.0 }
    }

    /// Takes an acknowledgement before the model does, and credits `rs`.
    pub(super) fn on_ack_of_extensions(&mut self, sample: &AckSample, rs: &mut RateSample) {
        let (now, sent) = (sample.now, sample.largest_sent_at);
        let threshold = self.queue_threshold();
        let ext = &mut self.ext;
        ext.queue.on_ack(now, sent, sample.largest_received_at, sample.min_rtt);
        if ext.has(Mechanism::DelayStep)
            && let Some(delay) = ext.queue.latest_delay()
            && let Some((delay, rtt)) =
                ext.delay_step.on_ack(now, sent, delay, sample.rtt, threshold)
        {
            ext.queue.set_base(now, delay);
            self.min_rtt.set(now, rtt);
        }
        if ext.has(Mechanism::ReverseWindow) {
            ext.reverse_delay.on_ack(sample.rtt, self.min_rtt.get(), ext.queue.latest());
        }
        if self.state == State::Startup && ext.has(Mechanism::FastStartup) {
            let received_at = sample.largest_received_at;
            ext.startup_rate.on_ack(received_at, sample.acked_bytes, sample.min_rtt, sample.packet);
        }
        ext.round_acked += sample.acked_packets;
        ext.credit.on_ack(sent, sample.acked_packets, ext.queue.latest() < threshold);
        if ext.has(Mechanism::LossCredit) && self.full_pipe.is_reached {
            let has_losses = ext.credit.has_losses();
            match ext.trial.update(now, self.min_rtt.get(), has_losses) {
                Change::Begin(from) => {
                    let had_timeout = core::mem::take(&mut ext.had_timeout);
                    ext.is_trial_app_limited = sample.app_limited && !had_timeout;
                    ext.credit.begin_trial(from);
                }
                Change::End => ext.credit.end_trial(now),
                Change::None => {}
            }
        }
        if self.is_credit_open() {
            self.credit_sample(rs);
        }
    }

    /// What the path's own loss took had passed the bottleneck: it counts for the rate.
    fn credit_sample(&self, rs: &mut RateSample) {
        let sent = (rs.delivered + rs.lost) as f64;
        let own = self.ext.credit.own_loss();
        let forgiven = (own * sent).min(rs.lost as f64);
        if forgiven <= 0.0 || rs.delivered == 0 {
            return;
        }
        let factor = (rs.delivered as f64 + forgiven) / rs.delivered as f64;
        rs.delivery_rate = (rs.delivery_rate as f64 * factor.min(1.0 / (1.0 - own))) as u64;
        rs.lost -= forgiven as u64;
        rs.delivered += forgiven as u64;
    }

    /// A round began; `measured` is the delivery rate without credit.
    pub(super) fn on_round_of_extensions(&mut self, measured: u64) {
        let threshold = self.queue_threshold();
        let mean_rounds = self.ext.value(Constant::MeanRounds);
        let ext = &mut self.ext;
        ext.queue.on_round();
        ext.reverse_delay.on_round();
        let stands = ext.queue.last_round >= threshold;
        ext.standing_rounds = if stands { ext.standing_rounds.saturating_add(1) } else { 0 };
        if measured > 0 && !ext.trial.is_on() {
            let weight = if ext.delivered_mean > 0.0 { 1.0 / mean_rounds } else { 1.0 };
            ext.delivered_mean += weight * (measured as f64 - ext.delivered_mean);
        }
        self.update_light_probe();
        self.resume_startup();
    }

    /// Resumes Startup if it ended before trials had shown the path's own loss. Once only: with a
    /// short queue each time would overshoot again.
    fn resume_startup(&mut self) {
        let Some(known) = self.ext.startup_left_at else { return };
        let is_short = self.ext.queue.last_round < self.queue_threshold();
        if matches!(self.state, State::ProbeBw(_))
            && !self.ext.trial.is_on()
            && is_short
            && self.ext.has(Mechanism::ResumedStartup)
            && self.ext.credit.proven_loss() > known + LOSS_THRESH
        {
            self.ext.startup_left_at = None;
            self.bounds.reset_short_term_model();
            self.bounds.inflight_longterm = INFINITY;
            self.full_pipe = FullPipe::default();
            self.enter_startup();
        }
    }

    /// A queue ends Startup: the bottleneck's rate is what arrived last.
    pub(super) fn take_startup_rate(&mut self) {
        let own = if self.is_credit_open() { self.ext.credit.own_loss() } else { 0.0 };
        self.max_bw.raise((self.ext.startup_rate.get() / (1.0 - own)) as u64);
        self.ext.delivered_mean = self.ext.delivered_mean.max(self.ext.startup_rate.get());
    }

    /// Startup ends.
    pub(super) fn note_end_of_startup(&mut self) {
        if !core::mem::replace(&mut self.ext.had_startup, true) {
            self.ext.startup_left_at = Some(self.ext.credit.proven_loss());
        }
    }

    /// Bound of the bandwidth in bytes per second, which holds whatever is credited.
    pub(super) fn max_credited_bw(&self) -> u64 {
        let mean = self.ext.delivered_mean;
        let is_bounded =
            self.ext.has(Mechanism::LossCredit) && self.full_pipe.is_reached && mean > 0.0;
        if is_bounded { (self.ext.value(Constant::MaxOverMean) * mean) as u64 } else { u64::MAX }
    }

    /// The rate that Startup follows in bytes per second; 0 if the draft's samples have it.
    pub(super) fn startup_rate(&self) -> u64 {
        if self.state != State::Startup {
            return 0;
        }
        self.ext.startup_rate.get() as u64
    }

    /// The pacing gain: that of the state, less while a queue stands in ProbeBW_CRUISE, more in a
    /// light probe.
    pub(super) fn effective_pacing_gain(&self) -> f64 {
        let is_cruise = self.state == State::ProbeBw(Phase::Cruise);
        let stands = self.ext.queue.last_round > self.queue_threshold();
        if is_cruise && stands && self.ext.has(Mechanism::QueueDrain) {
            DOWN_PACING_GAIN
        } else if self.ext.light.is_on() {
            1.0 + self.ext.value(Constant::LightGain)
        } else {
            self.pacing_gain
        }
    }

    /// Bound of the pacing rate in bytes per second: in a trial below what was delivered, not below
    /// what was sent. See [`super::credit`].
    pub(super) fn trial_pacing_rate(&self) -> Option<u64> {
        let is_on = self.ext.trial.is_on() && self.ext.delivered_mean > 0.0;
        (is_on && !self.ext.is_trial_app_limited)
            .then_some((DOWN_PACING_GAIN * self.ext.delivered_mean) as u64)
    }

    /// Bytes that are delivered while their acknowledgements wait in the reverse direction.
    pub(super) fn reverse_window(&self) -> u64 {
        (self.bw as f64 * self.ext.reverse_delay.last_round().as_secs_f64()) as u64
    }

    /// The queue when ProbeBW_UP begins.
    pub(super) fn note_queue_before_up(&mut self) {
        self.ext.up_queue = self.ext.queue.last_round;
    }

    /// A queue of at least the threshold was added by this probe.
    pub(super) fn is_queue_growing(&self) -> bool {
        self.ext.has(Mechanism::DelayExit)
            && self.ext.queue.standing() > self.ext.up_queue + self.queue_threshold()
    }

    /// A queue stands: Startup has filled the pipe.
    pub(super) fn is_startup_queue(&self) -> bool {
        self.ext.has(Mechanism::DelayExit) && self.ext.queue.standing() > self.queue_threshold()
    }

    /// bw_shortterm and inflight_shortterm follow what is delivered upwards while nothing is lost, so
    /// that light probes can raise them.
    pub(super) fn raise_lower_bounds(&mut self) {
        if self.ext.has(Mechanism::LightProbes)
            && !self.ext.trial.is_on()
            && self.state == State::ProbeBw(Phase::Cruise)
        {
            self.bounds.raise_short_term_model();
        }
    }
}
