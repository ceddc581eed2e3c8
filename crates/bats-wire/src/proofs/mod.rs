//! Proof harnesses: properties of the parsers and of the arithmetic on numbers from the network, for
//! all inputs of bounded size.
//!
//! Kani proves each harness for all inputs (`tools/proofs/run --kani`). In `cargo test` the same
//! bodies run as properties with random inputs, so that they compile and hold without Kani;
//! `PROPTEST_CASES` sets the number of inputs (`tools/proofs/run`). A harness returns early for
//! inputs that it does not cover.

#[cfg(test)]
mod exhaustive;
mod frames;
mod headers;
mod numbers;
