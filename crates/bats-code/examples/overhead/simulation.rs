//! Simulates blocks over lossy hops. The payload is a zero byte: only coefficients matter.

use bats_code::rfc::{
    BatchCache, Decoder, DegreeDistribution, Field, InnerCode, Limits, OuterCode, Progress,
    Recoder, Table,
};

/// A code, a network, and the table's figures for them.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) source_packets: u32,
    pub(crate) batch_size: usize,
    pub(crate) degrees: fn(u32) -> DegreeDistribution,
    pub(crate) precode: bool,
    /// Number of hops; the relays between them recode.
    pub(crate) hops: u32,
    /// Loss of each hop.
    pub(crate) loss_percent: u32,
    /// Mean overhead in the table.
    pub(crate) table: Option<f64>,
    /// Half a unit of its last digit.
    pub(crate) table_digit: f64,
    /// Standard error of the table's mean. The table does not state it. This is the error of a mean
    /// of 200 blocks, from the standard deviation of 1000 blocks (10,000 for the mixture of K =
    /// 1024) of this program. It is a constant so that a run does not choose its own tolerance.
    pub(crate) table_error: f64,
    pub(crate) table_inactive: Option<u32>,
    /// Whether the table's figures are of the same code.
    pub(crate) comparable: bool,
    pub(crate) belief_propagation: bool,
}

const ONE_HOP: Case = Case {
    name: "",
    source_packets: 0,
    batch_size: 16,
    degrees: DegreeDistribution::dense,
    precode: false,
    hops: 1,
    loss_percent: 10,
    table: None,
    table_digit: 0.5,
    table_error: 0.0,
    table_inactive: None,
    comparable: true,
    belief_propagation: false,
};

fn table_16(_: u32) -> DegreeDistribution {
    DegreeDistribution::table(Table::M16OneHop)
}

fn mixture_16(k: u32) -> DegreeDistribution {
    DegreeDistribution::mixture(Table::M16OneHop, k)
}

fn table_32(_: u32) -> DegreeDistribution {
    DegreeDistribution::table(Table::M32FourHops)
}

fn recommended(k: u32, batch_size: usize, precode: bool) -> DegreeDistribution {
    let inner = InnerCode::new(batch_size, Field::Byte).expect("M and q are in the RFC's table");
    DegreeDistribution::recommended(inner, k, precode)
}

fn recommended_16(k: u32) -> DegreeDistribution {
    recommended(k, 16, false)
}

fn recommended_16_with_precode(k: u32) -> DegreeDistribution {
    recommended(k, 16, true)
}

fn recommended_32(k: u32) -> DegreeDistribution {
    recommended(k, 32, false)
}

/// The rows of the table, and the codes that this crate recommends.
pub(crate) const CASES: &[Case] = &[
    Case {
        name: "K=128 dense",
        source_packets: 128,
        table: Some(0.0),
        table_digit: 0.005,
        table_error: 0.011,
        ..ONE_HOP
    },
    Case {
        name: "K=256 dense",
        source_packets: 256,
        table: Some(0.0),
        table_digit: 0.005,
        table_error: 0.011,
        ..ONE_HOP
    },
    Case {
        name: "K=1024 dense",
        source_packets: 1024,
        table: Some(0.0),
        table_digit: 0.005,
        table_error: 0.011,
        ..ONE_HOP
    },
    Case {
        name: "K=256 table",
        source_packets: 256,
        degrees: table_16,
        table: Some(66.0),
        table_error: 6.4,
        belief_propagation: true,
        ..ONE_HOP
    },
    Case {
        name: "K=1024 table",
        source_packets: 1024,
        degrees: table_16,
        table: Some(657.0),
        table_error: 27.0,
        belief_propagation: true,
        ..ONE_HOP
    },
    Case {
        name: "K=512 mixture",
        source_packets: 512,
        degrees: mixture_16,
        table: Some(11.0),
        table_error: 2.8,
        ..ONE_HOP
    },
    Case {
        name: "K=1024 mixture",
        source_packets: 1024,
        degrees: mixture_16,
        table: Some(1.5),
        table_digit: 0.05,
        table_error: 1.0,
        table_inactive: Some(178),
        ..ONE_HOP
    },
    Case {
        name: "K=2048 mixture",
        source_packets: 2048,
        degrees: mixture_16,
        table: Some(0.5),
        table_digit: 0.05,
        table_error: 0.34,
        table_inactive: Some(358),
        ..ONE_HOP
    },
    // The table's figures here are for the degrees and precode of its author, which differ.
    Case {
        name: "K=1600 M=32 4 hops table, precode",
        source_packets: 1600,
        batch_size: 32,
        degrees: table_32,
        precode: true,
        hops: 4,
        loss_percent: 20,
        table: Some(2.0),
        table_digit: 0.05,
        table_inactive: Some(94),
        comparable: false,
        ..ONE_HOP
    },
    Case { name: "K=1024 recommended", source_packets: 1024, degrees: recommended_16, ..ONE_HOP },
    Case {
        name: "K=1600 M=32 4 hops recommended",
        source_packets: 1600,
        batch_size: 32,
        degrees: recommended_32,
        hops: 4,
        loss_percent: 20,
        ..ONE_HOP
    },
    Case {
        name: "K=2500 recommended, precode",
        source_packets: 2500,
        degrees: recommended_16_with_precode,
        precode: true,
        ..ONE_HOP
    },
];

