//! Drives the code of RFC 9426 from bytes: compares the decoder with naive Gaussian elimination,
//! and tests chains of recoders, arbitrary packets, and the parsers of parameters.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use super::{NaiveDecoder, add_multiple};
use crate::gf256;
use crate::kernel::Kernel;
use crate::rfc::{
    BatchCache, DecodeError, Decoder, DegreeDistribution, Encoder, InnerCode, Limits, OuterCode,
    PacketHeader, Progress, Reception, RecodeError, Recoder, SessionParameters,
};

/// Reference decoder: textbook Gauss-Jordan elimination on coefficients and payload together.
#[derive(Debug)]
pub struct NaiveBlock {
    unknowns: usize,
    /// For each column the line whose first non-zero coefficient is there.
    lines: Vec<Option<Vec<u8>>>,
}

impl NaiveBlock {
    /// A system without equations.
    #[must_use]
    pub fn new(unknowns: usize) -> Self {
        Self { unknowns, lines: vec![None; unknowns] }
    }

    /// Adds an equation: a coefficient for each unknown, then the payload. Returns whether it
    /// raised the rank.
    ///
    /// # Panics
    /// The equation contradicts the others.
    pub fn push(&mut self, mut line: Vec<u8>) -> bool {
        for column in 0..self.unknowns {
            if let Some(row) = &self.lines[column] {
                add_multiple(line[column], row, &mut line);
            }
        }
        let Some(pivot) = line[..self.unknowns].iter().position(|&x| x != 0) else {
            assert!(line.iter().all(|&x| x == 0), "a dependent equation contradicts the others");
            return false;
        };
        let inverse = gf256::inv(line[pivot]);
        line.iter_mut().for_each(|x| *x = gf256::mul(inverse, *x));
        for row in self.lines.iter_mut().flatten() {
            add_multiple(row[pivot], &line, row);
        }
        self.lines[pivot] = Some(line);
        true
    }

    /// Number of linearly independent equations.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.lines.iter().flatten().count()
    }

    /// The payload of an unknown, or `None` until all are determined.
    #[must_use]
    pub fn payload(&self, unknown: usize) -> Option<&[u8]> {
        if self.rank() < self.unknowns {
            return None;
        }
        self.lines[unknown].as_ref().map(|line| &line[self.unknowns..])
    }
}

/// The bytes of a script, followed by zeros.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn next(&mut self) -> usize {
        match self.0.split_first() {
            None => 0,
            Some((&first, rest)) => {
                self.0 = rest;
                first.into()
            }
        }
    }
}

/// A small code, chosen by the first bytes of a script.
fn code(script: &mut Script<'_>) -> (OuterCode, usize) {
    let shape = script.next();
    let inner = InnerCode::from_mq((shape & 7) as u8).expect("three bits");
    let k = 1 + script.next() as u32 % 70;
    let packet_size = 1 + script.next() % 80;
    let degree = |byte: usize| 1 + byte as u32 % (k + 3);
    let degrees = match shape >> 3 & 3 {
        0 => DegreeDistribution::dense(k),
        1 => DegreeDistribution::recommended(inner, k, true),
        _ => {
            let pairs: Vec<(u32, u32)> =
                (0..3).map(|_| (degree(script.next()), 1 + script.next() as u32)).collect();
            DegreeDistribution::from_pairs(pairs).expect("weights are above 0")
        }
    };
    let code = OuterCode::new(k, inner, degrees).expect("K is 1 to 70");
    let code = if shape & 32 != 0 { code.with_precode() } else { code };
    (code, packet_size)
}

/// The equation of a packet: coefficients of all intermediate packets, then its data.
fn line_of(code: &OuterCode, batch_id: u32, packet: &[u8]) -> Vec<u8> {
    let inner = code.inner_code();
    let data = &packet[inner.vector_len()..];
    let batch = code.batch(batch_id);
    let mut line = vec![0; code.intermediate_packets() as usize];
    for (column, factor) in expanded(inner, packet).into_iter().enumerate() {
        for (&index, &coefficient) in batch.indices().iter().zip(batch.generator(column)) {
            line[index as usize] ^= gf256::mul(factor, coefficient);
        }
    }
    line.extend_from_slice(data);
    line
}

