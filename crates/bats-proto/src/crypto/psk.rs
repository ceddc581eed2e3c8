//! Pre-shared-key (PSK) mode: secrets derived from the key that endpoints share (ADR 0017).

use aws_lc_rs::constant_time::verify_slices_are_equal;

use super::KeyLog;
use crate::config::{PresharedKey, TransportConfig};
use crate::wire::long_header::{CID_LEN, ORIGINAL_CID_LEN, VERSION};

/// Length of a proof in bytes.
pub(crate) const PROOF_LEN: usize = 16;

/// Length in bytes of the salt that a server chooses for each connection.
pub(crate) const SALT_LEN: usize = 16;

/// Key derivation contexts, one per use (BLAKE3, section 6.2).
const FLIGHT_CONTEXT: &str = "openbats 2026-11 closed mode, proof of a first flight";
const RETRY_CONTEXT: &str = "openbats 2026-11 closed mode, proof of a retry";
const LEVEL_CONTEXT: &str = "openbats 2026-11 closed mode, keys of the first level";

/// Keys derived from the pre-shared key.
#[derive(Clone)]
pub(crate) struct PskSecrets {
    flight: [u8; 32],
    retry: [u8; 32],
    level: [u8; 32],
    /// Receives the material of Initial keys.
    pub(super) key_log: Option<KeyLog>,
}

impl core::fmt::Debug for PskSecrets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("PskSecrets")
    }
}

impl PskSecrets {
    pub(crate) fn new(key: &PresharedKey) -> Self {
        let derive = |context| blake3::derive_key(context, key.bytes());
        Self {
            flight: derive(FLIGHT_CONTEXT),
            retry: derive(RETRY_CONTEXT),
            level: derive(LEVEL_CONTEXT),
            key_log: None,
        }
    }

    /// The secrets of a configuration; `None` if it has no pre-shared key.
    pub(crate) fn of(config: &TransportConfig) -> Option<Self> {
        let secrets = Self::new(config.psk.as_ref()?);
        Some(Self { key_log: config.key_log.clone(), ..secrets })
    }

    /// The secrets of all keys that a server accepts, the first one of the configuration first.
    pub(crate) fn accepted(config: &TransportConfig) -> Vec<Self> {
        let keys = config.psk.iter().chain(&config.also_accepted_psks);
        keys.map(|key| Self { key_log: config.key_log.clone(), ..Self::new(key) }).collect()
    }

    /// The proof that a client puts in front of its token. It hashes a single block, because a
    /// server computes it for every unauthenticated peer.
    pub(crate) fn proof(
        &self,
        destination: &[u8; ORIGINAL_CID_LEN],
        source: &[u8; CID_LEN],
    ) -> [u8; PROOF_LEN] {
        let mut message = [0; 4 + ORIGINAL_CID_LEN + CID_LEN];
        message[..4].copy_from_slice(&VERSION.to_be_bytes());
        message[4..][..ORIGINAL_CID_LEN].copy_from_slice(destination);
        message[4 + ORIGINAL_CID_LEN..].copy_from_slice(source);
        first_half(blake3::keyed_hash(&self.flight, &message))
    }

    /// The token after the proof, if the proof is right. The comparison takes constant time.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(crate) fn verify_proof<'a>(
        &self,
        destination: &[u8; ORIGINAL_CID_LEN],
        source: &[u8; CID_LEN],
        token: &'a [u8],
    ) -> Option<&'a [u8]> {
        let (proof, rest) = token.split_at_checked(PROOF_LEN)?;
        verify_slices_are_equal(&self.proof(destination, source), proof).ok().map(|()| rest)
    }

    /// The proof that a server appends to the token of a Retry, so that only a holder of the key
    /// can make a client restart.
    pub(crate) fn retry_proof(
        &self,
        original: &[u8; ORIGINAL_CID_LEN],
        client: &[u8; CID_LEN],
        token: &[u8],
    ) -> [u8; PROOF_LEN] {
        let mut hasher = blake3::Hasher::new_keyed(&self.retry);
        hasher.update(&VERSION.to_be_bytes()).update(original).update(client).update(token);
        first_half(hasher.finalize())
    }

    /// The token of a Retry without its proof, if the proof is right.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(crate) fn verify_retry_proof<'a>(
        &self,
        original: &[u8; ORIGINAL_CID_LEN],
        client: &[u8; CID_LEN],
        retry: &'a [u8],
    ) -> Option<&'a [u8]> {
        let (token, proof) = retry.split_at_checked(retry.len().checked_sub(PROOF_LEN)?)?;
        let right = self.retry_proof(original, client, token);
        verify_slices_are_equal(&right, proof).ok().map(|()| token)
    }

    /// Replaces the connection ID in the derivation of the Initial keys of one direction. The
    /// client's connection IDs are 96 random bits; a server adds the salt that is the token of its
    /// Initial packets. So each end contributes randomness to the keys that it seals with, and
    /// copies of a first flight make no server repeat a key.
    pub(crate) fn keying_material(
        &self,
        destination: &[u8; ORIGINAL_CID_LEN],
        source: &[u8; CID_LEN],
        salt: &[u8],
    ) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.level);
        *hasher.update(destination).update(source).update(salt).finalize().as_bytes()
    }
}

