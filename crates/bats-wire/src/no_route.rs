//! NO_ROUTE: a relay reports to the source of an end-to-end packet that no route leads to its destination.
//!
//! It is a packet of the relay to the source, with the flow ID of the dropped packet in its flow header:
//! a long header of a version of its own without connection IDs, the destination that has no route,
//! and the first bytes of the dropped packet. It is not authenticated; the bytes show, as those in an
//! ICMP error do, that the sender has seen a packet of the session (RFC 5927).

use super::flow::NodeId;
use super::varint::{Reader, Writer};

/// In the place of a version.
const VERSION: u32 = 0xba75_ff01;
/// Long header, fixed bit.
const FIRST: u8 = 0xc0;
/// Bytes of the dropped packet that are quoted. Its connection IDs are among them.
pub const QUOTED_LEN: usize = 32;
/// First byte, version, two lengths of connection IDs, destination.
const FIXED_LEN: usize = 1 + 4 + 2 + 4;

/// The fields of a NO_ROUTE packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoute<'a> {
    /// The node to which there is no route.
    pub destination: NodeId,
    /// First bytes of the dropped packet, at most [`QUOTED_LEN`].
    pub quoted: &'a [u8],
}

impl<'a> NoRoute<'a> {
    /// Writes the packet; of the quoted bytes at most [`QUOTED_LEN`].
    pub fn encode(&self) -> Vec<u8> {
        let quoted = self.quoted.get(..QUOTED_LEN).unwrap_or(self.quoted);
        let mut packet = vec![0; FIXED_LEN];
        let mut writer = Writer::new(&mut packet);
        // The buffer has room for all of them.
        let _ = writer.bytes(&[FIRST]);
        let _ = writer.u32(VERSION);
        let _ = writer.bytes(&[0, 0]);
        let _ = writer.u32(self.destination.0);
        packet.extend_from_slice(quoted);
        packet
    }

    /// Reads an end-to-end packet; `None` if it is another one.
    pub fn decode(packet: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(packet);
        let is_long = reader.u8()? & FIRST == FIRST;
        let is_no_route = is_long && reader.u32()? == VERSION && reader.array()? == [0, 0];
        let destination = NodeId(reader.u32()?);
        let quoted = reader.rest();
        (is_no_route && quoted.len() <= QUOTED_LEN).then_some(Self { destination, quoted })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{long_header, short_header};

    #[test]
    fn golden_bytes() {
        let hint = NoRoute { destination: NodeId(0x0102_0304), quoted: &[9; 3] };
        let bytes = [0xc0, 0xba, 0x75, 0xff, 1, 0, 0, 1, 2, 3, 4, 9, 9, 9];
        assert_eq!(hint.encode(), bytes);
        assert_eq!(NoRoute::decode(&bytes), Some(hint));
        for len in 0..FIXED_LEN {
            assert_eq!(NoRoute::decode(&bytes[..len]), None);
        }
        for (at, bit) in (0..7).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut other = bytes;
            other[at] ^= 1 << bit;
            // The low bits of the first byte are ignored.
            assert_eq!(NoRoute::decode(&other).is_some(), at == 0 && bit < 6, "{at}, {bit}");
        }
    }

    #[test]
    fn long_quotations_are_cut_and_refused() {
        let quoted = [7; QUOTED_LEN + 1];
        let bytes = NoRoute { destination: NodeId(1), quoted: &quoted }.encode();
        assert_eq!(NoRoute::decode(&bytes).map(|hint| hint.quoted.len()), Some(QUOTED_LEN));
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(NoRoute::decode(&longer), None);
    }

    /// Packets of sessions and NO_ROUTE packets are never confused.
    #[test]
    fn it_is_no_packet_of_a_session() {
        let bytes = NoRoute { destination: NodeId(1), quoted: &[1; 16] }.encode();
        assert_eq!(short_header::destination(&bytes), None);
        assert_ne!(
            long_header::decode(&bytes).map(|header| header.version),
            Some(long_header::VERSION)
        );
    }

    proptest! {
        #[test]
        fn decoding_inverts_encoding(node: u32, quoted in prop::collection::vec(any::<u8>(), 0..=QUOTED_LEN)) {
            let hint = NoRoute { destination: NodeId(node), quoted: &quoted };
            let packet = hint.encode();
            prop_assert_eq!(NoRoute::decode(&packet), Some(hint));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = NoRoute::decode(&bytes);
        }
    }
}
