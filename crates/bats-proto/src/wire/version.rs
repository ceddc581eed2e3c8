//! Protocol versions, and the ones that mean nothing but keep implementations honest.

/// The version that this release speaks: 0x0BA7 5001, "OBATS", first.
pub const VERSION: u32 = 0x0ba7_5001;
/// The version field of a version negotiation packet (RFC 8999, section 6).
pub const NEGOTIATION: u32 = 0;

/// Whether a version is reserved to exercise negotiation: 0x?a?a?a?a (RFC 9000, section 15).
pub fn is_grease(version: u32) -> bool {
    version & 0x0f0f_0f0f == 0x0a0a_0a0a
}

/// A reserved version made from random bits.
pub fn grease(random: u32) -> u32 {
    random & 0xf0f0_f0f0 | 0x0a0a_0a0a
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_version_is_not_reserved() {
        assert!(!is_grease(VERSION));
        assert!(!is_grease(NEGOTIATION));
        assert_eq!(grease(0), 0x0a0a_0a0a);
    }

    proptest! {
        #[test]
        fn every_grease_is_grease(random: u32) {
            prop_assert!(is_grease(grease(random)));
        }
    }
}