fn first_half(hash: blake3::Hash) -> [u8; PROOF_LEN] {
    let mut half = [0; PROOF_LEN];
    half.copy_from_slice(&hash.as_bytes()[..PROOF_LEN]);
    half
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(byte: u8) -> PskSecrets {
        PskSecrets::new(&PresharedKey::new([byte; 32]))
    }

    #[test]
    fn proof_is_valid_only_for_its_key_and_connection_ids() {
        let (ours, theirs) = (secrets(1), secrets(2));
        let mut token = ours.proof(&[3; 8], &[4; 4]).to_vec();
        assert_eq!(ours.verify_proof(&[3; 8], &[4; 4], &token), Some(&[][..]));
        token.extend_from_slice(b"token");
        assert_eq!(ours.verify_proof(&[3; 8], &[4; 4], &token), Some(&b"token"[..]));
        assert_eq!(theirs.verify_proof(&[3; 8], &[4; 4], &token), None);
        assert_eq!(ours.verify_proof(&[5; 8], &[4; 4], &token), None);
        assert_eq!(ours.verify_proof(&[3; 8], &[5; 4], &token), None);
        assert_eq!(ours.verify_proof(&[3; 8], &[4; 4], &token[..15]), None);
        assert_eq!(ours.verify_proof(&[3; 8], &[4; 4], &[]), None);
        for bit in 0..PROOF_LEN * 8 {
            let mut forged = token.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ours.verify_proof(&[3; 8], &[4; 4], &forged), None, "bit {bit}");
        }
    }

    #[test]
    fn retry_proof_is_valid_only_for_its_key_ids_and_token() {
        let (ours, theirs) = (secrets(1), secrets(2));
        let mut retry = b"token".to_vec();
        retry.extend_from_slice(&ours.retry_proof(&[3; 8], &[4; 4], b"token"));
        assert_eq!(ours.verify_retry_proof(&[3; 8], &[4; 4], &retry), Some(&b"token"[..]));
        assert_eq!(theirs.verify_retry_proof(&[3; 8], &[4; 4], &retry), None);
        assert_eq!(ours.verify_retry_proof(&[5; 8], &[4; 4], &retry), None);
        assert_eq!(ours.verify_retry_proof(&[3; 8], &[5; 4], &retry), None);
        for byte in 0..retry.len() {
            let mut forged = retry.clone();
            forged[byte] ^= 1;
            assert_eq!(ours.verify_retry_proof(&[3; 8], &[4; 4], &forged), None, "byte {byte}");
        }
        assert_eq!(ours.verify_retry_proof(&[3; 8], &[4; 4], &[]), None);
        // The proof of a flight is not valid for a Retry: each has its own key.
        let flight = ours.proof(&[3; 8], &[4; 4]);
        assert_eq!(ours.verify_retry_proof(&[3; 8], &[4; 4], &flight), None);
    }

    #[test]
    fn keying_material_depends_on_key_connection_ids_and_salt() {
        let material = secrets(1).keying_material(&[3; 8], &[5; 4], &[]);
        assert_eq!(material, secrets(1).keying_material(&[3; 8], &[5; 4], &[]));
        assert_ne!(material, secrets(2).keying_material(&[3; 8], &[5; 4], &[]));
        assert_ne!(material, secrets(1).keying_material(&[4; 8], &[5; 4], &[]));
        assert_ne!(material, secrets(1).keying_material(&[3; 8], &[6; 4], &[]));
        assert_ne!(material, secrets(1).keying_material(&[3; 8], &[5; 4], &[0; SALT_LEN]));
    }

    #[test]
    fn debug_output_does_not_show_keys() {
        let key = PresharedKey::new([0xab; 32]);
        let text = format!("{key:?} {:?}", PskSecrets::new(&key));
        assert_eq!(text, "PresharedKey(..) PskSecrets");
    }
}
