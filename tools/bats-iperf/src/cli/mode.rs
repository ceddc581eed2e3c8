//! Names of modes, congestion controllers and baselines.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use openbats::CongestionAlgorithm;

use crate::transport_mode::{Transport, TransportMode};
use crate::units::parse_rate;

/// A congestion controller by name or rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Congestion(pub(crate) CongestionAlgorithm);

/// Numbers and names of all modes.
const MODES: [(&str, &str, TransportMode); 7] = [
    ("0", "btp", TransportMode::Btp),
    ("1", "brtp", TransportMode::Brtp),
    ("2", "brctp", TransportMode::Brctp),
    ("3", "transparent", TransportMode::Transparent),
    ("10", "tcp", TransportMode::Tcp),
    ("11", "udp", TransportMode::Udp),
    ("12", "quic", TransportMode::Quic),
];

pub(super) fn parse(text: &str) -> Result<TransportMode, String> {
    let wanted = text.to_ascii_lowercase();
    let found = MODES.iter().find(|(number, name, _)| wanted == *number || wanted == *name);
    found.map(|(_, _, mode)| *mode).ok_or_else(|| {
        format!(
            "'{text}' is not a mode; use 0 (btp), 1 (brtp), 2 (brctp), 3 (transparent), 10 (tcp), \
             11 (udp) or 12 (quic)"
        )
    })
}

pub(super) fn parse_congestion(text: &str) -> Result<Congestion, String> {
    if let Ok(algorithm) = text.parse() {
        return Ok(Congestion(algorithm));
    }
    let algorithm = match parse_rate(text) {
        Ok(rate) if rate > 0 => CongestionAlgorithm::FixedRate { bits_per_second: rate },
        _ => {
            return Err(format!(
                "'{text}' is not a congestion control; use ltcc, bbr3, cubic, gcc, none or a \
                 rate such as 100M"
            ));
        }
    };
    Ok(Congestion(algorithm))
}

pub(super) fn parse_baseline(text: &str) -> Result<Transport, String> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Ok(Transport::Tcp),
        "udp" => Ok(Transport::Udp),
        _ => Err(format!("'{text}' is not a baseline; use tcp or udp")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_parse_by_number_and_name() {
        for (number, mode) in [
            (0, "btp"),
            (1, "brtp"),
            (2, "brctp"),
            (3, "transparent"),
            (10, "tcp"),
            (11, "udp"),
            (12, "quic"),
        ] {
            let parsed = parse(mode).unwrap();
            assert_eq!(parsed.to_library() as u8, number);
            assert!(parsed.name().starts_with(&mode.to_uppercase()));
            assert_eq!(parse(&number.to_string()), Ok(parsed));
            assert_eq!(parse(&mode.to_uppercase()), Ok(parsed));
        }
        assert!(parse("4").unwrap_err().contains("not a mode"));
    }

    #[test]
    fn congestion_control_parses_names_and_rates() {
        let fixed = CongestionAlgorithm::FixedRate { bits_per_second: 5_000_000 };
        assert_eq!(parse_congestion("5M"), Ok(Congestion(fixed)));
        assert_eq!(parse_congestion("none"), Ok(Congestion(CongestionAlgorithm::None)));
        assert_eq!(parse_congestion("cubic"), Ok(Congestion(CongestionAlgorithm::Cubic)));
        assert_eq!(parse_congestion("GCC"), Ok(Congestion(CongestionAlgorithm::Gcc)));
        for wrong in ["reno", "0", "x", "fixed:", ""] {
            assert!(parse_congestion(wrong).is_err(), "{wrong}");
        }
    }
}
