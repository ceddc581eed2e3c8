//! Measures the throughput of the RFC 9426 code on one core:
//! `cargo run --release -p bats-code --example rfc_throughput [-- ROUNDS [CASE]]`.
//!
//! 1 MB/s is 10^6 bytes of source data per second. The best of all rounds is printed, because other
//! programs can only slow a round down. Encoding makes as many coded packets as there are source
//! packets. The time of decoding is from the first packet until the block is copied out. "cached" reuses
//! the structure of the batches from an earlier block with the same parameters. Received packets
//! are as sent, or recoded by a relay that holds all packets of a batch. "degree" is the mean
//! degree of the encoded batches. 10 % of the packets are lost unless the name states another loss.
#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::time::Instant;

use bats_code::kernel::{Kernel, Mode};
use bats_code::rfc::{
    BatchCache, Decoder, DegreeDistribution, Encoder, Field, InnerCode, Limits, OuterCode,
    Progress, Recoder, Table, source_packets,
};

const T: usize = 1408;

/// GB/s of multiply-adds of the kernel, for 8 outputs from 16 rows in the L1 cache. A packet of a
/// batch of degree d costs d multiply-adds.
fn kernel_speed(kernel: Kernel) -> f64 {
    let rows = vec![vec![7u8; T]; 16];
    let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
    let mut outputs = vec![vec![0u8; T]; 8];
    let mut outputs: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    let matrix: Vec<u8> = (0..128).map(|x| x * 2 + 1).collect();
    let times = (0..200).map(|_| {
        let start = Instant::now();
        for _ in 0..50 {
            kernel.product(&matrix, &rows, &mut outputs, T, Mode::Overwrite);
        }
        start.elapsed().as_secs_f64()
    });
    (50 * 128 * T) as f64 / times.fold(f64::INFINITY, f64::min) / 1e9
}

struct Figures {
    encode: f64,
    decode: f64,
    extra: usize,
    inactive: usize,
}

/// Codes and decodes one block. Uses the given caches and fills them.
fn block(
    data: &[u8],
    encoder_cache: &mut BatchCache,
    decoder_cache: &mut BatchCache,
    recoded: bool,
    loss_percent: u64,
    seed: u64,
) -> Figures {
    let inner = encoder_cache.code().inner_code();
    let (m, k) = (inner.batch_size(), encoder_cache.code().source_packets() as usize);
    let mut encoder = Encoder::new(encoder_cache.clone(), data, T).expect("K fits");
    let len = encoder.coded_packet_len();
    // Pre-faulted memory, as in a program that codes more than one block.
    let batches = (k * 110 / (100 - loss_percent as usize)).div_ceil(m) + 8;
    let mut packets = vec![1u8; (batches * m + k) * len];
    let start = Instant::now();
    // Reuse one buffer, as a sender does.
    let (buffer, _) = packets.split_at_mut(m * len);
    for batch_id in 0..k.div_ceil(m) {
        let mut outputs: Vec<&mut [u8]> = buffer.chunks_exact_mut(len).collect();
        encoder.encode(batch_id as u32, 0, &mut outputs).expect("valid sizes");
    }
    let encode = start.elapsed().as_secs_f64() * k as f64 / k.next_multiple_of(m) as f64;
    let mut random = seed;
    let mut received = Vec::new();
    for (batch_id, batch) in packets.chunks_exact_mut(m * len).take(batches).enumerate() {
        let mut outputs: Vec<&mut [u8]> = batch.chunks_exact_mut(len).collect();
        encoder.encode(batch_id as u32, 0, &mut outputs).expect("valid sizes");
        if recoded {
            let mut relay = Recoder::new(inner, T, batch_id as u32).expect("valid size");
            for packet in &outputs {
                relay.push(packet).expect("valid length");
            }
            for packet in &mut outputs {
                relay.recode_random(packet).expect("the rank is above 0");
            }
        }
        for packet in batch.chunks_exact(len) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if (random >> 33) % 100 >= loss_percent {
                received.push((batch_id as u32, packet));
            }
        }
    }
    *encoder_cache = encoder.into_cache();
    let limits = Limits::for_code(decoder_cache.code(), T);
    let mut output = vec![1u8; data.len()];
    let cache = decoder_cache.clone();
    let start = Instant::now();
    let mut decoder = Decoder::new(cache, T, limits).expect("within limits");
    let mut used = 0;
    for (batch_id, packet) in received {
        decoder.push(batch_id, packet).expect("within limits");
        used += 1;
        if decoder.decode().expect("within limits") == Progress::Complete {
            break;
        }
    }
    let copied = decoder.copy_block(&mut output);
    let decode = start.elapsed().as_secs_f64();
    assert_eq!(copied, Ok(data.len()));
    assert!(output == data, "the decoded block differs from the source");
    let inactive = decoder.stats().inactive;
    *decoder_cache = decoder.into_cache();
    Figures { encode, decode, extra: used - k, inactive }
}

