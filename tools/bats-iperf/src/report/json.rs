//! The JSON report: the keys of iperf3 where they exist, and additional ones. The formats are
//! published in `schema/bats_iperf.schema.json`.

use serde_json::{Value, json};

use super::{Side, distinct_sides, indices, text};
use crate::control::{Direction, Request, Summary, Throughput, Totals, Work};
use crate::cpu::Utilization;
use crate::iperf3_keys;
use crate::meter::Reading;
use crate::outcome::{Interval, Outcome};
use crate::transport_mode::Transport;

/// Information about a test that is known at its start.
#[derive(Clone, Debug)]
pub(crate) struct TestInfo {
    pub(crate) connected: Vec<(std::net::SocketAddr, std::net::SocketAddr)>,
    /// Host and port, at a client.
    pub(crate) connecting_to: Option<(String, u16)>,
    /// The client's address, at a server.
    pub(crate) accepted: Option<std::net::SocketAddr>,
    pub(crate) test: u64,
    pub(crate) request: Request,
    /// The report names the protocol that iperf3 would name.
    pub(crate) has_iperf3_protocol: bool,
    /// The emulated link, if there is one.
    pub(crate) emulate: Option<String>,
}

/// The name of the protocol.
pub(crate) fn protocol(request: &Request) -> &'static str {
    match request.transport {
        Transport::Bats => request.mode.name(),
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
    }
}

/// The `start` object.
pub(crate) fn start(test_info: &TestInfo) -> Value {
    let now = jiff::Timestamp::now();
    let connected: Vec<Value> = test_info
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
        "system_info": text::banner()[0],
        "timestamp": { "time": now.to_string(), "timesecs": now.as_second() },
        "cookie": format!("{:016x}", test_info.test),
    });
    match &test_info.request.work {
        Work::Throughput(work) => {
            value["test_start"] = test_start(&test_info.request, work);
            if test_info.has_iperf3_protocol {
                let protocol = iperf3_keys::protocol(&test_info.request);
                value["test_start"]["protocol"] = protocol.into();
            }
        }
        Work::Files { count, bytes } => {
            value["files_start"] = json!({
                "protocol": protocol(&test_info.request),
                "num_streams": test_info.request.streams,
                "files": count,
                "bytes": bytes,
            });
        }
    }
    if let Some((host, port)) = &test_info.connecting_to {
        value["connecting_to"] = json!({ "host": host, "port": port });
    }
    if let Some(address) = test_info.accepted {
        value["accepted_connection"] =
            json!({ "host": address.ip().to_string(), "port": address.port() });
    }
    if let Some(link) = &test_info.emulate {
        value["emulate"] = link.as_str().into();
    }
    value
}

fn test_start(request: &Request, work: &Throughput) -> Value {
    json!({
        "protocol": protocol(request),
        "num_streams": request.streams,
        "blksize": work.length,
        "omit": work.omit,
        "duration": if work.bytes > 0 || work.messages > 0 { 0.0 } else { work.seconds },
        "bytes": work.bytes,
        "blocks": work.messages,
        "reverse": u8::from(work.direction == Direction::Reverse),
        "bidir": u8::from(work.direction == Direction::Both),
        "interval": work.interval,
        "latency": work.latency,
        "target_bitrate": work.bandwidth,
        "deadline_ms": work.deadline_ms,
    })
}

fn figures(from: f64, to: f64, reading: Reading, side: Side, is_omitted: bool) -> Value {
    let seconds = (to - from).max(1e-9);
    let total = reading.messages.saturating_add(reading.lost);
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
        "out_of_order": reading.out_of_order,
        "duplicates": reading.duplicates,
        "omitted": is_omitted,
        "sender": side == Side::Sender,
    })
}

/// The object of one interval.
pub(crate) fn interval(interval: &Interval, sides: &[Side]) -> Value {
    let figures =
        |reading, side| figures(interval.start, interval.end, reading, side, interval.is_omitted);
    let streams: Vec<Value> = interval
        .streams
        .iter()
        .zip(&interval.transport_stats)
        .zip(sides)
        .enumerate()
        .map(|(index, ((&reading, stats), &side))| {
            let mut value = figures(reading, side);
            value["socket"] = json!(index + 1);
            if side == Side::Sender {
                iperf3_keys::add_to_interval(&mut value, stats);
            }
            value["openbats"] = json!(stats.as_ref().map(|(_, after)| after));
            value
        })
        .collect();
    let mut value = json!({ "streams": streams });
    for (key, side) in ["sum", "sum_bidir_reverse"].into_iter().zip(distinct_sides(sides)) {
        let readings: Vec<Reading> = indices(sides, side)
            .into_iter()
            .filter_map(|place| interval.streams.get(place).copied())
            .collect();
        value[key] = figures(Reading::sum(&readings), side);
        if side == Side::Sender {
            let places = indices(sides, side).into_iter();
            let stats = places.filter_map(|place| interval.transport_stats.get(place));
            iperf3_keys::add_to_interval_sum(&mut value[key], stats);
        }
    }
    value
}

