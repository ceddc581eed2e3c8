//! The report as text. Its shapes are those that scripts around the original read.

use crate::control::Totals;
use crate::meter::Reading;
use crate::units;

/// Which end of the streams a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Sender,
    Receiver,
}

impl Side {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        }
    }

    pub(crate) fn other(self) -> Self {
        match self {
            Self::Sender => Self::Receiver,
            Self::Receiver => Self::Sender,
        }
    }
}

/// What a line is about: a stream by its number, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Stream(usize),
    Sum,
}

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
    let version = format!("bats_iperf {} (OpenBATS)", env!("CARGO_PKG_VERSION"));
    [system, version, rule()]
}

pub(crate) fn rule() -> String {
    "-".repeat(60)
}

pub(crate) fn header(side: Side) -> String {
    let moved = match side {
        Side::Sender => "Transfer",
        Side::Receiver => "Received",
    };
    format!(
        "[ ID]  {:<17} {moved:<14} {:<18} {:<10} Lost/Total Datagrams",
        "Interval", "Bitrate", "Jitter"
    )
}

/// One line of figures between two times in seconds.
pub(crate) fn line(subject: Subject, from: f64, to: f64, gained: Reading) -> String {
    let subject = match subject {
        Subject::Stream(index) => format!("{:>3}", index + 1),
        Subject::Sum => "SUM".into(),
    };
    let rate = gained.bytes as f64 * 8.0 / (to - from).max(1e-9);
    let total = gained.messages + gained.lost;
    let share = if total == 0 { 0.0 } else { 100.0 * gained.lost as f64 / total as f64 };
    let times = format!("{from:.2}-{to:.2} sec");
    format!(
        "[{subject}]  {times:<17} {:<14} {:<18} {:<10} {}/{total} ({share:.2}%)",
        units::bytes(gained.bytes),
        units::rate(rate),
        format!("{:.3} ms", gained.jitter_ms),
        gained.lost,
    )
}

/// The sum of streams; its jitter is the streams' mean.
pub(crate) fn sum(readings: &[Reading]) -> Reading {
    let count = readings.len().max(1) as f64;
    Reading {
        bytes: readings.iter().map(|reading| reading.bytes).sum(),
        messages: readings.iter().map(|reading| reading.messages).sum(),
        lost: readings.iter().map(|reading| reading.lost).sum(),
        jitter_ms: readings.iter().map(|reading| reading.jitter_ms).sum::<f64>() / count,
    }
}

pub(crate) fn reading(totals: &Totals) -> Reading {
    Reading {
        bytes: totals.bytes,
        messages: totals.messages,
        lost: totals.lost,
        jitter_ms: totals.jitter_ms,
    }
}

/// The last lines about one side: one for each stream, and a sum where there are several.
pub(crate) fn summary(side: Side, streams: &[Totals]) -> Vec<String> {
    let word = side.word();
    let mut lines: Vec<String> = streams
        .iter()
        .enumerate()
        .map(|(index, totals)| {
            let figures = line(Subject::Stream(index), 0.0, totals.seconds, reading(totals));
            format!("{figures}  {word}")
        })
        .collect();
    if streams.len() > 1 {
        let readings: Vec<Reading> = streams.iter().map(reading).collect();
        let seconds = streams.iter().map(|totals| totals.seconds).fold(0.0, f64::max);
        lines.push(format!("{}  {word}", line(Subject::Sum, 0.0, seconds, sum(&readings))));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What scripts around the original look for.
    #[test]
    fn lines_keep_the_shape_that_is_read() {
        let gained = Reading { bytes: 100_000_000, messages: 1_526, lost: 0, jitter_ms: 0.0125 };
        assert_eq!(
            line(Subject::Stream(0), 1.0, 2.0, gained),
            "[  1]  1.00-2.00 sec     100.00 MBytes  800.00 Mbits/sec   0.013 ms   0/1526 (0.00%)"
        );
        let nothing = line(Subject::Stream(11), 1.0, 2.0, Reading::default());
        assert!(nothing.starts_with("[ 12]  1.00-2.00 sec     0.00 Bytes     0.00 bits/sec"));
        let lossy = Reading { lost: 25, messages: 75, ..Reading::default() };
        assert!(line(Subject::Sum, 0.0, 1.0, lossy).ends_with("25/100 (25.00%)"));
    }

    #[test]
    fn several_streams_have_a_sum_and_the_side_is_named() {
        let totals = Totals { seconds: 2.0, bytes: 1_000_000, messages: 10, ..Totals::default() };
        let one = summary(Side::Receiver, std::slice::from_ref(&totals));
        assert_eq!(one.len(), 1);
        assert!(one[0].contains("4.00 Mbits/sec") && one[0].ends_with("receiver"), "{one:?}");
        let two = summary(Side::Sender, &[totals.clone(), totals]);
        assert_eq!(two.len(), 3);
        assert!(two[2].starts_with("[SUM]") && two[2].contains("8.00 Mbits/sec"), "{two:?}");
    }
}
