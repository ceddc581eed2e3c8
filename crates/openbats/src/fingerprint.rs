//! Fingerprints of certificates, for pinning.
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
use std::str::FromStr;

use bats_proto::crypto;
use data_encoding::HEXLOWER_PERMISSIVE;

use crate::identity_error::IdentityError;

/// SHA-256 of a certificate (DER), which clients can pin.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Computes the fingerprint of a certificate (DER).
    #[must_use]
    pub fn of(certificate: &[u8]) -> Self {
        Self(crypto::fingerprint(certificate))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

impl FromStr for Fingerprint {
    type Err = IdentityError;

    /// Parses 64 hexadecimal digits; colons between bytes are allowed.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || IdentityError::Content {
            path: "fingerprint".into(),
            problem: format!("'{text}' is not 64 hexadecimal digits"),
        };
        let digits: Vec<u8> = text.bytes().filter(|&byte| byte != b':').collect();
        let bytes = HEXLOWER_PERMISSIVE.decode(&digits).map_err(|_| wrong())?;
        bytes.try_into().map(Self).map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;

    #[test]
    fn displayed_fingerprints_parse_to_themselves() {
        let fingerprint = Identity::generate(&["localhost"]).unwrap().fingerprint();
        let text = fingerprint.to_string();
        assert_eq!(text.parse::<Fingerprint>().unwrap(), fingerprint);
        let with_colons: Vec<&str> = (0..32).map(|x| &text[2 * x..2 * x + 2]).collect();
        assert_eq!(
            with_colons.join(":").to_uppercase().parse::<Fingerprint>().unwrap(),
            fingerprint
        );
        for wrong in ["", "12", &text[1..], &text.replace(&text[0..1], "x"), &format!("{text}00")] {
            assert!(wrong.parse::<Fingerprint>().is_err(), "{wrong}");
        }
    }
}
