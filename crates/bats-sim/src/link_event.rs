//! What happens to the datagrams on the links of a network.

use bats_netem::{Fate, Timestamp};

use crate::host::Host;

/// What happened to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEventKind {
    /// The datagram entered the link, with this fate.
    Sent(Fate),
    /// The datagram arrived.
    Delivered,
}

/// One event on a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkEvent<'a> {
    /// Virtual time of the event.
    pub time: Timestamp,
    /// The host that sent the datagram.
    pub from: Host,
    /// What happened to the datagram.
    pub kind: LinkEventKind,
    /// ECN bits of the datagram.
    pub ecn: u8,
    /// UDP payload.
    pub payload: &'a [u8],
}
