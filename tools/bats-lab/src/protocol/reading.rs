//! What programs print, read: JSON only, the last document of what was printed.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::result::figures::{self, Figures, set};
use crate::result::{Distribution, FlowResult, Series};

/// A congestion window of so many bytes is none: without congestion control there is no other.
pub(crate) const NO_WINDOW: f64 = (64_u64 << 20) as f64;

/// Whose words they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// iperf3's.
    Iperf,
    /// Those of bats_iperf.
    Bats,
    /// The same, of a mode that may lose messages.
    Lossy,
    /// Those of the loads of this program.
    Own,
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    pub(crate) figures: Figures,
    /// The flows beside it.
    pub(crate) flows: Vec<FlowResult>,
    pub(crate) series: Vec<Series>,
    pub(crate) distributions: Vec<Distribution>,
}

/// The last JSON document of a text.
pub(crate) fn last_document(text: &str) -> Option<Value> {
    serde_json::Deserializer::from_str(text).into_iter::<Value>().map_while(Result::ok).last()
}

/// Reads the figures of a flow that ran for `length` seconds, with throughput over intervals of so
/// many seconds at least: what arrived as the server saw it, the rest as who knows it.
///
/// # Errors
/// Where a program tells of an error, or nothing arrived.
pub(crate) fn throughput(
    reader: Reader,
    interval: f64,
    length: f64,
    client: &str,
    server: &str,
    of: &str,
) -> Result<Reading> {
    let (near, far) = (last_document(client), last_document(server));
    for (who, document) in [("the client", &near), ("the server", &far)] {
        if let Some(error) = document.as_ref().and_then(|document| document["error"].as_str()) {
            // iperf3's server complains when the client has left, which is what it shall do.
            if who == "the client" {
                bail!("{who} says: {error}");
            }
        }
    }
    let from_far =
        far.as_ref().map(|document| intervals(document, of)).filter(|one| !one.points.is_empty());
    let from_near = near.as_ref().map(|document| intervals(document, of));
    let arrived = from_far.or(from_near).filter(|series| !series.points.is_empty());
    let mut series = arrived.context("no bytes arrived, or no figures of them")?;
    series.points = merged(&series.points, interval);
    let mut reading = Reading::default();
    figures::of_throughput(&mut reading.figures, &series, length);
    reading.series.push(series);
    if let Some(near) = &near {
        sender(&mut reading, near, reader, of);
    }
    if let Some(far) = &far {
        receiver(&mut reading, far, reader, of);
    }
    Ok(reading)
}

/// Rates over time, in Mbit/s; each point at the end of its interval.
fn intervals(document: &Value, of: &str) -> Series {
    let list = document["intervals"].as_array();
    let mut points: Vec<(f64, f64)> = list
        .into_iter()
        .flatten()
        .filter(|interval| interval["sum"]["omitted"].as_bool() != Some(true))
        .filter_map(|interval| {
            let sum = &interval["sum"];
            let (start, end) = (sum["start"].as_f64()?, sum["end"].as_f64()?);
            // A crumb at the end says nothing of the rate.
            let rate = sum["bytes"].as_f64()? * 8e-6 / (end - start);
            (end - start > 0.02 && rate.is_finite()).then_some((end, rate))
        })
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    Series { name: "throughput".into(), of: of.to_owned(), unit: "Mbit/s".into(), points }
}

/// Rates over longer intervals: each point is at the end of its interval.
fn merged(points: &[(f64, f64)], interval: f64) -> Vec<(f64, f64)> {
    let mut merged = Vec::new();
    let (mut start, mut before, mut sum) = (0.0, 0.0, 0.0);
    for (index, &(end, rate)) in points.iter().enumerate() {
        sum += rate * (end - before);
        before = end;
        // Intervals are not quite as long as they should be.
        let is_whole = end - start > 0.98 * interval;
        if (is_whole || index + 1 == points.len()) && end > start {
            merged.push((end, sum / (end - start)));
            (start, sum) = (end, 0.0);
        }
    }
    merged
}

fn sender(reading: &mut Reading, document: &Value, reader: Reader, of: &str) {
    if let Some(count) = document["end"]["sum_sent"]["retransmits"].as_f64() {
        set(&mut reading.figures, "retransmissions", count);
        let size = document["start"]["tcp_mss_default"].as_f64().filter(|&size| size > 0.0);
        let sent = document["end"]["sum_sent"]["bytes"].as_f64();
        if let (Some(size), Some(sent)) = (size, sent) {
            // Those sent again are not among the bytes.
            let share = 100.0 * count / (sent / size + count);
            set(&mut reading.figures, "retransmitted_percent", share);
        }
    }
    if !matches!(reader, Reader::Bats | Reader::Lossy) {
        return;
    }
    // The state of our own flows, at the end of each interval.
    let names: [(&str, &str, &str, f64); 5] = [
        ("snd_cwnd", "cwnd", "kB", 1e-3),
        ("rtt_us", "smoothed RTT", "ms", 1e-3),
        ("delivery_bits_per_second", "delivery rate", "Mbit/s", 1e-6),
        ("pacing_bits_per_second", "pacing rate", "Mbit/s", 1e-6),
        ("loss_percent", "loss seen", "%", 1.0),
    ];
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
                let is_mean = matches!(key, "rtt_us" | "loss_percent");
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
}

