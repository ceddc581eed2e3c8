//! Buffers of outgoing packets: what did not fit the last burst, and what is too long for the path MTU.

use crate::wire::frame::Frame;
use crate::wire::short_header::{PacketKind, SHORT_OVERHEAD};

/// Longest header of a FRAGMENT frame in bytes.
const FRAGMENT_OVERHEAD: usize = 1 + 8 + 1 + 1 + 1;

/// Packets that are written but not sent.
#[derive(Debug, Default)]
pub(super) struct PacketBuffers {
    /// A sealed packet that did not fit the last burst; it is sent first next time.
    stash: Vec<u8>,
    /// The coded payload that is being sent.
    payload: Vec<u8>,
    /// Set if `payload` is too long for the path MTU and must be fragmented: its kind, and whether it
    /// is relayed.
    unsplit: Option<(PacketKind, bool)>,
    next_fragment_id: u64,
}

impl PacketBuffers {
    /// Frees unused memory.
    pub(super) fn trim(&mut self) {
        self.stash.shrink_to_fit();
        if self.unsplit.is_none() {
            self.payload = Vec::new();
        }
    }

    /// Copies the sealed packet that is kept to the empty `buffer`; returns its length, if there is one. The
    /// capacity of `buffer` bounds the burst, so it stays that of the caller.
    pub(super) fn take_stash(&mut self, buffer: &mut Vec<u8>) -> Option<usize> {
        if self.stash.is_empty() {
            return None;
        }
        buffer.extend_from_slice(&self.stash);
        self.stash.clear();
        Some(buffer.len())
    }

    /// Keeps the packet from `start` to the end of `buffer` for the next burst.
    pub(super) fn stash(&mut self, buffer: &mut Vec<u8>, start: usize) {
        self.stash.extend_from_slice(&buffer[start..]);
        buffer.truncate(start);
    }

    /// Whether a packet is kept that must be sent before any other.
    pub(super) fn is_occupied(&self) -> bool {
        !self.stash.is_empty() || self.unsplit.is_some()
    }

    /// The payload that is being sent.
    pub(super) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Where the next payload is written to.
    pub(super) fn payload_mut(&mut self) -> &mut Vec<u8> {
        &mut self.payload
    }

    /// Whether the payload is too long for this path MTU; then it is kept for fragmentation.
    pub(super) fn keep_if_long(&mut self, kind: (PacketKind, bool), path_mtu: u16) -> bool {
        let is_long = self.payload.len() + SHORT_OVERHEAD > usize::from(path_mtu);
        if is_long {
            self.unsplit = Some(kind);
        }
        is_long
    }

    /// Begins to fragment the payload that is kept, in equal parts.
    pub(super) fn split(&mut self, path_mtu: u16) -> Option<Fragments> {
        let (kind, relayed) = self.unsplit.take()?;
        let room = usize::from(path_mtu) - SHORT_OVERHEAD - FRAGMENT_OVERHEAD;
        let payload = core::mem::take(&mut self.payload);
        let count = payload.len().div_ceil(room).max(1);
        let id = self.next_fragment_id;
        self.next_fragment_id += 1;
        Some(Fragments { id, kind, relayed, count, payload })
    }

    /// Takes the buffer of a fragmented payload back.
    pub(super) fn end_split(&mut self, fragments: Fragments) {
        self.payload = fragments.payload;
    }
}

/// A payload in fragments.
#[derive(Debug)]
pub(super) struct Fragments {
    id: u64,
    kind: PacketKind,
    relayed: bool,
    count: usize,
    payload: Vec<u8>,
}

impl Fragments {
    /// The FRAGMENT frames in order.
    pub(super) fn frames(&self) -> impl Iterator<Item = Frame<'_>> {
        let part = self.payload.len().div_ceil(self.count).max(1);
        self.payload.chunks(part).enumerate().map(|(index, data)| Frame::Fragment {
            id: self.id,
            index: index as u64,
            kind: self.kind,
            relayed: self.relayed,
            last: index + 1 == self.count,
            data,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_payload_is_split_in_equal_parts() {
        let mut buffers = PacketBuffers::default();
        buffers.payload_mut().resize(2_500, 7);
        let kind = (PacketKind::Source, true);
        assert!(!buffers.keep_if_long(kind, 9_000) && buffers.split(1_200).is_none());
        for id in 0..2 {
            assert!(buffers.keep_if_long(kind, 1_200) && buffers.is_occupied());
            let fragments = buffers.split(1_200).unwrap();
            let frames: Vec<_> = fragments.frames().collect();
            let parts = frames.iter().map(|frame| match frame {
                Frame::Fragment { id, index, relayed: true, last, data, .. } => {
                    (*id, *index, *last, data.len())
                }
                _ => panic!("{frame:?}"),
            });
            let expected = [(id, 0, false, 834), (id, 1, false, 834), (id, 2, true, 832)];
            assert_eq!(parts.collect::<Vec<_>>(), expected);
            buffers.end_split(fragments);
            assert!(!buffers.is_occupied());
        }
    }

    #[test]
    fn packet_that_does_not_fit_a_burst_begins_the_next_one() {
        let mut buffers = PacketBuffers::default();
        let mut buffer = Vec::with_capacity(65_536);
        buffer.resize(100, 1);
        buffer.extend([2; 50]);
        buffers.stash(&mut buffer, 100);
        assert_eq!((buffer.len(), buffers.is_occupied()), (100, true));
        buffer.clear();
        assert_eq!(buffers.take_stash(&mut buffer), Some(50));
        assert_eq!(buffer, [2; 50]);
        // A smaller buffer would bound all further bursts of the caller.
        assert!(buffer.capacity() >= 65_536, "{}", buffer.capacity());
        assert!(!buffers.is_occupied() && buffers.take_stash(&mut buffer).is_none());
    }

    #[test]
    fn idle_link_keeps_only_what_is_still_to_be_sent() {
        let mut buffers = PacketBuffers::default();
        buffers.payload_mut().resize(2_500, 7);
        assert!(buffers.keep_if_long((PacketKind::Source, false), 1_200));
        buffers.trim();
        let fragments = buffers.split(1_200).unwrap();
        assert_eq!(fragments.frames().count(), 3);
        buffers.end_split(fragments);
        buffers.trim();
        assert_eq!(buffers.payload.capacity(), 0);
    }
}
