//! Super-packets and checksums that the kernel has not computed: how a message of the tunnel describes
//! them, the virtio header for the kernel, and segmentation in user space.
//!
//! Headers for the kernel are built only from the parsed packet, so bytes of a peer never reach the
//! kernel's parser of virtio headers.

use std::net::IpAddr;

use crate::checksum::{fold, put, sum, take, write_ipv4_checksum};
use crate::packet::{Packet, TCP};

/// Length of the virtio header in front of each packet of a TUN device.
pub const HEADER: usize = 10;
const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// Smallest segment that is accepted from a peer: Linux's `tcp_min_snd_mss`. A smaller one would split
/// one message into tens of thousands of packets.
const MIN_SEGMENT: u16 = 48;
const FIN_AND_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Work on a packet that is left before it can leave the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The checksum of TCP or UDP is not computed.
    pub needs_checksum: bool,
    /// Bytes of payload in each TCP segment of a super-packet; 0 if the packet is one segment.
    pub segment: u16,
}

/// Why a packet of a peer is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not an IP packet, or its length field is wrong.
    #[error("not a whole IP packet")]
    Packet,
    /// A missing checksum in a packet of a protocol without checksums.
    #[error("a checksum is open in a packet that is neither TCP nor UDP")]
    Checksum,
    /// Segments of a protocol other than TCP, or of an impossible size.
    #[error("segmentation of a packet that cannot be segmented so")]
    Segments,
}

impl Offload {
    /// Reads the header that the kernel has put in front of a packet.
    #[must_use]
    pub fn of_header(header: &[u8; HEADER]) -> Self {
        let segment = u16::from_ne_bytes([header[4], header[5]]);
        Self {
            needs_checksum: header[0] & NEEDS_CSUM != 0,
            segment: if header[1] == 0 { 0 } else { segment },
        }
    }

    /// Builds the header for a packet, and writes the parts of the checksum that the kernel expects.
    ///
    /// # Errors
    /// The packet is not what the offload says.
    pub fn header_for(self, bytes: &mut [u8]) -> Result<[u8; HEADER], Malformed> {
        let packet = Packet::parse(bytes).ok_or(Malformed::Packet)?;
        if self == Self::default() {
            return Ok([0; HEADER]);
        }
        let offset = packet.checksum_offset(bytes).ok_or(Malformed::Checksum)?;
        let mut length = packet.payload;
        if self.segment != 0 {
            length = self.check_segments(&packet, bytes)?;
        }
        let rest = bytes.len().saturating_sub(packet.payload);
        if rest > usize::from(u16::MAX) {
            return Err(Malformed::Packet);
        }
        // The kernel expects the sum of the pseudo-header in the place of the checksum.
        let pseudo = fold(pseudo_sum(&packet, rest));
        let at = packet.payload.saturating_add(offset);
        put(bytes, at, pseudo.to_be_bytes()).ok_or(Malformed::Checksum)?;
        let (mut kind, mut headers, mut segment) = (0, 0, 0);
        if self.segment != 0 && bytes.len().saturating_sub(length) > usize::from(self.segment) {
            kind = if packet.source.is_ipv4() { GSO_TCPV4 } else { GSO_TCPV6 };
            headers = length as u16;
            segment = self.segment;
        }
        let [[h0, h1], [s0, s1]] = [headers, segment].map(u16::to_ne_bytes);
        let [[p0, p1], [c0, c1]] = [packet.payload, offset].map(|at| (at as u16).to_ne_bytes());
        Ok([NEEDS_CSUM, kind, h0, h1, s0, s1, p0, p1, c0, c1])
    }

    /// Returns the length of all headers of a TCP super-packet.
    fn check_segments(self, packet: &Packet, bytes: &[u8]) -> Result<usize, Malformed> {
        let is_possible =
            packet.protocol == TCP && self.needs_checksum && self.segment >= MIN_SEGMENT;
        let tcp = bytes.get(packet.payload..).filter(|tcp| is_possible && tcp.len() >= 20);
        let offset = tcp.and_then(|tcp| tcp.get(12)).ok_or(Malformed::Segments)? >> 4;
        let header = usize::from(offset).saturating_mul(4);
        let end = packet.payload.saturating_add(header);
        if header < 20 || end > bytes.len() {
            return Err(Malformed::Segments);
        }
        Ok(end)
    }

