use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::contextualize_config;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::config::Goal;
use crate::flow::{FlowError, PathView};
use crate::wire::rank::{RankEntry, RankFeedback};
use crate::wire::short_header::{PacketKind, SHORT_OVERHEAD};
use crate::wire::varint::Writer;

const SYMBOL: usize = 200;
const DELAY: Duration = Duration::from_millis(5);

fn path(loss: f64) -> PathView {
    PathView {
        rate_bytes_per_second: 1_000_000,
        smoothed_rtt: DELAY * 2,
        ack_interval: Duration::from_millis(1),
        loss,
        burst_factor: 1.0,
        loss_packets: 1_000,
        queue_delay: Duration::ZERO,
    }
}

/// One packet of each batch arrives, as on very lossy paths; decoding needs no more of them.
#[test]
fn one_packet_of_each_batch_suffices() {
    let mut network = Network::new(1, 0.0, 1);
    let data: Vec<u8> = (0..MAX_BLOCK as usize * SYMBOL).map(|i| (i * i / 7) as u8).collect();
    let (view, mut out, mut sent) = (path(0.0), Vec::new(), 0);
    let mut now = Timestamp::from_millis(1);
    let (receiver, sender) = (&mut network.receivers[0], &mut network.sender);
    let mut taken = 0;
    sender.push_block(SYMBOL, &view, |bytes| {
        taken = bytes.len().min(data.len());
        bytes[..taken].copy_from_slice(&data[..taken]);
        (taken, false)
    });
    let mut block = None;
    for _ in 0..2_000 {
        while sender.poll(now, &mut out).is_some() {
            sent += 1;
            if sent % BATCH == 1 {
                receiver.on_packet(now, PacketKind::Repair, &out, DELAY * 2).unwrap();
            }
        }
        now += DELAY * 10;
        block = receiver.next_block();
        if block.is_some() {
            break;
        }
        let report = receiver.feedback(now, DELAY * 2);
        sender.on_rank_feedback(0, now, &report, &view).unwrap();
    }
    let counters = receiver.counters();
    assert!(block.as_deref() == Some(&data[..taken]), "{sent} sent, {counters:?}");
    assert_eq!(counters.refused, 0, "the first attempt succeeds: {counters:?}");
    assert!(taken > 400 * SYMBOL, "{taken} bytes");
}

/// One sender and several receivers with independent losses. A packet is sent every 0.1 ms; reports
/// are lost at the same rate as packets.
struct Network {
    symbol: usize,
    sent_bytes: usize,
    report_bytes: usize,
    sender: RatelessSender,
    receivers: Vec<RatelessReceiver>,
    got: Vec<Vec<u8>>,
    loss: f64,
    rng: ChaCha8Rng,
    sent: u64,
}

impl Network {
    fn new(receivers: usize, loss: f64, seed: u64) -> Self {
        Self::of_symbols(SYMBOL, receivers, loss, seed)
    }

    fn of_symbols(symbol: usize, receivers: usize, loss: f64, seed: u64) -> Self {
        let budget = 8 << 20;
        let initial_credit = crate::flow::initial_credit(symbol, budget);
        let sender = RatelessSender::new(RatelessSenderParameters {
            max_symbol_size: symbol,
            initial_credit: credit_of(initial_credit),
            goal: Goal::Balanced,
            budget,
            receivers,
            over_relays: false,
        });
        let parameters = RatelessParameters {
            max_symbol_size: symbol,
            receive_budget: budget,
            initial_credit,
            over_relays: false,
            receivers: receivers as u32,
        };
        Self {
            symbol,
            sent_bytes: 0,
            report_bytes: 0,
            sender,
            receivers: (0..receivers).map(|_| RatelessReceiver::new(parameters)).collect(),
            got: vec![Vec::new(); receivers],
            loss,
            rng: ChaCha8Rng::seed_from_u64(seed),
            sent: 0,
        }
    }

