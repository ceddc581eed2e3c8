//! Early data of a handshake at either end: at a client that resumes a session and at a server that
//! accepts it.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use bats_types::Timestamp;
use bytes::Bytes;

use super::connection_ids::ConnectionIds;
use super::early::{EarlyReceiver, EarlySender, ExpiringMessage, SharedReplayLedger};
use crate::crypto::{DirectionalKeys, fingerprint};
use crate::wire::parameters::TransportParameters;

/// The sender of a client or the receiver of a server; neither without early data.
#[derive(Debug, Default)]
pub(super) struct EarlyData {
    /// Client: if it resumes a session that allows early data.
    sender: Option<Box<EarlySender>>,
    /// Client: messages that the server has received, as a bit mask.
    acknowledged: u32,
    /// Server: the replay ledger of all clients, if early data is enabled.
    ledger: Option<SharedReplayLedger>,
    /// Server: once TLS has read the ClientHello.
    receiver: Option<Box<EarlyReceiver>>,
}

impl EarlyData {
    pub(super) fn client(sender: Option<EarlySender>) -> Self {
        Self { sender: sender.map(Box::new), ..Self::default() }
    }

    pub(super) fn server(ledger: Option<SharedReplayLedger>) -> Self {
        Self { ledger, ..Self::default() }
    }

    /// Client: accepts a message for the first flight, or returns it if it does not fit.
    pub(super) fn push(&mut self, message: Bytes, expires: Timestamp) -> Result<(), Bytes> {
        let Some(sender) = &mut self.sender else { return Err(message) };
        sender.push(message, expires)
    }

    /// Client: whether a packet can be sent.
    pub(super) fn has_unsent(&self) -> bool {
        self.sender.as_ref().is_some_and(|sender| sender.has_unsent())
    }

    /// Client: begins another transmission round.
    pub(super) fn rewind(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.rewind();
        }
    }

    /// Client: writes the next packet, if there is room; returns its length.
    pub(super) fn write(
        &mut self,
        now: Timestamp,
        out: &mut [u8],
        ids: &ConnectionIds,
        grease: u8,
    ) -> Option<usize> {
        self.sender.as_mut()?.write(now, out, ids.destination(), ids.local(), grease)
    }

    /// Client: the server acknowledges messages (a bit mask).
    pub(super) fn on_acknowledged(&mut self, arrived: u32) {
        self.acknowledged |= arrived;
    }

    /// Client, when the handshake is complete: the messages, and how many of them, counted from the
    /// first, the server has. `None` if there was no early data.
    ///
    /// # Errors
    ///
    /// The rule that the server violated: it `accepted` early data but now advertises smaller limits.
    pub(super) fn finish(
        &mut self,
        accepted: bool,
        advertised: Option<&TransportParameters>,
    ) -> Result<Option<(Vec<ExpiringMessage>, usize)>, &'static str> {
        let Some(sender) = self.sender.take() else { return Ok(None) };
        if accepted && advertised.is_some_and(|advertised| !sender.limits_kept_by(advertised)) {
            return Err("early data accepted with smaller limits than those of the session");
        }
        let messages = sender.messages().to_vec();
        let arrived = if accepted { self.acknowledged.trailing_ones() as usize } else { 0 };
        let arrived = arrived.min(messages.len());
        Ok(Some((messages, arrived)))
    }

    /// Server: TLS has read the ClientHello, the first message, and decided about early data: `keys`
    /// are set if it is accepted.
    pub(super) fn decide(
        &mut self,
        now: Timestamp,
        hello: Option<&[u8]>,
        keys: impl FnOnce() -> Option<DirectionalKeys>,
    ) {
        if let (Some(ledger), Some(hello)) = (&self.ledger, hello) {
            let receiver = EarlyReceiver::new(now, ledger.clone(), fingerprint(hello), keys());
            self.receiver = Some(Box::new(receiver));
        }
    }

    /// Server: whether it has decided about the early data of its client.
    pub(super) fn is_decided(&self) -> bool {
        self.receiver.is_some()
    }

    /// Server: whether the client's early data is accepted.
    pub(super) fn accepts_data(&self) -> bool {
        self.receiver.as_ref().is_some_and(|receiver| receiver.accepts_data())
    }

    /// Server: takes a packet; returns whether it is authentic.
    pub(super) fn receive(&mut self, packet: &mut [u8], number_at: usize) -> bool {
        self.receiver.as_mut().is_some_and(|receiver| receiver.receive(packet, number_at))
    }

    /// Server: takes received data that may be delivered.
    pub(super) fn take(&mut self) -> Vec<Vec<u8>> {
        self.receiver.as_mut().map(|receiver| receiver.take()).unwrap_or_default()
    }

    /// Server: records messages (a bit mask) as delivered.
    pub(super) fn record(&mut self, arrived: u32) {
        if let Some(receiver) = &mut self.receiver {
            receiver.record(arrived);
        }
    }

    /// Server: the messages to acknowledge, as a bit mask, if there are any.
    pub(super) fn arrived(&self) -> Option<u32> {
        self.receiver.as_ref().map(|receiver| receiver.arrived).filter(|&arrived| arrived > 0)
    }

    /// Server, when the handshake is complete: stops accepting data. Returns the messages (a bit
    /// mask) that replays of this first flight have delivered.
    pub(super) fn close(&mut self) -> u32 {
        self.receiver.as_mut().map_or(0, |receiver| receiver.finish())
    }

    /// Server: packets refused because of the limit.
    pub(super) fn refused(&self) -> u64 {
        self.receiver.as_ref().map_or(0, |receiver| receiver.refused)
    }
}
