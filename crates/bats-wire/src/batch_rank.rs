//! Hop-by-hop feedback about one flow: the rank that the next node has of each batch.
//!
//! ```text
//! destination (4 bytes), source (4), flow ID (4), space (0 S-batches, 1 R-batches),
//! mark, room, first BID, number of batches, ranks ...
//! ```
//!
//! Integers are varints (RFC 9000, section 16) unless said otherwise. A rank byte of 0 to 15 is the
//! rank of one batch. A byte of 16 + 10 a + b, a and b from 0 to 9, stands for two batches of the ranks
//! 16 - a and 16 - b. A byte of 128 + n stands for n + 1 batches of full rank.

use super::coding::BATCH_SIZE;
use super::flow::FlowKey;
use super::varint::{Reader, Writer};

/// Maximum number of batches in one report, and that a node tracks of a kind: 65,536 packets, or 0.7 s at
/// 1 Gbit/s.
pub const MAX_BATCHES: usize = 4_096;
const FULL_RUN: u8 = 0x80;
const LONGEST_RUN: usize = 128;
/// Rank of a complete batch.
const FULL: u8 = BATCH_SIZE as u8;
/// First byte that stands for two batches.
const PAIRS: u8 = FULL;
/// Two batches share a byte if fewer packets than this are missing from each.
const PAIR_BASE: u8 = 10;
/// Room left in the packet for an acknowledgement.
const ROOM_FOR_ACK: usize = 400;
/// Maximum length in bytes of the fields before the ranks.
const MAX_FIELDS_LEN: usize = 12 + 1 + 2 * 8 + 4 + 2;

/// The two kinds of batches. Each has its own BID number space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    /// S-batches: 16 consecutive source symbols.
    Source = 0,
    /// R-batches: repair columns over a window.
    Repair = 1,
}

/// One report of batch ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRank {
    /// The flow that the report is about.
    pub key: FlowKey,
    /// The kind of batches.
    pub space: Space,
    /// Largest packet number received on the link. Packets sent later are not counted.
    pub mark: u64,
    /// Number of further packets of the flow that this node accepts.
    pub room: u64,
    /// Low 24 bits of the first BID. Earlier batches need no more packets.
    pub first: u32,
    /// Ranks of this batch and the following ones, 0 to 16.
    pub ranks: Vec<u8>,
}

impl BatchRank {
    /// Writes the report without its frame type. Omits batches that do not fit.
    pub fn encode(&self, writer: &mut Writer<'_>) -> Option<()> {
        self.key.encode(writer)?;
        writer.u8(self.space as u8)?;
        writer.varint(self.mark)?;
        writer.varint(self.room)?;
        writer.varint(u64::from(self.first & 0x00ff_ffff))?;
        let mut bytes = Vec::new();
        // Two bytes for the number of batches.
        let reserved = if writer.remaining() > 2 * ROOM_FOR_ACK { ROOM_FOR_ACK + 2 } else { 2 };
        let room = writer.remaining().saturating_sub(reserved);
        let ranks = self.ranks.get(..MAX_BATCHES).unwrap_or(&self.ranks);
        let count = encode_ranks(ranks, room, &mut bytes);
        writer.varint(count as u64)?;
        writer.bytes(&bytes)
    }

    /// Upper bound of the encoded length in bytes, frame type included.
    #[inline]
    pub fn bound(&self) -> usize {
        self.ranks.len().saturating_add(MAX_FIELDS_LEN + 1)
    }

    /// Reads a report written by [`BatchRank::encode`]. Returns `None` if it is malformed.
    pub fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let key = FlowKey::decode(reader)?;
        let space = match reader.u8()? {
            0 => Space::Source,
            1 => Space::Repair,
            _ => return None,
        };
        let [mark, room] = [reader.varint()?, reader.varint()?];
        let first = u32::try_from(reader.varint()?).ok().filter(|&first| first < 1 << 24)?;
        let count = usize::try_from(reader.varint()?).ok().filter(|&n| n <= MAX_BATCHES)?;
        let mut ranks = Vec::new();
        while ranks.len() < count {
            match reader.u8()? {
                rank if rank < FULL => ranks.push(rank),
                run if run >= FULL_RUN => {
                    let run = usize::from(run & !FULL_RUN).saturating_add(1);
                    if run > count.saturating_sub(ranks.len()) {
                        return None;
                    }
                    ranks.extend(core::iter::repeat_n(FULL, run));
                }
                pair => {
                    let pair = pair.checked_sub(PAIRS)?;
                    let (a, b) = (pair / PAIR_BASE, pair % PAIR_BASE);
                    if a >= PAIR_BASE || count.saturating_sub(ranks.len()) < 2 {
                        return None;
                    }
                    ranks.extend([a, b].map(missing));
                }
            }
        }
        Some(Self { key, space, mark, room, first, ranks })
    }
}

/// Encodes as many ranks as fit into `room` bytes. Returns how many.
fn encode_ranks(ranks: &[u8], room: usize, bytes: &mut Vec<u8>) -> usize {
    let mut rest = ranks;
    while bytes.len() < room && !rest.is_empty() {
        let full = rest.iter().take(LONGEST_RUN).take_while(|&&rank| rank >= FULL).count();
        let (byte, len) = match rest {
            &[a, b, ..] if full < 2 && missing(a).max(missing(b)) < PAIR_BASE => {
                let pair = missing(a).saturating_mul(PAIR_BASE).saturating_add(missing(b));
                (PAIRS.saturating_add(pair), 2)
            }
            _ if full > 0 => (FULL_RUN | full.saturating_sub(1) as u8, full),
            &[rank, ..] => (rank, 1),
            [] => break,
        };
        bytes.push(byte);
        rest = rest.get(len..).unwrap_or_default();
    }
    ranks.len().saturating_sub(rest.len())
}

