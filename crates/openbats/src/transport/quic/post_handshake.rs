//! TLS messages after the handshake of QUIC.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use quinn_proto::{Side, TransportError, TransportErrorCode};

/// The type of `NewSessionTicket` (RFC 8446 section 4).
const NEW_SESSION_TICKET: u8 = 4;
/// The type of `CertificateRequest`.
const CERTIFICATE_REQUEST: u8 = 13;
/// The alert `unexpected_message` (RFC 8446 section 6.2).
const UNEXPECTED_MESSAGE: u8 = 10;
/// Bytes of the type and the length of a message.
const HEADER: usize = 4;

/// Passes over the tickets that a server may send, without a look into them: they are not used, so damaged ones do no harm.
/// All other messages are errors: key updates of TLS (RFC 9001 section 6), requests of a certificate (section 4.4), and
/// whatever a client sends.
pub(super) struct PostHandshake {
    side: Side,
    /// The first bytes of the header of a message, and how many have been read.
    header: [u8; HEADER],
    header_len: u8,
    /// Bytes of the message that have not been read.
    left: u32,
}

impl PostHandshake {
    pub(super) fn new(side: Side) -> Self {
        Self { side, header: [0; HEADER], header_len: 0, left: 0 }
    }

    /// Reads bytes of the CRYPTO stream of 1-RTT packets.
    ///
    /// # Errors
    ///
    /// A message that is not allowed.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> Result<(), TransportError> {
        loop {
            let skipped = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            bytes = bytes.get(skipped..).unwrap_or_default();
            self.left = self.left.saturating_sub(u32::try_from(skipped).unwrap_or(u32::MAX));
            let [byte, rest @ ..] = bytes else { return Ok(()) };
            bytes = rest;
            if let Some(next) = self.header.get_mut(usize::from(self.header_len)) {
                *next = *byte;
            }
            self.header_len = self.header_len.saturating_add(1);
            let [kind, length @ ..] = self.header;
            if self.side.is_server() || kind != NEW_SESSION_TICKET {
                let code = match (self.side, kind) {
                    (Side::Client, CERTIFICATE_REQUEST) => TransportErrorCode::PROTOCOL_VIOLATION,
                    _ => TransportErrorCode::crypto(UNEXPECTED_MESSAGE),
                };
                return Err(TransportError {
                    code,
                    frame: None,
                    reason: format!("TLS message of type {kind} after the handshake"),
                });
            }
            if usize::from(self.header_len) == HEADER {
                let [high, middle, low] = length;
                (self.header_len, self.left) = (0, u32::from_be_bytes([0, high, middle, low]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of TLS.
    fn message(kind: u8, length: usize) -> Vec<u8> {
        let [.., high, middle, low] = length.to_be_bytes();
        [&[kind, high, middle, low][..], &vec![kind; length]].concat()
    }

    /// The error when `bytes` arrive in parts of `part` bytes.
    fn refused(side: Side, bytes: &[u8], part: usize) -> Option<(TransportErrorCode, String)> {
        let mut messages = PostHandshake::new(side);
        let error = bytes.chunks(part).find_map(|part| messages.read(part).err())?;
        Some((error.code, error.reason))
    }

    /// RFC 9001: 0x10a, but PROTOCOL_VIOLATION, 0x0a, for requests of a certificate at a client.
    fn expected(side: Side, kind: u8) -> Option<(TransportErrorCode, String)> {
        let code = match (side, kind) {
            (Side::Client, 13) => TransportErrorCode::PROTOCOL_VIOLATION,
            _ => TransportErrorCode::crypto(10),
        };
        Some((code, format!("TLS message of type {kind} after the handshake")))
    }

    #[test]
    fn clients_pass_over_tickets_and_refuse_other_messages() {
        let tickets = [message(4, 0), message(4, 300), message(4, 70_000)].concat();
        for part in [1, 3, 4, 7, 1_000, 100_000] {
            assert_eq!(refused(Side::Client, &tickets, part), None);
            for kind in (0..=255).filter(|kind| *kind != 4) {
                let bytes = [&tickets[..], &message(kind, 1)].concat();
                assert_eq!(refused(Side::Client, &bytes, part), expected(Side::Client, kind));
            }
        }
    }

    #[test]
    fn servers_refuse_all_messages() {
        for kind in 0..=255 {
            assert_eq!(refused(Side::Server, &message(kind, 5), 2), expected(Side::Server, kind));
        }
    }
}
