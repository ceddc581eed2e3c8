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

/// Octets that follow from a seed, with the small values and repetitions that parsers like.
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

macro_rules! target {
    ($name:ident, $run:path, $scripts:expr, $max_len:expr) => {
        #[test]
        fn $name() {
            each_input(stringify!($name), |data| drop($run(data)));
            seeded($scripts, $max_len, |data| drop($run(data)));
        }
    };
}

target!(wire, fuzzing::wire_run, 20_000, 200);
target!(token, fuzzing::token_run, 2_000, 120);
target!(session, fuzzing::session_run, 5_000, 800);
target!(network, fuzzing::network_run, 3_000, 2_400);
target!(forger, fuzzing::forger_run, 2_000, 1_200);
target!(lying_client, fuzzing::lying_client_run, 2_000, 1_200);
