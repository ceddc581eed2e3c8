//! Names of modes, congestion controllers, baselines and compressions.

use openbats::{CongestionAlgorithm, Mode};
use serde::{Deserialize, Serialize};

use super::Compression;
use crate::control::Carrier;
use crate::units::parse_rate;

/// A transport mode that this program can run.
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
    /// Those that an endpoint of OpenBATS offers side by side. Datagrams of mode 11 have nothing by
    /// which they could be told from others: their streams have ports of their own.
    pub(crate) const TOGETHER: [Self; 6] =
        [Self::Btp, Self::Brtp, Self::Brctp, Self::Transparent, Self::Tcp, Self::Quic];

    /// Those of them that go with `--closed-key`.
    pub(crate) const CLOSABLE: &[Self] = &[Self::Btp, Self::Brtp, Self::Brctp, Self::Transparent];

    /// What carries its data.
    pub(crate) fn carrier(self) -> Carrier {
        if self == Self::Udp { Carrier::Udp } else { Carrier::Bats }
    }

    /// Whether nothing keeps its senders from sending as fast as they can.
    pub(super) fn is_uncontrolled(self) -> bool {
        matches!(self, Self::Transparent | Self::Udp)
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

    /// The name in reports: plain TCP is the kernel's, for comparison.
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
            "'{text}' is no mode; 0 (btp), 1 (brtp), 2 (brctp), 3 (transparent), 10 (tcp), 11 (udp) \
             and 12 (quic) are"
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
                "'{text}' is none of bbr, cubic, gcc, none and a rate such as 100M"
            ));
        }
    };
    Ok(Congestion(algorithm))
}

pub(super) fn parse_baseline(text: &str) -> Result<Carrier, String> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Ok(Carrier::Tcp),
        "udp" => Ok(Carrier::Udp),
        _ => Err(format!("'{text}' is no baseline; tcp and udp are")),
    }
}

pub(super) fn parse_compression(text: &str) -> Result<Compression, String> {
    match text.to_ascii_lowercase().as_str() {
        "zstd" => Ok(Compression::Zstd),
        "lz4" => Ok(Compression::Lz4),
        "density" => Err(format!("'{text}' is not available; zstd and lz4 are")),
        _ => Err(format!("'{text}' is no compression; zstd and lz4 are")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_go_by_number_or_name() {
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
        assert!(parse("4").unwrap_err().contains("no mode"));
    }

    #[test]
    fn controllers_are_names_or_rates() {
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
