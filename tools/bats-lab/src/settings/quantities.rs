//! Quantities of test files with their units: read as text, written as text that is read back.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::config::values::Text;
use crate::units;

/// The longest period, gap or length of a step.
const MAX_SECONDS: f64 = 86_400.0;

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident($value:ty), $parse:path, $write:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(crate) struct $name(pub(crate) $value);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Text::deserialize(deserializer)?;
                $parse(&text.0).map(Self).map_err(de::Error::custom)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let write: fn(&$value) -> String = $write;
                serializer.serialize_str(&write(&self.0))
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                "Text".into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": ["string", "number"] })
            }
        }
    };
}

quantity!(
    /// A rate in bits per second, `10M`; 0 lets nothing pass.
    Rate(u64), rate, |rate| format!("{rate}bps")
);
quantity!(
    /// A number of bytes, `250k`.
    Bytes(u64), bytes, |bytes| bytes.to_string()
);
quantity!(
    /// A time, `10ms`; a bare number is in milliseconds.
    Time(Duration), time, |time| format!("{}us", time.as_nanos() as f64 / 1e3)
);
quantity!(
    /// A share, `5%`.
    Share(f64), units::percentage, |share| format!("{}%", share * 100.0)
);
quantity!(
    /// A loss model as in `loss` of a link.
    LossModel(super::Loss), super::Loss::parse, super::Loss::text
);

fn rate(text: &str) -> Result<u64, String> {
    if text == "none" {
        return Err(
            "`none` is not a rate here: use for example 10M, or 0 to let nothing pass".into()
        );
    }
    units::rate_with_unit(text)
}

fn bytes(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is not a number of bytes up to 4G: use for example 1500 or 250k");
    match units::rate(&text.to_ascii_lowercase()) {
        Ok(bytes @ 1..=4_000_000_000) if text != "none" => Ok(bytes),
        _ => Err(wrong()),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    units::time_up_to(text, MAX_SECONDS)
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&if self.0 == 0 { "0".to_owned() } else { units::rate_text(self.0) })
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&units::time_text(self.0))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", super::percent(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_survive_being_written_and_read() {
        fn again<T: Serialize + for<'de> Deserialize<'de>>(text: &str) -> Result<T, String> {
            let one: T = serde_json::from_value(text.into()).map_err(|error| error.to_string())?;
            serde_json::from_value(serde_json::to_value(one).unwrap()).map_err(|e| e.to_string())
        }
        assert_eq!(again::<Rate>("2.5M"), Ok(Rate(2_500_000)));
        assert_eq!(again::<Rate>("0"), Ok(Rate(0)));
        assert_eq!(again::<Bytes>("250k"), Ok(Bytes(250_000)));
        assert_eq!(again::<Time>("15s"), Ok(Time(Duration::from_secs(15))));
        assert_eq!(again::<Time>("90.5us"), Ok(Time(Duration::from_nanos(90_500))));
        assert_eq!(again::<Share>("0.5%"), Ok(Share(0.005)));
        for loss in ["5%", "ge:1%,9%", "ge:1%,9%,80%,0.5%", "4state:2%,20%,10%,30%,1%"] {
            let once: LossModel = serde_json::from_value(loss.into()).unwrap();
            assert_eq!(again::<LossModel>(loss), Ok(once), "{loss}");
        }
        for text in ["none", "40", "fast"] {
            assert!(again::<Rate>(text).is_err(), "{text}");
        }
        for text in ["none", "0", "-3", "9G"] {
            assert!(again::<Bytes>(text).is_err(), "{text}");
        }
        assert!(again::<Time>("2d").is_err() && again::<Time>("90000s").is_err());
        assert!(again::<Share>("0.05").is_err() && again::<Share>("101%").is_err());
    }
}
