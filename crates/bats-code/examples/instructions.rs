//! A fixed workload for an instruction counter: `instructions WORK ROUNDS`. `.ci/instructions` runs
//! it under callgrind with two numbers of rounds and takes the difference.
#![allow(clippy::disallowed_macros, reason = "a program for the command line")]

use std::hint::black_box;
use std::process::ExitCode;

use bats_code::adaptive::{HopLoss, RecodingPlan};
use bats_code::kernel::{Kernel, Mode};
use bats_code::recode::{Recoder, unit_vector};
use bats_code::rfc::{
    BatchCache, Decoder, DegreeDistribution, Encoder, Field, InnerCode, Limits, OuterCode, Progress,
};
use bats_code::stream::{Columns, DecoderConfig, StreamDecoder, StreamEncoder, Window};

const T: usize = 1408;
const WINDOW: u16 = 64;

fn symbol(index: usize) -> Vec<u8> {
    (0..T).map(|x| (x * 7 + index * 13) as u8).collect()
}

/// K of a block with a precode and sparse batches, which exercises every part of the decoder.
const RFC_K: usize = 200;
const RFC_T: usize = 704;

/// An encoder for that block with M = 16, and the length of its coded packets.
fn rfc_encoder() -> Option<(Encoder, usize)> {
    let inner = InnerCode::new(16, Field::Byte).ok()?;
    let degrees = DegreeDistribution::recommended(inner, RFC_K as u32, true);
    let code = OuterCode::new(RFC_K as u32, inner, degrees).ok()?.with_precode();
    let data: Vec<u8> = (0..RFC_K * RFC_T - 1).map(|x| (x * 7 + x / 1000) as u8).collect();
    let encoder = Encoder::new(BatchCache::new(code, 1 << 24), &data, RFC_T).ok()?;
    let len = encoder.coded_packet_len();
    Some((encoder, len))
}

/// The workload of one round.
fn work(name: &str) -> Option<Box<dyn FnMut()>> {
    let symbols: Vec<Vec<u8>> = (0..usize::from(WINDOW)).map(symbol).collect();
    let mut encoder = StreamEncoder::new(T, 1);
    for symbol in &symbols {
        encoder.push(symbol).ok()?;
    }
    let window = Window { first: 0, count: WINDOW };
    let mut repairs = vec![vec![0; T]; 7];
    let mut outputs: Vec<&mut [u8]> = repairs.iter_mut().map(Vec::as_mut_slice).collect();
    encoder.encode(window, 0, 0, &mut outputs).ok()?;
    Some(match name {
        "product" | "product-gf2" => {
            let matrix: Vec<u8> = (0..8 * 16).map(|i| (i * 37 + 11) as u8).collect();
            let mut outputs = vec![vec![0; T]; 8];
            let binary = name == "product-gf2";
            Box::new(move || {
                let rows: Vec<&[u8]> = symbols[..16].iter().map(Vec::as_slice).collect();
                let mut slices: Vec<&mut [u8]> =
                    outputs.iter_mut().map(Vec::as_mut_slice).collect();
                let matrix = black_box(&matrix);
                let kernel = Kernel::active();
                if binary {
                    kernel.product_gf2(matrix, &rows, &mut slices, T, Mode::Overwrite);
                } else {
                    kernel.product(matrix, &rows, &mut slices, T, Mode::Overwrite);
                }
            })
        }
        "encode" => Box::new(move || {
            let mut outputs: Vec<&mut [u8]> = repairs.iter_mut().map(Vec::as_mut_slice).collect();
            encoder.encode(window, 0, 0, &mut outputs).expect("the window is held");
        }),
        "decode" => {
            let mut decoder = StreamDecoder::new(DecoderConfig::new(T, 1));
            let mut first = 0;
            Box::new(move || {
                for (i, symbol) in symbols.iter().enumerate().filter(|(i, _)| i % 10 != 3) {
                    decoder.push_source(first + i as u64, symbol);
                }
                let window = Window { first, count: WINDOW };
                for (column, repair) in (0..).zip(&repairs) {
                    decoder.push_repair(window, Columns::Fresh { batch: 0, column }, repair);
                }
                first += u64::from(WINDOW);
                assert_eq!(decoder.first_missing(), first);
                decoder.release_below(first);
            })
        }
        "recode" => {
            let mut recoder = Recoder::new(T);
            for (index, symbol) in symbols.iter().enumerate().take(16) {
                recoder.push(&unit_vector(index)?, symbol);
            }
            let (mut vector, mut payload, mut draw) = ([0; 16], vec![0; T], 0);
            Box::new(move || {
                draw += 1;
                recoder.recode_random(1, draw, &mut vector, &mut payload).expect("the rank is 16");
            })
        }
        "rfc-encode" => {
            let (mut encoder, len) = rfc_encoder()?;
            let mut packets = vec![0; 16 * len];
            Box::new(move || {
                let mut outputs: Vec<&mut [u8]> = packets.chunks_exact_mut(len).collect();
                for batch_id in 0..4 {
                    encoder.encode(batch_id, 0, &mut outputs).expect("valid sizes");
                }
            })
        }
        "rfc-decode" => {
            let (mut encoder, len) = rfc_encoder()?;
            let mut packets = vec![0; 20 * 16 * len];
            for (batch_id, batch) in (0..).zip(packets.chunks_exact_mut(16 * len)) {
                let mut outputs: Vec<&mut [u8]> = batch.chunks_exact_mut(len).collect();
                encoder.encode(batch_id, 0, &mut outputs).ok()?;
            }
            let mut cache = Some(encoder.into_cache());
            Box::new(move || {
                let cached = cache.take().expect("the cache was returned");
                let limits = Limits::for_code(cached.code(), RFC_T);
                let mut decoder = Decoder::new(cached, RFC_T, limits).expect("within limits");
                let all = packets.chunks_exact(len).enumerate();
                for (number, packet) in all.filter(|(number, _)| number % 10 != 3) {
                    decoder.push(number as u32 / 16, packet).expect("within limits");
                    if decoder.decode().expect("within limits") == Progress::Complete {
                        break;
                    }
                }
                assert_eq!(decoder.block_len(), Ok(RFC_K * RFC_T - 1));
                cache = Some(decoder.into_cache());
            })
        }
        "plan" => {
            let ranks: Vec<f64> = (0..17).map(|rank| f64::from(rank * rank)).collect();
            let loss = HopLoss::independent(0.2).ok()?;
            Box::new(move || {
                black_box(RecodingPlan::adaptive(black_box(&ranks), loss, 17.5))
                    .expect("valid arguments");
            })
        }
        _ => return None,
    })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parsed = match &arguments[..] {
        [name, rounds] => work(name).zip(rounds.parse().ok()),
        _ => None,
    };
    let Some((mut round, rounds)) = parsed else {
        eprintln!(
            "usage: instructions \
             product|product-gf2|encode|decode|recode|rfc-encode|rfc-decode|plan ROUNDS"
        );
        return ExitCode::FAILURE;
    };
    if let Err(error) = Kernel::from_environment() {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    (0..rounds).for_each(|_: u32| round());
    ExitCode::SUCCESS
}
