//! Packet protection of data packets, and key update (RFC 9001, sections 5 and 6).

use core::time::Duration;

use bats_types::Timestamp;

use super::received::expand;
use super::timer::take_expired;
use crate::config::TransportConfig;
use crate::crypto::{HeaderKey, Keys, PacketKey};
use crate::handshake::Handshake;
use crate::wire::short_header::{
    self, PacketKind, SHORT_HEADER_LEN, SHORT_OVERHEAD, ShortHeader, TAG_LEN,
};

/// A packet that was opened successfully.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) kind: PacketKind,
    pub(super) relayed: bool,
    pub(super) pn: u64,
    /// Length of the payload in bytes.
    pub(super) len: usize,
    /// The peer began a new key phase with this packet.
    pub(super) updated: bool,
    /// It was sealed with the keys of this end's current phase.
    pub(super) current: bool,
}

/// Why a packet was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenError {
    /// Too short, reserved bits set, or wrong tag: not from the peer, or damaged in transit.
    Forged,
    /// The AEAD's integrity limit is reached (RFC 9001, section 6.6).
    IntegrityLimit,
}

#[derive(Debug)]
pub(super) struct PacketProtection {
    seal_header: HeaderKey,
    open_header: HeaderKey,
    seal: PacketKey,
    open: PacketKey,
    /// Keys of the next phase, derived in advance so that a forged phase bit costs no derivation.
    next: (PacketKey, PacketKey),
    /// Opens late packets of the previous phase.
    previous_open: Option<PacketKey>,
    /// When the keys of the previous phase are discarded, from the first packet with the new ones on.
    discard_at: Option<Timestamp>,
    phase: bool,
    sealed: u64,
    /// Packets that failed authentication with any keys (RFC 9001, section 6.6).
    forged: u64,
    updates: u64,
    /// A packet sent with the current keys was acknowledged, so the peer has them.
    phase_confirmed: bool,
    /// First packet number sent with the current keys.
    phase_first_pn: u64,
    /// Lowest packet number opened with the current keys.
    open_first_pn: u64,
    limit: u64,
    /// When the current keys were installed, and their age at which they are replaced.
    phase_began: Timestamp,
    max_age: Duration,
}

impl PacketProtection {
    /// Takes the limits of packets and of age from the configuration.
    pub(super) fn new(
        now: Timestamp,
        keys: Keys,
        handshake: &mut Handshake,
        config: &TransportConfig,
    ) -> Option<Self> {
        let next = handshake.next_one_rtt_keys()?;
        let most = keys.local.packet.confidentiality_limit() / 2;
        let limit = config.key_update_packets.clamp(64, most);
        Some(Self {
            seal_header: keys.local.header,
            open_header: keys.remote.header,
            seal: keys.local.packet,
            open: keys.remote.packet,
            next,
            previous_open: None,
            discard_at: None,
            phase: false,
            sealed: 0,
            forged: 0,
            updates: 0,
            phase_confirmed: true,
            phase_first_pn: 0,
            open_first_pn: 0,
            limit,
            phase_began: now,
            max_age: config.key_update_interval,
        })
    }

    /// Key updates so far.
    pub(super) fn updates(&self) -> u64 {
        self.updates
    }

    /// Seals the packet from `start` to the end of `buffer`: space for the header, then the
    /// payload. Appends the tag.
    pub(super) fn seal(
        &mut self,
        buffer: &mut Vec<u8>,
        start: usize,
        (kind, relayed): (PacketKind, bool),
        destination: [u8; 4],
        pn: u64,
        grease: u8,
    ) {
        let header = ShortHeader {
            kind,
            relayed,
            key_phase: self.phase,
            destination,
            packet_number: pn as u32,
        };
        let mut bytes = [0; SHORT_HEADER_LEN];
        header.encode(grease, &mut bytes);
        let payload_start = start + SHORT_HEADER_LEN;
        let payload_len = buffer.len() - payload_start;
        buffer.resize(buffer.len() + TAG_LEN, 0);
        let (front, payload) = buffer.split_at_mut(payload_start);
        front[start..].copy_from_slice(&bytes);
        self.seal.seal_in_place(pn, &bytes, payload, payload_len);
        self.sealed += 1;
        let packet = &mut buffer[start..];
        if let Some(sample) = short_header::sample(packet) {
            let mask = self.seal_header.mask(sample);
            short_header::apply_mask(packet, mask);
        }
    }

