//! Seals the symbols of sessions that cross relays, before they are coded: who changes a coded
//! packet on the way makes symbols that do not open.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hmac;

use super::TAG_LEN;
use super::plain::PlainKey;

/// Label of the exporter (RFC 8446, section 7.5).
pub(super) const EXPORTER_LABEL: &[u8] = b"openbats symbols";
/// Octets of one direction's secret.
pub(super) const SECRET_LEN: usize = 32;
/// Octets of the length before the content.
const LENGTH_LEN: usize = 2;
/// Octets of a symbol that are not content.
pub(crate) const SYMBOL_OVERHEAD: usize = LENGTH_LEN + TAG_LEN;
/// Symbols per key, as a power of two: far below what is safe for AES-GCM (RFC 9001, section 6.6).
const GENERATION_BITS: u32 = 22;

enum Secret {
    Tls(Box<hmac::Key>),
    Plain(PlainKey),
}

/// Seals or opens the symbols of one direction.
pub(crate) struct SymbolKey {
    secret: Secret,
    /// The last two generations in use: repairs mix symbols of both for a while.
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
    /// From the exporter's octets: the client's secret, then the server's.
    pub(super) fn from_exporter(octets: &[u8; 2 * SECRET_LEN], is_client: bool) -> Self {
        let key = |client: bool| {
            let (clients, servers) = octets.split_at(SECRET_LEN);
            let secret = if client { clients } else { servers };
            SymbolKey {
                secret: Secret::Tls(Box::new(hmac::Key::new(hmac::HMAC_SHA256, secret))),
                keys: Vec::new(),
            }
        };
        Self { seal: key(is_client), open: key(!is_client) }
    }

    /// The simulator's.
    pub(super) fn plain(is_client: bool) -> Self {
        let key = |client: bool| SymbolKey {
            secret: Secret::Plain(PlainKey::new(0x5eed + u64::from(client))),
            keys: Vec::new(),
        };
        Self { seal: key(is_client), open: key(!is_client) }
    }
}

impl SymbolKey {
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

    /// Lets `fill` write content into `symbol` and seals it; octets of the sealed symbol, 0 if
    /// `fill` wrote none.
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
                // Cannot fail for such lengths; if it did, nothing readable may leave.
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

    /// Opens a symbol, which may be padded, into `content`; false if it was altered.
    pub(crate) fn open(&mut self, number: u64, symbol: &[u8], content: &mut Vec<u8>) -> bool {
        content.clear();
        let Some((length, rest)) = symbol.split_first_chunk::<LENGTH_LEN>() else { return false };
        let len = usize::from(u16::from_be_bytes(*length));
        let Some(sealed) = rest.get(..len + TAG_LEN) else { return false };
        content.extend_from_slice(sealed);
        let genuine = match &self.secret {
            Secret::Plain(key) => key.tag(number, length, &content[..len]) == content[len..],
            Secret::Tls(_) => self.key(number).is_some_and(|key| {
                key.open_in_place(nonce(number), Aad::from(*length), content).is_ok()
            }),
        };
        content.truncate(if genuine { len } else { 0 });
        genuine
    }
}

fn nonce(number: u64) -> Nonce {
    let mut octets = [0; NONCE_LEN];
    octets[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(octets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs() -> Vec<(SymbolKeys, SymbolKeys)> {
        let octets = core::array::from_fn(|i| i as u8);
        vec![
            (SymbolKeys::from_exporter(&octets, true), SymbolKeys::from_exporter(&octets, false)),
            (SymbolKeys::plain(true), SymbolKeys::plain(false)),
        ]
    }

    #[test]
    fn what_was_sealed_opens_padded_or_not_and_nothing_else_does() {
        for (mut client, mut server) in pairs() {
            let mut content = Vec::new();
            for number in [0, 5, (1 << 22) - 1, 1 << 22, 3 << 22, 6] {
                let mut symbol = vec![0; 100];
                let len = client.seal.seal(number, &mut symbol, |octets| {
                    assert_eq!(octets.len(), 100 - SYMBOL_OVERHEAD);
                    octets[..5].copy_from_slice(b"hello");
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
                    let mut altered = symbol.clone();
                    altered[at] ^= 1;
                    assert!(!server.open.open(number, &altered, &mut content), "octet {at}");
                    assert!(content.is_empty());
                }
            }
            let mut symbol = vec![0; SYMBOL_OVERHEAD];
            assert_eq!(client.seal.seal(7, &mut symbol, |_| unreachable!()), 0, "no room");
            assert!(!server.open.open(7, &[0], &mut content));
        }
    }
}
