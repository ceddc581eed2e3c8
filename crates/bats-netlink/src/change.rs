//! Changes of interfaces, addresses and routes.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute, LinkFlags, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::socket::Netlink;

/// Protocol of the routes that [`Netlink::add_route`] adds (`ip route show proto 98`).
pub const PROTOCOL: RouteProtocol = RouteProtocol::Other(98);

impl Netlink {
    fn change(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.request(message, NLM_F_ACK | flags, |answer| answer.is_none().then_some(()))
    }

    /// Lets the kernel make no link-local address for an interface when it is brought up.
    ///
    /// # Errors
    /// The error of the kernel, for example if it has no IPv6.
    pub fn disable_link_local(&mut self, index: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        let mode = vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)];
        message.attributes = vec![LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(mode)])];
        self.change(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Sets the MTU and the length of the queue, and brings the interface up.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn set_link(&mut self, index: u32, mtu: u32, queue: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes = vec![LinkAttribute::Mtu(mtu), LinkAttribute::TxQueueLen(queue)];
        self.change(RouteNetlinkMessage::SetLink(message), 0)
    }

    fn address(index: u32, net: IpNet) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.header.family = family(net.addr());
        message.header.prefix_len = net.prefix_len();
        message.header.index = index;
        // No host of a tunnel answers duplicate address detection.
        if net.addr().is_ipv6() {
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        message.attributes =
            vec![AddressAttribute::Local(net.addr()), AddressAttribute::Address(net.addr())];
        message
    }

    /// Adds an address to an interface.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn add_address(&mut self, index: u32, net: IpNet) -> io::Result<()> {
        let message = RouteNetlinkMessage::NewAddress(Self::address(index, net));
        self.change(message, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Removes an address of an interface.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn remove_address(&mut self, index: u32, net: IpNet) -> io::Result<()> {
        self.change(RouteNetlinkMessage::DelAddress(Self::address(index, net)), 0)
    }

    fn route(index: u32, to: IpNet) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = family(to.addr());
        message.header.destination_prefix_length = to.prefix_len();
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = PROTOCOL;
        message.header.scope =
            if to.addr().is_ipv4() { RouteScope::Link } else { RouteScope::Universe };
        message.header.kind = RouteType::Unicast;
        let to = RouteAttribute::Destination(to.network().into());
        message.attributes = vec![to, RouteAttribute::Oif(index)];
        message
    }

    /// Adds a route to a network over an interface.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn add_route(&mut self, index: u32, to: IpNet) -> io::Result<()> {
        let message = RouteNetlinkMessage::NewRoute(Self::route(index, to));
        self.change(message, NLM_F_CREATE)
    }

    /// Removes a route that [`add_route`](Self::add_route) has added.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn remove_route(&mut self, index: u32, to: IpNet) -> io::Result<()> {
        self.change(RouteNetlinkMessage::DelRoute(Self::route(index, to)), 0)
    }
}

pub(crate) fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}
