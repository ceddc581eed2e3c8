//! Proof harnesses: properties of the parsers and of the arithmetic on numbers from the network, for
//! all inputs of bounded size.
//!
//! Kani proves each harness for all inputs (`tools/proofs/run --kani`). In `cargo test` the same
//! bodies run as properties with random inputs, so that they compile and hold without Kani;
//! `PROPTEST_CASES` sets the number of inputs (`tools/proofs/run`). A harness returns early for
//! inputs that it does not cover.

/// Defines harnesses: `NAME unwind N (ARGUMENT: TYPE, ...) { BODY }`. N is the bound of loop
/// iterations for Kani.
macro_rules! harnesses {
    ($($(#[$doc:meta])* $name:ident unwind $bound:literal
        ($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            #[cfg(kani)]
            #[kani::proof]
            #[kani::unwind($bound)]
            fn $name() {
                fn body($($argument: $kind),*) $body
                body($(kani::any::<$kind>()),*);
            }
        )*
        #[cfg(not(kani))]
        proptest::proptest! {
            $(
                $(#[$doc])*
                #[test]
                fn $name($($argument: $kind),*) {
                    fn body($($argument: $kind),*) $body
                    body($($argument),*);
                }
            )*
        }
    };
}

#[cfg(test)]
mod exhaustive;
mod frames;
mod headers;
mod numbers;
