//! Pieces of files, compressed one by one.

#[cfg(feature = "zstd")]
use crate::file::CHUNK;
use crate::file::FileError;

/// How pieces of files are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Zstandard (RFC 8878).
    #[cfg(feature = "zstd")]
    Zstd,
}

/// As it is.
pub(super) const PLAIN: u8 = 0;
/// One Zstandard frame.
#[cfg(feature = "zstd")]
const ZSTD: u8 = 1;

/// A fast level: the link is to be faster than without.
#[cfg(feature = "zstd")]
const LEVEL: i32 = 1;

/// Encodes pieces; returns the encoding and, unless it is [`PLAIN`], what it gave.
pub(super) fn encode(compression: Option<Compression>, piece: &[u8]) -> (u8, Option<Vec<u8>>) {
    match compression {
        #[cfg(feature = "zstd")]
        Some(Compression::Zstd) => match zstd::bulk::compress(piece, LEVEL) {
            // What hardly shrinks is not worth the other side's time.
            Ok(packed) if packed.len() < piece.len() / 16 * 15 => (ZSTD, Some(packed)),
            _ => (PLAIN, None),
        },
        _ => {
            let _ = piece;
            (PLAIN, None)
        }
    }
}

/// What an encoded piece was.
pub(super) fn decode(encoding: u8, octets: &[u8]) -> Result<Option<Vec<u8>>, FileError> {
    match encoding {
        PLAIN => Ok(None),
        #[cfg(feature = "zstd")]
        ZSTD => zstd::bulk::decompress(octets, CHUNK)
            .map(Some)
            .map_err(|_| FileError::Protocol("a compressed piece is broken or too long")),
        _ => {
            let _ = octets;
            Err(FileError::Protocol("a compression that is not known here"))
        }
    }
}

#[cfg(all(test, feature = "zstd"))]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_back_and_bombs_are_refused() {
        let piece = vec![7; CHUNK];
        let (encoding, packed) = encode(Some(Compression::Zstd), &piece);
        let packed = packed.unwrap();
        assert!(packed.len() < 1_000);
        assert_eq!(decode(encoding, &packed).unwrap(), Some(piece));
        let bomb = zstd::bulk::compress(&vec![0; 100 << 20], 1).unwrap();
        assert!(decode(ZSTD, &bomb).is_err());
        assert!(decode(ZSTD, b"nonsense").is_err());
        assert!(decode(9, b"").is_err());
        let noise: Vec<u8> = (0..10_000_u64).map(|x| ((x * x * 0x9e37_79b9) >> 13) as u8).collect();
        let (encoding, packed) = encode(Some(Compression::Zstd), &noise);
        assert_eq!(packed.is_none(), encoding == PLAIN);
    }
}
