//! The report as text. Its shapes are those that scripts around the original read.

use serde::Serialize;

use super::{Side, kinds, places};
use crate::control::{Summary, Totals};
use crate::latency::Percentiles;
use crate::meter::Reading;
use crate::sending::Sending;
use crate::test::{Interval, Outcome};
use crate::transport::{Coding, Transport};
use crate::units;

/// What a line is about: a stream by its number, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Stream(usize),
    Sum,
}

/// One line's figures.
struct Line {
    subject: Subject,
    /// Where both ends send: which of them a stream's end is.
    role: Option<&'static str>,
    from: f64,
    to: f64,
    gained: Reading,
    coding: Option<Coding>,
    word: &'static str,
}

/// Where the columns of `-V` begin.
const BESIDE: usize = 103;

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

/// The names of the columns.
pub(crate) fn header(sides: &[Side], verbose: bool) -> String {
    let both = kinds(sides).len() > 1;
    let moved =
        if sides.first() == Some(&Side::Receiver) && !both { "Received" } else { "Transfer" };
    let id = if both { "[ ID][Role]" } else { "[ ID]" };
    let columns = format!(
        "{id}  {:<17} {moved:<14}  {:<18} {:<10} Lost/Total Datagrams",
        "Interval", "Bitrate", "Jitter"
    );
    match verbose {
        false => columns,
        true => format!(
            "{columns:<BESIDE$}  {:>8} {:>8} {:>10} {:>7} {:>11} {:>14} {:>8} {:>11}",
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
        let rate = self.gained.bytes as f64 * 8.0 / (self.to - self.from).max(1e-9);
        let total = self.gained.messages.saturating_add(self.gained.lost);
        let lost = self.gained.lost;
        let share = percent(lost, total);
        let times = format!("{:.2}-{:.2} sec", self.from, self.to);
        // Exactly two blanks stand between transfer and rate: that is what is looked for.
        let moved = format!("{}  {}", units::bytes(self.gained.bytes), units::rate(rate));
        let jitter = format!("{:.3} ms", self.gained.jitter_ms);
        let mut text = format!(
            "[{subject}]{role}  {times:<17} {moved:<34} {jitter:<10} {lost}/{total} ({share:.2}%)"
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
                "{text:<BESIDE$}  {:>8} {:>8} {:>10} {:>7} {:>11} {:>14} {:>8} {:>11}",
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

/// The lines of an interval: one for each stream, and a sum where there are several.
pub(crate) fn interval(
    interval: &Interval,
    sides: &[Side],
    is_client: bool,
    verbose: bool,
) -> Vec<String> {
    let mut lines = Vec::new();
    for side in kinds(sides) {
        let places = places(sides, side);
        let coding = |places: &[usize]| {
            let samples: Vec<(&Transport, &Transport)> = places
                .iter()
                .filter_map(|&place| interval.transports.get(place)?.as_ref())
                .map(|(before, after)| (before, after))
                .collect();
            verbose.then(|| match side {
                Side::Sender => Coding::between(&samples, &[]),
                Side::Receiver => Coding::between(&[], &samples),
            })
        };
        let line = |subject, gained, places: &[usize]| {
            Line {
                subject,
                role: role(sides, side, is_client),
                from: interval.start,
                to: interval.end,
                gained,
                coding: coding(places),
                word: if interval.is_omitted { "(omitted)" } else { "" },
            }
            .text()
        };
        let readings: Vec<Reading> =
            places.iter().filter_map(|&place| interval.streams.get(place).copied()).collect();
        for (&place, &gained) in places.iter().zip(&readings) {
            lines.push(line(Subject::Stream(place), gained, &[place]));
        }
        if places.len() > 1 {
            lines.push(line(Subject::Sum, Reading::sum(&readings), &places));
        }
    }
    lines
}

/// Of whole tests, from both ends.
fn coding_of(senders: &[&Totals], receivers: &[&Totals]) -> Coding {
    let nothing = Transport::default();
    let samples = |all: &[&'_ Totals]| -> Vec<Transport> {
        all.iter().filter_map(|totals| totals.transport.clone()).collect()
    };
    let (senders, receivers) = (samples(senders), samples(receivers));
    let senders: Vec<_> = senders.iter().map(|after| (&nothing, after)).collect();
    let receivers: Vec<_> = receivers.iter().map(|after| (&nothing, after)).collect();
    Coding::between(&senders, &receivers)
}

/// The last lines: for each stream this side's figures and the other's, then the sums.
pub(crate) fn summary(outcome: &Outcome, remote: Option<&Summary>, verbose: bool) -> Vec<String> {
    let own = &outcome.summary;
    let theirs = remote.map_or(&[][..], |summary| &summary.streams);
    let mut lines = Vec::new();
    for side in kinds(&outcome.sides) {
        let places = places(&outcome.sides, side);
        let line = |subject, side: Side, totals: &[&Totals], others: &[&Totals]| {
            let readings: Vec<Reading> =
                totals.iter().map(|totals| Reading::from(*totals)).collect();
            let seconds = totals.iter().map(|totals| totals.seconds).fold(0.0, f64::max);
            Line {
                subject,
                role: role(&outcome.sides, side, outcome.is_client),
                from: 0.0,
                to: seconds,
                gained: Reading::sum(&readings),
                coding: verbose.then(|| match side {
                    Side::Sender => coding_of(totals, others),
                    Side::Receiver => coding_of(others, totals),
                }),
                word: side.word(),
            }
            .text()
        };
        let pick =
            |streams: &'_ [Totals], place: usize| -> Option<Totals> { streams.get(place).cloned() };
        let pairs: Vec<(usize, Option<Totals>, Option<Totals>)> = places
            .iter()
            .map(|&place| (place, pick(&own.streams, place), pick(theirs, place)))
            .collect();
        for (place, near, far) in &pairs {
            let (near, far): (Vec<&Totals>, Vec<&Totals>) =
                (near.iter().collect(), far.iter().collect());
            lines.push(line(Subject::Stream(*place), side, &near, &far));
            if !far.is_empty() {
                lines.push(line(Subject::Stream(*place), side.other(), &far, &near));
            }
        }
        if places.len() > 1 {
            let near: Vec<&Totals> =
                pairs.iter().filter_map(|(_, near, _)| near.as_ref()).collect();
            let far: Vec<&Totals> = pairs.iter().filter_map(|(_, _, far)| far.as_ref()).collect();
            lines.push(line(Subject::Sum, side, &near, &far));
            if !far.is_empty() {
                lines.push(line(Subject::Sum, side.other(), &far, &near));
            }
        }
    }
    lines.extend(latency(outcome, remote));
    for (direction, sending) in sendings(outcome, remote) {
        if verbose {
            lines.push(sending.line(direction));
        }
        if let Some(note) = &sending.note {
            lines.push(format!("Note on the sender {direction}: {note}"));
        }
    }
    if verbose {
        let side = |is_local: bool, used: crate::processor::Utilization| {
            let kinds: Vec<&str> = kinds(&outcome.sides)
                .into_iter()
                .map(|side| if is_local { side.word() } else { side.other().word() })
                .collect();
            format!(
                "{}/{} {:.1}% ({:.1}%u/{:.1}%s)",
                if is_local { "local" } else { "remote" },
                kinds.join("+"),
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

/// How each direction was sent, as far as its sender has told.
pub(crate) fn sendings<'a>(
    outcome: &'a Outcome,
    remote: Option<&'a Summary>,
) -> Vec<(&'static str, &'a Sending)> {
    let (own, theirs) =
        (outcome.summary.sending.as_ref(), remote.and_then(|summary| summary.sending.as_ref()));
    let (forward, reverse) = if outcome.is_client { (own, theirs) } else { (theirs, own) };
    let named = [("forward", forward), ("reverse", reverse)].into_iter();
    named.filter_map(|(direction, sending)| Some((direction, sending?))).collect()
}

/// What was found of a direction: its name, one-way and round-trip times, and what has none.
type Found<'a> = (&'static str, Option<&'a Percentiles>, Option<&'a Percentiles>, Missing);

/// What was found of each direction.
pub(crate) fn directions<'a>(outcome: &'a Outcome, remote: Option<&'a Summary>) -> Vec<Found<'a>> {
    let own = &outcome.summary;
    kinds(&outcome.sides)
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

/// What has no time because it did not happen: without it the percentiles would be those of the lucky.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Missing {
    /// Messages that were due and could not be sent before the end.
    pub(crate) unsent: u64,
    /// Messages that were sent and did not arrive in time or at all.
    pub(crate) lost: u64,
    /// Messages that were to come back and did not.
    pub(crate) unanswered: u64,
}

/// Of the direction in which this side is `side`; of the other end as far as it has told.
pub(crate) fn missing(outcome: &Outcome, remote: Option<&Summary>, side: Side) -> Missing {
    let of = |streams: &[Totals], field: fn(&Totals) -> u64| {
        let places = places(&outcome.sides, side).into_iter();
        places
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
            "  {direction} without a time: {unsent} due and not sent, {lost} lost, {unanswered} not sent \
             back"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(subject: Subject, from: f64, to: f64, gained: Reading) -> String {
        Line { subject, role: None, from, to, gained, coding: None, word: "" }.text()
    }

    /// What scripts around the original look for.
    #[test]
    fn lines_keep_the_shape_that_is_read() {
        let gained = Reading {
            bytes: 100_000_000,
            messages: 1_526,
            jitter_ms: 0.0125,
            ..Reading::default()
        };
        assert_eq!(
            line(Subject::Stream(0), 1.0, 2.0, gained),
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
    fn several_streams_have_a_sum_and_both_sides_are_named() {
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
    fn both_directions_have_roles_and_sums_of_their_own() {
        let both = outcome([vec![Side::Sender; 2], vec![Side::Receiver; 2]].concat());
        let lines = summary(&both, None, false);
        assert_eq!(lines.len(), 6);
        assert!(lines[2].starts_with("[SUM][TX-C]") && lines[5].starts_with("[SUM][RX-C]"));
        assert!(header(&both.sides, false).contains("[Role]"));
    }

    #[test]
    fn a_hostile_summary_is_printed_as_it_is() {
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
    fn verbose_lines_have_as_many_columns_as_their_header() {
        /// Where each column ends; a unit stands a blank behind its figure.
        fn columns(line: &str) -> Vec<usize> {
            let bytes = line.as_bytes();
            let ends = |&place: &usize| {
                bytes[place] != b' ' && bytes.get(place + 1).is_none_or(|next| *next == b' ')
            };
            let has_unit = |end: usize| {
                [" ms", " MBytes"].iter().any(|unit| line[end + 1..].starts_with(unit))
            };
            (BESIDE..line.len()).filter(ends).filter(|&end| !has_unit(end)).collect()
        }
        let coding = Coding {
            loss: Some(5.0),
            residual: Some(0.25),
            redundancy: Some(7.5),
            waste: None,
            rtt_us: Some(20_500),
            cwnd: Some(123_450_000),
            expired: Some(42),
            repair_us: Some(1_500.0),
        };
        let gained = Reading { bytes: 100_000_000, messages: 1_526, ..Reading::default() };
        for sides in [vec![Side::Sender], vec![Side::Sender, Side::Receiver]] {
            let header = header(&sides, true);
            assert_eq!(columns(&header).len(), 8, "{header}");
            for coding in [coding, Coding::between(&[], &[])] {
                let role = role(&sides, sides[0], true);
                let (subject, word) = (Subject::Stream(0), "receiver");
                let line =
                    Line { subject, role, from: 0.0, to: 1.0, gained, coding: Some(coding), word };
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
