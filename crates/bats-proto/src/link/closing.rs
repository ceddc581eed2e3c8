//! CLOSE frames: the one to send, and the answers to late packets of the peer (RFC 9000, section 10.2).

use core::time::Duration;

use super::acks::MAX_ACK_DELAY;
use super::rtt::RttEstimator;
use crate::wire::frame::Frame;

/// Longest time that a closed connection answers late packets. Without this bound, a peer that
/// withholds acknowledgements (which inflates the RTT estimate) could keep it open for minutes.
const MAX_LINGER: Duration = Duration::from_secs(10);

/// How long a closed connection answers late packets (RFC 9000, section 10.2).
pub(super) fn linger(rtt: &RttEstimator) -> Duration {
    (rtt.probe_timeout(MAX_ACK_DELAY) * 3).min(MAX_LINGER)
}

/// Content of a CLOSE frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CloseText {
    /// It comes from the application.
    pub(super) application: bool,
    pub(super) code: u64,
    pub(super) text: String,
}

impl CloseText {
    pub(super) fn frame(&self) -> Frame<'_> {
        Frame::Close { application: self.application, code: self.code, reason: &self.text }
    }
}

/// The CLOSE frame of a link that this end has closed.
#[derive(Debug, Default)]
pub(super) struct Closing {
    /// To send or to send again.
    pending: Option<CloseText>,
    /// Kept to answer late packets of the peer.
    sent: Option<CloseText>,
    /// Datagrams received after the link was closed.
    datagrams: u32,
}

impl Closing {
    /// Closes with this frame.
    pub(super) fn begin(&mut self, close: CloseText) {
        self.pending = Some(close);
    }

    /// A datagram arrived after the link was closed. The peer may have missed the CLOSE frame: it is sent
    /// again, at exponentially growing intervals, so that forged datagrams cannot cause a flood of
    /// answers (RFC 9000, section 10.2.1).
    pub(super) fn on_datagram(&mut self) {
        self.datagrams = self.datagrams.saturating_add(1);
        if self.datagrams.is_power_of_two() {
            let again = self.sent.clone();
            self.pending = again.or(self.pending.take());
        }
    }

    /// Takes the frame to send now.
    pub(super) fn take(&mut self) -> Option<CloseText> {
        self.pending.take()
    }

    /// The frame was sent.
    pub(super) fn on_sent(&mut self, close: CloseText) {
        self.sent = Some(close);
    }

    /// Whether the first CLOSE frame is still to be sent.
    pub(super) fn is_unsent(&self) -> bool {
        self.pending.is_some() && self.sent.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(code: u64) -> CloseText {
        CloseText { application: true, code, text: "bye".to_owned() }
    }

    #[test]
    fn late_datagrams_are_answered_at_growing_intervals() {
        let mut closing = Closing::default();
        closing.begin(close(7));
        assert!(closing.is_unsent());
        closing.on_datagram();
        assert!(closing.is_unsent(), "it is not sent twice");
        let taken = closing.take().expect("it is to be sent");
        closing.on_sent(taken);
        assert!(!closing.is_unsent());
        let answered = (2..=40).filter(|_| {
            closing.on_datagram();
            closing.take().map(|close| closing.on_sent(close)).is_some()
        });
        assert_eq!(answered.collect::<Vec<u32>>(), [2, 4, 8, 16, 32]);
    }
}