    /// Splits a packet into segments with complete checksums, for a device without offload.
    ///
    /// # Errors
    /// The packet is not what the offload says.
    pub fn segments(self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
        let packet = Packet::parse(bytes).ok_or(Malformed::Packet)?;
        if !self.needs_checksum && self.segment == 0 {
            return Ok(vec![bytes.to_vec()]);
        }
        let offset = packet.checksum_offset(bytes).ok_or(Malformed::Checksum)?;
        if self.segment == 0 {
            let mut whole = bytes.to_vec();
            complete(&packet, offset, &mut whole).ok_or(Malformed::Checksum)?;
            return Ok(vec![whole]);
        }
        let headers = self.check_segments(&packet, bytes)?;
        let (head, payload) = bytes.split_at_checked(headers).ok_or(Malformed::Segments)?;
        let mut segments = Vec::new();
        let mut chunks = payload.chunks(usize::from(self.segment)).peekable();
        let mut done = 0u32;
        while let Some(chunk) = chunks.next() {
            let mut segment = [head, chunk].concat();
            let is_last = chunks.peek().is_none();
            number_segment(&packet, &mut segment, done, segments.len() as u16, is_last)
                .and_then(|()| complete(&packet, offset, &mut segment))
                .ok_or(Malformed::Segments)?;
            segments.push(segment);
            done = done.wrapping_add(chunk.len() as u32);
        }
        if segments.is_empty() {
            let mut whole = bytes.to_vec();
            complete(&packet, offset, &mut whole).ok_or(Malformed::Checksum)?;
            segments.push(whole);
        }
        Ok(segments)
    }
}

/// Gives a segment its sequence number, flags, length and identification: `done` bytes and `index`
/// segments come before it. `None` if it has no whole headers.
fn number_segment(
    packet: &Packet,
    segment: &mut [u8],
    done: u32,
    index: u16,
    is_last: bool,
) -> Option<()> {
    let total = segment.len();
    let tcp = segment.get_mut(packet.payload..)?;
    let sequence = u32::from_be_bytes(take(tcp, 4)?).wrapping_add(done);
    put(tcp, 4, sequence.to_be_bytes())?;
    let flags = tcp.get_mut(13)?;
    if !is_last {
        *flags &= !FIN_AND_PSH;
    }
    if done > 0 {
        *flags &= !CWR;
    }
    if packet.source.is_ipv4() {
        put(segment, 2, (total as u16).to_be_bytes())?;
        let id = u16::from_be_bytes(take(segment, 4)?).wrapping_add(index);
        put(segment, 4, id.to_be_bytes())?;
        write_ipv4_checksum(segment)
    } else {
        put(segment, 4, (total.checked_sub(40)? as u16).to_be_bytes())
    }
}

/// Writes the checksum of TCP or UDP, which is `offset` bytes into the payload. `None` if the packet ends
/// before it.
fn complete(packet: &Packet, offset: usize, bytes: &mut [u8]) -> Option<()> {
    let payload = bytes.get_mut(packet.payload..)?;
    put(payload, offset, [0; 2])?;
    let mut checksum = !fold(sum(pseudo_sum(packet, payload.len()), payload));
    // 0 says "no checksum" in UDP.
    if checksum == 0 && offset == 6 {
        checksum = 0xffff;
    }
    put(payload, offset, checksum.to_be_bytes())
}

