//! What a link adds to a sample of its connection's statistics.

use super::Link;
use super::protection::PacketProtection;
use crate::stats::ConnectionStats;

impl Link {
    /// Adds what the link counts and measures to a sample of statistics.
    pub(crate) fn add_stats(&self, stats: &mut ConnectionStats) {
        let controller = self.congestion.controller();
        stats.established = self.counters.established;
        stats.controller_state = controller.state();
        stats.cwnd_bytes = controller.window();
        stats.in_flight_bytes = self.sent.bytes_in_flight();
        stats.pacing_bps = controller.pacing_rate().saturating_mul(8);
        stats.delivery_bps = controller.bandwidth().saturating_mul(8);
        stats.smoothed_rtt = self.rtt.smoothed();
        stats.min_rtt = self.rtt.min();
        stats.queue_delay = controller.queue_delay();
        stats.loss_estimate = self.sent.loss.estimate();
        stats.own_loss = controller.own_loss();
        stats.limited_by = controller.limited_by();
        stats.burst_factor = self.sent.loss.burst_factor();
        stats.path_mtu = self.mtu.current();
        stats.bytes_sent = self.counters.bytes_sent;
        stats.packets_sent = self.counters.packets_sent;
        stats.bytes_received = self.counters.bytes_received;
        stats.packets_received = self.counters.packets_received;
        stats.packets_lost = self.sent.lost;
        stats.packets_spuriously_lost = u64::from(self.sent.spurious);
        stats.packets_forged = self.counters.forged;
        stats.packets_replayed = self.counters.replayed;
        stats.packets_malformed += self.counters.malformed;
        stats.relayed_packets_refused = self.relayed.refused();
        stats.early_packets_dropped = self.early.dropped();
        stats.fragments_dropped = self.fragments.dropped();
        stats.challenges_dropped = self.control.challenges_dropped();
        stats.acks_shortened = self.acks.shortened();
        stats.probe_timeouts = self.probing.total();
        stats.ecn_ce = self.congestion.ce_reported();
        stats.path_changes = self.path.changes();
        stats.resumed = self.was_validated() && self.handshake.is_resumed();
        stats.early_packets_refused = self.handshake.early_refused();
        stats.key_updates = self.protection.as_ref().map_or(0, PacketProtection::updates);
        if self.counters.established.is_some() {
            stats.sent_record_bytes = self.sent.bytes_held() as u64;
        }
    }
}
