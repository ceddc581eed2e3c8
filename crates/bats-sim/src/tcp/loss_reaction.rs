//! The sender's reaction to loss (Linux `tcp_fastretrans_alert`), and undo.

use bats_types::Timestamp;

use super::arrival::Arrival;
use super::prr::Prr;
use super::recovery::State;
use super::sender::Sender;
use super::{Reduction, SEGMENT};

impl Sender {
    /// Processes an acknowledgement. Returns whether a window reduction begins.
    pub(super) fn react(&mut self, now: Timestamp, arrival: &mut Arrival) -> bool {
        self.recovery.sends_new_data = false;
        if arrival.ece {
            self.recovery.restores_window = false;
        }
        self.end_if_done(now, arrival);
        let may_begin = match self.recovery.state {
            State::Recovery => {
                if arrival.advanced && self.undo_partial(now, arrival) {
                    return false;
                }
                if self.undo_by_dsack(now) {
                    self.reopen();
                }
                self.detect_losses(now, arrival);
                self.recovery.state != State::Recovery
            }
            State::Loss => {
                self.on_loss_progress(now, arrival);
                let lost_again = self.detect_losses(now, arrival);
                self.recovery.state == State::Open || lost_again
            }
            _ => {
                self.undo_by_dsack(now);
                self.detect_losses(now, arrival);
                true
            }
        };
        if !may_begin {
            return false;
        }
        if self.board.first_lost().is_some() {
            self.enter_recovery(now, arrival);
            return true;
        }
        let is_open = self.recovery.state <= State::Disorder;
        if arrival.ece && is_open {
            self.enter_cwr(now);
            return true;
        }
        if is_open {
            self.reopen();
        }
        self.on_probe_ack(now, arrival)
    }

    fn end_if_done(&mut self, now: Timestamp, arrival: &Arrival) {
        let (base, end) = (self.board.base(), self.recovery.end);
        match self.recovery.state {
            State::Cwr if base > end => {
                self.prr = None;
                self.recovery.state = State::Open;
            }
            State::Recovery if base >= end => self.end_recovery(now, arrival),
            _ => {}
        }
    }

    /// Linux `tcp_try_undo_recovery`.
    fn end_recovery(&mut self, now: Timestamp, arrival: &Arrival) {
        if self.recovery.may_undo(arrival.echo) {
            self.undo(now, false);
        } else {
            self.rack.on_recovery_end(false);
        }
        self.prr = None;
        self.recovery.undo_marker = None;
        self.recovery.state = State::Open;
    }

    /// Linux `tcp_try_undo_partial`: the first segment of the recovery was not lost but reordered.
    fn undo_partial(&mut self, now: Timestamp, arrival: &Arrival) -> bool {
        if self.recovery.undo_marker.is_none() || !self.recovery.is_delayed(arrival.echo) {
            return false;
        }
        self.rack.on_reordering();
        // All retransmissions have to be accounted for first.
        if self.board.retransmitted_in_flight() > 0 {
            return true;
        }
        self.undo(now, true);
        self.reopen();
        true
    }

    /// Linux `tcp_try_undo_dsack`: every retransmission was spurious.
    fn undo_by_dsack(&mut self, now: Timestamp) -> bool {
        let is_spurious =
            self.recovery.undo_marker.is_some() && self.recovery.undo_retransmissions == Some(0);
        if is_spurious {
            self.rack.on_recovery_end(true);
            self.undo(now, false);
        }
        is_spurious
    }

    /// Linux `tcp_undo_cwnd_reduction`.
    fn undo(&mut self, now: Timestamp, unmark_lost: bool) {
        if unmark_lost {
            let count = self.board.unmark_lost();
            self.sampler.on_spurious(count * SEGMENT);
            if count > 0 {
                self.control.on_spurious_loss(now, count);
            }
        }
        if self.recovery.restores_window {
            self.prr = None;
            self.control.on_undo(now);
            self.counters.undone += 1;
        }
        self.recovery.undo_marker = None;
    }

    /// Linux `tcp_try_keep_open`.
    fn reopen(&mut self) {
        if self.recovery.state >= State::Cwr {
            self.prr = None;
        }
        let is_clean = self.board.sacked() == 0
            && self.board.first_lost().is_none()
            && !self.board.has_retransmitted();
        self.recovery.state = if is_clean { State::Open } else { State::Disorder };
    }

