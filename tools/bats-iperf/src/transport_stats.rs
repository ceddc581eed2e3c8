//! Statistics of an OpenBATS connection, as reported and sent to the peer.

use openbats::ConnectionStats;
use serde::{Deserialize, Serialize};

/// A sample of the statistics.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct TransportStats {
    pub(crate) controller_state: String,
    /// The bound of the congestion controller that limits sending; empty if it has none.
    pub(crate) limited_by: String,
    pub(crate) snd_cwnd: u64,
    pub(crate) bytes_in_flight: u64,
    /// `None` if unpaced.
    pub(crate) pacing_bits_per_second: Option<u64>,
    pub(crate) delivery_bits_per_second: u64,
    pub(crate) rtt_us: u64,
    pub(crate) min_rtt_us: u64,
    /// One-way delay above its minimum.
    pub(crate) queue_delay_us: u64,
    /// Path loss before repair, of packets that this end sent.
    pub(crate) loss_percent: f64,
    /// Loss that the congestion controller takes for the path's own and not for congestion.
    pub(crate) own_loss_percent: f64,
    pub(crate) burst_factor: f64,
    pub(crate) code_rate: f64,
    pub(crate) path_mtu: u16,
    pub(crate) packets_sent: u64,
    pub(crate) packets_received: u64,
    pub(crate) packets_lost: u64,
    pub(crate) source_packets_sent: u64,
    pub(crate) repair_packets_sent: u64,
    pub(crate) coded_packets_received: u64,
    pub(crate) wasted_packets_received: u64,
    pub(crate) symbols_decoded: u64,
    pub(crate) probe_timeouts: u64,
    pub(crate) ecn_ce: u64,
    pub(crate) packets_forged: u64,
    pub(crate) packets_replayed: u64,
    /// Messages that expired before they were sent.
    pub(crate) messages_expired: u64,
    /// Messages of the peer that were lost, as far as known.
    pub(crate) messages_lost: u64,
    pub(crate) symbols_lost: u64,
    pub(crate) symbols_repaired: u64,
    /// Sum over all repaired symbols.
    pub(crate) repair_delay_us: u64,
    pub(crate) longest_repair_delay_us: u64,
}

impl From<&ConnectionStats> for TransportStats {
    fn from(stats: &ConnectionStats) -> Self {
        let micros =
            |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Self {
            controller_state: stats.congestion.controller_state.to_owned(),
            limited_by: stats.congestion.limited_by.to_owned(),
            snd_cwnd: stats.congestion.cwnd_bytes,
            bytes_in_flight: stats.congestion.in_flight_bytes,
            pacing_bits_per_second: (stats.congestion.pacing_bps != u64::MAX)
                .then_some(stats.congestion.pacing_bps),
            delivery_bits_per_second: stats.congestion.delivery_bps,
            rtt_us: micros(stats.path.smoothed_rtt),
            min_rtt_us: micros(stats.path.min_rtt),
            queue_delay_us: micros(stats.path.queue_delay),
            loss_percent: finite(100.0 * stats.path.loss_estimate),
            own_loss_percent: finite(100.0 * stats.congestion.own_loss),
            burst_factor: finite(stats.path.burst_factor),
            code_rate: finite(stats.coding.code_rate),
            path_mtu: stats.path.mtu,
            packets_sent: stats.packets.sent,
            packets_received: stats.packets.received,
            packets_lost: stats.packets.lost,
            source_packets_sent: stats.coding.source_packets_sent,
            repair_packets_sent: stats.coding.proactive_packets_sent
                + stats.coding.top_up_packets_sent,
            coded_packets_received: stats.coding.coded_packets_received,
            wasted_packets_received: stats.coding.wasted_packets_received,
            symbols_decoded: stats.coding.symbols_decoded,
            probe_timeouts: stats.congestion.probe_timeouts,
            ecn_ce: stats.congestion.ecn_ce,
            packets_forged: stats.packets.forged,
            packets_replayed: stats.packets.replayed,
            messages_expired: stats.messages.expired,
            messages_lost: stats.messages.lost,
            symbols_lost: stats.coding.symbols_lost,
            symbols_repaired: stats.coding.symbols_repaired,
            repair_delay_us: micros(stats.coding.repair_delay),
            longest_repair_delay_us: micros(stats.coding.longest_repair_delay),
        }
    }
}

/// JSON has no infinity or NaN.
fn finite(number: f64) -> f64 {
    if number.is_finite() { number } else { 0.0 }
}

