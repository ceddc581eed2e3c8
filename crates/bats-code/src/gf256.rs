//! GF(256) modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11D), generator 2, as in RFC 9426 and RFC 8681.

/// The primitive polynomial, with the term x^8.
pub const POLYNOMIAL: u16 = 0x11d;

/// Product by shift and add: the definition that all tables are computed from.
const fn mul_shift_add(a: u8, b: u8) -> u8 {
    let mut product: u16 = 0;
    let mut shifted = a as u16;
    let mut factor = b;
    while factor != 0 {
        if factor & 1 != 0 {
            product ^= shifted;
        }
        shifted <<= 1;
        if shifted & 0x100 != 0 {
            shifted ^= POLYNOMIAL;
        }
        factor >>= 1;
    }
    product as u8
}

/// `(exp, log)`. `exp` has two periods, so that a sum of two logarithms needs no reduction.
const fn logarithms() -> ([u8; 512], [u8; 256]) {
    let mut exp = [0u8; 512];
    let mut log = [0u8; 256];
    let mut value = 1u8;
    let mut i = 0;
    while i < 255 {
        exp[i] = value;
        exp[i + 255] = value;
        log[value as usize] = i as u8;
        value = mul_shift_add(value, 2);
        i += 1;
    }
    (exp, log)
}

const LOGARITHMS: ([u8; 512], [u8; 256]) = logarithms();

const fn products() -> [[u8; 256]; 256] {
    let mut table = [[0u8; 256]; 256];
    let mut a = 1;
    while a < 256 {
        let log_a = LOGARITHMS.1[a] as usize;
        let mut b = 1;
        while b < 256 {
            table[a][b] = LOGARITHMS.0[log_a + LOGARITHMS.1[b] as usize];
            b += 1;
        }
        a += 1;
    }
    table
}

const fn inverses() -> [u8; 256] {
    let mut table = [0u8; 256];
    let mut a = 1;
    while a < 256 {
        table[a] = LOGARITHMS.0[255 - LOGARITHMS.1[a] as usize];
        a += 1;
    }
    table
}

/// All products: `MUL[a][b] = a * b`.
pub(crate) static MUL: [[u8; 256]; 256] = products();
static INV: [u8; 256] = inverses();

/// The product `a * b`.
#[inline]
#[must_use]
pub fn mul(a: u8, b: u8) -> u8 {
    MUL[a as usize][b as usize]
}

/// The multiplicative inverse of `a`. Returns 0 for 0, which has none.
#[inline]
#[must_use]
pub fn inv(a: u8) -> u8 {
    INV[a as usize]
}

/// For each factor the 8 x 8 bit matrix that multiplies by it, in the layout of `gf2p8affineqb`:
/// byte 7 - i of the word is the mask of input bits whose parity is output bit i.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
pub(crate) static AFFINE: [u64; 256] = {
    let mut table = [0u64; 256];
    let mut factor = 0;
    while factor < 256 {
        let mut word = 0u64;
        let mut k = 0;
        while k < 8 {
            let image = mul_shift_add(factor as u8, 1 << k);
            let mut i = 0;
            while i < 8 {
                if image >> i & 1 != 0 {
                    word |= 1 << (8 * (7 - i) + k);
                }
                i += 1;
            }
            k += 1;
        }
        table[factor] = word;
        factor += 1;
    }
    table
};

/// For each factor its products with the 16 low nibbles, then with the 16 high nibbles.
#[cfg(any(
    all(target_arch = "x86_64", target_feature = "sse2"),
    all(target_arch = "aarch64", target_feature = "neon")
))]
pub(crate) static NIBBLES: [[u8; 32]; 256] = {
    let mut table = [[0u8; 32]; 256];
    let mut factor = 0;
    while factor < 256 {
        let mut n = 0;
        while n < 16 {
            table[factor][n] = mul_shift_add(factor as u8, n as u8);
            table[factor][16 + n] = mul_shift_add(factor as u8, (n as u8) << 4);
            n += 1;
        }
        factor += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_products_and_inverses() {
        assert_eq!(mul(2, 0x80), 0x1d);
        assert_eq!(mul(3, 7), 9);
        assert_eq!(mul(0x53, 0xca), 0x8f);
        assert_eq!(mul(0xff, 0xff), 0xe2);
        assert_eq!(inv(2), 0x8e);
        assert_eq!(inv(0x53), 0x8c);
    }

    #[test]
    fn tables_agree_with_the_definition() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                assert_eq!(mul(a, b), mul_shift_add(a, b));
            }
            assert_eq!(mul(a, inv(a)), u8::from(a != 0));
        }
    }
}
