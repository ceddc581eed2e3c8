//! Replays the corpus of a fuzz target whose inputs are text or short messages, and mutations of it. Each replay test
//! of such a target includes this file.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Numbers at and beyond the limits of types, and values that are none.
const EXTREMES: [&str; 18] = [
    "0",
    "-1",
    "1",
    "255",
    "256",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "1e999",
    "-0.0",
    ".inf",
    "nan",
    "0.0000000001",
];

/// Inputs of a corpus, and a generator of their mutations.
struct Mutation {
    inputs: Vec<Vec<u8>>,
    tokens: &'static [&'static str],
    state: u64,
}

/// Runs each input of the corpus `name` in `tests/corpus`, and then `count` mutations of at most `max_len` bytes.
/// `tokens` are words of the grammar. Returns the number of inputs that were run.
pub(crate) fn replay(
    name: &str,
    tokens: &'static [&'static str],
    count: u64,
    max_len: usize,
    mut run: impl FnMut(&[u8]),
) -> u64 {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name);
    let mut paths: Vec<_> = fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("corpus {}: {error}", directory.display()))
        .map(|entry| entry.expect("entry").path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 8, "{} inputs in {}", paths.len(), directory.display());
    let mut mutation = Mutation { inputs: Vec::new(), tokens, state: 0 };
    for path in paths {
        let data = fs::read(&path).expect("input");
        // The file name identifies a failing input.
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&data)));
        assert!(outcome.is_ok(), "{} failed, see above", path.display());
        mutation.inputs.push(data);
    }
    for seed in 1..=count {
        let mut data = mutation.input(seed);
        data.truncate(max_len);
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&data)));
        let text = String::from_utf8_lossy(&data);
        assert!(outcome.is_ok(), "seed {seed} failed, see above; the input is\n{text}");
    }
    mutation.inputs.len() as u64 + count
}

impl Mutation {
    fn draw(&mut self, below: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as usize % below.max(1)
    }

    /// An input of the corpus with one to four changes.
    fn input(&mut self, seed: u64) -> Vec<u8> {
        self.state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let at = self.draw(self.inputs.len());
        let mut data = self.inputs[at].clone();
        // Half of them have one change, so that much of the input stays valid.
        let changes = if self.draw(2) == 0 { 1 } else { 1 + self.draw(4) };
        for _ in 0..changes {
            match self.draw(8) {
                0..3 => self.change_lines(&mut data),
                3..5 => self.replace_number(&mut data),
                5 => self.insert_token(&mut data),
                6 => self.change_byte(&mut data),
                _ => self.splice(&mut data),
            }
        }
        data
    }

    /// Deletes, doubles or exchanges lines.
    fn change_lines(&mut self, data: &mut Vec<u8>) {
        let mut lines: Vec<Vec<u8>> =
            data.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
        if lines.is_empty() {
            return;
        }
        let (one, other) = (self.draw(lines.len()), self.draw(lines.len()));
        match self.draw(4) {
            0 => drop(lines.remove(one)),
            1 => lines.insert(other, lines[one].clone()),
            2 => lines.swap(one, other),
            _ => lines.truncate(one),
        }
        *data = lines.concat();
    }

    /// Replaces a number by an extreme one, or by another one.
    fn replace_number(&mut self, data: &mut Vec<u8>) {
        let is_start =
            |&at: &usize| data[at].is_ascii_digit() && (at == 0 || !data[at - 1].is_ascii_digit());
        let starts: Vec<usize> = (0..data.len()).filter(is_start).collect();
        if starts.is_empty() {
            return;
        }
        let from = starts[self.draw(starts.len())];
        let length = data[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = match self.draw(3) {
            0 => self.draw(300).to_string(),
            _ => EXTREMES[self.draw(EXTREMES.len())].to_owned(),
        };
        data.splice(from..from + length, number.into_bytes());
    }

    fn insert_token(&mut self, data: &mut Vec<u8>) {
        let (at, token) = (self.draw(data.len() + 1), self.draw(self.tokens.len()));
        data.splice(at..at, self.tokens[token].bytes());
    }

    /// Deletes, doubles, exchanges or overwrites a byte.
    fn change_byte(&mut self, data: &mut Vec<u8>) {
        if data.is_empty() {
            return;
        }
        let (one, other) = (self.draw(data.len()), self.draw(data.len()));
        match self.draw(4) {
            0 => drop(data.remove(one)),
            1 => data.insert(one, data[one]),
            2 => data.swap(one, other),
            _ => data[one] = self.draw(256) as u8,
        }
    }

    /// Continues with a part of another input.
    fn splice(&mut self, data: &mut Vec<u8>) {
        let other = self.draw(self.inputs.len());
        let (at, from) = (self.draw(data.len() + 1), self.draw(self.inputs[other].len() + 1));
        data.truncate(at);
        data.extend_from_slice(&self.inputs[other][from..]);
    }
}
