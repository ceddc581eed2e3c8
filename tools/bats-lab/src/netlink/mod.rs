//! A minimal netlink client: messages with nested attributes, one request at a time.
//!
//! The lab uses netlink directly, so that no tool must be installed. Formats: netlink(7),
//! rtnetlink(7), and the kernel's `Documentation/networking/ethtool-netlink.rst`.

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
    VethEnd, add_address, add_neighbour, add_route, create_veth, interface_index, set_up,
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
    bytes: Vec<u8>,
}

impl Message {
    fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        Self { bytes }
    }

    /// Appends the fixed part of a family's message, or of a nested one.
    fn fixed(&mut self, fixed: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(fixed);
        self.pad();
        self
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        // Values are names, addresses and numbers of a few bytes: the length fits.
        let length = (value.len() + 4) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
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
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        write(self);
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes[start + 2..start + 4].copy_from_slice(&(kind | NLA_F_NESTED).to_ne_bytes());
        self
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
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
    fn request(&mut self, message: &mut Message) -> Result<Vec<Vec<u8>>> {
        self.sequence += 1;
        let length = message.bytes.len() as u32;
        message.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        message.bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        send(self.fd.as_raw_fd(), &message.bytes, MsgFlags::empty())?;
        let mut answers = Vec::new();
        let mut buffer = vec![0; 65536];
        loop {
            let count = recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            let mut rest = &buffer[..count];
            while rest.len() >= HEADER {
                let length = read_u32(rest, 0)? as usize;
                let kind = read_u16(rest, 4)?;
                let sequence = read_u32(rest, 8)?;
                let body = rest.get(HEADER..length).ok_or_else(malformed)?;
                if sequence == self.sequence {
                    if kind == NLMSG_ERROR {
                        let code = read_u32(body, 0)? as i32;
                        return if code == 0 {
                            Ok(answers)
                        } else {
                            Err(Error::from_raw_os_error(code.saturating_neg()))
                        };
                    }
                    answers.push(body.to_vec());
                }
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
            }
        }
    }
}

impl Socket {
    /// Sends a dump request. Returns the bodies of the listed messages.
    fn dump(&mut self, kind: u16, body: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.sequence += 1;
        let mut message = Message::new(kind, NLM_F_DUMP);
        message.fixed(body);
        let length = message.bytes.len() as u32;
        message.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        message.bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
        message.bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        send(self.fd.as_raw_fd(), &message.bytes, MsgFlags::empty())?;
        let mut answers = Vec::new();
        let mut buffer = vec![0; 65536];
        loop {
            let count = recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            let mut rest = &buffer[..count];
            while rest.len() >= HEADER {
                let length = read_u32(rest, 0)? as usize;
                let body = rest.get(HEADER..length).ok_or_else(malformed)?;
                if read_u32(rest, 8)? == self.sequence {
                    match read_u16(rest, 4)? {
                        NLMSG_DONE => return Ok(answers),
                        NLMSG_ERROR => {
                            let code = read_u32(body, 0)? as i32;
                            return Err(Error::from_raw_os_error(code.saturating_neg()));
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

fn read_u32(bytes: &[u8], at: usize) -> Result<u32> {
    let slice = bytes.get(at..at + 4).ok_or_else(malformed)?;
    Ok(u32::from_ne_bytes([slice[0], slice[1], slice[2], slice[3]]))
}

fn read_u16(bytes: &[u8], at: usize) -> Result<u16> {
    let slice = bytes.get(at..at + 2).ok_or_else(malformed)?;
    Ok(u16::from_ne_bytes([slice[0], slice[1]]))
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
        let attributes = &message.bytes[HEADER..];
        assert_eq!(find_attribute(attributes, 3), Some(&b"ab\0"[..]));
        assert_eq!(find_attribute(attributes, 4), Some(&7u32.to_ne_bytes()[..]));
        let nested = find_attribute(attributes, 5).unwrap();
        assert_eq!(find_attribute(nested, 1), Some(&9u32.to_ne_bytes()[..]));
        assert_eq!(find_attribute(attributes, 6), None);
        assert_eq!(message.bytes.len() % 4, 0);
    }

    #[test]
    fn attribute_with_invalid_length_ends_the_search() {
        assert_eq!(find_attribute(&[255, 255, 1, 0, 0], 1), None);
        assert_eq!(find_attribute(&[0, 0, 2, 0, 0, 0], 1), None);
    }
}
