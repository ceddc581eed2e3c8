//! Quantities in files of cells: `20M`, `50ms`, `2%`, `1bdp`, `ge:1%,9%`.
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
use core::marker::PhantomData;
use core::time::Duration;

use bats_netem::Loss;
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// The highest rate, 20 Gbit/s, and the longest time, an hour.
const MAX_RATE: f64 = 2e10;
const MAX_SECONDS: f64 = 3_600.0;
/// The longest queue in bytes and in BDP.
const MAX_QUEUE_BYTES: f64 = 4e9;
const MAX_QUEUE_BDP: f64 = 100.0;

/// A quantity that is read from text or a number.
pub(super) trait Quantity: Sized {
    /// The expected form, for errors.
    const EXPECTED: &'static str;
    fn read(text: &str) -> Option<Self>;
}

/// A quantity, read from a scalar of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Given<T>(pub(super) T);

impl<'de, T: Quantity> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Scalar<T>(PhantomData<T>);
        impl<T: Quantity> Visitor<'_> for Scalar<T> {
            type Value = Given<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::EXPECTED)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let shown: String = text.chars().take(40).collect();
                T::read(text).map(Given).ok_or_else(|| {
                    E::custom(format_args!("`{shown}` is not allowed: expected {}", T::EXPECTED))
                })
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
                self.visit_str(&number.to_string())
            }
        }
        deserializer.deserialize_any(Scalar(PhantomData))
    }
}

fn number(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0)
}

fn scaled(text: &str) -> Option<f64> {
    let text = text.trim();
    let units = [(['k', 'K'], 1e3), (['m', 'M'], 1e6), (['g', 'G'], 1e9)];
    let scaled = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (number_text, factor) = scaled.unwrap_or((text, 1.0));
    number(number_text).map(|number| number * factor)
}

/// Bits per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate(pub(super) f64);

impl Quantity for Rate {
    const EXPECTED: &'static str = "a rate of 1k to 20G bits per second with a unit, such as 20M";
    fn read(text: &str) -> Option<Self> {
        scaled(text).filter(|rate| (1e3..=MAX_RATE).contains(rate)).map(Self)
    }
}

/// A rate that may be zero, in schedules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RateOrZero(pub(super) f64);

impl Quantity for RateOrZero {
    const EXPECTED: &'static str = "a rate of up to 20G bits per second with a unit, such as 20M";
    fn read(text: &str) -> Option<Self> {
        scaled(text).filter(|rate| *rate == 0.0 || (1e3..=MAX_RATE).contains(rate)).map(Self)
    }
}

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bytes(pub(super) u64);

impl Quantity for Bytes {
    const EXPECTED: &'static str = "1 to 4G bytes, such as 100k";
    fn read(text: &str) -> Option<Self> {
        let bytes = scaled(text).filter(|bytes| (1.0..=MAX_QUEUE_BYTES).contains(bytes));
        bytes.map(|bytes| Self(bytes as u64))
    }
}

impl Quantity for Duration {
    const EXPECTED: &'static str = "a time of up to an hour with a unit, such as 50ms or 1.5s";
    fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
        let seconds = units
            .iter()
            .find_map(|(unit, factor)| Some(number(text.strip_suffix(unit)?)? * factor));
        let seconds = seconds.or_else(|| number(text).filter(|number| *number == 0.0))?;
        (seconds <= MAX_SECONDS).then(|| Self::from_secs_f64(seconds))
    }
}

/// A fraction of 0 to 1, written in per cent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Percent(pub(super) f64);

impl Quantity for Percent {
    const EXPECTED: &'static str = "a percentage of 0 to 100, such as 2%";
    fn read(text: &str) -> Option<Self> {
        let percent = number(text.trim().strip_suffix('%')?)?;
        (percent <= 100.0).then_some(Self(percent / 100.0))
    }
}

