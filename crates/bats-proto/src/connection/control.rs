//! What has to be said to the neighbour in control packets.

use crate::wire::frame::Frame;

/// Frames that wait for the next control packet.
#[derive(Debug, Default)]
pub(super) struct PendingControl {
    /// An acknowledgement is owed.
    pub(super) ack: bool,
    /// Ack-eliciting packets since the last acknowledgement.
    pub(super) unacknowledged: u32,
    pub(super) rank: bool,
    pub(super) credit: bool,
    pub(super) end: bool,
    /// A symbol or block that was altered on the way it took.
    pub(super) altered: Option<u64>,
    pub(super) handshake_done: bool,
    /// TLS data after the handshake.
    pub(super) crypto: bool,
    pub(super) ping: bool,
    /// The newest challenge of the peer that was not answered.
    pub(super) path_response: Option<u64>,
    /// Code and text of a CLOSE frame to be sent (again).
    pub(super) close: Option<(bool, u64, String)>,
    /// The CLOSE frame, kept for late packets of the peer.
    pub(super) close_sent: Option<(bool, u64, String)>,
}

impl PendingControl {
    /// Whether a control packet has anything to carry now.
    pub(super) fn is_due(&self) -> bool {
        let path = self.path_response.is_some() || self.altered.is_some();
        path || self.ack
            || self.rank
            || self.credit
            || self.end
            || self.handshake_done
            || self.crypto
            || self.ping
    }

    /// The CLOSE frame to be sent.
    pub(super) fn close_frame(close: &(bool, u64, String)) -> Frame<'_> {
        Frame::Close { application: close.0, code: close.1, reason: &close.2 }
    }
}
