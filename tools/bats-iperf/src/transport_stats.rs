//! Statistics of an OpenBATS connection, as reported and sent to the peer.

use std::time::Duration;

use openbats::{CongestionStats, ConnectionStats, MessageStats, PacketStats, PathStats};
use serde::{Deserialize, Serialize};

/// A sample of the statistics. Reports and the signalling protocol have the fields of all groups in
/// one object.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct TransportStats {
    #[serde(flatten)]
    pub(crate) congestion: CongestionSample,
    #[serde(flatten)]
    pub(crate) path: PathSample,
    #[serde(flatten)]
    pub(crate) packets: PacketSample,
    #[serde(flatten)]
    pub(crate) coding: CodingSample,
    #[serde(flatten)]
    pub(crate) messages: MessageSample,
}

/// State of the congestion controller, and the signals that it reacts to.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct CongestionSample {
    pub(crate) controller_state: String,
    /// The bound of the congestion controller that limits sending; empty if it has none.
    pub(crate) limited_by: String,
    pub(crate) snd_cwnd: u64,
    pub(crate) bytes_in_flight: u64,
    /// `None` if unpaced.
    pub(crate) pacing_bits_per_second: Option<u64>,
    pub(crate) delivery_bits_per_second: u64,
    /// Loss that the congestion controller takes for the path's own and not for congestion.
    pub(crate) own_loss_percent: f64,
    pub(crate) probe_timeouts: u64,
    pub(crate) ecn_ce: u64,
}

/// Measurements of the path.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct PathSample {
    pub(crate) rtt_us: u64,
    pub(crate) min_rtt_us: u64,
    /// One-way delay above its minimum.
    pub(crate) queue_delay_us: u64,
    /// Path loss before repair, of packets that this end sent.
    pub(crate) loss_percent: f64,
    pub(crate) burst_factor: f64,
    #[serde(rename = "path_mtu")]
    pub(crate) mtu: u16,
}

/// Counters of packets.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct PacketSample {
    #[serde(rename = "packets_sent")]
    pub(crate) sent: u64,
    #[serde(rename = "packets_received")]
    pub(crate) received: u64,
    #[serde(rename = "packets_lost")]
    pub(crate) lost: u64,
    #[serde(rename = "packets_forged")]
    pub(crate) forged: u64,
    #[serde(rename = "packets_replayed")]
    pub(crate) replayed: u64,
}

/// Counters of coded packets and symbols.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct CodingSample {
    pub(crate) code_rate: f64,
    pub(crate) source_packets_sent: u64,
    pub(crate) repair_packets_sent: u64,
    pub(crate) coded_packets_received: u64,
    pub(crate) wasted_packets_received: u64,
    pub(crate) symbols_decoded: u64,
    pub(crate) symbols_lost: u64,
    pub(crate) symbols_repaired: u64,
    /// Sum over all repaired symbols.
    pub(crate) repair_delay_us: u64,
    pub(crate) longest_repair_delay_us: u64,
}

/// Counters of messages that did not arrive.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct MessageSample {
    /// Messages that expired before they were sent.
    #[serde(rename = "messages_expired")]
    pub(crate) expired: u64,
    /// Messages of the peer that were lost, as far as known.
    #[serde(rename = "messages_lost")]
    pub(crate) lost: u64,
}

impl From<&ConnectionStats> for TransportStats {
    fn from(stats: &ConnectionStats) -> Self {
        Self {
            congestion: (&stats.congestion).into(),
            path: (&stats.path).into(),
            packets: (&stats.packets).into(),
            coding: (&stats.coding).into(),
            messages: (&stats.messages).into(),
        }
    }
}

impl From<&CongestionStats> for CongestionSample {
    fn from(stats: &CongestionStats) -> Self {
        Self {
            controller_state: stats.controller_state.to_owned(),
            limited_by: stats.limited_by.to_owned(),
            snd_cwnd: stats.cwnd_bytes,
            bytes_in_flight: stats.in_flight_bytes,
            pacing_bits_per_second: (stats.pacing_bps != u64::MAX).then_some(stats.pacing_bps),
            delivery_bits_per_second: stats.delivery_bps,
            own_loss_percent: finite(100.0 * stats.own_loss),
            probe_timeouts: stats.probe_timeouts,
            ecn_ce: stats.ecn_ce,
        }
    }
}

impl From<&PathStats> for PathSample {
    fn from(stats: &PathStats) -> Self {
        Self {
            rtt_us: micros(stats.smoothed_rtt),
            min_rtt_us: micros(stats.min_rtt),
            queue_delay_us: micros(stats.queue_delay),
            loss_percent: finite(100.0 * stats.loss_estimate),
            burst_factor: finite(stats.burst_factor),
            mtu: stats.mtu,
        }
    }
}

impl From<&PacketStats> for PacketSample {
    fn from(stats: &PacketStats) -> Self {
        Self {
            sent: stats.sent,
            received: stats.received,
            lost: stats.lost,
            forged: stats.forged,
            replayed: stats.replayed,
        }
    }
}

