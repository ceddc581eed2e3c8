//! Encryption levels of the handshake: TLS takes data only from the level that it expects (RFC 9001,
//! section 4.1.3), and keys are discarded as soon as they are not needed (section 4.9).
//!
//! Everyone who saw a first flight knows the Initial keys. Without these rules such an observer
//! could change an established connection, from any address.

use bats_types::Timestamp;

use super::{Handshake, HandshakeError};
use crate::crypto::NewKeys;
use crate::wire::parameters::TransportParameters;

impl Handshake {
    /// The handshake is confirmed (HANDSHAKE_DONE): stops retransmission and discards all keys of
    /// the handshake. From now on no packet with a long header is authentic.
    pub fn confirm(&mut self) {
        if !self.completed {
            return;
        }
        self.confirmed = true;
        self.schedule.stop();
        self.levels.discard();
        self.token.discard();
    }

    /// Client: whether the server has yet to say that it accepts this end's certificate, or that it
    /// does without one.
    pub fn awaits_acceptance(&self) -> bool {
        !self.confirmed && self.session.is_certificate_requested()
    }

    /// Whether the handshake is confirmed, so that no packet with a long header is authentic.
    pub fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// A server's handshake is confirmed when it is complete (RFC 9001, section 4.1.2).
    pub(super) fn confirm_server(&mut self) {
        if !self.is_client {
            self.confirm();
        }
    }

    /// An authentic Handshake packet arrived. A server discards its Initial keys (RFC 9001, section
    /// 4.9.1).
    pub(super) fn on_handshake_packet(&mut self) {
        if !self.is_client {
            self.levels.discard_initial();
        }
    }

    /// This end sent a Handshake packet. A client discards its Initial keys (RFC 9001, section
    /// 4.9.1).
    pub(super) fn on_handshake_packet_sent(&mut self) {
        if self.is_client {
            self.levels.discard_initial();
        }
    }

    /// Lets the TLS session read and write as far as possible.
    pub(super) fn drive_session(&mut self, now: Timestamp) -> Result<(), HandshakeError> {
        loop {
            self.write_session(now);
            if self.session.is_done() {
                break;
            }
            // One message at a time: the next one may belong to the next level.
            let session = &self.session;
            let next = self.levels.current().take_in_order(|data| session.next_message(data));
            let Some(data) = next else { break };
            self.session.read(now, &data).inspect_err(|_| self.failed = true)?;
        }
        // TLS needs nothing more from the levels below the one that it reads now.
        self.levels.close_read(self.session.is_done());
        self.read_parameters()?;
        self.completed = self.session.is_done() && self.peer.is_some() && !self.failed;
        Ok(())
    }

    /// Takes the data and the keys that the TLS session has produced.
    fn write_session(&mut self, now: Timestamp) {
        loop {
            let mut data = Vec::new();
            let new_keys = self.session.write(&mut data);
            if self.one_rtt.is_installed() {
                self.one_rtt.send(&data);
            } else {
                self.levels.current().send(&data);
            }
            match new_keys {
                Some(NewKeys::Handshake(keys)) => {
                    self.levels.set_handshake_keys(keys);
                    self.decide_early(now);
                }
                Some(NewKeys::OneRtt(keys)) => self.one_rtt.install(keys),
                None if data.is_empty() => break,
                None => {}
            }
        }
    }

    /// Takes the peer's transport parameters from the TLS session.
    fn read_parameters(&mut self) -> Result<(), HandshakeError> {
        // Until a client's handshake is complete, TLS returns the parameters of the resumed
        // session.
        if self.peer.is_none()
            && (!self.is_client || self.session.is_done())
            && let Some(bytes) = self.session.peer_parameters()
        {
            let peer = TransportParameters::decode(bytes).ok_or(HandshakeError::Parameters)?;
            let original = Some(*self.ids.original());
            let first_matches = !self.is_client || peer.original_destination == original;
            if !first_matches {
                self.failed = true;
                return Err(HandshakeError::Parameters);
            }
            self.ids.set_peer(peer.connection_id);
            self.peer = Some(peer);
        }
        Ok(())
    }
}
