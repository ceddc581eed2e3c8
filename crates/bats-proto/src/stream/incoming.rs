//! Messages of the peer: reassembly, credit and receipts.

use bytes::Bytes;

use super::frame::{MESSAGE_COST, Receipt, cost};
use super::frame_budget;
use super::partial::Partial;
use crate::config::TransportConfig;
use crate::session::{Inbox, MESSAGE_OVERHEAD, max_message, receive_budget};

/// Bytes of an incomplete message after which the receiver sends a receipt.
const RECEIPT_INTERVAL: u64 = 1 << 20;
/// Least credit in addition to the longest message: what is released without a receipt must not stop that message.
pub(super) const SPARE_CREDIT: usize = 64 << 10;

/// Every message must consume enough credit for its overhead in memory.
const _: () = assert!(MESSAGE_COST as usize >= MESSAGE_OVERHEAD);

/// Receive state.
#[derive(Debug)]
pub(super) struct Incoming {
    max_message: usize,
    /// Credit of the peer when the application has taken all.
    window: u64,
    partial: Partial,
    inbox: Inbox,
    /// Cost of the data received.
    credit_used: u64,
    /// Cost of the messages that the application received.
    credit_released: u64,
    /// Number of messages received completely, plus one for the end mark.
    units: u64,
    bytes: u64,
    /// The last receipt sent.
    last_receipt: Receipt,
    receipt_due: bool,
    /// The end mark was received.
    has_end: bool,
    messages: u64,
    message_bytes: u64,
}

impl Incoming {
    pub(super) fn new(config: &TransportConfig) -> Self {
        let window = window(config) as u64;
        Self {
            max_message: max_message(config),
            window,
            partial: Partial::default(),
            inbox: Inbox::default(),
            credit_used: 0,
            credit_released: 0,
            units: 0,
            bytes: 0,
            last_receipt: Receipt { credit: window, ..Receipt::default() },
            receipt_due: false,
            has_end: false,
            messages: 0,
            message_bytes: 0,
        }
    }

    /// Longest message accepted, in bytes.
    pub(super) fn max_message(&self) -> usize {
        self.max_message
    }

    /// Credit of the peer when the application has taken all; the initial credit.
    pub(super) fn window(&self) -> u64 {
        self.window
    }

    #[cfg(test)]
    pub(super) fn set_window(&mut self, window: u64) {
        self.window = window;
        self.last_receipt.credit = window;
    }

    /// Takes bytes of a message, after which `left` others follow in the same frame. Returns whether
    /// the message is complete.
    ///
    /// # Errors
    ///
    /// The rule that the peer broke.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn on_content(
        &mut self,
        content: &[u8],
        left: usize,
        is_last: bool,
    ) -> Result<bool, &'static str> {
        let cost = cost(content.len(), is_last);
        self.credit_used = self.credit_used.saturating_add(cost);
        if self.credit_used > self.last_receipt.credit {
            return Err("more data than the credit allows");
        }
        if self.partial.len().saturating_add(content.len()) > self.max_message {
            return Err("message longer than accepted");
        }
        self.bytes = self.bytes.saturating_add(content.len() as u64);
        let message = match (is_last, self.partial.is_empty()) {
            (true, true) => Bytes::copy_from_slice(content),
            (_, _) => {
                self.partial.push(content, left);
                if !is_last {
                    return Ok(false);
                }
                self.partial.take()
            }
        };
        self.units = self.units.saturating_add(1);
        self.message_bytes = self.message_bytes.saturating_add(message.len() as u64);
        self.inbox.push(message);
        Ok(true)
    }

    /// Takes the end mark.
    ///
    /// # Errors
    ///
    /// The rule that the peer broke.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn on_end(&mut self) -> Result<(), &'static str> {
        if !self.partial.is_empty() {
            return Err("end mark within a message");
        }
        self.has_end = true;
        self.units = self.units.saturating_add(1);
        Ok(())
    }

    /// Whether the end mark was received.
    pub(super) fn has_end(&self) -> bool {
        self.has_end
    }

    /// Whether the end mark was received and the application has taken every message.
    pub(super) fn is_finished(&self) -> bool {
        self.has_end && self.inbox.is_empty()
    }

    /// The next message in order.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let message = self.inbox.pop()?;
        self.messages += 1;
        self.credit_released += cost(message.len(), true);
        let unreported = self.credit_released + self.window - self.last_receipt.credit;
        let left = self.last_receipt.credit.saturating_sub(self.credit_used);
        // Send credit in a frame of its own once it is a quarter of the window, or as soon as the peer may take it for
        // progress if it has little left: it may wait in the middle of a message.
        if unreported >= self.window / 4
            || unreported >= frame_budget::LONG as u64 && left < self.window / 4
        {
            self.receipt_due = true;
        }
        Some(message)
    }

    /// Whether part of a message has arrived that no receipt covers. A receipt that is already
    /// scheduled needs no timer.
    pub(super) fn has_unreported(&self) -> bool {
        self.last_receipt.bytes != self.bytes && !self.receipt_due
    }

    /// Schedules a receipt.
    pub(super) fn schedule_receipt(&mut self) {
        self.receipt_due = true;
    }

    /// The receipt to send, if one is due.
    pub(super) fn take_receipt(&mut self) -> Option<Receipt> {
        let last_receipt = self.last_receipt;
        let is_due = core::mem::take(&mut self.receipt_due)
            || self.units != last_receipt.units
            || self.bytes - last_receipt.bytes >= RECEIPT_INTERVAL;
        is_due.then(|| {
            let credit = self.credit_released + self.window;
            self.last_receipt = Receipt { units: self.units, bytes: self.bytes, credit };
            self.last_receipt
        })
    }

    /// The connection has ended: frees what cannot become complete.
    pub(super) fn drop_partial(&mut self) {
        self.partial = Partial::default();
    }

    /// Bytes received that the application has not taken.
    pub(super) fn bytes_held(&self) -> usize {
        self.inbox.bytes_held() + self.partial.len()
    }

    /// Number of messages received completely, and their bytes.
    pub(super) fn received(&self) -> (u64, u64) {
        (self.messages, self.message_bytes)
    }
}

/// Credit of a peer. While a message is completed, its bytes are there twice: with them, all is within the receive
/// budget.
pub(super) fn window(config: &TransportConfig) -> usize {
    let longest = max_message(config);
    receive_budget(config).saturating_sub(longest).max(longest.saturating_add(SPARE_CREDIT))
}
