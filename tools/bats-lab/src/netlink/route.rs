//! Links, addresses, routes and neighbours: rtnetlink(7).

use std::io::{Error, Result};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::net::if_::if_nametoindex;

use super::{Message, NLM_F_CREATE, NLM_F_EXCL, Socket};

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_NEWNEIGH: u16 = 28;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFF_UP: u32 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_F_NODAD: u8 = 2;
const RTA_DST: u16 = 1;
const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RTN_UNICAST: u8 = 1;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// One end of a veth pair.
pub(crate) struct VethEnd<'a> {
    pub(crate) name: &'a str,
    pub(crate) mac: [u8; 6],
    /// The namespace of this end.
    pub(crate) namespace: BorrowedFd<'a>,
}

fn link_header(flags: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&flags.to_ne_bytes());
    header
}

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

/// Creates a veth pair: two Ethernet interfaces connected back to back.
pub(crate) fn create_veth(
    socket: &mut Socket,
    one: &VethEnd<'_>,
    other: &VethEnd<'_>,
    mtu: u32,
) -> Result<()> {
    let describe = |message: &mut Message, end: &VethEnd<'_>| {
        message
            .text(IFLA_IFNAME, end.name)
            .attribute(IFLA_ADDRESS, &end.mac)
            .number(IFLA_MTU, mtu)
            .number(IFLA_NET_NS_FD, end.namespace.as_raw_fd() as u32);
    };
    let mut message = Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
    message.fixed(&link_header(0));
    describe(&mut message, one);
    message.nested(IFLA_LINKINFO, |info| {
        info.text(IFLA_INFO_KIND, "veth").nested(IFLA_INFO_DATA, |data| {
            data.nested(VETH_INFO_PEER, |peer| {
                peer.fixed(&link_header(0));
                describe(peer, other);
            });
        });
    });
    socket.request(&message).map(drop)
}

/// Brings the interface `name` of the socket's namespace up.
pub(crate) fn set_up(socket: &mut Socket, name: &str) -> Result<()> {
    let mut message = Message::new(RTM_NEWLINK, 0);
    message.fixed(&link_header(IFF_UP)).text(IFLA_IFNAME, name);
    socket.request(&message).map(drop)
}

/// Sets the MTU of the interface `name` of the socket's namespace.
pub(crate) fn set_mtu(socket: &mut Socket, name: &str, mtu: u32) -> Result<()> {
    let mut message = Message::new(RTM_NEWLINK, 0);
    message.fixed(&link_header(0)).text(IFLA_IFNAME, name).number(IFLA_MTU, mtu);
    socket.request(&message).map(drop)
}

/// The index of the interface `name` in the calling thread's namespace.
pub(crate) fn interface_index(name: &str) -> Result<u32> {
    if_nametoindex(name).map_err(Error::from)
}

/// Adds an address to an interface.
pub(crate) fn add_address(
    socket: &mut Socket,
    interface: u32,
    address: IpAddr,
    prefix: u8,
) -> Result<()> {
    let mut header = [family(address), prefix, IFA_F_NODAD, 0, 0, 0, 0, 0];
    header[4..8].copy_from_slice(&interface.to_ne_bytes());
    let mut message = Message::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL);
    let bytes = bytes(address);
    message.fixed(&header).attribute(IFA_LOCAL, &bytes).attribute(IFA_ADDRESS, &bytes);
    socket.request(&message).map(drop)
}

/// Adds a route to `destination/prefix` via `gateway`.
pub(crate) fn add_route(
    socket: &mut Socket,
    destination: IpAddr,
    prefix: u8,
    gateway: IpAddr,
) -> Result<()> {
    let header = [
        family(destination),
        prefix,
        0,
        0,
        RT_TABLE_MAIN,
        RTPROT_STATIC,
        0,
        RTN_UNICAST,
        0,
        0,
        0,
        0,
    ];
    let mut message = Message::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL);
    message
        .fixed(&header)
        .attribute(RTA_DST, &bytes(destination))
        .attribute(RTA_GATEWAY, &bytes(gateway));
    socket.request(&message).map(drop)
}

/// Adds a permanent neighbour entry, so that no ARP or neighbour discovery crosses the lossy link.
pub(crate) fn add_neighbour(
    socket: &mut Socket,
    interface: u32,
    address: IpAddr,
    mac: [u8; 6],
) -> Result<()> {
    let mut header = [0; 12];
    header[0] = family(address);
    header[4..8].copy_from_slice(&interface.to_ne_bytes());
    header[8..10].copy_from_slice(&NUD_PERMANENT.to_ne_bytes());
    let mut message = Message::new(RTM_NEWNEIGH, NLM_F_CREATE);
    message.fixed(&header).attribute(NDA_DST, &bytes(address)).attribute(NDA_LLADDR, &mac);
    socket.request(&message).map(drop)
}