/// A queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Queue {
    /// In BDP.
    Bdp(f64),
    /// In bytes.
    Bytes(u64),
    /// In packets.
    Packets(u64),
}

impl Quantity for Queue {
    const EXPECTED: &'static str =
        "a queue such as 1bdp (up to 100), 250k (bytes, up to 4G) or 1000packets";
    fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        if let Some(bdp) = text.strip_suffix("bdp") {
            return number(bdp).filter(|bdp| *bdp <= MAX_QUEUE_BDP).map(Self::Bdp);
        }
        if let Some(packets) = text.strip_suffix("packets") {
            let packets = packets.trim().parse().ok();
            return packets.filter(|packets| (1..=10_000_000).contains(packets)).map(Self::Packets);
        }
        Bytes::read(text).map(|bytes| Self::Bytes(bytes.0))
    }
}

impl Quantity for Loss {
    const EXPECTED: &'static str =
        "a loss: 2%, bursts:10%,15 (mean length in packets) or ge:ENTER%,LEAVE%";
    fn read(text: &str) -> Option<Self> {
        let percent = |text: &str| Percent::read(text).map(|percent| percent.0);
        if let Some(pair) = text.trim().strip_prefix("bursts:") {
            let (loss, length) = pair.split_once(',')?;
            let length = number(length).filter(|length| (1.0..=1e6).contains(length))?;
            return percent(loss).filter(|loss| *loss < 1.0).map(|loss| Self::bursts(loss, length));
        }
        if let Some(pair) = text.trim().strip_prefix("ge:") {
            let (enter, leave) = pair.split_once(',')?;
            let (good_to_bad, bad_to_good) = (percent(enter)?, percent(leave)?);
            let loss =
                Self::GilbertElliott { good_to_bad, bad_to_good, loss_good: 0.0, loss_bad: 1.0 };
            return (bad_to_good > 0.0).then_some(loss);
        }
        percent(text).map(|loss| if loss > 0.0 { Self::Iid(loss) } else { Self::None })
    }
}

/// A number of a goal: a plain one, in per cent, or a time in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Number(pub(super) f64);

impl Quantity for Number {
    const EXPECTED: &'static str = "a number of 0 to 1,000,000, a percentage such as 2%, or a time";
    fn read(text: &str) -> Option<Self> {
        let time = || <Duration as Quantity>::read(text).map(|time| time.as_secs_f64() * 1e3);
        let value = number(text)
            .or_else(|| number(text.trim().strip_suffix('%')?).map(|percent| percent / 100.0))
            .or_else(time);
        value.filter(|value| *value <= 1e6).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units() {
        assert_eq!(Rate::read("2.5M"), Some(Rate(2.5e6)));
        assert_eq!(Rate::read("20"), None);
        assert_eq!(Rate::read("90G"), None);
        assert_eq!(<Duration as Quantity>::read("50ms"), Some(Duration::from_millis(50)));
        assert_eq!(<Duration as Quantity>::read("50"), None);
        assert_eq!(<Duration as Quantity>::read("2h"), None);
        assert_eq!(Queue::read("0.5bdp"), Some(Queue::Bdp(0.5)));
        assert_eq!(Queue::read("100packets"), Some(Queue::Packets(100)));
        assert_eq!(Loss::read("2%"), Some(Loss::Iid(0.02)));
        assert!((Loss::read("bursts:10%,15").unwrap().mean() - 0.1).abs() < 1e-9);
        assert_eq!(Loss::read("ge:1%,0%"), None);
        for text in ["", "x", "-1", "-1%", "nan", "inf", "1e400", "k", "%", "bursts:", "é", "1bdpé"]
        {
            assert!(Rate::read(text).is_none() && Queue::read(text).is_none(), "{text}");
            assert!(Loss::read(text).is_none() && Percent::read(text).is_none(), "{text}");
            assert!(<Duration as Quantity>::read(text).is_none(), "{text}");
        }
    }
}