fn best(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, f64::max)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn measure(name: &str, code: &OuterCode, recoded: bool, loss_percent: u64, rounds: usize) {
    let k = code.source_packets() as usize;
    let data: Vec<u8> = (0..k * T - T / 2).map(|x| (x * 7 + x / 1000) as u8).collect();
    assert_eq!(source_packets(data.len() as u64, T), Ok(k as u32));
    let megabytes = data.len() as f64 / 1e6;
    let mut results = Vec::new();
    for cached in [false, true] {
        let mut caches = [(); 2].map(|()| BatchCache::new(code.clone(), 1 << 30));
        let figures: Vec<Figures> = (0..rounds + 1)
            .map(|round| {
                if !cached {
                    caches = [(); 2].map(|()| BatchCache::new(code.clone(), 1 << 30));
                }
                let [encoder, decoder] = &mut caches;
                block(&data, encoder, decoder, recoded, loss_percent, round as u64)
            })
            .skip(1)
            .collect();
        results.push(best(figures.iter().map(|f| megabytes / f.encode)));
        results.push(best(figures.iter().map(|f| megabytes / f.decode)));
        if cached {
            results.push(median(figures.iter().map(|f| f.extra as f64)));
            results.push(median(figures.iter().map(|f| f.inactive as f64)));
        }
    }
    let batches = k.div_ceil(code.inner_code().batch_size()) as u32;
    let degrees: u32 = (0..batches).map(|batch_id| code.degree(batch_id)).sum();
    let mean = f64::from(degrees) / f64::from(batches);
    println!(
        "{name:<42} {mean:>7.0} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>6.0} {:>8.0}",
        results[0], results[2], results[1], results[3], results[4], results[5]
    );
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|x| x.parse().ok()).unwrap_or(9);
    let kernel = Kernel::active();
    println!(
        "kernel {}: {:.0} GB/s of multiply-adds; T = {T}, best of {rounds} blocks, MB/s",
        kernel.name(),
        kernel_speed(kernel)
    );
    println!(
        "{:<42} {:>7} {:>9} {:>9} {:>9} {:>9} {:>6} {:>8}",
        "", "degree", "encode", "cached", "decode", "cached", "extra", "inactive"
    );
    let byte = |m| InnerCode::new(m, Field::Byte).expect("M and q are in the RFC's table");
    let binary = |m| InnerCode::new(m, Field::Binary).expect("M and q are in the RFC's table");
    let code = |k, inner, degrees| OuterCode::new(k, inner, degrees).expect("valid K");
    let mixture = DegreeDistribution::mixture(Table::M32FourHops, 1600);
    let precode = |k, inner: InnerCode| {
        let degrees = DegreeDistribution::recommended(inner, k, true);
        code(k, inner, degrees).with_precode()
    };
    let recommended = |k, inner| OuterCode::recommended(k, inner).expect("valid K");
    let only = std::env::args().nth(2).unwrap_or_default();
    let table = code(1600, byte(32), DegreeDistribution::table(Table::M32FourHops));
    for (name, code, loss) in [
        ("K=1600 M=32 mixture", code(1600, byte(32), mixture), 10),
        ("K=1600 M=32 recommended", recommended(1600, byte(32)), 10),
        // The table is for four hops with 20 % loss each, which deliver 73 % of the rank.
        ("K=1600 M=32 table, precode, 27 %", table.with_precode(), 27),
        ("K=1600 M=32 precode", precode(1600, byte(32)), 10),
        ("K=128 M=16 dense", recommended(128, byte(16)), 10),
        ("K=512 M=16 dense", recommended(512, byte(16)), 10),
        ("K=1024 M=16 recommended", recommended(1024, byte(16)), 10),
        ("K=1600 M=128 q=2 recommended", recommended(1600, binary(128)), 10),
        ("K=8000 M=32 precode", precode(8000, byte(32)), 10),
    ] {
        if !name.contains(&only) {
            continue;
        }
        measure(name, &code, false, loss, rounds);
        measure(&format!("{name}, recoded"), &code, true, loss, rounds);
    }
}
