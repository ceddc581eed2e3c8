//! Parses the parts of IP packets that the tunnel needs: addresses, ports, and the position of the checksum.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// Maximum number of skipped extension headers; no real packet has as many.
const MAX_EXTENSIONS: usize = 8;

/// The parsed headers of an IP packet. Lengths are checked against the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol of the payload, after IPv6 extension headers.
    pub protocol: u8,
    /// Offset of the payload in bytes.
    pub payload: usize,
    /// Whether it is a fragment of a larger packet; then the payload is not parsed.
    pub is_fragment: bool,
    /// Source and destination port of TCP and UDP, otherwise 0.
    pub ports: (u16, u16),
    /// The two ECN bits.
    pub ecn: u8,
    /// The six DSCP bits.
    pub dscp: u8,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

impl Packet {
    /// Parses a complete packet; `None` if a length or the version is wrong.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes.first()? >> 4 {
            4 => Self::parse_v4(bytes),
            6 => Self::parse_v6(bytes),
            _ => None,
        }
    }

    fn parse_v4(bytes: &[u8]) -> Option<Self> {
        let header: &[u8; 20] = bytes.get(..20)?.try_into().ok()?;
        let payload = usize::from(header[0] & 0xf) * 4;
        let total = usize::from(u16_at(bytes, 2)?);
        if payload < 20 || total != bytes.len() || total < payload {
            return None;
        }
        let address = |at: usize| {
            Ipv4Addr::from(<[u8; 4]>::try_from(&header[at..at + 4]).unwrap_or_default())
        };
        // More fragments, or an offset.
        let is_fragment = u16_at(bytes, 6)? & 0x3fff != 0;
        let packet = Self {
            source: address(12).into(),
            destination: address(16).into(),
            protocol: header[9],
            payload,
            is_fragment,
            ports: (0, 0),
            ecn: header[1] & 3,
            dscp: header[1] >> 2,
        };
        Some(packet.with_ports(bytes))
    }

    fn parse_v6(bytes: &[u8]) -> Option<Self> {
        let header: &[u8; 40] = bytes.get(..40)?.try_into().ok()?;
        // Jumbograms (length 0) do not fit a TUN packet.
        if usize::from(u16_at(bytes, 4)?) + 40 != bytes.len() {
            return None;
        }
        let address = |at: usize| {
            Ipv6Addr::from(<[u8; 16]>::try_from(&header[at..at + 16]).unwrap_or_default())
        };
        let class = (header[0] << 4) | (header[1] >> 4);
        let (mut protocol, mut payload, mut is_fragment) = (header[6], 40, false);
        for _ in 0..MAX_EXTENSIONS {
            let next = match protocol {
                // Hop-by-hop options, routing, destination options.
                0 | 43 | 60 => payload + (usize::from(*bytes.get(payload + 1)?) + 1) * 8,
                44 => {
                    is_fragment = true;
                    payload + 8
                }
                _ => break,
            };
            protocol = *bytes.get(payload)?;
            payload = next;
            if payload > bytes.len() {
                return None;
            }
            if is_fragment {
                break;
            }
        }
        let packet = Self {
            source: address(8).into(),
            destination: address(24).into(),
            protocol,
            payload,
            is_fragment,
            ports: (0, 0),
            ecn: class & 3,
            dscp: class >> 2,
        };
        Some(packet.with_ports(bytes))
    }

    fn with_ports(mut self, bytes: &[u8]) -> Self {
        if !self.is_fragment && matches!(self.protocol, TCP | UDP) {
            let ports = u16_at(bytes, self.payload).zip(u16_at(bytes, self.payload + 2));
            self.ports = ports.unwrap_or_default();
        }
        self
    }

    /// Offset of the checksum in the header of TCP and UDP, if the packet has that header.
    #[must_use]
    pub fn checksum_offset(&self, bytes: &[u8]) -> Option<usize> {
        let (offset, header) = match self.protocol {
            TCP => (16, 20),
            UDP => (6, 8),
            _ => return None,
        };
        (!self.is_fragment && bytes.len() >= self.payload + header).then_some(offset)
    }
}

/// Marks a packet with Congestion Experienced, if its transport is capable of ECN (RFC 3168).
/// Returns whether it is marked.
pub fn mark_ce(bytes: &mut [u8]) -> bool {
    let Some(packet) = Packet::parse(bytes) else { return false };
    if packet.ecn == 0 {
        return false;
    }
    if packet.source.is_ipv4() {
        bytes[1] |= 3;
        write_ipv4_checksum(bytes);
    } else {
        bytes[1] |= 0x30;
    }
    true
}

/// Writes the checksum of the IPv4 header of a parsed packet.
pub(crate) fn write_ipv4_checksum(bytes: &mut [u8]) {
    let length = usize::from(bytes[0] & 0xf) * 4;
    bytes[10..12].fill(0);
    let checksum = !fold(sum(0, &bytes[..length]));
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Adds 16-bit words in network byte order (RFC 1071).
pub(crate) fn sum(start: u64, bytes: &[u8]) -> u64 {
    let words = bytes.chunks(2);
    words.fold(start, |total, word| {
        total + u64::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]))
    })
}

pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Sum of the pseudo-header of TCP and UDP.
pub(crate) fn pseudo_sum(packet: &Packet, length: usize) -> u64 {
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
    addresses + u64::from(packet.protocol) + length as u64
}
