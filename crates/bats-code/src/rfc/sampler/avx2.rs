//! Batches whose generators run in lockstep in AVX2 registers: twice as many as in SSE2 registers.

use super::super::batch::Batch;
use super::OuterCode;
use crate::kernel::Kernel;

/// Generators in lockstep.
const LANES: usize = 8;

/// Whether the kernel in use has AVX2, so that `OPENBATS_KERNEL` selects both.
pub(super) fn is_supported() -> bool {
    Kernel::active().has_avx2()
}

/// The structures of 8 batches. Call it only if [`is_supported`].
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
#[allow(unsafe_code, reason = "the compiler does not know that the processor has AVX2")]
pub(super) fn batches(code: &OuterCode, batch_ids: [u32; LANES]) -> [Batch; LANES] {
    #[target_feature(enable = "avx2")]
    fn lanes(code: &OuterCode, batch_ids: [u32; LANES]) -> [Batch; LANES] {
        code.lanes(batch_ids)
    }
    assert!(is_supported(), "the processor has no AVX2");
    // SAFETY: the processor has AVX2.
    unsafe { lanes(code, batch_ids) }
}

/// The structures of 8 batches.
#[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
pub(super) fn batches(code: &OuterCode, batch_ids: [u32; LANES]) -> [Batch; LANES] {
    code.lanes(batch_ids)
}
