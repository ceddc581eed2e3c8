//! Control frames of a link that wait to be sent.

use crate::wire::frame::{self, Frame};
use crate::wire::varint::Writer;

/// Frames that wait for the next control packet, except acknowledgements and those of the session.
#[derive(Debug, Default)]
pub(super) struct LinkControl {
    handshake_done: bool,
    /// TLS data after the handshake.
    crypto: bool,
    ping: bool,
    /// Number of control packets with a PING to pad to the path MTU, so that the peer may send
    /// three times as much to an address that it has not validated.
    padded: u32,
    /// The peer's newest unanswered path challenge.
    path_response: Option<u64>,
    /// Path challenges replaced by newer ones before they were answered.
    challenges_dropped: u64,
}

/// What a control packet carries of these frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkFrames {
    ping: bool,
    path_response: Option<u64>,
    pub(super) handshake_done: bool,
    pub(super) crypto: bool,
    /// The packet is padded to the path MTU.
    pub(super) is_padded: bool,
}

impl LinkFrames {
    /// Writes the frames; `crypto` is the TLS data. `None` if they do not fit.
    pub(super) fn write(&self, writer: &mut Writer<'_>, crypto: &[u8]) -> Option<()> {
        if self.ping {
            frame::encode(writer, &Frame::Ping)?;
        }
        if let Some(challenge) = self.path_response {
            frame::encode(writer, &Frame::PathResponse(challenge))?;
        }
        if self.handshake_done {
            frame::encode(writer, &Frame::HandshakeDone)?;
        }
        if !crypto.is_empty() {
            frame::encode(writer, &Frame::Crypto { offset: 0, data: crypto })?;
        }
        Some(())
    }

    /// Whether the peer must acknowledge the packet for these frames.
    pub(super) fn is_ack_eliciting(&self) -> bool {
        self.ping || self.path_response.is_some() || self.handshake_done || self.crypto
    }
}

impl LinkControl {
    /// Whether a control packet must be sent now.
    pub(super) fn is_due(&self) -> bool {
        self.path_response.is_some() || self.handshake_done || self.crypto || self.ping
    }

    /// Sends a PING.
    pub(super) fn ping(&mut self) {
        self.ping = true;
    }

    /// Sends a PING in this number of full-size packets, or in one small packet if it is 0.
    pub(super) fn ping_padded(&mut self, packets: u32) {
        self.ping = true;
        self.padded = packets;
    }

    /// Sends HANDSHAKE_DONE, and TLS data if there is any.
    pub(super) fn confirm_handshake(&mut self, has_crypto: bool) {
        self.handshake_done = true;
        self.crypto = has_crypto;
    }

    /// Answers a path challenge.
    pub(super) fn answer_challenge(&mut self, challenge: u64) {
        let unanswered = self.path_response.replace(challenge);
        self.challenges_dropped += u64::from(unanswered.is_some());
    }

    /// Path challenges replaced by newer ones before they were answered.
    pub(super) fn challenges_dropped(&self) -> u64 {
        self.challenges_dropped
    }

    /// The peer has acknowledged the TLS data.
    pub(super) fn on_crypto_acknowledged(&mut self) {
        self.crypto = false;
    }

    /// A packet with these frames was lost.
    pub(super) fn on_lost(&mut self, handshake_done: bool, crypto: bool) {
        self.handshake_done |= handshake_done;
        self.crypto |= crypto;
    }

    /// Takes the frames for a control packet. Further padded ones follow.
    pub(super) fn take(&mut self) -> LinkFrames {
        let frames = LinkFrames {
            ping: self.ping,
            path_response: self.path_response.take(),
            handshake_done: core::mem::take(&mut self.handshake_done),
            crypto: core::mem::take(&mut self.crypto),
            is_padded: self.padded > 0,
        };
        self.ping = self.padded > 1;
        self.padded = self.padded.saturating_sub(1);
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stall_is_probed_by_padded_packets_and_other_frames_are_sent_once() {
        let mut control = LinkControl::default();
        assert!(!control.is_due());
        control.ping_padded(3);
        control.confirm_handshake(true);
        let taken: Vec<_> =
            core::iter::from_fn(|| control.is_due().then(|| control.take())).collect();
        let padded = LinkFrames { ping: true, is_padded: true, ..LinkFrames::default() };
        let first = LinkFrames { handshake_done: true, crypto: true, ..padded };
        assert_eq!(taken, [first, padded, padded]);
        control.ping_padded(0);
        assert_eq!(control.take(), LinkFrames { ping: true, ..LinkFrames::default() });
        assert!(!control.is_due());
    }

    #[test]
    fn newest_challenge_is_answered() {
        let mut control = LinkControl::default();
        control.answer_challenge(1);
        control.answer_challenge(2);
        assert_eq!((control.challenges_dropped(), control.is_due()), (1, true));
        assert_eq!(control.take().path_response, Some(2));
        control.answer_challenge(3);
        assert_eq!(control.challenges_dropped(), 1);
    }

    #[test]
    fn lost_handshake_frames_are_sent_again() {
        let mut control = LinkControl::default();
        control.on_lost(true, false);
        let frames = control.take();
        assert!(frames.handshake_done && !frames.crypto && frames.is_ack_eliciting());
        control.on_lost(false, true);
        control.on_crypto_acknowledged();
        assert!(!control.is_due(), "an earlier copy was acknowledged");
    }
}