/// What was lost and how unevenly the rest came, where the receiver counts that.
fn receiver(reading: &mut Reading, document: &Value, reader: Reader, of: &str) {
    let sum = &document["end"]["sum"];
    let sum = if sum.is_object() { sum } else { &document["end"]["sum_received"] };
    for (key, name) in [("lost_percent", "loss_percent"), ("jitter_ms", "jitter_ms")] {
        if let Some(value) = sum[key].as_f64() {
            set(&mut reading.figures, name, value);
        } else {
            continue;
        }
        let (title, unit) =
            if key == "jitter_ms" { ("jitter", "ms") } else { ("residual loss", "%") };
        let points = of_intervals(document, key);
        // What is reliable has no residual loss to show over time.
        if points.len() > 1 && reader != Reader::Bats {
            let (name, unit) = (title.to_owned(), unit.to_owned());
            reading.series.push(Series { name, of: of.to_owned(), unit, points });
        }
    }
}

/// What the intervals say of something, each at its end. A last one that is not half as long as the one
/// before says little: what it has lost may only be late.
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

/// Reads the round-trip times that `__rtt` prints.
///
/// # Errors
/// Where nothing came back.
pub(crate) fn round_trips(text: &str, of: &str) -> Result<Reading> {
    let document = last_document(text).context("no figures were printed")?;
    let pairs = |key: &str| -> Vec<(f64, f64)> {
        document[key]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|pair| Some((pair[0].as_f64()?, pair[1].as_f64()?)))
            .collect()
    };
    let connects: Vec<f64> = pairs("connects").into_iter().map(|pair| pair.1).collect();
    let sent = document["sent"].as_f64().unwrap_or(0.0);
    let is_first = document["first"].as_bool() == Some(true);
    of_round_trips(pairs("round_trips"), &connects, sent, is_first, of)
}

/// The reading of round trips: seconds and milliseconds of each, milliseconds of each connection,
/// messages sent, and whether they were the first of connections.
///
/// # Errors
/// Where nothing came back.
pub(crate) fn of_round_trips(
    times: Vec<(f64, f64)>,
    connects: &[f64],
    sent: f64,
    is_first: bool,
    of: &str,
) -> Result<Reading> {
    if times.is_empty() {
        bail!("nothing came back of {sent} messages");
    }
    let mut reading = Reading::default();
    let mut values: Vec<f64> = times.iter().map(|time| time.1).collect();
    values.sort_by(f64::total_cmp);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    if is_first {
        set(&mut reading.figures, "first_rtt_ms", mean(&values));
    }
    // Datagrams have no connection: their 0 is no figure.
    if connects.iter().any(|&connect| connect > 0.0) {
        set(&mut reading.figures, "connect_ms", mean(connects));
    }
    let unanswered = 100.0 * (1.0 - values.len() as f64 / sent.max(1.0));
    set(&mut reading.figures, "unanswered_percent", unanswered);
    let distribution = Distribution { name: "RTT".into(), unit: "ms".into(), values };
    figures::of_round_trips(&mut reading.figures, &distribution);
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
    fn the_receivers_words_count() {
        let of = |bytes: u64| {
            format!(r#"{{"intervals":[{{"sum":{{"start":0,"end":1,"bytes":{bytes}}}}}]}}"#)
        };
        let reading = throughput(Reader::Iperf, 1.0, 1.0, &of(250_000), &of(125_000), "x").unwrap();
        assert_eq!(reading.figures["throughput_mbps"], 1.0);
        let reading = throughput(Reader::Iperf, 1.0, 1.0, &of(250_000), "", "x").unwrap();
        assert_eq!(reading.figures["throughput_mbps"], 2.0);
        let error =
            throughput(Reader::Iperf, 1.0, 1.0, r#"{"error":"no way"}"#, "", "x").unwrap_err();
        assert!(error.to_string().contains("no way"));
        assert!(throughput(Reader::Own, 1.0, 1.0, "", "nonsense", "x").is_err());
    }

    #[test]
    fn short_intervals_are_put_together_and_lose_nothing() {
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
    fn crumbs_at_the_end_tell_of_no_loss() {
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
