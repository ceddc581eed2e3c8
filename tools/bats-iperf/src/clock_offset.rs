//! The offset between the clocks of client and server.

use serde::{Deserialize, Serialize};

/// The server's clock minus the client's, with its error bound.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClockOffset {
    pub(crate) offset_ns: i64,
    pub(crate) error_ns: u64,
}

/// Estimates the clock offset from exchanges: send time, remote clock, receive time, all in
/// nanoseconds. The exchange with the shortest round trip has the smallest error bound.
pub(crate) fn clock_offset(exchanges: &[(u64, u64, u64)]) -> ClockOffset {
    exchanges
        .iter()
        .min_by_key(|(sent, _, received)| received.saturating_sub(*sent))
        .map(|&(sent, other, received)| {
            let middle = sent / 2 + received / 2;
            let offset = i128::from(other) - i128::from(middle);
            ClockOffset {
                offset_ns: i64::try_from(offset).unwrap_or_default(),
                error_ns: received.saturating_sub(sent) / 2,
            }
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_clock_exchange_is_used() {
        let exchanges = [(0, 1_500, 1_000), (2_000, 3_060, 2_100), (5_000, 9_000, 8_000)];
        assert_eq!(clock_offset(&exchanges), ClockOffset { offset_ns: 1_010, error_ns: 50 });
        assert_eq!(clock_offset(&[]), ClockOffset::default());
        let wild = clock_offset(&[(0, u64::MAX, u64::MAX)]);
        assert_eq!(wild.error_ns, u64::MAX / 2);
    }
}
