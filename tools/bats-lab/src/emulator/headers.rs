//! Headers of Ethernet frames: the flow that a frame belongs to, and its ECN field.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// Length of an Ethernet header.
const ETHERNET: usize = 14;
/// Protocols with ports in the first four bytes: TCP, UDP, DCCP, SCTP, UDP-Lite.
const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];
/// Extension headers of IPv6 that are skipped (RFC 8200 section 4): hop-by-hop options, routing,
/// destination options.
const EXTENSIONS: [u8; 3] = [0, 43, 60];
/// Extension header of a fragment of IPv6.
const FRAGMENT: u8 = 44;
/// Extension headers of a packet that are looked at.
const MAX_EXTENSIONS: usize = 8;

/// What the headers of an IP packet say.
struct Headers<'a> {
    addresses: &'a [u8],
    protocol: u8,
    /// Source and destination port; empty if there are none, and of fragments.
    ports: &'a [u8],
}

fn version(frame: &[u8]) -> Option<u8> {
    match frame.get(12..14)? {
        [0x08, 0x00] => (frame.get(ETHERNET)? >> 4 == 4).then_some(4),
        [0x86, 0xdd] => (frame.get(ETHERNET)? >> 4 == 6).then_some(6),
        _ => None,
    }
}

fn headers(frame: &[u8]) -> Option<Headers<'_>> {
    let packet = frame.get(ETHERNET..)?;
    if version(frame)? == 4 {
        let length = usize::from(packet.first()? & 0x0f).saturating_mul(4);
        let protocol = *packet.get(9)?;
        // More fragments, or an offset: later fragments have no ports, so none count.
        let is_fragment = packet.get(6)? & 0x3f != 0 || *packet.get(7)? != 0;
        let ports = if is_fragment { &[] } else { ports(packet, length, protocol) };
        return Some(Headers { addresses: packet.get(12..20)?, protocol, ports });
    }
    let addresses = packet.get(8..40)?;
    let (mut protocol, mut at) = (*packet.get(6)?, 40);
    for _ in 0..MAX_EXTENSIONS {
        if !EXTENSIONS.contains(&protocol) {
            break;
        }
        let extension = packet.get(at..).and_then(<[u8]>::first_chunk);
        let Some(&[next, length]) = extension else { break };
        protocol = next;
        // In units of 8 bytes, without the first 8.
        at = at.saturating_add(usize::from(length).saturating_add(1).saturating_mul(8));
    }
    if protocol == FRAGMENT {
        let protocol = packet.get(at).copied().unwrap_or_default();
        return Some(Headers { addresses, protocol, ports: &[] });
    }
    Some(Headers { addresses, protocol, ports: ports(packet, at, protocol) })
}

fn ports(packet: &[u8], at: usize, protocol: u8) -> &[u8] {
    let ports = packet.get(at..).and_then(|rest| rest.get(..4));
    ports.filter(|_| WITH_PORTS.contains(&protocol)).unwrap_or_default()
}

/// A hash of addresses, protocol and ports; 0 for frames without IP.
pub(super) fn flow(frame: &[u8]) -> u64 {
    let Some(Headers { addresses, protocol, ports }) = headers(frame) else { return 0 };
    // The same in each run: this hasher has fixed keys.
    let mut hasher = DefaultHasher::new();
    (addresses, protocol, ports).hash(&mut hasher);
    hasher.finish()
}

/// The ECN field of an IP packet (RFC 3168 section 5).
fn ecn(frame: &[u8]) -> Option<u8> {
    match version(frame)? {
        4 => Some(frame.get(ETHERNET + 1)? & 3),
        // The low bits of the traffic class are in the middle of the first word.
        _ => Some(frame.get(ETHERNET + 1)? >> 4 & 3),
    }
}

/// Whether the packet is of an ECN-capable transport.
pub(super) fn is_ect(frame: &[u8]) -> bool {
    ecn(frame).is_some_and(|ecn| ecn != 0)
}

