//! Interfaces, addresses and routes by rtnetlink.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// Protocol of the routes of this program (`ip route show proto 98`).
const PROTOCOL: RouteProtocol = RouteProtocol::Other(98);

/// A netlink socket in the network namespace of the thread that opened it.
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends a request and waits for the kernel's answer.
    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence += 1;
        let mut packet = NetlinkMessage::from(message);
        packet.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        packet.header.sequence_number = self.sequence;
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        loop {
            let (answer, _) = self.socket.recv_from_full()?;
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)
                .map_err(|error| io::Error::other(error.to_string()))?;
            if answer.header.sequence_number != self.sequence {
                continue;
            }
            if let NetlinkPayload::Error(error) = answer.payload {
                return if error.code.is_some() { Err(error.to_io()) } else { Ok(()) };
            }
        }
    }

    /// Sets the MTU and the length of the queue, and brings the interface up.
    pub(super) fn set_link(&mut self, index: u32, mtu: u32, queue: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes = vec![LinkAttribute::Mtu(mtu), LinkAttribute::TxQueueLen(queue)];
        self.request(RouteNetlinkMessage::SetLink(message), 0)
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

    pub(super) fn add_address(&mut self, index: u32, net: IpNet) -> io::Result<()> {
        let message = RouteNetlinkMessage::NewAddress(Self::address(index, net));
        self.request(message, NLM_F_CREATE | NLM_F_REPLACE)
    }

    pub(super) fn remove_address(&mut self, index: u32, net: IpNet) -> io::Result<()> {
        self.request(RouteNetlinkMessage::DelAddress(Self::address(index, net)), 0)
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

    pub(super) fn add_route(&mut self, index: u32, to: IpNet) -> io::Result<()> {
        let message = RouteNetlinkMessage::NewRoute(Self::route(index, to));
        self.request(message, NLM_F_CREATE)
    }

    pub(super) fn remove_route(&mut self, index: u32, to: IpNet) -> io::Result<()> {
        self.request(RouteNetlinkMessage::DelRoute(Self::route(index, to)), 0)
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}
