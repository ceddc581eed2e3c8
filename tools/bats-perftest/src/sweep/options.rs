//! Command line of a sweep; it is spelled as that of a test is.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use openbats::Identity;

use crate::cli::spelling::{Given, Role, Spec, help, number, parse as parse_words};
use crate::cli::{MAX_BUSY_POLL, MAX_DATAGRAM, TRUST, send_queue};
use crate::wire::HEADER;

/// Sizes of the seed.
const LENGTHS: [usize; 9] = [64, 256, 512, 1_024, 4_096, 8_192, 16_384, 32_768, 63_000];
/// All transports.
const TRANSPORTS: [&str; 6] = ["brtp", "btp", "brctp", "tcp", "quic", "raw"];

const fn option(name: &'static str, value: Option<&'static str>, help: &'static str) -> Spec {
    Spec { name, value, role: Role::Both, help, refusal: None, is_new: false }
}

pub(crate) const OPTIONS: &[Spec] = &[
    option("busyPoll", Some("US"), "As in a test, for all transports, raw included."),
    option("dataLens", Some("LIST"), "Sizes. Default 64,256,512,1024,4096,8192,16384,32768,63000."),
    option("directory", Some("DIR"), "Where the tables and report.html go. Default perftest."),
    option("domain", Some("ID"), "Domain of the first run; each run takes the next. Default 0."),
    option("executionTime", Some("SECONDS"), "Time of each run. Default 30."),
    option("fingerprint", Some("HEX"), "As in a test, for -pub."),
    option("help", None, "Print this help."),
    option("knownHosts", Some("FILE"), "As in a test, for -pub."),
    option("nic", Some("NIC"), "Interface by name or address. Default with both sides: 127.0.0.1."),
    option("noKnownHosts", None, "As in a test, for -pub."),
    option("peer", Some("ADDRESS"), "The host of the other side. For -pub or -sub."),
    option("pub", None, "Run only the publishers; the subscribers run on another host."),
    option("repeat", Some("COUNT"), "Rounds; figures are medians of all rounds. Default 1."),
    option("sendQueueSize", Some("COUNT"), "As in a test: more for long paths."),
    option("sub", None, "Run only the subscribers."),
    option("transports", Some("LIST"), "Default brtp,btp,brctp,tcp,quic,raw."),
];

/// Which programs of a test run here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Both,
    Publisher,
    Subscriber,
}

#[derive(Clone, Debug)]
pub(super) struct SweepOptions {
    pub(super) seconds: u64,
    pub(super) lengths: Vec<usize>,
    pub(super) transports: Vec<String>,
    pub(super) directory: PathBuf,
    pub(super) domain: u32,
    pub(super) nic: Option<String>,
    pub(super) peer: Option<String>,
    pub(super) send_queue: Option<String>,
    pub(super) busy_poll: Option<String>,
    /// Options of the publishers, except over raw UDP.
    pub(super) trust: Vec<String>,
    pub(super) rounds: u32,
    pub(super) side: Side,
}

/// Parses a command line. `None`: the help was printed.
pub(super) fn parse(words: &[String]) -> Result<Option<SweepOptions>> {
    let given = parse_words(OPTIONS, words)?;
    if given.has("help") {
        let text = format!(
            "Measures throughput and latency of all sizes over several transports, and writes the \
             tables and a report.\n\nUsage: bats_perftest sweep [OPTIONS]\n\nOptions:\n{}",
            help(OPTIONS)
        );
        std::io::stdout().write_all(text.as_bytes()).context("cannot write")?;
        return Ok(None);
    }
    check(&given).map(Some)
}

/// The options by which publishers recognize subscribers. If both run here, they have one identity.
fn trust(given: &Given, side: Side) -> Result<Vec<String>> {
    let mut words = Vec::new();
    for name in TRUST {
        ensure!(!given.has(name) || side == Side::Publisher, "-{name} goes with -pub");
        for value in given.values(name) {
            words.push(format!("-{name}"));
            words.extend(Some(value.to_owned()).filter(|value| !value.is_empty()));
        }
    }
    if side == Side::Both {
        words.extend(match Identity::of_user(&["localhost"])? {
            (identity, None) => vec!["-fingerprint".into(), identity.fingerprint().to_string()],
            // Each subscriber makes an identity of its own.
            (_, Some(_)) => vec!["-noKnownHosts".into()],
        });
    }
    Ok(words)
}

