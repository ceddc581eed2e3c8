//! What a connection does when its timers expire, and when the next one does.

use core::time::Duration;

use bats_types::{STUCK_TIMER, Timestamp};

use super::blackout_pacing::BlackoutPacing;
use super::timers::take_expired;
use super::{Connection, MAX_ACK_DELAY};
use crate::error::CloseReason;
use crate::link::mtu::BLACK_HOLE_LOSSES;

/// Longest interval between probes in a blackout: a transfer resumes this soon after it ends.
const MAX_PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// Probe timeouts in a row from which a small packet accompanies the probes. It accompanies those of the first one
/// only if so many large packets are unanswered that its answer shows a black hole: where flows with small windows
/// share a full link, small packets pass and large ones do not (with one in each timeout, 8 flows on 2 Mbit/s have
/// Jain's index of 0.26).
pub(super) const SMALL_PROBES_FROM: u32 = 2;
/// Acknowledgements in a row of small probes only that show that no data passes. Chosen: random loss makes
/// single ones (with 1, handshakes at 30 % loss in bursts have a p99 of 1.02 instead of 0.94 s).
pub(super) const SMALL_PROBES_IN_A_ROW: u32 = 8;
/// Probe timeouts in a row that double the next one. After so many the path was down rather than full: what was
/// sent meanwhile does not delay packets after it. With 4 of them 32 flows on 20 Mbit/s are less fair: Jain's
/// index of 0.85 instead of 0.88 (`bats-sim arena --group O --seeds 5`).
pub(super) const FULL_BACKOFF: u32 = 6;
/// Probe timeouts in which the rate rises after a time in which small packets passed alone: the goal for the first
/// new data (`path_mtu` of `bats-sim`).
pub(super) const RESTORING: u32 = 3;
/// Probe timeouts in a row after which the longest interval becomes one second.
const FAST_PROBES: u32 = 20;
/// Probe timeout of end-to-end sessions, as a multiple of a link's.
const END_TO_END_PROBE_FACTOR: u32 = 3;
/// Least number of probes of an end-to-end session per idle timeout, whatever its RTT estimate.
const END_TO_END_PROBES: u32 = 8;

impl Connection {
    /// Handles all expired timers.
    pub(crate) fn handle_timeout(&mut self, now: Timestamp) {
        if self.state.is_dead() {
            return;
        }
        if let Some(until) = self.state.closing_until() {
            if until > now {
                return;
            }
            // The first CLOSE frame is still to be sent if the process was not scheduled
            // meanwhile. `poll_transmit` always sends it, so this prolongs the state once.
            match self.control.close.is_some() && self.control.close_sent.is_none() {
                true => self.state.linger(now + self.linger()),
                false => self.state.die(),
            }
            return;
        }
        self.trim_if_idle(now);
        self.handshake.handle_timeout(now);
        let is_open = self.state.is_handshaking() || self.is_provisional();
        if is_open && self.handshake.has_timed_out(now) {
            return self.close_silently(CloseReason::HandshakeTimeout);
        }
        // An incomplete handshake has a timeout of its own.
        if take_expired(&mut self.timers.idle, now) && !self.state.is_handshaking() {
            let idle_deadline = self.last_received_at + self.idle_timeout;
            if self.state.is_established() && idle_deadline > now {
                self.timers.idle = Some(idle_deadline);
            } else {
                return self.close_silently(CloseReason::IdleTimeout(self.idle_timeout));
            }
        }
        if take_expired(&mut self.timers.ack, now) {
            self.control.ack = true;
        }
        if take_expired(&mut self.timers.feedback, now) {
            self.control.rank = true;
        }
        if take_expired(&mut self.timers.key_discard, now)
            && let Some(protection) = &mut self.protection
        {
            protection.discard_previous();
        }
        if take_expired(&mut self.timers.keep_alive, now) {
            self.control.ping = true;
        }
        if self.stalls.is_due(now) {
            self.control.ping = true;
            self.control.padded = self.stalls.take_padded();
            // The sender then knows exactly what to repair first.
            self.control.rank |= self.control.padded > 0;
        }
        take_expired(&mut self.timers.pacing, now);
        let view = self.path_view();
        if let Some(streams) = &mut self.streams {
            let had_end = streams.outgoing.end().is_some();
            streams.outgoing.on_timeout(now, &view);
            streams.incoming.on_timeout(now);
            self.control.end |= !had_end && streams.outgoing.end().is_some();
        }
        if take_expired(&mut self.timers.probe, now) {
            self.on_probe_timeout(now);
        }
        self.update_application();
    }

