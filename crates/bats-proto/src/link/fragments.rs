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
    use super::*;

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
