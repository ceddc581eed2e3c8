//! What a link is made of: its end, its medium, its configuration and its handshake.

use std::sync::Arc;

use crate::config::TransportConfig;
use crate::datagram::Local;
use crate::handshake::Handshake;
use crate::remote::Remote;

/// Which end of the link this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// What leads to the neighbour of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    /// A network: the link has an address, a path MTU and congestion control.
    Network,
    /// The links of the relay, for an end-to-end session: they transport its coded packets, and have path MTU and
    /// congestion control. Handshake and control packets are sent as end-to-end packets.
    Relays,
}

/// Everything needed to create a link. It has the seed of the link, so it is not for logs.
pub(crate) struct LinkSetup {
    pub(crate) role: Role,
    pub(crate) medium: Medium,
    pub(crate) config: Arc<TransportConfig>,
    pub(crate) remote: Remote,
    pub(crate) local: Local,
    pub(crate) local_cid: [u8; 4],
    pub(crate) handshake: Handshake,
    pub(crate) seed: [u8; 32],
}
