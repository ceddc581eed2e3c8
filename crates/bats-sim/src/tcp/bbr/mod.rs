//! BBR version 1 as in Linux (`tcp_bbr.c` of 6.x; Cardwell and others, "BBR: Congestion-Based
//! Congestion Control", 2016): maximum of the delivery rate over ten round trips, minimum RTT over
//! ten seconds, packet conservation in the first round of recovery, a larger window for aggregated
//! acknowledgements, and the long-term rate of policers.

mod aggregation;
mod filter;
mod policer;

use core::time::Duration;

use bats_types::Timestamp;

use super::{Control, INITIAL_WINDOW, Progress, Reduction};
use aggregation::Aggregation;
use filter::MaxFilter;
use policer::{Interval, LongTerm};

/// Linux `bbr_high_gain`, `bbr_drain_gain`, `bbr_cwnd_gain`, `bbr_pacing_gain`.
const HIGH_GAIN: f64 = 2.885;
const DRAIN_GAIN: f64 = 1.0 / 2.885;
const WINDOW_GAIN: f64 = 2.0;
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// `CYCLE_LEN` + 2: `bbr_bw_rtts`.
const RATE_ROUNDS: u64 = 10;
/// `bbr_min_rtt_win_sec`, `bbr_probe_rtt_mode_ms`, `bbr_cwnd_min_target`.
const MIN_RTT_WINDOW: Duration = Duration::from_secs(10);
const PROBE_RTT: Duration = Duration::from_millis(200);
const MIN_WINDOW: u64 = 4;
/// `bbr_full_bw_thresh`, `bbr_full_bw_cnt`.
const FULL_GROWTH: f64 = 1.25;
const FULL_ROUNDS: u32 = 3;
/// `bbr_pacing_margin_percent`.
const PACING_MARGIN: f64 = 0.99;
/// `bbr_tso_segs_goal` at 2^-10 s of the pacing rate; its minimum and the rate limit for it
/// (`bbr_min_tso_rate`); at most 0x7f.
const BURST: f64 = 1.0 / 1_024.0;
const MIN_BURST_RATE: f64 = 1_200_000.0 / 8.0 / super::SEGMENT as f64;
/// RTT assumed without a sample (`bbr_init_pacing_rate_from_rtt`).
const INITIAL_RTT: f64 = 0.001;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    ProbeBandwidth,
    ProbeRtt,
}

/// Linux `tcp_ca_state` as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Congestion {
    Open,
    Recovery,
    Loss,
}

/// The controller.
#[derive(Debug)]
pub struct Bbr {
    state: State,
    rates: MaxFilter,
    long_term: LongTerm,
    aggregation: Aggregation,
    min_rtt: Option<Duration>,
    min_rtt_at: Timestamp,
    round: u64,
    round_end: u64,
    is_round: bool,
    full_rate: f64,
    full_rounds: u32,
    is_full: bool,
    phase: usize,
    phase_since: Timestamp,
    random: u64,
    probe_until: Option<Timestamp>,
    probe_round_done: bool,
    idle_restart: bool,
    window: u64,
    prior_window: u64,
    before: Congestion,
    conserves: bool,
    pace: f64,
    has_rtt: bool,
    /// Total segments delivered and lost, for policer detection.
    totals: (u64, u64),
}

impl Bbr {
    /// `seed` determines the phases in which ProbeBW starts.
    pub fn new(seed: usize) -> Self {
        Self {
            state: State::Startup,
            rates: MaxFilter::new(RATE_ROUNDS),
            long_term: LongTerm::default(),
            aggregation: Aggregation::default(),
            min_rtt: None,
            min_rtt_at: Timestamp::ZERO,
            round: 0,
            round_end: 0,
            is_round: false,
            full_rate: 0.0,
            full_rounds: 0,
            is_full: false,
            phase: 0,
            phase_since: Timestamp::ZERO,
            random: seed as u64,
            probe_until: None,
            probe_round_done: false,
            idle_restart: false,
            window: INITIAL_WINDOW,
            prior_window: 0,
            before: Congestion::Open,
            conserves: false,
            pace: INITIAL_WINDOW as f64 / INITIAL_RTT * HIGH_GAIN * PACING_MARGIN,
            has_rtt: false,
            totals: (0, 0),
        }
    }