    /// Opens a packet in place; the payload follows the header.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn open(
        &mut self,
        packet: &mut [u8],
        expected_pn: u64,
    ) -> Result<Opened, OpenError> {
        if packet.len() < SHORT_OVERHEAD {
            return Err(OpenError::Forged);
        }
        let Some(sample) = short_header::sample(packet) else { return Err(OpenError::Forged) };
        let mask = self.open_header.mask(sample);
        short_header::apply_mask(packet, mask);
        let Some(header) = ShortHeader::decode(packet) else { return self.forged() };
        let pn = expand(header.packet_number, expected_pn);
        let Some((associated, sealed)) = packet.split_at_mut_checked(SHORT_HEADER_LEN) else {
            return Err(OpenError::Forged);
        };
        if header.key_phase == self.phase {
            return match self.open.open_in_place(pn, associated, sealed) {
                Some(len) => {
                    self.open_first_pn = self.open_first_pn.min(pn);
                    Ok(Opened {
                        kind: header.kind,
                        relayed: header.relayed,
                        pn,
                        len,
                        updated: false,
                        current: true,
                    })
                }
                None => self.forged(),
            };
        }
        // The other phase: numbers below the first of this phase use the previous keys, larger ones
        // the next keys (RFC 9001, section 6.3).
        let previous = self.previous_open.as_ref().filter(|_| pn < self.open_first_pn);
        let late = previous.is_some();
        let key = previous.unwrap_or(&self.next.1);
        match key.open_in_place(pn, associated, sealed) {
            Some(len) => Ok(Opened {
                kind: header.kind,
                relayed: header.relayed,
                pn,
                len,
                updated: !late,
                current: false,
            }),
            None => self.forged(),
        }
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn forged(&mut self) -> Result<Opened, OpenError> {
        self.forged = self.forged.saturating_add(1);
        if self.forged >= self.open.integrity_limit() {
            return Err(OpenError::IntegrityLimit);
        }
        Err(OpenError::Forged)
    }

    /// Whether a key update is due: the current keys have sealed their number of packets or reached
    /// their age, and the peer has confirmed them.
    pub(super) fn wants_update(&self, now: Timestamp) -> bool {
        let is_used_up = self.sealed >= self.limit || now - self.phase_began >= self.max_age;
        is_used_up && self.phase_confirmed && self.previous_open.is_none()
    }

    /// Whether sealing must stop: the confidentiality limit is reached and no update is possible.
    pub(super) fn is_spent(&self) -> bool {
        self.sealed >= self.seal.confidentiality_limit()
    }

    /// Begins the next key phase, on this end's initiative or the peer's. `next_pn` is the next
    /// packet number to send, `opened` the packet with which the peer began the phase.
    pub(super) fn update(
        &mut self,
        now: Timestamp,
        handshake: &mut Handshake,
        next_pn: u64,
        opened: Option<u64>,
    ) {
        // Keys older than the previous phase are already gone, so their timer does not apply.
        self.discard_at = None;
        let Some(after_next) = handshake.next_one_rtt_keys() else { return };
        let (seal, open) = core::mem::replace(&mut self.next, after_next);
        self.seal = seal;
        self.previous_open = Some(core::mem::replace(&mut self.open, open));
        self.phase = !self.phase;
        self.sealed = 0;
        self.updates += 1;
        self.phase_began = now;
        self.phase_confirmed = false;
        self.phase_first_pn = next_pn;
        self.open_first_pn = opened.unwrap_or(u64::MAX);
    }

    /// The peer acknowledged `largest`.
    pub(super) fn on_acknowledged(&mut self, largest: u64) {
        self.phase_confirmed |= largest >= self.phase_first_pn;
    }

    /// The peer uses the keys of this phase: arms the timer that discards the previous ones, which only late
    /// packets still need (RFC 9001, section 6.5). Before that the peer may not know of the update.
    pub(super) fn on_current_keys(
        &mut self,
        now: Timestamp,
        probe_timeout: impl FnOnce() -> Duration,
    ) {
        if self.discard_at.is_none() && self.previous_open.is_some() {
            self.discard_at = Some(now + probe_timeout() * 3);
        }
    }

    /// When to call [`Self::handle_timeout`].
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        self.discard_at
    }

    /// Discards the keys of the previous phase, if it is time.
    pub(super) fn handle_timeout(&mut self, now: Timestamp) {
        if take_expired(&mut self.discard_at, now) {
            self.previous_open = None;
        }
    }
}

#[cfg(test)]
impl PacketProtection {
    /// The keys reach their integrity limit with this number of forged packets.
    pub(super) fn leave_forged_packets(&mut self, left: u64) {
        self.forged = self.open.integrity_limit() - left;
    }

    /// The keys reach the number of packets after which they are updated (`update`), or their
    /// confidentiality limit, with this number of packets.
    pub(super) fn leave_sealed_packets(&mut self, left: u64, update: bool) {
        let limit = if update { self.limit } else { self.seal.confidentiality_limit() };
        self.sealed = limit - left;
    }
}

#[cfg(test)]
mod tests {

    use bats_types::Timestamp;

    use super::*;
    use crate::config::{ClientConfig, PeerTrust, Security, TransportConfig};
    use crate::crypto::plain_keys;
    use crate::handshake::Protection;
    use crate::remote::Remote;
    use crate::wire::parameters::TransportParameters;

    /// RFC 9001, section 6.6: the limit applies to the packets that fail with any of the keys.
    #[test]
    fn forged_packets_are_counted_over_all_key_updates() {
        let config = ClientConfig {
            trust: PeerTrust::DangerousAcceptAny,
            identity: None,
            transport: TransportConfig::default().into(),
        };
        let to = (Remote::Network(([10, 0, 0, 1], 1).into()), "server");
        let parameters = TransportParameters::default();
        let security = Security::DangerousPlain;
        let now = Timestamp::ZERO;
        let mut handshake = Handshake::client(
            now,
            &config,
            to,
            Protection::Handshake(security),
            parameters,
            [1; 4],
            [2; 32],
        )
        .expect("a configuration");
        let mut protection =
            PacketProtection::new(now, plain_keys(3, true), &mut handshake, &config.transport)
                .expect("keys of the next phase");
        let forged = |protection: &mut PacketProtection| {
            protection.open(&mut [0x40; 60], 0).expect_err("it is not authentic")
        };
        protection.forged = protection.open.integrity_limit() - 3;
        for _ in 0..2 {
            assert_eq!(forged(&mut protection), OpenError::Forged);
            protection.update(now, &mut handshake, 10, None);
        }
        assert_eq!(protection.updates(), 2);
        assert_eq!(forged(&mut protection), OpenError::IntegrityLimit);
    }
}
