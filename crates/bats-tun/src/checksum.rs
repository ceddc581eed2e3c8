//! The Internet checksum (RFC 1071) of headers that were parsed before.

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
