//! Names of modes, congestion controllers, baselines and compression methods.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use openbats::{CongestionAlgorithm, Mode};
use serde::{Deserialize, Serialize};

use super::Compression;
use crate::control::Transport;
use crate::units::parse_rate;

/// A transport mode that this program supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TransportMode {
    Btp,
    Brtp,
    Brctp,
    Transparent,
    Tcp,
    Udp,
    Quic,
}

impl TransportMode {
    /// The modes that one OpenBATS endpoint serves on one port. Datagrams of mode 11 have no field
    /// that distinguishes them, so their streams use separate ports.
    pub(crate) const SHARED_ENDPOINT: [Self; 6] =
        [Self::Btp, Self::Brtp, Self::Brctp, Self::Transparent, Self::Tcp, Self::Quic];

    /// The modes that support `--closed-key`.
    pub(crate) const PSK_CAPABLE: &[Self] =
        &[Self::Btp, Self::Brtp, Self::Brctp, Self::Transparent];

    /// The transport of its data.
    pub(crate) fn transport(self) -> Transport {
        if self == Self::Udp { Transport::Udp } else { Transport::Bats }
    }

    /// Whether the mode has no congestion control.
    pub(super) fn is_uncontrolled(self) -> bool {
        matches!(self, Self::Transparent | Self::Udp)
    }

    /// Whether the library measures the path of the mode, so that messages can follow it.
    pub(crate) fn fits_messages(self) -> bool {
        matches!(self, Self::Btp | Self::Brtp | Self::Brctp)
    }

    pub(crate) fn to_library(self) -> Mode {
        match self {
            Self::Btp => Mode::Btp,
            Self::Brtp => Mode::Brtp,
            Self::Brctp => Mode::Brctp,
            Self::Transparent => Mode::Transparent,
            Self::Tcp => Mode::Tcp,
            Self::Udp => Mode::Udp,
            Self::Quic => Mode::Quic,
        }
    }

    /// Whether everything that is sent arrives.
    pub(crate) fn is_reliable(self) -> bool {
        self.to_library().is_reliable()
    }

    /// The name in reports. Mode tcp is `TCP+TLS`; `TCP` is the kernel's bare TCP as a baseline.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Btp => "BTP",
            Self::Brtp => "BRTP",
            Self::Brctp => "BRCTP",
            Self::Transparent => "TRANSPARENT",
            Self::Tcp => "TCP+TLS",
            Self::Udp => "UDP",
            Self::Quic => "QUIC",
        }
    }
}

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

pub(super) fn parse_compression(text: &str) -> Result<Compression, String> {
    match text.to_ascii_lowercase().as_str() {
        "zstd" => Ok(Compression::Zstd),
        "lz4" => Ok(Compression::Lz4),
        "density" => Err(format!("'{text}' is not available; use zstd or lz4")),
        _ => Err(format!("'{text}' is not a compression method; use zstd or lz4")),
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