    /// A timer stays due although it was handled: closes the connection instead of spinning.
    pub(crate) fn on_stuck_timer(&mut self, now: Timestamp) {
        if self.state.is_open() {
            self.timers.clear();
            self.begin_close(
                now,
                false,
                4,
                STUCK_TIMER,
                CloseReason::Internal(STUCK_TIMER.to_owned()),
            );
        } else {
            self.state.die();
        }
    }

    fn on_probe_timeout(&mut self, now: Timestamp) {
        if self.end_to_end.is_some() {
            // Links will ask for the repair; until then one probe is enough.
            self.coded_at = now;
        }
        self.probe_count += 1;
        self.counters.probe_timeouts += 1;
        self.controller.on_probe_timeout(now, self.probe_count);
        let lost = self.sent.abandon_in_flight();
        self.retransmit_control(lost.contents);
        let (since, interval) = (self.unanswered_since.unwrap_or(now), self.probe_backoff());
        let new = BlackoutPacing::new(since, now, interval);
        let blackout = self.blackout.get_or_insert(new);
        blackout.on_probe_timeout(now, interval);
        let (rate, window) = (self.controller.pacing_rate(), self.controller.window());
        let packet = u64::from(self.mtu.current());
        let packets = blackout.packets(rate, window, packet);
        let probed = self.streams.as_mut().is_some_and(|s| s.outgoing.on_probe_timeout(packets));
        if probed || self.has_data() {
            self.probes_allowed = 2;
        } else {
            self.control.ping = true;
        }
        if self.probe_count >= SMALL_PROBES_FROM || lost.large_lost >= BLACK_HOLE_LOSSES {
            // The path MTU may have shrunk, so that only small packets arrive.
            self.control.ping = true;
        }
        self.timers.probe = Some(now + self.probe_backoff());
    }

    fn probe_backoff(&self) -> Duration {
        let mut base = self.rtt.probe_timeout(MAX_ACK_DELAY);
        if self.end_to_end.is_some() {
            // Relays repair first, and there are queues on the path. End-to-end RTT samples are so
            // rare that one taken with a full queue stays for long: it must not delay probes until
            // the peer's idle timeout.
            base = (base * END_TO_END_PROBE_FACTOR).min(self.idle_timeout / END_TO_END_PROBES);
        }
        let cap = if self.probe_count < FAST_PROBES {
            MAX_PROBE_INTERVAL
        } else {
            Duration::from_secs(1)
        };
        (base * (1 << self.probe_count.min(FULL_BACKOFF))).min(cap.max(base))
    }

    /// Whether the peer has not decoded all coded data yet.
    pub(super) fn awaits_decoding(&self) -> bool {
        self.streams.as_ref().is_some_and(|s| s.outgoing.awaits_decoding())
    }

    /// Arms the probe timeout (RFC 9002, section 6.2).
    pub(super) fn arm_probe(&mut self, now: Timestamp) {
        let undecoded = self.awaits_decoding();
        self.timers.probe = if self.sent.expects_ack() || undecoded {
            let from = match self.blackout {
                // What is sent in a blackout must not defer the next probe.
                Some(blackout) => blackout.last(),
                None if self.probe_count == 0 => now,
                None => self.sent.last_eliciting_at(),
            };
            // A receiver that got no coded packets reports none missing. Answers to keep-alives and
            // other packets must therefore not defer their repair. Over relays, data that waits for
            // a link is not in flight yet.
            let stalled = undecoded && (self.end_to_end.is_none() || !self.has_data());
            let from = if stalled { from.min(self.coded_at) } else { from };
            Some((from + self.probe_backoff()).max(now))
        } else {
            None
        };
    }

    pub(super) fn arm_keep_alive(&mut self, now: Timestamp) {
        self.timers.keep_alive = self.config.keep_alive_interval().map(|interval| now + interval);
    }

    /// When to call [`Connection::handle_timeout`] at the latest.
    pub(crate) fn next_timeout(&self, now: Timestamp) -> Option<Timestamp> {
        if self.state.is_dead() {
            return None;
        }
        if let Some(until) = self.state.closing_until() {
            return Some(until);
        }
        let mut next = self.timers.next();
        let mut add = |at: Option<Timestamp>| {
            next = match (next, at) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        };
        add(self.handshake.next_timeout());
        if self.state.is_established() {
            let may_send = !self.awaits_validation();
            if self.end_to_end.is_none() && !self.is_provisional() {
                add(self.mtu.next_timeout().filter(|_| may_send));
                add(self.migration.next_timeout());
            }
            add(self.stalls.next_timeout());
            add(self.potentially_failed_at().filter(|&at| at > now));
            add(self.idle_trim_at());
            if let Some(streams) = &self.streams {
                add(streams.outgoing.next_timeout().filter(|_| may_send));
                add(streams.incoming.next_timeout());
            }
        }
        next
    }
}
