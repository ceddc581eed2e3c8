//! Stateless processing of first packets from unauthenticated peers.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use bats_types::Timestamp;

use super::early::{SharedReplayLedger, lock};
use super::packet;
use super::token::TokenKey;
use crate::config::{PresharedKey, Security, ServerConfig, TransportConfig};
use crate::crypto::{InitialSecrets, PskSecrets, ServerTls, initial_keys};
use crate::error::ConnectError;
use crate::remote::Remote;
use crate::wire::long_header::{
    self, CID_LEN, LongKind, MIN_INITIAL_DATAGRAM, ORIGINAL_CID_LEN, VERSION,
};

/// A datagram with long headers, classified without keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstPacket<'a> {
    /// Addressed to a connection ID that this endpoint chose.
    ForUs {
        /// That connection ID.
        destination: [u8; CID_LEN],
    },
    /// A client's first packet, or a retransmission of it.
    Initial(InitialInfo<'a>),
    /// Early data of a client that does not know the server's connection ID yet.
    Early {
        /// Destination connection ID that the client chose.
        destination: [u8; ORIGINAL_CID_LEN],
    },
    /// An unknown version, which is answered with version negotiation.
    UnknownVersion(UnknownVersion<'a>),
}

/// A client's first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitialInfo<'a> {
    /// Destination connection ID that the client chose.
    pub destination: [u8; ORIGINAL_CID_LEN],
    /// Connection ID of the client.
    pub source: [u8; CID_LEN],
    /// Token, empty at first; in PSK mode it follows the proof of the key.
    pub token: &'a [u8],
    /// PSK mode: which of the server's keys was proved.
    pub(crate) psk: usize,
}

/// Connection IDs of a packet of an unknown version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVersion<'a> {
    destination: &'a [u8],
    source: &'a [u8],
}

/// Classifies a datagram with long headers; `None` if it must be dropped without an answer.
pub fn parse_first(datagram: &[u8]) -> Option<FirstPacket<'_>> {
    let header = long_header::decode(datagram)?;
    if header.version != VERSION && header.version != 0 {
        // The answer to a small packet of an unknown version could be larger than the packet.
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
        psk: 0,
    }))
}

/// The version negotiation packet for an unknown version.
pub fn write_version_negotiation(unknown: &UnknownVersion<'_>, grease: u32) -> Vec<u8> {
    long_header::version_negotiation(unknown.source, unknown.destination, grease)
}

/// State shared by all handshakes of a server.
#[derive(Debug)]
pub struct ServerCrypto {
    pub(super) tls: ServerTls,
    tokens: TokenKey,
    /// The accepted keys in PSK mode; empty without it.
    psks: Vec<PskSecrets>,
    /// Set if early data is enabled.
    pub(super) ledger: Option<SharedReplayLedger>,
}

/// Data that a server needs to start a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartInfo {
    pub(super) destination: [u8; ORIGINAL_CID_LEN],
    pub(super) source: [u8; CID_LEN],
    pub(super) validated: bool,
    /// PSK mode: which of the server's keys the client has proved.
    psk: usize,
    /// Fingerprint of the certificate of the neighbour that opens a direct session.
    pub(super) neighbour: Option<[u8; 32]>,
}

impl StartInfo {
    /// A neighbour whose certificate has this fingerprint opens a direct session.
    pub(crate) fn set_neighbour(&mut self, fingerprint: Option<[u8; 32]>) {
        self.neighbour = fingerprint;
    }

    /// Whether the client has proved its address with a token.
    pub(crate) fn is_validated(&self) -> bool {
        self.validated
    }
}

/// What to do with a first packet.
#[derive(Debug)]
pub enum ServerStart {
    /// Start a connection.
    Accept(StartInfo),
    /// Send this datagram and keep no state.
    Answer(Vec<u8>),
    /// Drop it.
    Drop,
}

impl ServerCrypto {
    /// Prepares the server's certificate; `token_key` signs retry tokens.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Configuration`] if certificate or key is invalid, or if a mode is offered
    /// that PSK mode does not support.
    pub fn new(
        config: &ServerConfig,
        security: Security,
        token_key: [u8; 32],
    ) -> Result<Self, ConnectError> {
        config.transport.check_psk_modes()?;
        Ok(Self {
            tls: ServerTls::new(config, security)?,
            tokens: TokenKey::new(token_key),
            psks: PskSecrets::accepted(&config.transport),
            ledger: config.transport.early_data.then(SharedReplayLedger::default),
        })
    }

    /// For direct sessions: only links bring their packets, so they need neither TLS nor a pre-shared key.
    pub(crate) fn of_links(token_key: [u8; 32]) -> Self {
        Self {
            tls: ServerTls::OfLinks,
            tokens: TokenKey::new(token_key),
            psks: Vec::new(),
            ledger: None,
        }
    }

