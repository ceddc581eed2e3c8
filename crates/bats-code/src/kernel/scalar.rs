//! The kernel without vector instructions, on 64-bit words. It is the reference for the others, and
//! Miri can run it.
//!
//! A product is `sum over k of 2^k * (sum of the rows whose factor has bit k)`, by Horner's rule.
//! It reads no table and costs four additions per row on average. An output needs eight
//! multiplications by 2, for any number of rows.

use alloc::vec::Vec;

use super::Mode;

/// Bytes of an output computed at a time, so that a strip of many rows fits the L1 cache.
const STRIP: usize = 256;
const WORDS: usize = STRIP / 8;

/// Multiplies each byte of a word by 2 in GF(256) with polynomial 0x11D.
#[inline]
fn double(word: u64) -> u64 {
    let carries = word >> 7 & 0x0101_0101_0101_0101;
    (word & 0x7f7f_7f7f_7f7f_7f7f) << 1 ^ carries.wrapping_mul(0x1d)
}

#[inline]
fn add(sum: &mut [u64; WORDS], strip: &[u8]) {
    for (word, bytes) in sum.iter_mut().zip(strip.as_chunks::<8>().0) {
        *word ^= u64::from_ne_bytes(*bytes);
    }
}

#[inline]
fn store(sum: &[u64; WORDS], strip: &mut [u8]) {
    for (bytes, word) in strip.as_chunks_mut::<8>().0.iter_mut().zip(sum) {
        *bytes = word.to_ne_bytes();
    }
}

/// See [`super::Kernel::product`], which checks the lengths.
pub(super) fn product(
    matrix: &[u8],
    rows: &[&[u8]],
    outputs: &mut [&mut [u8]],
    len: usize,
    mode: Mode,
) {
    let mut chosen: [Vec<&[u8]>; 8] = Default::default();
    for (i, output) in outputs.iter_mut().enumerate() {
        let line = &matrix[i * rows.len()..][..rows.len()];
        for (bit, chosen) in chosen.iter_mut().enumerate() {
            chosen.clear();
            let factors = line.iter().zip(rows).filter(|(factor, _)| *factor >> bit & 1 != 0);
            chosen.extend(factors.map(|(_, row)| row));
        }
        for (index, strip) in output[..len].chunks_mut(STRIP).enumerate() {
            let from = index * STRIP;
            let range = from..from + strip.len();
            let mut total = [0; WORDS];
            for chosen in chosen.iter().rev() {
                total.iter_mut().for_each(|word| *word = double(*word));
                chosen.iter().for_each(|row| add(&mut total, &row[range.clone()]));
            }
            if mode == Mode::Accumulate {
                add(&mut total, strip);
            }
            store(&total, strip);
        }
    }
}

/// Computes `output = sum of rows` on `len` bytes, or adds the sum to it.
pub(super) fn sum(rows: &[&[u8]], output: &mut [u8], len: usize, accumulate: bool) {
    for (index, strip) in output[..len].chunks_mut(STRIP).enumerate() {
        let from = index * STRIP;
        let range = from..from + strip.len();
        let mut total = [0; WORDS];
        if accumulate {
            add(&mut total, strip);
        }
        rows.iter().for_each(|row| add(&mut total, &row[range.clone()]));
        store(&total, strip);
    }
}
