//! Parses and prints quantities.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::sync::OnceLock;
use std::time::Duration;

use openbats::file::set::Reserve;

/// The unit of all quantities in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Power of 1000.
    power: usize,
    /// Whether rates are in bytes.
    has_bytes: bool,
}

/// The value of `--format`, set once at the start of the program.
static FORMAT: OnceLock<Format> = OnceLock::new();

/// Sets the unit of all quantities.
pub(crate) fn set_format(format: Format) {
    // It is set only once.
    let _ = FORMAT.set(format);
}

/// Parses a unit letter of iperf3.
pub(crate) fn parse_format(text: &str) -> Result<Format, String> {
    let power =
        ["", "k", "m", "g", "t"].iter().position(|letter| text.eq_ignore_ascii_case(letter));
    let has_bytes = text.chars().all(char::is_uppercase);
    power.filter(|power| *power > 0).map(|power| Format { power, has_bytes }).ok_or_else(|| {
        format!("'{text}' is not a unit; use k, m, g or t (bits), or K, M, G or T (bytes)")
    })
}

const BYTES: [&str; 5] = ["Bytes", "KBytes", "MBytes", "GBytes", "TBytes"];
const BITS: [&str; 5] = ["bits/sec", "Kbits/sec", "Mbits/sec", "Gbits/sec", "Tbits/sec"];
const BYTES_A_SECOND: [&str; 5] =
    ["Bytes/sec", "KBytes/sec", "MBytes/sec", "GBytes/sec", "TBytes/sec"];

/// Formats bytes with a decimal unit and two decimals; zero is `0.00 Bytes`.
pub(crate) fn bytes(count: u64) -> String {
    scaled(count as f64, &BYTES, FORMAT.get().map(|format| format.power))
}

/// Formats a rate in bits per second with a decimal unit and two decimals.
pub(crate) fn rate(bits_per_second: f64) -> String {
    rate_as(bits_per_second, FORMAT.get().copied())
}

fn rate_as(bits_per_second: f64, format: Option<Format>) -> String {
    match format {
        Some(Format { power, has_bytes: true }) => {
            scaled(bits_per_second / 8.0, &BYTES_A_SECOND, Some(power))
        }
        format => scaled(bits_per_second, &BITS, format.map(|format| format.power)),
    }
}

/// Formats a value with the unit of this power, or with a suitable one.
fn scaled(value: f64, units: &[&str; 5], power: Option<usize>) -> String {
    let [first, larger @ ..] = units;
    let (mut value, mut unit) = (value, first);
    for (index, next) in (1..).zip(larger) {
        // A value that would print as 1000.00 uses the next unit.
        if power.map_or(value < 999.995, |power| index > power) {
            break;
        }
        (value, unit) = (value / 1_000.0, next);
    }
    format!("{value:.2} {unit}")
}

/// Parses a number with a decimal unit; without a unit it is multiplied by `plain`.
fn with_unit(text: &str, plain: f64) -> Option<f64> {
    let units = [(['k', 'K'], 1e3), (['m', 'M'], 1e6), (['g', 'G'], 1e9), (['t', 'T'], 1e12)];
    let scaled = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (number, factor) = scaled.unwrap_or((text, plain));
    number.parse::<f64>().ok().map(|number| number * factor)
}

/// Parses a rate such as `200` (Mbit/s), `1.5G`, `800M` or `64k`, in bits per second.
pub(crate) fn parse_rate(text: &str) -> Result<u64, String> {
    with_unit(text, 1e6)
        .filter(|rate| (0.0..=1e13).contains(rate))
        .map(|rate| rate.round() as u64)
        .ok_or_else(|| format!("'{text}' is not a rate; use for example 200 (Mbit/s), 1.5G or 64k"))
}

/// Parses a number of bytes such as `1000000`, `64k`, `10M` or `1.5G`; units are decimal.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    with_unit(text, 1.0)
        .filter(|count| (1.0..=1e15).contains(count))
        .map(|count| count.round() as u64)
        .ok_or_else(|| format!("'{text}' is not a number of bytes; use for example 64k, 10M or 2G"))
}

/// Parses the free space to leave on a file system: bytes as [`parse_bytes`], 0, or per cent.
pub(crate) fn parse_reserve(text: &str) -> Result<Reserve, String> {
    let reserve = match text.strip_suffix('%') {
        Some(number) => number.parse().ok().filter(|percent| *percent <= 99).map(Reserve::Percent),
        None if text == "0" => Some(Reserve::Bytes(0)),
        None => parse_bytes(text).ok().map(Reserve::Bytes),
    };
    reserve.ok_or_else(|| format!("'{text}' is not a reserve; use for example 5%, 10G or 0"))
}

/// Parses the length of a message in bytes, with or without a unit.
pub(crate) fn parse_length(text: &str) -> Result<u32, String> {
    parse_bytes(text)
        .ok()
        .filter(|length| (64..=16 << 20).contains(length))
        .and_then(|length| u32::try_from(length).ok())
        .ok_or_else(|| format!("'{text}' is not a message length; use 64 to 16777216 bytes"))
}

/// Parses a fraction below 1, such as `5%` or `0.05`.
pub(crate) fn parse_fraction(text: &str) -> Result<f64, String> {
    let fraction = match text.strip_suffix('%') {
        Some(number) => number.parse::<f64>().ok().map(|number| number / 100.0),
        None => text.parse().ok(),
    };
    fraction
        .filter(|fraction| (0.0..1.0).contains(fraction))
        .ok_or_else(|| format!("'{text}' is not a fraction; use 0% to below 100%"))
}

