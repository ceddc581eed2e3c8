//! A stand-in for packet protection: deterministic, fast, insecure; only for simulation and
//! fuzzing.

/// Key of the checksum.
#[derive(Clone, Copy, Debug)]
pub struct PlainKey(u64);

const A: u64 = 0x9e37_79b9_7f4a_7c15;
const B: u64 = 0xd6e8_feb8_6659_fd93;

impl PlainKey {
    pub(super) fn new(label: u64) -> Self {
        Self(label.wrapping_mul(A) | 1)
    }

    /// A 128-bit checksum that detects accidental changes.
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

fn mix(lanes: &mut [u64; 4], bytes: &[u8]) {
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut last = [0; 32];
    last[..rest.len()].copy_from_slice(rest);
    for block in blocks.iter().chain(core::iter::once(&last)) {
        let (words, _) = block.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(B).rotate_left(29);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pins the tags, so that simulations give the same trace on every machine and in every
    /// version.
    #[test]
    fn golden_tags() {
        let bytes: [u8; 100] = core::array::from_fn(|i| i as u8);
        for (label, number, header, payload, tag) in [
            (1, 0, 0, 0, 0xc694_ad1a_bdbc_dc11_83a7_bee2_48f7_5efe_u128),
            (2, 7, 9, 31, 0x76a7_2950_9ca5_f94d_e9f5_ec67_236e_bc2d),
            (3, 1 << 40, 33, 64, 0xd24a_b350_cec1_28ab_e8b7_1e23_85a0_c537),
            (4, u64::MAX, 64, 100, 0xbe0a_3b9c_1d61_52a4_9adb_a882_c6bf_c44f),
        ] {
            let made = PlainKey::new(label).tag(number, &bytes[..header], &bytes[..payload]);
            assert_eq!(u128::from_be_bytes(made), tag, "{label}");
        }
    }

    #[test]
    fn tag_depends_on_every_byte_and_length() {
        let mut bytes = [7; 80];
        let tag =
            |number, header: &[u8], payload: &[u8]| PlainKey::new(1).tag(number, header, payload);
        let authentic = tag(5, &bytes[..9], &bytes[9..]);
        assert_ne!(tag(6, &bytes[..9], &bytes[9..]), authentic);
        assert_ne!(PlainKey::new(2).tag(5, &bytes[..9], &bytes[9..]), authentic);
        for header in (0..80).filter(|&header| header != 9) {
            assert_ne!(tag(5, &bytes[..header], &bytes[header..]), authentic, "{header}");
        }
        for at in 0..80 {
            bytes[at] ^= 1;
            assert_ne!(tag(5, &bytes[..9], &bytes[9..]), authentic, "{at}");
            bytes[at] ^= 1;
        }
        // Zeros after the payload change the tag.
        assert_ne!(tag(5, &[], &[0; 3]), tag(5, &[], &[0; 4]));
    }
}
