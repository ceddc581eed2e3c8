//! Data packets that arrive before the handshake is complete.

use super::protection::Opened;
use crate::wire::short_header::PacketKind;

/// Authentic packets held: an initial window (40 packets) and the control packets sent with it.
/// Only a peer that has done the key exchange can fill this buffer, so forged packets cost no
/// memory.
const MAX_OPENED: usize = 48;
/// Packets held whose keys are not available yet. They are unauthenticated, hence few.
const MAX_SEALED: usize = 16;

/// An authentic packet.
#[derive(Debug)]
pub(super) struct EarlyPacket {
    pub(super) pn: u64,
    pub(super) kind: PacketKind,
    pub(super) ce: bool,
    pub(super) payload: Vec<u8>,
}

/// Packets of a peer that completed the handshake before this end, because its last flight was lost
/// or reordered. Without this buffer its first message would wait for a timeout.
#[derive(Debug, Default)]
pub(super) struct EarlyPackets {
    opened: Vec<EarlyPacket>,
    /// (ECN-CE marked, packet).
    sealed: Vec<(bool, Vec<u8>)>,
    dropped: u64,
}

impl EarlyPackets {
    /// Holds an authentic packet, if there is room. Packets of a later key phase are not held: they
    /// cannot precede the end of the handshake.
    pub(super) fn hold(&mut self, opened: &Opened, ce: bool, payload: &[u8]) {
        // Duplicates must not use up the buffer.
        if opened.updated || self.opened.iter().any(|held| held.pn == opened.pn) {
            return;
        }
        if self.opened.len() < MAX_OPENED {
            let payload = payload.to_vec();
            self.opened.push(EarlyPacket { pn: opened.pn, kind: opened.kind, ce, payload });
        } else {
            self.dropped += 1;
        }
    }

    /// Takes all authentic packets, in order of arrival.
    pub(super) fn take(&mut self) -> Vec<EarlyPacket> {
        core::mem::take(&mut self.opened)
    }

    /// Holds a packet whose keys are not available yet, if there is room. Only clients do: a server
    /// that answers early data may send data before its handshake flight arrives.
    pub(super) fn hold_sealed(&mut self, ce: bool, packet: &[u8]) {
        if self.sealed.len() < MAX_SEALED {
            self.sealed.push((ce, packet.to_vec()));
        } else {
            self.dropped += 1;
        }
    }

    /// Takes all sealed packets, in order of arrival.
    pub(super) fn take_sealed(&mut self) -> Vec<(bool, Vec<u8>)> {
        core::mem::take(&mut self.sealed)
    }

    /// Packets dropped for lack of room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_packets_are_held_up_to_the_limits() {
        let mut early = EarlyPackets::default();
        for pn in 0..100_u64 {
            // One of them belongs to a later key phase and is not counted.
            assert_eq!(early.dropped(), pn.saturating_sub(MAX_OPENED as u64 + 1));
            let opened = Opened {
                relayed: false,
                pn,
                kind: PacketKind::Source,
                len: 1_400,
                updated: pn == 3,
                current: true,
            };
            early.hold(&opened, false, &[0; 1_400]);
        }
        let held = early.take();
        assert_eq!(held.len(), MAX_OPENED);
        assert!(held.iter().all(|packet| packet.pn != 3));
        assert!(early.take().is_empty());
        for pn in 0..100 {
            early.hold_sealed(pn == 0, &[pn; 100]);
        }
        assert_eq!(early.take_sealed().len(), MAX_SEALED);
    }
}
