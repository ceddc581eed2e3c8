//! The transport of a test, and the modes that this program supports.

use openbats::Mode;
use serde::{Deserialize, Serialize};

/// The transport that a test runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Transport {
    /// OpenBATS.
    Bats,
    /// The kernel's TCP.
    Tcp,
    /// The kernel's UDP.
    Udp,
}

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
    pub(crate) fn is_uncontrolled(self) -> bool {
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
