//! Mechanisms beyond the draft, which make `ltcc` of BBRv3. Each can be switched off.

use core::time::Duration;

use super::bounds::INFINITY;
use super::constants::{LOSS_THRESH, MIN_PIPE_PACKETS};
use super::credit::Credit;
use super::full_pipe::FullPipe;
use super::probe_bw::Phase;
use super::queue_delay::QueueDelay;
use super::trial::{Change, TrialClock};
use super::{AckSample, Bbr3, RateSample, State};

/// Bounds of the queueing delay that counts as a queue: RFC 9406 section 4.2.
const MIN_QUEUE_THRESHOLD: Duration = Duration::from_millis(4);
const MAX_QUEUE_THRESHOLD: Duration = Duration::from_millis(16);
/// Rounds in the mean of the delivery rate.
const MEAN_ROUNDS: f64 = 6.0;
/// Most that the bandwidth may exceed the mean delivery rate.
const MAX_OVER_MEAN: f64 = 3.0;
/// Window of a flow that shares its bottleneck with more flows than packets fit (RFC 9002 section 7.2).
const SMALL_PIPE_PACKETS: u64 = 2;

/// Which of them are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::congestion) struct Switches {
    /// The path's own loss is no congestion.
    pub(in crate::congestion) credit: bool,
    /// A growing queue ends Startup and ProbeBW_UP.
    pub(in crate::congestion) delay_exit: bool,
    /// A round trip close to the minimum puts ProbeRTT off while nothing is lost.
    pub(in crate::congestion) refresh: bool,
    /// Probe time-outs do not reduce the window: what is in flight bounds it while nothing arrives.
    pub(in crate::congestion) outages: bool,
    /// The window may fall to two packets.
    pub(in crate::congestion) small_pipe: bool,
}

impl Switches {
    /// All of them.
    pub(in crate::congestion) const ALL: Self =
        Self { credit: true, delay_exit: true, refresh: true, outages: true, small_pipe: true };
}

/// State of the mechanisms.
#[derive(Debug, Default)]
pub(super) struct Extensions {
    pub(super) switches: Switches,
    pub(super) credit: Credit,
    pub(super) queue: QueueDelay,
    pub(super) trial: TrialClock,
    /// Queueing delay when ProbeBW_UP began.
    up_queue: Duration,
    /// Packets lost and acknowledged in this loss round.
    pub(super) round_lost: u64,
    pub(super) round_acked: u64,
    /// Mean delivery rate of the last rounds outside of trials, bytes per second.
    pub(super) delivered_mean: f64,
    /// The path's own loss that was proven when Startup ended.
    startup_left_at: Option<f64>,
    /// Startup has ended before: it is resumed once at most.
    had_startup: bool,
}

impl Extensions {
    pub(super) fn new(switches: Switches) -> Self {
        Self { switches, ..Self::default() }
    }
}

impl Bbr3 {
    /// Queueing delay that counts as a queue.
    pub(super) fn queue_threshold(&self) -> Duration {
        (self.min_rtt.get() / 8).clamp(MIN_QUEUE_THRESHOLD, MAX_QUEUE_THRESHOLD)
    }

    /// MinPipeCwnd, section 2.8, in bytes.
    pub(super) fn min_pipe_cwnd(&self) -> u64 {
        let packets = match self.ext.switches.small_pipe {
            true => SMALL_PIPE_PACKETS,
            false => MIN_PIPE_PACKETS,
        };
        packets * self.packet
    }

    /// Whether the path's own loss is credited now: the queue is short, or it is the one that this
    /// flow's own probe builds. With a standing queue every loss counts, as in the draft.
    fn is_credit_open(&self) -> bool {
        let threshold = self.queue_threshold();
        let is_probing = matches!(self.state, State::ProbeBw(Phase::Up | Phase::Down));
        self.ext.switches.credit
            && (self.ext.queue.last_round < threshold
                || (is_probing && self.ext.up_queue < threshold))
    }

    /// Loss of `packets` that is no sign of congestion.
    pub(super) fn forgiven(&self, packets: f64) -> f64 {
        if self.is_credit_open() { self.ext.credit.forgiven(packets) } else { 0.0 }
    }

