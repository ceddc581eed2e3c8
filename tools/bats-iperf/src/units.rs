//! Quantities as they are typed and printed.

use std::time::Duration;

/// Octets with a decimal unit and two decimals; zero is `0.00 Bytes`.
pub(crate) fn bytes(count: u64) -> String {
    scaled(count as f64, &["Bytes", "KBytes", "MBytes", "GBytes", "TBytes"])
}

/// A rate in bits a second with a decimal unit and two decimals.
pub(crate) fn rate(bits_per_second: f64) -> String {
    scaled(bits_per_second, &["bits/sec", "Kbits/sec", "Mbits/sec", "Gbits/sec", "Tbits/sec"])
}

fn scaled(value: f64, units: &[&str]) -> String {
    let (mut value, mut index) = (value, 0);
    // What would be printed as 1000.00 belongs to the next unit.
    while value >= 999.995 && index + 1 < units.len() {
        (value, index) = (value / 1_000.0, index + 1);
    }
    format!("{value:.2} {}", units[index])
}

/// A rate such as `200` (Mbit/s), `1.5G`, `800M` or `64k`, in bits a second.
pub(crate) fn parse_rate(text: &str) -> Result<u64, String> {
    let (number, factor) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 1e3),
        Some('m' | 'M') => (&text[..text.len() - 1], 1e6),
        Some('g' | 'G') => (&text[..text.len() - 1], 1e9),
        _ => (text, 1e6),
    };
    number
        .parse::<f64>()
        .ok()
        .map(|number| number * factor)
        .filter(|rate| (0.0..=1e13).contains(rate))
        .map(|rate| rate.round() as u64)
        .ok_or_else(|| format!("'{text}' is no rate: say for example 200 (Mbit/s), 1.5G or 64k"))
}

/// Seconds from `least` to `most`.
fn parse_seconds(text: &str, least: f64, most: f64) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| (least..=most).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("'{text}' is no number of seconds from {least} to {most}"))
}

/// The length of a test.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    parse_seconds(text, 0.1, 86_400.0)
}

/// The interval of reports.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_seconds(text, 0.1, 3_600.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_decimal_units_and_two_decimals() {
        assert_eq!(bytes(0), "0.00 Bytes");
        assert_eq!(bytes(999), "999.00 Bytes");
        assert_eq!(bytes(1_000), "1.00 KBytes");
        assert_eq!(bytes(2_097_152_000), "2.10 GBytes");
        assert_eq!(rate(0.0), "0.00 bits/sec");
        assert_eq!(rate(213.6e6), "213.60 Mbits/sec");
        assert_eq!(rate(999.999e6), "1.00 Gbits/sec");
    }

    #[test]
    fn rates_and_times_are_read_or_refused() {
        assert_eq!(parse_rate("200"), Ok(200_000_000));
        assert_eq!(parse_rate("1.5G"), Ok(1_500_000_000));
        assert_eq!(parse_rate("64k"), Ok(64_000));
        for wrong in ["", "k", "x", "-1", "nan", "1e30", "5 M"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_duration("2.5"), Ok(Duration::from_millis(2_500)));
        for wrong in ["", "0", "-1", "1e9", "inf", "ten"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
            assert!(parse_interval(wrong).is_err(), "{wrong}");
        }
        // The interval that ended the original's server.
        assert!(parse_interval("0.04").is_err());
    }
}
