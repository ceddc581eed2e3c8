//! Parses the output of programs: the last JSON document printed.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::result::figures::{self, Figures, set};
use crate::result::flow_result::FlowResult;
use crate::result::measures::{self, PacketCount};
use crate::result::series::{Distribution, Series};

/// Congestion windows of at least this many bytes mean that there is no congestion control.
pub(crate) const NO_WINDOW: f64 = (64_u64 << 20) as f64;

/// The program whose output is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputFormat {
    /// iperf3.
    Iperf,
    /// bats_iperf.
    Bats,
    /// bats_iperf in a mode that may lose messages.
    Lossy,
    /// The built-in loads of batslab.
    BuiltIn,
}

/// Results of a measurement.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    pub(crate) figures: Figures,
    /// Results of competing flows.
    pub(crate) flows: Vec<FlowResult>,
    pub(crate) series: Vec<Series>,
    pub(crate) distributions: Vec<Distribution>,
}

/// The last JSON document in a text.
pub(crate) fn last_document(text: &str) -> Option<Value> {
    serde_json::Deserializer::from_str(text).into_iter::<Value>().map_while(Result::ok).last()
}

/// Parses the results of a flow that ran for `length` seconds, with throughput over intervals of at
/// least `interval` seconds. Received data is taken from the server, sender state from the client.
///
/// # Errors
/// The client reported an error, or no data arrived.
pub(crate) fn throughput(
    program: OutputFormat,
    interval: f64,
    length: f64,
    client: &str,
    server: &str,
    of: &str,
) -> Result<Reading> {
    let (near, far) = (last_document(client), last_document(server));
    for (who, document) in [("the client", &near), ("the server", &far)] {
        if let Some(error) = document.as_ref().and_then(|document| document["error"].as_str()) {
            // iperf3's server reports an error when the client disconnects, which is normal here.
            if who == "the client" {
                bail!("{who} reports: {error}");
            }
        }
    }
    let from_far =
        far.as_ref().map(|document| intervals(document, of)).filter(|one| !one.points.is_empty());
    let from_near = near.as_ref().map(|document| intervals(document, of));
    let arrived = from_far.or(from_near).filter(|series| !series.points.is_empty());
    let mut series = arrived.context("no data arrived, or no intervals were reported")?;
    series.points = merged(&series.points, interval);
    let mut reading = Reading::default();
    figures::set_throughput_figures(&mut reading.figures, &series, length);
    reading.series.push(series);
    if let Some(near) = &near {
        sender(&mut reading, near, program, interval, of);
    }
    if let Some(far) = &far {
        receiver(&mut reading, far, program, of);
    }
    Ok(reading)
}

/// Rates over time in Mbit/s; each point is at the end of its interval.
fn intervals(document: &Value, of: &str) -> Series {
    let list = document["intervals"].as_array();
    let mut points: Vec<(f64, f64)> = list
        .into_iter()
        .flatten()
        .filter(|interval| interval["sum"]["omitted"].as_bool() != Some(true))
        .filter_map(|interval| {
            let sum = &interval["sum"];
            let (start, end) = (sum["start"].as_f64()?, sum["end"].as_f64()?);
            // A very short last interval says nothing about the rate.
            let rate = sum["bytes"].as_f64()? * 8e-6 / (end - start);
            (end - start > 0.02 && rate.is_finite()).then_some((end, rate))
        })
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    Series { name: "throughput".into(), of: of.to_owned(), unit: "Mbit/s".into(), points }
}

/// Averages rates over longer intervals; each point is at the end of its interval.
fn merged(points: &[(f64, f64)], interval: f64) -> Vec<(f64, f64)> {
    let mut merged = Vec::new();
    let (mut start, mut before, mut sum) = (0.0, 0.0, 0.0);
    for (index, &(end, rate)) in points.iter().enumerate() {
        sum += rate * (end - before);
        before = end;
        // Intervals are not exactly as long as requested.
        let is_whole = end - start > 0.98 * interval;
        if (is_whole || index + 1 == points.len()) && end > start {
            merged.push((end, sum / (end - start)));
            (start, sum) = (end, 0.0);
        }
    }
    merged
}

