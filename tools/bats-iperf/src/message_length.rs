//! The length of messages in a test that does not set it.

/// Default length of a message in bytes.
pub(crate) const DEFAULT_LENGTH: u32 = 64 << 10;
/// Length of a message in bytes when latency is measured.
const LATENCY_LENGTH: u32 = 1_024;

/// The default length of messages: 10 ms of a limited stream, so that slow streams are smooth.
pub(crate) fn default_length(bandwidth: u64, latency: bool) -> u32 {
    let max_length = if latency { LATENCY_LENGTH } else { DEFAULT_LENGTH };
    if bandwidth == 0 {
        return max_length;
    }
    u32::try_from(bandwidth / 8 / 100).unwrap_or(u32::MAX).clamp(1_024, max_length.max(1_024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_streams_have_small_messages() {
        assert_eq!(default_length(0, false), DEFAULT_LENGTH);
        assert_eq!(default_length(64_000, false), 1_024);
        assert_eq!(default_length(8_000_000, false), 10_000);
        assert_eq!(default_length(u64::MAX, false), DEFAULT_LENGTH);
        assert_eq!(default_length(u64::MAX, true), 1_024);
    }
}
