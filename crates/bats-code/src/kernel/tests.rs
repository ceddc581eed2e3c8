use proptest::prelude::*;

use super::*;
use crate::gf256;

fn reference(matrix: &[u8], rows: &[&[u8]], output: usize, position: usize) -> u8 {
    let line = &matrix[output * rows.len()..][..rows.len()];
    line.iter()
        .zip(rows)
        .fold(0, |sum, (&f, row)| sum ^ row.get(position).map_or(0, |&x| gf256::mul(f, x)))
}

/// A fixed pseudo-random octet: tests need variety, not quality.
fn octet(a: usize, b: usize) -> u8 {
    ((a * 0x9e37_79b1 + b * 0x85eb_ca77 + (a * b) % 251) >> 7) as u8
}

#[test]
fn every_kernel_multiplies_every_pair() {
    let all: Vec<u8> = (0..=255).collect();
    for kernel in Kernel::available() {
        for factor in 0..=255u8 {
            let mut output = vec![0xa5u8; 256];
            kernel.product(&[factor], &[&all], &mut [&mut output], 256, Mode::Overwrite);
            for x in 0..=255u8 {
                assert_eq!(output[x as usize], gf256::mul(factor, x), "{}", kernel.name());
            }
            kernel.multiply_add(factor, &all, &mut output);
            assert!(output.iter().all(|&sum| sum == 0), "{}", kernel.name());
        }
    }
}

#[test]
fn more_rows_than_one_block() {
    let rows: Vec<Vec<u8>> =
        (0..150).map(|j| (0..192).map(|position| octet(j, position)).collect()).collect();
    let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
    let matrix: Vec<u8> = (0..9 * 150).map(|i| octet(i, 77)).collect();
    for kernel in Kernel::available() {
        let mut outputs = vec![vec![1u8; 192]; 9];
        let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        kernel.product(&matrix, &rows, &mut slices, 192, Mode::Accumulate);
        for (i, output) in outputs.iter().enumerate() {
            for (position, &x) in output.iter().enumerate() {
                assert_eq!(x, reference(&matrix, &rows, i, position) ^ 1, "{}", kernel.name());
            }
        }
    }
}

#[test]
fn names_are_found_and_errors_list_the_choices() {
    for kernel in Kernel::available() {
        assert_eq!(Kernel::by_name(kernel.name()), Ok(kernel));
    }
    let error = Kernel::by_name("mmx").unwrap_err().to_string();
    assert!(error.contains("\"mmx\"") && error.contains("scalar"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn kernels_agree_on_any_shape(
        blocks in prop::collection::vec(0usize..6, 0..20),
        outputs in 1usize..20,
        len in 0usize..6,
        offset in 0usize..3,
        salt in any::<u16>(),
    ) {
        let len = len * 64;
        // Rows begin anywhere: alignment is for speed only.
        let storage: Vec<Vec<u8>> = blocks.iter().enumerate()
            .map(|(j, &b)| (0..b * 64 + offset).map(|p| octet(j + salt as usize, p)).collect())
            .collect();
        let rows: Vec<&[u8]> = storage.iter().map(|row| &row[offset..]).collect();
        let matrix: Vec<u8> =
            (0..outputs * rows.len()).map(|i| octet(i, salt as usize)).collect();
        for kernel in Kernel::available() {
            let mut results = vec![vec![0x5au8; len]; outputs];
            let mut slices: Vec<&mut [u8]> = results.iter_mut().map(Vec::as_mut_slice).collect();
            kernel.product_ragged(&matrix, &rows, &mut slices, len);
            for (i, result) in results.iter().enumerate() {
                for (position, &x) in result.iter().enumerate() {
                    prop_assert_eq!(x, reference(&matrix, &rows, i, position));
                }
            }
        }
    }
}