    /// Whether the server is in PSK mode, so that peers without the key get no answer.
    pub fn requires_psk(&self) -> bool {
        !self.psks.is_empty()
    }

    /// Checks and removes the PSK proof in front of the token; `None` if it is missing or wrong.
    /// Without PSK mode the packet is returned unchanged. Cheap; the first check of a packet.
    pub fn verify_psk_proof<'a>(&self, initial: &InitialInfo<'a>) -> Option<InitialInfo<'a>> {
        if self.psks.is_empty() {
            return Some(*initial);
        }
        self.psks.iter().enumerate().find_map(|(psk, secrets)| {
            let InitialInfo { destination, source, token, .. } = initial;
            let token = secrets.verify_proof(destination, source, token)?;
            Some(InitialInfo { token, psk, ..*initial })
        })
    }

    /// Replaces the accepted keys for handshakes that start from now on.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Configuration`] if the server is not in PSK mode, or the number of keys is not
    /// 1 to 4.
    pub(crate) fn set_psks(
        &mut self,
        transport: &TransportConfig,
        keys: &[PresharedKey],
    ) -> Result<(), ConnectError> {
        let unusable = |text: String| Err(ConnectError::Configuration(text));
        if !self.requires_psk() {
            return unusable("a server without PSK mode cannot change to it at run time".into());
        }
        let Some((first, further)) = keys.split_first() else {
            return unusable("a server cannot leave PSK mode at run time: give a key".into());
        };
        let changed = TransportConfig {
            psk: Some(first.clone()),
            also_accepted_psks: further.to_vec(),
            ..transport.clone()
        };
        changed.check_psk_modes()?;
        self.psks = PskSecrets::accepted(&changed);
        Ok(())
    }

    /// The secrets of the key that a client has proved.
    pub(super) fn psk_of(&self, start: &StartInfo) -> Option<&PskSecrets> {
        self.psks.get(start.psk)
    }

    /// TLS sessions evicted before they were resumed.
    pub fn sessions_displaced(&self) -> u64 {
        self.tls.sessions_displaced()
    }

    /// Whether the replay ledger has room for another first flight; true if early data is disabled.
    pub(crate) fn has_early_room(&self, now: Timestamp) -> bool {
        self.ledger.as_ref().is_none_or(|ledger| lock(ledger).has_room(now))
    }

    /// Fills the replay ledger.
    #[cfg(test)]
    pub(crate) fn fill_ledger(&self, now: Timestamp) {
        let mut ledger = lock(self.ledger.as_ref().expect("early data is enabled"));
        let mut number = 0_u64;
        while ledger.has_room(now) {
            let mut flight = [0; 32];
            flight[..8].copy_from_slice(&number.to_le_bytes());
            assert!(ledger.begin(now, flight));
            number += 1;
        }
    }

    /// Whether a datagram has a packet that the Initial keys open. A damaged datagram then costs no
    /// handshake and uses up no half-open limit.
    pub(crate) fn opens(&self, initial: &InitialInfo<'_>, datagram: &[u8]) -> bool {
        let secrets = InitialSecrets {
            psk: self.psks.get(initial.psk),
            destination: &initial.destination,
            source: &initial.source,
            salt: &[],
        };
        let Some(keys) = initial_keys(self.tls.security(), &secrets, false) else {
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

    /// Decides about a first packet whose proof [`ServerCrypto::verify_psk_proof`] has removed.
    /// `full`: accept no more connections; `busy`: clients must validate their address first.
    pub(crate) fn start(
        &self,
        now: Timestamp,
        remote: Remote,
        initial: &InitialInfo<'_>,
        full: bool,
        require_retry: bool,
    ) -> ServerStart {
        let validated = !initial.token.is_empty()
            && self.tokens.check(now, initial.token, remote, &initial.destination);
        if full || (!initial.token.is_empty() && !validated) {
            return ServerStart::Drop;
        }
        if require_retry && !validated {
            let mut token = self.tokens.make(now, remote, &initial.destination);
            let grease = token.last().copied().unwrap_or_default();
            if let Some(psk) = self.psks.get(initial.psk) {
                let proof = psk.retry_proof(&initial.destination, &initial.source, &token);
                token.extend_from_slice(&proof);
            }
            let answer = long_header::retry(&initial.source, &initial.destination, &token, grease);
            return ServerStart::Answer(answer);
        }
        ServerStart::Accept(StartInfo {
            destination: initial.destination,
            source: initial.source,
            validated,
            psk: initial.psk,
            neighbour: None,
        })
    }
}