    /// Takes an acknowledgement before the model does, and credits `rs`.
    pub(super) fn on_ack_of_extensions(&mut self, sample: &AckSample, rs: &mut RateSample) {
        let (sent, received) = (sample.largest_sent_at, sample.largest_received_at);
        let ext = &mut self.ext;
        ext.queue.on_ack(sample.now, sent, received);
        ext.credit.on_ack(sent, sample.acked_packets);
        ext.round_acked += sample.acked_packets;
        let is_allowed = ext.switches.credit
            && self.full_pipe.is_reached
            && ext.delivered_mean > 0.0
            && ext.credit.has_losses();
        match ext.trial.update(sample.now, self.min_rtt.get(), is_allowed) {
            Change::Begin(from) => ext.credit.begin_trial(from),
            Change::End => ext.credit.end_trial(sample.now),
            Change::None => {}
        }
        if self.is_credit_open() {
            self.credit_sample(rs);
        }
    }

    /// What the path's own loss took had passed the bottleneck: it counts for the rate.
    fn credit_sample(&self, rs: &mut RateSample) {
        let sent = (rs.delivered + rs.lost) as f64;
        let rate = self.ext.credit.forgiven(sent / self.packet as f64);
        let forgiven = (rate * sent).min(rs.lost as f64);
        if forgiven <= 0.0 || rs.delivered == 0 {
            return;
        }
        let factor = (rs.delivered as f64 + forgiven) / rs.delivered as f64;
        let most = 1.0 / (1.0 - rate).max(0.05);
        rs.delivery_rate = (rs.delivery_rate as f64 * factor.min(most)) as u64;
        rs.lost -= forgiven as u64;
        rs.delivered += forgiven as u64;
    }

    /// A round began; `measured` is the delivery rate without credit.
    pub(super) fn on_round_of_extensions(&mut self, measured: u64) {
        self.ext.queue.on_round();
        if measured > 0 && !self.ext.trial.is_on {
            let mean = &mut self.ext.delivered_mean;
            let weight = if *mean > 0.0 { 1.0 / MEAN_ROUNDS } else { 1.0 };
            *mean += weight * (measured as f64 - *mean);
        }
        self.resume_startup();
    }

    /// Resumes Startup if it ended before trials had shown the path's own loss. Once only: with a
    /// short queue each time would overshoot again.
    fn resume_startup(&mut self) {
        let Some(known) = self.ext.startup_left_at else { return };
        let is_short = self.ext.queue.last_round < self.queue_threshold();
        if matches!(self.state, State::ProbeBw(_))
            && !self.ext.trial.is_on
            && is_short
            && self.ext.credit.proven_loss() > known + LOSS_THRESH
        {
            self.ext.startup_left_at = None;
            self.bounds.reset_short_term_model();
            self.bounds.inflight_longterm = INFINITY;
            self.full_pipe = FullPipe::default();
            self.enter_startup();
        }
    }

    /// Startup ends.
    pub(super) fn note_end_of_startup(&mut self) {
        if !core::mem::replace(&mut self.ext.had_startup, true) {
            self.ext.startup_left_at = Some(self.ext.credit.proven_loss());
        }
    }

    /// Bound of the bandwidth, which holds whatever is credited.
    pub(super) fn max_credited_bw(&self) -> u64 {
        if self.ext.switches.credit && self.full_pipe.is_reached && self.ext.delivered_mean > 0.0 {
            (MAX_OVER_MEAN * self.ext.delivered_mean) as u64
        } else {
            u64::MAX
        }
    }

    /// The queue when ProbeBW_UP begins.
    pub(super) fn note_queue_before_up(&mut self) {
        self.ext.up_queue = self.ext.queue.last_round;
    }

    /// A queue of at least the threshold was added by this probe.
    pub(super) fn is_queue_growing(&self) -> bool {
        self.ext.switches.delay_exit
            && self.round.is_start
            && self.ext.queue.last_round > self.ext.up_queue + self.queue_threshold()
    }
}
