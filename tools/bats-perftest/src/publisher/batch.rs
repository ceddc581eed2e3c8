//! Builds samples and packs them into messages.

use std::hint::black_box;

use bytes::{Bytes, BytesMut};

use crate::clock::Clock;
use crate::wire::{HEADER, Header, NO_ECHO, next_sample};

/// Messages whose memory is allocated at once.
const MESSAGES_PER_ALLOCATION: usize = 16;
/// Most bytes to allocate at once.
const MAX_ALLOCATION: usize = 1 << 20;

/// The payloads of samples: consecutive pieces of some data, from the start again at its end.
#[derive(Clone, Debug)]
pub(super) struct Payload {
    /// The data, and its start again, so that every piece is contiguous.
    data: Vec<u8>,
    /// Length of the data without the repeated start.
    period: usize,
    length: usize,
    at: usize,
}

impl Payload {
    /// Payloads of `length` bytes from this data; if it is empty, a pattern.
    pub(super) fn new(data: &[u8], length: usize) -> Self {
        let pattern: [u8; 256] = std::array::from_fn(|byte| byte as u8);
        let source = if data.is_empty() { &pattern[..] } else { data };
        let period = source.len();
        let data: Vec<u8> = source.iter().copied().cycle().take(period + length).collect();
        Self { data, period, length, at: 0 }
    }

    fn next(&mut self) -> &[u8] {
        let at = self.at;
        self.at = (at + self.length) % self.period;
        &self.data[at..at + self.length]
    }
}

/// Collects samples for a message.
#[derive(Debug)]
pub(super) struct Batch {
    buffer: BytesMut,
    payload: Payload,
    message_length: usize,
    samples: usize,
}

impl Batch {
    pub(super) fn new(payload: Payload, samples: usize) -> Self {
        let message_length = (HEADER + payload.length) * samples;
        Self { buffer: BytesMut::new(), payload, message_length, samples: 0 }
    }

    /// Adds a sample; the length is set here.
    pub(super) fn push(&mut self, header: Header) {
        if self.samples == 0 {
            let allocation = self.message_length * MESSAGES_PER_ALLOCATION;
            if self.buffer.capacity() < self.message_length {
                self.buffer.reserve(allocation.min(MAX_ALLOCATION).max(self.message_length));
            }
        }
        let header = Header { length: self.payload.length as u32, ..header };
        self.buffer.extend_from_slice(&header.encode());
        self.buffer.extend_from_slice(self.payload.next());
        self.samples += 1;
    }

    pub(super) fn len(&self) -> usize {
        self.samples
    }

    /// Takes the message.
    pub(super) fn take(&mut self) -> Bytes {
        self.samples = 0;
        self.buffer.split().freeze()
    }
}

/// Number of samples that are built and parsed to measure the serialization time, if they are small.
const SERIALIZATION_SAMPLES: usize = 1_000;
/// Bytes to build, and to keep for the parser, at most; unless one sample is longer.
const MAX_BUILT: usize = 256 << 20;
const MAX_KEPT: usize = 16 << 20;

/// Numbers of samples of this length to build, and to keep.
fn serialization_samples(length: usize) -> (usize, usize) {
    let fitting = |bytes: usize| (bytes / length).max(1);
    let built = SERIALIZATION_SAMPLES.min(fitting(MAX_BUILT));
    (built, built.min(16).min(fitting(MAX_KEPT)))
}

/// Mean times in nanoseconds to build and to parse a sample.
pub(super) fn serialization_time(length: usize) -> (f64, f64) {
    let (samples, kept) = serialization_samples(length);
    let mut batch = Batch::new(Payload::new(&[], length - HEADER), 1);
    let mut messages = Vec::with_capacity(kept);
    let building = Clock::start();
    for sequence in 0..samples {
        batch.push(Header { sequence: sequence as u32, target: NO_ECHO, ..Header::default() });
        // Few are kept, so that the size of a sample does not matter.
        let message = batch.take();
        if sequence < kept {
            messages.push(message);
        } else {
            black_box(message);
        }
    }
    let building = building.elapsed();
    let parsing = Clock::start();
    for message in messages.iter().cycle().take(samples) {
        let mut message = &message[..];
        black_box(next_sample(black_box(&mut message)));
    }
    let per_sample = |ns: u128| ns as f64 / samples as f64;
    (per_sample(building.as_nanos()), per_sample(parsing.elapsed().as_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_serialization_of_long_samples_takes_bounded_memory_and_work() {
        assert_eq!(serialization_samples(28), (1_000, 16));
        for length in [100, 65_507, 1 << 20, 64 << 20] {
            let (built, kept) = serialization_samples(length);
            assert!(built * length <= MAX_BUILT && kept >= 1, "{length}");
            assert!(kept == 1 || kept * length <= MAX_KEPT, "{length}");
        }
        let (build, parse) = serialization_time(64 << 20);
        assert!(build > 0.0 && parse > 0.0);
    }

    #[test]
    fn payloads_continue_through_the_data_and_start_again() {
        let mut batch = Batch::new(Payload::new(b"abcdefg", 5), 3);
        for sequence in 0..3 {
            batch.push(Header { sequence, ..Header::default() });
        }
        let message = batch.take();
        let mut rest = &message[..];
        for (sequence, expected) in [b"abcde", b"fgabc", b"defga"].into_iter().enumerate() {
            let (header, payload) = next_sample(&mut rest).unwrap();
            assert_eq!((header.sequence, payload), (sequence as u32, &expected[..]));
        }
        assert!(rest.is_empty() && batch.len() == 0);
        // A payload that is longer than the data, and none at all.
        let mut long = Payload::new(b"xy", 5);
        assert_eq!(long.next(), b"xyxyx");
        assert_eq!(long.next(), b"yxyxy");
        assert_eq!(Payload::new(b"", 0).next(), b"");
    }
}
