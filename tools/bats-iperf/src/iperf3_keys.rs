//! Keys of iperf3's JSON report that scripts for iperf3 read, in addition to those that
//! [`json`](crate::report::json) writes anyway.

use serde_json::{Map, Value, json};

use crate::control::{Request, Summary, Totals};
use crate::outcome::{Interval, Outcome};
use crate::report::{Side, distinct_sides, indices};
use crate::transport_mode::Transport;
use crate::transport_stats::TransportStats;

/// The protocol that iperf3 would name for a mode: TCP if everything arrives, otherwise UDP.
pub(crate) fn protocol(request: &Request) -> &'static str {
    match is_lossy(request) {
        true => "UDP",
        false => "TCP",
    }
}

fn is_lossy(request: &Request) -> bool {
    match request.transport {
        Transport::Bats => !request.mode.is_reliable(),
        Transport::Tcp => false,
        Transport::Udp => true,
    }
}

/// Repair packets, the counterpart of retransmissions in the coded modes; otherwise packets lost,
/// each of which is retransmitted.
fn retransmits(stats: &TransportStats) -> u64 {
    match stats.coding.source_packets_sent {
        0 => stats.packets.lost,
        _ => stats.coding.repair_packets_sent,
    }
}

/// Adds the keys of a sending stream to its interval.
pub(crate) fn add_to_interval(value: &mut Value, stats: &Option<(TransportStats, TransportStats)>) {
    let Some((before, after)) = stats else { return };
    value["retransmits"] = retransmits(after).saturating_sub(retransmits(before)).into();
    value["snd_cwnd"] = after.congestion.snd_cwnd.into();
    value["rtt"] = after.path.rtt_us.into();
    value["pmtu"] = after.path.mtu.into();
}

/// Adds the sum of the streams' retransmissions to the sum of an interval.
pub(crate) fn add_to_interval_sum<'a>(
    value: &mut Value,
    streams: impl Iterator<Item = &'a Option<(TransportStats, TransportStats)>>,
) {
    let count = |stats: &Option<(TransportStats, TransportStats)>| {
        let (before, after) = stats.as_ref()?;
        Some(retransmits(after).saturating_sub(retransmits(before)))
    };
    let counts: Vec<u64> = streams.filter_map(count).collect();
    if !counts.is_empty() {
        value["retransmits"] = counts.iter().fold(0_u64, |sum, x| sum.saturating_add(*x)).into();
    }
}

/// Adds `sum`, `streams[].udp`, and figures of the senders to the `end` object.
pub(crate) fn add_to_end(
    end: &mut Value,
    outcome: &Outcome,
    remote: Option<&Summary>,
    request: &Request,
) {
    let own = &outcome.summary.streams[..];
    let theirs = remote.map_or(&[][..], |remote| &remote.streams);
    let sender = |place: usize| -> Option<&Totals> {
        match outcome.sides.get(place)? {
            Side::Sender => own.get(place),
            Side::Receiver => theirs.get(place),
        }
    };
    for (place, side) in outcome.sides.iter().enumerate() {
        let stats = sender(place).and_then(|totals| totals.transport_stats.as_ref());
        let Some(stream) = end["streams"].get_mut(place) else { continue };
        if let (Some(stats), true) = (stats, stream["sender"].is_object()) {
            let samples: Vec<u64> = match side {
                Side::Sender => round_trips(outcome, place),
                Side::Receiver => Vec::new(),
            };
            let count = samples.len() as u64;
            let sum = samples.iter().fold(0_u64, |sum, x| sum.saturating_add(*x));
            stream["sender"]["retransmits"] = retransmits(stats).into();
            stream["sender"]["min_rtt"] = stats.path.min_rtt_us.into();
            stream["sender"]["mean_rtt"] =
                sum.checked_div(count).unwrap_or(stats.path.rtt_us).into();
            let longest = samples.into_iter().max().unwrap_or(0).max(stats.path.rtt_us);
            stream["sender"]["max_rtt"] = longest.into();
        }
        if is_lossy(request) {
            let (sent, received) = (stream["sender"].clone(), stream["receiver"].clone());
            let mut udp = combined(&sent, &received);
            udp["socket"] = stream["socket"].clone();
            stream["udp"] = udp;
        }
    }
    let keys = [
        ("sum_sent", "sum_received", "sum"),
        ("sum_sent_bidir_reverse", "sum_received_bidir_reverse", "sum_bidir_reverse"),
    ];
    for ((sent, received, sum), side) in keys.into_iter().zip(distinct_sides(&outcome.sides)) {
        let stats = indices(&outcome.sides, side).into_iter();
        let counts: Vec<u64> = stats
            .filter_map(|place| Some(retransmits(sender(place)?.transport_stats.as_ref()?)))
            .collect();
        if end[sent].is_object() && !counts.is_empty() {
            let count = counts.iter().fold(0_u64, |sum, x| sum.saturating_add(*x));
            end[sent]["retransmits"] = count.into();
        }
        end[sum] = combined(&end[sent], &end[received]);
    }
}

/// Smoothed round-trip times of a stream at the ends of its intervals, in microseconds.
fn round_trips(outcome: &Outcome, place: usize) -> Vec<u64> {
    let of = |interval: &Interval| {
        let (_, after) = interval.transport_stats.get(place)?.as_ref()?;
        Some(after.path.rtt_us)
    };
    outcome.intervals.iter().filter_map(of).collect()
}

/// What iperf3 reports of a UDP stream: the sender's bytes and time, with the losses and the jitter
/// that the receiver has seen. If one end is unknown, the figures of the other.
fn combined(sent: &Value, received: &Value) -> Value {
    let (Some(sent), Some(received)) = (sent.as_object(), received.as_object()) else {
        let known = if sent.is_object() { sent } else { received };
        return match known.as_object() {
            Some(known) => json!(without_sender_keys(known.clone())),
            None => Value::Null,
        };
    };
    let mut value = without_sender_keys(sent.clone());
    for key in
        ["jitter_ms", "lost_packets", "packets", "lost_percent", "out_of_order", "duplicates"]
    {
        if let Some(found) = received.get(key) {
            value.insert(key.to_owned(), found.clone());
        }
    }
    value.into()
}

fn without_sender_keys(mut value: Map<String, Value>) -> Map<String, Value> {
    for key in ["retransmits", "min_rtt", "mean_rtt", "max_rtt"] {
        value.remove(key);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_combine_the_sender_with_the_losses_of_the_receiver() {
        let sent = json!({ "bytes": 10, "lost_packets": 0, "packets": 5, "min_rtt": 7 });
        let received = json!({ "bytes": 8, "lost_packets": 1, "packets": 5 });
        let expected = json!({ "bytes": 10, "lost_packets": 1, "packets": 5 });
        assert_eq!(combined(&sent, &received), expected);
        assert_eq!(combined(&Value::Null, &received), received);
        let alone = json!({ "bytes": 10, "lost_packets": 0, "packets": 5 });
        assert_eq!(combined(&sent, &Value::Null), alone);
        assert_eq!(combined(&Value::Null, &Value::Null), Value::Null);
    }

    #[test]
    fn retransmissions_are_repairs_or_losses() {
        let mut stats = TransportStats::default();
        stats.packets.lost = 7;
        assert_eq!(retransmits(&stats), 7);
        let mut coded = stats.clone();
        (coded.coding.source_packets_sent, coded.coding.repair_packets_sent) = (1, 9);
        assert_eq!(retransmits(&coded), 9);
        let mut value = json!({});
        add_to_interval(&mut value, &Some((coded.clone(), stats)));
        assert_eq!(value["retransmits"], 0, "must not underflow");
    }
}
