//! Datagrams between the driver and the core, and where they come from and go to.

use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU32;

use crate::remote::Remote;
use crate::wire::flow::FlowKey;

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

/// A packet for an endpoint: a datagram from the network, or an end-to-end packet that the relay delivers.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    /// Where its sender is.
    pub(crate) remote: Remote,
    /// See [`Received::local_ip`].
    pub(crate) local_ip: Option<IpAddr>,
    /// See [`Received::ecn`].
    pub(crate) ecn: u8,
    /// See [`Received::payload`].
    pub(crate) payload: &'a mut [u8],
}

impl<'a> From<Received<'a>> for Incoming<'a> {
    fn from(datagram: Received<'a>) -> Self {
        let Received { remote, local_ip, ecn, payload } = datagram;
        Self { remote: Remote::Network(remote), local_ip, ecn, payload }
    }
}

impl<'a> Incoming<'a> {
    /// An end-to-end packet of the session that sends this flow.
    pub(crate) fn over_relays(key: FlowKey, payload: &'a mut [u8]) -> Self {
        Self { remote: Remote::Relays(key), local_ip: None, ecn: 0, payload }
    }
}

/// Packets that a connection sends, as in [`Transmit`]: over the network, or over relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    /// Where their receiver is.
    pub(crate) remote: Remote,
    /// See [`Transmit::local_ip`].
    pub(crate) local_ip: Option<IpAddr>,
    /// See [`Transmit::interface`].
    pub(crate) interface: Option<NonZeroU32>,
    /// See [`Transmit::ecn`].
    pub(crate) ecn: u8,
    /// See [`Transmit::segment_size`].
    pub(crate) segment_size: usize,
    /// See [`Transmit::len`].
    pub(crate) len: usize,
}

impl Outgoing {
    /// As datagrams to an address.
    pub(crate) fn to(self, remote: SocketAddr) -> Transmit {
        let Self { local_ip, interface, ecn, segment_size, len, .. } = self;
        Transmit { remote, local_ip, interface, ecn, segment_size, len }
    }
}
