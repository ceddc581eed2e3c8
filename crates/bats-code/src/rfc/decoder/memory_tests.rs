//! The memory that a decoder predicts, reports and refuses.

use super::*;
use crate::rfc::degree::ln_256;
use crate::rfc::{DegreeDistribution, Encoder, Field};

const M: usize = 16;

fn code(k: u32, degrees: DegreeDistribution) -> OuterCode {
    OuterCode::new(k, InnerCode::new(M, Field::Byte).unwrap(), degrees).unwrap()
}

fn dense(k: u32) -> OuterCode {
    code(k, DegreeDistribution::dense(k))
}

fn of_degree(k: u32, degree: u32) -> OuterCode {
    code(k, DegreeDistribution::from_pairs([(degree, 1)]).unwrap())
}

/// Coded packet `column` of a batch, as sent by the encoder.
fn packet(encoder: &mut Encoder, batch_id: u32, column: usize) -> Vec<u8> {
    let mut packet = vec![0; encoder.coded_packet_len()];
    encoder.encode(batch_id, column, &mut [&mut packet]).unwrap();
    packet
}

/// The buffers of a batch, the structure of one with fewer packets than M, and nodes of a B-tree
/// that are half full.
#[test]
fn size_of_a_batch_is_that_of_its_buffers() {
    let kernel = Kernel::active();
    for degree in [1, 2, 15, 16, 17, 100] {
        let outer = of_degree(100, degree as u32);
        let structure = (degree < M).then(|| Arc::new(outer.batch(3)));
        let structure_size = structure.as_ref().map_or(0, |batch| {
            assert_eq!(Batch::size(M, degree), batch.bytes());
            batch.bytes() + 2 * size_of::<Batch>()
        });
        let mut batch = ReceivedBatch::new(M, degree, structure);
        for column in 0..M {
            let mut vector = [0; M];
            vector[column] = 1;
            if batch.insert(kernel, &vector) {
                batch.vectors.extend_from_slice(&vector);
                batch.payloads.push(0);
            }
        }
        let width = degree.min(M);
        assert!(batch.space.is_full());
        assert_eq!((batch.vectors.capacity(), batch.payloads.capacity()), (width * M, width));
        let buffers = VectorSpace::size(width) + width * M + 4 * width;
        let nodes = 2 * (size_of::<ReceivedBatch>() + 4);
        assert_eq!(ReceivedBatch::size(M, degree), buffers + structure_size + nodes);
        if degree < M {
            assert_eq!(structure_bytes(M, degree), structure_size);
        }
    }
}

#[test]
fn bounds_of_elimination_follow_from_the_shapes() {
    // A step of 3 equations over 100 packets: their transformation, coefficients and numbers.
    assert_eq!(batch_elimination_bytes(3, 100), 3 * (3 + 100) + 4 * (3 + 2 * 100) + 256);
    // Six matrices of at least 32 lines, and lists of words, of all columns and 128 to spare.
    assert_eq!(scratch_bytes(10, 20, 30), 6 * (32 * 192 + 63) + 64 * (20 + 10 + 30 + 128 + 32));
    assert_eq!(scratch_bytes(40, 20, 30), 6 * (40 * 256 + 63) + 64 * (20 + 40 + 30 + 128 + 40));
    assert_eq!(total([1, usize::MAX, 3]), usize::MAX);

    let decoder =
        Decoder::new(BatchCache::new(dense(50), 0), 10, Limits::for_code(&dense(50), 10)).unwrap();
    let groups = [
        Group { indices: &[0, 1, 2, 3, 4], equations: 2 },
        Group { indices: &[5, 6, 7], equations: 20 },
        Group { indices: &[8], equations: 30 },
    ];
    // 12 equations are left over for the 10 inactive packets.
    let expected = batch_elimination_bytes(2, 5)
        + batch_elimination_bytes(20, 3)
        + batch_elimination_bytes(30, 1)
        + Matrix::size(50, 10)
        + 12 * (Matrix::size(1, 10) + size_of::<Matrix>() + 8)
        + Residual::size(10)
        + Matrix::size(50, 10)
        + 2 * Matrix::size(10, 10)
        + scratch_bytes(30, 5, 10);
    assert_eq!(decoder.elimination_bytes(&groups, 50, 10), expected);
}

