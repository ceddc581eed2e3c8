use proptest::prelude::*;
use proptest::test_runner::contextualize_config;

use super::*;
use crate::fuzzing::rfc::{compare_block_with_reference, push_arbitrary_block_packets};
use crate::rfc::{DegreeDistribution, Encoder, Field, PaddingError};

/// A pseudo-random number generator for loss and data.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.0 >> 33
    }
}

fn block(len: usize) -> Vec<u8> {
    let mut random = Random(len as u64);
    (0..len).map(|_| random.next() as u8).collect()
}

/// Sends batches with loss until the block is decoded. Returns the innovative packets beyond K.
fn transfer(code: OuterCode, packet_size: usize, loss_percent: u64, recode: bool) -> usize {
    let k = code.source_packets() as usize;
    let inner = code.inner_code();
    let m = inner.batch_size();
    let data = block((k - 1) * packet_size + packet_size / 3);
    let cache = BatchCache::new(code.clone(), 1 << 24);
    let mut encoder = Encoder::new(cache.clone(), &data, packet_size).unwrap();
    let limits = Limits::for_code(&code, packet_size);
    let mut decoder = Decoder::new(cache, packet_size, limits).unwrap();
    let mut random = Random(7);
    let mut batch = vec![vec![0; encoder.coded_packet_len()]; m];
    let mut received = 0;
    for batch_id in 0.. {
        assert!(batch_id as usize * m < 20 * k + 1000, "the block is never decoded");
        let mut outputs: Vec<&mut [u8]> = batch.iter_mut().map(Vec::as_mut_slice).collect();
        encoder.encode(batch_id, 0, &mut outputs).unwrap();
        if recode {
            let mut relay = super::super::Recoder::new(inner, packet_size, batch_id).unwrap();
            for packet in &batch {
                relay.push(packet).unwrap();
            }
            batch.iter_mut().for_each(|packet| relay.recode_random(packet).unwrap());
        }
        for packet in &batch {
            if random.next() % 100 < loss_percent {
                continue;
            }
            received +=
                usize::from(decoder.push(batch_id, packet).unwrap() == Reception::Innovative);
            if decoder.decode().unwrap() == Progress::Complete {
                let mut output = vec![0; data.len()];
                assert_eq!(decoder.copy_block(&mut output), Ok(data.len()));
                assert_eq!(output, data);
                return received - k;
            }
        }
    }
    unreachable!()
}

proptest! {
    #![proptest_config(contextualize_config(ProptestConfig::with_cases(400)))]

    #[test]
    fn block_decodes_at_full_rank(
        head in prop::collection::vec(any::<u8>(), 4..12),
        script in prop::collection::vec(any::<u8>(), 0..1200),
    ) {
        let data = [head, script].concat();
        compare_block_with_reference(Kernel::active(), &data);
    }

    #[test]
    fn arbitrary_packets_stay_within_limits(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        push_arbitrary_block_packets(Kernel::active(), &data);
    }
}

/// Ensures that the property above covers blocks that are decoded and blocks that are not.
#[test]
fn pseudo_random_scripts_decode_some_blocks() {
    let mut random = Random(99);
    let (mut complete, mut incomplete) = (0, 0);
    for _ in 0..600 {
        let len = 100 + random.next() % 500;
        let data: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        let report = compare_block_with_reference(Kernel::active(), &data);
        complete += usize::from(report.complete);
        incomplete += usize::from(!report.complete && report.innovative > 20);
    }
    assert!(complete > 100 && incomplete > 50, "{complete} and {incomplete}");
}

#[test]
fn dense_block_decodes_with_every_inner_code() {
    for inner in InnerCode::all() {
        for recode in [false, true] {
            let code = OuterCode::recommended(128, inner).unwrap();
            let overhead = transfer(code, 77, 10, recode);
            assert!(overhead <= 2, "{inner:?}: {overhead}");
        }
    }
}

#[test]
fn smallest_blocks() {
    for k in 1..=20 {
        let inner = InnerCode::new(4, Field::Byte).unwrap();
        let overhead = transfer(OuterCode::recommended(k, inner).unwrap(), 5, 30, true);
        assert!(overhead <= 1);
    }
}

#[test]
fn mixtures_need_few_packets_beyond_k() {
    let inner = InnerCode::new(32, Field::Byte).unwrap();
    let code = OuterCode::recommended(1600, inner).unwrap();
    assert!(transfer(code, 8, 20, true) <= 20);
}

#[test]
fn precode_keeps_the_overhead_low() {
    let inner = InnerCode::new(16, Field::Byte).unwrap();
    let degrees = DegreeDistribution::recommended(inner, 2500, true);
    let code = OuterCode::new(2500, inner, degrees).unwrap().with_precode();
    assert!(transfer(code, 8, 10, false) <= 40);
}