/// SplitMix64: the loss process of the network.
struct LossProcess(u64);

impl LossProcess {
    fn lost(&mut self, percent: u32) -> bool {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % 100 < u64::from(percent)
    }
}

/// Result of simulating one block.
pub(crate) struct Run {
    /// Packets received beyond K.
    pub(crate) overhead: usize,
    pub(crate) inactive: usize,
}

fn code(case: &Case) -> OuterCode {
    let inner =
        InnerCode::new(case.batch_size, Field::Byte).expect("M and q are in the RFC's table");
    let code = OuterCode::new(case.source_packets, inner, (case.degrees)(case.source_packets));
    let code = code.expect("K is valid");
    if case.precode { code.with_precode() } else { code }
}

/// First batch ID of a block. Blocks use different batches, to average over codes and losses.
fn first_batch(number: u32) -> u32 {
    number.wrapping_mul(1_000_003)
}

/// The packets of a batch that arrive: coefficient vectors with a zero byte of payload.
fn arriving(case: &Case, batch_id: u32, losses: &mut LossProcess) -> Vec<Vec<u8>> {
    let inner =
        InnerCode::new(case.batch_size, Field::Byte).expect("M and q are in the RFC's table");
    let m = case.batch_size;
    let unit = |column: usize| (0..=m).map(|x| u8::from(x == column)).collect::<Vec<u8>>();
    let mut packets: Vec<Vec<u8>> =
        (0..m).map(unit).filter(|_| !losses.lost(case.loss_percent)).collect();
    for hop in 1..case.hops {
        let seed = batch_id.wrapping_mul(64) + hop;
        let mut relay = Recoder::new(inner, 1, seed).expect("valid size");
        packets.iter().for_each(|packet| {
            relay.push(packet).expect("valid length");
        });
        packets.clear();
        for _ in 0..m {
            let mut packet = vec![0; m + 1];
            if relay.recode_random(&mut packet).is_ok() && !losses.lost(case.loss_percent) {
                packets.push(packet);
            }
        }
    }
    packets
}

/// Sends one block and counts the innovative packets that arrive until it is decoded.
pub(crate) fn simulate(case: &Case, number: u32) -> Run {
    let code = code(case);
    let limits =
        Limits { max_packets: 1 << 20, max_batches: 1 << 20, ..Limits::for_code(&code, 1) };
    let mut decoder = Decoder::new(BatchCache::new(code, 0), 1, limits).expect("within limits");
    let mut losses = LossProcess(u64::from(number) << 32);
    let mut batch_id = first_batch(number);
    loop {
        for packet in arriving(case, batch_id, &mut losses) {
            decoder.push(batch_id, &packet).expect("within limits");
            if decoder.decode().expect("within limits") == Progress::Complete {
                let stats = decoder.stats();
                let overhead = stats.packets - case.source_packets as usize;
                return Run { overhead, inactive: stats.inactive };
            }
        }
        batch_id = batch_id.wrapping_add(1);
    }
}

/// The same with belief propagation alone: the packets beyond K, or `None` if 4 K were not enough.
/// A batch counts as solvable with as many packets as unknowns, which is wrong in one of 250 cases.
pub(crate) fn belief_propagation(case: &Case, number: u32) -> Option<usize> {
    let code = code(case);
    let k = case.source_packets as usize;
    let mut losses = LossProcess(u64::from(number) << 32);
    let mut known = vec![false; k];
    let mut count = 0;
    let mut received = 0;
    let mut batches: Vec<(Vec<u32>, usize)> = Vec::new();
    let mut batch_id = first_batch(number);
    loop {
        batches.push((code.batch(batch_id).indices().to_vec(), 0));
        for _ in arriving(case, batch_id, &mut losses) {
            received += 1;
            if received > 4 * k {
                return None;
            }
            let mut progress = true;
            if let Some((_, packets)) = batches.last_mut() {
                *packets += 1;
            }
            while progress {
                progress = false;
                for (indices, packets) in &mut batches {
                    indices.retain(|&index| !known[index as usize]);
                    if !indices.is_empty() && indices.len() <= *packets {
                        count += indices.len();
                        indices.iter().for_each(|&index| known[index as usize] = true);
                        progress = true;
                    }
                }
            }
            if count == k {
                return Some(received - k);
            }
        }
        batch_id = batch_id.wrapping_add(1);
    }
}

/// Mean with twice its standard error, and quantiles.
pub(crate) struct Summary {
    pub(crate) mean: f64,
    pub(crate) error: f64,
    pub(crate) median: f64,
    pub(crate) p95: f64,
}

impl Summary {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let count = values.len().max(2) as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let quantile = |fraction: f64| {
            let index = (fraction * values.len() as f64) as usize;
            values.get(index).or(values.last()).copied().unwrap_or(f64::NAN)
        };
        let error = 2.0 * (variance / count).sqrt();
        Self { mean, error, median: quantile(0.5), p95: quantile(0.95) }
    }

    /// Distance between this mean and the rounded figure of the table, in standard errors of their
    /// difference; `None` if the table has no comparable figure.
    pub(crate) fn distance(&self, case: &Case) -> Option<f64> {
        let figure = case.table.filter(|_| case.comparable)?;
        let error = case.table_error.hypot(self.error / 2.0);
        let beyond = ((self.mean - figure).abs() - case.table_digit).max(0.0);
        Some(if beyond > 0.0 { beyond / error } else { 0.0 })
    }
}
