//! The erasure codes of OpenBATS. The crate uses no clock, sockets or cryptography.
//!
//! * [`gf256`]: arithmetic of GF(256) with polynomial 0x11D, the example of RFC 9426.
//! * [`kernel`]: `m outputs = matrix x n rows`, with the fastest instructions of the processor.
//! * [`rows`]: storage of symbols, aligned to 64 bytes, zero-padded and recycled.
//! * [`stream`]: outer code of BRTP and BTP: a systematic sliding window of dense random linear
//!   combinations over GF(256).
//! * [`recode`]: inner code of RFC 9426 for M = 16, q = 256: recoding within a batch.
//! * [`adaptive`]: number of recoded packets for a next hop without feedback.
//! * [`rfc`]: outer and inner code of RFC 9426 for every M and q of its table, used by BRCTP.
//!
//! Without the default feature `std` the crate needs `core` and `alloc` only.
//!
//! `unsafe` code is only in `kernel/x86`, in `kernel/neon.rs`, and in the calls of both in
//! `kernel/mod.rs`.
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

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// M of RFC 9426: packets in a batch, and bytes in a coefficient vector (q = 256).
pub const BATCH_SIZE: usize = 16;
