//! A message of which some parts have arrived.

use std::collections::BTreeMap;

use bytes::Bytes;

/// Memory of a partial message in addition to its parts, by the allocator's count: its entry in a
/// tree with half-filled nodes, and the first node of its own tree.
pub(super) const PARTIAL_OVERHEAD: usize = 768;
/// Memory of a part in addition to its content: its entry in a tree with half-filled nodes, and
/// what the allocator adds.
pub(super) const PART_OVERHEAD: usize = 128;
/// Maximum number of gaps in a message. A gap is a missing symbol of the flow, and the flow repairs
/// only its newest 1,024 symbols. A message with more gaps cannot be completed any more.
const MAX_GAPS: usize = 2_048;

/// Result of inserting a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Insertion {
    /// Bytes are still missing.
    Incomplete,
    /// All bytes have arrived.
    Complete,
}

/// The parts of a message by offset. They do not overlap; adjacent ones may be separate.
#[derive(Debug)]
pub(super) struct Partial {
    length: usize,
    /// Position among all partial messages, by arrival of the first part.
    pub(super) arrival: u64,
    parts: BTreeMap<usize, Vec<u8>>,
    /// Parts that do not begin where the one before ends.
    gaps: usize,
    /// Bytes that have arrived.
    present: usize,
    /// Memory of the parts without overhead.
    capacity: usize,
    /// The message has too many gaps; its parts are dropped.
    is_abandoned: bool,
}

impl Partial {
    pub(super) fn new(length: usize, arrival: u64) -> Self {
        Self {
            length,
            arrival,
            parts: BTreeMap::new(),
            gaps: 0,
            present: 0,
            capacity: 0,
            is_abandoned: false,
        }
    }

    /// Announced length of the message.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Memory in bytes, overhead included.
    pub(super) fn cost(&self) -> usize {
        PARTIAL_OVERHEAD + self.parts.len() * PART_OVERHEAD + self.capacity
    }

    /// Inserts a part, which is within the message. Of bytes that arrive twice, the first copy is kept.
    pub(super) fn insert(&mut self, offset: usize, part: &[u8]) -> Insertion {
        let end = offset + part.len();
        let mut next = offset;
        while next < end && !self.is_abandoned {
            let before = self.parts.range(..=next).next_back();
            let before_end = before.map(|(start, bytes)| (*start, start + bytes.len()));
            if let Some((_, before_end)) = before_end.filter(|&(_, at)| at > next) {
                next = before_end.min(end);
                continue;
            }
            let following = self.parts.range(next + 1..).next().map(|(&start, _)| start);
            let until = following.map_or(end, |start| start.min(end));
            let fresh = &part[next - offset..until - offset];
            match before_end.filter(|&(_, at)| at == next) {
                Some((start, _)) => self.append(start, fresh),
                None => self.add(next, fresh),
            }
            // The part that follows is no longer behind a gap, if its gap is filled.
            self.gaps -= usize::from(following == Some(until));
            next = until;
        }
        if self.gaps > MAX_GAPS {
            *self = Self { is_abandoned: true, ..Self::new(self.length, self.arrival) };
        }
        match self.present == self.length {
            true => Insertion::Complete,
            false => Insertion::Incomplete,
        }
    }

    /// Adds bytes behind a gap, or at the start of the message.
    fn add(&mut self, at: usize, fresh: &[u8]) {
        self.gaps += 1;
        self.present += fresh.len();
        let bytes = fresh.to_vec();
        self.capacity += bytes.capacity();
        self.parts.insert(at, bytes);
    }

    /// Adds bytes to the end of the part that begins at `start`.
    fn append(&mut self, start: usize, fresh: &[u8]) {
        let Some(bytes) = self.parts.get_mut(&start) else { return };
        self.present += fresh.len();
        self.capacity -= bytes.capacity();
        let wanted = bytes.len() + fresh.len();
        if wanted > bytes.capacity() {
            // Double, but take no more than the message can need.
            let capacity = (wanted * 2).min(self.length - start);
            bytes.reserve_exact(capacity - bytes.len());
        }
        bytes.extend_from_slice(fresh);
        self.capacity += bytes.capacity();
    }

    /// The message, if it is complete.
    pub(super) fn into_message(mut self) -> Bytes {
        if self.parts.len() == 1
            && let Some((_, only)) = self.parts.pop_first()
        {
            return only.into();
        }
        let mut message = Vec::with_capacity(self.length);
        self.parts.values().for_each(|bytes| message.extend_from_slice(bytes));
        message.into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn content(range: core::ops::Range<usize>) -> Vec<u8> {
        range.map(|at| (at * 7 + at / 256) as u8).collect()
    }

    /// Gaps by definition: runs of present bytes that do not begin the message, plus one if the
    /// message begins with a part.
    fn naive_gaps(present: &[bool]) -> usize {
        let begins = |at: usize| present[at] && (at == 0 || !present[at - 1]);
        (0..present.len()).filter(|&at| begins(at)).count()
    }

    proptest! {
        /// Any parts in any order, overlapping or not.
        #[test]
        fn parts_in_any_order_give_the_message(
            length in 2_usize..300,
            parts in prop::collection::vec((0_usize..300, 1_usize..60), 1..80),
        ) {
            let mut partial = Partial::new(length, 0);
            let mut present = vec![false; length];
            for (offset, len) in parts {
                let offset = offset % length;
                let end = (offset + len).min(length);
                let insertion = partial.insert(offset, &content(offset..end));
                present[offset..end].fill(true);
                let all = present.iter().all(|&is_present| is_present);
                prop_assert_eq!(insertion == Insertion::Complete, all);
                prop_assert_eq!(partial.present, present.iter().filter(|&&p| p).count());
                prop_assert_eq!(partial.gaps, naive_gaps(&present));
                let capacity: usize = partial.parts.values().map(Vec::capacity).sum();
                prop_assert_eq!(partial.capacity, capacity);
                if all {
                    prop_assert_eq!(partial.into_message(), content(0..length));
                    return Ok(());
                }
            }
        }
    }

    #[test]
    fn message_with_too_many_gaps_is_abandoned_and_its_memory_is_freed() {
        let mut partial = Partial::new(1 << 20, 0);
        for part in 0..MAX_GAPS {
            partial.insert(part * 2, &[1]);
        }
        assert_eq!(partial.parts.len(), MAX_GAPS, "at the limit");
        partial.insert(MAX_GAPS * 2, &[1]);
        assert_eq!(partial.cost(), PARTIAL_OVERHEAD, "beyond it");
        for part in 0..MAX_GAPS {
            assert_eq!(partial.insert(part, &[1]), Insertion::Incomplete);
        }
        assert_eq!(partial.cost(), PARTIAL_OVERHEAD, "later parts take no memory");
    }

    #[test]
    fn announced_length_takes_no_memory() {
        let mut partial = Partial::new(64 << 20, 0);
        partial.insert(0, &[7; 1_000]);
        assert!(partial.cost() <= PARTIAL_OVERHEAD + PART_OVERHEAD + 2_000);
    }
}
