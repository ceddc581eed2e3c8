//! Parses DSCP values, by name or number.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

/// The largest DSCP (RFC 2474).
const MAX_DSCP: u32 = 63;
/// Names other than those of the classes `cs` and `af`: RFC 2474, 3246, 5865, 8622.
const NAMES: [(&str, u8); 6] =
    [("be", 0), ("df", 0), ("le", 1), ("va", 44), ("voice-admit", 44), ("ef", 46)];

/// Parses a number in C notation: 46, 0x2e or 056.
fn number(text: &str) -> Option<u32> {
    match (text.strip_prefix("0x"), text.strip_prefix('0')) {
        (Some(digits), _) => u32::from_str_radix(digits, 16).ok(),
        (_, Some(digits)) if !digits.is_empty() => u32::from_str_radix(digits, 8).ok(),
        _ => text.parse().ok(),
    }
}

/// Parses the class selectors of RFC 2474 and the assured forwarding classes of RFC 2597.
fn class_dscp(name: &str) -> Option<u8> {
    let digit = |text: &str, max: u8| text.parse::<u8>().ok().filter(|digit| *digit <= max);
    if let Some(class) = name.strip_prefix("cs") {
        return digit(class, 7)?.checked_mul(8);
    }
    let (class, precedence) = name.strip_prefix("af")?.split_at_checked(1)?;
    let (class, precedence) = (digit(class, 4)?, digit(precedence, 3)?);
    let is_class = class > 0 && precedence > 0;
    is_class.then_some(class << 3 | precedence << 1)
}

/// Parses a DSCP by name or number.
pub(super) fn parse_dscp(text: &str) -> Result<u8, String> {
    let name = text.to_ascii_lowercase();
    let named = NAMES.iter().find(|(other, _)| *other == name).map(|(_, point)| *point);
    let number = || number(&name).filter(|point| *point <= MAX_DSCP);
    named
        .or_else(|| class_dscp(&name))
        .or_else(|| u8::try_from(number()?).ok())
        .ok_or_else(|| format!("'{text}' is not a DSCP; use for example ef, af21, cs1 or 0 to 63"))
}

/// Parses the DSCP given as the whole header byte, whose lower two bits are for ECN.
pub(super) fn parse_tos(text: &str) -> Result<u8, String> {
    match number(&text.to_ascii_lowercase()).and_then(|byte| u8::try_from(byte).ok()) {
        Some(byte) if byte & 3 == 0 => Ok(byte >> 2),
        Some(byte) => Err(format!("the lower two bits of {byte} are for ECN and must be 0")),
        None => {
            Err(format!("'{text}' is not a type of service; use 0 to 252, or --dscp with a name"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dscp_parses_by_name_and_number() {
        for (text, point) in [
            ("ef", 46),
            ("EF", 46),
            ("46", 46),
            ("0x2e", 46),
            ("056", 46),
            ("0", 0),
            ("63", 63),
            ("be", 0),
            ("le", 1),
            ("cs0", 0),
            ("CS6", 48),
            ("af11", 10),
            ("af23", 22),
            ("af43", 38),
        ] {
            assert_eq!(parse_dscp(text), Ok(point), "{text}");
        }
        for wrong in
            ["", "64", "-1", "cs8", "af10", "af54", "af", "af1", "x", "0x", "09", "4294967342"]
        {
            assert!(parse_dscp(wrong).is_err(), "{wrong}");
        }
        assert_eq!((parse_tos("184"), parse_tos("0xb8"), parse_tos("0")), (Ok(46), Ok(46), Ok(0)));
        for wrong in ["185", "256", "ef", ""] {
            assert!(parse_tos(wrong).is_err(), "{wrong}");
        }
    }
}
