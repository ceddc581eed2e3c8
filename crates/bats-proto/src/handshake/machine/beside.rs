//! What a handshake carries beside itself: early data, and sessions for later.

use bats_types::Timestamp;
use bytes::Bytes;
use rand::Rng;

use super::super::early::{EarlyReceiver, Expiring};
use super::Handshake;
use crate::crypto::fingerprint;

impl Handshake {
    /// Takes TLS data that came after the handshake: sessions for later. What is malformed or too much
    /// is of no use, and does no harm.
    pub fn read_later(&mut self, now: Timestamp, offset: u64, data: &[u8]) {
        if self.later.receive(offset, data)
            && let Some(data) = self.later.take_fresh()
        {
            let _useless = self.session.read(now, &data);
        }
    }

    /// TLS data that this end has to say after the handshake, from the beginning.
    pub fn later_data(&self) -> &[u8] {
        &self.later_data
    }

    /// Whether an earlier session was taken up, known once the handshake is complete.
    pub fn is_resumed(&self) -> bool {
        self.session.is_resumed()
    }

    /// Client: takes a message for the first flight, or gives it back if it cannot go with it.
    pub(crate) fn push_early(
        &mut self,
        now: Timestamp,
        message: Bytes,
        expires: Timestamp,
    ) -> Result<(), Bytes> {
        if self.levels[1].keys.is_some() {
            return Err(message);
        }
        let Some(early) = &mut self.early else { return Err(message) };
        early.push(message, expires)?;
        self.next_send = Some(now);
        Ok(())
    }

    /// Client, when the handshake is complete: the messages of the first flight, and how many of them
    /// the server has, from the first one on. The others must be sent again. `None` if there is no
    /// first flight with messages.
    ///
    /// # Errors
    ///
    /// The server took them and tells narrower limits than before: the rule that it broke.
    pub(crate) fn finish_early(&mut self) -> Result<Option<(Vec<Expiring>, usize)>, &'static str> {
        let Some(early) = self.early.take() else { return Ok(None) };
        let accepted = self.session.is_early_accepted();
        if accepted && self.peer.as_ref().is_some_and(|told| !early.is_kept_by(told)) {
            return Err("early data were taken under other limits than the session's");
        }
        let messages = early.messages().to_vec();
        let arrived = if accepted { self.early_arrived.trailing_ones() as usize } else { 0 };
        let arrived = arrived.min(messages.len());
        Ok(Some((messages, arrived)))
    }

    /// Server: whether early data of the client are taken.
    pub(crate) fn takes_early(&self) -> bool {
        self.early_data.as_ref().is_some_and(|early| early.is_taking())
    }

    /// Server: early data that have come; they may be delivered.
    pub(crate) fn take_early(&mut self) -> Vec<Vec<u8>> {
        self.early_data.as_mut().map(|early| early.take()).unwrap_or_default()
    }

    /// Server: these early messages, a bit each, were delivered.
    pub(crate) fn note_early(&mut self, arrived: u32) {
        if let Some(early) = &mut self.early_data {
            early.note(arrived);
        }
    }

    /// Server, when the handshake is complete: early data are not taken any more. Messages, a bit each,
    /// that were delivered of copies of this first flight.
    pub(crate) fn close_early(&mut self) -> u32 {
        self.early_data.as_mut().map_or(0, |early| early.finish())
    }

    /// Server: early packets beyond the limit.
    pub(crate) fn early_refused(&self) -> u64 {
        self.early_data.as_ref().map_or(0, |early| early.refused)
    }

    /// Server: the client's first message was read, and TLS has decided about early data.
    pub(super) fn decide_early(&mut self, now: Timestamp) {
        if let (Some(ledger), Some(hello)) = (&self.ledger, self.levels[0].first_message()) {
            let keys = self.session.early_keys();
            let early = EarlyReceiver::new(now, ledger.clone(), fingerprint(hello), keys);
            self.early_data = Some(Box::new(early));
        }
    }

    /// Whether the client has early data that it should send now: the server has not answered.
    pub(super) fn has_early(&self) -> bool {
        let answered = self.levels[1].keys.is_some();
        !answered && self.early.as_ref().is_some_and(|early| early.has_unsent())
    }

    pub(super) fn write_early(&mut self, now: Timestamp, out: &mut [u8]) -> Option<usize> {
        if !self.has_early() {
            return None;
        }
        let grease = self.rng.next_u32() as u8;
        let destination: &[u8] = match &self.peer_cid {
            Some(cid) => cid,
            None => &self.original,
        };
        self.early.as_mut()?.write(now, out, destination, &self.local_cid, grease)
    }
}
