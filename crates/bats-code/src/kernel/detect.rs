//! The kernels, and detection of those that this processor supports.

/// An implementation of the matrix products. All give the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Scalar,
    #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
    Neon,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    Ssse3,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    Avx2,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    Avx512,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    GfniAvx2,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    GfniAvx512,
}

/// All kinds of this architecture, slowest first.
pub(super) const KINDS: &[Kind] = &[
    Kind::Scalar,
    #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
    Kind::Neon,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    Kind::Ssse3,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    Kind::Avx2,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    Kind::Avx512,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    Kind::GfniAvx2,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    Kind::GfniAvx512,
];

/// Whether the processor supports these instructions. Without the feature `std` there is no
/// run-time detection: only the target features that the program is compiled for count.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
macro_rules! has {
    ($($feature:tt),+) => {{
        #[cfg(feature = "std")]
        let has = $(std::arch::is_x86_feature_detected!($feature))&&+;
        #[cfg(not(feature = "std"))]
        let has = $(cfg!(target_feature = $feature))&&+;
        has
    }};
}

impl Kind {
    pub(super) fn has_avx2(self) -> bool {
        match self {
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::Avx2 | Self::Avx512 | Self::GfniAvx2 | Self::GfniAvx512 => has!("avx2"),
            _ => false,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            Self::Neon => "neon",
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::Ssse3 => "ssse3",
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::Avx2 => "avx2",
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::Avx512 => "avx512",
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::GfniAvx2 => "gfni-avx2",
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::GfniAvx512 => "gfni-avx512",
        }
    }

    /// Whether a multiply-add costs about as much as a copy.
    pub(super) fn is_fast(self) -> bool {
        match self {
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::GfniAvx2 | Self::GfniAvx512 => true,
            _ => false,
        }
    }

    pub(super) fn is_supported(self) -> bool {
        match self {
            Self::Scalar => true,
            // Compiled only if the target guarantees it.
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            Self::Neon => true,
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::Ssse3 => has!("ssse3"),
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::Avx2 => has!("avx2"),
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::Avx512 => has!("avx512f", "avx512bw"),
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::GfniAvx2 => has!("avx2", "gfni"),
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Self::GfniAvx512 => has!("avx512f", "gfni"),
        }
    }
}
