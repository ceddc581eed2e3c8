//! Results of the runs and figures derived from them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::result::statistics::Spread;
use crate::settings::Link;
use crate::text;
use crate::units::megabits;

/// Bytes delivered in one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// Start in seconds from the start of the connection.
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) bytes: f64,
}

/// CPU time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CpuSeconds {
    pub(super) sender: f64,
    pub(super) receiver: f64,
    pub(super) emulator: f64,
}

/// The run of one protocol.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) name: &'static str,
    /// The program that generated the load.
    pub(super) with: &'static str,
    pub(super) samples: Vec<Sample>,
    /// `None` in the simulator.
    pub(super) cpu_seconds: Option<CpuSeconds>,
}

/// A file transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileRun {
    pub(super) bytes: u64,
    /// Seconds from the start of the client until it reports the verification.
    pub(super) seconds: f64,
    pub(super) cpu_seconds: CpuSeconds,
}

impl FileRun {
    pub(super) fn bits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.seconds.max(1e-9)
    }
}

/// All results of the demonstration.
pub(super) struct Figures {
    pub(super) link: Link,
    pub(super) seconds: u64,
    pub(super) simulated: bool,
    pub(super) file: Option<FileRun>,
    pub(super) runs: Vec<Run>,
    pub(super) versions: Vec<(String, String)>,
}

/// The intervals of a report in the JSON format of iperf3; of the last one, if `text` holds
/// several.
pub(super) fn samples(text: &str) -> Option<Vec<Sample>> {
    let reports = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let report = reports.map_while(Result::ok).last()?;
    let samples: Vec<Sample> = report["intervals"]
        .as_array()?
        .iter()
        .filter_map(|interval| {
            let sum = &interval["sum"];
            Some(Sample {
                start: sum["start"].as_f64()?,
                end: sum["end"].as_f64()?,
                bytes: sum["bytes"].as_f64()?,
            })
        })
        .collect();
    (!samples.is_empty()).then_some(samples)
}

impl Run {
    pub(super) fn new(
        name: &'static str,
        with: &'static str,
        samples: Vec<Sample>,
        cpu_seconds: CpuSeconds,
    ) -> Self {
        Self { name, with, samples, cpu_seconds: Some(cpu_seconds) }
    }

    /// Mean rate between two times in bits per second; partial overlap counts in proportion.
    pub(super) fn between(&self, from: f64, to: f64) -> f64 {
        let bytes: f64 = self
            .samples
            .iter()
            .map(|sample| {
                let overlap = (sample.end.min(to) - sample.start.max(from)).max(0.0);
                let length = sample.end - sample.start;
                if length > 0.0 { sample.bytes * overlap / length } else { 0.0 }
            })
            .sum();
        bytes * 8.0 / (to - from).max(1e-9)
    }

    pub(super) fn average(&self) -> f64 {
        self.between(0.0, self.samples.last().map_or(0.0, |sample| sample.end))
    }
}

/// All runs of one protocol.
pub(super) struct Protocol<'a> {
    pub(super) name: &'static str,
    pub(super) with: &'static str,
    pub(super) runs: Vec<&'a Run>,
}

impl Protocol<'_> {
    /// The spread of the mean rates between two times, in bits per second.
    pub(super) fn between(&self, (from, to): (f64, f64)) -> Option<Spread> {
        let rates: Vec<f64> = self.runs.iter().map(|run| run.between(from, to)).collect();
        Spread::from_values(&rates)
    }

    /// Median of the average number of processors used.
    fn cores(&self, used: impl Fn(&CpuSeconds) -> f64, seconds: u64) -> String {
        let values: Vec<f64> =
            self.runs.iter().filter_map(|run| run.cpu_seconds.as_ref().map(&used)).collect();
        Spread::from_values(&values).map_or_else(
            || "-".to_owned(),
            |spread| format!("{:.2}", spread.median / seconds.max(1) as f64),
        )
    }

    /// Rates in bits per second with the end of their intervals: of a single run as measured, of
    /// several runs the median of each second.
    pub(super) fn rates(&self) -> Vec<(f64, f64)> {
        if let [run] = self.runs.as_slice() {
            let rate = |sample: &Sample| {
                (sample.end, sample.bytes * 8.0 / (sample.end - sample.start).max(1e-3))
            };
            return run.samples.iter().map(rate).collect();
        }
        // Only seconds that all runs have.
        let ends = self.runs.iter().map(|run| run.samples.last().map_or(0.0, |last| last.end));
        let seconds = ends.fold(f64::INFINITY, f64::min).floor() as u64;
        let median = |second: u64| {
            let end = second as f64;
            Some((end, self.between((end - 1.0, end))?.median))
        };
        (1..=seconds).filter_map(median).collect()
    }
}

/// A value, with the range of several: `44 (40..47)`.
fn with_range(spread: Option<Spread>, runs: usize, text: impl Fn(f64) -> String) -> String {
    match spread {
        None => "-".to_owned(),
        Some(spread) if runs < 2 => text(spread.median),
        Some(Spread { median, min, max }) => {
            format!("{} ({}..{})", text(median), text(min), text(max))
        }
    }
}

