//! Matrix products over GF(256) and GF(2), the primitive of all coding, with the fastest
//! instructions that the processor supports.
//!
//! All kernels give the same bytes. [`Kernel::active`] is chosen once per process; the environment
//! variable `OPENBATS_KERNEL` overrides it for measurements and tests. Without the feature `std`
//! there is no run-time detection and no variable: the crate uses the fastest kernel that the
//! program is compiled for.

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

/// Name of the environment variable that selects a kernel.
pub const ENVIRONMENT_VARIABLE: &str = "OPENBATS_KERNEL";

/// Whether a product replaces the outputs or is added to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `out = M * rows`
    Overwrite,
    /// `out ^= M * rows`
    Accumulate,
}

/// The name is not that of a kernel that this processor supports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKernel {
    name: String,
}

impl fmt::Display for UnknownKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no kernel \"{}\" on this processor; available:", self.name)?;
        Kernel::available().try_for_each(|kernel| write!(f, " {}", kernel.name()))
    }
}

impl core::error::Error for UnknownKernel {}

/// A kernel that this processor supports. Unsupported kernels cannot be constructed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(Kind);

impl Kernel {
    /// The kernel of this process: the one that `OPENBATS_KERNEL` names, or the fastest if the
    /// variable is not set or invalid (see [`Kernel::from_environment`]).
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
    /// The variable names no kernel of this processor. Programs should report this at start.
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

    /// Whether the processor has AVX2 and the kernel uses it or a newer extension.
    #[must_use]
    pub(crate) fn has_avx2(self) -> bool {
        self.0.has_avx2()
    }

    /// Whether a multiply-add costs about as much as a copy (GFNI), which makes wide windows cheap.
    #[must_use]
    pub fn is_fast(self) -> bool {
        self.0.is_fast()
    }

    /// Computes `outputs[i] = sum over j of matrix[i * n + j] * rows[j]` on the first `len` bytes,
    /// or adds it to the outputs. Rows need not be contiguous; they should be 64-byte aligned.
    ///
    /// # Panics
    /// `len` is not a multiple of 64, a row or an output is shorter than `len`, or the matrix does
    /// not have `outputs.len() * rows.len()` entries. Received data must never cause this.
    pub fn product(
        self,
        matrix: &[u8],
        rows: &[&[u8]],
        outputs: &mut [&mut [u8]],
        len: usize,
        mode: Mode,
    ) {
        assert_eq!(len % ALIGNMENT, 0, "the length is not a multiple of 64");
        assert_eq!(matrix.len(), rows.len() * outputs.len(), "the matrix is not outputs x rows");
        assert!(rows.iter().all(|row| row.len() >= len), "a row is too short");
        assert!(outputs.iter().all(|output| output.len() >= len), "an output is too short");
        match self.0 {
            Kind::Scalar => scalar::product(matrix, rows, outputs, len, mode),
            #[cfg(any(
                all(target_arch = "x86_64", target_feature = "sse2"),
                all(target_arch = "aarch64", target_feature = "neon")
            ))]
            #[allow(unsafe_code, reason = "instructions that were detected")]
            // SAFETY: a `Kernel` of a kind exists only if the processor supports its instructions
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

    /// As [`Kernel::product`] over GF(2): `outputs[i]` becomes the sum (XOR) of the rows `j` for
    /// which `matrix[i * n + j]` is odd, on the first `len` bytes, or the sum is added to the
    /// outputs.
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
        assert_eq!(len % ALIGNMENT, 0, "the length is not a multiple of 64");
        assert_eq!(matrix.len(), rows.len() * outputs.len(), "the matrix is not outputs x rows");
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

    /// Computes `output = sum of rows`, or adds the sum to it. The caller has checked the lengths.
    fn sum(self, rows: &[&[u8]], output: &mut [u8], len: usize, add: bool) {
        match self.0 {
            Kind::Scalar => scalar::sum(rows, output, len, add),
            #[cfg(any(
                all(target_arch = "x86_64", target_feature = "sse2"),
                all(target_arch = "aarch64", target_feature = "neon")
            ))]
            #[allow(unsafe_code, reason = "instructions that were detected")]
            // SAFETY: as in `product`: the kind is supported and `product_gf2` has checked the
            // lengths. The GFNI kinds require AVX-512 or AVX2 as well; every x86-64 processor has
            // SSE2.
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

    /// As [`Kernel::product`] with [`Mode::Overwrite`], for rows of different lengths, each a
    /// multiple of 64. Bytes missing up to `len` count as zero; bytes beyond `len` are ignored.
    ///
    /// # Panics
    /// As [`Kernel::product`], except for short rows.
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
        assert_eq!(matrix.len(), rows.len() * outputs.len(), "the matrix is not outputs x rows");
        let mut from = 0;
        while from < len {
            // All rows that are longer than `from` reach `to`.
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
