//! Faults of links and relays.

use core::time::Duration;

use bats_netem::{LinkConfig, Loss};

/// A fault of a link or relay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// Start time.
    pub from: Duration,
    /// End time.
    pub until: Duration,
    /// Direction: 0 to the server, 1 to the client, `None` for both.
    pub direction: Option<usize>,
    /// Index of the link.
    pub hop: usize,
    /// Kind of fault.
    pub kind: FaultKind,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// No packet passes.
    Partition,
    /// The link rate is multiplied by this factor.
    Rate(f64),
    /// The link MTU in bytes of UDP payload.
    Mtu(usize),
    /// The one-way delay of the link.
    Delay(Duration),
    /// The loss rate, 0 to 1.
    Loss(f64),
    /// The fraction of packets that are duplicated.
    Duplicates(f64),
    /// The fraction of packets that are corrupted.
    Corruption(f64),
    /// NAT rebinding at the start time: the first node of the link, or the client of a network
    /// without relays, gets another address.
    Rebind,
    /// This relay is down, and restarts at the end time without any state.
    Restart(usize),
}

impl FaultKind {
    pub(super) fn apply(self, link: &mut LinkConfig) {
        match self {
            Self::Partition => link.black_hole = true,
            // A full packet must still pass within a second.
            Self::Rate(share) => {
                link.rate_bps =
                    link.rate_bps.map(|rate| ((rate as f64 * share) as u64).max(20_000));
            }
            Self::Mtu(bytes) => {
                link.mtu = Some(link.mtu.map_or(bytes, |mtu| mtu.min(bytes)));
            }
            Self::Delay(delay) => link.delay = delay,
            Self::Loss(p) => link.loss = Loss::Iid(p),
            Self::Duplicates(share) => link.duplicate = share,
            Self::Corruption(share) => link.corrupt = share,
            // A rebinding has no duration, and a restart affects all links of the relay.
            Self::Rebind | Self::Restart(_) => {}
        }
    }
}