impl From<&openbats::CodingStats> for CodingSample {
    fn from(stats: &openbats::CodingStats) -> Self {
        Self {
            code_rate: finite(stats.code_rate),
            source_packets_sent: stats.source_packets_sent,
            repair_packets_sent: stats.proactive_packets_sent + stats.top_up_packets_sent,
            coded_packets_received: stats.coded_packets_received,
            wasted_packets_received: stats.wasted_packets_received,
            symbols_decoded: stats.symbols_decoded,
            symbols_lost: stats.symbols_lost,
            symbols_repaired: stats.symbols_repaired,
            repair_delay_us: micros(stats.repair_delay),
            longest_repair_delay_us: micros(stats.longest_repair_delay),
        }
    }
}

impl From<&MessageStats> for MessageSample {
    fn from(stats: &MessageStats) -> Self {
        Self { expired: stats.expired, lost: stats.lost }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
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
        let lost = sum(receivers, |stats| stats.coding.symbols_lost);
        let found = sum(receivers, |stats| stats.coding.coded_packets_received)
            .saturating_sub(sum(receivers, |stats| stats.coding.wasted_packets_received));
        let repaired = sum(receivers, |stats| stats.coding.symbols_repaired);
        // The sender's round-trip time is that of the data path.
        let timed = if senders.is_empty() { receivers } else { senders };
        Self {
            // By counters: the sender's estimate is smoothed and limited. Losses of packets that
            // were sent before can exceed what was sent meanwhile.
            loss: percent(
                sum(senders, |stats| stats.packets.lost),
                sum(senders, |stats| stats.packets.sent),
            )
            .map(|loss| loss.min(100.0)),
            redundancy: percent(
                sum(senders, |stats| stats.coding.repair_packets_sent),
                sum(senders, |stats| stats.coding.source_packets_sent),
            ),
            waste: percent(
                sum(receivers, |stats| stats.coding.wasted_packets_received),
                sum(receivers, |stats| stats.coding.coded_packets_received),
            ),
            residual: percent(lost, lost.saturating_add(found)),
            expired: (!senders.is_empty()).then(|| sum(senders, |stats| stats.messages.expired)),
            repair_us: (repaired > 0).then(|| {
                sum(receivers, |stats| stats.coding.repair_delay_us) as f64 / repaired as f64
            }),
            rtt_us: mean(timed, |stats| stats.path.rtt_us as f64).map(|rtt| rtt as u64),
            cwnd: (!senders.is_empty()).then(|| {
                senders
                    .iter()
                    .fold(0_u64, |sum, (_, after)| sum.saturating_add(after.congestion.snd_cwnd))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn ratios_cover_the_time_between_two_samples() {
        let before = TransportStats {
            coding: CodingSample {
                source_packets_sent: 100,
                repair_packets_sent: 50,
                coded_packets_received: 10,
                wasted_packets_received: 9,
                ..CodingSample::default()
            },
            ..TransportStats::default()
        };
        let mut after = before.clone();
        after.coding = CodingSample {
            source_packets_sent: 200,
            repair_packets_sent: 60,
            coded_packets_received: 110,
            wasted_packets_received: 10,
            symbols_lost: 11,
            symbols_repaired: 20,
            repair_delay_us: 50_000,
            ..CodingSample::default()
        };
        after.messages.expired = 4;
        after.path.loss_percent = 3.0;
        (after.packets.sent, after.packets.lost) = (200, 16);
        after.congestion.snd_cwnd = 1_000;
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

    #[test]
    fn all_groups_are_one_json_object_with_the_known_keys() {
        let mut stats = TransportStats::default();
        stats.congestion.pacing_bits_per_second = Some(5);
        (stats.path.mtu, stats.packets.lost, stats.messages.lost) = (1_400, 6, 7);
        let value = serde_json::to_value(&stats).unwrap();
        let keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, KEYS);
        for (key, number) in [("path_mtu", 1_400), ("packets_lost", 6), ("messages_lost", 7)] {
            assert_eq!(value[key], number, "{key}");
        }
        let read = |value: &Value| serde_json::from_str::<TransportStats>(&value.to_string());
        assert_eq!(read(&value).unwrap(), stats);
        let mut more = value.clone();
        more["unknown"] = 1.into();
        assert!(read(&more).is_err(), "unknown keys are refused");
        for key in KEYS {
            let mut less = value.clone();
            less.as_object_mut().unwrap().remove(key);
            // Without a rate, the sender is unpaced.
            assert_eq!(read(&less).is_err(), key != "pacing_bits_per_second", "{key}");
        }
        let twice = value.to_string().replacen('{', r#"{"rtt_us":1,"#, 1);
        assert!(serde_json::from_str::<TransportStats>(&twice).is_err(), "a key twice");
    }

    const KEYS: [&str; 32] = [
        "burst_factor",
        "bytes_in_flight",
        "code_rate",
        "coded_packets_received",
        "controller_state",
        "delivery_bits_per_second",
        "ecn_ce",
        "limited_by",
        "longest_repair_delay_us",
        "loss_percent",
        "messages_expired",
        "messages_lost",
        "min_rtt_us",
        "own_loss_percent",
        "pacing_bits_per_second",
        "packets_forged",
        "packets_lost",
        "packets_received",
        "packets_replayed",
        "packets_sent",
        "path_mtu",
        "probe_timeouts",
        "queue_delay_us",
        "repair_delay_us",
        "repair_packets_sent",
        "rtt_us",
        "snd_cwnd",
        "source_packets_sent",
        "symbols_decoded",
        "symbols_lost",
        "symbols_repaired",
        "wasted_packets_received",
    ];
}
