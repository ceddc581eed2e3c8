//! Pieces of files, compressed one by one.

#[cfg(any(feature = "zstd", feature = "lz4"))]
use crate::file::CHUNK;
use crate::file::FileError;

/// How pieces of files are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Zstandard (RFC 8878): smaller.
    #[cfg(feature = "zstd")]
    Zstd,
    /// LZ4 blocks: less work.
    #[cfg(feature = "lz4")]
    Lz4,
}

/// As it is.
pub(super) const PLAIN: u8 = 0;
/// One Zstandard frame.
#[cfg(feature = "zstd")]
const ZSTD: u8 = 1;
/// One LZ4 block.
#[cfg(feature = "lz4")]
const LZ4: u8 = 2;

/// A fast level: the link is to be faster than without.
#[cfg(feature = "zstd")]
const LEVEL: i32 = 1;

/// Encodes pieces; returns the encoding and, unless it is [`PLAIN`], what it gave.
pub(super) fn encode(compression: Option<Compression>, piece: &[u8]) -> (u8, Option<Vec<u8>>) {
    let (encoding, packed): (u8, Option<Vec<u8>>) = match compression {
        #[cfg(feature = "zstd")]
        Some(Compression::Zstd) => (ZSTD, zstd::bulk::compress(piece, LEVEL).ok()),
        #[cfg(feature = "lz4")]
        Some(Compression::Lz4) => (LZ4, Some(lz4_flex::block::compress(piece))),
        _ => (PLAIN, None),
    };
    // What hardly shrinks is not worth the other side's time.
    match packed.filter(|packed| packed.len() < piece.len() / 16 * 15) {
        Some(packed) => (encoding, Some(packed)),
        None => (PLAIN, None),
    }
}

/// What an encoded piece was.
pub(super) fn decode(encoding: u8, bytes: &[u8]) -> Result<Option<Vec<u8>>, FileError> {
    #[cfg(any(feature = "zstd", feature = "lz4"))]
    const BROKEN: FileError = FileError::Protocol("a compressed piece is broken or too long");
    match encoding {
        PLAIN => Ok(None),
        #[cfg(feature = "zstd")]
        ZSTD => zstd::bulk::decompress(bytes, CHUNK).map(Some).map_err(|_| BROKEN),
        #[cfg(feature = "lz4")]
        LZ4 => lz4_flex::block::decompress(bytes, CHUNK).map(Some).map_err(|_| BROKEN),
        _ => {
            let _ = bytes;
            Err(FileError::Protocol("a compression that is not known here"))
        }
    }
}

#[cfg(all(test, any(feature = "zstd", feature = "lz4")))]
mod tests {
    use super::*;

    /// What does not shrink.
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
        let piece = vec![7; CHUNK];
        let (encoding, packed) = encode(Some(compression), &piece);
        assert_eq!(encoding, number);
        let packed = packed.unwrap();
        assert!(packed.len() < CHUNK / 100);
        assert_eq!(decode(encoding, &packed).unwrap(), Some(piece));
        assert!(decode(number, bomb).is_err());
        assert!(decode(number, b"nonsense").is_err());
        assert!(decode(number, &packed[..packed.len() / 2]).is_err());
        assert_eq!(encode(Some(compression), &noise()), (PLAIN, None));
        assert_eq!(encode(Some(compression), b""), (PLAIN, None));
        assert!(decode(9, b"").is_err());
        // Whatever a peer says is an error or some bytes, no more than a piece has.
        let mut wild = [&noise()[..200], &piece_of_text(), &noise()[200..300]].concat();
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

    fn piece_of_text() -> Vec<u8> {
        b"a line that repeats and repeats, ".repeat(40)
    }

    #[cfg(feature = "zstd")]
    #[test]
    fn zstd_pieces_come_back_and_bombs_are_refused() {
        check(Compression::Zstd, ZSTD, &zstd::bulk::compress(&vec![0; 100 << 20], 1).unwrap());
    }

    #[cfg(feature = "lz4")]
    #[test]
    fn lz4_pieces_come_back_and_bombs_are_refused() {
        check(Compression::Lz4, LZ4, &lz4_flex::block::compress(&vec![0; CHUNK + 1]));
    }
}
