//! The erasure code of OpenBATS: symbols and coefficients, no time, no sockets, no cryptography.
//!
//! * [`gf256`]: arithmetic of GF(256) with polynomial 0x11D, the example of RFC 9426.
//! * [`kernel`]: "m outputs = matrix x n rows", chosen once for the processor at hand.
//! * [`rows`]: 64-byte-aligned, zero-padded, recycled storage of symbols.
//! * [`stream`]: the systematic sliding-window outer code.
//! * [`recode`]: the RFC 9426 inner code: combinations of packets of one batch.
//! * [`adaptive`]: how many of them a relay sends where nobody reports what arrived.
//! * [`rfc`]: the block code of RFC 9426, outer and inner, for every M and q of its table.
//!
//! Without the default feature `std` the crate needs `core` and `alloc` only.
//!
//! `unsafe` stands in `kernel/x86`, in `kernel/neon.rs`, and in the few lines of `kernel/mod.rs`
//! that call them.
#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![deny(unsafe_code)]

extern crate alloc;

pub mod adaptive;
#[doc(hidden)]
pub mod fuzzing;
pub mod gf256;
pub mod kernel;
pub mod recode;
pub mod rfc;
pub mod rows;
pub mod stream;

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Packets of one batch: M of RFC 9426. A coefficient vector has this many bytes (q = 256).
pub const BATCH_SIZE: usize = 16;
