//! The interface between a link and the session above it. The link pulls: when it may send, it asks its session
//! for the next coded packet and for control frames. It hands over what it receives, and which of the session's
//! frames were acknowledged or lost.

use core::time::Duration;

use bats_types::Timestamp;

use crate::error::CloseReason;
use crate::flow::PathView;
use crate::wire::frame::{self, Frame};
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Writer;

/// Round-trip times of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkRtt {
    pub(crate) smoothed: Duration,
    pub(crate) min: Duration,
}

/// What a link takes, for the size of the session's send window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkCapacity {
    /// The congestion window in bytes.
    pub(crate) window: u64,
    pub(crate) smoothed_rtt: Duration,
    /// Bytes acknowledged so far.
    pub(crate) bytes_acked: u64,
    /// Memory for records of sent packets, in bytes.
    pub(crate) record_bytes: usize,
}

/// Why a session cannot go on. The link closes the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SessionFailure {
    /// The peer has violated this rule.
    Violation(String),
    /// This number of polluted symbols or packets arrived in a row.
    Pollution(u64),
    /// This number of bytes of memory has been missing for too long.
    Memory(usize),
}

impl SessionFailure {
    /// Code, text and reason of the CLOSE frame.
    pub(super) fn close(self) -> (u64, String, CloseReason) {
        let (code, reason) = match self {
            Self::Violation(rule) => {
                return (1, rule.clone(), CloseReason::PeerMisbehaved(rule));
            }
            Self::Pollution(count) => (4, CloseReason::Pollution(count)),
            Self::Memory(missing) => (5, CloseReason::Memory(missing)),
        };
        (code, reason.to_string(), reason)
    }
}

/// The session's frames of one control packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionFrames {
    /// Number of a polluted symbol or block.
    pub(crate) polluted: Option<u64>,
    pub(crate) credit: Option<u64>,
    /// Symbols and messages of the finished flow.
    pub(crate) end: Option<(u64, u64)>,
    pub(crate) feedback: Option<RankFeedback>,
}

impl SessionFrames {
    /// Writes the frames; `None` if they do not fit.
    pub(super) fn write(self, writer: &mut Writer<'_>) -> Option<()> {
        if let Some(number) = self.polluted {
            frame::encode(writer, &Frame::SymbolPolluted(number))?;
        }
        if let Some(credit) = self.credit {
            frame::encode(writer, &Frame::Credit(credit))?;
        }
        if let Some((symbols, messages)) = self.end {
            frame::encode(writer, &Frame::End { symbols, messages })?;
        }
        if let Some(feedback) = self.feedback {
            frame::encode(writer, &Frame::Rank(feedback))?;
        }
        Some(())
    }

    /// Whether the peer must acknowledge the packet for these frames.
    pub(super) fn is_ack_eliciting(&self) -> bool {
        self.credit.is_some() || self.end.is_some()
    }
}

/// A frame that the peer's session has sent.
#[derive(Clone, Debug)]
pub(crate) enum SessionFrame {
    /// RANK, and the link as it is now.
    Rank(RankFeedback, PathView),
    Credit(u64),
    /// Symbols and messages of the peer's finished flow.
    End {
        symbols: u64,
        messages: u64,
    },
    /// Number of a polluted symbol or block.
    SymbolPolluted(u64),
}

/// The session above a link, as the link sees it.
pub(crate) trait LinkSession {
    /// Whether coded packets wait to be sent.
    fn has_data(&self) -> bool;

    /// Whether the peer has not decoded all coded data yet.
    fn awaits_decoding(&self) -> bool;

    /// Writes the next coded payload to `out`, for packets of `path_mtu` bytes.
    fn next_coded(
        &mut self,
        now: Timestamp,
        path_mtu: u16,
        view: &PathView,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind>;

    /// Whether a control frame is due.
    fn is_control_due(&mut self, now: Timestamp) -> bool;

    /// Whether an END frame is due.
    fn is_end_due(&self) -> bool;

    /// Takes the control frames that are due.
    fn next_control(&mut self, now: Timestamp, rtt: LinkRtt) -> SessionFrames;

    /// What this end has received, for the packet that closes the connection.
    fn last_feedback(&mut self, now: Timestamp, rtt: LinkRtt) -> Option<RankFeedback>;

    /// The link could send more, and there is nothing to send.
    fn on_nothing_sent(&mut self, capacity: impl FnOnce() -> LinkCapacity);

    /// Whether the data of another packet can be taken; otherwise it counts as lost.
    fn may_take_packet(&mut self, now: Timestamp) -> Result<bool, SessionFailure>;

    /// Takes a coded payload.
    fn on_coded(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        payload: &[u8],
        rtt: LinkRtt,
    ) -> Result<(), SessionFailure>;

    /// The longest coded payload in bytes, which fragments may form.
    fn max_payload(&self) -> usize;

    /// Whether the entries of a RANK frame may cause work now.
    fn may_read_ranks(&self, now: Timestamp) -> bool;

    /// Takes a frame of the peer's session.
    fn on_frame(&mut self, now: Timestamp, frame: SessionFrame) -> Result<(), SessionFailure>;

    /// An END frame was acknowledged.
    fn on_end_acknowledged(&mut self);

    /// CREDIT or END frames were lost.
    fn on_lost(&mut self, credit: bool, end: bool);

    /// Nothing was answered within the probe timeout, and `packets` may be sent until the next one.
    /// Returns whether there is data to send again.
    fn on_probe_timeout(&mut self, packets: u64) -> bool;

    /// What is in flight will not arrive; `is_limited` if little may be sent on the new path.
    fn on_path_lost(&mut self, now: Timestamp, view: &PathView, is_limited: bool);

    /// The flow has stalled: the sender needs to know what to repair first.
    fn report_soon(&mut self);

    /// Timers of the session may have expired.
    fn handle_timeout(&mut self, now: Timestamp, view: &PathView);

    /// When to call [`LinkSession::handle_timeout`]; without the timers of sending unless `may_send`.
    fn next_timeout(&self, may_send: bool) -> Option<Timestamp>;

    /// Nothing was sent or received for long: frees memory.
    fn trim(&mut self);

    /// The server has accepted this client.
    fn on_accepted(&mut self);

    /// The peer has closed the connection.
    fn on_closed_by_peer(&mut self);

    /// The link is closed.
    fn on_closed(&mut self, reason: CloseReason);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_reported_to_the_peer_with_their_codes() {
        let violation = SessionFailure::Violation("a rule".to_owned()).close();
        let expected = CloseReason::PeerMisbehaved("a rule".to_owned());
        assert_eq!(violation, (1, "a rule".to_owned(), expected));
        assert_eq!(SessionFailure::Pollution(256).close().0, 4);
        assert_eq!(SessionFailure::Memory(1).close().0, 5);
    }

    #[test]
    fn only_credit_and_end_are_acknowledged() {
        let frames = SessionFrames { polluted: Some(3), ..SessionFrames::default() };
        assert!(!frames.is_ack_eliciting());
        assert!(SessionFrames { credit: Some(3), ..SessionFrames::default() }.is_ack_eliciting());
        assert!(SessionFrames { end: Some((3, 1)), ..SessionFrames::default() }.is_ack_eliciting());
    }
}