    /// Linux `tcp_process_loss`: F-RTO (RFC 5682 section 3.1), and the end of recovery.
    fn on_loss_progress(&mut self, now: Timestamp, arrival: &Arrival) {
        let is_recovered = self.board.base() >= self.recovery.end;
        if arrival.advanced && self.undo_loss(now, arrival, false) {
            return;
        }
        if self.recovery.frto {
            if arrival.has_original && self.undo_loss(now, arrival, true) {
                return;
            }
            if self.board.next() > self.recovery.end {
                if arrival.has_sacked || !arrival.advanced {
                    self.recovery.frto = false;
                }
            } else if arrival.advanced && !is_recovered {
                self.recovery.end = self.board.next();
                if self.new_number().is_some() {
                    self.recovery.sends_new_data = true;
                    return;
                }
                self.recovery.frto = false;
            }
        }
        if is_recovered {
            self.end_recovery(now, arrival);
        }
    }

    /// Linux `tcp_try_undo_loss`.
    fn undo_loss(&mut self, now: Timestamp, arrival: &Arrival, by_frto: bool) -> bool {
        if !by_frto && !self.recovery.may_undo(arrival.echo) {
            return false;
        }
        self.undo(now, true);
        self.timers.backoff = 0;
        self.recovery.frto = false;
        self.recovery.state = State::Open;
        true
    }

    /// Declares segments lost by time (RFC 8985 section 6.2 step 5). Returns whether a
    /// retransmission is among them.
    pub(super) fn detect_losses(&mut self, now: Timestamp, arrival: &mut Arrival) -> bool {
        let smoothed = self.rtt.smoothed().unwrap_or_default();
        let window = self.rack.window(
            self.board.sacked(),
            self.recovery.is_recovering(),
            self.rtt.min(),
            smoothed,
        );
        self.timers.reordering = None;
        let mut has_retransmission = false;
        while let Some((number, sent)) = self.board.oldest() {
            if sent.order >= self.rack.order {
                break;
            }
            if self.rack.due(sent.at, window) > now {
                self.timers.reordering = Some(self.rack.due(self.rack.sent, window));
                break;
            }
            self.lose(now, number);
            arrival.lost += 1;
            has_retransmission |= sent.is_retransmitted;
        }
        has_retransmission
    }

    fn reduce(&mut self, now: Timestamp) {
        let prior_window = self.window();
        let in_flight = self.board.in_flight();
        self.prr = match self.control.on_recovery(now, in_flight) {
            Reduction::Proportional(threshold) => {
                Some(Prr::new(threshold, prior_window, in_flight))
            }
            Reduction::OwnWindow => None,
        };
        self.timers.end_probe();
        self.queue_cwr();
        self.counters.recoveries += 1;
    }

    /// Linux `tcp_enter_recovery`.
    pub(super) fn enter_recovery(&mut self, now: Timestamp, arrival: &Arrival) {
        let was = self.recovery.state;
        self.recovery.restores_window = false;
        if was != State::Cwr && was != State::Recovery {
            self.recovery.restores_window = !arrival.ece;
            self.reduce(now);
        }
        let retransmitted = self.board.retransmitted_in_flight();
        let (base, next) = (self.board.base(), self.board.next());
        self.recovery.begin(State::Recovery, base, next, retransmitted);
    }

    /// Linux `tcp_enter_cwr`.
    fn enter_cwr(&mut self, now: Timestamp) {
        self.reduce(now);
        self.recovery.undo_marker = None;
        self.recovery.end = self.board.next();
        self.recovery.state = State::Cwr;
    }

    /// Reduces the window for a loss that a tail loss probe repaired (RFC 8985 section 7.4.2).
    pub(super) fn reduce_for_probe(&mut self, now: Timestamp) {
        self.reduce(now);
        self.prr = None;
        self.recovery.undo_marker = None;
        self.recovery.end = self.board.next();
        self.reopen();
    }

    /// Linux `tcp_enter_loss`.
    pub(super) fn enter_loss(&mut self, now: Timestamp) {
        let was = self.recovery.state;
        let base = self.board.base();
        for number in self.board.all_in_flight() {
            let due = |sent| self.rack.due(sent, core::time::Duration::ZERO) > now;
            let is_recent = self.board.get(number).is_some_and(|sent| due(sent.at));
            if number == base || !is_recent {
                self.lose(now, number);
            }
        }
        let is_first = was <= State::Disorder
            || self.recovery.end <= base
            || (was == State::Loss && self.timers.backoff == 0);
        let retransmitted = self.board.retransmitted_in_flight();
        if is_first {
            self.recovery.begin(State::Loss, base, self.board.next(), retransmitted);
            self.recovery.restores_window = true;
        }
        self.prr = None;
        self.recovery.state = State::Loss;
        self.recovery.end = self.board.next();
        self.recovery.frto = was < State::Recovery || self.timers.backoff > 0;
        self.recovery.sends_new_data = false;
        self.control.on_timeout(now, self.board.in_flight(), is_first);
        self.queue_cwr();
    }
}
