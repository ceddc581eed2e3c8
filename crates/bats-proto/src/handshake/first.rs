//! What a server does with a stranger's first packet, without keeping state.

use core::net::SocketAddr;

use bats_types::Timestamp;

use super::early::{SharedLedger, lock};
use super::packet;
use super::token::TokenKey;
use crate::config::{Security, ServerConfig};
use crate::crypto::{ClosedSecrets, ServerTls, initial_keys};
use crate::error::ConnectError;
use crate::wire::long_header::{
    self, CID_LEN, LongKind, MIN_INITIAL_DATAGRAM, ORIGINAL_CID_LEN, VERSION,
};

/// A datagram of long packets, seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstPacket<'a> {
    /// Addressed to a connection ID that an endpoint chose.
    ForUs {
        /// That ID.
        destination: [u8; CID_LEN],
    },
    /// A client's first packet, or a copy of it.
    Initial(InitialInfo<'a>),
    /// Early data of a client that has not learnt the server's connection ID.
    Early {
        /// Connection ID that the client invented.
        destination: [u8; ORIGINAL_CID_LEN],
    },
    /// A version that is not spoken here; worth an answer.
    UnknownVersion(UnknownVersion<'a>),
}

/// A client's first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitialInfo<'a> {
    /// Connection ID that the client invented.
    pub destination: [u8; ORIGINAL_CID_LEN],
    /// Connection ID of the client.
    pub source: [u8; CID_LEN],
    /// Token, empty at first; in closed mode behind a proof of the key.
    pub token: &'a [u8],
}

/// Connection IDs of a packet of an unknown version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVersion<'a> {
    destination: &'a [u8],
    source: &'a [u8],
}

/// Classifies a datagram of long packets; `None` for what deserves no answer.
pub fn parse_first(datagram: &[u8]) -> Option<FirstPacket<'_>> {
    let header = long_header::decode(datagram)?;
    if header.version != VERSION && header.version != 0 {
        // Small packets of unknown versions get no answer that could be larger.
        return (datagram.len() >= MIN_INITIAL_DATAGRAM).then_some(FirstPacket::UnknownVersion(
            UnknownVersion { destination: header.destination, source: header.source },
        ));
    }
    if let Ok(destination) = header.destination.try_into() {
        return Some(FirstPacket::ForUs { destination });
    }
    if header.version != 0 && header.kind == LongKind::Early {
        let destination = header.destination.try_into().ok()?;
        return Some(FirstPacket::Early { destination });
    }
    if header.version == 0
        || header.kind != LongKind::Initial
        || datagram.len() < MIN_INITIAL_DATAGRAM
    {
        return None;
    }
    Some(FirstPacket::Initial(InitialInfo {
        destination: header.destination.try_into().ok()?,
        source: header.source.try_into().ok()?,
        token: header.token,
    }))
}

/// The answer to an unknown version.
pub fn write_version_negotiation(unknown: &UnknownVersion<'_>, grease: u32) -> Vec<u8> {
    long_header::version_negotiation(unknown.source, unknown.destination, grease)
}

/// What a server's handshakes have in common.
#[derive(Debug)]
pub struct ServerCrypto {
    pub(super) tls: ServerTls,
    tokens: TokenKey,
    /// There in closed mode.
    pub(super) closed: Option<ClosedSecrets>,
    /// There if early data are taken.
    pub(super) ledger: Option<SharedLedger>,
}

/// What a server begins a connection with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartInfo {
    pub(super) destination: [u8; ORIGINAL_CID_LEN],
    pub(super) source: [u8; CID_LEN],
    pub(super) validated: bool,
}

/// What is to be done with a first packet.
#[derive(Debug)]
pub enum ServerStart {
    /// Begin a connection.
    Accept(StartInfo),
    /// Send this back and keep nothing.
    Answer(Vec<u8>),
    /// Nothing.
    Drop,
}