fn check(given: &Given) -> Result<SweepOptions> {
    let side = match (given.has("pub"), given.has("sub")) {
        (false, false) => Side::Both,
        (true, false) => Side::Publisher,
        (false, true) => Side::Subscriber,
        (true, true) => bail!("-pub and -sub exclude each other: without them both run here"),
    };
    let peer = given.value("peer").map(str::to_owned);
    ensure!(peer.is_some() == (side != Side::Both), "-peer goes with -pub or -sub");
    let lengths = match given.value("dataLens") {
        None => LENGTHS.to_vec(),
        Some(list) => list
            .split(',')
            .map(|length| number("dataLens", length.trim(), HEADER as u64, 64 << 20))
            .map(|length| Ok(length? as usize))
            .collect::<Result<_>>()?,
    };
    let transports: Vec<String> = match given.value("transports") {
        None => TRANSPORTS.map(str::to_owned).to_vec(),
        Some(list) => list.split(',').map(|name| name.trim().to_ascii_lowercase()).collect(),
    };
    for name in &transports {
        ensure!(
            TRANSPORTS.contains(&name.as_str()),
            "-transports {name} is unknown: {}",
            TRANSPORTS.join(", ")
        );
    }
    if let Some(length) = lengths.iter().find(|&&length| length as u64 > MAX_DATAGRAM) {
        ensure!(
            !transports.iter().any(|name| name == "raw"),
            "-dataLens {length}: a raw sample is one datagram, of at most {MAX_DATAGRAM} bytes; use \
             -transports without raw"
        );
    }
    // Checked here, not by each run.
    send_queue(given)?;
    given.number("busyPoll", 0, MAX_BUSY_POLL)?;
    let trust = trust(given, side)?;
    let nic = given.value("nic").map(str::to_owned);
    Ok(SweepOptions {
        seconds: given.number("executionTime", 1, 86_400)?.unwrap_or(30),
        lengths,
        transports,
        directory: given.value("directory").unwrap_or("perftest").into(),
        domain: given.number("domain", 0, 231)?.unwrap_or(0) as u32,
        nic: nic.or_else(|| (side == Side::Both).then(|| "127.0.0.1".to_owned())),
        peer,
        send_queue: given.value("sendQueueSize").map(str::to_owned),
        busy_poll: given.value("busyPoll").map(str::to_owned),
        trust,
        rounds: given.number("repeat", 1, 1_000)?.unwrap_or(1) as u32,
        side,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str, words: &str) {
        let given: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let text = parse(&given).unwrap_err().to_string();
        assert!(text.contains(words), "{line}: {text}");
    }

    #[test]
    fn what_a_run_would_refuse_is_refused_at_the_start() {
        refused("-dataLens 64,65508", "at most 65507");
        refused("-dataLens 27", "out of range");
        refused("-sendQueueSize x", "-sendQueueSize");
        refused("-sendQueueSize 0", "out of range");
        refused("-busyPoll 1000001", "out of range");
        let words = ["-pub", "-peer", "h", "-dataLens", "65508", "-transports", "brtp"];
        let words = words.map(str::to_owned);
        let options = parse(&words).unwrap().unwrap();
        assert_eq!(options.lengths, [65_508]);
    }

    #[test]
    fn the_default_is_the_sweep_of_the_original() {
        let words = ["-pub", "-peer", "h"].map(str::to_owned);
        let options = parse(&words).unwrap().unwrap();
        assert_eq!(options.lengths, [64, 256, 512, 1_024, 4_096, 8_192, 16_384, 32_768, 63_000]);
        assert_eq!(options.transports, ["brtp", "btp", "brctp", "tcp", "quic", "raw"]);
        assert_eq!((options.seconds, options.rounds), (30, 1));
    }
}
