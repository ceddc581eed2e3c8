//! Hop-by-hop feedback about one flow: the rank that the next node has of each batch.
//!
//! ```text
//! destination (4 bytes), source (4), flow ID (4), space (0 S-batches, 1 R-batches),
//! mark, queued, room, first BID, number of batches, ranks ...
//! ```
//!
//! Integers are varints unless said otherwise. A byte of the ranks is 0 to 15: the rank of one
//! batch; or 128 + n: n + 1 batches of full rank.

use bats_code::BATCH_SIZE;

use super::flow::FlowKey;
use super::varint::{Reader, Writer};

/// Batches in one report at most.
pub const MAX_BATCHES: usize = 1_024;
const RUN: u8 = 0x80;
/// Room left in the packet for an acknowledgement.
const ROOM_FOR_ACK: usize = 400;
/// What the fields before the ranks take at most.
const FIELDS: usize = 12 + 1 + 3 * 8 + 4 + 2;

/// The two kinds of batches, whose BIDs have nothing to do with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    /// 16 consecutive symbols.
    Source = 0,
    /// Columns over a window.
    Repair = 1,
}

/// One report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRank {
    /// Which flow.
    pub key: FlowKey,
    /// Which kind of batches.
    pub space: Space,
    /// Largest packet number of the link that had arrived: packets sent later are not counted.
    pub mark: u64,
    /// Packets of the flow that wait here to be sent on.
    pub queued: u64,
    /// Further packets of the flow that find room here.
    pub room: u64,
    /// BID, low 24 bits, of the first batch. Nothing more is wanted of those before.
    pub first: u32,
    /// Ranks of this batch and those that follow, 0 to 16.
    pub ranks: Vec<u8>,
}

impl BatchRank {
    /// Writes the report without its frame type; batches that do not fit are left out.
    pub fn encode(&self, writer: &mut Writer<'_>) -> Option<()> {
        self.key.encode(writer)?;
        writer.u8(self.space as u8)?;
        writer.varint(self.mark)?;
        writer.varint(self.queued)?;
        writer.varint(self.room)?;
        writer.varint(u64::from(self.first & 0x00ff_ffff))?;
        let mut bytes = Vec::new();
        let reserved = if writer.remaining() > 2 * ROOM_FOR_ACK { ROOM_FOR_ACK } else { 0 };
        let room = writer.remaining().saturating_sub(reserved + 2);
        let count = runs(&self.ranks, room, &mut bytes);
        writer.varint(count as u64)?;
        writer.bytes(&bytes)
    }

    /// Bytes that suffice for the report.
    pub fn bound(&self) -> usize {
        FIELDS + 1 + self.ranks.len()
    }

    /// Reads what [`BatchRank::encode`] writes; `None` if it is malformed.
    pub fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let key = FlowKey::decode(reader)?;
        let space = match reader.u8()? {
            0 => Space::Source,
            1 => Space::Repair,
            _ => return None,
        };
        let [mark, queued, room] = [reader.varint()?, reader.varint()?, reader.varint()?];
        let first = u32::try_from(reader.varint()?).ok().filter(|&first| first < 1 << 24)?;
        let count = usize::try_from(reader.varint()?).ok().filter(|&n| n <= MAX_BATCHES)?;
        let mut ranks = Vec::new();
        while ranks.len() < count {
            match reader.u8()? {
                rank if usize::from(rank) < BATCH_SIZE => ranks.push(rank),
                run if run >= RUN => {
                    let len = ranks.len() + usize::from(run - RUN) + 1;
                    if len > count {
                        return None;
                    }
                    ranks.resize(len, BATCH_SIZE as u8);
                }
                _ => return None,
            }
        }
        Some(Self { key, space, mark, queued, room, first, ranks })
    }
}

