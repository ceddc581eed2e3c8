//! New packets that wait to be forwarded.

use std::collections::{BTreeMap, VecDeque};

use bats_types::Timestamp;
use bats_wire::batch_rank::Space;

use super::rate_limit::{FlowLimits, LimitGroup};

/// Entries of dropped packets that may stay in any case.
const MAX_DROPPED: usize = 64;

/// The batches of the packets of a group.
type Queue = (Option<LimitGroup>, VecDeque<(Space, u64)>);

/// The batches of the packets to forward, in order of arrival; a queue for each group of links whose rate
/// is limited, because those of one may have to wait while those of another may not.
#[derive(Debug, Default)]
pub(super) struct Forwards {
    /// The queue that is served next is the first. There is rarely more than one: a flow seldom arrives
    /// over several neighbours.
    queues: VecDeque<Queue>,
    /// Entries of packets that were dropped. They are skipped later, and removed when there are more of them
    /// than others.
    dropped: usize,
}

impl Forwards {
    pub(super) fn push(&mut self, group: Option<LimitGroup>, space: Space, batch: u64) {
        match self.queues.iter_mut().find(|(other, _)| *other == group) {
            Some((_, queue)) => queue.push_back((space, batch)),
            None => self.queues.push_back((group, VecDeque::from([(space, batch)]))),
        }
    }

    /// The next packet that the limits allow.
    pub(super) fn pop(
        &mut self,
        now: Timestamp,
        limits: FlowLimits<'_>,
    ) -> Option<(Option<LimitGroup>, Space, u64)> {
        let index = self
            .queues
            .iter()
            .position(|(group, queue)| !queue.is_empty() && limits.is_open(now, *group))?;
        let (group, mut queue) = self.queues.remove(index)?;
        let (space, batch) = queue.pop_front()?;
        if !queue.is_empty() {
            self.queues.push_back((group, queue));
        }
        Some((group, space, batch))
    }

    /// Packets that wait.
    pub(super) fn len(&self) -> usize {
        self.entries() - self.dropped
    }

    fn entries(&self) -> usize {
        self.queues.iter().map(|(_, queue)| queue.len()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the queue.
    pub(super) fn bytes(&self) -> usize {
        self.entries() * size_of::<(Space, u64)>()
    }

    /// The entry that [`Self::pop`] returned is that of a packet that was dropped.
    pub(super) fn skipped(&mut self) {
        self.dropped = self.dropped.saturating_sub(1);
    }

    /// Packets that wait were dropped. `waiting` returns how many of a batch are left.
    pub(super) fn drop_packets(&mut self, count: usize, waiting: impl Fn(Space, u64) -> usize) {
        self.dropped += count;
        if self.dropped <= self.len().max(MAX_DROPPED) {
            return;
        }
        let mut left = BTreeMap::new();
        for (_, queue) in &mut self.queues {
            queue.retain(|&(space, batch)| {
                let left =
                    left.entry((space as usize, batch)).or_insert_with(|| waiting(space, batch));
                let is_waiting = *left > 0;
                *left = left.saturating_sub(1);
                is_waiting
            });
            queue.shrink_to(2 * queue.len());
        }
        self.queues.retain(|(_, queue)| !queue.is_empty());
        self.dropped = 0;
    }

    /// Whether a packet may be forwarded now, as far as the limits are concerned.
    pub(super) fn is_sendable(&self, now: Timestamp, limits: FlowLimits<'_>) -> bool {
        self.queues.iter().any(|(group, _)| limits.is_open(now, *group))
    }

    /// The groups whose limits hold packets back.
    pub(super) fn held_by<'a>(
        &'a self,
        now: Timestamp,
        limits: FlowLimits<'a>,
    ) -> impl Iterator<Item = LimitGroup> + 'a {
        let groups = self.queues.iter().filter_map(|(group, _)| *group);
        groups.filter(move |group| !limits.is_open(now, Some(*group)))
    }
}
