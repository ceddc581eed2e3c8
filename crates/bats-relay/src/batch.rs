//! What a relay holds of one batch, and what it knows of the rank that the next node has.

use core::time::Duration;
use std::collections::VecDeque;

use bats_code::recode::Recoder;
use bats_code::rows::{ALIGNMENT, padded_length};
use bats_types::Timestamp;

use super::coding::Coded;
use super::rate_limit::LimitGroup;

/// A batch is closed if none of its packets arrived for this long. Then its losses may be repaired.
pub(super) const CLOSE_AFTER: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Batch {
    pub(super) window: (u32, u16),
    pub(super) hop_limit: u8,
    pub(super) limit: Option<LimitGroup>,
    /// Packets held; `None` once the next node has them.
    pub(super) recoder: Option<Recoder>,
    pub(super) row_bytes: usize,
    /// Rank sent by packets that are no longer held.
    pub(super) freed_rank: usize,
    /// Number of packets of the recoder that were sent.
    pub(super) sent_rows: usize,
    /// Rank that the next node reported.
    pub(super) reported: usize,
    /// Packet number and send time of packets that no report has counted yet.
    pub(super) in_flight: VecDeque<(u64, Timestamp)>,
    /// Number of recoded packets to send before new data.
    pub(super) recoded_due: usize,
    pub(super) is_queued: bool,
    pub(super) recoded: u16,
    /// Number of recoded packets sent since the last packet was forwarded: they protect it.
    pub(super) covered: usize,
    pub(super) closed: bool,
    /// Without reports: whether the number of recoded packets that follow the batch is decided.
    pub(super) is_decided: bool,
    /// When the batch last made progress.
    pub(super) changed: Timestamp,
    /// When a packet was last added.
    pub(super) added: Timestamp,
}

impl Batch {
    /// A batch of which `coded` is the first packet.
    pub(super) fn new(now: Timestamp, coded: &Coded<'_>) -> Self {
        Self {
            window: coded.window,
            hop_limit: coded.hop_limit,
            limit: coded.limit,
            recoder: None,
            row_bytes: 0,
            freed_rank: 0,
            sent_rows: 0,
            reported: 0,
            in_flight: VecDeque::new(),
            recoded_due: 0,
            is_queued: false,
            recoded: 0,
            covered: 0,
            closed: false,
            is_decided: false,
            changed: now,
            added: now,
        }
    }

    pub(super) fn rank(&self) -> usize {
        self.recoder.as_ref().map_or(0, Recoder::rank)
    }

    /// Rank that was sent and that the next node has not reported.
    pub(super) fn outstanding(&self) -> usize {
        (self.freed_rank + self.sent_rows).saturating_sub(self.reported)
    }

    /// Packets that were not sent yet.
    pub(super) fn unsent(&self) -> usize {
        self.rank().saturating_sub(self.sent_rows)
    }

    pub(super) fn is_unsent(&self) -> bool {
        self.unsent() > 0
    }

    pub(super) fn is_closed(&self, now: Timestamp, newest: bool) -> bool {
        self.closed || !newest || self.changed + CLOSE_AFTER <= now
    }

    /// Frees the packets. The rank sent so far stays recorded. Returns the number of bytes freed.
    pub(super) fn free(&mut self) -> usize {
        self.freed_rank += self.rank();
        self.sent_rows = 0;
        self.recoded_due = 0;
        self.is_decided = false;
        self.recoder = None;
        core::mem::take(&mut self.row_bytes)
    }

    /// Frees the packets, and neither sends nor repairs them any more. Returns the number of bytes freed.
    pub(super) fn give_up(&mut self) -> usize {
        // Unsent packets must not count as sent.
        self.freed_rank = self.freed_rank.saturating_sub(self.unsent());
        let freed = self.free();
        self.freed_rank = self.freed_rank.min(self.reported);
        freed
    }

    /// Updates the number of recoded packets due. Returns whether to queue the batch for them.
    pub(super) fn update_recoded_due(&mut self) -> bool {
        let missing = self.outstanding().saturating_sub(self.in_flight.len());
        self.recoded_due = missing.min(self.rank());
        let queue = self.recoded_due > 0 && !self.is_queued;
        self.is_queued |= queue;
        queue
    }
}

/// Memory of a row in bytes.
pub(super) fn row_bytes(len: usize) -> usize {
    padded_length(len) + 2 * ALIGNMENT
}
