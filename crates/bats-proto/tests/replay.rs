//! Replays the corpora of the fuzz targets of this crate, and runs seeded scripts in addition.

use std::fs;
use std::path::Path;

use bats_proto::fuzzing;

fn each_input(name: &str, mut run: impl FnMut(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name);
    let entries = fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("corpus {}: {error}", directory.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("entry").path()).collect();
    assert!(!paths.is_empty(), "no inputs in {}", directory.display());
    paths.sort();
    for path in paths {
        let data = fs::read(&path).expect("input");
        // The file name identifies a failing input.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&data)));
        assert!(outcome.is_ok(), "{} failed, see above", path.display());
    }
}

/// Bytes derived from a seed, with many small values and repetitions, which parsers accept more
/// often.
fn script(seed: u64, max_len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    };
    let len = draw() as usize % max_len;
    let narrow = draw() % 3 == 0;
    (0..len).map(|_| if narrow && draw() % 2 == 0 { draw() % 10 } else { draw() } as u8).collect()
}

fn seeded(scripts: u64, max_len: usize, mut run: impl FnMut(&[u8])) {
    for seed in 1..=scripts {
        let data = script(seed, max_len);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&data)));
        assert!(outcome.is_ok(), "seed {seed} failed, see above");
    }
}

#[test]
fn wire() {
    each_input("wire", fuzzing::wire_run);
    seeded(20_000, 200, fuzzing::wire_run);
}

#[test]
fn token() {
    each_input("token", fuzzing::token_run);
    seeded(2_000, 120, fuzzing::token_run);
}

#[test]
fn session() {
    each_input("session", fuzzing::session_run);
    seeded(5_000, 800, fuzzing::session_run);
}

#[test]
fn channels() {
    let (mut read, mut accepted) = (0, 0);
    let mut run = |data: &[u8]| {
        let report = fuzzing::channels_run(data);
        read += report.read;
        accepted += report.accepted;
    };
    each_input("channels", &mut run);
    seeded(5_000, 1_200, &mut run);
    assert!(read > 1_000_000 && accepted > 100, "{read} bytes, {accepted} symbols");
}

#[test]
fn network() {
    let (mut delivered, mut survived) = (0, 0);
    let mut run = |data: &[u8]| {
        let report = fuzzing::network_run(data);
        delivered += report.delivered;
        survived += usize::from(report.survived);
    };
    each_input("network", &mut run);
    seeded(3_000, 2_400, &mut run);
    assert!(delivered > 3_000 && survived > 1_000, "{delivered} messages, {survived} runs");
}

#[test]
fn forger() {
    let mut accepted = 0;
    let mut run = |data: &[u8]| accepted += fuzzing::forger_run(data).accepted;
    each_input("forger", &mut run);
    seeded(4_000, 1_200, &mut run);
    assert!(accepted > 1_000, "{accepted} forged packets were accepted");
}

#[test]
fn misbehaving_client() {
    let mut accepted = 0;
    let mut run = |data: &[u8]| accepted += fuzzing::misbehaving_client_run(data).accepted;
    each_input("misbehaving_client", &mut run);
    seeded(4_000, 1_200, &mut run);
    assert!(accepted > 1_000, "{accepted} false packets were accepted");
}

#[test]
fn acknowledgements() {
    // Most of these end early, with a violation.
    let mut violations = 0;
    let mut run =
        |data: &[u8]| violations += u64::from(fuzzing::acknowledgements_run(data).violation);
    each_input("acknowledgements", &mut run);
    seeded(3_000, 1_500, &mut run);
    assert!(violations > 1_000, "{violations} violations");
    // The operation of the misbehaving peer is the tenth.
    let (mut accepted, mut acknowledged) = (0, 0);
    seeded(500, 1_500, |data| {
        let honest: Vec<u8> = data.iter().map(|byte| byte - u8::from(byte % 10 == 9)).collect();
        let report = fuzzing::acknowledgements_run(&honest);
        assert!(!report.violation, "all acknowledgements are honest");
        accepted += report.accepted;
        acknowledged += report.acknowledged;
    });
    assert!(
        accepted > 10_000 && acknowledged > 5_000,
        "{accepted} accepted, {acknowledged} acknowledged"
    );
}

#[test]
fn relay() {
    let (mut sent, mut recoded, mut delivered) = (0, 0, 0);
    let mut run = |data: &[u8]| {
        let report = fuzzing::relay_run(data);
        sent += report.sent;
        recoded += report.recoded;
        delivered += report.delivered;
    };
    each_input("relay", &mut run);
    seeded(1_500, 2_000, &mut run);
    assert!(
        sent > 4_000 && recoded > 1_000 && delivered > 1_500,
        "{sent} sent, {recoded} recoded, {delivered} delivered"
    );
}

#[test]
fn stream() {
    let (mut delivered, mut survived, mut by_tls) = (0, 0, 0);
    let mut run = |data: &[u8]| {
        let report = fuzzing::stream_run(data);
        delivered += report.delivered;
        survived += usize::from(report.survived);
        by_tls += report.delivered_by_tls;
    };
    each_input("stream", &mut run);
    seeded(400, 800, &mut run);
    assert!(delivered > 2_000 && survived > 3, "{delivered} messages, {survived} runs");
    assert!(by_tls > 2_000, "{by_tls} messages inside TLS");
}
