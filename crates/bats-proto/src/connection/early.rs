//! Data that overtook the end of the handshake, or all of it.

use super::protection::Opened;
use crate::wire::short_header::PacketKind;

/// Authentic packets held: a first flight (40 packets at the start of congestion control) and what
/// goes with it. Who fills this has done the key exchange, so that made-up packets cost nothing.
const MAX_OPENED: usize = 48;
/// Packets held whose keys are not there yet, which anybody may have made.
const MAX_SEALED: usize = 16;

/// An authentic packet.
#[derive(Debug)]
pub(super) struct EarlyPacket {
    pub(super) pn: u64,
    pub(super) kind: PacketKind,
    pub(super) ce: bool,
    pub(super) payload: Vec<u8>,
}

/// Packets of a peer that is done with the handshake before we are: its last flight was lost or
/// overtaken. Without them its first message would wait for a time-out.
#[derive(Debug, Default)]
pub(super) struct EarlyPackets {
    opened: Vec<EarlyPacket>,
    /// Whether it met congestion, and the packet.
    sealed: Vec<(bool, Vec<u8>)>,
    dropped: u64,
}

impl EarlyPackets {
    /// Keeps a packet, if there is room for it; those of later keys cannot be early.
    pub(super) fn hold(&mut self, opened: &Opened, ce: bool, payload: &[u8]) {
        // Copies must not take the places of others.
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

    /// All of them, in the order of their arrival.
    pub(super) fn take(&mut self) -> Vec<EarlyPacket> {
        core::mem::take(&mut self.opened)
    }

    /// Keeps a packet whose keys are not there yet, if there is room for it. A client does: a server
    /// that answers early messages says more than its handshake, and a copy of that may come later
    /// than the rest.
    pub(super) fn hold_sealed(&mut self, ce: bool, packet: &[u8]) {
        if self.sealed.len() < MAX_SEALED {
            self.sealed.push((ce, packet.to_vec()));
        } else {
            self.dropped += 1;
        }
    }

    /// All of these, in the order of their arrival.
    pub(super) fn take_sealed(&mut self) -> Vec<(bool, Vec<u8>)> {
        core::mem::take(&mut self.sealed)
    }

    /// Packets for which there was no room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_held() {
        let mut early = EarlyPackets::default();
        for pn in 0..100_u64 {
            // One of them is of later keys, and not counted.
            assert_eq!(early.dropped(), pn.saturating_sub(MAX_OPENED as u64 + 1));
            let opened = Opened {
                carried: false,
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
