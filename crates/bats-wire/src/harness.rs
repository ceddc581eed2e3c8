//! The macro that defines proof harnesses, also those of crates that use this one.

/// Defines harnesses: `NAME unwind N (ARGUMENT: TYPE, ...) { BODY }`. N is the bound of loop
/// iterations for Kani.
#[doc(hidden)]
#[macro_export]
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