/// Parses a time with its unit, `50ms`, `20us` or `1.5s`; without a unit it is multiplied by
/// `plain` seconds.
pub(crate) fn parse_time(text: &str, plain: f64) -> Result<Duration, String> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("s", 1.0), ("", plain)];
    units
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
        .and_then(|(number, factor)| Some(number.parse::<f64>().ok()? * factor))
        .filter(|seconds| (0.0..=1e6).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("'{text}' is not a time; use for example 50ms or 1.5s"))
}

/// Parses a timeout in milliseconds, as in iperf3, or with a unit.
pub(crate) fn parse_timeout(text: &str) -> Result<Duration, String> {
    parse_time(text, 1e-3).and_then(|time| match time.is_zero() {
        true => Err("a timeout must be longer than 0".into()),
        false => Ok(time),
    })
}

/// Parses a timeout in seconds, or with a unit.
pub(crate) fn parse_long_timeout(text: &str) -> Result<Duration, String> {
    parse_time(text, 1.0).and_then(|time| match time.is_zero() {
        true => Err("a timeout must be longer than 0".into()),
        false => Ok(time),
    })
}

/// Parses a number of seconds from `least` to `most`.
fn parse_seconds(text: &str, least: f64, most: f64) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| (least..=most).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("'{text}' is not a number of seconds; use {least} to {most}"))
}

/// Parses the duration of a test.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    parse_seconds(text, 0.1, 86_400.0)
}

/// Parses the duration that is omitted from the results.
pub(crate) fn parse_omit(text: &str) -> Result<Duration, String> {
    parse_seconds(text, 0.0, 600.0)
}

/// Parses the interval of reports; 0 for none.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(0.0) => Ok(Duration::ZERO),
        _ => parse_seconds(text, 0.1, 3_600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_fixes_the_unit() {
        let rate = |letter: &str| rate_as(12_345_678.0, Some(parse_format(letter).unwrap()));
        assert_eq!(rate("k"), "12345.68 Kbits/sec");
        assert_eq!(rate("m"), "12.35 Mbits/sec");
        assert_eq!(rate("g"), "0.01 Gbits/sec");
        assert_eq!(rate("M"), "1.54 MBytes/sec");
        assert_eq!(rate("T"), "0.00 TBytes/sec");
        assert_eq!(scaled(5e6, &BYTES, Some(1)), "5000.00 KBytes");
        for wrong in ["", "b", "km", "x"] {
            assert!(parse_format(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn quantities_print_with_decimal_units_and_two_decimals() {
        assert_eq!(bytes(0), "0.00 Bytes");
        assert_eq!(bytes(999), "999.00 Bytes");
        assert_eq!(bytes(1_000), "1.00 KBytes");
        assert_eq!(bytes(2_097_152_000), "2.10 GBytes");
        assert_eq!(rate(0.0), "0.00 bits/sec");
        assert_eq!(rate(213.6e6), "213.60 Mbits/sec");
        assert_eq!(rate(999.999e6), "1.00 Gbits/sec");
    }

    #[test]
    fn rates_and_bytes_parse_or_are_rejected() {
        assert_eq!(parse_rate("200"), Ok(200_000_000));
        assert_eq!(parse_rate("1.5G"), Ok(1_500_000_000));
        assert_eq!(parse_rate("64k"), Ok(64_000));
        for wrong in ["", "k", "x", "-1", "nan", "1e30", "5 M", "ß"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_bytes("1000"), Ok(1_000));
        assert_eq!(parse_bytes("1.5G"), Ok(1_500_000_000));
        assert_eq!(parse_length("8k"), Ok(8_000));
        for wrong in ["0", "63", "17M"] {
            assert!(parse_length(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reserves_parse_or_are_rejected() {
        assert_eq!(parse_reserve("5%"), Ok(Reserve::Percent(5)));
        assert_eq!(parse_reserve("0"), Ok(Reserve::Bytes(0)));
        assert_eq!(parse_reserve("1G"), Ok(Reserve::Bytes(1_000_000_000)));
        for wrong in ["", "%", "100%", "-1%", "0.5%", "x", "-1"] {
            assert!(parse_reserve(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_parse_or_are_rejected() {
        assert_eq!(parse_duration("2.5"), Ok(Duration::from_millis(2_500)));
        for wrong in ["", "0", "-1", "1e9", "inf", "ten"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_interval("0"), Ok(Duration::ZERO));
        // The interval that crashed the server of the original.
        assert!(parse_interval("0.04").is_err());
        assert_eq!(parse_timeout("300"), Ok(Duration::from_millis(300)));
        assert_eq!(parse_timeout("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_long_timeout("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_time("20us", 1.0), Ok(Duration::from_micros(20)));
        for wrong in ["", "0", "ms", "-1", "nan", "1h"] {
            assert!(parse_timeout(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn fractions_parse_or_are_rejected() {
        assert_eq!(parse_fraction("5%"), Ok(0.05));
        assert_eq!(parse_fraction("0.25"), Ok(0.25));
        for wrong in ["100%", "1", "-1%", "nan", "%", ""] {
            assert!(parse_fraction(wrong).is_err(), "{wrong}");
        }
    }
}
