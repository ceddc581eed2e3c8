//! What a link adds to a sample of its connection's statistics.

use super::Link;
use super::protection::PacketProtection;
use crate::stats::ConnectionStats;

impl Link {
    /// Adds what the link counts and measures to a sample of statistics.
    pub(crate) fn add_stats(&self, stats: &mut ConnectionStats) {
        let controller = self.congestion.controller();
        stats.established = self.counters.established;
        stats.congestion.controller_state = controller.state();
        stats.congestion.cwnd_bytes = controller.window();
        stats.congestion.in_flight_bytes = self.sent.bytes_in_flight();
        stats.congestion.pacing_bps = controller.pacing_rate().saturating_mul(8);
        stats.congestion.delivery_bps = controller.bandwidth().saturating_mul(8);
        stats.path.smoothed_rtt = self.rtt.smoothed();
        stats.path.min_rtt = self.rtt.min();
        stats.path.queue_delay = controller.queue_delay();
        stats.path.loss_estimate = self.sent.loss.estimate();
        stats.congestion.own_loss = controller.own_loss();
        stats.congestion.limited_by = controller.limited_by();
        stats.path.burst_factor = self.sent.loss.burst_factor();
        stats.path.mtu = self.mtu.current();
        stats.packets.bytes_sent = self.counters.bytes_sent;
        stats.packets.sent = self.counters.packets_sent;
        stats.packets.bytes_received = self.counters.bytes_received;
        stats.packets.received = self.counters.packets_received;
        stats.packets.lost = self.sent.lost;
        stats.packets.spuriously_lost = u64::from(self.sent.spurious);
        stats.packets.forged = self.counters.forged;
        stats.packets.replayed = self.counters.replayed;
        stats.packets.malformed += self.counters.malformed;
        stats.packets.relayed_refused = self.relayed.refused();
        stats.packets.early_dropped = self.early.dropped();
        stats.packets.fragments_dropped = self.fragments.dropped();
        stats.path.challenges_dropped = self.control.challenges_dropped();
        stats.packets.acks_shortened = self.acks.shortened();
        stats.congestion.probe_timeouts = self.probing.total();
        stats.congestion.ecn_ce = self.congestion.ce_reported();
        stats.path.changes = self.path.changes();
        stats.resumed = self.was_validated() && self.handshake.is_resumed();
        stats.early.packets_refused = self.handshake.early_refused();
        stats.key_updates = self.protection.as_ref().map_or(0, PacketProtection::updates);
        if self.counters.established.is_some() {
            stats.buffers.sent_record_bytes = self.sent.bytes_held() as u64;
        }
    }
}
