//! Kernels for x86-64. Each pass over the inputs computes a block of outputs with the sums in
//! registers. An input is loaded once per block of outputs, and an output is stored once per
//! `ROWS_PER_BLOCK` inputs.
//!
//! * [`gfni`]: `gf2p8affineqb` multiplies by an 8 x 8 bit matrix, and so by any factor for any
//!   polynomial (`gf2p8mulb` supports only that of AES).
//! * [`shuffle`]: two 16-entry tables give the products of the two nibbles, without GFNI.
//! * [`xor`]: sums of rows, for GF(2).
#![allow(unsafe_code, reason = "vector instructions on raw pointers; each block says why")]
#![allow(clippy::needless_range_loop, reason = "one index into three arrays of registers")]

pub(super) mod gfni;
pub(super) mod shuffle;
pub(super) mod xor;

/// Number of inputs in one pass: 4 KiB of multipliers for 8 outputs. The multipliers of one output
/// are contiguous; those of the next output start this many entries later.
const ROWS_PER_BLOCK: usize = 64;

/// Calls `$pass::<outputs in the block>` for blocks of at most `$most` outputs and of at most
/// `ROWS_PER_BLOCK` rows. `$pack` turns a factor into a multiplier.
macro_rules! in_blocks {
    ($matrix:ident, $rows:ident, $outputs:ident, $len:ident, $mode:ident,
     $pass:ident, $most:literal, [$($size:literal)*], $type:ty, $pack:expr) => {{
        use core::mem::MaybeUninit;
        use $crate::kernel::x86::ROWS_PER_BLOCK;
        let n = $rows.len();
        if n == 0 && $mode == Mode::Overwrite {
            for output in $outputs.iter_mut() {
                output[..$len].fill(0);
            }
        }
        // Not zeroed: that would cost more than a small product.
        let mut multipliers = [const { MaybeUninit::<$type>::uninit() }; ROWS_PER_BLOCK * $most];
        let mut done = 0;
        let mut rest = &mut $outputs[..];
        while !rest.is_empty() {
            // Blocks of about equal size: in a small block each load of an input is used less
            // often.
            let size = rest.len().div_ceil(rest.len().div_ceil($most));
            let (block, others) = rest.split_at_mut(size);
            rest = others;
            let mut targets = [core::ptr::null_mut::<u8>(); $most];
            for (target, output) in targets.iter_mut().zip(block.iter_mut()) {
                *target = output.as_mut_ptr();
            }
            for (index, inputs) in $rows.chunks(ROWS_PER_BLOCK).enumerate() {
                let first = index * ROWS_PER_BLOCK;
                for (i, slots) in multipliers.chunks_exact_mut(ROWS_PER_BLOCK).take(size).enumerate()
                {
                    let line = &$matrix[(done + i) * n + first..][..inputs.len()];
                    for (slot, &factor) in slots.iter_mut().zip(line) {
                        slot.write($pack(factor));
                    }
                }
                let add = index > 0 || $mode == Mode::Accumulate;
                // SAFETY: the caller guarantees the instructions and that every input and output
                // has `len` bytes. There are `size` targets, and one multiplier per input has
                // just been written for each of them.
                unsafe {
                    match size {
                        $($size => {
                            $pass::<$size>(multipliers.as_ptr().cast(), inputs, &targets, $len, add)
                        })*
                        _ => {}
                    }
                }
            }
            done += size;
        }
    }};
}
use in_blocks;
