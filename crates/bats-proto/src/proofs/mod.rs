//! Proof harnesses: properties of the arithmetic on packet numbers, for all inputs.
//!
//! Those of the parsers, and how harnesses are run, are in `bats-wire`.

use crate::link::received::{ReceivedPackets, expand};
use crate::wire::varint::MAX_VARINT;

/// `number`, shifted right so that small values are as frequent as large ones.
fn scaled(number: u64, shift: u8) -> u64 {
    number >> (shift % 64)
}

bats_wire::harnesses! {
    packet_numbers_expand_to_the_nearest unwind 1 (number: u64, expected: u64, shift: u8) {
        let expected = scaled(expected, shift) >> 2;
        let expanded = expand(number as u32, expected);
        assert_eq!(expanded as u32, number as u32);
        assert!(expanded <= MAX_VARINT);
        let is_near = expanded.abs_diff(expected) <= 1 << 31;
        let at_start = expanded >> 32 == 0 && expected < expanded;
        let at_end = expanded >= (1 << 62) - (1 << 32) && expected > expanded;
        assert!(is_near || at_start || at_end);
    }

    /// Each number is accepted once, whatever arrives in between.
    replay_window_accepts_each_number_once unwind 5 (first: u32, steps: [u16; 3]) {
        let mut window = ReceivedPackets::default();
        let now = bats_types::Timestamp::ZERO;
        let first = u64::from(first);
        assert!(window.insert(now, first));
        for step in steps {
            let pn = first + u64::from(step);
            let is_new = window.is_new(pn);
            assert_eq!(window.insert(now, pn), is_new);
            assert!(!window.is_new(pn) && !window.is_new(first));
        }
    }
}
