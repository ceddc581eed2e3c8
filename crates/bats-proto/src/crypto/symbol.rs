//! End-to-end protection of symbols: they are sealed before coding, so that a symbol decoded from
//! polluted packets fails authentication.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hmac;

use super::TAG_LEN;
use super::plain::PlainKey;

/// Label of the exporter (RFC 8446, section 7.5).
pub(super) const EXPORTER_LABEL: &[u8] = b"openbats symbols";
/// Length of one direction's secret in bytes.
pub(super) const SECRET_LEN: usize = 32;
/// Bytes of the length field before the content.
const LENGTH_LEN: usize = 2;
/// Bytes of a symbol that are not content.
pub(crate) const SYMBOL_OVERHEAD: usize = LENGTH_LEN + TAG_LEN;
/// Size of a block's parts in bytes. Each part is sealed separately, because the length field has
/// two bytes.
const BLOCK_PART: usize = 32 << 10;
/// A part is sealed with the number `block << PART_BITS | part`. Blocks have at most 512 packets of
/// 64 KiB.
const PART_BITS: u32 = 12;
/// Number and length of the part that ends a block; it contains the number of the other parts.
const LAST_PART: u64 = (1 << PART_BITS) - 1;
const LAST_LEN: usize = SYMBOL_OVERHEAD + 2;
/// Symbols per key (power of two): far below the limit of AES-GCM (RFC 9001, section 6.6).
const GENERATION_BITS: u32 = 22;

enum Secret {
    Tls(Box<hmac::Key>),
    Plain(PlainKey),
}

/// Seals or opens the symbols of one direction.
pub(crate) struct SymbolKey {
    secret: Secret,
    /// Keys of the two newest key generations: for a while repairs combine symbols of both.
    keys: Vec<(u64, LessSafeKey)>,
}

/// Keys of both directions.
#[derive(Debug)]
pub(crate) struct SymbolKeys {
    pub(crate) seal: SymbolKey,
    pub(crate) open: SymbolKey,
}

impl core::fmt::Debug for SymbolKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SymbolKey")
    }
}

impl SymbolKeys {
    /// From the exporter's bytes: the client's secret, then the server's.
    pub(super) fn from_exporter(bytes: &[u8; 2 * SECRET_LEN], is_client: bool) -> Self {
        let key = |client: bool| {
            let (clients, servers) = bytes.split_at(SECRET_LEN);
            SymbolKey::from_secret(if client { clients } else { servers })
        };
        Self { seal: key(is_client), open: key(!is_client) }
    }

    /// Keys of the stand-in for simulation.
    pub(crate) fn plain(is_client: bool) -> Self {
        let key = |client: bool| SymbolKey {
            secret: Secret::Plain(PlainKey::new(0x5eed + u64::from(client))),
            keys: Vec::new(),
        };
        Self { seal: key(is_client), open: key(!is_client) }
    }
}

impl SymbolKey {
    /// From the secret of one direction.
    pub(super) fn from_secret(secret: &[u8]) -> Self {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        Self { secret: Secret::Tls(Box::new(secret)), keys: Vec::new() }
    }