#[test]
fn degrees_of_one_and_two_decode_by_belief_propagation() {
    let inner = InnerCode::new(8, Field::Byte).unwrap();
    let degrees = DegreeDistribution::from_pairs([(1, 1), (2, 3)]).unwrap();
    transfer(OuterCode::new(12, inner, degrees).unwrap(), 30, 30, true);
}

#[test]
fn largest_k_with_a_precode() {
    let inner = InnerCode::new(32, Field::Byte).unwrap();
    let degrees = DegreeDistribution::recommended(inner, 65_535, true);
    let code = OuterCode::new(65_535, inner, degrees).unwrap().with_precode();
    let overhead = transfer(code, 1, 5, false);
    assert!(overhead < 600, "{overhead}");
}

/// Overhead of a block of 65,535 packets without a precode. Packets of one byte keep the run short.
fn overhead_of_the_largest(m: usize) -> usize {
    let inner = InnerCode::new(m, Field::Byte).unwrap();
    transfer(OuterCode::recommended(65_535, inner).unwrap(), 1, 5, false)
}

#[test]
fn largest_k_without_a_precode() {
    let overhead = overhead_of_the_largest(32);
    assert!(overhead < 100, "{overhead}");
}

/// Sparse batches leave out more packets of such a block than the few dense batches can determine.
#[test]
fn largest_k_without_a_precode_in_smaller_batches() {
    let overhead = overhead_of_the_largest(16);
    assert!(overhead < 4000, "{overhead}");
}

#[test]
fn decoder_stays_within_its_limits() {
    let inner = InnerCode::new(16, Field::Byte).unwrap();
    let code = OuterCode::recommended(100, inner).unwrap();
    let cache = BatchCache::new(code.clone(), 0);
    let mut limits = Limits::for_code(&code, 10);
    limits.max_bytes = 1000;
    let refused = Decoder::new(cache.clone(), 10, limits).err();
    assert!(matches!(refused, Some(DecodeError::Memory(bytes)) if bytes > 1000));
    assert_eq!(Decoder::new(cache.clone(), 0, limits).err(), Some(DecodeError::PacketSize));

    limits = Limits { max_batches: 2, max_packets: 3, max_inactive: 0, max_bytes: 1 << 20 };
    let mut decoder = Decoder::new(cache.clone(), 10, limits).unwrap();
    let innovative = Ok(Reception::Innovative);
    let unit = |column: usize| {
        let mut packet = [0; 26];
        packet[column] = 1;
        packet
    };
    assert_eq!(decoder.push(0, &[0; 25]), Err(DecodeError::Length));
    assert_eq!(decoder.push(0, &[0; 26]), Ok(Reception::NonInnovative));
    assert_eq!(decoder.push(0, &unit(1)), Ok(Reception::Innovative));
    assert_eq!(decoder.push(0, &unit(1)), Ok(Reception::NonInnovative));
    assert_eq!(decoder.push(u32::MAX, &unit(1)), Ok(Reception::Innovative));
    assert_eq!(decoder.push(2, &unit(1)), Err(DecodeError::Batches));
    assert_eq!(decoder.push(0, &unit(2)), Ok(Reception::Innovative));
    assert_eq!(decoder.push(0, &unit(3)), Err(DecodeError::Packets));
    assert_eq!(decoder.decode(), Ok(Progress::Missing(97)));

    // A limit that prevents elimination is reported at 100 equations, and again with each 1/64
    // more. More packets do no harm.
    limits = Limits { max_inactive: 10, ..Limits::for_code(&code, 10) };
    let mut decoder = Decoder::new(cache.clone(), 10, limits).unwrap();
    for count in 1..=128u32 {
        assert_eq!(decoder.push((count - 1) / 16, &unit(count as usize % 16)), innovative);
        let expected = match count {
            // Planning stops at an eighth of the 84 packets that the first batch lacks.
            100.. if count % 2 == 0 => Err(DecodeError::Inactive(11)),
            100.. => Ok(Progress::Missing(1)),
            _ => Ok(Progress::Missing(100 - count as usize)),
        };
        assert_eq!(decoder.decode(), expected, "{count} packets");
        assert_eq!(decoder.stats().inactive, 0);
    }

    // The same packets complete the block if the limit is high enough.
    for (max_inactive, complete) in [(83, false), (84, true)] {
        limits.max_inactive = max_inactive;
        let mut decoder = Decoder::new(cache.clone(), 10, limits).unwrap();
        for count in 0..100 {
            assert_eq!(decoder.push(count / 16, &unit(count as usize % 16)), innovative);
        }
        match decoder.decode() {
            Ok(Progress::Complete) => assert!(complete),
            other => assert_eq!((other, complete), (Err(DecodeError::Inactive(84)), false)),
        }
    }

    // The same for memory: the limit allows the packets but not the elimination.
    limits = Limits::for_code(&code, 10);
    limits.max_bytes = 60_000;
    let mut decoder = Decoder::new(cache, 10, limits).unwrap();
    for count in 0..100 {
        assert_eq!(decoder.push(count / 16, &unit(count as usize % 16)), innovative);
    }
    assert!(decoder.bytes() <= limits.max_bytes);
    let refused = decoder.decode();
    assert!(matches!(refused, Err(DecodeError::Memory(bytes)) if bytes > 60_000), "{refused:?}");
}

