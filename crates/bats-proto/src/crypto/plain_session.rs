//! The handshake without TLS: flights of the lengths of TLS, without secrets. For simulations, and for direct sessions,
//! whose packets the links protect.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use rustls::Side;

use super::new_keys::{CryptoError, NewKeys};
use super::plain::PlainKey;
use super::plain_identity::PlainIdentity;
use super::{DirectionalKeys, HeaderKey, Keys, PacketKey};

/// Keys of the stand-in. Everyone can compute them; fuzzing does.
pub(crate) fn plain_keys(label: u64, is_client: bool) -> Keys {
    let direction = |client: bool| DirectionalKeys {
        header: HeaderKey::Plain,
        packet: PacketKey::Plain(PlainKey::new(
            label.wrapping_mul(2).wrapping_add(u64::from(client)),
        )),
    };
    Keys { local: direction(is_client), remote: direction(!is_client) }
}

/// Lengths in bytes of the stand-in's flights: those of TLS with a small certificate.
const PLAIN_CLIENT_HELLO: usize = 280;
const PLAIN_SERVER_HELLO: usize = 96;
const PLAIN_SERVER_FLIGHT: usize = 800;
const PLAIN_FINISHED: usize = 36;

/// One end of the handshake.
pub(super) struct PlainSession {
    pub(super) side: Side,
    pub(super) parameters: Vec<u8>,
    pub(super) identity: PlainIdentity,
    pub(super) peer: Option<Vec<u8>>,
    pub(super) peer_fingerprint: Option<[u8; 32]>,
    pub(super) incoming: Vec<u8>,
    pub(super) step: u8,
    pub(super) done: bool,
    pub(super) generation: u64,
}

impl PlainSession {
    fn flight(&self, len: usize) -> Vec<u8> {
        let mut flight = (self.parameters.len() as u16).to_be_bytes().to_vec();
        flight.extend_from_slice(&self.parameters);
        self.identity.write(&mut flight);
        flight.resize(len.max(flight.len()), 0);
        flight
    }

    /// Whether symbols are sealed: those of direct sessions are not, because the links seal every packet.
    pub(super) fn seals_symbols(&self) -> bool {
        matches!(self.identity, PlainIdentity::Named { .. })
    }

    /// Frees what only the handshake needs.
    pub(super) fn release(&mut self) {
        if self.done {
            (self.parameters, self.peer, self.incoming) = Default::default();
        }
    }

    /// Bytes that are missing until the end of the flight that this side waits for.
    pub(super) fn wanted(&self) -> usize {
        let end = match (self.side, self.step) {
            (Side::Client, ..=1) => PLAIN_SERVER_HELLO,
            (Side::Client, _) => PLAIN_SERVER_HELLO + PLAIN_SERVER_FLIGHT,
            (Side::Server, 0) => PLAIN_CLIENT_HELLO,
            (Side::Server, _) => PLAIN_CLIENT_HELLO + PLAIN_FINISHED,
        };
        end.saturating_sub(self.incoming.len())
    }

    fn take_parameters(&mut self, from: usize) -> Result<(), CryptoError> {
        let malformed = || CryptoError("malformed stand-in handshake".to_owned());
        let flight = self.incoming.get(from..).ok_or_else(malformed)?;
        let (len, rest) = flight.split_first_chunk::<2>().ok_or_else(malformed)?;
        let len = usize::from(u16::from_be_bytes(*len));
        self.peer = Some(rest.get(..len).ok_or_else(malformed)?.to_vec());
        let after = rest.get(len..).unwrap_or_default();
        self.peer_fingerprint = self.identity.read(after).map_err(CryptoError)?;
        Ok(())
    }

    pub(super) fn read(&mut self, data: &[u8]) -> Result<(), CryptoError> {
        let limit = PLAIN_CLIENT_HELLO + PLAIN_SERVER_HELLO + PLAIN_SERVER_FLIGHT + PLAIN_FINISHED;
        if data.len() > limit.saturating_sub(self.incoming.len()) {
            return Err(CryptoError("too much handshake data".to_owned()));
        }
        self.incoming.extend_from_slice(data);
        let len = self.incoming.len();
        match self.side {
            Side::Client if self.step == 1 && len >= PLAIN_SERVER_HELLO => self.step = 2,
            _ => {}
        }
        match self.side {
            Side::Client if self.step == 3 && len >= PLAIN_SERVER_HELLO + PLAIN_SERVER_FLIGHT => {
                self.take_parameters(PLAIN_SERVER_HELLO)?;
                self.step = 4;
            }
            Side::Server if self.step == 0 && len >= PLAIN_CLIENT_HELLO => {
                self.take_parameters(0)?;
                self.step = 1;
            }
            Side::Server if self.step == 3 && len >= PLAIN_CLIENT_HELLO + PLAIN_FINISHED => {
                self.step = 4;
                self.done = true;
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn write(&mut self, out: &mut Vec<u8>) -> Option<NewKeys> {
        match (self.side, self.step) {
            (Side::Client, 0) => {
                out.extend(self.flight(PLAIN_CLIENT_HELLO));
                self.step = 1;
                None
            }
            (Side::Client, 2) => {
                self.step = 3;
                Some(NewKeys::Handshake(plain_keys(2, self.side == Side::Client)))
            }
            (Side::Client, 4) => {
                out.extend([1; PLAIN_FINISHED]);
                self.step = 5;
                self.done = true;
                Some(NewKeys::OneRtt(plain_keys(3, self.side == Side::Client)))
            }
            (Side::Server, 1) => {
                out.extend([2; PLAIN_SERVER_HELLO]);
                self.step = 2;
                Some(NewKeys::Handshake(plain_keys(2, self.side == Side::Client)))
            }
            (Side::Server, 2) => {
                out.extend(self.flight(PLAIN_SERVER_FLIGHT));
                self.step = 3;
                Some(NewKeys::OneRtt(plain_keys(3, self.side == Side::Client)))
            }
            _ => None,
        }
    }
}
