//! Matrix products over GF(256) and GF(2): the one primitive that all coding is made of, in the
//! fastest form that the processor has.
//!
//! All kernels give the same bytes. [`Kernel::active`] is chosen once per process; the environment
//! variable `OPENBATS_KERNEL` forces another choice, for measurements and for tests. Without the
//! feature `std` the processor is not asked and no variable read: the best kernel among those that
//! the program is compiled for counts.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use detect::{KINDS, Kind};

use crate::rows::ALIGNMENT;

mod detect;
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
mod neon;
mod scalar;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod x86;

/// Name of the environment variable that forces a kernel.
pub const ENVIRONMENT_VARIABLE: &str = "OPENBATS_KERNEL";

/// What happens to the former content of the outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `out = M * rows`
    Overwrite,
    /// `out ^= M * rows`
    Accumulate,
}

/// A name that is no kernel of this processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKernel {
    name: String,
}

impl fmt::Display for UnknownKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no kernel \"{}\" on this processor; choices:", self.name)?;
        Kernel::available().try_for_each(|kernel| write!(f, " {}", kernel.name()))
    }
}

impl core::error::Error for UnknownKernel {}

/// A kernel that this processor can run; there is no way to make another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(Kind);

impl Kernel {
    /// The kernel of this process: the one that `OPENBATS_KERNEL` names, else (also when that name
    /// is unknown, see [`Kernel::from_environment`]) the fastest.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn active() -> Self {
        static ACTIVE: std::sync::OnceLock<Kernel> = std::sync::OnceLock::new();
        *ACTIVE.get_or_init(|| Self::from_environment().ok().flatten().unwrap_or_else(Self::best))
    }

    /// The fastest kernel that the program is compiled for.
    #[cfg(not(feature = "std"))]
    #[must_use]
    pub fn active() -> Self {
        Self::best()
    }

    /// The kernel that `OPENBATS_KERNEL` names, if it is set.
    ///
    /// # Errors
    /// The variable names no kernel of this processor. Programs that start should say so.
    #[cfg(feature = "std")]
    pub fn from_environment() -> Result<Option<Self>, UnknownKernel> {
        match std::env::var_os(ENVIRONMENT_VARIABLE) {
            None => Ok(None),
            Some(name) => Self::by_name(&name.to_string_lossy()).map(Some),
        }
    }

    /// The fastest kernel of this processor.
    #[must_use]
    pub fn best() -> Self {
        Self::available().last().unwrap_or(Self(Kind::Scalar))
    }

    /// All kernels of this processor, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        KINDS.iter().copied().filter(|kind| kind.is_supported()).map(Self)
    }

    /// The kernel of a name: `scalar`, `ssse3`, `avx2`, `avx512`, `gfni-avx2`, `gfni-avx512`, or
    /// `neon`.
    ///
    /// # Errors
    /// The name is unknown or the processor lacks the instructions.
    pub fn by_name(name: &str) -> Result<Self, UnknownKernel> {
        Self::available()
            .find(|kernel| kernel.name() == name)
            .ok_or_else(|| UnknownKernel { name: name.into() })
    }

    /// Name as in `OPENBATS_KERNEL`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Whether a multiply-add costs about as much as a copy (GFNI): wide windows pay.
    #[must_use]
    pub fn is_fast(self) -> bool {
        self.0.is_fast()
    }

    /// `outputs[i] = sum over j of matrix[i * n + j] * rows[j]` on the first `len` bytes, or the
    /// same added to the outputs. Rows need not be contiguous; they should be 64-byte aligned.
    ///
    /// # Panics
    /// `len` is no multiple of 64, a row or an output is shorter, or the matrix has not
    /// `outputs.len() * rows.len()` entries: errors of the caller, never of input.
    pub fn product(
        self,
        matrix: &[u8],
        rows: &[&[u8]],
        outputs: &mut [&mut [u8]],
        len: usize,
        mode: Mode,
    ) {
        assert_eq!(len % ALIGNMENT, 0, "whole vectors only");
        assert_eq!(matrix.len(), rows.len() * outputs.len(), "matrix is outputs x rows");
        assert!(rows.iter().all(|row| row.len() >= len), "a row is too short");
        assert!(outputs.iter().all(|output| output.len() >= len), "an output is too short");
        match self.0 {
            Kind::Scalar => scalar::product(matrix, rows, outputs, len, mode),
            #[cfg(any(
                all(target_arch = "x86_64", target_feature = "sse2"),
                all(target_arch = "aarch64", target_feature = "neon")
            ))]
            #[allow(unsafe_code, reason = "instructions that the detection found")]
            // SAFETY: a `Kernel` of a kind exists only if the processor has its instructions
            // (`available`), and the lengths were checked above.
            kind => unsafe {
                #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
                use x86::{gfni, shuffle};
                match kind {
                    Kind::Scalar => {}
                    #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
                    Kind::Neon => neon::product(matrix, rows, outputs, len, mode),
                    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
                    Kind::Ssse3 => shuffle::product_ssse3(matrix, rows, outputs, len, mode),
                    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
                    Kind::Avx2 => shuffle::product_avx2(matrix, rows, outputs, len, mode),
                    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
                    Kind::Avx512 => shuffle::product_avx512(matrix, rows, outputs, len, mode),
                    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
                    Kind::GfniAvx2 => gfni::product_avx2(matrix, rows, outputs, len, mode),
                    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
                    Kind::GfniAvx512 => gfni::product_avx512(matrix, rows, outputs, len, mode),
                }
            },
        }
    }

    /// The same over GF(2): `outputs[i]` is the sum (exclusive or) of the rows `j` for which
    /// `matrix[i * n + j]` is odd, on the first `len` bytes, or that added to the outputs.
    ///
    /// # Panics
    /// As [`Kernel::product`].
    pub fn product_gf2(
        self,
        matrix: &[u8],
        rows: &[&[u8]],
        outputs: &mut [&mut [u8]],
        len: usize,
        mode: Mode,
    ) {
        assert_eq!(len % ALIGNMENT, 0, "whole vectors only");
        assert_eq!(matrix.len(), rows.len() * outputs.len(), "matrix is outputs x rows");
        assert!(rows.iter().all(|row| row.len() >= len), "a row is too short");
        assert!(outputs.iter().all(|output| output.len() >= len), "an output is too short");
        for (i, output) in outputs.iter_mut().enumerate() {
            let line = &matrix[i * rows.len()..][..rows.len()];
            let mut add = mode == Mode::Accumulate;
            let mut chosen: [&[u8]; 64] = [&[]; 64];
            let mut count = 0;
            for (row, _) in rows.iter().zip(line).filter(|(_, factor)| *factor & 1 != 0) {
                chosen[count] = row;
                count += 1;
                if count == chosen.len() {
                    self.sum(&chosen, output, len, add);
                    (add, count) = (true, 0);
                }
            }
            if count > 0 || !add {
                self.sum(&chosen[..count], output, len, add);
            }
        }
    }

    /// `output = sum of rows`, or the same added to it; lengths are checked.
    fn sum(self, rows: &[&[u8]], output: &mut [u8], len: usize, add: bool) {
        match self.0 {
            Kind::Scalar => scalar::sum(rows, output, len, add),
            #[cfg(any(
                all(target_arch = "x86_64", target_feature = "sse2"),
                all(target_arch = "aarch64", target_feature = "neon")
            ))]
            #[allow(unsafe_code, reason = "instructions that the detection found")]
            // SAFETY: as in `product`: the kind is supported, `product_gf2` has checked the
            // lengths. A processor with GFNI and AVX-512 (AVX2) has AVX-512 (AVX2), one of x86-64
            // has SSE2.
            kind => unsafe {
                match kind {
                    Kind::Scalar => {}
                    #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
                    Kind::Neon => neon::sum(rows, output, len, add),
                    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
                    Kind::Ssse3 => x86::xor::sum_sse2(rows, output, len, add),
                    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
                    Kind::Avx2 | Kind::GfniAvx2 => x86::xor::sum_avx2(rows, output, len, add),
                    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
                    Kind::Avx512 | Kind::GfniAvx512 => {
                        x86::xor::sum_avx512(rows, output, len, add);
                    }
                }
            },
        }
    }

    /// [`Kernel::product`] (overwriting) for rows of different lengths, each a multiple of 64:
    /// what is missing counts as zero, what is beyond `len` does not count.
    ///
    /// # Panics
    /// As [`Kernel::product`], except for the rows' lengths.
    pub fn product_ragged(
        self,
        matrix: &[u8],
        rows: &[&[u8]],
        outputs: &mut [&mut [u8]],
        len: usize,
    ) {
        let shortest = rows.iter().map(|row| row.len()).min().unwrap_or(len);
        if shortest >= len {
            return self.product(matrix, rows, outputs, len, Mode::Overwrite);
        }
        assert_eq!(matrix.len(), rows.len() * outputs.len(), "matrix is outputs x rows");
        let mut from = 0;
        while from < len {
            // The rows that reach beyond `from` all reach `to`.
            let active = |row: &&[u8]| row.len() > from;
            let to = rows
                .iter()
                .filter(|row| active(row))
                .map(|row| row.len())
                .min()
                .map_or(len, |to| to.min(len));
            let segment: Vec<&[u8]> =
                rows.iter().filter(|row| active(row)).map(|row| &row[from..to]).collect();
            let mut part = Vec::with_capacity(segment.len() * outputs.len());
            if !rows.is_empty() {
                for line in matrix.chunks_exact(rows.len()) {
                    let used = line.iter().zip(rows).filter(|(_, row)| active(row));
                    part.extend(used.map(|(&factor, _)| factor));
                }
            }
            let mut windows: Vec<&mut [u8]> =
                outputs.iter_mut().map(|output| &mut output[from..to]).collect();
            self.product(&part, &segment, &mut windows, to - from, Mode::Overwrite);
            from = to;
        }
    }
}

#[cfg(test)]
mod tests;
