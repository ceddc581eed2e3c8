//! The Internet checksum (RFC 1071) of headers that were parsed before.

/// The bytes from `at` on.
pub(crate) fn take<const LENGTH: usize>(bytes: &[u8], at: usize) -> Option<[u8; LENGTH]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Overwrites the bytes from `at` on. `None` if there are fewer.
pub(crate) fn put<const LENGTH: usize>(
    bytes: &mut [u8],
    at: usize,
    value: [u8; LENGTH],
) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut()? = value;
    Some(())
}

/// Writes the checksum of the IPv4 header of a parsed packet. `None` if the header is not whole.
pub(crate) fn write_ipv4_checksum(bytes: &mut [u8]) -> Option<()> {
    let length = usize::from(bytes.first()? & 0xf).saturating_mul(4);
    put(bytes, 10, [0; 2])?;
    let checksum = !fold(sum(0, bytes.get(..length)?));
    put(bytes, 10, checksum.to_be_bytes())
}

/// Adds 16-bit words in network byte order (RFC 1071).
pub(crate) fn sum(start: u64, bytes: &[u8]) -> u64 {
    let words = bytes.chunks(2);
    words.fold(start, |total, word| {
        let [high, low] = [0, 1].map(|index| word.get(index).copied().unwrap_or_default());
        total.saturating_add(u64::from(u16::from_be_bytes([high, low])))
    })
}

pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff).saturating_add(sum >> 16);
    }
    sum as u16
}
