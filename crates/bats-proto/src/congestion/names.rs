//! Controllers by name, as users choose them at run time.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use core::fmt;
use core::str::FromStr;

use super::Variation;
use crate::config::CongestionAlgorithm;

/// Error for a text that names no controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCongestion(String);

impl fmt::Display for UnknownCongestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is none of ltcc, bbr3, cubic, gcc, none and fixed:RATE such as fixed:100M",
            self.0
        )
    }
}

impl core::error::Error for UnknownCongestion {}

/// Parses bits per second: digits, then nothing, or `k`, `M` or `G` for powers of a thousand.
fn parse_rate(text: &str) -> Option<u64> {
    let units = [(['k', 'K'], 1_000), (['m', 'M'], 1_000_000), (['g', 'G'], 1_000_000_000)];
    let with_unit = units.into_iter().find_map(|(unit, of)| Some((text.strip_suffix(unit)?, of)));
    let (digits, unit) = with_unit.unwrap_or((text, 1));
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse::<u64>().ok().filter(|&number| is_number && number > 0)?;
    number.checked_mul(unit)
}

impl FromStr for CongestionAlgorithm {
    type Err = UnknownCongestion;

    /// Parses `ltcc`, `bbr3`, `cubic`, `gcc`, `none`, or `fixed:RATE` with a rate of at least 1 bit per
    /// second, which may end in `k`, `M` or `G`. `bbr` is `ltcc`, which follows from it. Ignores case.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownCongestion(text.to_owned());
        match text.to_ascii_lowercase().as_str() {
            "ltcc" | "bbr" => Ok(Self::Ltcc),
            "bbr3" => Ok(Self::Bbr3),
            "cubic" => Ok(Self::Cubic),
            "gcc" => Ok(Self::Gcc),
            "none" => Ok(Self::None),
            other => {
                if let Some(variation) = other.strip_prefix("ltcc/") {
                    let variation = Variation::parse(variation).ok_or_else(unknown)?;
                    return Ok(Self::LtccVariation(variation));
                }
                let rate = other.strip_prefix("fixed:").and_then(parse_rate);
                let rate = rate.ok_or_else(unknown)?;
                Ok(Self::FixedRate { bits_per_second: rate })
            }
        }
    }
}

impl fmt::Display for CongestionAlgorithm {
    /// The form that [`FromStr`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ltcc => f.write_str("ltcc"),
            Self::Bbr3 => f.write_str("bbr3"),
            Self::LtccVariation(variation) => write!(f, "ltcc/{variation}"),
            Self::Cubic => f.write_str("cubic"),
            Self::Gcc => f.write_str("gcc"),
            Self::None => f.write_str("none"),
            Self::FixedRate { bits_per_second } => write!(f, "fixed:{bits_per_second}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        let fixed = CongestionAlgorithm::FixedRate { bits_per_second: 25_000_000 };
        for (text, algorithm) in [
            ("ltcc", CongestionAlgorithm::Ltcc),
            ("bbr3", CongestionAlgorithm::Bbr3),
            ("cubic", CongestionAlgorithm::Cubic),
            ("gcc", CongestionAlgorithm::Gcc),
            ("none", CongestionAlgorithm::None),
            ("fixed:25000000", fixed),
        ] {
            assert_eq!(text.parse(), Ok(algorithm));
            assert_eq!(algorithm.to_string(), text);
            assert_eq!(text.to_ascii_uppercase().parse(), Ok(algorithm));
        }
        assert_eq!("bbr".parse(), Ok(CongestionAlgorithm::Ltcc));
        assert_eq!("fixed:25M".parse(), Ok(fixed));
        assert_eq!("fixed:25000k".parse(), Ok(fixed));
        for (text, bits_per_second) in [
            ("1", 1),
            ("1K", 1_000),
            ("2m", 2_000_000),
            ("3G", 3_000_000_000),
            ("3g", 3_000_000_000),
        ] {
            let fixed = CongestionAlgorithm::FixedRate { bits_per_second };
            assert_eq!(format!("fixed:{text}").parse(), Ok(fixed));
        }
    }

    #[test]
    fn everything_else_is_refused_with_what_there_is() {
        for text in
            ["", "reno", "fixed", "fixed:", "fixed:0", "fixed:M", "fixed:+5", "fixed:99999999999G"]
        {
            let error = text.parse::<CongestionAlgorithm>().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("cubic"), "{error}");
        }
    }
}
