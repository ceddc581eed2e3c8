//! Compression of file contents, chunk by chunk.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

#[cfg(any(feature = "zstd", feature = "lz4"))]
use crate::file::CHUNK;
use crate::file::FileError;

/// Compression of file contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Zstandard (RFC 8878): better compression.
    #[cfg(feature = "zstd")]
    Zstd,
    /// LZ4 blocks: less CPU time.
    #[cfg(feature = "lz4")]
    Lz4,
}

/// Uncompressed.
pub(super) const PLAIN: u8 = 0;
/// One Zstandard frame.
#[cfg(feature = "zstd")]
const ZSTD: u8 = 1;
/// One LZ4 block.
#[cfg(feature = "lz4")]
const LZ4: u8 = 2;

/// A fast level, because compression should speed up the transfer.
#[cfg(feature = "zstd")]
const LEVEL: i32 = 1;

/// Encodes a chunk; returns the encoding and, unless it is [`PLAIN`], the encoded bytes.
pub(super) fn encode(compression: Option<Compression>, chunk: &[u8]) -> (u8, Option<Vec<u8>>) {
    let (encoding, compressed): (u8, Option<Vec<u8>>) = match compression {
        #[cfg(feature = "zstd")]
        Some(Compression::Zstd) => (ZSTD, zstd::bulk::compress(chunk, LEVEL).ok()),
        #[cfg(feature = "lz4")]
        Some(Compression::Lz4) => (LZ4, Some(lz4_flex::block::compress(chunk))),
        _ => (PLAIN, None),
    };
    // Send the chunk uncompressed if it shrinks by less than 1/16.
    match compressed.filter(|compressed| compressed.len() < (chunk.len() / 16).saturating_mul(15)) {
        Some(compressed) => (encoding, Some(compressed)),
        None => (PLAIN, None),
    }
}

/// Decodes a chunk; `None` for [`PLAIN`].
pub(super) fn decode(encoding: u8, bytes: &[u8]) -> Result<Option<Vec<u8>>, FileError> {
    #[cfg(any(feature = "zstd", feature = "lz4"))]
    const CORRUPT: FileError = FileError::Protocol("a compressed chunk is corrupt or too long");
    match encoding {
        PLAIN => Ok(None),
        #[cfg(feature = "zstd")]
        ZSTD => zstd::bulk::decompress(bytes, CHUNK).map(Some).map_err(|_| CORRUPT),
        #[cfg(feature = "lz4")]
        LZ4 => lz4_flex::block::decompress(bytes, CHUNK).map(Some).map_err(|_| CORRUPT),
        _ => {
            let _ = bytes;
            Err(FileError::Protocol("an unknown compression"))
        }
    }
}

#[cfg(all(test, any(feature = "zstd", feature = "lz4")))]
mod tests {
    use super::*;

    /// Incompressible bytes.
    fn noise() -> Vec<u8> {
        let mut state = 1_u64;
        (0..10_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect()
    }

    fn check(compression: Compression, number: u8, bomb: &[u8]) {
        let chunk = vec![7; CHUNK];
        let (encoding, compressed) = encode(Some(compression), &chunk);
        assert_eq!(encoding, number);
        let compressed = compressed.unwrap();
        assert!(compressed.len() < CHUNK / 100);
        assert_eq!(decode(encoding, &compressed).unwrap(), Some(chunk));
        assert!(decode(number, bomb).is_err());
        assert!(decode(number, b"nonsense").is_err());
        assert!(decode(number, &compressed[..compressed.len() / 2]).is_err());
        assert_eq!(encode(Some(compression), &noise()), (PLAIN, None));
        assert_eq!(encode(Some(compression), b""), (PLAIN, None));
        assert!(decode(9, b"").is_err());
        // Any received bytes give an error or at most one chunk.
        let mut wild = [&noise()[..200], &text_chunk(), &noise()[200..300]].concat();
        wild = encode(Some(compression), &wild).1.unwrap();
        for (round, noise) in noise().chunks_exact(4).enumerate() {
            let mut bytes = wild.clone();
            let place = usize::from(u16::from_be_bytes([noise[0], noise[1]])) % bytes.len();
            match round % 3 {
                0 => bytes[place] = noise[2],
                1 => bytes.truncate(place),
                _ => bytes.splice(place..place, [noise[2], noise[3]]).for_each(drop),
            }
            if let Ok(Some(out)) = decode(number, &bytes) {
                assert!(out.len() <= CHUNK);
            }
        }
    }

    fn text_chunk() -> Vec<u8> {
        b"a line that repeats and repeats, ".repeat(40)
    }

    #[cfg(feature = "zstd")]
    #[test]
    fn zstd_chunks_round_trip_and_bombs_are_refused() {
        check(Compression::Zstd, ZSTD, &zstd::bulk::compress(&vec![0; 100 << 20], 1).unwrap());
    }

    #[cfg(feature = "lz4")]
    #[test]
    fn lz4_chunks_round_trip_and_bombs_are_refused() {
        check(Compression::Lz4, LZ4, &lz4_flex::block::compress(&vec![0; CHUNK + 1]));
    }
}