/// The numbers of the documentation of [`Limits::for_code`], for batches of all 100 packets, of 10
/// and of 20: K ln(20 K) / d batches cover the block.
#[test]
fn default_limits_follow_their_definition() {
    // 256 ln 2000 by the integer logarithm.
    assert_eq!(ln_256(2_000), 1_943);
    for (degree, covering, per_batch) in [(100, 8, 16), (10, 76, 10), (20, 38, 16)] {
        let outer = of_degree(100, degree);
        let limits = Limits::for_code(&outer, 10);
        let needed = usize::max(100, per_batch * covering);
        assert_eq!(limits.max_packets, 2 * needed + 1_024, "degree {degree}");
        assert_eq!(limits.max_batches, (8 * limits.max_packets).div_ceil(16) + 64);
        assert_eq!(limits.max_inactive, 12_288);
        let degree = degree as usize;
        let planning = structure_bytes(M, degree) + batch_elimination_bytes(per_batch, degree);
        let full_batches = limits.max_packets.div_ceil(per_batch);
        let expected = (16 << 20)
            + 100 * (32 << 10)
            + usize::min(planning * full_batches, 100 * (64 << 10))
            + limits.max_batches * ReceivedBatch::size(M, degree)
            + RowStore::size(limits.max_packets, 10)
            + 2 * Matrix::size(100, 10);
        assert_eq!(limits.max_bytes, expected, "degree {degree}");
    }
    // The precode's packets are among those of the block.
    let with_precode = dense(100).with_precode();
    let more = Limits::for_code(&with_precode, 10);
    assert!(more.max_packets > Limits::for_code(&dense(100), 10).max_packets);
}

/// A packet that does not fit is refused with the memory that it needs, and accepted with that.
#[test]
fn packets_are_refused_below_exactly_the_memory_that_they_need() {
    let outer = dense(100);
    let data = [7; 995];
    let mut encoder = Encoder::new(BatchCache::new(outer.clone(), 1 << 20), &data, 10).unwrap();
    let mut decoder =
        Decoder::new(BatchCache::new(outer.clone(), 0), 10, Limits::for_code(&outer, 10)).unwrap();
    assert_eq!((decoder.bytes(), decoder.coded_packet_len()), (0, 26));
    for number in 0..99 {
        let (batch_id, column) = (number / 16, number as usize % 16);
        let packet = packet(&mut encoder, batch_id, column);
        decoder.set_max_bytes(0);
        let Err(DecodeError::Memory(needed)) = decoder.push(batch_id, &packet) else { panic!() };
        decoder.set_max_bytes(needed - 1);
        assert_eq!(decoder.push(batch_id, &packet), Err(DecodeError::Memory(needed)));
        decoder.set_max_bytes(needed);
        assert_eq!(decoder.push(batch_id, &packet), Ok(Reception::Innovative));
        assert_eq!(decoder.bytes(), needed);
        let batches = batch_id as usize + 1;
        let packets = RowStore::size(number as usize + 1, 10);
        assert_eq!(needed, packets + batches * ReceivedBatch::size(M, 100));
        assert_eq!(decoder.stats().batches, batches);
    }
}

/// A decoder with the first packets of a dense code for 100 source packets.
fn decoder_of_dense_code(count: u32) -> Decoder {
    let outer = dense(100);
    let mut encoder = Encoder::new(BatchCache::new(outer.clone(), 1 << 20), &[7; 995], 10).unwrap();
    let limits = Limits::for_code(&outer, 10);
    let mut decoder = Decoder::new(BatchCache::new(outer, 0), 10, limits).unwrap();
    for number in 0..count {
        let packet = packet(&mut encoder, number / 16, number as usize % 16);
        assert_eq!(decoder.push(number / 16, &packet), Ok(Reception::Innovative));
    }
    decoder
}