/// Sets ECN-CE in a packet of an ECN-capable transport.
pub(super) fn mark(frame: &mut [u8]) {
    let is_four = version(frame) == Some(4);
    let Some(old) = ecn(frame).filter(|&ecn| ecn == 1 || ecn == 2) else { return };
    match frame.get_mut(ETHERNET..) {
        Some([_, traffic_class, _, _, _, _, _, _, _, _, high, low, ..]) if is_four => {
            *traffic_class |= 3;
            // RFC 1624: the new checksum from the change of the word; only its low bits change.
            let change = u16::from(3_u8.saturating_sub(old));
            let (sum, carry) = (!u16::from_be_bytes([*high, *low])).overflowing_add(change);
            [*high, *low] = (!sum.wrapping_add(u16::from(carry))).to_be_bytes();
        }
        Some([_, traffic_class, ..]) if !is_four => *traffic_class |= 0x30,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(header: &[u8]) -> u16 {
        let mut sum: u32 = 0;
        for pair in header.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    fn four(ports: [u16; 2], ecn: u8, id: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45, ecn, 0, 40, 0, id, 0x40, 0, 64, 6, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = checksum(&frame[14..34]).to_be_bytes();
        frame[24..26].copy_from_slice(&sum);
        ports.iter().for_each(|port| frame.extend(port.to_be_bytes()));
        frame.extend([id; 16]);
        frame
    }

    fn six(ports: [u16; 2], ecn: u8, extension: bool) -> Vec<u8> {
        let mut frame = vec![0; 12];
        let next = if extension { 60 } else { 17 };
        frame.extend([0x86, 0xdd, 0x60, ecn << 4, 0, 0, 0, 20, next, 64]);
        frame.extend([0xfd; 16]);
        frame.extend([0xfe; 16]);
        if extension {
            frame.extend([17, 0, 1, 4, 0, 0, 0, 0]);
        }
        ports.iter().for_each(|port| frame.extend(port.to_be_bytes()));
        frame
    }

    #[test]
    fn flow_depends_on_addresses_protocol_and_ports() {
        assert_eq!(flow(&four([1, 2], 0, 1)), flow(&four([1, 2], 2, 9)));
        assert_ne!(flow(&four([1, 2], 0, 1)), flow(&four([1, 3], 0, 1)));
        assert_eq!(flow(&six([1, 2], 0, false)), flow(&six([1, 2], 1, true)));
        assert_ne!(flow(&six([1, 2], 0, true)), flow(&six([3, 2], 0, true)));
        // Fragments of one packet stay together: only the first has ports.
        let mut first = four([1, 2], 0, 1);
        first[20] = 0x20;
        let mut second = four([77, 78], 0, 1);
        second[21] = 9;
        assert_eq!(flow(&first), flow(&second));
        assert_eq!(flow(&[0; 60]), 0);
    }

    #[test]
    fn ecn_is_marked_with_a_valid_checksum() {
        for ecn in [1, 2] {
            let mut frame = four([1, 2], 0xa8 | ecn, 3);
            assert!(is_ect(&frame));
            mark(&mut frame);
            assert_eq!((frame[15], checksum(&frame[14..34])), (0xab, 0), "{ecn}");
            let mut frame = six([1, 2], ecn, false);
            assert!(is_ect(&frame));
            mark(&mut frame);
            assert_eq!(frame[15], 0x30);
        }
        let without = four([1, 2], 0, 3);
        let mut marked = without.clone();
        mark(&mut marked);
        assert!(marked == without && !is_ect(&without));
    }

    #[test]
    fn short_and_odd_frames_do_not_panic() {
        for full in [four([1, 2], 2, 3), six([1, 2], 2, true)] {
            for length in 0..full.len() {
                let mut frame = full[..length].to_vec();
                mark(&mut frame);
                let _ = (flow(&frame), is_ect(&frame));
                for at in 12..length {
                    let mut odd = frame.clone();
                    odd[at] ^= 0xff;
                    mark(&mut odd);
                    let _ = (flow(&odd), is_ect(&odd));
                }
            }
        }
    }
}
