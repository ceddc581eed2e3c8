use proptest::prelude::*;
use proptest::test_runner::contextualize_config;

use super::*;
use crate::gf256;

/// Miri is about a thousand times slower; fewer cases still cover every line.
const STEP: usize = if cfg!(miri) { 85 } else { 1 };
const CASES: u32 = if cfg!(miri) { 2 } else { 64 };

fn reference(matrix: &[u8], rows: &[&[u8]], output: usize, position: usize) -> u8 {
    let line = &matrix[output * rows.len()..][..rows.len()];
    line.iter()
        .zip(rows)
        .fold(0, |sum, (&f, row)| sum ^ row.get(position).map_or(0, |&x| gf256::mul(f, x)))
}

/// A deterministic pseudo-random byte; statistical quality does not matter here.
fn byte(a: usize, b: usize) -> u8 {
    ((a * 0x9e37_79b1 + b * 0x85eb_ca77 + (a * b) % 251) >> 7) as u8
}

#[test]
fn every_kernel_multiplies_every_pair_of_bytes() {
    // 5 blocks of 64 bytes: both the wide loops and the remainder loops compute every product.
    let all: Vec<u8> = (0..320).map(|x| x as u8).collect();
    let rotated: Vec<u8> = (0..320).map(|x| (x + 192) as u8).collect();
    for kernel in Kernel::available() {
        for factor in (0..=255u8).step_by(STEP) {
            for row in [&all, &rotated] {
                let mut output = vec![0xa5u8; 320];
                kernel.product(&[factor], &[row], &mut [&mut output], 320, Mode::Overwrite);
                for (&x, &product) in row.iter().zip(&output) {
                    assert_eq!(product, gf256::mul(factor, x), "{} {factor}", kernel.name());
                }
                kernel.product(&[factor], &[row], &mut [&mut output], 320, Mode::Accumulate);
                assert!(output.iter().all(|&sum| sum == 0), "{} {factor}", kernel.name());
            }
        }
    }
}

/// Every factor at every matrix position, for each number of outputs that a pass can have.
#[test]
fn every_factor_works_at_every_matrix_position() {
    let rows: Vec<Vec<u8>> =
        (0..3).map(|j| (0..192).map(|position| byte(j, position)).collect()).collect();
    let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
    for count in (1..=9).step_by(if cfg!(miri) { 4 } else { 1 }) {
        for step in (0..=255u8).step_by(STEP) {
            let matrix: Vec<u8> =
                (0..count * 3).map(|i| step.wrapping_add((i as u8).wrapping_mul(85))).collect();
            let expected: Vec<Vec<u8>> = (0..count)
                .map(|i| (0..192).map(|x| reference(&matrix, &rows, i, x)).collect())
                .collect();
            for kernel in Kernel::available() {
                let mut outputs = vec![vec![0u8; 192]; count];
                let mut slices: Vec<&mut [u8]> =
                    outputs.iter_mut().map(Vec::as_mut_slice).collect();
                kernel.product(&matrix, &rows, &mut slices, 192, Mode::Overwrite);
                assert_eq!(outputs, expected, "{} {count} {step}", kernel.name());
            }
        }
    }
}