#[test]
fn elimination_is_refused_below_exactly_the_memory_that_it_needs() {
    let decode = |max_bytes| {
        let mut decoder = decoder_of_dense_code(102);
        decoder.set_max_bytes(max_bytes);
        let result = decoder.decode();
        (decoder, result)
    };
    let (mut decoder, result) = decode(0);
    let planning =
        decoder.bytes() + 7 * structure_bytes(M, 100) + plan::plan_bytes(7, 7 * 100, 100);
    assert_eq!(result, Err(DecodeError::Memory(planning)));
    assert_eq!(decoder.decode(), Ok(Progress::Missing(2)), "more memory or packets");
    assert_eq!(decode(planning - 1).1, Err(DecodeError::Memory(planning)));

    // The first batch solves 16 packets, 84 are inactive, and columns for all are reserved.
    let indices: Vec<u32> = (0..100).collect();
    let groups: Vec<Group<'_>> = [16, 16, 16, 16, 16, 16, 6]
        .into_iter()
        .map(|equations| Group { indices: &indices, equations })
        .collect();
    let all = planning + decoder.elimination_bytes(&groups, 100, 100);
    assert_eq!(decode(planning).1, Err(DecodeError::Memory(all)));
    assert_eq!(decode(all - 1).1, Err(DecodeError::Memory(all)));
    let (decoder, result) = decode(all);
    assert_eq!(result, Ok(Progress::Complete));
    // 100 packets of 64 bytes in two matrices, and their positions.
    assert_eq!(decoder.bytes(), 100 * 64 + 2 * 63 + 12 * 100);
    assert_eq!((decoder.stats().inactive, decoder.stats().packets), (84, 102));
    assert_eq!(decoder.block_len(), Ok(995));
}

/// Each attempt costs work: a peer that makes many blocks lack memory must not cause one for each few packets.
#[test]
fn elimination_without_memory_waits_for_memory_or_an_eighth_more_packets() {
    let attempts = |max_bytes: usize| {
        let mut decoder = decoder_of_dense_code(100);
        let mut encoder =
            Encoder::new(BatchCache::new(dense(100), 1 << 20), &[7; 995], 10).unwrap();
        decoder.set_max_bytes(max_bytes);
        let mut attempts = Vec::new();
        for number in 200..226 {
            match decoder.decode() {
                Err(DecodeError::Memory(bytes)) => attempts.push((decoder.stats().packets, bytes)),
                other => assert!(matches!(other, Ok(Progress::Missing(1..=2))), "{other:?}"),
            }
            decoder.set_max_bytes(usize::MAX);
            let packet = packet(&mut encoder, number / 16, number as usize % 16);
            assert_eq!(decoder.push(number / 16, &packet), Ok(Reception::Innovative));
            decoder.set_max_bytes(max_bytes);
        }
        (decoder, attempts)
    };
    let (mut decoder, lacking) = attempts(10_000);
    let packets: Vec<usize> = lacking.iter().map(|&(packets, _)| packets).collect();
    assert_eq!(packets, [100, 113]);
    let bytes = lacking[1].1;
    decoder.set_max_bytes(bytes - 1);
    assert_eq!(decoder.decode(), Ok(Progress::Missing(2)));
    decoder.set_max_bytes(bytes);
    assert!(matches!(decoder.decode(), Err(DecodeError::Memory(more)) if more > bytes));
    decoder.set_max_bytes(usize::MAX);
    assert_eq!(decoder.decode(), Ok(Progress::Complete), "without another packet");
}

/// Columns are reserved for an eighth more inactive packets than planned, and 128.
#[test]
fn elimination_reserves_columns_for_more_inactive_packets() {
    let outer = of_degree(600, 30);
    let mut encoder = Encoder::new(BatchCache::new(outer.clone(), 1 << 20), &[7; 599], 1).unwrap();
    let limits = Limits::for_code(&outer, 1);
    let mut decoder = Decoder::new(BatchCache::new(outer.clone(), 0), 1, limits).unwrap();
    let batches: Vec<Batch> = (0..41).map(|batch_id| outer.batch(batch_id)).collect();
    for number in 0..41 * 16 {
        let packet = packet(&mut encoder, number / 16, number as usize % 16);
        decoder.push(number / 16, &packet).unwrap();
    }
    let groups: Vec<Group<'_>> =
        batches.iter().map(|batch| Group { indices: batch.indices(), equations: 16 }).collect();
    let inactive = plan(&groups, 600, 600, 600).unwrap().inactive.len();
    let reserved = inactive + inactive / 8 + 128;
    assert!((128..500).contains(&inactive) && reserved < 600, "{inactive} are inactive");
    let planning =
        decoder.bytes() + 41 * structure_bytes(M, 30) + plan::plan_bytes(41, 41 * 30, 600);
    let needed = planning + decoder.elimination_bytes(&groups, 600, reserved);
    decoder.set_max_bytes(needed - 1);
    assert_eq!(decoder.decode(), Err(DecodeError::Memory(needed)));
}