/// Number of packets that a batch of this rank lacks.
fn missing(rank: u8) -> u8 {
    FULL.saturating_sub(rank)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::flow::NodeId;
    use crate::varint::MAX_VARINT;

    fn report(ranks: Vec<u8>) -> BatchRank {
        let key = FlowKey { destination: NodeId(1), source: NodeId(2), flow: 3 };
        BatchRank { key, space: Space::Repair, mark: 9, room: 7, first: 6, ranks }
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
        fn batches_that_do_not_fit_are_omitted(ranks in prop::collection::vec(0_u8..=16, 0..300),
                                         room in 60_usize..300) {
            let report = report(ranks);
            let bytes = written(&report, room);
            let read = BatchRank::decode(&mut Reader::new(&bytes)).unwrap();
            prop_assert!(report.ranks.starts_with(&read.ranks));
        }

        /// A byte has two batches or a run of complete ones, unless many packets are missing. None is
        /// omitted while a byte is left.
        #[test]
        fn ranks_take_half_a_byte_each(
            groups in prop::collection::vec((7_u8..=16, 1_usize..300), 0..12), room in 0_usize..300,
        ) {
            let ranks: Vec<u8> =
                groups.iter().flat_map(|&(rank, len)| core::iter::repeat_n(rank, len)).collect();
            let mut bytes = Vec::new();
            let done = encode_ranks(&ranks, room, &mut bytes);
            prop_assert!(bytes.len() <= done.div_ceil(2));
            prop_assert!(done == ranks.len() || bytes.len() == room);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = BatchRank::decode(&mut Reader::new(&bytes));
        }
    }

    #[test]
    fn runs_of_full_batches_are_compressed_and_bounded() {
        let report = report(vec![16; MAX_BATCHES]);
        let bytes = written(&report, 1_400);
        assert_eq!(bytes.len(), 12 + 1 + 3 + 2 + MAX_BATCHES / 128);
        assert_eq!(BatchRank::decode(&mut Reader::new(&bytes)), Some(report));
        let mut more = bytes.clone();
        // One batch more than `MAX_BATCHES`.
        more[16..18].copy_from_slice(&[0x50, 0x01]);
        more.push(0x80);
        assert_eq!(BatchRank::decode(&mut Reader::new(&more)), None);
        // A run or pair longer than the number of batches, and bytes without meaning.
        for last in [0x81, 16, 25, 115, 116, 127] {
            let mut bytes = bytes[..16].to_vec();
            bytes.extend([1, last]);
            assert_eq!(BatchRank::decode(&mut Reader::new(&bytes)), None, "{last}");
        }
    }

    /// The bytes of section "Batch ranks" of docs/spec/relaying.md.
    #[test]
    fn each_byte_has_one_meaning() {
        for (ranks, expected) in [
            (&[0, 15][..], &[0, 15][..]),
            (&[7, 16], &[16 + 90]),
            (&[16, 7, 6], &[16 + 9, 6]),
            (&[7, 7, 16], &[115, 0x80]),
            (&[16, 16, 14], &[0x81, 14]),
        ] {
            let mut bytes = Vec::new();
            let done = encode_ranks(ranks, 9, &mut bytes);
            assert_eq!((done, &bytes[..]), (ranks.len(), expected), "{ranks:?}");
        }
    }

    /// The longest report fills the bound except for the frame type byte.
    #[test]
    fn length_bound_is_tight() {
        let long = BatchRank { first: 0xff_ffff, ..report(vec![3; 64]) };
        let long = BatchRank { mark: MAX_VARINT, room: MAX_VARINT, ..long };
        assert_eq!(written(&long, 200).len() + 1, long.bound());
    }

    /// In a packet of usual length an acknowledgement fits behind the ranks.
    #[test]
    fn large_packets_keep_room_for_an_acknowledgement() {
        let report = report(vec![3; MAX_BATCHES]);
        // 16 bytes precede the number of batches, which takes two.
        for (room, len) in [(816, 816), (817, 417), (1_400, 1_000)] {
            assert_eq!(written(&report, room).len(), len);
        }
    }

    #[test]
    fn fields_are_decoded_up_to_their_limits() {
        for (space, byte) in [(Space::Source, 0), (Space::Repair, 1)] {
            let report = BatchRank { space, first: 0xff_ffff, ..report(vec![2]) };
            let mut bytes = written(&report, 100);
            assert_eq!(bytes[12], byte);
            assert_eq!(BatchRank::decode(&mut Reader::new(&bytes)), Some(report));
            // The first BID takes four bytes; 2^24 is out of range.
            bytes[15..19].copy_from_slice(&[0x81, 0, 0, 0]);
            assert_eq!(BatchRank::decode(&mut Reader::new(&bytes)), None);
            bytes[12] = 2;
            assert_eq!(BatchRank::decode(&mut Reader::new(&bytes)), None);
        }
        // Only the low 24 bits of a BID are written.
        let bytes = written(&BatchRank { first: 0x0100_0005, ..report(vec![]) }, 100);
        assert_eq!(bytes[15..], [5, 0]);
    }
}