fn sender(reading: &mut Reading, document: &Value, program: OutputFormat, interval: f64, of: &str) {
    if let Some(count) = document["end"]["sum_sent"]["retransmits"].as_f64() {
        set(&mut reading.figures, "retransmissions", count);
        let size = document["start"]["tcp_mss_default"].as_f64().filter(|&size| size > 0.0);
        let sent = document["end"]["sum_sent"]["bytes"].as_f64();
        if let (Some(size), Some(sent)) = (size, sent) {
            // The bytes do not include retransmissions.
            let percent = 100.0 * count / (sent / size + count);
            set(&mut reading.figures, "retransmitted_percent", percent);
        }
    }
    if !matches!(program, OutputFormat::Bats | OutputFormat::Lossy) {
        return;
    }
    let series = measures::packets(&mut reading.figures, &packet_counts(document), interval, of);
    reading.series.extend(series);
    // The state of OpenBATS flows at the end of each interval.
    let names: [(&str, &str, &str, f64); 8] = [
        ("snd_cwnd", "cwnd", "kB", 1e-3),
        ("rtt_us", "smoothed RTT", "ms", 1e-3),
        ("delivery_bits_per_second", "delivery rate", "Mbit/s", 1e-6),
        ("pacing_bits_per_second", "pacing rate", "Mbit/s", 1e-6),
        ("loss_percent", "loss estimate", "%", 1.0),
        ("bytes_in_flight", "in flight", "kB", 1e-3),
        ("queue_delay_us", "queueing delay", "ms", 1e-3),
        ("own_loss_percent", "own loss", "%", 1.0),
    ];
    const MEANS: [&str; 4] = ["rtt_us", "loss_percent", "queue_delay_us", "own_loss_percent"];
    for (key, name, unit, factor) in names {
        let points: Vec<(f64, f64)> = document["intervals"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|interval| {
                let at = interval["sum"]["end"].as_f64()?;
                let values = interval["streams"].as_array()?;
                let values: Vec<f64> =
                    values.iter().filter_map(|stream| stream["openbats"][key].as_f64()).collect();
                if key == "snd_cwnd" && values.iter().any(|&bytes| bytes >= NO_WINDOW) {
                    return None;
                }
                if values.is_empty() {
                    return None;
                }
                let sum: f64 = values.iter().sum();
                let is_mean = MEANS.contains(&key);
                Some((at, sum * factor / if is_mean { values.len() as f64 } else { 1.0 }))
            })
            .collect();
        if !points.is_empty() {
            reading.series.push(Series {
                name: name.into(),
                of: of.to_owned(),
                unit: unit.into(),
                points,
            });
        }
    }
    for (key, name) in
        [("controller_state", measures::CONTROLLER_STATE), ("limited_by", measures::LIMITED_BY)]
    {
        let samples = states(document, key);
        reading.series.extend(measures::shares(name, of, &samples, 0.0));
    }
}

/// A state of all streams of the sender, at the end of each interval.
fn states<'a>(document: &'a Value, key: &str) -> Vec<(f64, &'a str)> {
    let mut samples = Vec::new();
    for interval in document["intervals"].as_array().into_iter().flatten() {
        let (Some(at), Some(streams)) =
            (interval["sum"]["end"].as_f64(), interval["streams"].as_array())
        else {
            continue;
        };
        let states = streams.iter().filter_map(|stream| stream["openbats"][key].as_str());
        samples.extend(states.map(|state| (at, state)));
    }
    samples
}

/// The packets of all streams of the sender, at the end of each interval.
fn packet_counts(document: &Value) -> Vec<PacketCount> {
    let intervals = document["intervals"].as_array().into_iter().flatten();
    let count = |interval: &Value| {
        let at = interval["sum"]["end"].as_f64()?;
        let streams = interval["streams"].as_array()?;
        let sum = |key: &str| {
            let values = streams.iter().map(|stream| stream["openbats"][key].as_u64());
            values.sum::<Option<u64>>()
        };
        Some(PacketCount { at, sent: sum("packets_sent")?, lost: sum("packets_lost")? })
    };
    intervals.filter_map(count).collect()
}

