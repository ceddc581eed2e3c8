//! A decoder in Python that is written from `docs/spec` alone reads captures of this implementation.

mod captures;
mod python;
mod rust_parser;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bats_proto::{Mode, PresharedKey};
use captures::{Case, Exchange, Topology};

/// A fresh directory for the files of a test.
fn directory(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance").join(name);
    let _old = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// What the decoder found of this kind, by sender: (length, SHA-256).
fn decoded<'a>(text: &'a str, wanted: &str) -> BTreeMap<&'a str, Vec<(usize, &'a str)>> {
    let mut messages: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for line in text.lines() {
        let [kind, _connection, sender, _number, length, hash] =
            line.split(' ').collect::<Vec<_>>()[..]
        else {
            panic!("{line}")
        };
        if kind != wanted {
            continue;
        }
        messages.entry(sender).or_default().push((length.parse().unwrap(), hash));
    }
    messages
}

/// What must occur in the capture of a case, so that the decoder proves something.
fn expected_features(case: &Case) -> Vec<&'static str> {
    let mut features = match case.mode {
        Mode::Brctp => vec!["block"],
        Mode::Transparent => vec!["source"],
        _ => vec!["source", "repair"],
    };
    match case.topology {
        Topology::Link => {}
        Topology::TwoRelays => features.push("recoded"),
        Topology::TwoPaths => features.push("two-links"),
    }
    if case.psk.is_some() {
        features.push("psk");
    }
    if case.key_update_packets < 1_000 {
        features.push("key-update");
    }
    features
}

fn check(name: &str, case: &Case) {
    let directory = directory(name);
    let Exchange { received_by_server, sent_by_server, channels } = captures::run(case, &directory);
    let (keys, capture) = (directory.join("keys.log"), directory.join("capture.pcapng"));
    let mut arguments = vec!["messages", "--keys", keys.to_str().unwrap()];
    for feature in expected_features(case) {
        arguments.extend(["--expect", feature]);
    }
    arguments.push(capture.to_str().unwrap());
    let text = python::decoder(&arguments);
    let found = decoded(&text, "channel");
    for sender in ["client", "server"] {
        let expected: Vec<_> = channels.iter().map(|(len, hash)| (*len, hash.as_str())).collect();
        let found = found.get(sender).cloned().unwrap_or_default();
        assert_eq!(found, expected, "{name}: channels of the {sender}");
    }
    let found = decoded(&text, "message");
    for (sender, mut expected) in [("client", received_by_server), ("server", sent_by_server)] {
        assert!(!expected.is_empty(), "{name}: the {sender}'s messages arrive");
        let mut found: Vec<_> = found.get(sender).into_iter().flatten().copied().collect();
        if !case.mode.is_reliable() {
            found.sort_unstable();
            expected.sort_unstable();
        }
        let expected: Vec<_> = expected.iter().map(|(len, hash)| (*len, hash.as_str())).collect();
        assert_eq!(found, expected, "{name}: {sender}");
    }
}

fn case(topology: Topology, mode: Mode) -> Case {
    Case { topology, mode, psk: None, key_update_packets: 1 << 22, has_channels: false }
}

fn check_modes(topology: Topology) {
    for mode in [Mode::Btp, Mode::Brtp, Mode::Brctp, Mode::Transparent] {
        check(&format!("{topology:?}-{mode:?}"), &case(topology, mode));
    }
}

#[test]
fn the_decoder_reads_every_mode_over_a_lossy_link() {
    check_modes(Topology::Link);
}

#[test]
fn the_decoder_reads_every_mode_across_two_relays_that_recode() {
    check_modes(Topology::TwoRelays);
}

#[test]
fn the_decoder_reads_every_mode_over_two_paths() {
    check_modes(Topology::TwoPaths);
}

#[test]
fn the_decoder_reads_channels() {
    for mode in [Mode::Brtp, Mode::Brctp] {
        for topology in [Topology::Link, Topology::TwoRelays, Topology::TwoPaths] {
            let case = Case { has_channels: true, ..case(topology, mode) };
            check(&format!("channels-{topology:?}-{mode:?}"), &case);
        }
    }
}

#[test]
fn the_decoder_follows_key_updates() {
    let case = Case { key_update_packets: 64, ..case(Topology::Link, Mode::Brtp) };
    check("key-updates", &case);
}

#[test]
fn the_decoder_reads_psk_mode() {
    let psk = Some(PresharedKey::new([7; PresharedKey::LEN]));
    check("psk", &Case { psk: psk.clone(), ..case(Topology::Link, Mode::Brtp) });
    check("psk-relays", &Case { psk, ..case(Topology::TwoRelays, Mode::Brtp) });
}

/// Both parsers find the same fields in each packet of random runs, in which everything occurs that
/// the swarm can cause.
#[test]
fn the_decoder_agrees_with_the_rust_parser_on_100000_packets_of_the_swarm() {
    const PACKETS: usize = 100_000;
    /// Packets of one seed, so that there are many seeds.
    const PER_SEED: u64 = 4_000;
    let directory = directory("swarm");
    let (mut expected, mut arguments) = (Vec::new(), vec!["packets".to_owned()]);
    let describe_seed = &|seed: u64| {
        let capture = directory.join(format!("{seed}.pcapng"));
        captures::run_swarm(seed, PER_SEED, &capture);
        (rust_parser::describe_capture(&capture), capture)
    };
    let mut seeds = 0..;
    while expected.len() < PACKETS {
        let round = std::thread::scope(|scope| {
            let runs: Vec<_> = seeds
                .by_ref()
                .take(8)
                .map(|seed| scope.spawn(move || describe_seed(seed)))
                .collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect::<Vec<_>>()
        });
        for (lines, capture) in round {
            expected.extend(lines);
            arguments.push(capture.to_str().unwrap().to_owned());
        }
    }
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let text = python::decoder(&arguments);
    let found: Vec<_> = text.lines().collect();
    for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found, expected, "packet {number}");
    }
    println!("{} packets", found.len());
    assert_eq!(found.len(), expected.len());
    for word in [
        "initial",
        "handshake",
        "source",
        "repair",
        "recoded-source",
        "recoded-repair",
        "relayed",
        "ack",
        "rank",
        "credit",
        "batch-rank",
        "fragment",
        "end",
        "close",
        "message",
        "datagram",
        "block",
        "path-challenge",
        "path-response",
        "handshake-done",
    ] {
        let count = expected.iter().filter(|line| line.split(' ').any(|w| w == word)).count();
        println!("{word}: {count}");
        assert!(count > 0, "no packet has {word}");
    }
}
