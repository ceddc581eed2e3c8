//! Text that scripts for the original parse: a parser like theirs reads the server's log.

use std::fs;

use crate::support::{Scratch, Server, client, free_port, signal, text, wait_until};

/// Values of one line: bytes, bits per second, jitter in milliseconds, lost and total, per cent.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    bytes: f64,
    bits_per_second: f64,
    jitter_ms: f64,
    lost: u64,
    total: u64,
    percent: f64,
}

fn scaled(number: &str, unit: &str, base: &str) -> Option<f64> {
    let factor = match unit.strip_suffix(base)? {
        "" => 1.0,
        "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

/// Parses `NN KBytes|MBytes|GBytes  R K|M|Gbits/sec`, jitter and `lost/total (p%)`.
fn figures(line: &str) -> Option<Figures> {
    let after = line.split_once(" sec ")?.1.trim_start();
    // Exactly two blanks separate transfer and rate.
    let (transfer, after_transfer) = after.split_once("  ")?;
    let (bytes, bytes_unit) = transfer.split_once(' ')?;
    let mut words = after_transfer.split_whitespace();
    let mut next = || words.next();
    let (rate, rate_unit, jitter, ms) = (next()?, next()?, next()?, next()?);
    let (lost, total) = next()?.split_once('/')?;
    let percent = next()?.strip_prefix('(')?.strip_suffix("%)")?;
    (ms == "ms").then_some(())?;
    Some(Figures {
        bytes: scaled(bytes, bytes_unit, "Bytes")?,
        bits_per_second: scaled(rate, rate_unit, "bits/sec")?,
        jitter_ms: jitter.parse().ok()?,
        lost: lost.parse().ok()?,
        total: total.parse().ok()?,
        percent: percent.parse().ok()?,
    })
}

/// Intervals and `receiver` lines of a log, or why the run counts as failed.
fn parse(log: &str) -> Result<(Vec<Figures>, Vec<Figures>), String> {
    let mut zero_intervals = 0;
    let (mut intervals, mut receivers) = (Vec::new(), Vec::new());
    for line in log.lines() {
        zero_intervals =
            if line.contains("0.00 Bytes  0.00 bits/sec") { zero_intervals + 1 } else { 0 };
        if zero_intervals > 3 {
            return Err("no data for more than three intervals".into());
        }
        match figures(line) {
            Some(found) if line.contains("receiver") => receivers.push(found),
            Some(found) if !line.contains("sender") => intervals.push(found),
            _ => {}
        }
    }
    match receivers.is_empty() {
        true => Err("no receiver line".into()),
        false => Ok((intervals, receivers)),
    }
}

#[test]
fn a_parser_for_the_original_reads_the_log() {
    let scratch = Scratch::new("oasis");
    let port = free_port();
    let (log, directory) = (scratch.path("log"), scratch.path("in"));
    let server = Server::start(port, &["-I", "lo", "-l", &log, "-L", &directory]);
    let output =
        client(port, &["-m", "1", "-P", "2", "-i", "0.5", "-t", "2", "-b", "40", "-L", &directory]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    wait_until("the server's log has its end", || {
        fs::read_to_string(&log).is_ok_and(|log| log.matches("sender").count() == 3)
    });
    drop(server);
    let text = fs::read_to_string(&log).unwrap();
    let (intervals, receivers) = parse(&text).unwrap_or_else(|why| panic!("{why}: {text}"));
    // Two streams and their sum.
    assert_eq!(receivers.len(), 3, "{text}");
    assert!(intervals.len() >= 9, "{text}");
    let sum = receivers[2];
    assert!(sum.bytes > 15e6 && sum.bytes < 21e6, "{sum:?}");
    assert!(sum.bits_per_second > 50e6 && sum.bits_per_second < 82e6, "{sum:?}");
    assert_eq!((sum.lost, sum.percent), (0, 0.0));
    assert!(sum.total > 100 && sum.jitter_ms < 1_000.0, "{sum:?}");
    // Both sides wrote their protocol logs.
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
}

#[test]
fn the_parser_rejects_invalid_logs() {
    let line =
        |middle: &str| format!("[  1]  1.00-2.00 sec     {middle}   0.012 ms   1/4 (25.00%)\n");
    let good = line("1.50 MBytes  12.00 Mbits/sec");
    let found = figures(&good).unwrap();
    assert_eq!((found.bytes, found.bits_per_second), (1.5e6, 12e6));
    assert_eq!((found.jitter_ms, found.lost, found.total, found.percent), (0.012, 1, 4, 25.0));
    assert_eq!(figures(&line("1.50 MBytes 12.00 Mbits/sec")), None);
    assert_eq!(figures(&line("1.50 Bytes  12.00 furlongs")), None);
    let zero = line("0.00 Bytes  0.00 bits/sec");
    assert!(parse(&zero.repeat(4)).unwrap_err().contains("no data"));
    assert!(parse(&zero.repeat(3)).unwrap_err().contains("no receiver line"));
}

#[test]
fn the_log_file_contains_the_report_with_timestamps() {
    let scratch = Scratch::new("log");
    let port = free_port();
    let server = Server::start(port, &["-1", "-T", "-l", &scratch.path("new/log")]);
    assert!(client(port, &["-t", "0.3", "-b", "10"]).status.success());
    let (_, report) = server.finish();
    let log = fs::read_to_string(scratch.path("new/log")).unwrap();
    assert_eq!(log, report);
    let line = log.lines().find(|line| line.ends_with("receiver")).unwrap();
    // [HH:MM:SS mmm]  seconds.nanoseconds
    assert!(line.starts_with('[') && line[14..].starts_with("  "), "{line}");
    assert_eq!(line.as_bytes()[13], b']', "{line}");
}

#[test]
fn sighup_reopens_the_log() {
    let scratch = Scratch::new("rotate");
    let port = free_port();
    let log = scratch.path("log");
    let server = Server::start(port, &["-l", &log]);
    fs::rename(&log, scratch.path("log.1")).unwrap();
    signal("HUP", server.id());
    wait_until("the log is there again", || fs::metadata(&log).is_ok());
    assert!(client(port, &["-t", "0.3", "-b", "10"]).status.success());
    wait_until("the new log has the report", || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("receiver"))
    });
    assert!(!fs::read_to_string(scratch.path("log.1")).unwrap().contains("receiver"));
}