/// Loss and jitter, if the receiver reports them.
fn receiver(reading: &mut Reading, document: &Value, program: OutputFormat, of: &str) {
    let sum = &document["end"]["sum"];
    let sum = if sum.is_object() { sum } else { &document["end"]["sum_received"] };
    for (key, name) in [("lost_percent", "loss_percent"), ("jitter_ms", "jitter_ms")] {
        let Some(value) = sum[key].as_f64() else { continue };
        let counters = sum["lost_packets"].as_f64().zip(sum["packets"].as_f64());
        match counters.filter(|_| name == "loss_percent") {
            Some((lost, all)) => measures::set_residual_loss(&mut reading.figures, lost, all),
            None => set(&mut reading.figures, name, value),
        }
        let (title, unit) =
            if key == "jitter_ms" { ("jitter", "ms") } else { ("residual loss", "%") };
        let points = of_intervals(document, key);
        // Reliable modes have no residual loss over time.
        if points.len() > 1 && program != OutputFormat::Bats {
            let (name, unit) = (title.to_owned(), unit.to_owned());
            reading.series.push(Series { name, of: of.to_owned(), unit, points });
        }
    }
}

/// The values of a key, each at the end of its interval. A last interval less than half as long as
/// the one before is dropped: messages counted as lost there may only be late.
fn of_intervals(document: &Value, key: &str) -> Vec<(f64, f64)> {
    let sums = document["intervals"].as_array().into_iter().flatten().map(|one| &one["sum"]);
    let mut found: Vec<[f64; 3]> = sums
        .filter_map(|sum| Some([sum["start"].as_f64()?, sum["end"].as_f64()?, sum[key].as_f64()?]))
        .collect();
    if let Some([before, last]) = found.last_chunk::<2>()
        && last[1] - last[0] < 0.5 * (before[1] - before[0])
    {
        found.pop();
    }
    found.into_iter().map(|[_, end, value]| (end, value)).collect()
}

/// Parses the round-trip times that `__rtt` prints.
///
/// # Errors
/// No reply arrived.
pub(crate) fn round_trips(text: &str, of: &str) -> Result<Reading> {
    let document = last_document(text).context("no JSON document was printed")?;
    let pairs = |key: &str| -> Vec<(f64, f64)> {
        document[key]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|pair| Some((pair[0].as_f64()?, pair[1].as_f64()?)))
            .collect()
    };
    let connects = pairs("connects");
    let sent = document["sent"].as_f64().unwrap_or(0.0);
    let is_first = document["first"].as_bool() == Some(true);
    of_round_trips(pairs("round_trips"), &connects, sent, is_first, of)
}

