//! Prints what the kernels and the stream code reach on this machine, beside memcpy:
//! `cargo run --release -p bats-code --example throughput`.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::hint::black_box;
use std::time::Instant;

use bats_code::kernel::Kernel;
use bats_code::row::Row;
use bats_code::stream::{Columns, DecoderLimits, StreamDecoder, StreamEncoder, Window};

const SIZE: usize = 1_408;

/// Median of some timed runs, in seconds a run.
fn median(mut run: impl FnMut()) -> f64 {
    run();
    let mut times: Vec<f64> = (0..9)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn row(seed: usize) -> Row {
    Row::from_slice(&(0..SIZE).map(|i| (i * 31 + seed * 17) as u8).collect::<Vec<_>>(), SIZE)
}

fn fused(kernel: Kernel, rows: usize) -> f64 {
    let store: Vec<Row> = (0..rows).map(row).collect();
    let mut out: Vec<Row> = (0..8).map(row).collect();
    let matrix: Vec<u8> = (0..8 * 16).map(|i| (i * 7 + 3) as u8).collect();
    const REPEATS: usize = 2_000;
    let seconds = median(|| {
        let mut outputs: Vec<&mut [u8]> = out.iter_mut().map(Row::octets_mut).collect();
        for repeat in 0..REPEATS {
            let start = repeat * 16 % (rows - 15);
            let inputs: [&[u8]; 16] = core::array::from_fn(|i| store[start + i].octets());
            kernel.product(&matrix, &inputs, &mut outputs, SIZE, false);
        }
        black_box(&outputs);
    });
    (REPEATS * 8 * 16 * SIZE) as f64 / seconds / 1e9
}

fn stream(kernel: Kernel, loss: usize) -> (f64, f64) {
    const W: usize = 256;
    let lost = W * loss / 100;
    let mut encoder = StreamEncoder::with_kernel(kernel, SIZE, 1);
    (0..W).for_each(|i| {
        encoder.push(row(i).content());
    });
    let window = Window { first: 0, count: W as u16 };
    let repairs_needed = W * loss / (100 - loss) + 1;
    let mut payloads = vec![vec![0; SIZE]; repairs_needed];
    let encode = median(|| {
        let mut outputs: Vec<&mut [u8]> = payloads.iter_mut().map(Vec::as_mut_slice).collect();
        for (batch, group) in outputs.chunks_mut(16).enumerate() {
            encoder.encode(window, batch as u32, 0, group).expect("symbols are held");
        }
    });
    let sources: Vec<Row> = (0..W).map(row).collect();
    let limits = DecoderLimits {
        max_symbol_size: SIZE,
        max_symbols: 4 * W as u64,
        max_equations: W,
        max_linked_unknowns: W,
    };
    let mut decoders: Vec<StreamDecoder> =
        (0..11).map(|_| StreamDecoder::with_kernel(kernel, limits, 1)).collect();
    // Every timed run starts with a decoder whose rows were allocated before.
    let decode = median(|| {
        let mut decoder = decoders.pop().expect("one decoder a run");
        for (number, source) in sources.iter().enumerate() {
            if number * lost / W == (number + 1) * lost / W {
                decoder.push_source(number as u64, source.content());
            }
        }
        for (index, payload) in payloads.iter().enumerate() {
            let columns = Columns::Single((index % 16) as u8);
            decoder.push_repair(window, (index / 16) as u32, columns, payload);
        }
        assert_eq!(decoder.first_missing(), W as u64);
        assert_eq!(decoder.symbol(9), Some(sources[9].content()));
    });
    let bytes = (W * SIZE) as f64 / 1e9;
    (bytes / encode, bytes / decode)
}

fn main() {
    let source = row(1);
    let mut target = row(2);
    let copy = median(|| {
        for _ in 0..100_000 {
            black_box(&mut target).octets_mut().copy_from_slice(black_box(&source).octets());
        }
    });
    println!("memcpy of one row in L1: {:.0} GB/s", 1e5 * SIZE as f64 / copy / 1e9);
    println!(
        "symbols of {SIZE} octets; product: GB/s of multiply-adds; stream: GB/s of source data"
    );
    println!(
        "{:12} {:>9} {:>9} {:>11} {:>11} {:>11} {:>11}",
        "kernel", "8x16 L1", "8x16 L2", "enc W=256", "dec W=256", "enc 30 %", "dec 30 %"
    );
    for kernel in Kernel::ALL.into_iter().filter(|kernel| kernel.is_supported()) {
        let (encode, decode) = stream(kernel, 10);
        let (encode30, decode30) = stream(kernel, 30);
        println!(
            "{:12} {:9.0} {:9.0} {:11.1} {:11.1} {:11.1} {:11.1}",
            kernel.name(),
            fused(kernel, 16),
            fused(kernel, 400),
            encode,
            decode,
            encode30,
            decode30
        );
    }
}
