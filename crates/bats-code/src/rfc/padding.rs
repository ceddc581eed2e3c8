//! Partition of a block into source packets, and padding (RFC 9426, section 2.2).
//!
//! A block of F bytes becomes K = floor(F/T) + 1 packets of T bytes, so that there is always
//! padding. It is one byte `1`, two bytes `2`, three bytes `3` and so on; the last run may be cut
//! short. Its content determines its length (the RFC's formula for the length lacks a division by
//! two: D1).

use core::fmt;

/// Longest source packet, in bytes: 1 + 2 + ... + 255. A longer packet full of padding would need
/// the value 256.
pub const MAX_PACKET_SIZE: usize = 32_640;

/// Maximum number of source packets in a block: K has 16 bits.
pub const MAX_SOURCE_PACKETS: u32 = 65_535;

/// Why a block cannot be partitioned, or its padding cannot be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PaddingError {
    /// The size of a source packet is 0, or above [`MAX_PACKET_SIZE`].
    PacketSize,
    /// The block needs more than [`MAX_SOURCE_PACKETS`] packets.
    TooLong,
    /// The last packet does not end in padding: the block is corrupt.
    Corrupt,
}

impl fmt::Display for PaddingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PacketSize => "the size of a source packet is out of range",
            Self::TooLong => "the block needs more than 65535 source packets",
            Self::Corrupt => "the last packet does not end in padding: the block is corrupt",
        })
    }
}

impl core::error::Error for PaddingError {}

/// K, 1 to 65,535, for a block of `data_len` bytes in packets of `packet_size` bytes.
///
/// # Errors
/// [`PaddingError::PacketSize`], [`PaddingError::TooLong`].
pub fn source_packets(data_len: u64, packet_size: usize) -> Result<u32, PaddingError> {
    if packet_size == 0 || packet_size > MAX_PACKET_SIZE {
        return Err(PaddingError::PacketSize);
    }
    let count = (data_len / packet_size as u64).saturating_add(1);
    if count > u64::from(MAX_SOURCE_PACKETS) {
        return Err(PaddingError::TooLong);
    }
    Ok(count as u32)
}

/// Fills `space`, the end of the last packet (at most [`MAX_PACKET_SIZE`] bytes), with padding.
pub fn pad(space: &mut [u8]) {
    let mut rest = space;
    // The values of a byte suffice for exactly MAX_PACKET_SIZE bytes.
    for value in 1..=255u8 {
        if rest.is_empty() {
            return;
        }
        let (run, others) = rest.split_at_mut(usize::from(value).min(rest.len()));
        run.fill(value);
        rest = others;
    }
}

/// Length of the padding at the end of the last packet: 1 to its size, in bytes.
///
/// # Errors
/// [`PaddingError::Corrupt`]: the packet does not end in valid padding.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
pub fn padding_len(last: &[u8]) -> Result<usize, PaddingError> {
    let &end = last.last().ok_or(PaddingError::Corrupt)?;
    let run = last.iter().rev().take_while(|&&byte| byte == end).count();
    let complete = usize::from(end).checked_sub(1).ok_or(PaddingError::Corrupt)?;
    // For value 1 the run is one byte, even if equal bytes precede it.
    let run = if end == 1 { 1 } else { run };
    // Of at most 255 times 256: nothing saturates.
    let total = (complete.saturating_mul(usize::from(end)) / 2).saturating_add(run);
    if run > usize::from(end) {
        return Err(PaddingError::Corrupt);
    }
    let start = last.len().checked_sub(total).ok_or(PaddingError::Corrupt)?;
    let mut rest = last.get(start..).unwrap_or_default();
    for value in 1..=end {
        let (bytes, others) = rest.split_at(usize::from(value).min(rest.len()));
        if bytes.iter().any(|&byte| byte != value) {
            return Err(PaddingError::Corrupt);
        }
        rest = others;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn padding_matches_golden_vectors() {
        for expected in [
            &[1][..],
            &[1, 2],
            &[1, 2, 2],
            &[1, 2, 2, 3],
            &[1, 2, 2, 3, 3],
            &[1, 2, 2, 3, 3, 3],
            &[1, 2, 2, 3, 3, 3, 4],
        ] {
            let mut padding = vec![0; expected.len()];
            pad(&mut padding);
            assert_eq!(padding, expected);
        }
    }

    #[test]
    fn padding_length_is_recovered_after_any_content() {
        for before in [0, 1, 2, 52, 53, 255] {
            for len in 1..=1500 {
                let mut packet = vec![before; 7 + len];
                pad(&mut packet[7..]);
                assert_eq!(padding_len(&packet), Ok(len), "{len} after {before}");
                assert_eq!(padding_len(&packet[7..]), Ok(len));
            }
        }
        let mut longest = vec![9; MAX_PACKET_SIZE];
        pad(&mut longest);
        assert_eq!(padding_len(&longest), Ok(MAX_PACKET_SIZE));
    }

    #[test]
    fn invalid_padding_is_an_error() {
        for last in [&[][..], &[0], &[2], &[2, 2], &[1, 3], &[1, 2, 3, 3], &[1, 2, 2, 4], &[7; 200]]
        {
            assert_eq!(padding_len(last), Err(PaddingError::Corrupt), "{last:?}");
        }
    }

    #[test]
    fn number_of_source_packets_is_validated() {
        assert_eq!(source_packets(0, 10), Ok(1));
        assert_eq!(source_packets(9, 10), Ok(1));
        assert_eq!(source_packets(10, 10), Ok(2));
        // D5: the largest block is one byte short of 65,535 packets.
        assert_eq!(source_packets(655_349, 10), Ok(65_535));
        assert_eq!(source_packets(655_350, 10), Err(PaddingError::TooLong));
        assert_eq!(source_packets(u64::MAX, 1), Err(PaddingError::TooLong));
        assert_eq!(source_packets(1, 0), Err(PaddingError::PacketSize));
        assert_eq!(source_packets(1, 1 << 17), Err(PaddingError::PacketSize));
    }

    #[test]
    fn largest_packet_can_be_padded_completely() {
        for (packet_size, result) in
            [(MAX_PACKET_SIZE, Ok(1)), (MAX_PACKET_SIZE + 1, Err(PaddingError::PacketSize))]
        {
            assert_eq!(source_packets(0, packet_size), result);
        }
    }

    #[test]
    fn error_messages_name_the_invalid_argument() {
        for (error, words) in [
            (PaddingError::PacketSize, "size of a source packet"),
            (PaddingError::TooLong, "65535"),
            (PaddingError::Corrupt, "corrupt"),
        ] {
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