/// Results of round trips. `times` are pairs of start in seconds and duration in milliseconds,
/// `connects` pairs of the connection and its setup time in milliseconds, `sent` the number of
/// messages; `is_first` if each was the first of its connection. Then the first of a pair in `times`
/// is the connection, and durations do not include its setup.
///
/// # Errors
/// No reply arrived.
pub(crate) fn of_round_trips(
    times: Vec<(f64, f64)>,
    connects: &[(f64, f64)],
    sent: f64,
    is_first: bool,
    of: &str,
) -> Result<Reading> {
    if times.is_empty() {
        bail!("no reply to any of {sent} messages");
    }
    let mut reading = Reading::default();
    let mut values: Vec<f64> = times.iter().map(|time| time.1).collect();
    values.sort_by(f64::total_cmp);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    if is_first {
        measures::set_first_rtt(&mut reading.figures, &times, connects);
    }
    // Datagrams have no connection setup: 0 is not a result.
    let setup: Vec<f64> = connects.iter().map(|connect| connect.1).collect();
    if setup.iter().any(|&connect| connect > 0.0) {
        set(&mut reading.figures, "connect_ms", mean(&setup));
    }
    let unanswered = 100.0 * (1.0 - values.len() as f64 / sent.max(1.0));
    set(&mut reading.figures, "unanswered_percent", unanswered);
    let distribution = Distribution { name: "RTT".into(), unit: "ms".into(), values };
    figures::set_rtt_figures(&mut reading.figures, &distribution);
    reading.distributions.push(distribution);
    reading.series.push(Series {
        name: "RTT".into(),
        of: of.to_owned(),
        unit: "ms".into(),
        points: times,
    });
    Ok(reading)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_taken_from_the_server() {
        let of = |bytes: u64| {
            format!(r#"{{"intervals":[{{"sum":{{"start":0,"end":1,"bytes":{bytes}}}}}]}}"#)
        };
        let reading =
            throughput(OutputFormat::Iperf, 1.0, 1.0, &of(250_000), &of(125_000), "x").unwrap();
        assert_eq!(reading.figures["throughput_mbps"], 1.0);
        let reading = throughput(OutputFormat::Iperf, 1.0, 1.0, &of(250_000), "", "x").unwrap();
        assert_eq!(reading.figures["throughput_mbps"], 2.0);
        let error = throughput(OutputFormat::Iperf, 1.0, 1.0, r#"{"error":"no route"}"#, "", "x")
            .unwrap_err();
        assert!(error.to_string().contains("no route"));
        assert!(throughput(OutputFormat::BuiltIn, 1.0, 1.0, "", "nonsense", "x").is_err());
    }

    #[test]
    fn the_state_of_the_congestion_controller_becomes_series() {
        let interval = |end: u32, state: &str, own: f64| {
            let openbats = serde_json::json!({
                "snd_cwnd": 50_000, "bytes_in_flight": 25_000, "queue_delay_us": 1_500,
                "own_loss_percent": own, "controller_state": state, "limited_by": "max_bw",
            });
            serde_json::json!({
                "sum": { "start": end - 1, "end": end, "bytes": 1 },
                "streams": [{ "openbats": openbats }, { "openbats": openbats }],
            })
        };
        let document = serde_json::json!({
            "intervals": [interval(1, "startup", 0.0), interval(2, "drain", 2.0)]
        });
        let text = document.to_string();
        let reading = throughput(OutputFormat::Bats, 1.0, 2.0, &text, "", "x").unwrap();
        let points = |name: &str, of: &str| {
            let found = reading.series.iter().find(|one| one.name == name && one.of == of);
            found.unwrap_or_else(|| panic!("{name} of {of}")).points.clone()
        };
        assert_eq!(points("in flight", "x"), [(1.0, 50.0), (2.0, 50.0)]);
        assert_eq!(points("queueing delay", "x"), [(1.0, 1.5), (2.0, 1.5)]);
        assert_eq!(points("own loss", "x"), [(1.0, 0.0), (2.0, 2.0)]);
        assert_eq!(points("controller state", "startup, x"), [(1.0, 100.0), (2.0, 0.0)]);
        assert_eq!(points("controller state", "drain, x"), [(1.0, 0.0), (2.0, 100.0)]);
        assert_eq!(points("limited by", "max_bw, x"), [(1.0, 100.0), (2.0, 100.0)]);
    }

    #[test]
    fn merging_short_intervals_preserves_all_bytes() {
        let points = [(0.1, 4.0), (0.2, 8.0), (0.301, 0.0), (0.4, 2.0), (0.45, 6.0)];
        let whole = merged(&points, 0.2);
        assert_eq!(whole.iter().map(|point| point.0).collect::<Vec<_>>(), [0.2, 0.4, 0.45]);
        let bytes = |points: &[(f64, f64)]| {
            let mut before = 0.0;
            points
                .iter()
                .map(|&(end, rate)| rate * (end - std::mem::replace(&mut before, end)))
                .sum::<f64>()
        };
        assert!((bytes(&whole) - bytes(&points)).abs() < 1e-9);
        assert_eq!(merged(&points, 0.05).len(), points.len());
    }

    #[test]
    fn a_short_last_interval_is_dropped_from_loss() {
        let of = |ends: &[f64]| -> Vec<f64> {
            let mut start = 0.0;
            let intervals: Vec<Value> = ends
                .iter()
                .map(|&end| {
                    let start = std::mem::replace(&mut start, end);
                    serde_json::json!({ "sum": { "start": start, "end": end, "lost_percent": 1 } })
                })
                .collect();
            let document = serde_json::json!({ "intervals": intervals });
            of_intervals(&document, "lost_percent").iter().map(|point| point.0).collect()
        };
        assert_eq!(of(&[1.0, 2.0, 2.3]), [1.0, 2.0]);
        assert_eq!(of(&[1.0, 2.0, 2.9]), [1.0, 2.0, 2.9]);
        assert_eq!(of(&[0.1]), [0.1]);
    }

    #[test]
    fn round_trips_have_percentiles() {
        let text = r#"{"sent":4,"round_trips":[[0,30],[1,10],[2,20]],"connects":[[0,12]]}"#;
        let reading = round_trips(text, "x").unwrap();
        assert_eq!(reading.figures["rtt_p50_ms"], 20.0);
        assert_eq!(reading.figures["unanswered_percent"], 25.0);
        assert_eq!(reading.figures["connect_ms"], 12.0);
        assert_eq!(reading.distributions[0].values, [10.0, 20.0, 30.0]);
        assert!(round_trips(r#"{"sent":4,"round_trips":[]}"#, "x").is_err());
    }
}
