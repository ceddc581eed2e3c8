//! Control frames that wait to be sent.

use crate::wire::frame::Frame;

/// Frames that wait for the next control packet.
#[derive(Debug, Default)]
pub(super) struct PendingControl {
    /// An acknowledgement is due.
    pub(super) ack: bool,
    /// Ack-eliciting packets since the last acknowledgement.
    pub(super) unacknowledged: u32,
    pub(super) rank: bool,
    pub(super) credit: bool,
    pub(super) end: bool,
    /// Number of a polluted symbol or block that one path can be blamed for.
    pub(super) polluted: Option<u64>,
    pub(super) handshake_done: bool,
    /// Number of control packets with a PING to pad to the path MTU, so that the peer may send
    /// three times as much to an address that it has not validated.
    pub(super) padded: u32,
    /// TLS data after the handshake.
    pub(super) crypto: bool,
    pub(super) ping: bool,
    /// The peer's newest unanswered path challenge.
    pub(super) path_response: Option<u64>,
    /// The CLOSE frame to send or resend: (from the application, code, text).
    pub(super) close: Option<(bool, u64, String)>,
    /// The CLOSE frame that was sent, kept to answer late packets of the peer.
    pub(super) close_sent: Option<(bool, u64, String)>,
}

impl PendingControl {
    /// Whether a control packet must be sent now.
    pub(super) fn is_due(&self) -> bool {
        let path = self.path_response.is_some() || self.polluted.is_some();
        path || self.ack
            || self.rank
            || self.credit
            || self.end
            || self.handshake_done
            || self.crypto
            || self.ping
    }

    /// Makes the CLOSE frame.
    pub(super) fn close_frame(close: &(bool, u64, String)) -> Frame<'_> {
        Frame::Close { application: close.0, code: close.1, reason: &close.2 }
    }
}