impl ServerCrypto {
    /// Prepares the server's certificate; `token_key` signs retry tokens.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Configuration`] if certificate and key cannot be used, or a mode is offered that
    /// does not go with closed mode.
    pub fn new(
        config: &ServerConfig,
        security: Security,
        token_key: [u8; 32],
    ) -> Result<Self, ConnectError> {
        config.transport.check_closed()?;
        Ok(Self {
            tls: ServerTls::new(config, security)?,
            tokens: TokenKey::new(token_key),
            closed: config.transport.closed.as_ref().map(ClosedSecrets::new),
            ledger: config.transport.early_data.then(SharedLedger::default),
        })
    }

    /// Whether strangers get no answer.
    pub fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// A first packet as an open server has it: in closed mode without the proof in front of its token,
    /// and `None` if that is not there or wrong. Cheap, and the first that is done with a packet.
    pub fn known<'a>(&self, initial: &InitialInfo<'a>) -> Option<InitialInfo<'a>> {
        let Some(closed) = &self.closed else { return Some(*initial) };
        let token = closed.behind_proof(&initial.destination, &initial.source, initial.token)?;
        Some(InitialInfo { token, ..*initial })
    }

    /// Sessions that made room for others before they were taken up.
    pub fn sessions_displaced(&self) -> u64 {
        self.tls.sessions_displaced()
    }

    /// Whether early data of one more first flight would be taken; true if none are taken at all.
    pub(crate) fn has_early_room(&self, now: Timestamp) -> bool {
        self.ledger.as_ref().is_none_or(|ledger| lock(ledger).has_room(now))
    }

    /// As many first flights with early data as are remembered.
    #[cfg(test)]
    pub(crate) fn fill_ledger(&self, now: Timestamp) {
        let mut ledger = lock(self.ledger.as_ref().expect("early data are taken"));
        let mut number = 0_u64;
        while ledger.has_room(now) {
            let mut flight = [0; 32];
            flight[..8].copy_from_slice(&number.to_le_bytes());
            assert!(ledger.begin(now, flight));
            number += 1;
        }
    }

    /// Whether a datagram has a packet that the keys of its first level open: what was damaged on the way
    /// costs no handshake, and takes no place that others would be limited by.
    pub(crate) fn opens(&self, destination: &[u8; ORIGINAL_CID_LEN], datagram: &[u8]) -> bool {
        let Some(keys) =
            initial_keys(self.tls.security(), self.closed.as_ref(), destination, false)
        else {
            return false;
        };
        let mut rest = datagram;
        while let Some(header) = long_header::decode(rest) {
            let (kind, number_at, len) = (header.kind, header.number_at, header.packet_len);
            let Some((packet, others)) = rest.split_at_checked(len) else { break };
            if kind == LongKind::Initial
                && packet::open(&mut packet.to_vec(), &keys.remote, number_at).is_some()
            {
                return true;
            }
            if len == 0 {
                break;
            }
            rest = others;
        }
        false
    }

    /// Decides about a first packet, of which [`ServerCrypto::known`] has taken the proof. `full`: no more connections are wanted; `busy`: clients must
    /// prove their address first.
    pub fn start(
        &self,
        now: Timestamp,
        remote: SocketAddr,
        initial: &InitialInfo<'_>,
        full: bool,
        busy: bool,
    ) -> ServerStart {
        let validated = !initial.token.is_empty()
            && self.tokens.check(now, initial.token, remote, &initial.destination);
        if full || (!initial.token.is_empty() && !validated) {
            return ServerStart::Drop;
        }
        if busy && !validated {
            let mut token = self.tokens.make(now, remote, &initial.destination);
            let grease = token.last().copied().unwrap_or_default();
            if let Some(closed) = &self.closed {
                let proof = closed.retry_proof(&initial.destination, &initial.source, &token);
                token.extend_from_slice(&proof);
            }
            let answer = long_header::retry(&initial.source, &initial.destination, &token, grease);
            return ServerStart::Answer(answer);
        }
        ServerStart::Accept(StartInfo {
            destination: initial.destination,
            source: initial.source,
            validated,
        })
    }
}
