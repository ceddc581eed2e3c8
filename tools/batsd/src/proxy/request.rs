//! The first bytes of a channel from a listener to an exit, and the frames of datagrams.

use super::Parsed;
use super::target::{self, Target, TargetError};

const TCP: u8 = 1;
const UDP: u8 = 2;
/// Longest request.
pub const MAX_REQUEST: usize = 1 + target::MAX_ENCODED;
/// Longest payload of a UDP datagram over IPv4 (RFC 768).
pub const MAX_PAYLOAD: usize = 65_507;

/// What a listener asks of an exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A TCP connection.
    Tcp(Target),
    /// A UDP socket.
    Udp,
}

/// The answer of an exit, with the codes of SOCKS5 (RFC 1928 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reply {
    /// It is done.
    Succeeded = 0,
    /// Limits, or errors that are none of the others.
    Failed = 1,
    /// No rule allows it.
    NotAllowed = 2,
    /// No route to the network.
    NetworkUnreachable = 3,
    /// No such name, or no such host.
    HostUnreachable = 4,
    /// The host refused the connection.
    Refused = 5,
    /// No answer in time.
    TimedOut = 6,
    /// The command is not supported.
    CommandUnsupported = 7,
    /// The type of address is not supported.
    AddressUnsupported = 8,
}

impl Reply {
    /// The reply of a code; unknown ones are failures.
    #[must_use]
    pub fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Succeeded,
            2 => Self::NotAllowed,
            3 => Self::NetworkUnreachable,
            4 => Self::HostUnreachable,
            5 => Self::Refused,
            6 => Self::TimedOut,
            7 => Self::CommandUnsupported,
            8 => Self::AddressUnsupported,
            _ => Self::Failed,
        }
    }

    /// What it means for the user.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Succeeded => "connected",
            Self::Failed => "no session with the exit, or its limit of connections is reached",
            Self::NotAllowed => "the exit does not allow this destination ([exit] allow)",
            Self::NetworkUnreachable => "the exit has no route to the destination",
            Self::HostUnreachable => "the exit cannot resolve or reach the host",
            Self::Refused => "the host refused the connection",
            Self::TimedOut => "the host or the exit did not answer in time",
            Self::CommandUnsupported => "the command is not supported",
            Self::AddressUnsupported => "the destination is no address or name with a port",
        }
    }
}

impl Request {
    /// The encoding.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Tcp(target) => {
                bytes.push(TCP);
                target.encode(&mut bytes);
            }
            Self::Udp => bytes.push(UDP),
        }
        bytes
    }

    /// Reads an encoding.
    ///
    /// # Errors
    /// The reply for what is no request.
    pub fn decode(bytes: &[u8]) -> Result<Parsed<Self>, Reply> {
        let Some((&kind, rest)) = bytes.split_first() else { return Ok(Parsed::Incomplete) };
        match kind {
            TCP => match Target::decode(rest) {
                Ok(Parsed::Complete(target, length)) => {
                    Ok(Parsed::Complete(Self::Tcp(target), length.saturating_add(1)))
                }
                Ok(Parsed::Incomplete) => Ok(Parsed::Incomplete),
                Err(_) => Err(Reply::AddressUnsupported),
            },
            UDP => Ok(Parsed::Complete(Self::Udp, 1)),
            _ => Err(Reply::CommandUnsupported),
        }
    }
}

/// A datagram in a channel: the length of the rest (2 bytes), the other end's address, the payload.
#[must_use]
pub fn encode_datagram(target: &Target, payload: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 2];
    target.encode(&mut bytes);
    bytes.extend(payload);
    let length = u16::try_from(bytes.len().saturating_sub(2)).ok()?;
    bytes.first_chunk_mut::<2>()?.copy_from_slice(&length.to_be_bytes());
    Some(bytes)
}

/// Reads the datagram at the start of `bytes`: where it goes to or comes from, and its payload.
///
/// # Errors
/// It names no destination.
pub fn decode_datagram(bytes: &[u8]) -> Result<Parsed<(Target, Vec<u8>)>, TargetError> {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else {
        return Ok(Parsed::Incomplete);
    };
    let length = usize::from(u16::from_be_bytes(*length));
    let Some(frame) = rest.get(..length) else { return Ok(Parsed::Incomplete) };
    match Target::decode(frame)? {
        Parsed::Complete(target, used) => {
            let payload = frame.get(used..).unwrap_or_default().to_vec();
            Ok(Parsed::Complete((target, payload), length.saturating_add(2)))
        }
        // The frame ends within its address.
        Parsed::Incomplete => Err(TargetError::Name),
    }
}
