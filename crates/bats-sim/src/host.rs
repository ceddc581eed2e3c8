//! The two hosts of a network, and their addresses.

use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// The host that opens the connection.
    Client,
    /// The host that accepts the connection.
    Server,
}

impl Host {
    /// Both hosts, by their index.
    pub(crate) const ALL: [Self; 2] = [Self::Client, Self::Server];

    /// Address of the host in the simulated network.
    pub fn address(self) -> SocketAddr {
        self.address_v4().into()
    }

    pub(crate) fn address_v4(self) -> SocketAddrV4 {
        match self {
            Self::Client => SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 40_000),
            Self::Server => SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 4_000),
        }
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self == Self::Server)
    }

    pub(crate) fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}