/// Batches of degree two: 126 of the 128 packets of a batch are not innovative, and a block needs
/// thousands of batches until each of its packets is in one.
#[test]
fn sparse_codes_decode_within_the_default_limits() {
    let fields = [(128, Field::Binary), (16, Field::Byte)];
    for ((m, field), degrees) in fields.into_iter().zip([vec![(2, 1)], vec![(1, 3), (2, 1)]]) {
        let inner = InnerCode::new(m, field).unwrap();
        let degrees = DegreeDistribution::from_pairs(degrees).unwrap();
        let code = OuterCode::new(1000, inner, degrees).unwrap();
        let limits = Limits::for_code(&code, 5);
        assert!(limits.max_packets < 30_000 && limits.max_batches < 30_000, "{limits:?}");
        assert!(limits.max_bytes < 400 << 20, "{limits:?}");
        let mut decoder = Decoder::new(BatchCache::new(code.clone(), 0), 5, limits).unwrap();
        let data = block(4999);
        let mut encoder = Encoder::new(BatchCache::new(code, 0), &data, 5).unwrap();
        let mut packet = vec![0; encoder.coded_packet_len()];
        let mut batch_id = 0;
        loop {
            for column in 0..m {
                encoder.encode(batch_id, column, &mut [&mut packet]).unwrap();
                decoder.push(batch_id, &packet).unwrap();
            }
            // A batch keeps no more packets than its degree.
            assert!(decoder.stats().packets <= 2 * decoder.stats().batches);
            batch_id += 1;
            if batch_id % 100 == 0 && decoder.decode().unwrap() == Progress::Complete {
                break;
            }
        }
        let mut copy = vec![0; data.len()];
        assert_eq!(decoder.copy_block(&mut copy), Ok(data.len()));
        assert!(copy == data);
    }
}

/// For every code the default limits fit into memory and allow full rank.
#[test]
fn default_limits_are_finite() {
    for inner in InnerCode::all() {
        for k in [1, 2, 100, 1000, 65_535] {
            let recommended = DegreeDistribution::recommended(inner, k, false);
            let table = DegreeDistribution::table(crate::rfc::Table::M32FourHops);
            for degrees in
                [DegreeDistribution::dense(1), DegreeDistribution::dense(k), recommended, table]
            {
                let code = OuterCode::new(k, inner, degrees).unwrap();
                for code in [code.clone(), code.with_precode()] {
                    let limits = Limits::for_code(&code, 1400);
                    let needed = code.intermediate_packets() as usize;
                    assert!(
                        (needed..100 * needed + 1025).contains(&limits.max_packets),
                        "{limits:?}"
                    );
                    assert!(limits.max_batches <= 16 * limits.max_packets + 64, "{limits:?}");
                    assert!(limits.max_bytes < (64 << 20) + needed * (1 << 20), "{limits:?}");
                }
            }
        }
    }
}

#[test]
fn error_messages_name_the_limit() {
    for (error, words) in [
        (DecodeError::PacketSize, "size of a source packet"),
        (DecodeError::Length, "length of a coded packet"),
        (DecodeError::Batches, "limit on batches"),
        (DecodeError::Packets, "limit on packets"),
        (DecodeError::Inactive(7), "7 inactive packets"),
        (DecodeError::Memory(99), "99 bytes of memory"),
        (DecodeError::Incomplete, "not decoded yet"),
        (DecodeError::Padding(PaddingError::Corrupt), "padding"),
        (DecodeError::OutputSize, "output is shorter"),
    ] {
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// A relay with one packet of a batch sends multiples of it.
#[test]
fn multiples_of_coded_packets_decode() {
    let inner = InnerCode::new(16, Field::Byte).unwrap();
    let code = OuterCode::recommended(60, inner).unwrap();
    let data = block(595);
    let mut encoder = Encoder::new(BatchCache::new(code.clone(), 0), &data, 10).unwrap();
    let limits = Limits::for_code(&code, 10);
    let mut decoder = Decoder::new(BatchCache::new(code, 0), 10, limits).unwrap();
    let mut packet = [0; 26];
    for number in 0..64 {
        encoder.encode(number / 16, number as usize % 16, &mut [&mut packet]).unwrap();
        packet.iter_mut().for_each(|x| *x = gf256::mul(number as u8 + 2, *x));
        assert_eq!(decoder.push(number / 16, &packet), Ok(Reception::Innovative));
    }
    assert_eq!(decoder.decode(), Ok(Progress::Complete));
    let mut copy = vec![0; data.len()];
    assert_eq!(decoder.copy_block(&mut copy), Ok(data.len()));
    assert_eq!(copy, data);
}
