//! A stand-in for security: deterministic, fast, and good for nothing but simulation and fuzzing.

/// Key of the checksum.
#[derive(Clone, Copy, Debug)]
pub struct PlainKey(u64);

const A: u64 = 0x9e37_79b9_7f4a_7c15;
const B: u64 = 0xd6e8_feb8_6659_fd93;

impl PlainKey {
    pub(super) fn new(label: u64) -> Self {
        Self(label.wrapping_mul(A) | 1)
    }

    /// A checksum of 128 bits that finds accidental changes.
    pub(super) fn tag(self, pn: u64, header: &[u8], payload: &[u8]) -> [u8; 16] {
        let mut lanes = [self.0 ^ pn, A ^ header.len() as u64, B, payload.len() as u64];
        mix(&mut lanes, header);
        mix(&mut lanes, payload);
        let x = fold(lanes[0] ^ lanes[2].rotate_left(17), A ^ lanes[1]);
        let y = fold(lanes[3] ^ lanes[1].rotate_left(31), B ^ lanes[0]);
        let mut tag = [0; 16];
        tag[..8].copy_from_slice(&x.to_le_bytes());
        tag[8..].copy_from_slice(&(y ^ x.rotate_left(32)).to_le_bytes());
        tag
    }
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

fn mix(lanes: &mut [u64; 4], octets: &[u8]) {
    let (blocks, rest) = octets.as_chunks::<32>();
    let mut last = [0; 32];
    last[..rest.len()].copy_from_slice(rest);
    for block in blocks.iter().chain(core::iter::once(&last)) {
        let (words, _) = block.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(B).rotate_left(29);
        }
    }
}
