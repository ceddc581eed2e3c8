//! The entry points of the controller, and what each acknowledgement updates
//! (draft-ietf-ccwg-bbr-06 section 5.2).

use core::time::Duration;

use bats_types::Timestamp;

use super::Bbr3;
use super::variation::Mechanism;
use crate::congestion::{AckSample, Controller, LostPacket, RateSample};

/// Consecutive probe time-outs after which the transport abandons what is in flight: an RTO.
const RTO_PROBES: u32 = 2;

impl Bbr3 {
    /// A round began; `measured` is the delivery rate without credit.
    fn on_round(&mut self, measured: u64) {
        let min_rtt = self.min_rtt.get();
        self.ext.on_round(measured, min_rtt);
        self.ext.update_light_probe(self.state, min_rtt, self.bw, &self.bounds);
        if self.ext.take_resumed_startup(self.state, min_rtt) {
            self.resume_startup();
        }
    }

    /// UpdateModelAndState, section 5.2.3.
    fn update_model_and_state(&mut self, now: Timestamp, rs: &RateSample, sample: &AckSample) {
        self.bounds.update_latest_delivery_signals(rs, self.delivered);
        self.update_congestion_signals(rs);
        self.extra_acked.update(
            now,
            sample.acked_bytes,
            self.bw,
            self.cwnd,
            self.round.count,
            self.full_pipe.is_reached,
        );
        if self.round.is_start && !rs.is_app_limited {
            self.full_pipe.on_round(rs.delivery_rate);
        }
        self.check_startup_done(rs);
        self.check_drain_done(now);
        self.update_probe_bw_cycle_phase(now, rs, sample.acked_bytes);
        self.min_rtt.update(now, sample.rtt, self.ext.has(Mechanism::FreshMinRtt));
        self.check_probe_rtt(now, rs);
        self.bounds.advance_latest_delivery_signals(rs);
        let max_credited_bw = self.ext.max_credited_bw(self.full_pipe.is_reached);
        self.bw = self.max_bw.get().min(self.bounds.bw_shortterm).min(max_credited_bw);
    }
}

impl Controller for Bbr3 {
    fn on_sent(&mut self, now: Timestamp, bytes: u64, in_flight: u64) {
        // HandleRestartFromIdle, section 5.4.1: nothing was in flight, so the application limited.
        if in_flight <= bytes && self.delivered > 0 {
            self.handle_restart_from_idle(now);
        }
        self.in_flight = in_flight;
    }

    fn on_cwnd_limited(&mut self) {
        self.is_cwnd_limited[1] = true;
    }

    fn on_lost(&mut self, now: Timestamp, packet: &LostPacket) {
        self.ext.on_lost(packet);
        self.handle_lost_packet(now, packet);
    }

    fn on_spurious_loss(&mut self, _now: Timestamp, packets: u64) {
        if self.recovery.on_spurious(packets) {
            self.handle_spurious_loss_detection();
        }
    }

    fn on_ack(&mut self, sample: &AckSample) {
        let now = sample.now;
        self.in_flight = sample.in_flight;
        self.packet = sample.packet;
        let mut rs = sample.rate;
        self.delivered = rs.prior_delivered + rs.delivered;
        let measured = rs.delivery_rate;
        let is_full = self.full_pipe.is_reached;
        self.ext.on_ack(sample, &mut rs, self.state, is_full, &mut self.min_rtt);
        self.round.on_ack(rs.prior_delivered, self.delivered);
        if self.round.is_start {
            self.probe_bw.rounds_since_up += 1;
            self.is_cwnd_limited = [self.is_cwnd_limited[1], false];
            self.on_round(measured);
        }
        if self.recovery.on_ack(sample.largest_sent_at) {
            self.restore_cwnd();
        }
        if sample.ce_packets > 0 && !self.recovery.has_marks {
            self.recovery.has_marks = true;
            self.on_ce(now, &rs);
        }
        self.recovery.has_marks &= !self.round.is_start;
        self.update_model_and_state(now, &rs, sample);
        self.set_pacing_rate();
        self.ext.credit.on_pace(now, self.effective_pacing_gain() > 1.0);
        self.set_cwnd(sample.acked_bytes);
    }

    fn on_probe_timeout(&mut self, now: Timestamp, count: u32) {
        self.ext.had_timeout = true;
        if count == RTO_PROBES && !self.ext.has(Mechanism::SteadyTimeout) {
            self.on_enter_rto(now);
        }
    }

    fn window(&self) -> u64 {
        self.cwnd
    }

    fn pacing_rate(&self) -> u64 {
        self.pacing_rate.max(1)
    }

    fn bandwidth(&self) -> u64 {
        if self.bw == 0 { self.pacing_rate } else { self.bw }.max(1)
    }

    fn queue_delay(&self) -> Duration {
        self.ext.queue.standing()
    }

    fn own_loss(&self) -> f64 {
        self.ext.own_loss()
    }

    fn limited_by(&self) -> &'static str {
        let bounds = &self.bounds;
        if self.is_cwnd_limited() {
            return match self.cwnd {
                cwnd if cwnd == bounds.inflight_shortterm => "inflight_shortterm",
                cwnd if cwnd == bounds.inflight_longterm => "inflight_longterm",
                cwnd if cwnd == self.inflight_with_headroom() => "inflight_with_headroom",
                _ => "cwnd",
            };
        }
        match self.bw {
            bw if bw == bounds.bw_shortterm => "bw_shortterm",
            bw if bw == self.ext.max_credited_bw(self.full_pipe.is_reached) => "delivered_mean",
            _ => "max_bw",
        }
    }

    fn state(&self) -> &'static str {
        self.state.name()
    }
}
