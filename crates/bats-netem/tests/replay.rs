//! Replays the corpus of the fuzz target of this crate, and runs seeded texts in addition.

use std::fs;
use std::path::Path;

use bats_netem::fuzzing::rate_trace_run;

#[test]
fn rate_trace() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/rate_trace");
    let mut inputs = 0;
    for entry in fs::read_dir(&directory).expect("a corpus") {
        let path = entry.expect("an entry").path();
        let data = fs::read(&path).expect("an input");
        let outcome = std::panic::catch_unwind(|| rate_trace_run(&data));
        assert!(outcome.is_ok(), "{} failed, see above", path.display());
        inputs += 1;
    }
    assert!(inputs >= 8, "{inputs} inputs");

    let mut opportunities = 0;
    for seed in 1..=5_000_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % below
        };
        let (mut text, mut at) = (Vec::new(), 0);
        for _ in 0..draw(60) {
            at += [0, 0, 1, draw(20), draw(100_000)][draw(5) as usize];
            text.extend_from_slice(at.to_string().as_bytes());
            match draw(40) {
                0 => text.push(draw(256) as u8),
                1 => text.extend_from_slice(b" \r\n\n"),
                _ => text.push(b'\n'),
            }
        }
        opportunities += rate_trace_run(&text);
    }
    assert!(opportunities > 10_000, "{opportunities} opportunities");
}
