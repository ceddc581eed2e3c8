//! The flow header: the fields that a relay needs to forward a packet.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                       Destination node                        |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                          Source node                          |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                            Flow ID                            |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |   Hop limit   | coding header, or an end-to-end packet ...
//! +-+-+-+-+-+-+-+-+-+-+-
//! ```
//!
//! It follows the hop header of a *relayed* packet. Every packet repeats all fields, so a relay
//! that lost its state resumes with the next packet.

use super::varint::{Reader, Writer};

/// Bytes of the header.
pub const FLOW_HEADER_LEN: usize = 13;

/// Identifies a node in the network. The network's operator assigns these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl NodeId {
    /// Whether this is the ID of a group: one of 224.0.0.0/4, the multicast addresses of IPv4. A group is the
    /// destination of packets, and neither a node nor their source.
    #[inline]
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0 >> 28 == 0xe
    }
}

impl core::fmt::Display for NodeId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// Flow IDs with this bit, the most significant one, are those of direct sessions: between two neighbours, over the
/// links between them alone.
pub const DIRECT_FLOW: u32 = 1 << 31;

/// Identifies one direction of a session between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Node that the packets go to.
    pub destination: NodeId,
    /// Node that the packets come from.
    pub source: NodeId,
    /// Equal in both directions. The node that opens the session chooses it at random, except for
    /// [`DIRECT_FLOW`].
    pub flow: u32,
}

/// By destination, source and flow, compared as one number: a relay with thousands of flows compares
/// some dozen keys for each packet.
impl Ord for FlowKey {
    #[inline]
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.number().cmp(&other.number())
    }
}

impl PartialOrd for FlowKey {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl FlowKey {
    #[inline]
    fn number(self) -> u128 {
        u128::from(self.destination.0) << 64
            | u128::from(self.source.0) << 32
            | u128::from(self.flow)
    }

    /// Whether this is a flow of a direct session.
    #[must_use]
    #[inline]
    pub fn is_direct(self) -> bool {
        self.flow & DIRECT_FLOW != 0
    }

    /// The other direction of the session.
    #[must_use]
    #[inline]
    pub fn reversed(self) -> Self {
        Self { destination: self.source, source: self.destination, flow: self.flow }
    }

    /// Writes the three numbers.
    #[inline]
    pub fn encode(self, writer: &mut Writer<'_>) -> Option<()> {
        writer.u32(self.destination.0)?;
        writer.u32(self.source.0)?;
        writer.u32(self.flow)
    }

    /// Reads the three numbers; `None` if truncated.
    #[inline]
    pub fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            destination: NodeId(reader.u32()?),
            source: NodeId(reader.u32()?),
            flow: reader.u32()?,
        })
    }
}

/// The fields of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHeader {
    /// The flow that the packet belongs to.
    pub key: FlowKey,
    /// Number of links that the packet may still cross after this one.
    pub hop_limit: u8,
}

impl FlowHeader {
    /// Writes the header.
    #[inline]
    pub fn encode(self, writer: &mut Writer<'_>) -> Option<()> {
        self.key.encode(writer)?;
        writer.u8(self.hop_limit)
    }

    /// Reads the header; `None` if truncated.
    #[inline]
    pub fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { key: FlowKey::decode(reader)?, hop_limit: reader.u8()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let key = FlowKey { destination: NodeId(0x0102_0304), source: NodeId(5), flow: 0x0600 };
        let header = FlowHeader { key, hop_limit: 7 };
        let mut bytes = [0; FLOW_HEADER_LEN];
        header.encode(&mut Writer::new(&mut bytes)).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4, 0, 0, 0, 5, 0, 0, 6, 0, 7]);
        assert_eq!(FlowHeader::decode(&mut Reader::new(&bytes)), Some(header));
        assert_eq!(FlowHeader::decode(&mut Reader::new(&bytes[1..])), None);
        let reversed =
            FlowKey { destination: NodeId(5), source: NodeId(0x0102_0304), flow: 0x0600 };
        assert_eq!(key.reversed(), reversed);
    }

    #[test]
    fn most_significant_bit_of_the_flow_id_makes_a_flow_direct() {
        for (flow, is_direct) in
            [(0, false), (0x7fff_ffff, false), (0x8000_0000, true), (u32::MAX, true)]
        {
            let key = FlowKey { destination: NodeId(u32::MAX), source: NodeId(u32::MAX), flow };
            assert_eq!(key.is_direct(), is_direct, "{flow:x}");
            assert_eq!(key.reversed().is_direct(), is_direct, "{flow:x}");
        }
    }

    #[test]
    fn groups_are_the_multicast_addresses() {
        for (node, is_group) in
            [(0xdfff_ffff, false), (0xe000_0000, true), (0xefff_ffff, true), (0xf000_0000, false)]
        {
            assert_eq!(NodeId(node).is_group(), is_group, "{node:x}");
        }
    }

    #[test]
    fn keys_are_ordered_by_destination_source_and_flow() {
        let numbers = [0, 1, 0x7fff_ffff, u32::MAX];
        let triples = numbers.map(|a| numbers.map(|b| numbers.map(|c| (a, b, c))));
        let triples: Vec<_> = triples.into_iter().flatten().flatten().collect();
        let keys = triples.iter().map(|&(destination, source, flow)| FlowKey {
            destination: NodeId(destination),
            source: NodeId(source),
            flow,
        });
        assert!(keys.is_sorted_by(|a, b| a < b && a.cmp(b) == core::cmp::Ordering::Less));
    }
}
