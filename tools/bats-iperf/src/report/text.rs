//! The text report. Scripts for the original parse its format.

use serde::Serialize;

use super::{Side, distinct_sides, indices};
use crate::control::{Summary, Totals};
use crate::latency::Percentiles;
use crate::meter::Reading;
use crate::outcome::{Interval, Outcome};
use crate::sender_settings::SenderSettings;
use crate::transport_stats::{CodingStats, TransportStats};
use crate::units;

/// Subject of a line: a stream by its index, or the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Stream(usize),
    Sum,
}

/// Values of one line.
struct Line {
    subject: Subject,
    /// The role of this end, in bidirectional tests.
    role: Option<&'static str>,
    from: f64,
    to: f64,
    counters: Reading,
    coding: Option<CodingStats>,
    word: &'static str,
}

/// Where the columns of `-V` start.
const VERBOSE_COLUMN: usize = 103;

/// First lines of every run.
pub(crate) fn banner() -> [String; 3] {
    let system = nix::sys::utsname::uname().map_or_else(
        |_| std::env::consts::OS.to_owned(),
        |name| {
            [name.sysname(), name.nodename(), name.release(), name.machine()]
                .map(|word| word.to_string_lossy().into_owned())
                .join(" ")
        },
    );
    let version = format!(
        "bats_iperf {} (OpenBATS), {}",
        env!("CARGO_PKG_VERSION"),
        env!("BATS_IPERF_BUILD")
    );
    [system, version, rule()]
}

pub(crate) fn rule() -> String {
    "-".repeat(60)
}

/// The column headings.
pub(crate) fn header(sides: &[Side], verbose: bool) -> String {
    let both = distinct_sides(sides).len() > 1;
    let transferred =
        if sides.first() == Some(&Side::Receiver) && !both { "Received" } else { "Transfer" };
    let id = if both { "[ ID][Role]" } else { "[ ID]" };
    let columns = format!(
        "{id}  {:<17} {transferred:<14}  {:<18} {:<10} Lost/Total Datagrams",
        "Interval", "Bitrate", "Jitter"
    );
    match verbose {
        false => columns,
        true => format!(
            "{columns:<VERBOSE_COLUMN$}  {:>8} {:>8} {:>10} {:>7} {:>11} {:>14} {:>8} {:>11}",
            "Loss", "Residual", "Redundancy", "Waste", "RTT", "Cwnd", "Expired", "Repair"
        ),
    }
}

fn role(sides: &[Side], side: Side, is_client: bool) -> Option<&'static str> {
    let are_both = sides.first().is_some_and(|first| sides.iter().any(|other| other != first));
    are_both.then_some(match (side, is_client) {
        (Side::Sender, true) => "TX-C",
        (Side::Receiver, true) => "RX-C",
        (Side::Sender, false) => "TX-S",
        (Side::Receiver, false) => "RX-S",
    })
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

impl Line {
    fn text(&self) -> String {
        let subject = match self.subject {
            Subject::Stream(index) => format!("{:>3}", index + 1),
            Subject::Sum => "SUM".into(),
        };
        let role = self.role.map(|role| format!("[{role}]")).unwrap_or_default();
        let rate = self.counters.bytes as f64 * 8.0 / (self.to - self.from).max(1e-9);
        let total = self.counters.messages.saturating_add(self.counters.lost);
        let lost = self.counters.lost;
        let lost_percent = percent(lost, total);
        let times = format!("{:.2}-{:.2} sec", self.from, self.to);
        // Scripts search for exactly two blanks between transfer and rate.
        let transferred = format!("{}  {}", units::bytes(self.counters.bytes), units::rate(rate));
        let jitter = format!("{:.3} ms", self.counters.jitter_ms);
        let mut text = format!(
            "[{subject}]{role}  {times:<17} {transferred:<34} {jitter:<10} {lost}/{total} \
             ({lost_percent:.2}%)"
        );
        if !self.word.is_empty() {
            text = format!("{text}  {}", self.word);
        }
        if let Some(coding) = self.coding {
            let column = |value: Option<f64>| match value {
                Some(value) => format!("{value:.2}%"),
                None => "-".into(),
            };
            let time = |us: Option<f64>| match us {
                Some(us) => format!("{:.3} ms", us / 1e3),
                None => "-".into(),
            };
            text = format!(
                "{text:<VERBOSE_COLUMN$}  {:>8} {:>8} {:>10} {:>7} {:>11} {:>14} {:>8} {:>11}",
                column(coding.loss),
                column(coding.residual),
                column(coding.redundancy),
                column(coding.waste),
                time(coding.rtt_us.map(|rtt| rtt as f64)),
                coding.cwnd.map_or_else(|| "-".into(), units::bytes),
                coding.expired.map_or_else(|| "-".into(), |count| count.to_string()),
                time(coding.repair_us),
            );
        }
        text
    }
}

