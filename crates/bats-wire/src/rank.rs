//! Rank feedback of a flow: the receiver reports how much is missing, not which packets.
//!
//! ```text
//! decoded_below, seen_end - decoded_below, repair_seen, coded, wasted, count,
//! { first - previous end, span, missing rank } ...
//! ```
//!
//! All are variable-length integers. `repair_seen` is 0, or one more than the sequence number of
//! the newest repair received (its batch times 16 plus its column). From it the sender knows which
//! repairs the report does not count.

use super::varint::{MAX_VARINT, Reader, Writer, varint_len};

/// Maximum number of entries in one report. On a long fast path every generation of several round
/// trips may lack rank; further entries wait for the next report.
pub const MAX_RANK_ENTRIES: usize = 255;
/// Room left in the packet for an acknowledgement.
const ROOM_FOR_ACK: usize = 400;

/// A missing range: symbols that the receiver has not decoded and that depend on each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankEntry {
    /// First missing symbol.
    pub first: u64,
    /// Number of symbols from the first to the last missing one.
    pub span: u64,
    /// Number of innovative packets needed.
    pub missing: u64,
}

/// One feedback report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankFeedback {
    /// All symbols below this number are decoded.
    pub decoded_below: u64,
    /// One more than the newest symbol that arrived.
    pub seen_end: u64,
    /// Sequence number of the newest repair that arrived.
    pub repair_seen: Option<u64>,
    /// Coded packets received so far.
    pub coded: u64,
    /// Number of these that were not innovative.
    pub wasted: u64,
    /// Missing ranges, ordered by `first`.
    pub entries: Vec<RankEntry>,
}

impl RankFeedback {
    /// Writes the report without its frame type. Omits entries that do not fit.
    pub fn encode(&self, writer: &mut Writer<'_>) -> Option<()> {
        writer.varint(self.decoded_below)?;
        writer.varint(self.seen_end.saturating_sub(self.decoded_below))?;
        writer.varint(self.repair_seen.map_or(0, |repair| repair.saturating_add(1)))?;
        writer.varint(self.coded)?;
        writer.varint(self.wasted)?;
        let entries_that_fit = self.entries_that_fit(writer.remaining().saturating_sub(2));
        writer.varint(entries_that_fit.len() as u64)?;
        let mut end = self.decoded_below;
        for entry in entries_that_fit {
            writer.varint(entry.first.checked_sub(end)?)?;
            writer.varint(entry.span)?;
            writer.varint(entry.missing)?;
            end = entry.first;
        }
        Some(())
    }

    /// The entries that fit into `room` bytes. If `room` is large enough, leaves space for an
    /// acknowledgement.
    fn entries_that_fit(&self, room: usize) -> &[RankEntry] {
        let reserved = if room > 2 * ROOM_FOR_ACK { ROOM_FOR_ACK } else { 0 };
        let mut room = room.saturating_sub(reserved);
        let mut end = self.decoded_below;
        let mut count = 0_usize;
        for entry in self.entries.iter().take(MAX_RANK_ENTRIES) {
            let gap = entry.first.saturating_sub(end);
            let left = [gap, entry.span, entry.missing]
                .into_iter()
                .try_fold(room, |room, field| room.checked_sub(varint_len(field)));
            let Some(left) = left else { break };
            (room, end, count) = (left, entry.first, count.saturating_add(1));
        }
        self.entries.get(..count).unwrap_or_default()
    }