    /// Sends `data`. Returns the time taken, or `None` if it took more than a simulated minute.
    fn run(&mut self, data: &[u8]) -> Option<Duration> {
        let mut left = data;
        let mut packets: VecDeque<(Timestamp, Vec<u8>)> = VecDeque::new();
        let mut reports: VecDeque<(Timestamp, usize, RankFeedback, Option<u64>)> = VecDeque::new();
        let mut out = Vec::new();
        let view = path(self.loss);
        let mut advertised = vec![0; self.receivers.len()];
        for step in 1..600_000_u64 {
            let now = Timestamp::from_micros(step * 100);
            while !left.is_empty() && self.sender.wants_block() {
                self.sender.push_block(self.symbol, &view, |bytes| {
                    let (part, rest) = left.split_at(left.len().min(bytes.len()));
                    bytes[..part.len()].copy_from_slice(part);
                    left = rest;
                    (part.len(), !rest.is_empty())
                });
            }
            if self.sender.poll(now, &mut out).is_some() {
                self.sent += 1;
                self.sent_bytes += out.len() + SHORT_OVERHEAD;
                packets.push_back((now + DELAY, out.clone()));
            } else if step % 500 == 0 && !self.sender.all_acknowledged() {
                self.sender.on_probe_timeout();
            }
            while packets.front().is_some_and(|(at, _)| *at <= now) {
                let (_, packet) = packets.pop_front()?;
                for receiver in &mut self.receivers {
                    if !self.rng.random_bool(self.loss) {
                        receiver.on_packet(now, PacketKind::Repair, &packet, DELAY * 2).unwrap();
                    }
                }
            }
            for (index, receiver) in self.receivers.iter_mut().enumerate() {
                while let Some(block) = receiver.next_block() {
                    self.got[index].extend_from_slice(&block);
                }
                if receiver.feedback_at().is_some_and(|at| at <= now) {
                    let advertised =
                        receiver.update_credit(now, DELAY * 2, 0).then(|| receiver.credit());
                    let report = receiver.feedback(now, DELAY * 2);
                    let mut bytes = [0; 2_000];
                    let mut writer = Writer::new(&mut bytes);
                    report.encode(&mut writer).unwrap();
                    // Frame type, acknowledgement and credit in the same packet, and the packet
                    // overhead.
                    self.report_bytes += writer.written() + 32 + SHORT_OVERHEAD;
                    if !self.rng.random_bool(self.loss) {
                        reports.push_back((now + DELAY, index, report, advertised));
                    }
                }
            }
            while reports.front().is_some_and(|(at, ..)| *at <= now) {
                let (_, index, report, credit) = reports.pop_front()?;
                self.sender.on_rank_feedback(index, now, &report, &view).unwrap();
                if let Some(credit) = credit {
                    // The sender uses the lowest credit of all receivers.
                    advertised[index] = credit;
                    self.sender.on_credit(advertised.iter().copied().min().unwrap_or(0));
                }
            }
            if left.is_empty() && self.sender.all_acknowledged() {
                return Some(now - Timestamp::ZERO);
            }
        }
        None
    }
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut data = vec![0; len];
    ChaCha8Rng::seed_from_u64(seed).fill(&mut data[..]);
    data
}

proptest! {
    #![proptest_config(contextualize_config(ProptestConfig::with_cases(24)))]
    #[test]
    fn every_receiver_gets_all_blocks_in_order(
        len in 1_usize..150_000, receivers in 1_usize..4, loss in 0.0..0.4, seed: u64,
    ) {
        let data = bytes(len, seed);
        let mut network = Network::new(receivers, loss, seed);
        prop_assert!(network.run(&data).is_some(), "not done");
        for got in &network.got {
            prop_assert!(*got == data);
        }
        prop_assert_eq!(network.sender.bytes_held(), 0);
        for receiver in &mut network.receivers {
            receiver.trim();
            prop_assert_eq!(receiver.bytes_held(), 0);
        }
    }

    #[test]
    fn arbitrary_input_is_an_error_or_bounded(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..100)) {
        let parameters = RatelessParameters {
            max_symbol_size: SYMBOL, receive_budget: 1 << 20, initial_credit: 100, over_relays: false,
            receivers: 1,
        };
        let mut receiver = RatelessReceiver::new(parameters);
        for payload in &payloads {
            let _ = receiver.on_packet(Timestamp::from_millis(1), PacketKind::Repair, payload, DELAY);
            while receiver.next_block().is_some() {}
            receiver.feedback(Timestamp::from_millis(2), DELAY);
        }
    }

    #[test]
    fn decoding_inverts_encoding(sequence: u32, block: u32, k in 1_u16.., t in 1_u16.., batch in 0_u32..1 << 24) {
        use crate::wire::varint::{Reader, Writer};
        let header = RatelessHeader { sequence, block, source_packets: k, packet_size: t, batch };
        let mut bytes = [0; RATELESS_HEADER_LEN - BATCH];
        header.encode(&mut Writer::new(&mut bytes)).unwrap();
        prop_assert_eq!(RatelessHeader::decode(&mut Reader::new(&bytes)), Ok(header));
    }
}

/// With independent losses of 10 %, all receivers complete with at most a quarter more than
/// k / (1 - p) packets, and their reports together take at most 2 % of the bytes sent.
#[test]
fn thirty_two_receivers_complete_within_the_overhead_limit() {
    const FULL: usize = 1_408;
    let data = bytes(1_500_000, 1);
    let mut network = Network::of_symbols(FULL, 32, 0.1, 7);
    let time = network.run(&data);
    assert!(network.got.iter().all(|got| *got == data));
    let packets = data.len() as f64 / rateless_packet_size(FULL) as f64;
    let ratio = network.sent as f64 / (packets / 0.9);
    let feedback = network.report_bytes as f64 / network.sent_bytes as f64;
    println!("{ratio:.3} of k / (1 - p), feedback {:.2} %, {time:?}", feedback * 100.0);
    assert!(time.is_some() && ratio < 1.25, "{ratio}");
    assert!(feedback <= 0.02, "{feedback}");
}