    /// The maximum delivery rate, without the limit of a policer.
    fn max_rate(&self) -> f64 {
        self.rates.max().unwrap_or(0.0)
    }

    fn rate(&self) -> f64 {
        self.long_term.rate().unwrap_or_else(|| self.max_rate())
    }

    fn pacing_gain(&self) -> f64 {
        match self.state {
            State::Startup => HIGH_GAIN,
            State::Drain => DRAIN_GAIN,
            State::ProbeBandwidth if self.long_term.rate().is_some() => 1.0,
            State::ProbeBandwidth => CYCLE[self.phase],
            State::ProbeRtt => 1.0,
        }
    }

    fn window_gain(&self) -> f64 {
        match self.state {
            State::Startup | State::Drain => HIGH_GAIN,
            State::ProbeBandwidth => WINDOW_GAIN,
            State::ProbeRtt => 1.0,
        }
    }

    fn burst(&self) -> u64 {
        let least = if self.pace < MIN_BURST_RATE { 1 } else { 2 };
        ((self.pace * BURST) as u64).clamp(least, 0x7f)
    }

    /// Linux `bbr_bdp`.
    fn bdp(&self, rate: f64, gain: f64) -> u64 {
        self.min_rtt.map_or(INITIAL_WINDOW, |rtt| (gain * rate * rtt.as_secs_f64()).ceil() as u64)
    }

    /// Linux `bbr_quantization_budget`.
    fn quantized(&self, window: u64) -> u64 {
        let window = (window + 3 * self.burst() + 1) & !1;
        window + if self.state == State::ProbeBandwidth && self.phase == 0 { 2 } else { 0 }
    }

    /// Linux `bbr_inflight`.
    fn inflight(&self, rate: f64, gain: f64) -> u64 {
        self.quantized(self.bdp(rate, gain))
    }

    /// Linux `bbr_packets_in_net_at_edt`, without its time to the next departure.
    fn in_network(&self, in_flight: u64) -> u64 {
        in_flight + if self.pacing_gain() > 1.0 { self.burst() } else { 0 }
    }

    fn interval(&self, progress: &Progress) -> Interval {
        Interval {
            now: progress.now,
            delivered: progress.delivered,
            lost_total: progress.lost_total,
            lost: progress.lost,
            is_round: self.is_round,
            is_app_limited: progress.is_app_limited,
            is_probing: self.state == State::ProbeBandwidth,
        }
    }

    /// Linux `bbr_update_bw`.
    fn update_rate(&mut self, progress: &Progress) {
        self.is_round = false;
        let Some(rate) = progress.rate else { return };
        if progress.delivered_before >= self.round_end {
            self.round_end = progress.delivered;
            self.round += 1;
            self.is_round = true;
            self.conserves = false;
        }
        let interval = self.interval(progress);
        if self.long_term.on_ack(&interval) {
            self.enter_probe_bandwidth(progress.now);
        }
        if !progress.is_app_limited || rate >= self.max_rate() {
            self.rates.update(self.round, rate);
        }
        let of_path = (self.rate(), self.window);
        let flags = (self.is_round, self.is_full);
        self.aggregation.on_ack(progress.now, progress.acked, of_path, flags);
    }

    /// Linux `bbr_update_cycle_phase`.
    fn update_phase(&mut self, progress: &Progress) {
        if self.state != State::ProbeBandwidth {
            return;
        }
        let is_long = self.min_rtt.is_some_and(|rtt| progress.now - self.phase_since > rtt);
        let in_flight = self.in_network(progress.prior_in_flight);
        let gain = self.pacing_gain();
        let is_over = if gain > 1.0 {
            is_long && (progress.lost > 0 || in_flight >= self.inflight(self.max_rate(), gain))
        } else if gain < 1.0 {
            is_long || in_flight <= self.inflight(self.max_rate(), 1.0)
        } else {
            is_long
        };
        if is_over {
            self.phase = (self.phase + 1) % CYCLE.len();
            self.phase_since = progress.now;
        }
    }