    /// Reads a report. Returns `None` if it is truncated or inconsistent.
    pub fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let (mut feedback, count) = Self::decode_head(reader)?;
        // At most [`MAX_RANK_ENTRIES`].
        feedback.entries.reserve_exact(count);
        let mut end = feedback.decoded_below;
        for _ in 0..count {
            // None of these additions overflows: a variable-length integer is below 2^62.
            let first = end.saturating_add(reader.varint()?);
            let span = reader.varint()?;
            let missing = reader.varint()?;
            if span == 0 || missing == 0 || first.saturating_add(span) > MAX_VARINT {
                return None;
            }
            feedback.entries.push(RankEntry { first, span, missing });
            end = first;
        }
        Some(feedback)
    }

    /// Reads a report without its entries, which it skips: they may be inconsistent. Returns `None`
    /// if the report is truncated, or if its other fields are inconsistent.
    pub fn decode_without_entries(reader: &mut Reader<'_>) -> Option<Self> {
        let (feedback, count) = Self::decode_head(reader)?;
        reader.skip_varints(count.saturating_mul(3))?;
        Some(feedback)
    }

    /// Everything before the entries, and their number.
    fn decode_head(reader: &mut Reader<'_>) -> Option<(Self, usize)> {
        let decoded_below = reader.varint()?;
        let seen_end = decoded_below.checked_add(reader.varint()?)?;
        let repair_seen = reader.varint()?.checked_sub(1);
        let coded = reader.varint()?;
        let wasted = reader.varint()?;
        let count = usize::try_from(reader.varint()?).ok()?;
        if count > MAX_RANK_ENTRIES || wasted > coded || seen_end > MAX_VARINT {
            return None;
        }
        let entries = Vec::new();
        Some((Self { decoded_below, seen_end, repair_seen, coded, wasted, entries }, count))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn decoding_inverts_encoding(
            below in 0_u64..1 << 30, ahead in 0_u64..1 << 20, repair in prop::option::of(0_u64..1 << 28),
            gaps in prop::collection::vec((0_u64..1000, 1_u64..256), 0..60),
        ) {
            let mut end = below;
            let entries = gaps.iter().map(|&(gap, span)| {
                end += gap;
                RankEntry { first: end, span, missing: 1 + span / 3 }
            }).collect();
            let feedback = RankFeedback {
                decoded_below: below, seen_end: below + ahead, repair_seen: repair,
                coded: 99, wasted: 3, entries,
            };
            let mut buffer = [0; 1400];
            let mut writer = Writer::new(&mut buffer);
            feedback.encode(&mut writer).unwrap();
            let written = writer.written();
            prop_assert_eq!(RankFeedback::decode(&mut Reader::new(&buffer[..written])), Some(feedback));
        }

        #[test]
        fn arbitrary_bytes_are_rejected_or_bounded(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(feedback) = RankFeedback::decode(&mut Reader::new(&bytes)) {
                prop_assert!(feedback.entries.len() <= MAX_RANK_ENTRIES);
                prop_assert!(feedback.seen_end >= feedback.decoded_below);
            }
        }
    }

    fn written(feedback: &RankFeedback, room: usize) -> Vec<u8> {
        let mut bytes = vec![0; room];
        let mut writer = Writer::new(&mut bytes);
        feedback.encode(&mut writer).unwrap();
        let len = writer.written();
        bytes.truncate(len);
        bytes
    }

    /// Five bytes precede the number of entries, which takes two; each entry takes six.
    #[test]
    fn entries_fill_the_packet_except_room_for_an_acknowledgement() {
        let entries = (1..=MAX_RANK_ENTRIES as u64 + 1)
            .map(|number| RankEntry { first: 100 * number, span: 64, missing: 64 })
            .collect();
        let feedback = RankFeedback { entries, ..RankFeedback::default() };
        for (room, entries) in [
            (7 + 6, 1),
            (7 + 11, 1),
            (7 + 12, 2),
            (7 + 797, 132),
            (7 + 800, 133),
            (7 + 801, 66),
            (2_000, MAX_RANK_ENTRIES),
        ] {
            let bytes = written(&feedback, room);
            let read = RankFeedback::decode(&mut Reader::new(&bytes)).unwrap();
            assert_eq!(read.entries, feedback.entries[..entries], "{room}");
        }
    }

    #[test]
    fn inconsistent_feedback_is_rejected() {
        let read = |fields: &[u64]| {
            let mut bytes = [0; 100];
            let mut writer = Writer::new(&mut bytes);
            fields.iter().for_each(|&field| writer.varint(field).unwrap());
            let len = writer.written();
            RankFeedback::decode(&mut Reader::new(&bytes[..len]))
        };
        let feedback = read(&[7, 3, 0, 5, 5, 1, 2, 4, 1]).unwrap();
        let entries = vec![RankEntry { first: 9, span: 4, missing: 1 }];
        let expected = RankFeedback {
            decoded_below: 7,
            seen_end: 10,
            repair_seen: None,
            coded: 5,
            wasted: 5,
            entries,
        };
        assert_eq!(feedback, expected);
        assert_eq!(read(&[7, 3, 1, 5, 4, 0]).unwrap().repair_seen, Some(0));
        assert_eq!(read(&[7, 3, 0, 5, 6, 0]), None, "more wasted than received");
        assert_eq!(read(&[7, 3, 0, 5, 5, 1, 2, 0, 1]), None, "an entry without symbols");
        assert_eq!(read(&[7, 3, 0, 5, 5, 1, 2, 4, 0]), None, "an entry without missing rank");
        assert_eq!(read(&[7, 3, 0, 5, 5, 1, 2, 4]), None, "truncated");
        // Symbol numbers must fit a variable-length integer.
        assert!(read(&[MAX_VARINT, 0, 0, 0, 0, 0]).is_some());
        assert_eq!(read(&[MAX_VARINT, 1, 0, 0, 0, 0]), None);
        assert!(read(&[MAX_VARINT - 3, 0, 0, 0, 0, 1, 1, 2, 1]).is_some());
        assert_eq!(read(&[MAX_VARINT - 3, 0, 0, 0, 0, 1, 1, 3, 1]), None);
    }

    #[test]
    fn skipped_entries_are_counted_and_must_be_there() {
        let entries = (1..=100).map(|n| RankEntry { first: 70 * n, span: n, missing: 1 }).collect();
        let feedback =
            RankFeedback { decoded_below: 5, seen_end: 9_000, entries, ..RankFeedback::default() };
        let mut bytes = written(&feedback, 2_000);
        let len = bytes.len();
        bytes.push(0xee);
        let mut reader = Reader::new(&bytes);
        let head = RankFeedback { entries: Vec::new(), ..feedback };
        assert_eq!(RankFeedback::decode_without_entries(&mut reader), Some(head));
        assert_eq!(reader.rest(), [0xee]);
        let truncated = &mut Reader::new(&bytes[..len - 1]);
        assert_eq!(RankFeedback::decode_without_entries(truncated), None);
        let wasted = &mut Reader::new(&[7, 3, 0, 5, 6, 0]);
        assert_eq!(RankFeedback::decode_without_entries(wasted), None);
    }

    #[test]
    fn entries_are_limited() {
        for (count, is_read) in [(MAX_RANK_ENTRIES, true), (MAX_RANK_ENTRIES + 1, false)] {
            let mut bytes = vec![0, 0, 0, 0, 0, 0x40 | (count >> 8) as u8, count as u8];
            bytes.resize(7 + 3 * count, 1);
            assert_eq!(RankFeedback::decode(&mut Reader::new(&bytes)).is_some(), is_read);
        }
    }
}