#[test]
fn rows_beyond_one_block_are_accumulated() {
    let count = if cfg!(miri) { 5 } else { 150 };
    let rows: Vec<Vec<u8>> =
        (0..count).map(|j| (0..192).map(|position| byte(j, position)).collect()).collect();
    let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
    let matrix: Vec<u8> = (0..9 * count).map(|i| byte(i, 77)).collect();
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

/// A single output is computed in tiles of 1 to 12 vectors, depending on its length.
#[test]
fn a_single_output_can_have_any_length() {
    let longest = if cfg!(miri) { 2 } else { 27 };
    let rows: Vec<Vec<u8>> =
        (0..5).map(|j| (0..longest * 64).map(|position| byte(j, position)).collect()).collect();
    let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
    for count in [0, 1, 2, 5] {
        let matrix: Vec<u8> = (0..count).map(|i| byte(i, 5)).collect();
        let expected: Vec<u8> =
            (0..longest * 64).map(|x| reference(&matrix, &rows[..count], 0, x)).collect();
        for (kernel, len) in
            Kernel::available().flat_map(|kernel| (0..=longest).map(move |n| (kernel, 64 * n)))
        {
            for (mode, before) in [(Mode::Overwrite, 0), (Mode::Accumulate, 0x5a)] {
                let mut output = vec![0x5au8; longest * 64 + 1];
                kernel.product(&matrix, &rows[..count], &mut [&mut output], len, mode);
                let correct = expected[..len].iter().map(|x| x ^ before);
                assert!(output[..len].iter().copied().eq(correct), "{} {len}", kernel.name());
                assert!(output[len..].iter().all(|&x| x == 0x5a), "{} {len}", kernel.name());
            }
        }
    }
}

#[test]
fn unknown_names_are_errors_that_list_the_kernels() {
    for kernel in Kernel::available() {
        assert_eq!(Kernel::by_name(kernel.name()), Ok(kernel));
    }
    let error = Kernel::by_name("mmx").unwrap_err().to_string();
    assert!(error.contains("\"mmx\"") && error.contains("scalar"), "{error}");
}

proptest! {
    #![proptest_config(contextualize_config(ProptestConfig::with_cases(CASES)))]
    #[test]
    fn kernels_agree_on_any_matrix_shape(
        blocks in prop::collection::vec(0usize..6, 0..20),
        outputs in 1usize..20,
        len in 0usize..6,
        offset in 0usize..3,
        salt in any::<u16>(),
    ) {
        let len = len * 64;
        // Rows may be unaligned: alignment affects only speed.
        let storage: Vec<Vec<u8>> = blocks.iter().enumerate()
            .map(|(j, &b)| (0..b * 64 + offset).map(|p| byte(j + salt as usize, p)).collect())
            .collect();
        let rows: Vec<&[u8]> = storage.iter().map(|row| &row[offset..]).collect();
        let matrix: Vec<u8> =
            (0..outputs * rows.len()).map(|i| byte(i, salt as usize)).collect();
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

    /// Inputs may be unaligned, overlap or be identical; outputs may be unaligned. Bytes next to
    /// the outputs stay unchanged.
    #[test]
    fn kernels_agree_on_any_alignment(
        starts in prop::collection::vec(0usize..700, 0..70),
        places in prop::collection::vec(0usize..70, 1..12),
        blocks in 0usize..9,
        accumulate in any::<bool>(),
        binary in any::<bool>(),
        salt in any::<u16>(),
    ) {
        let len = blocks * 64;
        let salt = salt as usize;
        let storage: Vec<u8> = (0..700 + len).map(|x| byte(x, salt)).collect();
        let rows: Vec<&[u8]> = starts.iter().map(|&start| &storage[start..start + len]).collect();
        let mode = if accumulate { Mode::Accumulate } else { Mode::Overwrite };
        let matrix: Vec<u8> =
            (0..places.len() * rows.len()).map(|i| byte(salt, i)).collect();
        // Over GF(2) an odd entry counts as 1.
        let factors: Vec<u8> =
            matrix.iter().map(|&factor| if binary { factor & 1 } else { factor }).collect();
        for kernel in Kernel::available() {
            let mut buffers = vec![vec![0x5au8; len + 80]; places.len()];
            let mut outputs: Vec<&mut [u8]> = buffers
                .iter_mut()
                .zip(&places)
                .map(|(buffer, &place)| &mut buffer[place..place + len])
                .collect();
            if binary {
                kernel.product_gf2(&matrix, &rows, &mut outputs, len, mode);
            } else {
                kernel.product(&matrix, &rows, &mut outputs, len, mode);
            }
            for (i, (buffer, &place)) in buffers.iter().zip(&places).enumerate() {
                for (position, &x) in buffer.iter().enumerate() {
                    let inside = (place..place + len).contains(&position);
                    let before = if inside && !accumulate { 0 } else { 0x5a };
                    let sum =
                        if inside { reference(&factors, &rows, i, position - place) } else { 0 };
                    prop_assert_eq!(x, before ^ sum, "{} at {}", kernel.name(), position);
                }
            }
        }
    }
}
