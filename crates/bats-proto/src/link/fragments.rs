//! Fragments: coded packets that are larger than the path MTU are sent in parts.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::collections::VecDeque;

use crate::wire::short_header::PacketKind;

/// Packets under reassembly at once. Beyond it the oldest is dropped, and the code repairs it.
const MAX_PACKETS: usize = 32;
/// Parts of one packet: the largest symbol at the smallest path MTU.
const MAX_PARTS: u64 = 8;

#[derive(Debug)]
struct Partial {
    id: u64,
    /// Kind of the whole packet, and whether it is relayed.
    kind: (PacketKind, bool),
    parts: Vec<Option<Vec<u8>>>,
    total: Option<usize>,
    bytes: usize,
}

/// Reassembles FRAGMENT frames.
#[derive(Debug, Default)]
pub(super) struct FragmentAssembly {
    partials: VecDeque<Partial>,
    finished: Option<Vec<u8>>,
    dropped: u64,
}

impl FragmentAssembly {
    /// Frees unused memory.
    pub(super) fn trim(&mut self) {
        self.finished = None;
        self.partials.shrink_to_fit();
    }

    /// Incomplete packets dropped for newer ones.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes a part; returns the whole payload if it was the last one missing. Parts that
    /// contradict earlier ones are dropped.
    pub(super) fn insert(
        &mut self,
        id: u64,
        index: u64,
        kind: (PacketKind, bool),
        last: bool,
        data: &[u8],
        max_bytes: usize,
    ) -> Option<((PacketKind, bool), &mut Vec<u8>)> {
        if index >= MAX_PARTS || data.is_empty() {
            return None;
        }
        let index = index as usize;
        let end = index.saturating_add(1);
        if !self.partials.iter().any(|p| p.id == id) {
            if self.partials.len() == MAX_PACKETS {
                self.partials.pop_front();
                self.dropped = self.dropped.saturating_add(1);
            }
            self.partials.push_back(Partial { id, kind, parts: Vec::new(), total: None, bytes: 0 });
        }
        let at = self.partials.iter().position(|p| p.id == id)?;
        let partial = self.partials.get_mut(at)?;
        let beyond_end = partial.total.is_some_and(|total| index >= total);
        let ends_twice = last && (partial.total.is_some() || partial.parts.len() > end);
        if partial.kind != kind
            || beyond_end
            || ends_twice
            || partial.bytes.saturating_add(data.len()) > max_bytes
        {
            return None;
        }
        if partial.parts.len() < end {
            partial.parts.resize(end, None);
        }
        let part = partial.parts.get_mut(index)?;
        if part.is_some() {
            return None;
        }
        *part = Some(data.to_vec());
        partial.bytes = partial.bytes.saturating_add(data.len());
        if last {
            partial.total = Some(end);
        }
        if partial.total != Some(partial.parts.len()) || partial.parts.iter().any(Option::is_none) {
            return None;
        }
        let partial = self.partials.remove(at)?;
        let whole = partial.parts.into_iter().flatten().flatten().collect();
        Some((partial.kind, self.finished.insert(whole)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A packet as a model keeps it: its kind, its parts, and its number of parts if the last one has arrived.
    type Model = (PacketKind, BTreeMap<u64, Vec<u8>>, Option<u64>);

    /// The rules for a part, one after the other.
    fn model(
        packets: &mut BTreeMap<u64, Model>,
        (id, index, kind, last): (u64, u64, PacketKind, bool),
        data: &[u8],
        most: usize,
    ) -> Option<(PacketKind, Vec<u8>)> {
        if data.is_empty() || index >= MAX_PARTS {
            return None;
        }
        let (first_kind, parts, total) = packets.entry(id).or_insert((kind, BTreeMap::new(), None));
        let bytes: usize = parts.values().map(Vec::len).sum();
        let newest = parts.keys().last().copied();
        if *first_kind != kind
            || total.is_some_and(|total| index >= total)
            || last && (total.is_some() || newest.is_some_and(|newest| newest > index))
            || bytes + data.len() > most
            || parts.contains_key(&index)
        {
            return None;
        }
        parts.insert(index, data.to_vec());
        if last {
            *total = Some(index + 1);
        }
        if *total != Some(parts.len() as u64) {
            return None;
        }
        let (kind, parts, _) = packets.remove(&id)?;
        Some((kind, parts.into_values().flatten().collect()))
    }

    proptest! {
        /// Whatever arrives of some packets: contradictions, repetitions and parts that are too long.
        #[test]
        fn parts_agree_with_a_model(
            parts in prop::collection::vec(
                (0_u64..3, 0_u64..MAX_PARTS + 1, any::<bool>(), 0_u8..5, 0_usize..30),
                0..80,
            ),
        ) {
            const MOST: usize = 60;
            let mut assembly = FragmentAssembly::default();
            let mut packets = BTreeMap::new();
            for (id, index, last, kind, len) in parts {
                let kind = if kind == 0 { PacketKind::Repair } else { PacketKind::Source };
                // A few lengths, so that the limit is met exactly.
                let data = vec![index as u8; len / 5 * 5];
                let expected = model(&mut packets, (id, index, kind, last), &data, MOST);
                let found = assembly.insert(id, index, (kind, false), last, &data, MOST);
                let found = found.map(|((kind, _), whole)| (kind, whole.clone()));
                prop_assert_eq!(found, expected);
            }
        }
    }

    fn insert(
        assembly: &mut FragmentAssembly,
        id: u64,
        index: u64,
        last: bool,
        data: &[u8],
    ) -> Option<Vec<u8>> {
        assembly
            .insert(id, index, (PacketKind::Source, false), last, data, 100)
            .map(|(_, whole)| whole.clone())
    }

    #[test]
    fn parts_are_reassembled_once_in_any_order() {
        let mut assembly = FragmentAssembly::default();
        assert_eq!(insert(&mut assembly, 7, 1, true, b"world"), None);
        assert_eq!(insert(&mut assembly, 7, 1, true, b"world"), None);
        assert_eq!(insert(&mut assembly, 7, 0, false, b"hello "), Some(b"hello world".to_vec()));
    }

    #[test]
    fn oldest_packet_is_dropped_at_the_limit_and_parts_are_bounded() {
        let mut assembly = FragmentAssembly::default();
        (0..MAX_PACKETS as u64)
            .for_each(|id| assert_eq!(insert(&mut assembly, id, 0, false, b"a"), None));
        assert_eq!(assembly.dropped(), 0, "at the limit");
        assert_eq!(insert(&mut assembly, 0, 1, true, b"b"), Some(b"ab".to_vec()));
        assert_eq!(insert(&mut assembly, 100, 0, false, b"a"), None);
        assert_eq!(insert(&mut assembly, 101, 0, false, b"a"), None);
        assert_eq!(assembly.dropped(), 1, "beyond it");
        assert_eq!(insert(&mut assembly, 1, 1, true, b"b"), None, "its first part is gone");
        let parts = 0..MAX_PARTS;
        let mut whole = parts
            .map(|index| insert(&mut assembly, 200, index, index == MAX_PARTS - 1, &[index as u8]));
        assert_eq!(whole.nth(MAX_PARTS as usize - 1), Some(Some((0..MAX_PARTS as u8).collect())));
    }

    #[test]
    fn invalid_parts_are_dropped_and_memory_stays_bounded() {
        let mut assembly = FragmentAssembly::default();
        assert_eq!(insert(&mut assembly, 1, MAX_PARTS, true, b"x"), None);
        assert_eq!(insert(&mut assembly, 1, 0, false, &[0; 101]), None);
        for id in 0..1000 {
            insert(&mut assembly, id, 1, false, &[1; 50]);
        }
        assert!(assembly.partials.len() <= MAX_PACKETS);
        assert_eq!(insert(&mut assembly, 999, 0, true, b"ends before its later part"), None);
    }
}
