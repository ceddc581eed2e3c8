//! What programs print, read: JSON only, the last document of what was printed.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::result::figures::{self, Figures, set};
use crate::result::{Distribution, Series};

/// Whose words they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// iperf3's.
    Iperf,
    /// Those of bats_iperf.
    Bats,
    /// Those of the loads of this program.
    Own,
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    pub(crate) figures: Figures,
    pub(crate) series: Vec<Series>,
    pub(crate) distributions: Vec<Distribution>,
}

/// The last JSON document of a text.
pub(crate) fn last_document(text: &str) -> Option<Value> {
    serde_json::Deserializer::from_str(text).into_iter::<Value>().map_while(Result::ok).last()
}

/// Reads the figures of a flow: what arrived as the server saw it, the rest as who knows it.
///
/// # Errors
/// Where a program tells of an error, or nothing arrived.
pub(crate) fn throughput(reader: Reader, client: &str, server: &str, of: &str) -> Result<Reading> {
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
    let series = arrived.context("no octets arrived, or no figures of them")?;
    let mut reading = Reading::default();
    figures::of_throughput(&mut reading.figures, &series);
    reading.series.push(series);
    if let Some(near) = &near {
        sender(&mut reading, near, reader, of);
    }
    if let Some(far) = &far {
        receiver(&mut reading, far);
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

fn sender(reading: &mut Reading, document: &Value, reader: Reader, of: &str) {
    if let Some(count) = document["end"]["sum_sent"]["retransmits"].as_f64() {
        set(&mut reading.figures, "retransmissions", count);
    }
    if reader != Reader::Bats {
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

fn receiver(reading: &mut Reading, document: &Value) {
    let sum = &document["end"]["sum"];
    let sum = if sum.is_object() { sum } else { &document["end"]["sum_received"] };
    for (key, name) in [("lost_percent", "loss_percent"), ("jitter_ms", "jitter_ms")] {
        if let Some(value) = sum[key].as_f64() {
            set(&mut reading.figures, name, value);
        }
    }
}

/// Reads the round-trip times that `__rtt` prints.
///
/// # Errors
/// Where nothing came back.
pub(crate) fn round_trips(text: &str, of: &str) -> Result<Reading> {
    let document = last_document(text).context("no figures were printed")?;
    let mut reading = Reading::default();
    let pairs = |key: &str| -> Vec<(f64, f64)> {
        document[key]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|pair| Some((pair[0].as_f64()?, pair[1].as_f64()?)))
            .collect()
    };
    let times = pairs("round_trips");
    let sent = document["sent"].as_f64().unwrap_or(0.0);
    if times.is_empty() {
        bail!("nothing came back of {sent} messages");
    }
    set(
        &mut reading.figures,
        "unanswered_percent",
        100.0 * (1.0 - times.len() as f64 / sent.max(1.0)),
    );
    let mut values: Vec<f64> = times.iter().map(|pair| pair.1).collect();
    values.sort_by(f64::total_cmp);
    let is_first = document["first"].as_bool() == Some(true);
    let distribution = Distribution { name: "RTT".into(), unit: "ms".into(), values };
    if is_first {
        let mean = distribution.values.iter().sum::<f64>() / distribution.values.len() as f64;
        set(&mut reading.figures, "first_rtt_ms", mean);
    }
    figures::of_round_trips(&mut reading.figures, &distribution);
    let connects = pairs("connects");
    if !connects.is_empty() {
        let mean = connects.iter().map(|pair| pair.1).sum::<f64>() / connects.len() as f64;
        set(&mut reading.figures, "connect_ms", mean);
    }
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
        let reading = throughput(Reader::Iperf, &of(250_000), &of(125_000), "x").unwrap();
        assert_eq!(reading.figures["throughput_mbps"], 1.0);
        let reading = throughput(Reader::Iperf, &of(250_000), "", "x").unwrap();
        assert_eq!(reading.figures["throughput_mbps"], 2.0);
        let error = throughput(Reader::Iperf, r#"{"error":"no way"}"#, "", "x").unwrap_err();
        assert!(error.to_string().contains("no way"));
        assert!(throughput(Reader::Own, "", "nonsense", "x").is_err());
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