/// Counters of a run, for tests to check that a run was not trivial.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockReport {
    /// Innovative packets received.
    pub innovative: usize,
    /// Whether the block was decoded.
    pub complete: bool,
    /// Packets received that were not innovative.
    pub non_innovative: usize,
}

/// Sends packets of a block, coded and recoded, as a script determines, and compares the decoder
/// with naive elimination: it completes if and only if the rank is full, with the same bytes.
///
/// # Panics
/// The decoders disagree.
pub fn compare_block_with_reference(kernel: Kernel, data: &[u8]) -> BlockReport {
    let mut script = Script(data);
    let (code, packet_size) = code(&mut script);
    let inner = code.inner_code();
    let (k, m) = (code.source_packets() as usize, inner.batch_size());
    let end = script.next() % packet_size;
    let block: Vec<u8> =
        (0..(k - 1) * packet_size + end).map(|x| (x * 31 + x / 7 + (x >> 8)) as u8).collect();
    let cache = BatchCache::new(code.clone(), 10_000);
    let mut encoder =
        Encoder::with_kernel(cache.clone(), &block, packet_size, kernel).expect("K fits");
    let limits = Limits::for_code(&code, packet_size);
    let mut decoder = Decoder::with_kernel(cache, packet_size, limits, kernel).expect("limits");
    let mut naive = naive_of(&code, packet_size);
    let mut relays: BTreeMap<usize, [Recoder; 2]> = BTreeMap::new();
    let mut batch_equations: BTreeMap<usize, NaiveDecoder> = BTreeMap::new();
    let mut innovative: BTreeMap<usize, usize> = BTreeMap::new();
    let mut report = BlockReport::default();
    // Some scripts decode rarely, so that many packets arrive before the elimination.
    let decode_interval = 1 + script.next() % 8 * 8;
    let mut packet = vec![0; encoder.coded_packet_len()];
    let mut turn = 0;

    while !script.0.is_empty() {
        let (choice, column) = (script.next(), script.next() % m);
        let batch = choice >> 3;
        let relay = relays.entry(batch).or_insert_with(|| {
            [1, 2].map(|hop| {
                let seed = hop << 8 | batch as u32;
                Recoder::with_kernel(inner, packet_size, seed, kernel).expect("size")
            })
        });
        encoder.encode(batch as u32, column, &mut [&mut packet]).expect("column and size");
        match choice & 7 {
            0..=2 => {}
            3 | 4 => {
                relay[0].push(&packet).expect("length");
                continue;
            }
            5 => {
                if relay[0].recode_random(&mut packet).is_ok() {
                    relay[1].push(&packet).expect("length");
                }
                continue;
            }
            6 if relay[0].recode_random(&mut packet).is_ok() => {}
            7 if relay[1].recode_random(&mut packet).is_ok() => {}
            _ => continue,
        }
        let complete = report.complete;
        let before = naive.rank();
        let reception = decoder.push(batch as u32, &packet).expect("within limits");
        let line = line_of(&code, batch as u32, &packet);
        let raised_batch =
            batch_equations.entry(batch).or_default().push(line[..naive.unknowns].to_vec());
        let raised = naive.push(line);
        assert_eq!(naive.rank(), before + usize::from(raised));
        // A packet is innovative if it raises the rank of its batch. For batches of degree below M
        // that is the rank over their packets; else it is the rank of the coefficient vectors,
        // which may be independent although the equations are not.
        let degree = code.degree(batch as u32) as usize;
        match reception {
            Reception::Innovative => {
                report.innovative += 1;
                let count = innovative.entry(batch).or_insert(0);
                *count += 1;
                assert!(*count <= m.min(degree), "{count} innovative packets of degree {degree}");
                assert!(
                    raised_batch || degree >= m,
                    "an innovative packet does not raise the rank of its batch"
                );
            }
            Reception::NonInnovative => {
                report.non_innovative += 1;
                assert!(!raised || complete, "a non-innovative packet raises the rank");
                assert!(
                    !raised_batch || complete,
                    "a non-innovative packet raises the rank of its batch"
                );
            }
        }
        turn += 1;
        if turn % decode_interval == 0 {
            compare(&mut decoder, &naive, &code, &block);
        }
        report.complete = naive.rank() == naive.unknowns;
    }
    compare(&mut decoder, &naive, &code, &block);
    report
}