/// Puts as many ranks as fit `room` bytes into `bytes`; returns how many.
fn runs(ranks: &[u8], room: usize, bytes: &mut Vec<u8>) -> usize {
    let mut done = 0;
    let mut groups = ranks[..ranks.len().min(MAX_BATCHES)]
        .chunk_by(|a, b| usize::from(*a) >= BATCH_SIZE && usize::from(*b) >= BATCH_SIZE);
    while bytes.len() < room
        && let Some(group) = groups.next()
    {
        if usize::from(group[0]) < BATCH_SIZE {
            bytes.push(group[0]);
            done += 1;
            continue;
        }
        for run in group.chunks(128) {
            if bytes.len() == room {
                break;
            }
            bytes.push(RUN + (run.len() - 1) as u8);
            done += run.len();
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::flow::NodeId;
    use crate::wire::varint::MAX_VARINT;

    fn report(ranks: Vec<u8>) -> BatchRank {
        let key = FlowKey { destination: NodeId(1), source: NodeId(2), flow: 3 };
        BatchRank { key, space: Space::Repair, mark: 9, queued: 8, room: 7, first: 6, ranks }
    }

    fn written(report: &BatchRank, room: usize) -> Vec<u8> {
        let mut bytes = vec![0; room];
        let mut writer = Writer::new(&mut bytes);
        report.encode(&mut writer).unwrap();
        let len = writer.written();
        bytes.truncate(len);
        bytes
    }

    proptest! {
        #[test]
        fn decoding_inverts_encoding(ranks in prop::collection::vec(0_u8..=16, 0..300)) {
            let report = report(ranks);
            let bytes = written(&report, 1_400);
            prop_assert!(bytes.len() <= report.bound());
            prop_assert_eq!(BatchRank::decode(&mut Reader::new(&bytes)), Some(report));
        }

        #[test]
        fn what_does_not_fit_is_left_out(ranks in prop::collection::vec(0_u8..=16, 0..300),
                                         room in 60_usize..300) {
            let report = report(ranks);
            let bytes = written(&report, room);
            let read = BatchRank::decode(&mut Reader::new(&bytes)).unwrap();
            prop_assert!(report.ranks.starts_with(&read.ranks));
        }

        /// One byte for each incomplete batch, one for up to 128 complete ones, as many as fit.
        #[test]
        fn ranks_are_cut_after_a_whole_byte(
            groups in prop::collection::vec((0_u8..=16, 1_usize..300), 0..12), room in 0_usize..300,
        ) {
            let ranks: Vec<u8> =
                groups.iter().flat_map(|&(rank, len)| core::iter::repeat_n(rank, len)).collect();
            let (mut expected, mut done, mut open) = (Vec::new(), 0, false);
            for &rank in ranks.iter().take(MAX_BATCHES) {
                let is_full = expected.len() == room;
                match expected.last_mut() {
                    Some(last) if open && rank == 16 && *last < u8::MAX => *last += 1,
                    _ if is_full => break,
                    _ => expected.push(if rank == 16 { RUN } else { rank }),
                }
                (done, open) = (done + 1, rank == 16);
            }
            let mut bytes = Vec::new();
            prop_assert_eq!(runs(&ranks, room, &mut bytes), done);
            prop_assert_eq!(bytes, expected);
        }

        #[test]
        fn garbage_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = BatchRank::decode(&mut Reader::new(&bytes));
        }
    }

    #[test]
    fn runs_of_complete_batches_are_short_and_bounded() {
        let report = report(vec![16; MAX_BATCHES]);
        let bytes = written(&report, 1_400);
        assert_eq!(bytes.len(), 12 + 1 + 3 + 1 + 2 + 8);
        assert_eq!(BatchRank::decode(&mut Reader::new(&bytes)), Some(report));
        let mut more = bytes.clone();
        // One batch more than allowed.
        more[17..19].copy_from_slice(&[0x44, 0x01]);
        more.push(0x80);
        assert_eq!(BatchRank::decode(&mut Reader::new(&more)), None);
        // A run beyond the number of batches, an impossible rank.
        for (last, ranks) in [(0x81, 1), (0x10, 1)] {
            let mut bytes = bytes[..17].to_vec();
            bytes.extend([ranks, last]);
            assert_eq!(BatchRank::decode(&mut Reader::new(&bytes)), None);
        }
    }

    /// The bound is that of the longest report, which fills it but for the type of the frame.
    #[test]
    fn the_bound_is_tight() {
        let long = BatchRank { first: 0xff_ffff, ..report(vec![3; 64]) };
        let long = BatchRank { mark: MAX_VARINT, queued: MAX_VARINT, room: MAX_VARINT, ..long };
        assert_eq!(written(&long, 200).len() + 1, long.bound());
    }

    /// An acknowledgement finds room behind the ranks of a packet of usual length.
    #[test]
    fn room_for_an_acknowledgement_is_left_where_there_is_much() {
        let report = report(vec![3; MAX_BATCHES]);
        // 17 bytes stand before the number of batches, which takes two.
        for (room, len) in [(817, 817), (818, 418), (1_400, 1_000)] {
            assert_eq!(written(&report, room).len(), len);
        }
    }

    #[test]
    fn fields_are_read_up_to_their_limits() {
        for (space, byte) in [(Space::Source, 0), (Space::Repair, 1)] {
            let report = BatchRank { space, first: 0xff_ffff, ..report(vec![2]) };
            let mut bytes = written(&report, 100);
            assert_eq!(bytes[12], byte);
            assert_eq!(BatchRank::decode(&mut Reader::new(&bytes)), Some(report));
            // The first BID takes four bytes: 2^24 is one too many.
            bytes[16..20].copy_from_slice(&[0x81, 0, 0, 0]);
            assert_eq!(BatchRank::decode(&mut Reader::new(&bytes)), None);
            bytes[12] = 2;
            assert_eq!(BatchRank::decode(&mut Reader::new(&bytes)), None);
        }
        // Only the low bits of a BID are written.
        let bytes = written(&BatchRank { first: 0x0100_0005, ..report(vec![]) }, 100);
        assert_eq!(bytes[16..], [5, 0]);
    }
}
