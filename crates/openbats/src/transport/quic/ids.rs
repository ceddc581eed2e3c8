//! Connection IDs that the receiver can recognise.

use std::time::Duration;

use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

/// Bytes of an ID: four random bytes and a tag computed from them.
pub(super) const ID_LEN: usize = 8;

/// Generates and recognises connection IDs. The tag is not a proof: one in 2^32 other packets
/// matches by chance and is lost, and a packet with a forged tag goes to QUIC instead of BATS.
#[derive(Clone, Debug)]
pub(super) struct IdGenerator {
    key: u64,
    /// State of the generator; a clone starts from the same state.
    state: [u64; 2],
}

impl IdGenerator {
    pub(super) fn new(seed: [u8; 32]) -> Self {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&seed[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        Self { key: word(0), state: [word(8), word(16) | 1] }
    }

    /// A 64-bit bijection whose output reveals little of its input (splitmix64).
    fn mix(mut value: u64) -> u64 {
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn tag(&self, random: [u8; 4]) -> [u8; 4] {
        let mixed =
            Self::mix(Self::mix(u64::from(u32::from_be_bytes(random)) ^ self.key) ^ self.key);
        ((mixed >> 32) as u32).to_be_bytes()
    }

    pub(super) fn is_ours(&self, id: [u8; ID_LEN]) -> bool {
        let [a, b, c, d, tag @ ..] = id;
        self.tag([a, b, c, d]) == tag
    }
}

impl ConnectionIdGenerator for IdGenerator {
    fn generate_cid(&mut self) -> ConnectionId {
        self.state[0] = self.state[0].wrapping_add(self.state[1]);
        let random = ((Self::mix(self.state[0] ^ self.key) >> 16) as u32).to_be_bytes();
        let mut id = [0; ID_LEN];
        id[..4].copy_from_slice(&random);
        id[4..].copy_from_slice(&self.tag(random));
        ConnectionId::new(&id)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let id: [u8; ID_LEN] = id[..].try_into().map_err(|_| InvalidCid)?;
        if self.is_ours(id) { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        ID_LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn generated_ids_are_distinct_and_recognised() {
        let mut ids = IdGenerator::new([7; 32]);
        let mut seen = BTreeSet::new();
        for _ in 0..1_000 {
            let id = ids.generate_cid();
            assert!(ids.validate(&id).is_ok());
            let mut bytes: [u8; ID_LEN] = id[..].try_into().unwrap();
            assert!(seen.insert(bytes));
            bytes[5] ^= 1;
            assert!(!ids.is_ours(bytes));
        }
        let mut other = IdGenerator::new([8; 32]);
        assert!(ids.validate(&other.generate_cid()).is_err());
        assert!(ids.validate(&ConnectionId::new(&[1; 4])).is_err());
    }
}