fn naive_of(code: &OuterCode, packet_size: usize) -> NaiveBlock {
    let unknowns = code.intermediate_packets() as usize;
    let mut naive = NaiveBlock::new(unknowns);
    for constraint in code.precode().map_or_else(Vec::new, |precode| precode.constraints()) {
        for row in 0..constraint.columns() {
            let mut line = vec![0; unknowns + packet_size];
            for (&index, &factor) in constraint.indices().iter().zip(constraint.generator(row)) {
                line[index as usize] = factor;
            }
            assert!(naive.push(line), "constraints are dependent");
        }
    }
    naive
}

fn compare(decoder: &mut Decoder, naive: &NaiveBlock, code: &OuterCode, block: &[u8]) {
    let missing = naive.unknowns - naive.rank();
    match decoder.decode().expect("within limits") {
        Progress::Missing(least) => {
            assert!(1 <= least && least <= missing, "{least} reported, {missing} missing");
            assert_eq!(decoder.source_packet(0), None);
            assert_eq!(decoder.block_len(), Err(DecodeError::Incomplete));
        }
        Progress::Complete => {
            assert_eq!(missing, 0, "complete without full rank");
            let k = code.source_packets();
            for number in 0..k {
                let unknown = code.precode().map_or(number, |p| p.position(number));
                assert_eq!(decoder.source_packet(number), naive.payload(unknown as usize));
            }
            assert_eq!(decoder.source_packet(k), None);
            let mut copy = vec![0; block.len() + 1];
            assert_eq!(decoder.copy_block(&mut copy), Ok(block.len()));
            assert_eq!(copy[..block.len()], *block);
        }
    }
}

/// A recoder with the reference state that it must match.
struct Hop {
    recoder: Recoder,
    /// The vectors received: the recoder must have their rank.
    vectors: NaiveDecoder,
    rank: usize,
    /// The packets held, vector and data: every packet sent is a linear combination of them.
    packets: NaiveDecoder,
}

impl Hop {
    fn new(recoder: Recoder) -> Self {
        let (vectors, packets) = (NaiveDecoder::default(), NaiveDecoder::default());
        Self { recoder, vectors, rank: 0, packets }
    }

    fn clear(&mut self) {
        self.recoder.clear();
        (self.vectors, self.rank) = (NaiveDecoder::default(), 0);
        self.packets = NaiveDecoder::default();
        assert_eq!(self.recoder.received().count(), 0);
    }

    /// Pushes a packet: it is innovative if and only if it raises the reference rank.
    fn push(&mut self, inner: InnerCode, packet: &[u8]) {
        let vector = expanded(inner, packet);
        let raised = self.recoder.push(packet).expect("length");
        assert_eq!(raised, self.vectors.push(vector), "innovative differs from the reference");
        self.rank += usize::from(raised);
        assert_eq!(self.recoder.rank(), self.rank, "the rank differs from the reference");
        assert!(self.rank <= inner.batch_size());
        if raised {
            assert_eq!(
                self.recoder.received().last(),
                Some(packet),
                "the packet is not kept as received"
            );
            assert!(self.packets.push(packet_line(inner, packet)));
        }
        assert_eq!(self.recoder.received().count(), self.rank);
    }

    /// Checks that a recoded packet is a linear combination of the packets held, and not zero.
    fn check(&self, inner: InnerCode, packet: &[u8]) {
        let raised = self.packets.clone().push(packet_line(inner, packet));
        assert!(!raised, "the packet is not in the span of the received ones");
        assert!(expanded(inner, packet).iter().any(|&x| x != 0), "the coefficient vector is zero");
    }
}

/// The vector of a packet, one byte for each coefficient.
fn expanded(inner: InnerCode, packet: &[u8]) -> Vec<u8> {
    let order = inner.field().order();
    let bit = |column: usize| packet[column / 8] >> (7 - column % 8) & 1;
    (0..inner.batch_size()).map(|c| if order == 2 { bit(c) } else { packet[c] }).collect()
}

