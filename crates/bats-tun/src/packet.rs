//! Parses the parts of IP packets that the tunnel needs: addresses, ports, and the position of the checksum.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::{take, write_ipv4_checksum};

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
    take(bytes, at).map(u16::from_be_bytes)
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
        let &[first, class, _, _, _, _, _, _, _, protocol] = bytes.first_chunk()?;
        let payload = usize::from(first & 0xf).saturating_mul(4);
        let total = usize::from(u16_at(bytes, 2)?);
        if payload < 20 || total != bytes.len() || total < payload {
            return None;
        }
        // More fragments, or an offset.
        let is_fragment = u16_at(bytes, 6)? & 0x3fff != 0;
        let packet = Self {
            source: Ipv4Addr::from(take::<4>(bytes, 12)?).into(),
            destination: Ipv4Addr::from(take::<4>(bytes, 16)?).into(),
            protocol,
            payload,
            is_fragment,
            ports: (0, 0),
            ecn: class & 3,
            dscp: class >> 2,
        };
        Some(packet.with_ports(bytes))
    }

    fn parse_v6(bytes: &[u8]) -> Option<Self> {
        let &[first, second, _, _, _, _, next_header] = bytes.first_chunk()?;
        // Jumbograms (length 0) do not fit a TUN packet.
        if usize::from(u16_at(bytes, 4)?).checked_add(40)? != bytes.len() {
            return None;
        }
        let class = (first << 4) | (second >> 4);
        let (mut protocol, mut payload, mut is_fragment) = (next_header, 40_usize, false);
        for _ in 0..MAX_EXTENSIONS {
            let length = match protocol {
                // Hop-by-hop options, routing, destination options.
                0 | 43 | 60 => {
                    let units = *bytes.get(payload.checked_add(1)?)?;
                    usize::from(units).checked_add(1)?.checked_mul(8)?
                }
                44 => {
                    is_fragment = true;
                    8
                }
                _ => break,
            };
            protocol = *bytes.get(payload)?;
            payload = payload.checked_add(length)?;
            if payload > bytes.len() {
                return None;
            }
            if is_fragment {
                break;
            }
        }
        let packet = Self {
            source: Ipv6Addr::from(take::<16>(bytes, 8)?).into(),
            destination: Ipv6Addr::from(take::<16>(bytes, 24)?).into(),
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
            let [a, b, c, d] = take(bytes, self.payload).unwrap_or_default();
            self.ports = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
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
        let room = bytes.len().saturating_sub(self.payload);
        (!self.is_fragment && room >= header).then_some(offset)
    }
}

/// Marks a packet with Congestion Experienced, if its transport is capable of ECN (RFC 3168).
/// Returns whether it is marked.
pub fn mark_ce(bytes: &mut [u8]) -> bool {
    let Some(packet) = Packet::parse(bytes) else { return false };
    if packet.ecn == 0 {
        return false;
    }
    let is_ipv4 = packet.source.is_ipv4();
    if let Some(class) = bytes.get_mut(1) {
        *class |= if is_ipv4 { 3 } else { 0x30 };
    }
    !is_ipv4 || write_ipv4_checksum(bytes).is_some()
}
