//! How the sender sets and handles its timers: reordering, tail loss probe (RFC 8985 section 7),
//! retransmission (RFC 6298).

use core::time::Duration;

use bats_types::Timestamp;

use super::arrival::Arrival;
use super::recovery::State;
use super::sender::Sender;
use super::timers::Timers;

/// Time for a delayed acknowledgement where one segment is in flight (Linux `TCP_RTO_MIN` in
/// `tcp_schedule_loss_probe`), and otherwise (`TCP_TIMEOUT_MIN`, two ticks at 1000 Hz).
const SINGLE_DELAY: Duration = Duration::from_millis(200);
const MIN_DELAY: Duration = Duration::from_millis(2);
/// Probe timeout without a sample of the round-trip time.
const INITIAL_PROBE: Duration = Duration::from_secs(1);

impl Sender {
    /// Handles due timers. Returns the segment that a tail loss probe sends.
    pub(super) fn poll_timers(&mut self, now: Timestamp) -> Option<u64> {
        let is_due = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
        if is_due(self.timers.reordering) {
            self.on_reordering_timeout(now);
        }
        if is_due(self.timers.probe) {
            return self.on_probe_timeout(now);
        }
        if is_due(self.timers.retransmission) {
            self.on_retransmission_timeout(now);
        }
        None
    }

    /// Linux `tcp_rack_reo_timeout`.
    fn on_reordering_timeout(&mut self, now: Timestamp) {
        let mut arrival = Arrival::default();
        self.detect_losses(now, &mut arrival);
        if arrival.lost > 0 && self.recovery.state < State::Recovery {
            self.enter_recovery(now, &arrival);
            // The fast retransmission is sent at once.
            if let Some(prr) = &mut self.prr {
                prr.on_ack(1, self.board.in_flight(), false);
            }
        }
    }

    fn on_retransmission_timeout(&mut self, now: Timestamp) {
        if self.board.base() == self.board.next() {
            self.timers = Timers::default();
            return;
        }
        self.enter_loss(now);
        self.counters.timeouts += 1;
        self.timers.backoff += 1;
        self.timers.end_probe();
        self.timers.probe = None;
        self.timers.reordering = None;
        self.timers.retransmission = Some(now + self.rtt.timeout(self.timers.backoff));
        self.reset_pacing(now);
    }

    /// Linux `tcp_send_loss_probe`.
    fn on_probe_timeout(&mut self, now: Timestamp) -> Option<u64> {
        self.timers.probe = None;
        if self.timers.probed.is_some() || self.board.base() == self.board.next() {
            return None;
        }
        let fresh = self.new_number();
        let number = fresh.unwrap_or(self.board.next() - 1);
        // Segments delivered above a gap are not sent again.
        if fresh.is_none() && self.board.all_in_flight().last().is_none_or(|&last| last != number) {
            return None;
        }
        self.timers.probed = Some((number + 1, fresh.is_none()));
        self.timers.retransmission = Some(now + self.rtt.timeout(self.timers.backoff));
        self.counters.probes += 1;
        Some(number)
    }

    pub(super) fn on_sent_timers(&mut self, now: Timestamp, number: u64, is_new: bool) {
        let is_first = number == self.board.base();
        if self.timers.retransmission.is_none() || (is_first && !is_new) {
            self.timers.retransmission = Some(now + self.rtt.timeout(self.timers.backoff));
        }
        if is_new {
            self.schedule_probe(now);
        }
    }

    pub(super) fn on_ack_timers(&mut self, now: Timestamp, arrival: &Arrival) {
        if self.board.base() == self.board.next() {
            self.timers.retransmission = None;
            self.timers.probe = None;
            self.timers.reordering = None;
            self.timers.backoff = 0;
        } else if arrival.advanced || arrival.has_sacked {
            if arrival.advanced {
                self.timers.backoff = 0;
                self.timers.retransmission = Some(now + self.rtt.timeout(0));
            }
            self.schedule_probe(now);
        }
    }

    /// Linux `tcp_schedule_loss_probe`.
    fn schedule_probe(&mut self, now: Timestamp) {
        self.timers.probe = None;
        if !matches!(self.recovery.state, State::Open | State::Cwr) || self.timers.probed.is_some()
        {
            return;
        }
        let outstanding = self.board.next() - self.board.base();
        let delay = if outstanding == 1 { SINGLE_DELAY } else { MIN_DELAY };
        let timeout = self.rtt.smoothed().map_or(INITIAL_PROBE, |rtt| rtt * 2 + delay);
        // A probe replaces an earlier timeout.
        let limit = self.timers.retransmission.unwrap_or(Timestamp::MAX);
        self.timers.probe = Some((now + timeout).min(limit));
    }

    /// Linux `tcp_process_tlp_ack`; returns whether the probe repaired a loss.
    pub(super) fn on_probe_ack(&mut self, now: Timestamp, arrival: &Arrival) -> bool {
        let Some((end, is_repeated)) = self.timers.probed else { return false };
        let base = self.board.base();
        let is_duplicate = !arrival.advanced && arrival.acked == 0;
        if base < end && !(is_duplicate && is_repeated) {
            return false;
        }
        if !is_repeated || arrival.is_probe_dsack || base <= end {
            // At `end` itself a duplicate may still follow, which shows that nothing was lost.
            if !is_repeated || arrival.is_probe_dsack || is_duplicate {
                self.timers.end_probe();
            }
            return false;
        }
        self.timers.end_probe();
        self.reduce_for_probe(now);
        true
    }
}