/// Sum of the pseudo-header of TCP and UDP.
fn pseudo_sum(packet: &Packet, length: usize) -> u64 {
    let addresses = match (packet.source, packet.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            sum(sum(0, &source.octets()), &destination.octets())
        }
        (source, destination) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            sum(sum(0, &octets(source)), &octets(destination))
        }
    };
    addresses.saturating_add(u64::from(packet.protocol)).saturating_add(length as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{UDP, mark_ce};
    use proptest::prelude::*;

    /// A TCP packet over IPv4 or IPv6 with valid lengths.
    pub(crate) fn tcp(is_v6: bool, payload: &[u8]) -> Vec<u8> {
        let mut l4 = vec![0u8; 20];
        l4[..4].copy_from_slice(&[0x30, 0x39, 0, 80]);
        l4[7] = 77;
        l4[12] = 5 << 4;
        l4[13] = 0x19 | CWR;
        l4.extend(payload);
        let mut packet = if is_v6 {
            let mut head = vec![0u8; 40];
            head[0] = 0x60;
            head[4..6].copy_from_slice(&(l4.len() as u16).to_be_bytes());
            head[6] = TCP;
            head[8] = 0xfd;
            head[24] = 0xfe;
            head
        } else {
            let mut head = vec![0u8; 20];
            head[0] = 0x45;
            head[2..4].copy_from_slice(&((l4.len() + 20) as u16).to_be_bytes());
            head[9] = TCP;
            head[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
            head
        };
        packet.extend(l4);
        packet
    }

    fn is_valid(bytes: &[u8]) -> bool {
        let packet = Packet::parse(bytes).unwrap();
        let payload = &bytes[packet.payload..];
        fold(sum(pseudo_sum(&packet, payload.len()), payload)) == 0xffff
    }

    #[test]
    fn segments_carry_the_payload_with_valid_checksums_and_flags() {
        let payload: Vec<u8> = (0..5000u32).map(|x| x as u8).collect();
        for is_v6 in [false, true] {
            let whole = tcp(is_v6, &payload);
            let offload = Offload { needs_checksum: true, segment: 1448 };
            let segments = offload.segments(&whole).unwrap();
            assert_eq!(segments.len(), 4);
            let mut joined = Vec::new();
            for (index, segment) in segments.iter().enumerate() {
                assert!(is_valid(segment), "v6 {is_v6}, segment {index}");
                let tcp = Packet::parse(segment).unwrap().payload;
                assert_eq!(segment[tcp + 13] & FIN_AND_PSH != 0, index == 3);
                assert_eq!(segment[tcp + 13] & CWR != 0, index == 0);
                let sequence = u32::from_be_bytes(segment[tcp + 4..tcp + 8].try_into().unwrap());
                assert_eq!(sequence as usize, 77 + joined.len());
                joined.extend_from_slice(&segment[tcp + 20..]);
            }
            assert_eq!(joined, payload);
        }
    }

    #[test]
    fn headers_name_the_parsed_offsets_and_never_more_than_the_packet() {
        let mut bytes = tcp(true, &[7; 4000]);
        let offload = Offload { needs_checksum: true, segment: 1000 };
        let header = offload.header_for(&mut bytes).unwrap();
        assert_eq!(header[..2], [NEEDS_CSUM, GSO_TCPV6]);
        assert_eq!(u16::from_ne_bytes([header[2], header[3]]), 60);
        assert_eq!(u16::from_ne_bytes([header[6], header[7]]), 40);
        assert_eq!(u16::from_ne_bytes([header[8], header[9]]), 16);
        assert_eq!(Offload::of_header(&header), offload);
        for (offload, error) in [
            (Offload { needs_checksum: true, segment: 47 }, Malformed::Segments),
            (Offload { needs_checksum: false, segment: 1000 }, Malformed::Segments),
        ] {
            assert_eq!(offload.header_for(&mut bytes), Err(error));
        }
        bytes[6] = UDP;
        assert_eq!(offload.header_for(&mut bytes), Err(Malformed::Segments));
        bytes[6] = 58;
        assert_eq!(offload.header_for(&mut bytes), Err(Malformed::Checksum));
    }

    #[test]
    fn only_packets_of_ecn_capable_transports_are_marked() {
        for is_v6 in [false, true] {
            let mut bytes = tcp(is_v6, b"x");
            assert!(!mark_ce(&mut bytes));
            bytes[1] |= if is_v6 { 0x20 } else { 2 };
            assert!(mark_ce(&mut bytes));
            assert_eq!(Packet::parse(&bytes).unwrap().ecn, 3);
            assert!(is_v6 || fold(sum(0, &bytes[..20])) == 0xffff);
        }
    }

    proptest! {
        #[test]
        fn bytes_of_peers_never_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
            shape in 0u8..4,
            needs_checksum: bool,
            segment: u16,
        ) {
            // Half of them have a valid first byte, so that the test reaches the later checks.
            if shape > 0 && bytes.len() >= 40 {
                let length = bytes.len() as u16;
                if shape == 1 {
                    bytes[0] = 0x45;
                    bytes[2..4].copy_from_slice(&length.to_be_bytes());
                    bytes[6..8].fill(0);
                    bytes[9] = TCP;
                } else {
                    bytes[0] = 0x60;
                    bytes[4..6].copy_from_slice(&(length - 40).to_be_bytes());
                    bytes[6] = if shape == 2 { TCP } else { bytes[6] % 64 };
                }
            }
            let offload = Offload { needs_checksum, segment };
            let cut = offload.segments(&bytes);
            mark_ce(&mut bytes.clone());
            let header = offload.header_for(&mut bytes);
            prop_assert_eq!(cut.is_ok(), header.is_ok());
            if let Ok(header) = header {
                let start = usize::from(u16::from_ne_bytes([header[6], header[7]]));
                let offset = usize::from(u16::from_ne_bytes([header[8], header[9]]));
                prop_assert!(start + offset + 2 <= bytes.len() || header == [0; HEADER]);
            }
        }
    }
}