/// The values of the `-V` columns between two samples. `None` if this side cannot know the value,
/// or nothing happened.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CodingStats {
    /// Path loss before repair, in per cent.
    pub(crate) loss: Option<f64>,
    /// Repair packets per source packet, in per cent.
    pub(crate) redundancy: Option<f64>,
    /// Non-innovative packets per coded packet received, in per cent.
    pub(crate) waste: Option<f64>,
    /// Symbols that neither arrived nor were repaired, in per cent.
    pub(crate) residual: Option<f64>,
    /// Messages that expired before they were sent.
    pub(crate) expired: Option<u64>,
    /// Mean time from the detection of a missing symbol to its repair.
    pub(crate) repair_us: Option<f64>,
    pub(crate) rtt_us: Option<u64>,
    pub(crate) cwnd: Option<u64>,
}

impl CodingStats {
    /// Computes the values of several streams: `senders` and `receivers` are pairs of samples of
    /// the sending and receiving ends, as far as available.
    pub(crate) fn between(
        senders: &[(&TransportStats, &TransportStats)],
        receivers: &[(&TransportStats, &TransportStats)],
    ) -> Self {
        let sum = |samples: &[(&TransportStats, &TransportStats)],
                   field: fn(&TransportStats) -> u64| {
            samples.iter().fold(0_u64, |sum, (before, after)| {
                sum.saturating_add(field(after).saturating_sub(field(before)))
            })
        };
        let percent =
            |part: u64, whole: u64| (whole > 0).then(|| 100.0 * part as f64 / whole as f64);
        let mean = |samples: &[(&TransportStats, &TransportStats)],
                    field: fn(&TransportStats) -> f64| {
            let sum: f64 = samples.iter().map(|(_, after)| field(after)).sum();
            (!samples.is_empty()).then(|| sum / samples.len() as f64)
        };
        let lost = sum(receivers, |stats| stats.symbols_lost);
        let found = sum(receivers, |stats| stats.coded_packets_received)
            .saturating_sub(sum(receivers, |stats| stats.wasted_packets_received));
        let repaired = sum(receivers, |stats| stats.symbols_repaired);
        // The sender's round-trip time is that of the data path.
        let timed = if senders.is_empty() { receivers } else { senders };
        Self {
            // By counters: the sender's estimate is smoothed and limited. Losses of packets that
            // were sent before can exceed what was sent meanwhile.
            loss: percent(
                sum(senders, |stats| stats.packets_lost),
                sum(senders, |stats| stats.packets_sent),
            )
            .map(|loss| loss.min(100.0)),
            redundancy: percent(
                sum(senders, |stats| stats.repair_packets_sent),
                sum(senders, |stats| stats.source_packets_sent),
            ),
            waste: percent(
                sum(receivers, |stats| stats.wasted_packets_received),
                sum(receivers, |stats| stats.coded_packets_received),
            ),
            residual: percent(lost, lost.saturating_add(found)),
            expired: (!senders.is_empty()).then(|| sum(senders, |stats| stats.messages_expired)),
            repair_us: (repaired > 0)
                .then(|| sum(receivers, |stats| stats.repair_delay_us) as f64 / repaired as f64),
            rtt_us: mean(timed, |stats| stats.rtt_us as f64).map(|rtt| rtt as u64),
            cwnd: (!senders.is_empty()).then(|| {
                senders.iter().fold(0_u64, |sum, (_, after)| sum.saturating_add(after.snd_cwnd))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_cover_the_time_between_two_samples() {
        let before = TransportStats {
            source_packets_sent: 100,
            repair_packets_sent: 50,
            coded_packets_received: 10,
            wasted_packets_received: 9,
            ..TransportStats::default()
        };
        let after = TransportStats {
            source_packets_sent: 200,
            repair_packets_sent: 60,
            coded_packets_received: 110,
            wasted_packets_received: 10,
            messages_expired: 4,
            symbols_lost: 11,
            symbols_repaired: 20,
            repair_delay_us: 50_000,
            loss_percent: 3.0,
            packets_sent: 200,
            packets_lost: 16,
            snd_cwnd: 1_000,
            ..before.clone()
        };
        let pair = (&before, &after);
        let coding = CodingStats::between(&[pair, pair], &[pair]);
        assert_eq!((coding.redundancy, coding.waste), (Some(10.0), Some(1.0)));
        assert_eq!((coding.loss, coding.cwnd), (Some(8.0), Some(2_000)));
        assert_eq!((coding.residual, coding.repair_us), (Some(10.0), Some(2_500.0)));
        assert_eq!(coding.expired, Some(8));
        let receiver = CodingStats::between(&[], &[pair]);
        assert_eq!((receiver.loss, receiver.redundancy, receiver.cwnd), (None, None, None));
        assert_eq!((receiver.waste, receiver.rtt_us), (Some(1.0), Some(0)));
        let x = CodingStats::between(&[(&after, &after)], &[]);
        assert_eq!((x.redundancy, x.waste), (None, None));
        assert_eq!((x.residual, x.repair_us), (None, None));
        assert_eq!(CodingStats::between(&[], &[]), CodingStats::default());
    }
}
