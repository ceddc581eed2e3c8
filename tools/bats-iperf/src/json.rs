//! The report as one JSON document: the keys of iperf3 where it has them, and some of our own.

use openbats::ConnectionStats;
use serde_json::{Value, json};

use crate::control::Totals;
use crate::meter::Reading;
use crate::processor::Utilization;
use crate::report::{self, Side};
use crate::test::{Interval, Outcome};

/// What is known before the test.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) connected: Vec<(std::net::SocketAddr, std::net::SocketAddr)>,
    /// Host and port, at a client.
    pub(crate) connecting_to: Option<(String, u16)>,
    pub(crate) test: u64,
    pub(crate) length: u32,
    pub(crate) seconds: f64,
    pub(crate) bandwidth: u64,
    pub(crate) reverse: bool,
}

fn start(start: &Start) -> Value {
    let now = jiff::Timestamp::now();
    let connected: Vec<Value> = start
        .connected
        .iter()
        .enumerate()
        .map(|(index, (local, remote))| {
            json!({
                "socket": index + 1,
                "local_host": local.ip().to_string(),
                "local_port": local.port(),
                "remote_host": remote.ip().to_string(),
                "remote_port": remote.port(),
            })
        })
        .collect();
    let mut value = json!({
        "connected": connected,
        "version": format!("bats_iperf {}", env!("CARGO_PKG_VERSION")),
        "system_info": report::banner()[0],
        "timestamp": { "time": now.to_string(), "timesecs": now.as_second() },
        "cookie": format!("{:016x}", start.test),
        "test_start": {
            "protocol": "BRTP",
            "num_streams": start.connected.len(),
            "blksize": start.length,
            "omit": 0,
            "duration": start.seconds,
            "bytes": 0,
            "blocks": 0,
            "reverse": u8::from(start.reverse),
            "target_bitrate": start.bandwidth,
        },
    });
    if let Some((host, port)) = &start.connecting_to {
        value["connecting_to"] = json!({ "host": host, "port": port });
    }
    value
}

fn figures(from: f64, to: f64, reading: Reading, side: Side) -> Value {
    let seconds = (to - from).max(1e-9);
    let total = reading.messages + reading.lost;
    json!({
        "start": from,
        "end": to,
        "seconds": to - from,
        "bytes": reading.bytes,
        "bits_per_second": reading.bytes as f64 * 8.0 / seconds,
        "jitter_ms": reading.jitter_ms,
        "lost_packets": reading.lost,
        "packets": total,
        "lost_percent": if total == 0 { 0.0 } else { 100.0 * reading.lost as f64 / total as f64 },
        "omitted": false,
        "sender": side == Side::Sender,
    })
}

/// The state of a connection, under a key of our own.
fn transport(stats: &ConnectionStats) -> Value {
    json!({
        "controller_state": stats.controller_state,
        "snd_cwnd": stats.cwnd_bytes,
        "bytes_in_flight": stats.in_flight_bytes,
        "pacing_bits_per_second": if stats.pacing_bps == u64::MAX { Value::Null } else { stats.pacing_bps.into() },
        "delivery_bits_per_second": stats.delivery_bps,
        "rtt_us": stats.smoothed_rtt.as_micros() as u64,
        "min_rtt_us": stats.min_rtt.as_micros() as u64,
        "loss_percent": 100.0 * stats.loss_estimate,
        "burst_factor": stats.burst_factor,
        "code_rate": stats.code_rate,
        "path_mtu": stats.path_mtu,
        "packets_sent": stats.packets_sent,
        "packets_received": stats.packets_received,
        "packets_lost": stats.packets_lost,
        "repair_packets_sent": stats.proactive_packets_sent + stats.top_up_packets_sent,
        "coded_packets_received": stats.coded_packets_received,
        "wasted_packets_received": stats.wasted_packets_received,
        "symbols_decoded": stats.symbols_decoded,
        "probe_timeouts": stats.probe_timeouts,
        "ecn_ce": stats.ecn_ce,
        "packets_forged": stats.packets_forged,
        "packets_replayed": stats.packets_replayed,
    })
}

fn interval(interval: &Interval, side: Side) -> Value {
    let figures = |reading| figures(interval.start, interval.end, reading, side);
    let streams: Vec<Value> = interval
        .streams
        .iter()
        .zip(&interval.stats)
        .enumerate()
        .map(|(index, (&reading, stats))| {
            let mut value = figures(reading);
            value["socket"] = json!(index + 1);
            value["openbats"] = transport(stats);
            value
        })
        .collect();
    json!({ "streams": streams, "sum": figures(report::sum(&interval.streams)) })
}

fn sum(streams: &[Totals], side: Side) -> Value {
    let readings: Vec<Reading> = streams.iter().map(report::reading).collect();
    let seconds = streams.iter().map(|totals| totals.seconds).fold(0.0, f64::max);
    figures(0.0, seconds, report::sum(&readings), side)
}

/// The whole document. `remote` is the other side's summary, where it came.
pub(crate) fn document(
    about: &Start,
    outcome: &Outcome,
    remote: Option<&(Vec<Totals>, Utilization)>,
) -> Value {
    let side = outcome.side;
    let remote_streams = remote.map_or(&[][..], |(streams, _)| streams);
    let pair = |local: &Value, remote: &Value| match side {
        Side::Sender => json!({ "sender": local, "receiver": remote }),
        Side::Receiver => json!({ "sender": remote, "receiver": local }),
    };
    let streams: Vec<Value> = outcome
        .streams
        .iter()
        .zip(&outcome.stats)
        .enumerate()
        .map(|(index, (totals, stats))| {
            let own = figures(0.0, totals.seconds, report::reading(totals), side);
            let theirs = remote_streams.get(index).map_or(Value::Null, |totals| {
                figures(0.0, totals.seconds, report::reading(totals), side.other())
            });
            let mut value = pair(&own, &theirs);
            value["socket"] = json!(index + 1);
            value["openbats"] = transport(stats);
            value
        })
        .collect();
    let own_sum = sum(&outcome.streams, side);
    let remote_sum = remote.map_or(Value::Null, |(streams, _)| sum(streams, side.other()));
    let sums = pair(&own_sum, &remote_sum);
    let (local, far) = (outcome.processor, remote.map(|(_, used)| *used).unwrap_or_default());
    let mut value = json!({
        "start": start(about),
        "intervals": outcome.intervals.iter().map(|x| interval(x, side)).collect::<Vec<_>>(),
        "end": {
            "streams": streams,
            "sum_sent": sums["sender"],
            "sum_received": sums["receiver"],
            "cpu_utilization_percent": {
                "host_total": local.total,
                "host_user": local.user,
                "host_system": local.system,
                "remote_total": far.total,
                "remote_user": far.user,
                "remote_system": far.system,
            },
        },
    });
    if let Some(error) = outcome.error() {
        value["error"] = error.into();
    }
    value
}
