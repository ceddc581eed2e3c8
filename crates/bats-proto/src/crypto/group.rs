//! Keys of a flow to a group, derived from the key that the source and the members share.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, UnboundKey};
use aws_lc_rs::hkdf;

use super::symbol::{SECRET_LEN, SymbolKey, nonce};
use crate::config::PresharedKey;
use crate::wire::announcement::ANNOUNCEMENT_SALT_LEN;
use crate::wire::flow::FlowKey;

/// Labels of the two keys of a flow.
const ANNOUNCEMENT_LABEL: &[u8] = b"openbats group announcement";
const SYMBOL_LABEL: &[u8] = b"openbats group symbols";

/// Keys of one flow to a group.
pub(crate) struct GroupKeys {
    announcements: LessSafeKey,
    /// Seals or opens the symbols.
    pub(crate) symbols: SymbolKey,
}

impl core::fmt::Debug for GroupKeys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("GroupKeys")
    }
}

impl GroupKeys {
    /// HKDF-SHA256 (RFC 5869) of the group's key with the salt of the source. Group, source and flow are in the
    /// derivation, so that flows with the same salt do not share keys. `None` if the library fails, which it does not
    /// for these lengths.
    pub(crate) fn derive(
        key: &PresharedKey,
        salt: &[u8; ANNOUNCEMENT_SALT_LEN],
        flow: FlowKey,
    ) -> Option<Self> {
        let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(key.bytes());
        let expand = |label: &[u8]| {
            let numbers = [flow.destination.0, flow.source.0, flow.flow].map(u32::to_be_bytes);
            let info = [label, &numbers[0], &numbers[1], &numbers[2]];
            let mut bytes = [0; SECRET_LEN];
            secret.expand(&info, hkdf::HKDF_SHA256).ok()?.fill(&mut bytes).ok()?;
            Some(bytes)
        };
        let announcements = UnboundKey::new(&AES_256_GCM, &expand(ANNOUNCEMENT_LABEL)?).ok()?;
        Some(Self {
            announcements: LessSafeKey::new(announcements),
            symbols: SymbolKey::from_secret(&expand(SYMBOL_LABEL)?),
        })
    }

    /// Appends the sealed fields of an announcement to its header. A number must be used once. False if nothing was
    /// sealed.
    pub(crate) fn seal(&self, number: u64, mut fields: Vec<u8>, packet: &mut Vec<u8>) -> bool {
        let aad = Aad::from(&packet[..]);
        let sealed =
            self.announcements.seal_in_place_append_tag(nonce(number), aad, &mut fields).is_ok();
        if sealed {
            packet.append(&mut fields);
        }
        sealed
    }

    /// Opens the sealed fields of an announcement; `None` if they are not authentic.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(crate) fn open(&self, number: u64, header: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let mut fields = sealed.to_vec();
        let aad = Aad::from(header);
        let len = self.announcements.open_in_place(nonce(number), aad, &mut fields).ok()?.len();
        fields.truncate(len);
        Some(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::flow::NodeId;

    const KEY: FlowKey =
        FlowKey { destination: NodeId(0xe000_0001), source: NodeId(2), flow: 0x0304_0506 };

    fn keys(byte: u8, salt: u8, flow: FlowKey) -> GroupKeys {
        GroupKeys::derive(&PresharedKey::new([byte; 32]), &[salt; 16], flow).unwrap()
    }

    /// HKDF-SHA256 and AES-256-GCM as docs/spec/groups.md says. The expected values come from another implementation.
    #[test]
    fn golden_announcement_and_symbol() {
        let mut keys = keys(1, 2, KEY);
        let mut packet = b"header".to_vec();
        assert!(keys.seal(9, b"fields".to_vec(), &mut packet));
        let mut symbol = [0; 23];
        keys.symbols.seal(5, &mut symbol, |bytes| {
            bytes[..5].copy_from_slice(b"hello");
            5
        });
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&packet[6..]), "cf0ec84bb74e56c3072e9b8175a4c9d0bb60cf021dff");
        assert_eq!(hex(&symbol), "00051890d07d873953f1922cab3fe95c8c839ebf94f58e");
    }

    #[test]
    fn keys_depend_on_key_salt_and_flow() {
        let mut packet = b"header".to_vec();
        assert!(keys(1, 2, KEY).seal(9, b"fields".to_vec(), &mut packet));
        let mut symbol = [0; 64];
        let len = keys(1, 2, KEY).symbols.seal(5, &mut symbol, |bytes| {
            bytes[..3].copy_from_slice(b"abc");
            3
        });
        let reads = |keys: &mut GroupKeys, number: u64| {
            let mut content = Vec::new();
            let has_symbol = keys.symbols.open(5, &symbol[..len], &mut content);
            assert!(!has_symbol || content == b"abc");
            let fields = keys.open(number, &packet[..6], &packet[6..]);
            assert!(fields.as_ref().is_none_or(|fields| fields == b"fields"));
            (has_symbol, fields.is_some())
        };
        assert_eq!(reads(&mut keys(1, 2, KEY), 9), (true, true));
        assert_eq!(reads(&mut keys(1, 2, KEY), 8), (true, false));
        for mut other in [
            keys(2, 2, KEY),
            keys(1, 3, KEY),
            keys(1, 2, FlowKey { destination: NodeId(0xe000_0002), ..KEY }),
            keys(1, 2, FlowKey { source: NodeId(3), ..KEY }),
            keys(1, 2, FlowKey { flow: 7, ..KEY }),
        ] {
            assert_eq!(reads(&mut other, 9), (false, false));
        }
        for at in 0..packet.len() {
            let mut forged = packet.clone();
            forged[at] ^= 1;
            assert_eq!(keys(1, 2, KEY).open(9, &forged[..6], &forged[6..]), None, "byte {at}");
        }
        assert_eq!(keys(1, 2, KEY).open(9, b"header", b"short"), None);
    }
}