/// After a first elimination that lacks rank, later packets are added to it.
#[test]
fn later_packets_are_refused_below_exactly_the_memory_that_they_need() {
    let outer = of_degree(40, 2);
    let data = [7; 395];
    let mut encoder = Encoder::new(BatchCache::new(outer.clone(), 1 << 20), &data, 10).unwrap();
    let limits = Limits::for_code(&outer, 10);
    let mut decoder = Decoder::new(BatchCache::new(outer.clone(), 1 << 20), 10, limits).unwrap();
    let mut batch_id = 0;
    while matches!(decoder.phase, Phase::Collecting { .. }) {
        for column in 0..2 {
            decoder.push(batch_id, &packet(&mut encoder, batch_id, column)).unwrap();
        }
        decoder.decode().unwrap();
        batch_id += 1;
    }
    let Phase::Eliminating(system) = &decoder.phase else { panic!("the rank suffices") };
    assert_eq!(decoder.bytes(), decoder.received_bytes() + system.bytes());
    check_bytes(system);
    assert_eq!(decoder.decode(), Ok(Progress::Missing(system_missing(&decoder))));
    let (before, missing) = (decoder.store.len(), system_missing(&decoder));
    while decoder.store.len() < before + missing {
        decoder.push(batch_id, &packet(&mut encoder, batch_id, 0)).unwrap();
        batch_id += 1;
    }
    decoder.set_max_bytes(0);
    let Err(DecodeError::Memory(needed)) = decoder.decode() else { panic!() };
    let Phase::Eliminating(system) = &decoder.phase else { panic!() };
    let columns = system.columns();
    let expected = decoder.received_bytes()
        + system.bytes()
        + missing * (batch_elimination_bytes(1, 2) + structure_bytes(M, 2))
        + 2 * missing * Matrix::size(1, columns + 128)
        + Matrix::size(columns, columns)
        + Matrix::size(40 + 2 * columns, 10)
        + scratch_bytes(M, 2, columns);
    assert_eq!(needed, expected);
    decoder.set_max_bytes(needed - 1);
    assert_eq!(decoder.decode(), Err(DecodeError::Memory(needed)));
    decoder.set_max_bytes(needed);
    assert!(decoder.decode().is_ok());
    if let Phase::Eliminating(system) = &decoder.phase {
        check_bytes(system);
    }
}

/// Adds up what a system of 40 packets holds.
fn check_bytes(system: &System) {
    let steps = system.steps().iter().map(|step| {
        let numbers = step.payloads.len() + step.solved.len() + step.inactive.len();
        let transformation = step.transformation.as_ref().map_or(0, Vec::len);
        size_of_val(step)
            + 4 * numbers
            + transformation
            + step.by_solved.len()
            + step.by_inactive.len()
    });
    let residual = system.residual().unwrap();
    let records = residual
        .records()
        .iter()
        .map(|record| record.forward.len() + record.backward.len() + 4 * record.used.len());
    let width = system.columns();
    let residual_bytes = Matrix::size(width, width) + 4 * width + records.sum::<usize>();
    assert_eq!(residual.bytes(), residual_bytes);
    assert!(residual_bytes <= Residual::size(width));
    let held = Matrix::size(40 - width, 40)
        + 8 * (40 + system.leftovers().len())
        + steps.sum::<usize>()
        + residual_bytes;
    assert_eq!(system.bytes(), held);
}

fn system_missing(decoder: &Decoder) -> usize {
    let Phase::Eliminating(system) = &decoder.phase else { panic!() };
    system.missing()
}
