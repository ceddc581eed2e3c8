//! Measures the throughput of kernels and of the stream code on one core, and of a copy for
//! comparison: `cargo run --release -p bats-code --example throughput [-- KERNEL...]`. 1 GB/s is
//! 10^9 bytes per second: of multiply-adds for a product, of source symbols for the code.
#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::hint::black_box;
use std::time::Instant;

use bats_code::kernel::{Kernel, Mode};
use bats_code::recode::{Recoder, unit_vector};
use bats_code::rows::{AlignedRow, RowPool};
use bats_code::stream::{Columns, DecoderConfig, StreamDecoder, StreamEncoder, Window};

const T: usize = 1408;
const WINDOW: u16 = 256;

/// Seconds per run in the fastest of many short rounds, because other load only slows a round down.
fn seconds(repeats: usize, mut run: impl FnMut()) -> f64 {
    run();
    (0..60)
        .map(|_| {
            let start = Instant::now();
            (0..repeats).for_each(|_| run());
            start.elapsed().as_secs_f64() / repeats as f64
        })
        .fold(f64::MAX, f64::min)
}

fn rows(count: usize) -> Vec<AlignedRow> {
    let mut pool = RowPool::new(T, 0);
    (0..count)
        .map(|i| pool.copy_of(&(0..T).map(|x| (x * 7 + i * 13) as u8).collect::<Vec<_>>()))
        .collect()
}

/// GB/s of products of 8 outputs and 16 inputs at a time, over `count` rows.
fn fused(kernel: Kernel, count: usize) -> f64 {
    let inputs = rows(count);
    let inputs: Vec<&[u8]> = inputs.iter().map(AlignedRow::padded).collect();
    let mut outputs = rows(8);
    let mut outputs: Vec<&mut [u8]> = outputs.iter_mut().map(AlignedRow::as_mut_slice).collect();
    let matrix: Vec<u8> = (0..128).map(|i| (i * 37 + 11) as u8).collect();
    let groups = count / 16;
    let time = seconds(500 / groups, || {
        for group in inputs.chunks_exact(16) {
            kernel.product(black_box(&matrix), group, &mut outputs, T, Mode::Overwrite);
        }
    });
    (groups * 128 * T) as f64 / time / 1e9
}

fn copy(count: usize) -> f64 {
    let inputs = rows(count);
    let mut output = rows(1);
    let time = seconds(5_000 / count, || {
        for input in &inputs {
            output[0].as_mut_slice().copy_from_slice(black_box(input.as_slice()));
            black_box(&mut output);
        }
    });
    (count * T) as f64 / time / 1e9
}

/// GB/s of encoding and of decoding, with repairs for a tenth of a window.
fn codec(kernel: Kernel) -> (f64, f64) {
    let count = usize::from(WINDOW);
    let lost = count.div_ceil(10);
    let mut encoder = StreamEncoder::with_kernel(T, 1, kernel);
    for row in rows(count) {
        encoder.push(row.as_slice()).expect("valid size");
    }
    let window = Window { first: 0, count: WINDOW };
    let mut repairs = vec![vec![0; T]; lost];
    let columns: Vec<(u32, u8)> = (0..lost as u32).map(|i| (i / 16, (i % 16) as u8)).collect();
    let encoding = seconds(10, || {
        let mut outputs: Vec<&mut [u8]> = repairs.iter_mut().map(Vec::as_mut_slice).collect();
        encoder.encode_columns(window, &columns, &mut outputs).expect("the window is held");
    });
    // Decoding: push the source symbols that were not lost, and the repairs, window by window.
    // Coefficients depend only on the position in the window, so that all windows use the same
    // repairs.
    let sources = rows(count);
    let mut decoder = StreamDecoder::with_kernel(DecoderConfig::new(T, 1), kernel);
    let mut first = 0;
    let decoding = seconds(10, || {
        for (i, row) in sources.iter().enumerate().filter(|(i, _)| i % 10 != 3) {
            decoder.push_source(first + i as u64, row.as_slice());
        }
        let window = Window { first, count: WINDOW };
        for (&(batch, column), repair) in columns.iter().zip(&repairs) {
            decoder.push_repair(window, Columns::Fresh { batch, column }, repair);
        }
        first += u64::from(WINDOW);
        assert_eq!(decoder.first_missing(), first);
        assert_eq!(decoder.symbol(first - 256 + 13), Some(sources[13].as_slice()));
        decoder.release_below(first);
    });
    let bytes = (count * T) as f64 / 1e9;
    (bytes / encoding, bytes / decoding)
}

/// Nanoseconds per source symbol received in order.
fn in_order(kernel: Kernel) -> f64 {
    let sources = rows(16);
    let mut decoder = StreamDecoder::with_kernel(DecoderConfig::new(T, 1), kernel);
    let mut number = 0;
    let time = seconds(250, || {
        for row in &sources {
            decoder.push_source(number, row.as_slice());
            number += 1;
            decoder.release_below(number);
        }
    });
    time / 16.0 * 1e9
}

/// Nanoseconds per recoded packet of a full batch.
fn recoding(kernel: Kernel) -> f64 {
    let mut recoder = Recoder::with_kernel(T, kernel);
    for (i, row) in rows(16).iter().enumerate() {
        recoder.push(&unit_vector(i).expect("the index is below 16"), row.as_slice());
    }
    let (mut vector, mut payload, mut draw) = ([0; 16], [0; T], 0);
    let time = seconds(250, || {
        draw += 1;
        recoder.recode_random(1, draw, &mut vector, &mut payload).expect("the rank is 16");
    });
    time * 1e9
}

fn main() {
    println!("active kernel: {}", Kernel::active().name());
    println!("memcpy GB/s: L1 {:.0}, L2 {:.0}", copy(16), copy(256));
    println!(
        "{:<12} {:>16} {:>16} {:>13} {:>13} {:>12} {:>10}",
        "kernel",
        "8x16 GB/s in L1",
        "8x16 GB/s in L2",
        "encode GB/s",
        "decode GB/s",
        "in order ns",
        "recode ns"
    );
    let names: Vec<String> = std::env::args().skip(1).collect();
    let chosen = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    for kernel in Kernel::available().filter(|kernel| chosen(kernel.name())) {
        let (encode, decode) = codec(kernel);
        println!(
            "{:<12} {:>16.1} {:>16.1} {:>13.2} {:>13.2} {:>12.0} {:>10.0}",
            kernel.name(),
            fused(kernel, 16),
            fused(kernel, 256),
            encode,
            decode,
            in_order(kernel),
            recoding(kernel)
        );
    }
}