/// The row of a run in the table.
pub(super) struct Line {
    pub(super) cells: [String; 8],
}

impl Figures {
    pub(super) fn new(link: Link, seconds: u64, simulated: bool) -> Self {
        Self { link, seconds, simulated, file: None, runs: Vec::new(), versions: Vec::new() }
    }

    /// The first 10 s, or the whole of shorter runs.
    pub(super) fn beginning(&self) -> (f64, f64) {
        (0.0, (self.seconds as f64).min(10.0))
    }

    /// Seconds 5 to 15, or the second half of shorter runs.
    pub(super) fn steady(&self) -> (f64, f64) {
        let end = (self.seconds as f64).min(15.0);
        (if end > 7.0 { 5.0 } else { end / 2.0 }, end)
    }

    /// The maximum rate of UDP payload towards `b` in frames of 1514 bytes at this loss.
    pub(super) fn limit(&self) -> f64 {
        let forward = &self.link.forward;
        (1.0 - forward.loss.mean()) * forward.rate as f64 * 1472.0 / 1514.0
    }

    /// The runs of each protocol, in the order of the first runs.
    pub(super) fn protocols(&self) -> Vec<Protocol<'_>> {
        let mut protocols: Vec<Protocol<'_>> = Vec::new();
        for run in &self.runs {
            match protocols.iter_mut().find(|one| one.name == run.name) {
                Some(protocol) => protocol.runs.push(run),
                None => {
                    protocols.push(Protocol { name: run.name, with: run.with, runs: vec![run] });
                }
            }
        }
        protocols
    }

    /// The number of runs of each protocol.
    pub(super) fn rounds(&self) -> usize {
        self.protocols().iter().map(|protocol| protocol.runs.len()).max().unwrap_or(0)
    }

    fn efficiency(&self, goodput: Option<Spread>) -> Option<Spread> {
        let limit = self.limit();
        goodput.filter(|_| limit > 0.0).map(|goodput| goodput.scaled(1.0 / limit))
    }

    pub(super) fn head(&self) -> [String; 8] {
        let window = |(from, to): (f64, f64)| format!("{from:.0}-{to:.0} s");
        [
            String::new(),
            format!("Mbit/s {}", window(self.beginning())),
            "E".to_owned(),
            format!("Mbit/s {}", window(self.steady())),
            "E".to_owned(),
            "sender".to_owned(),
            "receiver".to_owned(),
            "emulator".to_owned(),
        ]
    }

    pub(super) fn lines(&self) -> Vec<Line> {
        let line = |protocol: &Protocol<'_>| {
            let runs = protocol.runs.len();
            let rate = |interval| with_range(protocol.between(interval), runs, megabits);
            let efficiency = |interval| {
                let value = self.efficiency(protocol.between(interval));
                with_range(value, runs, |value| format!("{value:.3}"))
            };
            Line {
                cells: [
                    protocol.name.to_owned(),
                    rate(self.beginning()),
                    efficiency(self.beginning()),
                    rate(self.steady()),
                    efficiency(self.steady()),
                    protocol.cores(|used| used.sender, self.seconds),
                    protocol.cores(|used| used.receiver, self.seconds),
                    protocol.cores(|used| used.emulator, self.seconds),
                ],
            }
        };
        self.protocols().iter().map(line).collect()
    }

    /// The results as a text table.
    pub(super) fn table(&self) -> String {
        let head = self.head();
        let head: [&str; 8] = std::array::from_fn(|column| head[column].as_str());
        let lines = self.lines();
        let rows: Vec<[&str; 8]> = lines
            .iter()
            .map(|line| std::array::from_fn(|column| line.cells[column].as_str()))
            .collect();
        let mut text = text::table(&head, &rows);
        if self.rounds() > 1 {
            text.push_str(&format!(
                "median (minimum..maximum) of {} runs of each protocol, in turn; of processors the median\n",
                self.rounds()
            ));
        }
        text.push_str(&format!(
            "E: goodput divided by {} Mbit/s, the maximum rate of UDP payload; last columns: processors used\n",
            megabits(self.limit())
        ));
        text
    }

    pub(super) fn json(&self) -> Value {
        let (beginning, steady) = (self.beginning(), self.steady());
        let limit = self.limit();
        let protocols: Vec<Value> = self
            .protocols()
            .iter()
            .map(|protocol| {
                let rate = |interval| protocol.between(interval).map(|rate| rate.scaled(1e-6));
                let efficiency = |interval| self.efficiency(protocol.between(interval));
                json!({
                    "protocol": protocol.name,
                    "with": protocol.with,
                    "runs": protocol.runs.len(),
                    "goodput_mbps_10s": rate(beginning),
                    "goodput_mbps_steady": rate(steady),
                    "e_10s": efficiency(beginning),
                    "e_steady": efficiency(steady),
                })
            })
            .collect();
        let runs: Vec<Value> = self
            .runs
            .iter()
            .map(|run| {
                let first = run.between(beginning.0, beginning.1);
                let later = run.between(steady.0, steady.1);
                json!({
                    "protocol": run.name,
                    "with": run.with,
                    "goodput_mbps_10s": first / 1e6,
                    "goodput_mbps_steady": later / 1e6,
                    "e_10s": first / limit,
                    "e_steady": later / limit,
                    "processor_seconds": run.cpu_seconds.map(|used| json!({
                        "sender": used.sender,
                        "receiver": used.receiver,
                        "emulator": used.emulator,
                    })),
                    "intervals": run.samples.iter().map(|sample| json!({
                        "start": sample.start, "end": sample.end, "bytes": sample.bytes,
                    })).collect::<Vec<_>>(),
                })
            })
            .collect();
        json!({
            "link": self.link,
            "seconds": self.seconds,
            "simulated": self.simulated,
            "limit_mbps": limit / 1e6,
            "file": self.file.map(|file| json!({
                "bytes": file.bytes,
                "seconds": file.seconds,
                "mbps": file.bits_per_second() / 1e6,
                "verified": true,
                "processor_seconds": {
                    "sender": file.cpu_seconds.sender,
                    "receiver": file.cpu_seconds.receiver,
                    "emulator": file.cpu_seconds.emulator,
                },
            })),
            "protocols": protocols,
            "runs": runs,
            "versions": self.versions.iter().cloned().collect::<BTreeMap<_, _>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(samples: Vec<Sample>) -> Run {
        Run::new("x", "y", samples, CpuSeconds::default())
    }

    #[test]
    fn partly_overlapping_intervals_count_in_proportion() {
        let second = |start: f64, bytes| Sample { start, end: start + 1.0, bytes };
        let run = run(vec![second(0.0, 1e6), second(1.0, 3e6)]);
        assert_eq!(run.between(0.0, 2.0), 16e6);
        assert_eq!(run.between(0.5, 1.5), 16e6);
        assert_eq!(run.average(), 16e6);
        assert_eq!(run.between(5.0, 6.0), 0.0);
    }

    #[test]
    fn several_runs_give_the_median_and_the_spread_of_each_protocol() {
        let mut figures = Figures::new(Link::default(), 4, false);
        // The first second differs from the others, so that the two intervals differ.
        for (name, mbps) in [("A", 300.0), ("B", 10.0), ("A", 100.0), ("B", 30.0), ("A", 200.0)] {
            let samples = (0..4_u8).map(|second| {
                let start = f64::from(second);
                let bytes = mbps * 1e6 / 8.0 * if second == 0 { 0.5 } else { 1.0 };
                Sample { start, end: start + 1.0, bytes }
            });
            figures.runs.push(Run { name, ..run(samples.collect()) });
        }
        let lines = figures.lines();
        let cells = |line: usize| [0, 1, 3].map(|cell| lines[line].cells[cell].as_str());
        assert_eq!(lines.len(), 2);
        assert_eq!(cells(0), ["A", "175 (87.5..262)", "200 (100..300)"]);
        assert_eq!(cells(1), ["B", "17.5 (8.75..26.2)", "20.0 (10.0..30.0)"]);
        assert!(figures.table().contains("of 3 runs of each protocol"));
        let json = figures.json();
        let steady = &json["protocols"][0]["goodput_mbps_steady"];
        assert_eq!((&steady["median"], &steady["min"]), (&json!(200.0), &json!(100.0)));
        assert_eq!(json["protocols"][1]["runs"], 2);
        assert_eq!(json["runs"].as_array().unwrap().len(), 5);
        let rates = figures.protocols()[0].rates();
        assert_eq!(rates, [(1.0, 100e6), (2.0, 200e6), (3.0, 200e6), (4.0, 200e6)]);
        // A single run is shown without a range.
        figures.runs.truncate(1);
        assert_eq!(figures.lines()[0].cells[3], "300");
        assert!(!figures.table().contains("runs of each"));
    }

    #[test]
    fn only_reports_in_iperf3_format_are_parsed() {
        let report = r#"{"intervals":[{"sum":{"start":0,"end":1,"seconds":1,"bytes":125000}}]}"#;
        let expected = vec![Sample { start: 0.0, end: 1.0, bytes: 125_000.0 }];
        assert_eq!(samples(report), Some(expected.clone()));
        assert_eq!(samples(&format!("{{}}\n{report}")), Some(expected));
        for text in ["", "nonsense", "{}", r#"{"intervals":[]}"#] {
            assert_eq!(samples(text), None, "{text}");
        }
    }

    #[test]
    fn limit_is_the_maximum_rate_of_udp_payload() {
        let mut figures = Figures::new(Link::default(), 15, false);
        assert!((figures.limit() - 875.03e6).abs() < 1e5);
        assert_eq!((figures.beginning(), figures.steady()), ((0.0, 10.0), (5.0, 15.0)));
        figures.seconds = 4;
        assert_eq!((figures.beginning(), figures.steady()), ((0.0, 4.0), (2.0, 4.0)));
    }
}
