//! Control frames of a session that wait to be sent.

use core::time::Duration;

use bats_types::Timestamp;

use super::streams::{Receiving, Sending, Streams, Totals};
use crate::link::{SessionFrames, take_expired};

/// Frames that wait for the next control packet of the link.
#[derive(Debug, Default)]
pub(super) struct SessionControl {
    rank: bool,
    credit: bool,
    end: bool,
    /// Number of a polluted symbol or block that one path can be blamed for.
    polluted: Option<u64>,
    /// When feedback about missing rank is due.
    feedback_at: Option<Timestamp>,
}

impl SessionControl {
    /// Whether a frame must be sent now.
    pub(super) fn is_due(&self) -> bool {
        self.polluted.is_some() || self.rank || self.credit || self.end
    }

    pub(super) fn is_end_due(&self) -> bool {
        self.end
    }

    /// Reports ranks in the next control packet.
    pub(super) fn report_ranks(&mut self) {
        self.rank = true;
    }

    /// Announces credit.
    pub(super) fn announce_credit(&mut self) {
        self.credit = true;
    }

    /// Announces the end of the flow, if it is known only now.
    pub(super) fn announce_end(&mut self, had_end: bool, has_end: bool) {
        self.end |= !had_end && has_end;
    }

    /// The application has ended the flow; `has_end` if the totals are known.
    pub(super) fn set_end(&mut self, has_end: bool) {
        self.end = has_end;
    }

    /// Reports a polluted symbol or block.
    pub(super) fn report_pollution(&mut self, number: u64) {
        self.polluted = Some(number);
    }

    /// Frames were lost.
    pub(super) fn on_lost(&mut self, credit: bool, end: bool) {
        self.credit |= credit;
        self.end |= end;
    }

    /// A packet arrived: feedback may be due earlier.
    pub(super) fn advance_feedback(&mut self, at: Option<Timestamp>) {
        self.feedback_at = Timestamp::earlier(self.feedback_at, at);
    }

    /// When feedback is due.
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        self.feedback_at
    }

    pub(super) fn handle_timeout(&mut self, now: Timestamp) {
        self.rank |= take_expired(&mut self.feedback_at, now);
    }

    /// Takes the frames that are due; `rtt` sets how often ranks are reported.
    pub(super) fn take(
        &mut self,
        now: Timestamp,
        streams: Option<&mut Streams>,
        rtt: Duration,
    ) -> SessionFrames {
        let due = core::mem::take(self);
        let Some(streams) = streams else {
            return SessionFrames { polluted: due.polluted, ..SessionFrames::default() };
        };
        let incoming = &mut streams.incoming;
        let feedback = if due.rank { incoming.feedback(now, rtt) } else { None };
        let credit = if due.credit { incoming.credit() } else { None };
        self.feedback_at = incoming.feedback_at();
        let end = if due.end { streams.outgoing.end() } else { None };
        let end = end.map(|Totals { symbols, messages }| (symbols, messages));
        SessionFrames { polluted: due.polluted, credit, end, feedback }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_is_announced_when_it_becomes_known_and_again_when_it_is_lost() {
        let mut control = SessionControl::default();
        control.announce_end(false, false);
        control.announce_end(true, true);
        assert!(!control.is_end_due());
        control.announce_end(false, true);
        assert!(control.is_end_due());
        control.take(Timestamp::ZERO, None, Duration::ZERO);
        assert!(!control.is_due());
        control.on_lost(false, true);
        assert!(control.is_end_due());
    }

    #[test]
    fn feedback_is_due_at_the_earliest_time() {
        let at = |ms| Some(Timestamp::from_millis(ms));
        let mut control = SessionControl::default();
        for time in [at(7), at(5), None, at(6)] {
            control.advance_feedback(time);
        }
        assert_eq!(control.next_timeout(), at(5));
        control.handle_timeout(Timestamp::from_millis(4));
        assert!(!control.is_due());
        control.handle_timeout(Timestamp::from_millis(5));
        assert!(control.is_due());
    }

    #[test]
    fn pollution_is_reported_once() {
        let mut control = SessionControl::default();
        control.report_pollution(9);
        let frames = control.take(Timestamp::ZERO, None, Duration::ZERO);
        assert_eq!(frames, SessionFrames { polluted: Some(9), ..SessionFrames::default() });
        assert!(!control.is_due());
    }
}
