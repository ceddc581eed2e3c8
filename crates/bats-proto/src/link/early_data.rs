//! Early data (0-RTT) of a link: messages within the first flights of the handshake. The handshake itself stays within
//! the link, because it has the keys.

use bats_types::Timestamp;
use bytes::Bytes;

use crate::handshake::{ExpiringMessage, Handshake};

/// The early data of a handshake, for the session above the link.
#[derive(Debug)]
pub(crate) struct EarlyMessages<'a>(&'a mut Handshake);

impl<'a> EarlyMessages<'a> {
    pub(super) fn new(handshake: &'a mut Handshake) -> Self {
        Self(handshake)
    }

    /// Client: adds a message to the first flight; returns it if it does not fit.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(crate) fn push(
        self,
        now: Timestamp,
        message: Bytes,
        expires: Timestamp,
    ) -> Result<(), Bytes> {
        self.0.push_early(now, message, expires)
    }

    /// Client, when the handshake completes: the messages of the first flight, and how many of the first ones the
    /// server has.
    ///
    /// # Errors
    ///
    /// The rule that the server has violated.
    pub(crate) fn finish(self) -> Result<Option<(Vec<ExpiringMessage>, usize)>, &'static str> {
        self.0.finish_early()
    }

    /// Server: takes the payloads of early data received so far.
    pub(crate) fn take(self) -> Vec<Vec<u8>> {
        self.0.take_early()
    }

    /// Server: records early messages (a bit mask) as delivered.
    pub(crate) fn record(self, arrived: u32) {
        self.0.record_early(arrived);
    }

    /// Server, when the handshake is complete: stops accepting early data. Returns the messages (a bit mask) that
    /// replays of this first flight have delivered.
    pub(crate) fn close(self) -> u32 {
        self.0.close_early()
    }
}
