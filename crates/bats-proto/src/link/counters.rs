//! Counters of a link that none of its other parts keeps.

use crate::stats::PacketStats;

/// Packets and bytes sent and received, and packets that were rejected.
#[derive(Debug, Default)]
pub(super) struct Counters {
    bytes_sent: u64,
    packets_sent: u64,
    bytes_received: u64,
    packets_received: u64,
    forged: u64,
    replayed: u64,
    malformed: u64,
}

impl Counters {
    /// Packets of `bytes` bytes in total were sent.
    pub(super) fn on_sent(&mut self, packets: u64, bytes: usize) {
        self.packets_sent = self.packets_sent.saturating_add(packets);
        self.bytes_sent = self.bytes_sent.saturating_add(bytes as u64);
    }

    /// An authentic packet of `bytes` bytes arrived.
    pub(super) fn on_received(&mut self, bytes: usize) {
        self.packets_received = self.packets_received.saturating_add(1);
        self.bytes_received = self.bytes_received.saturating_add(bytes as u64);
    }

    /// A packet failed authentication.
    pub(super) fn on_forged(&mut self) {
        self.forged = self.forged.saturating_add(1);
    }

    /// The number of an authentic packet was a duplicate, or older than the replay window.
    pub(super) fn on_replayed(&mut self) {
        self.replayed = self.replayed.saturating_add(1);
    }

    /// A datagram is no packet, or an authentic packet has a malformed frame.
    pub(super) fn on_malformed(&mut self) {
        self.malformed = self.malformed.saturating_add(1);
    }

    /// Authentic packets received.
    pub(super) fn packets_received(&self) -> u64 {
        self.packets_received
    }

    /// Adds the counters to a sample of statistics.
    pub(super) fn add_stats(&self, stats: &mut PacketStats) {
        stats.bytes_sent = self.bytes_sent;
        stats.sent = self.packets_sent;
        stats.bytes_received = self.bytes_received;
        stats.received = self.packets_received;
        stats.forged = self.forged;
        stats.replayed = self.replayed;
        stats.malformed += self.malformed;
    }
}