/// The expanded vector, then the data.
fn packet_line(inner: InnerCode, packet: &[u8]) -> Vec<u8> {
    let mut line = expanded(inner, packet);
    line.extend_from_slice(&packet[inner.vector_len()..]);
    line
}

/// Passes packets of one batch, and arbitrary ones, through a chain of recoders. Ranks match naive
/// elimination, never fall, and do not rise from hop to hop. Every packet sent is a linear
/// combination of those held. If no arbitrary packet was pushed, the data matches the vectors.
///
/// # Panics
/// One of these properties is violated.
pub fn check_recoder_chain(kernel: Kernel, data: &[u8]) -> usize {
    let mut script = Script(data);
    let inner = InnerCode::from_mq(script.next() as u8 & 7).expect("three bits");
    let (m, co) = (inner.batch_size(), inner.vector_len());
    let packet_size = 1 + script.next() % 100;
    let mut chain: Vec<Hop> = (0..3)
        .map(|seed| Recoder::with_kernel(inner, packet_size, seed, kernel).expect("size"))
        .map(Hop::new)
        .collect();
    let coded: Vec<Vec<u8>> = (0..m)
        .map(|column| (0..packet_size).map(|x| (x * 13 + column * 7 + x * column) as u8).collect())
        .collect();
    let (mut only_valid, mut cleared) = (true, false);
    let mut checked = 0;
    let mut packet = vec![0; co + packet_size];
    while !script.0.is_empty() {
        let (kind, value) = (script.next(), script.next());
        let hop = kind >> 3 & 3;
        match kind & 7 {
            0..=2 => {
                let column = value % m;
                packet[..co].fill(0);
                match inner.field().order() {
                    2 => packet[column / 8] = 0x80 >> (column % 8),
                    _ => packet[column] = 1,
                }
                packet[co..].copy_from_slice(&coded[column]);
                chain[0].push(inner, &packet);
            }
            3 => {
                only_valid = false;
                packet.fill_with(|| script.next() as u8);
                let short = &packet[..value % packet.len()];
                assert_eq!(chain[0].recoder.push(short), Err(RecodeError::Length));
                chain[0].push(inner, &packet);
            }
            4 if kind > 230 => {
                chain[hop % 3].clear();
                cleared = true;
            }
            5 => {
                let hop = &chain[hop % 3];
                // Half of the time the correct number of coefficients.
                let count = if value & 1 == 0 { hop.rank } else { value % (m + 2) };
                let mask = if inner.field().order() == 2 && value & 2 == 0 { 1 } else { 255 };
                let coefficients: Vec<u8> =
                    (0..count).map(|_| script.next() as u8 & mask).collect();
                check_recode(hop, inner, &coefficients, &mut packet);
            }
            _ => {
                let hop = hop % 2;
                if let Err(error) = chain[hop].recoder.recode_random(&mut packet) {
                    assert_eq!((error, chain[hop].rank), (RecodeError::Empty, 0));
                    continue;
                }
                chain[hop].check(inner, &packet);
                chain[hop + 1].push(inner, &packet);
                if only_valid {
                    checked += 1;
                    check_sum(inner, &packet, &coded);
                }
            }
        }
        let ranks = || chain.iter().map(|hop| hop.rank);
        assert!(cleared || ranks().is_sorted_by(|before, after| before >= after));
    }
    checked
}

/// Recodes with given coefficients and checks the error or the sum.
fn check_recode(hop: &Hop, inner: InnerCode, coefficients: &[u8], packet: &mut [u8]) {
    let largest = inner.field().order() - 1;
    let valid = coefficients.len() == hop.rank
        && coefficients.iter().any(|&x| x != 0)
        && coefficients.iter().all(|&x| u16::from(x) <= largest);
    let expected = match (hop.rank, valid) {
        (0, _) => Err(RecodeError::Empty),
        (_, false) => Err(RecodeError::Coefficients),
        (_, true) => Ok(()),
    };
    assert_eq!(hop.recoder.recode(coefficients, packet), expected);
    if expected.is_ok() {
        let mut sum = vec![0; packet.len()];
        for (row, &factor) in hop.recoder.received().zip(coefficients) {
            add_multiple(factor, row, &mut sum);
        }
        assert_eq!(sum, packet);
        hop.check(inner, packet);
    }
}