    fn key(&mut self, number: u64) -> Option<&LessSafeKey> {
        let Secret::Tls(secret) = &self.secret else { return None };
        let generation = number >> GENERATION_BITS;
        let known = self.keys.iter().position(|(other, _)| *other == generation);
        let index = match known {
            Some(index) => index,
            None => {
                let key = hmac::sign(secret, &generation.to_be_bytes());
                let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.as_ref()).ok()?);
                if self.keys.len() == 2 {
                    self.keys.remove(0);
                }
                self.keys.push((generation, key));
                self.keys.len() - 1
            }
        };
        self.keys.get(index).map(|(_, key)| key)
    }

    /// Lets `fill` write content into `symbol` and seals it; returns the length of the sealed
    /// symbol, 0 if `fill` wrote nothing.
    pub(crate) fn seal(
        &mut self,
        number: u64,
        symbol: &mut [u8],
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> usize {
        let Some(room) = symbol.len().checked_sub(SYMBOL_OVERHEAD).filter(|&room| room > 0) else {
            return 0;
        };
        let room = room.min(usize::from(u16::MAX));
        let len = fill(&mut symbol[LENGTH_LEN..][..room]).min(room);
        if len == 0 {
            return 0;
        }
        let length = (len as u16).to_be_bytes();
        symbol[..LENGTH_LEN].copy_from_slice(&length);
        let (content, rest) = symbol[LENGTH_LEN..].split_at_mut(len);
        let tag: [u8; TAG_LEN] = match &self.secret {
            Secret::Plain(key) => key.tag(number, &length, content),
            Secret::Tls(_) => {
                let sealed = self.key(number).and_then(|key| {
                    key.seal_in_place_separate_tag(nonce(number), Aad::from(length), content).ok()
                });
                // Cannot fail for these lengths; if it did, no plaintext may be sent.
                let tag = sealed.and_then(|tag| tag.as_ref().try_into().ok());
                match tag {
                    Some(tag) => tag,
                    None => {
                        content.fill(0);
                        [0; TAG_LEN]
                    }
                }
            }
        };
        rest[..TAG_LEN].copy_from_slice(&tag);
        len + SYMBOL_OVERHEAD
    }

    /// Opens a symbol, which may be padded, into `content`; false if it is not authentic.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(crate) fn open(&mut self, number: u64, symbol: &[u8], content: &mut Vec<u8>) -> bool {
        content.clear();
        let Some((length, rest)) = symbol.split_first_chunk::<LENGTH_LEN>() else { return false };
        let len = usize::from(u16::from_be_bytes(*length));
        let sealed = len.saturating_add(TAG_LEN);
        content.extend_from_slice(rest.get(..sealed).unwrap_or(rest));
        // Trailing zeros may be omitted.
        content.resize(sealed, 0);
        let authentic = match &self.secret {
            Secret::Plain(key) => content
                .split_at_checked(len)
                .is_some_and(|(content, tag)| key.tag(number, length, content) == tag),
            Secret::Tls(_) => self.key(number).is_some_and(|key| {
                key.open_in_place(nonce(number), Aad::from(*length), content).is_ok()
            }),
        };
        content.truncate(if authentic { len } else { 0 });
        authentic
    }
}

impl SymbolKey {
    /// Lets `fill` write content into a block until it writes nothing, and seals it in parts;
    /// returns the length of the sealed block, 0 if `fill` wrote nothing. The last part
    /// authenticates the number of parts.
    pub(crate) fn seal_block(
        &mut self,
        block: u64,
        bytes: &mut [u8],
        mut fill: impl FnMut(&mut [u8]) -> usize,
    ) -> usize {
        let room = bytes.len().saturating_sub(LAST_LEN);
        let (mut total, mut parts) = (0, 0_u16);
        while u64::from(parts) < LAST_PART {
            let end = room.min(total + BLOCK_PART);
            let number = block << PART_BITS | u64::from(parts);
            let len = self.seal(number, &mut bytes[total..end], &mut fill);
            if len == 0 {
                break;
            }
            total += len;
            parts += 1;
        }
        if total > 0 {
            let last = block << PART_BITS | LAST_PART;
            total += self.seal(last, &mut bytes[total..][..LAST_LEN], |bytes| {
                bytes.copy_from_slice(&parts.to_be_bytes());
                bytes.len()
            });
        }
        total
    }

    /// Opens a block in place; false if it is not authentic.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(crate) fn open_block(&mut self, block: u64, bytes: &mut Vec<u8>) -> bool {
        let mut content = Vec::with_capacity(bytes.len());
        let (mut rest, mut part) = (bytes.as_slice(), Vec::new());
        let mut parts = 0_u16;
        while rest.len() > LAST_LEN && u64::from(parts) < LAST_PART {
            if !self.open(block << PART_BITS | u64::from(parts), rest, &mut part) {
                return false;
            }
            content.extend_from_slice(&part);
            let opened = part.len().saturating_add(SYMBOL_OVERHEAD);
            let Some(behind) = rest.get(opened..) else { return false };
            rest = behind;
            parts = parts.saturating_add(1);
        }
        let is_whole = rest.len() == LAST_LEN
            && self.open(block << PART_BITS | LAST_PART, rest, &mut part)
            && part == parts.to_be_bytes();
        if is_whole {
            *bytes = content;
        }
        is_whole
    }
}

