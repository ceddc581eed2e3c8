//! What the sending side of a hop gives up: for lack of memory, because the next node does not take it, or because it
//! is too old.

use core::time::Duration;
use std::collections::BTreeMap;

use bats_types::Timestamp;

use super::Outbound;
use crate::config::RelayStats;
use crate::inbound::{MIN_BATCH_TIMEOUT, batch_timeout};
use crate::link_view::LinkView;

/// Round trips for which a branch of a group holds a packet: each allows one round of repairs, and at 10 % loss four
/// leave one packet in 10,000.
const LONGEST_HOLD_ROUND_TRIPS: u32 = 4;

/// Time for which a branch of a group holds a packet.
fn longest_hold(view: &LinkView) -> Duration {
    (view.smoothed_rtt * LONGEST_HOLD_ROUND_TRIPS).max(MIN_BATCH_TIMEOUT)
}

impl Outbound {
    /// Frees packets until at most `limit` bytes are held: first sent packets, oldest batch first,
    /// then unsent ones.
    pub(crate) fn shed(&mut self, limit: usize, stats: &mut RelayStats) {
        if self.bytes <= limit {
            return;
        }
        let mut unsent = 0;
        for sent_only in [true, false] {
            let firsts = if sent_only { &mut self.first_sent } else { &mut self.first_held };
            for (batches, first) in self.batches.iter_mut().zip(firsts) {
                // Those before it are not visited again for each packet.
                let start = core::mem::replace(first, u64::MAX);
                for (&id, batch) in batches.range_mut(start..) {
                    if self.bytes <= limit {
                        *first = id;
                        break;
                    }
                    if batch.rank() == 0 || sent_only && batch.is_unsent() {
                        continue;
                    }
                    if batch.is_unsent() {
                        stats.batches.dropped += 1;
                    } else {
                        stats.batches.unrepaired += 1;
                    }
                    unsent += batch.unsent();
                    self.bytes -= batch.give_up();
                }
            }
        }
        self.drop_forwards(unsent);
    }

    /// So many packets that were not sent yet were dropped.
    pub(super) fn drop_forwards(&mut self, count: usize) {
        if count > 0 {
            let batches = &self.batches;
            self.forwards.drop_packets(count, |space, id| {
                batches[space as usize].get(&id).map_or(0, |batch| batch.unsent())
            });
        }
    }

    /// A branch of a group holds packets for a limited time: gives up the batches that are older, oldest first,
    /// whether they were sent or not. So what it holds neither grows nor delays newer packets.
    pub(crate) fn drop_overdue(&mut self, now: Timestamp, stats: &mut RelayStats) {
        if !self.is_branch {
            return;
        }
        let longest = longest_hold(&self.view);
        let (mut unsent, mut next) = (0, None);
        for (batches, first) in self.batches.iter_mut().zip(&mut self.first_held) {
            let start = core::mem::replace(first, u64::MAX);
            for (&id, batch) in batches.range_mut(start..) {
                if batch.rank() == 0 {
                    continue;
                }
                if batch.added + longest > now {
                    *first = id;
                    next = Some(batch.added + longest).into_iter().chain(next).min();
                    break;
                }
                stats.batches.overdue += u64::from(batch.is_unsent() || batch.outstanding() > 0);
                unsent += batch.unsent();
                self.bytes -= batch.give_up();
            }
        }
        self.drop_forwards(unsent);
        if let Some(at) = next {
            self.arm(at);
        }
    }

    /// Whether packets that no report has counted are repaired. A branch of a group may lead to a node that takes
    /// nothing of the flow, and sends no reports of it.
    pub(super) fn may_repair(&self, now: Timestamp) -> bool {
        !self.is_branch
            || self.next_room.is_some() && self.reported_at + longest_hold(&self.view) > now
    }

    /// Gives up batches that have timed out.
    pub(super) fn expire(&mut self, now: Timestamp, stats: &mut RelayStats) {
        let batch_timeout = batch_timeout(&self.view);
        for batch in self.batches.iter_mut().flat_map(BTreeMap::values_mut) {
            if batch.rank() == 0 || batch.is_unsent() || batch.changed + batch_timeout > now {
                continue;
            }
            stats.batches.expired += u64::from(batch.outstanding() > 0);
            self.bytes -= batch.free();
            batch.freed_rank = batch.freed_rank.min(batch.reported);
        }
    }
}
