//! A minimal netlink client: messages with nested attributes, one request at a time.
//!
//! The lab uses netlink directly, so that no tool must be installed. Formats: netlink(7),
//! rtnetlink(7), and the kernel's `Documentation/networking/ethtool-netlink.rst`.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

pub(crate) mod diag;
mod ethtool;
mod route;

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

pub(crate) use ethtool::disable_offloads;
pub(crate) use route::{
    VethEnd, add_address, add_neighbour, add_route, create_veth, interface_index, set_mtu, set_up,
};

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLA_F_NESTED: u16 = 0x8000;
const HEADER: usize = 16;

/// A netlink request under construction.
struct Message {
    kind: u16,
    flags: u16,
    /// What follows the header. The header's length is a multiple of 4, as are all parts here.
    body: Vec<u8>,
}

impl Message {
    fn new(kind: u16, flags: u16) -> Self {
        Self { kind, flags, body: Vec::new() }
    }

    /// Appends the fixed part of a family's message, or of a nested one.
    fn fixed(&mut self, fixed: &[u8]) -> &mut Self {
        self.body.extend_from_slice(fixed);
        self.pad();
        self
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        // Values are names, addresses and numbers of a few bytes: the length fits.
        let length = value.len().saturating_add(4) as u16;
        self.body.extend_from_slice(&length.to_ne_bytes());
        self.body.extend_from_slice(&kind.to_ne_bytes());
        self.body.extend_from_slice(value);
        self.pad();
        self
    }

    fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    fn number(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    fn nested(&mut self, kind: u16, write: impl FnOnce(&mut Self)) -> &mut Self {
        let mut inner = Self::new(0, 0);
        write(&mut inner);
        self.attribute(kind | NLA_F_NESTED, &inner.body)
    }

    fn pad(&mut self) {
        self.body.resize(self.body.len().next_multiple_of(4), 0);
    }

    /// The whole message, as the kernel reads it.
    fn encode(&self, flags: u16, sequence: u32) -> Vec<u8> {
        let length = HEADER.saturating_add(self.body.len()) as u32;
        let flags = self.flags | flags | NLM_F_REQUEST;
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&self.kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        // The port: 0, since the kernel knows that of the socket.
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// A netlink socket of the network namespace of the calling thread.
pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

impl Socket {
    /// Opens a socket for links, addresses, routes and neighbours.
    pub(crate) fn route() -> Result<Self> {
        Self::open(SockProtocol::NetlinkRoute)
    }

    fn generic() -> Result<Self> {
        Self::open(SockProtocol::NetlinkGeneric)
    }

    fn diagnostic() -> Result<Self> {
        Self::open(SockProtocol::NetlinkSockDiag)
    }

    fn open(protocol: SockProtocol) -> Result<Self> {
        let fd =
            socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, Some(protocol))?;
        Ok(Self { fd, sequence: 0 })
    }

    /// Sends a request and waits for the kernel's acknowledgement. Returns the bodies of the
    /// answers.
    fn request(&mut self, message: &Message) -> Result<Vec<Vec<u8>>> {
        self.exchange(message, NLM_F_ACK)
    }

    /// Sends a dump request. Returns the bodies of the listed messages.
    fn dump(&mut self, kind: u16, body: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.exchange(Message::new(kind, 0).fixed(body), NLM_F_DUMP)
    }

    /// Sends a message. Returns the bodies of the answers before the acknowledgement or the end of
    /// the list.
    fn exchange(&mut self, message: &Message, flags: u16) -> Result<Vec<Vec<u8>>> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = message.encode(flags, self.sequence);
        send(self.fd.as_raw_fd(), &request, MsgFlags::empty())?;
        let mut answers = Vec::new();
        let mut buffer = vec![0; 65536];
        loop {
            let count = recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            let mut rest = buffer.get(..count).ok_or_else(malformed)?;
            while rest.len() >= HEADER {
                let length = read_u32(rest, 0)? as usize;
                let body = rest.get(HEADER..length).ok_or_else(malformed)?;
                if read_u32(rest, 8)? == self.sequence {
                    match read_u16(rest, 4)? {
                        NLMSG_DONE => return Ok(answers),
                        NLMSG_ERROR => {
                            return match read_u32(body, 0)? as i32 {
                                0 => Ok(answers),
                                code => Err(Error::from_raw_os_error(code.saturating_neg())),
                            };
                        }
                        _ => answers.push(body.to_vec()),
                    }
                }
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
            }
        }
    }
}

fn malformed() -> Error {
    Error::new(ErrorKind::InvalidData, "malformed netlink message")
}

/// The bytes from `at` on.
fn take<const LENGTH: usize>(bytes: &[u8], at: usize) -> Result<[u8; LENGTH]> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().ok_or_else(malformed)
}

fn read_u32(bytes: &[u8], at: usize) -> Result<u32> {
    take(bytes, at).map(u32::from_ne_bytes)
}

fn read_u16(bytes: &[u8], at: usize) -> Result<u16> {
    take(bytes, at).map(u16::from_ne_bytes)
}

/// The value of the first attribute of `kind` among `attributes`.
fn find_attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(read_u16(attributes, 0).ok()?);
        if read_u16(attributes, 2).ok()? & !NLA_F_NESTED == kind {
            return attributes.get(4..length);
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_found_again() {
        let mut message = Message::new(16, 0);
        message.text(3, "ab").number(4, 7).nested(5, |inner| {
            inner.number(1, 9);
        });
        let bytes = message.encode(NLM_F_ACK, 8);
        assert_eq!(bytes[..4], (bytes.len() as u32).to_ne_bytes());
        assert_eq!(bytes[4..8], [16_u16, 5].map(u16::to_ne_bytes).concat());
        assert_eq!(bytes[8..16], [8_u32, 0].map(u32::to_ne_bytes).concat());
        let attributes = &bytes[HEADER..];
        assert_eq!(find_attribute(attributes, 3), Some(&b"ab\0"[..]));
        assert_eq!(find_attribute(attributes, 4), Some(&7u32.to_ne_bytes()[..]));
        let nested = find_attribute(attributes, 5).unwrap();
        assert_eq!(find_attribute(nested, 1), Some(&9u32.to_ne_bytes()[..]));
        assert_eq!(find_attribute(attributes, 6), None);
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn attribute_with_invalid_length_ends_the_search() {
        assert_eq!(find_attribute(&[255, 255, 1, 0, 0], 1), None);
        assert_eq!(find_attribute(&[0, 0, 2, 0, 0, 0], 1), None);
    }
}
