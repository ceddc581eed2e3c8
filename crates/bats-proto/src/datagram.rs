//! Datagrams between the driver and the core, and where they come from and go to.

use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU32;

/// A datagram received from the network.
#[derive(Debug)]
pub struct Received<'a> {
    /// Sender's address.
    pub remote: SocketAddr,
    /// Local address that it was sent to, if the driver knows it.
    pub local_ip: Option<IpAddr>,
    /// The two ECN bits of the IP header.
    pub ecn: u8,
    /// UDP payload; decrypted in place.
    pub payload: &'a mut [u8],
}

/// Where the packets of a connection leave from. The default leaves the choice to the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// Local address.
    pub ip: Option<IpAddr>,
    /// Index of the network interface that all packets leave through. It holds for the whole connection:
    /// while there is no such interface, the packets are lost.
    pub interface: Option<NonZeroU32>,
}

/// Datagrams to send, each of `segment_size` bytes except the last, which may be shorter. Their
/// bytes are in the buffer passed to `poll`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Destination address.
    pub remote: SocketAddr,
    /// Local address to send from, if it matters.
    pub local_ip: Option<IpAddr>,
    /// Index of the only network interface to send through. A driver that cannot do so, or finds no such
    /// interface, must not send.
    pub interface: Option<NonZeroU32>,
    /// The two ECN bits.
    pub ecn: u8,
    /// Bytes of each datagram except the last.
    pub segment_size: usize,
    /// Bytes of all datagrams.
    pub len: usize,
}
