//! A destination: an address or a name, and a port, in the format of SOCKS5 (RFC 1928 section 5).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use super::Parsed;

const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;
/// Longest name of DNS (RFC 1035 section 2.3.4) as text.
const MAX_NAME: usize = 253;
/// Longest encoding: type, length, name and port.
pub const MAX_ENCODED: usize = 2 + MAX_NAME + 2;

/// An address, or a name that the exit resolves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// An address; never an IPv4-mapped one.
    Ip(IpAddr),
    /// A name in lower case.
    Name(String),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The host.
    pub host: Host,
    /// The port; not 0.
    pub port: u16,
}

/// Why bytes are no destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The type of address is none of IPv4, name and IPv6.
    #[error("address type {0} is not 1 (IPv4), 3 (name) or 4 (IPv6)")]
    Type(u8),
    /// The host is no name.
    #[error("the host is no address and no name of letters, digits, - _ . (at most 253)")]
    Name,
    /// The port is missing, or 0.
    #[error("a destination needs a port from 1 to 65535")]
    Port,
}

impl Host {
    /// Reads an address without brackets, or a name.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self::Ip(ip.to_canonical()));
        }
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if text.is_empty() || text.len() > MAX_NAME || !text.bytes().all(is_good) {
            return Err(TargetError::Name);
        }
        Ok(Self::Name(text.to_ascii_lowercase()))
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self { host: Host::Ip(address.ip().to_canonical()), port: address.port() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(ip) => SocketAddr::new(*ip, self.port).fmt(f),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

/// `HOST:PORT`, with brackets around IPv6 addresses.
impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let (host, port) = text.rsplit_once(':').ok_or(TargetError::Port)?;
        // Only digits: `parse` takes a plus sign, too.
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|&port| port != 0 && is_number);
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(inner) => {
                let ip: Ipv6Addr = inner.parse().map_err(|_| TargetError::Name)?;
                Host::Ip(IpAddr::V6(ip).to_canonical())
            }
            // Without brackets the last part of an address would be read as the port.
            None if host.contains(':') => return Err(TargetError::Name),
            None => Host::parse(host)?,
        };
        Ok(Self { host, port: port.ok_or(TargetError::Port)? })
    }
}

impl Target {
    /// Appends the encoding.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        match &self.host {
            Host::Ip(ip) => return encode_address(SocketAddr::new(*ip, self.port), bytes),
            Host::Name(name) => {
                bytes.extend([NAME, name.len() as u8]);
                bytes.extend(name.as_bytes());
            }
        }
        bytes.extend(self.port.to_be_bytes());
    }

    /// Reads an encoding; port 0 is an error.
    ///
    /// # Errors
    /// The bytes are no destination.
    pub fn decode(bytes: &[u8]) -> Result<Parsed<Self>, TargetError> {
        match decode_any(bytes)? {
            Parsed::Complete(target, _) if target.port == 0 => Err(TargetError::Port),
            parsed => Ok(parsed),
        }
    }
}

/// Appends the encoding of an address, which may be unspecified and have port 0.
pub fn encode_address(address: SocketAddr, bytes: &mut Vec<u8>) {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => {
            bytes.push(IPV4);
            bytes.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            bytes.push(IPV6);
            bytes.extend(ip.octets());
        }
    }
    bytes.extend(address.port().to_be_bytes());
}

/// Reads an encoding that may have port 0, as in requests for UDP.
///
/// # Errors
/// The type is unknown, or the name is none.
pub fn decode_any(bytes: &[u8]) -> Result<Parsed<Target>, TargetError> {
    let Some((&kind, rest)) = bytes.split_first() else { return Ok(Parsed::Incomplete) };
    let (length, skipped) = match kind {
        IPV4 => (4, 1),
        IPV6 => (16, 1),
        NAME => match rest.first() {
            Some(&length) => (usize::from(length), 2),
            None => return Ok(Parsed::Incomplete),
        },
        other => return Err(TargetError::Type(other)),
    };
    let parts = bytes.get(skipped..).and_then(|rest| rest.split_at_checked(length));
    let Some((host, &[high, low, ..])) = parts else { return Ok(Parsed::Incomplete) };
    let host = if let Ok(array) = <[u8; 4]>::try_from(host)
        && kind == IPV4
    {
        Host::Ip(Ipv4Addr::from(array).into())
    } else if let Ok(array) = <[u8; 16]>::try_from(host)
        && kind == IPV6
    {
        Host::Ip(IpAddr::from(array).to_canonical())
    } else {
        Host::parse(std::str::from_utf8(host).map_err(|_| TargetError::Name)?)?
    };
    let target = Target { host, port: u16::from_be_bytes([high, low]) };
    let used = length.saturating_add(skipped).saturating_add(2);
    Ok(Parsed::Complete(target, used))
}