fn sum(streams: &[&Totals], side: Side) -> Value {
    let readings: Vec<Reading> = streams.iter().map(|totals| Reading::from(*totals)).collect();
    let seconds = streams.iter().map(|totals| totals.seconds).fold(0.0, f64::max);
    figures(0.0, seconds, Reading::sum(&readings), side, false)
}

/// The `end` object.
pub(crate) fn end(outcome: &Outcome, remote: Option<&Summary>) -> Value {
    let own = &outcome.summary;
    let theirs = remote.map_or(&[][..], |summary| &summary.streams);
    let pair = |side: Side, near: Value, far: Value| match side {
        Side::Sender => (near, far),
        Side::Receiver => (far, near),
    };
    let streams: Vec<Value> = own
        .streams
        .iter()
        .zip(&outcome.sides)
        .enumerate()
        .map(|(index, (totals, &side))| {
            let of = |totals: &Totals, side| {
                figures(0.0, totals.seconds, Reading::from(totals), side, false)
            };
            let far = theirs.get(index);
            let (sender, receiver) = pair(
                side,
                of(totals, side),
                far.map_or(Value::Null, |totals| of(totals, side.other())),
            );
            let (sending, receiving) = pair(
                side,
                json!(totals.transport_stats),
                json!(far.and_then(|far| far.transport_stats.as_ref())),
            );
            json!({
                "socket": index + 1,
                "sender": sender,
                "receiver": receiver,
                "openbats": { "sender": sending, "receiver": receiving },
            })
        })
        .collect();
    let mut value = json!({
        "streams": streams,
        "cpu_utilization_percent": processors(own.processor, remote.map(|x| x.processor)),
    });
    let keys =
        [("sum_sent", "sum_received"), ("sum_sent_bidir_reverse", "sum_received_bidir_reverse")];
    for ((sent, received), side) in keys.into_iter().zip(distinct_sides(&outcome.sides)) {
        let indices = indices(&outcome.sides, side);
        let pick = |streams: &[Totals]| -> Vec<Totals> {
            indices.iter().filter_map(|&place| streams.get(place).cloned()).collect()
        };
        let (near, far) = (pick(&own.streams), pick(theirs));
        let far_sum = match far.is_empty() {
            true => Value::Null,
            false => sum(&far.iter().collect::<Vec<_>>(), side.other()),
        };
        let near_sum = sum(&near.iter().collect::<Vec<_>>(), side);
        (value[sent], value[received]) = pair(side, near_sum, far_sum);
    }
    let latency: serde_json::Map<String, Value> = text::directions(outcome, remote)
        .into_iter()
        .filter(|(_, one_way, round_trip, missing)| {
            one_way.is_some() || round_trip.is_some() || missing.unsent.max(missing.unanswered) > 0
        })
        .map(|(name, one_way, round_trip, missing)| {
            let found = json!({ "one_way": one_way, "round_trip": round_trip, "missing": missing });
            (name.to_owned(), found)
        })
        .collect();
    if !latency.is_empty() {
        value["latency"] = latency.into();
    }
    let sending: serde_json::Map<String, Value> = text::sender_settings(outcome, remote)
        .into_iter()
        .map(|(direction, sending)| (direction.to_owned(), json!(sending)))
        .collect();
    value["sending"] = sending.into();
    value
}

fn processors(near: Utilization, far: Option<Utilization>) -> Value {
    json!({
        "host_total": near.total,
        "host_user": near.user,
        "host_system": near.system,
        "remote_total": far.map(|used| used.total),
        "remote_user": far.map(|used| used.user),
        "remote_system": far.map(|used| used.system),
    })
}

/// The whole document. `remote` is the peer's summary, if it arrived.
pub(crate) fn document(test_info: &TestInfo, outcome: &Outcome, remote: Option<&Summary>) -> Value {
    let intervals = outcome.intervals.iter().map(|x| interval(x, &outcome.sides));
    let mut value = json!({
        "start": start(test_info),
        "intervals": intervals.collect::<Vec<_>>(),
        "end": end(outcome, remote),
    });
    iperf3_keys::add_to_end(&mut value["end"], outcome, remote, &test_info.request);
    if outcome.left_out > 0 {
        value["intervals_left_out"] = outcome.left_out.into();
    }
    if let Some(error) = outcome.error() {
        value["error"] = error.into();
    }
    value
}
