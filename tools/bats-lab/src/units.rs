//! Parsing and printing of quantities: rates, times, percentages.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::time::Duration;

/// A rate such as `1000M`, `1G`, `512k` or `2.5Mbit`, in bits per second; 0 or `none` for no limit.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    if text == "none" {
        return Ok(0);
    }
    let lower = text.to_ascii_lowercase();
    let short = lower.trim_end_matches("it/s").trim_end_matches("it").trim_end_matches("bps");
    let short = short.trim_end_matches('b');
    let units = [('k', 1e3), ('m', 1e6), ('g', 1e9)];
    let with_unit = units.iter().find_map(|(unit, of)| Some((short.strip_suffix(*unit)?, *of)));
    let (number, factor) = with_unit.unwrap_or((short, 1.0));
    let rate = positive(number).map(|number| number * factor).filter(|&rate| rate <= 1e12);
    rate.map(|rate| rate.round() as u64)
        .ok_or_else(|| format!("`{text}` is not a rate: use for example 1000M, 1G or 512k"))
}

/// A rate that is 0, `none` or has a unit.
pub(crate) fn rate_with_unit(text: &str) -> Result<u64, String> {
    if text.parse::<f64>().is_ok_and(|number| number != 0.0) {
        return Err(format!("`{text}` has no unit: use for example {text}M"));
    }
    rate(text)
}

/// A time such as `50ms`, `1.5s`, `200us` of at most a minute; a bare number is in milliseconds.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    time_up_to(text, 60.0)
}

/// The same of at most `limit` seconds.
pub(crate) fn time_up_to(text: &str, limit: f64) -> Result<Duration, String> {
    let lower = text.to_ascii_lowercase();
    let (number, factor) = if let Some(number) = lower.strip_suffix("us") {
        (number, 1e-6)
    } else if let Some(number) = lower.strip_suffix("ms") {
        (number, 1e-3)
    } else if let Some(number) = lower.strip_suffix('s') {
        (number, 1.0)
    } else {
        (lower.as_str(), 1e-3)
    };
    positive(number)
        .map(|number| number * factor)
        .filter(|&seconds| seconds <= limit)
        .map(Duration::from_secs_f64)
        .ok_or_else(|| {
            format!("`{text}` is not a time from 0 to {limit} s: use for example 50ms or 200us")
        })
}

/// A percentage such as `10%` or `0.5` (both in percent) as a fraction from 0 to 1.
pub(crate) fn fraction(text: &str) -> Result<f64, String> {
    positive(text.strip_suffix('%').unwrap_or(text))
        .map(|percent| percent / 100.0)
        .filter(|&fraction| fraction <= 1.0)
        .ok_or_else(|| format!("`{text}` is not a percentage from 0 to 100: use for example 10%"))
}

/// A percentage with its sign, `10%`, as a fraction from 0 to 1; 0 needs none. A bare number may be
/// meant as a fraction or as a percentage.
pub(crate) fn percentage(text: &str) -> Result<f64, String> {
    if let Ok(number) = text.trim().parse::<f64>()
        && number != 0.0
        && number.is_finite()
    {
        // Rounded, so that 0.07 becomes 7 % and not 7.000000000000001 %.
        let percent = (number * 1e11).round() / 1e9;
        let of_fraction = match number {
            0.0..=1.0 => format!(" or {percent}%"),
            _ => String::new(),
        };
        return Err(format!("`{text}` has no unit: use for example {number}%{of_fraction}"));
    }
    fraction(text)
}

fn positive(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0)
}

/// A value for each direction, forward (towards `b`) and backward; written `X` for both or `X/Y`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PerDirection<T> {
    pub(crate) forward: T,
    pub(crate) backward: T,
}

impl<T: Clone> PerDirection<T> {
    /// Parses one value or two.
    pub(crate) fn parse(
        text: &str,
        one: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Self, String> {
        match text.split_once('/').filter(|(_, backward)| !backward.starts_with('s')) {
            Some((forward, backward)) => {
                Ok(Self { forward: one(forward)?, backward: one(backward)? })
            }
            None => one(text).map(|value| Self { forward: value.clone(), backward: value }),
        }
    }
}

/// A rate in Mbit/s with about three significant digits.
pub(crate) fn megabits(bits_per_second: f64) -> String {
    let megabits = bits_per_second / 1e6;
    if megabits >= 100.0 {
        format!("{megabits:.0}")
    } else if megabits >= 10.0 {
        format!("{megabits:.1}")
    } else {
        format!("{megabits:.2}")
    }
}

/// A configured rate with its unit.
pub(crate) fn rate_text(bits_per_second: u64) -> String {
    match bits_per_second {
        0 => "no limit".to_owned(),
        rate if rate >= 1_000_000 => format!("{} Mbit/s", rate as f64 / 1e6),
        rate if rate >= 1_000 => format!("{} kbit/s", rate as f64 / 1e3),
        rate => format!("{rate} bit/s"),
    }
}

/// A time in milliseconds.
pub(crate) fn time_text(time: Duration) -> String {
    format!("{} ms", (time.as_secs_f64() * 1e6).round() / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parsed_with_and_without_unit() {
        for text in ["1000M", "1G", "1000Mbit", "1000mbit/s", "1Gbps", "1000000000"] {
            assert_eq!(rate(text), Ok(1_000_000_000), "{text}");
        }
        assert_eq!(rate("2.5k"), Ok(2_500));
        assert_eq!(rate("none"), Ok(0));
        for text in ["", "fast", "-1M", "NaN", "1e300", "M"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_and_percentages_are_bounded() {
        assert_eq!(time("50ms"), Ok(Duration::from_millis(50)));
        assert_eq!(time("50"), Ok(Duration::from_millis(50)));
        assert_eq!(time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(time("200us"), Ok(Duration::from_micros(200)));
        assert!(time("61s").is_err() && time("-1ms").is_err() && time("soon").is_err());
        assert_eq!(fraction("10%"), Ok(0.1));
        assert_eq!(fraction("100"), Ok(1.0));
        assert!(fraction("101%").is_err() && fraction("x").is_err());
        assert_eq!((percentage("10%"), percentage("0")), (Ok(0.1), Ok(0.0)));
        assert!(percentage("0.07").unwrap_err().contains("use for example 0.07% or 7%"));
        assert!(percentage("5").unwrap_err().ends_with("use for example 5%"));
    }

    #[test]
    fn directions_may_have_different_values() {
        assert_eq!(
            PerDirection::parse("10%", fraction),
            Ok(PerDirection { forward: 0.1, backward: 0.1 })
        );
        assert_eq!(
            PerDirection::parse("10%/0", fraction),
            Ok(PerDirection { forward: 0.1, backward: 0.0 })
        );
        assert_eq!(PerDirection::parse("1Mbit/s", rate).unwrap().backward, 1_000_000);
        assert!(PerDirection::parse("10%/", fraction).is_err());
    }
}
