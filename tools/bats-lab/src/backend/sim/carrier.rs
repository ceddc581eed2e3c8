//! What carries a flow in virtual time: this project's own code, datagrams, or a model of TCP.

use bats_proto::Mode;
use bats_sim::tcp::{self, bbr::Bbr, cubic::Cubic, reno::Reno};

use crate::config::model::Relays;
use crate::plan::{Protocol, ProtocolKind};

/// Congestion controls of which there is a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Congestion {
    Bbr,
    Cubic,
    Reno,
}

/// What carries a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// This project's protocol, by the code that runs on hosts.
    Ours(Mode),
    /// A model of bulk TCP.
    Tcp(Congestion),
    /// Datagrams as they are.
    Udp,
}

impl Carrier {
    /// What carries flows of a protocol, if the simulator has it.
    pub(super) fn of(protocol: &Protocol) -> Option<Self> {
        match &protocol.kind {
            ProtocolKind::Bats { mode, .. } => match mode.as_str() {
                "11" | "udp" => Some(Self::Udp),
                mode => mode_of(mode).map(Self::Ours),
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

    /// Whether all that is sent arrives, in order.
    pub(super) fn is_reliable(self) -> bool {
        matches!(self, Self::Ours(Mode::Brtp | Mode::Brctp) | Self::Tcp(_))
    }

    /// Whether the rate has to be said, for nothing else limits it.
    pub(super) fn is_uncontrolled(self) -> bool {
        matches!(self, Self::Ours(Mode::Transparent) | Self::Udp)
    }

    /// A sender of the model of TCP; `seed` decides the phase in which BBR begins.
    pub(super) fn tcp(congestion: Congestion, seed: u64) -> tcp::Sender {
        tcp::Sender::new(match congestion {
            Congestion::Bbr => Box::new(Bbr::new((seed % 7) as usize)),
            Congestion::Cubic => Box::new(Cubic::default()),
            Congestion::Reno => Box::new(Reno::default()),
        })
    }
}

/// The mode that `bats_iperf` knows by this name or number.
pub(super) fn mode_of(name: &str) -> Option<Mode> {
    match name {
        "0" | "btp" => Some(Mode::Btp),
        "1" | "brtp" => Some(Mode::Brtp),
        "2" | "brctp" => Some(Mode::Brctp),
        "3" | "transparent" => Some(Mode::Transparent),
        _ => None,
    }
}

/// What hosts on a way of so many links do for a protocol if nobody else uses the way.
pub(super) fn recoding(protocol: &Protocol, hops: usize) -> Option<bool> {
    let ProtocolKind::Bats { mode, relays } = &protocol.kind else { return None };
    // What is not coded cannot be recoded.
    let coded = || mode_of(mode).filter(|&mode| mode != Mode::Transparent).map(|_| true);
    let recoding = match relays {
        Some(Relays::Recode) => Some(true),
        Some(Relays::Forward) => Some(false),
        Some(Relays::None) => None,
        None => coded(),
    };
    recoding.filter(|_| hops > 1)
}

/// What a model's name ends with.
pub(crate) const IS_MODEL: &str = " (model)";

/// A protocol's name for people; of a model it says so.
pub(crate) fn label(protocol: &Protocol) -> String {
    match Carrier::of(protocol) {
        Some(Carrier::Tcp(_)) => format!("{}{IS_MODEL}", protocol.label),
        _ => protocol.label.clone(),
    }
}

/// What a reader has to know of a model.
pub(super) const MODEL: &str = "TCP is a model here, not the kernel's: one bulk transfer without handshake, receive window and delayed acknowledgements; BBR is version 1";
