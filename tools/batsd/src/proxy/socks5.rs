//! SOCKS5 (RFC 1928) with user and password (RFC 1929), the server's side.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::Parsed;
use super::request::Reply;
use super::target::{self, Host, Target, TargetError};

/// Version of the protocol; the first byte of a connection.
pub const VERSION: u8 = 5;
/// Method: no authentication.
pub const NO_AUTHENTICATION: u8 = 0;
/// Method: user and password (RFC 1929).
pub const USER_PASSWORD: u8 = 2;
/// No method is acceptable.
pub const NO_METHOD: u8 = 0xff;
/// Longest greeting, credentials or request: two lengths, 255 bytes each.
pub const MAX_MESSAGE: usize = 1 + 2 * 256;

/// The bytes are of another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no message of SOCKS5")]
pub struct NotSocks;

/// User and password.
pub type Credentials = (Vec<u8>, Vec<u8>);

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A TCP connection to this destination.
    Connect(Target),
    /// Relaying of datagrams from this socket, as long as the connection lasts.
    UdpAssociate(Declared),
}

/// The socket from which a client sends datagrams, as far as its request says so (RFC 1928 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared {
    /// `None` without a port, for the unspecified address and for a name.
    pub ip: Option<IpAddr>,
    /// `None` if the request has port 0: the client does not know it yet.
    pub port: Option<u16>,
}

impl Declared {
    fn new(target: &Target) -> Self {
        let port = (target.port != 0).then_some(target.port);
        let ip = match target.host {
            Host::Ip(ip) if port.is_some() && !ip.is_unspecified() => Some(ip),
            _ => None,
        };
        Self { ip, port }
    }

    /// Whether datagrams can come from this address.
    #[must_use]
    pub fn has_ip(&self, ip: IpAddr) -> bool {
        self.ip.is_none_or(|declared| declared == ip.to_canonical())
    }

    /// Whether this can be the client's socket.
    #[must_use]
    pub fn is(&self, source: SocketAddr) -> bool {
        self.has_ip(source.ip()) && self.port.is_none_or(|port| port == source.port())
    }
}

/// Reads the client's methods.
///
/// # Errors
/// It is another protocol.
pub fn greeting(bytes: &[u8]) -> Result<Parsed<Vec<u8>>, NotSocks> {
    match bytes {
        [VERSION, count, rest @ ..] => {
            let count = usize::from(*count);
            Ok(rest
                .get(..count)
                .map_or(Parsed::Incomplete, |methods| Parsed::Complete(methods.into(), 2 + count)))
        }
        [VERSION] | [] => Ok(Parsed::Incomplete),
        _ => Err(NotSocks),
    }
}

/// Reads user and password.
///
/// # Errors
/// It is no such message.
pub fn credentials(bytes: &[u8]) -> Result<Parsed<Credentials>, NotSocks> {
    match bytes.first() {
        None => return Ok(Parsed::Incomplete),
        Some(1) => {}
        Some(_) => return Err(NotSocks),
    }
    let field = |from: usize| {
        let start = from.checked_add(1)?;
        let end = start.checked_add(usize::from(*bytes.get(from)?))?;
        Some((bytes.get(start..end)?.to_vec(), end))
    };
    let both = field(1).and_then(|(user, next)| {
        let (password, end) = field(next)?;
        Some(Parsed::Complete((user, password), end))
    });
    Ok(both.unwrap_or(Parsed::Incomplete))
}

/// Reads a request.
///
/// # Errors
/// The reply for a request that cannot be served.
pub fn command(bytes: &[u8]) -> Result<Parsed<Command>, Reply> {
    const CONNECT: u8 = 1;
    const UDP_ASSOCIATE: u8 = 3;
    let Some((&[version, command, _], rest)) = bytes.split_first_chunk::<3>() else {
        return Ok(Parsed::Incomplete);
    };
    if version != VERSION {
        return Err(Reply::Failed);
    }
    if command != CONNECT && command != UDP_ASSOCIATE {
        return Err(Reply::CommandUnsupported);
    }
    match target::decode_any(rest).map_err(|_| Reply::AddressUnsupported)? {
        Parsed::Incomplete => Ok(Parsed::Incomplete),
        Parsed::Complete(target, length) if command == UDP_ASSOCIATE => {
            let declared = Declared::new(&target);
            Ok(Parsed::Complete(Command::UdpAssociate(declared), length.saturating_add(3)))
        }
        Parsed::Complete(target, _) if target.port == 0 => Err(Reply::AddressUnsupported),
        Parsed::Complete(target, length) => {
            Ok(Parsed::Complete(Command::Connect(target), length.saturating_add(3)))
        }
    }
}

/// The answer to a request. `bound` is where the client sends datagrams.
#[must_use]
pub fn reply(reply: Reply, bound: Option<SocketAddr>) -> Vec<u8> {
    let mut bytes = vec![VERSION, reply as u8, 0];
    let unspecified = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    target::encode_address(bound.unwrap_or(unspecified), &mut bytes);
    bytes
}

/// Reads a datagram of a client: destination and payload. Fragments are optional in RFC 1928 section
/// 7 and not supported.
#[must_use]
pub fn datagram(bytes: &[u8]) -> Option<(Target, &[u8])> {
    let (&[_, _, fragment], rest) = bytes.split_first_chunk::<3>()?;
    match Target::decode(rest) {
        Ok(Parsed::Complete(target, length)) if fragment == 0 => {
            Some((target, rest.get(length..)?))
        }
        Ok(_) | Err(TargetError::Type(_) | TargetError::Name | TargetError::Port) => None,
    }
}

/// A datagram for a client.
#[must_use]
pub fn encode_datagram(source: &Target, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 3];
    source.encode(&mut bytes);
    bytes.extend(payload);
    bytes
}
