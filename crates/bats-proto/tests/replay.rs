//! Replays the inputs of the fuzz targets that this crate keeps, and runs seeded scripts besides.

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
        // The name is what a failure is found by.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&data)));
        assert!(outcome.is_ok(), "{} failed, see above", path.display());
    }
}

/// Bytes that follow from a seed, with the small values and repetitions that parsers like.
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
    let mut believed = 0;
    let mut run = |data: &[u8]| believed += fuzzing::forger_run(data).believed;
    each_input("forger", &mut run);
    seeded(4_000, 1_200, &mut run);
    assert!(believed > 1_000, "{believed} forged packets were taken for real");
}

#[test]
fn lying_client() {
    let mut believed = 0;
    let mut run = |data: &[u8]| believed += fuzzing::lying_client_run(data).believed;
    each_input("lying_client", &mut run);
    seeded(4_000, 1_200, &mut run);
    assert!(believed > 1_000, "{believed} lies were taken for real");
}

#[test]
fn relay() {
    let (mut sent, mut combined, mut delivered) = (0, 0, 0);
    let mut run = |data: &[u8]| {
        let report = fuzzing::relay_run(data);
        sent += report.sent;
        combined += report.combined;
        delivered += report.delivered;
    };
    each_input("relay", &mut run);
    seeded(1_500, 2_000, &mut run);
    assert!(
        sent > 4_000 && combined > 1_000 && delivered > 1_500,
        "{sent} sent, {combined} combined, {delivered} delivered"
    );
}

#[test]
fn stream() {
    let (mut delivered, mut survived) = (0, 0);
    let mut run = |data: &[u8]| {
        let report = fuzzing::stream_run(data);
        delivered += report.delivered;
        survived += usize::from(report.survived);
    };
    each_input("stream", &mut run);
    seeded(400, 800, &mut run);
    assert!(delivered > 2_000 && survived > 3, "{delivered} messages, {survived} runs");
}
