//! Transports of flows in virtual time: the code of this project, plain datagrams, or a model of
//! TCP.

use bats_proto::Mode;
use bats_sim::tcp::{self, bbr::Bbr, cubic::Cubic, reno::Reno};

use crate::config::model::Relays;
use crate::plan::{Protocol, ProtocolKind};

/// Congestion controls for which the simulator has a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Congestion {
    Bbr,
    Cubic,
    Reno,
}

/// The transport of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimTransport {
    /// A protocol of this project, run by the same code as on hosts.
    OpenBats(Mode),
    /// A model of bulk TCP.
    Tcp(Congestion),
    /// Plain datagrams.
    Udp,
}

impl SimTransport {
    /// The transport for a protocol, if the simulator has it.
    pub(super) fn for_protocol(protocol: &Protocol) -> Option<Self> {
        match &protocol.kind {
            ProtocolKind::Bats { mode, .. } => match mode.as_str() {
                "11" | "udp" => Some(Self::Udp),
                mode => mode_by_name(mode).map(Self::OpenBats),
            },
            ProtocolKind::Udp => Some(Self::Udp),
            ProtocolKind::Tcp { congestion, .. } => match congestion.as_str() {
                "bbr" => Some(Self::Tcp(Congestion::Bbr)),
                "cubic" => Some(Self::Tcp(Congestion::Cubic)),
                "reno" => Some(Self::Tcp(Congestion::Reno)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether delivery is reliable and in order.
    pub(super) fn is_reliable(self) -> bool {
        matches!(self, Self::OpenBats(Mode::Brtp | Mode::Brctp) | Self::Tcp(_))
    }

    /// Whether the transport has no congestion control, so that the flow needs a rate.
    pub(super) fn is_uncontrolled(self) -> bool {
        matches!(self, Self::OpenBats(Mode::Transparent) | Self::Udp)
    }

    /// A sender of the TCP model; `seed` selects the ProbeBW phase in which BBR begins.
    pub(super) fn tcp(congestion: Congestion, seed: u64) -> tcp::Sender {
        tcp::Sender::new(match congestion {
            Congestion::Bbr => Box::new(Bbr::new((seed % 7) as usize)),
            Congestion::Cubic => Box::new(Cubic::default()),
            Congestion::Reno => Box::new(Reno::default()),
        })
    }
}

/// The mode with this name or number, as in `bats_iperf`.
pub(super) fn mode_by_name(name: &str) -> Option<Mode> {
    match name {
        "0" | "btp" => Some(Mode::Btp),
        "1" | "brtp" => Some(Mode::Brtp),
        "2" | "brctp" => Some(Mode::Brctp),
        "3" | "transparent" => Some(Mode::Transparent),
        _ => None,
    }
}

/// Whether relays on a path of this many links recode (`Some(true)`), forward coded packets
/// (`Some(false)`), or are absent (`None`), if no other flow uses the path.
pub(super) fn recoding(protocol: &Protocol, hops: usize) -> Option<bool> {
    let ProtocolKind::Bats { mode, relays } = &protocol.kind else { return None };
    // Uncoded packets cannot be recoded.
    let coded = || mode_by_name(mode).filter(|&mode| mode != Mode::Transparent).map(|_| true);
    let recoding = match relays {
        Some(Relays::Recode) => Some(true),
        Some(Relays::Forward) => Some(false),
        Some(Relays::None) => None,
        None => coded(),
    };
    recoding.filter(|_| hops > 1)
}

/// Suffix of the label of a model.
pub(crate) const MODEL_SUFFIX: &str = " (model)";

/// The label of a protocol, which marks models.
pub(crate) fn label(protocol: &Protocol) -> String {
    match SimTransport::for_protocol(protocol) {
        Some(SimTransport::Tcp(_)) => format!("{}{MODEL_SUFFIX}", protocol.label),
        _ => protocol.label.clone(),
    }
}

/// Warning for results of the TCP model.
pub(super) const TCP_MODEL_WARNING: &str = "TCP is a model here, not the TCP of the kernel: one bulk transfer without handshake, receive window or segmentation offload; BBR is version 1";