/// One receiver needs little more than the bound.
#[test]
fn long_transfers_stay_near_the_capacity_bound() {
    for loss in [0.0, 0.1, 0.3] {
        let data = bytes(1_500_000, 3);
        let mut network = Network::new(1, loss, 5);
        assert!(network.run(&data).is_some());
        let packets = data.len() as f64 / rateless_packet_size(SYMBOL) as f64;
        let ratio = network.sent as f64 * (1.0 - loss) / packets;
        assert!(ratio < 1.02 + loss / 8.0, "{ratio} at {loss}");
    }
}

#[test]
fn credit_is_enforced_and_reports_of_unsent_blocks_are_rejected() {
    let parameters = RatelessParameters {
        max_symbol_size: SYMBOL,
        receive_budget: 1 << 20,
        initial_credit: 64,
        over_relays: false,
        receivers: 1,
    };
    let mut receiver = RatelessReceiver::new(parameters);
    let packet = |block: u32, source_packets: u16| {
        let header =
            RatelessHeader { sequence: 0, block, source_packets, packet_size: 10, batch: 0 };
        let mut bytes = vec![1; RATELESS_HEADER_LEN + 10];
        header.encode(&mut crate::wire::varint::Writer::new(&mut bytes)).unwrap();
        bytes
    };
    let now = Timestamp::from_millis(1);
    assert!(
        receiver.on_packet(now, PacketKind::Repair, &packet(0, 16), DELAY).is_ok(),
        "64 symbols of credit are 16 source packets"
    );
    let beyond = receiver.on_packet(now, PacketKind::Repair, &packet(1, 1), DELAY);
    assert!(
        matches!(beyond, Err(FlowError::BeyondCredit { symbol: 16, credit: 16 })),
        "{beyond:?}"
    );
    let beyond = receiver.on_packet(now, PacketKind::Repair, &packet(64, 1), DELAY);
    assert!(matches!(beyond, Err(FlowError::BeyondCredit { .. })), "{beyond:?}");
    assert_eq!(
        receiver.on_packet(now, PacketKind::Repair, &packet(0, 15), DELAY),
        Err(FlowError::Malformed)
    );
    assert_eq!(
        receiver.on_packet(now, PacketKind::Repair, &packet(0, 600), DELAY),
        Err(FlowError::Malformed)
    );

    let mut sender = Network::new(1, 0.0, 1).sender;
    let report = RankFeedback {
        seen_end: 1,
        entries: vec![RankEntry { first: 0, span: 1, missing: 1 }],
        ..RankFeedback::default()
    };
    let answer = sender.on_rank_feedback(0, now, &report, &path(0.1));
    assert_eq!(answer, Err(FlowError::NotSent(0)));
}

/// A peer that makes each block take as much as possible: every packet is the only one of its
/// batch, and no block is ever complete.
#[test]
fn open_blocks_stay_within_the_budget() {
    const BUDGET: usize = 64 << 20;
    let mut receiver = RatelessReceiver::new(RatelessParameters {
        max_symbol_size: 1_200,
        receive_budget: BUDGET,
        initial_credit: 64 * 512 * 4,
        over_relays: false,
        receivers: 1,
    });
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let now = Timestamp::from_millis(1);
    let mut most = 0;
    for batch in 0..505 {
        for block in 0..64 {
            let packet_size = 1_200;
            let header = RatelessHeader {
                sequence: batch * 64 + block,
                block,
                source_packets: 512,
                packet_size,
                batch: batch * 7,
            };
            let mut bytes = vec![0; RATELESS_HEADER_LEN + usize::from(packet_size)];
            rng.fill(&mut bytes[..]);
            header.encode(&mut Writer::new(&mut bytes)).unwrap();
            receiver.on_packet(now, PacketKind::Repair, &bytes, DELAY).unwrap();
        }
        receiver.check_totals();
        most = receiver.bytes_held().max(most);
        assert!(most <= BUDGET, "{most} bytes after {batch} packets of each block");
    }
    assert!(most > BUDGET / 2, "the budget is used: {most}");
    assert!(receiver.counters().refused > 0, "the limit is reached");
}

#[test]
fn credit_in_source_packets_is_a_quarter_of_the_symbols_and_at_least_sixteen() {
    assert_eq!([0, 67, 68, 403].map(credit_of), [16, 16, 17, 100]);
}