/// The lines of an interval: one for each stream, and a sum if there are several.
pub(crate) fn interval(
    interval: &Interval,
    sides: &[Side],
    is_client: bool,
    verbose: bool,
) -> Vec<String> {
    let mut lines = Vec::new();
    for side in distinct_sides(sides) {
        let indices = indices(sides, side);
        let coding = |indices: &[usize]| {
            let samples: Vec<(&TransportStats, &TransportStats)> = indices
                .iter()
                .filter_map(|&place| interval.transport_stats.get(place)?.as_ref())
                .map(|(before, after)| (before, after))
                .collect();
            verbose.then(|| match side {
                Side::Sender => CodingStats::between(&samples, &[]),
                Side::Receiver => CodingStats::between(&[], &samples),
            })
        };
        let line = |subject, counters, indices: &[usize]| {
            Line {
                subject,
                role: role(sides, side, is_client),
                from: interval.start,
                to: interval.end,
                counters,
                coding: coding(indices),
                word: if interval.is_omitted { "(omitted)" } else { "" },
            }
            .text()
        };
        let readings: Vec<Reading> =
            indices.iter().filter_map(|&place| interval.streams.get(place).copied()).collect();
        for (&place, &counters) in indices.iter().zip(&readings) {
            lines.push(line(Subject::Stream(place), counters, &[place]));
        }
        if indices.len() > 1 {
            lines.push(line(Subject::Sum, Reading::sum(&readings), &indices));
        }
    }
    lines
}

/// Coding statistics of whole tests, from both ends.
fn total_coding(senders: &[&Totals], receivers: &[&Totals]) -> CodingStats {
    let nothing = TransportStats::default();
    let samples = |all: &[&'_ Totals]| -> Vec<TransportStats> {
        all.iter().filter_map(|totals| totals.transport_stats.clone()).collect()
    };
    let (senders, receivers) = (samples(senders), samples(receivers));
    let senders: Vec<_> = senders.iter().map(|after| (&nothing, after)).collect();
    let receivers: Vec<_> = receivers.iter().map(|after| (&nothing, after)).collect();
    CodingStats::between(&senders, &receivers)
}