fn check_sum(inner: InnerCode, packet: &[u8], coded: &[Vec<u8>]) {
    let data = &packet[inner.vector_len()..];
    let mut sum = vec![0; data.len()];
    for (factor, coded) in expanded(inner, packet).into_iter().zip(coded) {
        add_multiple(factor, coded, &mut sum);
    }
    assert_eq!(sum, data);
}

/// Pushes arbitrary packets to a decoder with small limits. Nothing panics, memory stays bounded.
///
/// # Panics
/// A limit is exceeded.
pub fn push_arbitrary_block_packets(kernel: Kernel, data: &[u8]) -> Option<bool> {
    let mut script = Script(data);
    let (code, packet_size) = code(&mut script);
    let limits = Limits {
        max_batches: 1 + script.next() % 30,
        max_packets: 1 + script.next() * 2,
        max_inactive: script.next() * 2,
        max_bytes: (1 + script.next()) << 13,
    };
    let cache = BatchCache::new(code, script.next() << 8);
    let mut decoder = Decoder::with_kernel(cache, packet_size, limits, kernel).ok()?;
    let mut packet = vec![0; decoder.coded_packet_len()];
    let mut complete = false;
    while !script.0.is_empty() {
        let (kind, batch, fill) = (script.next(), script.next() as u32, script.next());
        // Large batch IDs as well as small ones.
        let batch = if kind & 1 == 0 { batch % 8 } else { batch.wrapping_mul(0x0101_0101) };
        for (x, byte) in packet.iter_mut().enumerate() {
            *byte = (fill + x * (kind >> 4)).wrapping_mul(1 + (x >> 2) * fill) as u8;
        }
        if kind & 14 == 2 {
            let short = &packet[..batch as usize % packet.len()];
            assert_eq!(decoder.push(batch, short), Err(DecodeError::Length));
        }
        let _ = decoder.push(batch, &packet);
        if kind & 14 == 4 {
            complete = decoder.decode() == Ok(Progress::Complete);
        }
        let stats = decoder.stats();
        assert!(stats.batches <= limits.max_batches && stats.packets <= limits.max_packets);
        assert!(stats.inactive <= limits.max_inactive);
        assert!(decoder.bytes() <= limits.max_bytes, "{} bytes", decoder.bytes());
        if complete {
            let mut copy = [0; 70 * 80];
            match decoder.copy_block(&mut copy) {
                Ok(len) => assert!(len < copy.len()),
                Err(error) => assert!(matches!(error, DecodeError::Padding(_)), "{error}"),
            }
        }
    }
    Some(complete)
}

/// Parses bytes as parameters. Valid ones survive a round trip, and their code gives valid batches.
///
/// # Panics
/// One of these properties is violated.
pub fn check_parameters(data: &[u8]) -> bool {
    if let Some(bytes) = data.first_chunk::<4>()
        && let Ok(header) = PacketHeader::parse(*bytes)
    {
        assert_eq!(header.to_bytes(), *bytes);
        let again =
            PacketHeader::new(header.source_packets(), header.inner_code(), header.batch_id());
        assert_eq!(again, Ok(header));
    }
    let Ok(parameters) = SessionParameters::parse(data) else { return false };
    let mut bytes = Vec::new();
    parameters.write(&mut bytes);
    let again = SessionParameters::parse(&bytes);
    assert_eq!(again.as_ref(), Ok(&parameters));
    let code = parameters.code();
    let batch_id = data.len() as u32 * 0x0100_0101;
    let degree = code.degree(batch_id);
    assert!(degree >= 1 && degree <= code.intermediate_packets());
    if degree <= 1000 {
        let batch = code.batch(batch_id);
        assert_eq!(batch.degree(), degree as usize);
        let mut indices = batch.indices().to_vec();
        indices.sort_unstable();
        indices.dedup();
        assert_eq!(indices.len(), batch.degree());
        assert!(indices.iter().all(|&index| index < code.intermediate_packets()));
    }
    true
}