    /// Linux `bbr_reset_probe_bw_mode`: any phase except the one that drains.
    fn enter_probe_bandwidth(&mut self, now: Timestamp) {
        self.state = State::ProbeBandwidth;
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let draw = (mixed >> 33) % 7;
        self.phase = [0, 2, 3, 4, 5, 6, 7][draw as usize];
        self.phase_since = now;
    }

    /// Linux `bbr_check_full_bw_reached`, `bbr_check_drain`.
    fn update_startup(&mut self, progress: &Progress) {
        if !self.is_full && self.is_round && !progress.is_app_limited {
            if self.max_rate() >= self.full_rate * FULL_GROWTH {
                (self.full_rate, self.full_rounds) = (self.max_rate(), 0);
            } else {
                self.full_rounds += 1;
                self.is_full = self.full_rounds >= FULL_ROUNDS;
            }
        }
        if self.state == State::Startup && self.is_full {
            self.state = State::Drain;
        }
        if self.state == State::Drain
            && self.in_network(progress.in_flight) <= self.inflight(self.max_rate(), 1.0)
        {
            self.enter_probe_bandwidth(progress.now);
        }
    }

    /// Linux `bbr_update_min_rtt`.
    fn update_min_rtt(&mut self, progress: &Progress) {
        let expired = progress.now > self.min_rtt_at + MIN_RTT_WINDOW;
        if let Some(rtt) = progress.rtt
            && (self.min_rtt.is_none_or(|min| rtt < min) || (expired && !progress.is_ack_delayed))
        {
            (self.min_rtt, self.min_rtt_at) = (Some(rtt), progress.now);
        }
        if expired && !self.idle_restart && self.state != State::ProbeRtt {
            self.save_window();
            self.state = State::ProbeRtt;
            self.probe_until = None;
        }
        if self.state == State::ProbeRtt {
            if self.probe_until.is_some() {
                self.probe_round_done |= self.is_round;
                if self.probe_round_done {
                    self.end_probe_rtt(progress.now);
                }
            } else if progress.in_flight <= MIN_WINDOW {
                self.probe_until = Some(progress.now + PROBE_RTT);
                self.probe_round_done = false;
                self.round_end = progress.delivered;
            }
        }
        self.idle_restart = false;
    }

    /// Linux `bbr_check_probe_rtt_done`.
    fn end_probe_rtt(&mut self, now: Timestamp) {
        if self.probe_until.is_none_or(|until| now <= until) {
            return;
        }
        self.min_rtt_at = now;
        self.window = self.window.max(self.prior_window);
        if self.is_full {
            self.enter_probe_bandwidth(now);
        } else {
            self.state = State::Startup;
        }
    }

    /// Linux `bbr_save_cwnd`.
    fn save_window(&mut self) {
        self.prior_window = if self.before < Congestion::Recovery && self.state != State::ProbeRtt {
            self.window
        } else {
            self.prior_window.max(self.window)
        };
    }

    /// Linux `bbr_set_pacing_rate`.
    fn update_pace(&mut self, progress: &Progress, gain: f64) {
        if !self.has_rtt
            && let Some(rtt) = progress.smoothed_rtt
        {
            self.has_rtt = true;
            self.pace =
                self.window as f64 / rtt.as_secs_f64().max(1e-6) * HIGH_GAIN * PACING_MARGIN;
        }
        let pace = self.rate() * gain * PACING_MARGIN;
        if self.is_full || pace > self.pace {
            self.pace = pace;
        }
    }

