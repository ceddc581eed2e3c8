//! Seals and opens packets that carry data, and replaces their keys in time.

use core::time::Duration;

use bats_types::Timestamp;

use crate::crypto::{HeaderKey, Keys, PacketKey};
use crate::handshake::Handshake;
use crate::link::received::expand;
use crate::wire::short_header::{
    self, PacketKind, SHORT_HEADER_LEN, SHORT_OVERHEAD, ShortHeader, TAG_LEN,
};

/// A packet whose seal was opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) kind: PacketKind,
    pub(super) carried: bool,
    pub(super) pn: u64,
    /// Bytes of payload behind the header.
    pub(super) len: usize,
    /// The peer began a new key phase with this packet.
    pub(super) updated: bool,
    /// It was sealed with the keys of the phase that this side is in.
    pub(super) current: bool,
}

/// Why a packet was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenError {
    /// Too short, reserved bits, wrong tag: not from the peer or damaged on the way.
    Forged,
    /// So many forgeries that the key is no longer safe (RFC 9001, section 6.6).
    IntegrityLimit,
}

#[derive(Debug)]
pub(super) struct PacketProtection {
    seal_header: HeaderKey,
    open_header: HeaderKey,
    seal: PacketKey,
    open: PacketKey,
    /// Keys of the next generation, made ahead of time so that a forged phase bit costs no
    /// derivation.
    next: (PacketKey, PacketKey),
    /// Opens packets of the last generation that come late.
    previous_open: Option<PacketKey>,
    phase: bool,
    sealed: u64,
    forged: u64,
    updates: u64,
    /// First packet number sent with the current keys; acknowledged means that the peer has them.
    phase_confirmed: bool,
    phase_first_pn: u64,
    /// Lowest packet number opened with the current keys.
    open_first_pn: u64,
    limit: u64,
}

impl PacketProtection {
    pub(super) fn new(keys: Keys, handshake: &mut Handshake, update_after: u64) -> Option<Self> {
        let next = handshake.next_one_rtt_keys()?;
        let limit = update_after.clamp(64, keys.local.packet.confidentiality_limit() / 2);
        Some(Self {
            seal_header: keys.local.header,
            open_header: keys.remote.header,
            seal: keys.local.packet,
            open: keys.remote.packet,
            next,
            previous_open: None,
            phase: false,
            sealed: 0,
            forged: 0,
            updates: 0,
            phase_confirmed: true,
            phase_first_pn: 0,
            open_first_pn: 0,
            limit,
        })
    }

    /// Key generations so far.
    pub(super) fn updates(&self) -> u64 {
        self.updates
    }

    /// Seals the packet that begins at `start` of `buffer`: a header's room, the payload, and
    /// nothing behind it. Appends the tag.
    pub(super) fn seal(
        &mut self,
        buffer: &mut Vec<u8>,
        start: usize,
        (kind, carried): (PacketKind, bool),
        destination: [u8; 4],
        pn: u64,
        grease: u8,
    ) {
        let header = ShortHeader {
            kind,
            carried,
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

    /// Opens a packet in place; the payload stands behind the header.
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
        let (associated, sealed) = packet.split_at_mut(SHORT_HEADER_LEN);
        if header.key_phase == self.phase {
            return match self.open.open_in_place(pn, associated, sealed) {
                Some(len) => {
                    self.open_first_pn = self.open_first_pn.min(pn);
                    Ok(Opened {
                        kind: header.kind,
                        carried: header.carried,
                        pn,
                        len,
                        updated: false,
                        current: true,
                    })
                }
                None => self.forged(),
            };
        }
        // The other phase: numbers from before this phase belong to the last generation, later
        // ones to the next (RFC 9001, section 6.3).
        let previous = self.previous_open.as_ref().filter(|_| pn < self.open_first_pn);
        let late = previous.is_some();
        let key = previous.unwrap_or(&self.next.1);
        match key.open_in_place(pn, associated, sealed) {
            Some(len) => Ok(Opened {
                kind: header.kind,
                carried: header.carried,
                pn,
                len,
                updated: !late,
                current: false,
            }),
            None => self.forged(),
        }
    }

    fn forged(&mut self) -> Result<Opened, OpenError> {
        self.forged += 1;
        if self.forged >= self.open.integrity_limit() {
            return Err(OpenError::IntegrityLimit);
        }
        Err(OpenError::Forged)
    }

    /// Whether it is time for new keys: the old ones are worn and the peer has them.
    pub(super) fn wants_update(&self) -> bool {
        self.sealed >= self.limit && self.phase_confirmed && self.previous_open.is_none()
    }

    /// Whether sealing must stop because the keys are spent and no update is possible.
    pub(super) fn is_spent(&self) -> bool {
        self.sealed >= self.seal.confidentiality_limit()
    }

    /// Begins the next key phase, on own account or because the peer did.
    /// `next_pn` is the number of the next packet sent, `opened` that of the packet by which the
    /// peer began the phase.
    pub(super) fn update(&mut self, handshake: &mut Handshake, next_pn: u64, opened: Option<u64>) {
        let Some(after_next) = handshake.next_one_rtt_keys() else { return };
        let (seal, open) = core::mem::replace(&mut self.next, after_next);
        self.seal = seal;
        self.previous_open = Some(core::mem::replace(&mut self.open, open));
        self.phase = !self.phase;
        self.sealed = 0;
        self.forged = 0;
        self.updates += 1;
        self.phase_confirmed = false;
        self.phase_first_pn = next_pn;
        self.open_first_pn = opened.unwrap_or(u64::MAX);
    }

    /// The peer acknowledged `largest`.
    pub(super) fn on_acknowledged(&mut self, largest: u64) {
        self.phase_confirmed |= largest >= self.phase_first_pn;
    }

    /// Whether keys of the last phase are kept.
    pub(super) fn has_previous(&self) -> bool {
        self.previous_open.is_some()
    }

    /// Forgets the keys of the last phase.
    pub(super) fn discard_previous(&mut self) {
        self.previous_open = None;
    }

    /// How long keys of the last phase are kept once the peer was seen to use the new ones (RFC
    /// 9001, section 6.5); until then it may not have heard of them.
    pub(super) fn keep_previous(probe_timeout: Duration, now: Timestamp) -> Timestamp {
        now + probe_timeout * 3
    }
}