/// The nonce of what has this number.
pub(super) fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs() -> Vec<(SymbolKeys, SymbolKeys)> {
        let bytes = core::array::from_fn(|i| i as u8);
        vec![
            (SymbolKeys::from_exporter(&bytes, true), SymbolKeys::from_exporter(&bytes, false)),
            (SymbolKeys::plain(true), SymbolKeys::plain(false)),
        ]
    }

    #[test]
    fn only_authentic_symbols_and_blocks_open() {
        for (mut client, mut server) in pairs() {
            let mut content = Vec::new();
            for number in [0, 5, (1 << 22) - 1, 1 << 22, 3 << 22, 6] {
                let mut symbol = vec![0; 100];
                let len = client.seal.seal(number, &mut symbol, |bytes| {
                    assert_eq!(bytes.len(), 100 - SYMBOL_OVERHEAD);
                    bytes[..5].copy_from_slice(b"hello");
                    5
                });
                assert_eq!(len, 5 + SYMBOL_OVERHEAD);
                for padded in [len, 100] {
                    assert!(server.open.open(number, &symbol[..padded], &mut content));
                    assert_eq!(content, b"hello");
                }
                assert!(!server.open.open(number + 1, &symbol, &mut content));
                assert!(!client.open.open(number, &symbol, &mut content), "other direction");
                for at in 0..len {
                    let mut tampered = symbol.clone();
                    tampered[at] ^= 1;
                    assert!(!server.open.open(number, &tampered, &mut content), "byte {at}");
                    assert!(content.is_empty());
                }
            }
            for total in [1, 100, BLOCK_PART, 3 * BLOCK_PART] {
                let (mut block, mut left) = (vec![0; total + 200], total);
                let len = client.seal.seal_block(9, &mut block, |bytes| {
                    // Leave some bytes free, as a message queue does.
                    let part = left.min(bytes.len().saturating_sub(3));
                    bytes[..part].fill(left as u8);
                    left -= part;
                    part
                });
                assert_eq!(left, 0);
                block.truncate(len);
                let mut opened = block.clone();
                assert!(server.open.open_block(9, &mut opened) && opened.len() == total);
                assert!(!server.open.open_block(8, &mut block.clone()));
                for at in (0..len).step_by(977) {
                    let mut tampered = block.clone();
                    tampered[at] ^= 1;
                    assert!(!server.open.open_block(9, &mut tampered), "byte {at}");
                    // A truncated block does not open.
                    assert!(!server.open.open_block(9, &mut block[..at].to_vec()), "{at}");
                    assert!(!server.open.open_block(9, &mut block[at + 1..].to_vec()), "{at}");
                }
                let without_end = len - LAST_LEN;
                assert!(!server.open.open_block(9, &mut block[..without_end].to_vec()));
                assert!(!server.open.open_block(9, &mut block[without_end..].to_vec()));
            }
            assert_eq!(client.seal.seal_block(9, &mut [0; 100], |_| 0), 0);
            assert_eq!(client.seal.seal_block(9, &mut [0; 10], |_| 1), 0);
            let mut symbol = vec![0; SYMBOL_OVERHEAD];
            assert_eq!(client.seal.seal(7, &mut symbol, |_| unreachable!()), 0, "no room");
            assert!(!server.open.open(7, &[0], &mut content));
        }
    }

    /// AES-256-GCM with the key HMAC-SHA256(secret, generation), the number as nonce, the length as
    /// associated data. The expected values come from another implementation.
    #[test]
    fn golden_symbols() {
        let bytes = core::array::from_fn(|i| i as u8);
        for (number, is_client, sealed) in [
            (5, true, "00058a3ece325f097427081b74a5063f2eb251f2da9534"),
            ((1 << 22) - 1, false, "0005f37446607f78d8b0c1a3b5ee145a9db7a18d809923"),
            (0x0102_0304_0506_0708, true, "00055c12a3f1751766b0189e86fbdc085ebc9dfc7b5b37"),
        ] {
            let mut keys = SymbolKeys::from_exporter(&bytes, is_client);
            let mut symbol = vec![0; 5 + SYMBOL_OVERHEAD];
            let fill = |bytes: &mut [u8]| {
                bytes.copy_from_slice(b"hello");
                5
            };
            assert_eq!(keys.seal.seal(number, &mut symbol, fill), symbol.len());
            let made: String = symbol.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(made, sealed, "{number}");
        }
        // The stand-in for simulation: the same layout with its checksum.
        for (is_client, label) in [(false, 0x5eed), (true, 0x5eee)] {
            let mut symbol = [0; 5 + SYMBOL_OVERHEAD];
            SymbolKeys::plain(is_client).seal.seal(7, &mut symbol, |bytes| {
                bytes.copy_from_slice(b"hello");
                5
            });
            let tag = PlainKey::new(label).tag(7, &[0, 5], b"hello");
            assert_eq!(symbol, *[&[0, 5], &b"hello"[..], &tag].concat());
        }
    }

    #[test]
    fn keys_of_the_last_two_generations_are_kept() {
        let mut keys = SymbolKeys::from_exporter(&[3; 2 * SECRET_LEN], true);
        for (generation, kept) in
            [(0, vec![0]), (1, vec![0, 1]), (0, vec![0, 1]), (2, vec![1, 2]), (9, vec![2, 9])]
        {
            assert!(keys.open.key(generation << 22).is_some());
            assert!(keys.open.key((generation << 22) + (1 << 22) - 1).is_some());
            let found: Vec<u64> =
                keys.open.keys.iter().map(|(generation, _)| *generation).collect();
            assert_eq!(found, kept);
        }
    }

    /// The length field has two bytes.
    #[test]
    fn content_is_limited_by_its_length_field() {
        for (mut client, mut server) in pairs() {
            let mut symbol = vec![0; 70_000];
            let mut content = Vec::new();
            let len = client.seal.seal(1, &mut symbol, |bytes| {
                assert_eq!(bytes.len(), 65_535);
                bytes.fill(9);
                70_000
            });
            assert_eq!(len, 65_535 + SYMBOL_OVERHEAD);
            assert!(server.open.open(1, &symbol, &mut content));
            assert_eq!(content, [9; 65_535]);
            let mut symbol = [0; SYMBOL_OVERHEAD + 1];
            assert_eq!(client.seal.seal(2, &mut symbol, |bytes| bytes.len()), SYMBOL_OVERHEAD + 1);
        }
    }

    #[test]
    fn parts_of_a_block_are_bounded_in_length_and_number() {
        for (mut client, mut server) in pairs() {
            // Two full parts and the last one, which contains their number.
            let mut block = vec![0; 2 * BLOCK_PART + LAST_LEN];
            let mut rooms = Vec::new();
            let len = client.seal.seal_block(3, &mut block, |bytes| {
                rooms.push(bytes.len());
                bytes.len()
            });
            assert_eq!(rooms, [BLOCK_PART - SYMBOL_OVERHEAD; 2]);
            assert_eq!((len, BLOCK_PART, LAST_LEN), (block.len(), 32_768, 20));
            assert!(server.open.open_block(3, &mut block));
            assert_eq!(block.len(), 2 * (BLOCK_PART - SYMBOL_OVERHEAD));

            // At most as many parts as the part number allows.
            let mut block = vec![0; 5_000 * (1 + SYMBOL_OVERHEAD) + LAST_LEN];
            let mut taken = 0;
            let len = client.seal.seal_block(4, &mut block, |bytes| {
                bytes[0] = 5;
                taken += 1;
                1
            });
            assert_eq!((taken, len), (4_095, 4_095 * (1 + SYMBOL_OVERHEAD) + LAST_LEN));
            block.truncate(len);
            assert!(server.open.open_block(4, &mut block));
            assert_eq!(block, [5; 4_095]);

            // Nor are more opened: the number after them is that of the part that counts them.
            let mut more = Vec::new();
            let content = (0..=4_095_u64).map(|part| (part, vec![5]));
            for (part, content) in content.chain([(4_095, 4_096_u16.to_be_bytes().to_vec())]) {
                let mut sealed = vec![0; content.len() + SYMBOL_OVERHEAD];
                client.seal.seal(6 << PART_BITS | part, &mut sealed, |bytes| {
                    bytes.copy_from_slice(&content);
                    bytes.len()
                });
                more.append(&mut sealed);
            }
            assert!(!server.open.open_block(6, &mut more));

            // Without room for content and the last part nothing is sealed.
            for room in 0..=LAST_LEN + SYMBOL_OVERHEAD {
                assert_eq!(client.seal.seal_block(5, &mut vec![0; room], |bytes| bytes.len()), 0);
            }
        }
    }
}
