//! Requests and their answers.

use std::io;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_MULTIPART, NLM_F_REQUEST, NetlinkBuffer, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

/// Largest datagram that is read: a multipath attribute has at most 64 KiB, because its length has 16 bits,
/// and the kernel fills at most 32 KiB with several messages.
pub(crate) const MAX_DATAGRAM: usize = 128 << 10;
/// MSG_TRUNC of linux/socket.h: the length of a datagram is the one that it had before it was cut.
pub(crate) const TRUNC: i32 = 0x20;
/// Maximum time to an answer, which the kernel gives at once unless it has lost it or the rest was cut.
const TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn connect() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    // Only the kernel sends to a connected socket.
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// The messages of a datagram: type, and bytes with the header. Ends at one that is not whole.
pub(crate) fn messages(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = NetlinkBuffer::new_checked(rest).ok()?;
        let (length, kind) = (header.length() as usize, header.message_type());
        let message = rest.get(..length)?;
        // Messages begin at multiples of four bytes.
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, message))
    })
}

/// Whether a message is part of a dump.
fn is_part(message: &[u8]) -> bool {
    NetlinkBuffer::new_checked(message).is_ok_and(|header| header.flags() & NLM_F_MULTIPART != 0)
}

/// An answer that cannot be read, although the kernel gave one.
fn unreadable(reason: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_string())
}

/// Parses a message; `None` if it is no answer to the request of this number.
///
/// # Errors
/// `InvalidData`: the parser cannot read the answer.
fn parse(bytes: &[u8], sequence: u32) -> io::Result<Option<NetlinkMessage<RouteNetlinkMessage>>> {
    let header = NetlinkBuffer::new_checked(bytes).map_err(unreadable)?;
    if header.sequence_number() != sequence {
        return Ok(None);
    }
    match NetlinkMessage::deserialize(bytes) {
        Ok(answer) => Ok(Some(answer)),
        // One of many that this version of the parser does not know.
        Err(_) if is_part(bytes) => Ok(None),
        Err(error) => Err(unreadable(error)),
    }
}

/// A socket for requests.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// Opens a socket. Reading needs no privileges.
    ///
    /// # Errors
    /// The process may open no such socket, or has too many descriptors.
    pub fn open() -> io::Result<Self> {
        let socket = connect()?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(MAX_DATAGRAM) })
    }

    /// Sends a request, and gives each message of the answer to `take` until that returns a result.
    /// `None` stands for an acknowledgement, and for the end of a dump.
    ///
    /// # Errors
    /// The error of the kernel; `InvalidData` if the parser cannot read its answer; `TimedOut`.
    pub(crate) fn request<T>(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        mut take: impl FnMut(Option<RouteNetlinkMessage>) -> Option<T>,
    ) -> io::Result<T> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut packet = NetlinkMessage::from(message);
        packet.header.flags = NLM_F_REQUEST | flags;
        packet.header.sequence_number = self.sequence;
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut result = None;
        loop {
            self.buffer.clear();
            let length = match self.socket.recv(&mut self.buffer, TRUNC) {
                Ok(length) => length,
                // The system call is not repeated after a signal, because it has a timeout.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let text = format!("the kernel has not answered in {TIMEOUT:?}");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                Err(error) => return Err(error),
            };
            // The other datagrams of a dump follow anyway.
            if length > self.buffer.len() && flags & NLM_F_DUMP != NLM_F_DUMP {
                return Err(unreadable(format!("it has {length} bytes; read are {MAX_DATAGRAM}")));
            }
            for (_, bytes) in messages(&self.buffer) {
                let Some(answer) = parse(bytes, self.sequence)? else { continue };
                let (content, is_last) = match answer.payload {
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(error.to_io());
                    }
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => (None, true),
                    NetlinkPayload::InnerMessage(message) => (Some(message), false),
                    _ => continue,
                };
                result = result.or_else(|| take(content));
                if is_last || (result.is_some() && !is_part(bytes)) {
                    return result.ok_or_else(|| io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_cannot_be_read_are_errors_unless_others_follow() {
        let message = |flags: u16, sequence: u32| {
            let mut bytes = 20u32.to_ne_bytes().to_vec();
            // A new route without its header.
            bytes.extend(24u16.to_ne_bytes());
            bytes.extend(flags.to_ne_bytes());
            bytes.extend(sequence.to_ne_bytes());
            bytes.resize(20, 0);
            bytes
        };
        assert_eq!(parse(&message(0, 7), 7).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(parse(&message(0, 6), 7).unwrap(), None, "a late answer");
        assert_eq!(parse(&message(NLM_F_MULTIPART, 7), 7).unwrap(), None);
    }

    #[test]
    fn requests_have_a_timeout() {
        let netlink = Netlink::open().unwrap();
        let timeout = rustix::net::sockopt::socket_timeout(&netlink.socket, Timeout::Recv);
        assert_eq!(timeout.unwrap(), Some(TIMEOUT));
    }

    #[test]
    fn datagrams_that_are_not_whole_end_the_messages() {
        let message = |length: u32, rest: usize| {
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend(24u16.to_ne_bytes());
            bytes.resize(16 + rest, 0);
            bytes
        };
        let kinds =
            |bytes: &[u8]| messages(bytes).map(|(kind, m)| (kind, m.len())).collect::<Vec<_>>();
        let two = [message(18, 4), message(16, 0)].concat();
        assert_eq!(kinds(&two), [(24, 18), (24, 16)]);
        assert_eq!(kinds(&two[..30]), [(24, 18)]);
        for bytes in [
            vec![],
            vec![0; 15],
            message(0, 0),
            message(15, 0),
            message(17, 0),
            message(u32::MAX, 9),
        ] {
            assert_eq!(kinds(&bytes), [], "{bytes:?}");
        }
    }
}
