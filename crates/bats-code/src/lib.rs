//! The erasure code of OpenBATS: symbols and coefficients, no time, no sockets, no cryptography.
//!
//! * [`gf256`]: arithmetic of GF(256) with polynomial 0x11D, the example of RFC 9426.
//! * [`kernel`]: "m outputs = matrix x n rows", chosen once for the processor at hand.
//! * [`rows`]: 64-byte-aligned, zero-padded, recycled storage of symbols.
//! * [`stream`]: the systematic sliding-window outer code.
//! * [`recode`]: the RFC 9426 inner code: combinations of packets of one batch.
//! * [`rfc`]: the block code of RFC 9426, outer and inner, for every M and q of its table.
//!
//! `unsafe` stands in `kernel/x86.rs` and in the few lines of `kernel/mod.rs` that call it.
#![deny(unsafe_code)]

extern crate alloc;

#[doc(hidden)]
pub mod fuzzing;
pub mod gf256;
pub mod kernel;
pub mod recode;
pub mod rfc;
pub mod rows;
pub mod stream;

/// Packets of one batch: M of RFC 9426. A coefficient vector has this many octets (q = 256).
pub const BATCH_SIZE: usize = 16;