/// The final lines: for each stream both ends' results, then the sums.
pub(crate) fn summary(outcome: &Outcome, remote: Option<&Summary>, verbose: bool) -> Vec<String> {
    let own = &outcome.summary;
    let theirs = remote.map_or(&[][..], |summary| &summary.streams);
    let mut lines = Vec::new();
    for side in distinct_sides(&outcome.sides) {
        let indices = indices(&outcome.sides, side);
        // The results of the end `measured`. The role is that of the stream at this end in both of
        // its lines, as iperf3 prints it.
        let line = |subject, measured: Side, totals: &[&Totals], others: &[&Totals]| {
            let readings: Vec<Reading> =
                totals.iter().map(|totals| Reading::from(*totals)).collect();
            let seconds = totals.iter().map(|totals| totals.seconds).fold(0.0, f64::max);
            Line {
                subject,
                role: role(&outcome.sides, side, outcome.is_client),
                from: 0.0,
                to: seconds,
                counters: Reading::sum(&readings),
                coding: verbose.then(|| match measured {
                    Side::Sender => total_coding(totals, others),
                    Side::Receiver => total_coding(others, totals),
                }),
                word: measured.word(),
            }
            .text()
        };
        // The sender's results come first.
        let both = |subject, near: &[&Totals], far: &[&Totals]| {
            let own = line(subject, side, near, far);
            if far.is_empty() {
                return vec![own];
            }
            let peers = line(subject, side.other(), far, near);
            if side == Side::Sender { vec![own, peers] } else { vec![peers, own] }
        };
        let pick =
            |streams: &'_ [Totals], place: usize| -> Option<Totals> { streams.get(place).cloned() };
        let pairs: Vec<(usize, Option<Totals>, Option<Totals>)> = indices
            .iter()
            .map(|&place| (place, pick(&own.streams, place), pick(theirs, place)))
            .collect();
        for (place, near, far) in &pairs {
            let (near, far): (Vec<&Totals>, Vec<&Totals>) =
                (near.iter().collect(), far.iter().collect());
            lines.extend(both(Subject::Stream(*place), &near, &far));
        }
        if indices.len() > 1 {
            let near: Vec<&Totals> =
                pairs.iter().filter_map(|(_, near, _)| near.as_ref()).collect();
            let far: Vec<&Totals> = pairs.iter().filter_map(|(_, _, far)| far.as_ref()).collect();
            lines.extend(both(Subject::Sum, &near, &far));
        }
    }
    lines.extend(latency(outcome, remote));
    for (direction, sending) in sender_settings(outcome, remote) {
        if verbose {
            lines.push(sending.line(direction));
        }
        if let Some(note) = &sending.note {
            lines.push(format!("Note on sender {direction}: {note}"));
        }
    }
    if verbose {
        let side = |is_local: bool, used: crate::cpu::Utilization| {
            let distinct_sides: Vec<&str> = distinct_sides(&outcome.sides)
                .into_iter()
                .map(|side| if is_local { side.word() } else { side.other().word() })
                .collect();
            format!(
                "{}/{} {:.1}% ({:.1}%u/{:.1}%s)",
                if is_local { "local" } else { "remote" },
                distinct_sides.join("+"),
                used.total,
                used.user,
                used.system
            )
        };
        let far = remote
            .map_or_else(String::new, |summary| format!(", {}", side(false, summary.processor)));
        lines.push(format!("CPU Utilization: {}{far}", side(true, own.processor)));
    }
    lines
}

/// Sender settings of each direction, as far as known.
pub(crate) fn sender_settings<'a>(
    outcome: &'a Outcome,
    remote: Option<&'a Summary>,
) -> Vec<(&'static str, &'a SenderSettings)> {
    let (own, theirs) =
        (outcome.summary.sending.as_ref(), remote.and_then(|summary| summary.sending.as_ref()));
    let (forward, reverse) = if outcome.is_client { (own, theirs) } else { (theirs, own) };
    let named = [("forward", forward), ("reverse", reverse)].into_iter();
    named.filter_map(|(direction, sending)| Some((direction, sending?))).collect()
}

/// Latency results of a direction: its name, one-way and round-trip times, missing samples.
type DirectionLatency<'a> =
    (&'static str, Option<&'a Percentiles>, Option<&'a Percentiles>, Missing);

/// Latency results of each direction.
pub(crate) fn directions<'a>(
    outcome: &'a Outcome,
    remote: Option<&'a Summary>,
) -> Vec<DirectionLatency<'a>> {
    let own = &outcome.summary;
    distinct_sides(&outcome.sides)
        .into_iter()
        .map(|side| {
            let (one_way, round_trip) = match side {
                Side::Sender => (remote.and_then(|x| x.one_way.as_ref()), own.round_trip.as_ref()),
                Side::Receiver => {
                    (own.one_way.as_ref(), remote.and_then(|x| x.round_trip.as_ref()))
                }
            };
            let forward = (side == Side::Sender) == outcome.is_client;
            let direction = if forward { "forward" } else { "reverse" };
            (direction, one_way, round_trip, missing(outcome, remote, side))
        })
        .collect()
}