    /// Linux `bbr_set_cwnd_to_recover_or_restore`; returns whether it sets the window.
    fn recover(&mut self, progress: &Progress) -> bool {
        self.window = self.window.saturating_sub(progress.lost).max(1);
        let state = match (progress.in_recovery, self.before) {
            (false, _) => Congestion::Open,
            (true, Congestion::Loss) => Congestion::Loss,
            (true, _) => Congestion::Recovery,
        };
        if state == Congestion::Recovery && self.before != Congestion::Recovery {
            // The first round of recovery.
            self.conserves = true;
            self.round_end = progress.delivered;
            self.window = progress.in_flight + progress.acked;
        } else if self.before >= Congestion::Recovery && state < Congestion::Recovery {
            self.window = self.window.max(self.prior_window);
            self.conserves = false;
        }
        self.before = state;
        if self.conserves {
            self.window = self.window.max(progress.in_flight + progress.acked);
        }
        self.conserves
    }

    /// Linux `bbr_set_cwnd`.
    fn update_window(&mut self, progress: &Progress) {
        if progress.acked > 0 && !self.recover(progress) {
            let rate = self.rate();
            let extra = if self.is_full { self.aggregation.window(rate) } else { 0 };
            let target = self.quantized(self.bdp(rate, self.window_gain()) + extra);
            if self.is_full {
                self.window = (self.window + progress.acked).min(target);
            } else if self.window < target || progress.delivered < INITIAL_WINDOW {
                self.window += progress.acked;
            }
            self.window = self.window.max(MIN_WINDOW);
        }
        if self.state == State::ProbeRtt {
            self.window = self.window.min(MIN_WINDOW);
        }
    }
}

impl Control for Bbr {
    fn on_ack(&mut self, progress: &Progress) {
        self.totals = (progress.delivered, progress.lost_total);
        self.update_rate(progress);
        self.update_phase(progress);
        self.update_startup(progress);
        self.update_min_rtt(progress);
        self.update_pace(progress, self.pacing_gain());
        self.update_window(progress);
    }

    fn on_idle_restart(&mut self, now: Timestamp, _since: Timestamp, app_limited: bool) {
        // Linux `bbr_cwnd_event`, `CA_EVENT_TX_START`.
        if !app_limited {
            return;
        }
        self.idle_restart = true;
        self.aggregation.begin_epoch(now);
        match self.state {
            State::ProbeBandwidth => self.pace = self.rate() * PACING_MARGIN,
            State::ProbeRtt => self.end_probe_rtt(now),
            State::Startup | State::Drain => {}
        }
    }

    fn on_recovery(&mut self, _now: Timestamp, _in_flight: u64) -> Reduction {
        self.save_window();
        Reduction::OwnWindow
    }

    fn on_timeout(&mut self, now: Timestamp, in_flight: u64, is_new: bool) {
        if is_new {
            self.save_window();
        }
        // Linux `bbr_set_state`.
        self.before = Congestion::Loss;
        self.full_rate = 0.0;
        let (delivered, lost_total) = self.totals;
        self.long_term.on_ack(&Interval {
            now,
            delivered,
            lost_total: lost_total + 1,
            lost: 1,
            is_round: true,
            is_app_limited: false,
            is_probing: self.state == State::ProbeBandwidth,
        });
        self.window = in_flight + 1;
    }

    fn on_undo(&mut self, now: Timestamp) {
        // Linux `bbr_undo_cwnd`.
        (self.full_rate, self.full_rounds) = (0.0, 0);
        let (delivered, lost_total) = self.totals;
        let (lost, is_round, is_app_limited) = (0, false, false);
        let is_probing = self.state == State::ProbeBandwidth;
        self.long_term.reset(&Interval {
            now,
            delivered,
            lost_total,
            lost,
            is_round,
            is_app_limited,
            is_probing,
        });
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn pace(&self) -> Option<f64> {
        Some(self.pace)
    }

    fn limits_itself(&self) -> bool {
        self.state == State::ProbeRtt
    }

    fn state(&self) -> &'static str {
        match self.state {
            State::Startup => "Startup",
            State::Drain => "Drain",
            State::ProbeBandwidth if self.long_term.rate().is_some() => "ProbeBW, policed",
            State::ProbeBandwidth => "ProbeBW",
            State::ProbeRtt => "ProbeRTT",
        }
    }
}
