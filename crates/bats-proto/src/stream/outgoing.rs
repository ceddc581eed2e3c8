//! Messages for the peer: the send queue, the peer's credit and its receipts.

use std::collections::VecDeque;

use bytes::Bytes;

use super::frame::{self, Control, MAX_PART, Receipt, cost};
use super::frame_budget;
use crate::config::TransportConfig;
use crate::error::SendError;

/// Maximum number of queued bytes before a message is refused. The stream below has a window of its
/// own, so a longer queue would only add delay.
const MAX_SEND_QUEUE: u64 = 4 << 20;

/// What a receipt acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acknowledged {
    /// More than the receipt before, or credit in the large steps of a correct peer.
    pub(super) is_progress: bool,
    /// Everything that was sent, for the first time.
    pub(super) is_all: bool,
}

/// Send state.
#[derive(Debug)]
pub(super) struct Outgoing {
    send_budget: u64,
    queue: VecDeque<Bytes>,
    /// Cost of the queued messages, without the sent bytes of the first one.
    queued: u64,
    /// Bytes of the first message that were sent.
    offset: usize,
    /// Number of messages accepted, plus one for the end mark.
    units: u64,
    units_sent: u64,
    bytes_sent: u64,
    /// Credit used.
    credit_used: u64,
    is_finished: bool,
    finish_sent: bool,
    send_blocked: bool,
    /// The last receipt of the peer.
    receipt: Receipt,
    messages: u64,
    message_bytes: u64,
}

impl Outgoing {
    pub(super) fn new(config: &TransportConfig) -> Self {
        Self {
            send_budget: MAX_SEND_QUEUE.min(config.send_budget as u64),
            queue: VecDeque::new(),
            queued: 0,
            offset: 0,
            units: 0,
            units_sent: 0,
            bytes_sent: 0,
            credit_used: 0,
            is_finished: false,
            finish_sent: false,
            send_blocked: false,
            receipt: Receipt::default(),
            messages: 0,
            message_bytes: 0,
        }
    }

    /// Sets the initial credit.
    pub(super) fn set_credit(&mut self, credit: u64) {
        self.receipt.credit = credit;
    }

    /// Queues a message of at most `limit` bytes.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::send`](crate::Endpoint::send).
    pub(super) fn send(&mut self, message: Bytes, limit: usize) -> Result<(), SendError> {
        if self.is_finished {
            return Err(SendError::Finished);
        }
        if message.len() > limit {
            return Err(SendError::TooLarge { size: message.len(), limit });
        }
        let cost = cost(message.len(), true);
        if self.queued > 0 && self.queued + cost > self.send_budget {
            self.send_blocked = true;
            return Err(SendError::Blocked(message));
        }
        self.queued += cost;
        self.units += 1;
        self.messages += 1;
        self.message_bytes += message.len() as u64;
        self.queue.push_back(message);
        Ok(())
    }

    /// Marks the end: no messages will follow.
    ///
    /// # Errors
    ///
    /// Called before.
    pub(super) fn finish(&mut self) -> Result<(), SendError> {
        if self.is_finished {
            return Err(SendError::Finished);
        }
        self.is_finished = true;
        self.units += 1;
        Ok(())
    }

    /// Whether data or the end mark is unacknowledged.
    pub(super) fn has_outstanding(&self) -> bool {
        self.receipt.units < self.units
    }

    /// Drops unsent data.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.queued = 0;
    }

    /// Appends message frames and the end mark, as far as credit allows and until `out` holds `limit`
    /// bytes or slightly more.
    pub(super) fn transmit(&mut self, out: &mut Vec<u8>, limit: usize) {
        while out.len() < limit
            && let Some(message) = self.queue.front()
        {
            let left = message.len() - self.offset;
            let credit = self.receipt.credit.saturating_sub(self.credit_used);
            let is_last = left <= MAX_PART && cost(left, true) <= credit;
            let len = if is_last {
                left
            } else {
                left.min(MAX_PART).min(usize::try_from(credit).unwrap_or(usize::MAX))
            };
            if len == 0 && !is_last {
                break;
            }
            frame::put_part(out, &message[self.offset..self.offset + len], is_last);
            let cost = cost(len, is_last);
            self.credit_used += cost;
            self.queued -= cost;
            self.bytes_sent += len as u64;
            self.offset += len;
            if is_last {
                self.queue.pop_front();
                self.offset = 0;
                self.units_sent += 1;
            }
        }
        if self.queue.is_empty() && self.is_finished && !self.finish_sent {
            self.finish_sent = true;
            self.units_sent += 1;
            Control::Finish.encode(out);
        }
    }

    /// Whether messages are accepted again after one was refused. True only once for each refusal.
    pub(super) fn take_writable(&mut self) -> bool {
        let is_writable = self.send_blocked && self.queued <= self.send_budget / 4 * 3;
        self.send_blocked &= !is_writable;
        is_writable
    }

    /// Takes a receipt.
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
    pub(super) fn on_receipt(&mut self, receipt: Receipt) -> Result<Acknowledged, &'static str> {
        let before = self.receipt;
        if receipt.units > self.units_sent || receipt.bytes > self.bytes_sent {
            return Err("receipt for data that was not sent");
        }
        if receipt.units < before.units
            || receipt.bytes < before.bytes
            || receipt.credit < before.credit
        {
            return Err("receipt that decreases a total");
        }
        self.receipt = receipt;
        // A correct peer sends credit alone in large steps.
        let credit = receipt.credit.saturating_sub(before.credit);
        let is_progress = (receipt.units, receipt.bytes) != (before.units, before.bytes)
            || credit >= frame_budget::LONG as u64;
        let is_all = receipt.units == self.units && receipt.units > before.units;
        Ok(Acknowledged { is_progress, is_all })
    }

    /// Cost of the queued messages, without the sent bytes of the first one.
    #[cfg(test)]
    pub(super) fn queued(&self) -> u64 {
        self.queued
    }

    /// Whether a message was sent in part.
    #[cfg(test)]
    pub(super) fn is_within_message(&self) -> bool {
        self.offset > 0
    }

    /// Bytes queued, or sent and not acknowledged.
    pub(super) fn bytes_held(&self) -> u64 {
        self.queued + self.bytes_sent.saturating_sub(self.receipt.bytes)
    }

    /// Number of messages accepted, and their bytes.
    pub(super) fn accepted(&self) -> (u64, u64) {
        (self.messages, self.message_bytes)
    }
}