/// Messages without a latency sample. Percentiles that ignored them would be too good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Missing {
    /// Messages that were due but not sent before the end.
    pub(crate) unsent: u64,
    /// Messages that were sent but did not arrive in time or at all.
    pub(crate) lost: u64,
    /// Messages whose echo did not arrive.
    pub(crate) unanswered: u64,
}

/// Missing samples of the direction in which this side is `side`; the peer's as far as known.
pub(crate) fn missing(outcome: &Outcome, remote: Option<&Summary>, side: Side) -> Missing {
    let of = |streams: &[Totals], field: fn(&Totals) -> u64| {
        let indices = indices(&outcome.sides, side).into_iter();
        indices
            .filter_map(|place| streams.get(place))
            .fold(0_u64, |sum, totals| sum.saturating_add(field(totals)))
    };
    let own = &outcome.summary.streams[..];
    let theirs = remote.map_or(&[][..], |summary| &summary.streams);
    let (sender, receiver) = match side {
        Side::Sender => (own, theirs),
        Side::Receiver => (theirs, own),
    };
    Missing {
        unsent: of(sender, |totals| totals.unsent),
        lost: of(receiver, |totals| totals.lost),
        unanswered: of(sender, |totals| totals.unanswered),
    }
}

fn latency(outcome: &Outcome, remote: Option<&Summary>) -> Vec<String> {
    let mut lines = Vec::new();
    for (direction, one_way, round_trip, missing) in directions(outcome, remote) {
        if one_way.is_none() && round_trip.is_none() && missing.unsent.max(missing.unanswered) == 0
        {
            continue;
        }
        for (name, found) in [("one-way", one_way), ("round-trip", round_trip)] {
            let Some(found) = found else { continue };
            if lines.is_empty() {
                lines.push(format!(
                    "{:<22} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
                    "Latency (us)",
                    "Count",
                    "Min",
                    "Mean",
                    "50%",
                    "90%",
                    "99%",
                    "99.9%",
                    "99.99%",
                    "Max"
                ));
            }
            let error = match found.clock_error_us {
                error if error > 0.0 => format!("  clocks +-{error:.1}"),
                _ => String::new(),
            };
            lines.push(format!(
                "{:<22} {:>9} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>10.1}{error}",
                format!("  {direction} {name}"),
                found.count,
                found.min_us,
                found.mean_us,
                found.p50_us,
                found.p90_us,
                found.p99_us,
                found.p999_us,
                found.p9999_us,
                found.max_us,
            ));
        }
        let Missing { unsent, lost, unanswered } = missing;
        lines.push(format!(
            "  {direction} without latency: {unsent} due but not sent, {lost} lost, \
             {unanswered} not echoed"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(subject: Subject, from: f64, to: f64, counters: Reading) -> String {
        Line { subject, role: None, from, to, counters, coding: None, word: "" }.text()
    }

    /// The format that scripts for the original parse.
    #[test]
    fn report_lines_keep_their_format() {
        let counters = Reading {
            bytes: 100_000_000,
            messages: 1_526,
            jitter_ms: 0.0125,
            ..Reading::default()
        };
        assert_eq!(
            line(Subject::Stream(0), 1.0, 2.0, counters),
            "[  1]  1.00-2.00 sec     100.00 MBytes  800.00 Mbits/sec    0.013 ms   0/1526 (0.00%)"
        );
        let nothing = line(Subject::Stream(11), 1.0, 2.0, Reading::default());
        assert!(nothing.starts_with("[ 12]  1.00-2.00 sec     0.00 Bytes  0.00 bits/sec"));
        let lossy = Reading { lost: 25, messages: 75, ..Reading::default() };
        assert!(line(Subject::Sum, 0.0, 1.0, lossy).ends_with("25/100 (25.00%)"));
    }

    fn totals() -> Totals {
        Totals { seconds: 2.0, bytes: 1_000_000, messages: 10, ..Totals::default() }
    }

    fn outcome(sides: Vec<Side>) -> Outcome {
        let streams = vec![totals(); sides.len()];
        let summary = Summary { streams, ..Summary::default() };
        Outcome { sides, is_client: true, intervals: Vec::new(), left_out: 0, summary }
    }

    #[test]
    fn several_streams_have_sums_of_both_ends() {
        let one = summary(&outcome(vec![Side::Receiver]), None, false);
        assert_eq!(one.len(), 1);
        assert!(one[0].contains("4.00 Mbits/sec") && one[0].ends_with("receiver"), "{one:?}");
        let two = outcome(vec![Side::Sender; 2]);
        let lines = summary(&two, Some(&two.summary), false);
        assert_eq!(lines.len(), 6);
        assert!(lines[4].starts_with("[SUM]") && lines[4].contains("8.00 Mbits/sec"), "{lines:?}");
        assert!(lines[4].ends_with("sender") && lines[5].ends_with("receiver"), "{lines:?}");
    }

    #[test]
    fn bidirectional_tests_have_roles_and_sums_per_direction() {
        let both = outcome([vec![Side::Sender; 2], vec![Side::Receiver; 2]].concat());
        let lines = summary(&both, None, false);
        assert_eq!(lines.len(), 6);
        assert!(lines[2].starts_with("[SUM][TX-C]") && lines[5].starts_with("[SUM][RX-C]"));
        assert!(header(&both.sides, false).contains("[Role]"));
    }

    #[test]
    fn an_extreme_summary_is_printed_without_overflow() {
        let wild = Totals {
            seconds: -1.0,
            bytes: u64::MAX,
            messages: u64::MAX,
            lost: u64::MAX,
            ..Totals::default()
        };
        let remote = Summary { streams: vec![wild; 300], ..Summary::default() };
        let lines = summary(&outcome(vec![Side::Sender; 2]), Some(&remote), true);
        assert_eq!(lines.len(), 7);
    }

    #[test]
    fn verbose_columns_align_with_their_header() {
        /// Where each column ends; a unit follows its value after a blank.
        fn columns(line: &str) -> Vec<usize> {
            let bytes = line.as_bytes();
            let ends = |&place: &usize| {
                bytes[place] != b' ' && bytes.get(place + 1).is_none_or(|next| *next == b' ')
            };
            let has_unit = |end: usize| {
                [" ms", " MBytes"].iter().any(|unit| line[end + 1..].starts_with(unit))
            };
            (VERBOSE_COLUMN..line.len()).filter(ends).filter(|&end| !has_unit(end)).collect()
        }
        let coding = CodingStats {
            loss: Some(5.0),
            residual: Some(0.25),
            redundancy: Some(7.5),
            waste: None,
            rtt_us: Some(20_500),
            cwnd: Some(123_450_000),
            expired: Some(42),
            repair_us: Some(1_500.0),
        };
        let counters = Reading { bytes: 100_000_000, messages: 1_526, ..Reading::default() };
        for sides in [vec![Side::Sender], vec![Side::Sender, Side::Receiver]] {
            let header = header(&sides, true);
            assert_eq!(columns(&header).len(), 8, "{header}");
            for coding in [coding, CodingStats::between(&[], &[])] {
                let role = role(&sides, sides[0], true);
                let (subject, word) = (Subject::Stream(0), "receiver");
                let line = Line {
                    subject,
                    role,
                    from: 0.0,
                    to: 1.0,
                    counters,
                    coding: Some(coding),
                    word,
                };
                let line = line.text();
                assert_eq!(columns(&line), columns(&header), "\n{header}\n{line}");
            }
        }
        let outcome = outcome(vec![Side::Sender]);
        let lines = summary(&outcome, None, true);
        assert_eq!(columns(&lines[0]), columns(&header(&outcome.sides, true)), "{lines:?}");
        assert!(lines[0].contains("sender"), "{lines:?}");
        assert!(lines[1].starts_with("CPU Utilization: local/sender"), "{lines:?}");
    }
}
