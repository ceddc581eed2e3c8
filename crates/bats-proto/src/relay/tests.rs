//! Lines of relays in slots: each link takes one packet a slot, loses some, and delivers after a
//! fixed number of slots. What the code can do, without congestion control or anything else.

use std::collections::VecDeque;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::wire::coding::SourceHeader;

const SLOT: Duration = Duration::from_micros(100);
const SYMBOL: usize = 24;
const KEY: FlowKey = FlowKey { destination: NodeId(100), source: NodeId(0), flow: 7 };
const LINK_UP: LinkId = LinkId(1);
const LINK_DOWN: LinkId = LinkId(2);

struct Line {
    nodes: Vec<Relay>,
    /// Packets on the way: when they arrive, number, kind, payload.
    forth: Vec<VecDeque<(u64, u64, PacketKind, Vec<u8>)>>,
    back: Vec<VecDeque<(u64, BatchRank)>>,
    numbers: Vec<u64>,
    marks: Vec<u64>,
    view: LinkView,
    delay: u64,
    loss: f64,
    slot: u64,
    rng: ChaCha8Rng,
    next: u64,
    received: BTreeMap<u64, usize>,
    payload_errors: usize,
}

fn symbol(number: u64) -> [u8; SYMBOL] {
    core::array::from_fn(|i| (number * 31 + i as u64 * 7 + number * number / 5) as u8)
}

impl Line {
    fn new(hops: usize, loss: f64, delay: u64, config: impl Fn(usize) -> RelayConfig) -> Self {
        let nodes = (0..=hops)
            .map(|i| {
                let mut relay = Relay::new(config(i), 1_000 + i as u64);
                if i > 0 {
                    relay.add_link(LINK_UP, true);
                }
                if i < hops {
                    relay.add_link(LINK_DOWN, true);
                    relay.set_route(KEY.destination, LINK_DOWN);
                }
                relay
            })
            .collect();
        let view = LinkView {
            rate: (1_200.0 / SLOT.as_secs_f64()) as u64,
            smoothed_rtt: SLOT * (2 * delay as u32),
            min_rtt: SLOT * (2 * delay as u32),
            loss,
            burst_factor: 1.0,
            packet: 1_200,
        };
        Self {
            nodes,
            forth: vec![VecDeque::new(); hops],
            back: vec![VecDeque::new(); hops],
            numbers: vec![0; hops],
            marks: vec![0; hops],
            view,
            delay,
            loss,
            slot: 0,
            rng: ChaCha8Rng::seed_from_u64(hops as u64),
            next: 0,
            received: BTreeMap::new(),
            payload_errors: 0,
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1) + SLOT * self.slot as u32
    }

    /// The source's next symbol.
    fn offer(&mut self) -> bool {
        let now = self.now();
        if !self.nodes[0].has_room(now, KEY) {
            return false;
        }
        let mut packet = vec![0; 4];
        SourceHeader::new(self.next).encode(&mut Writer::new(&mut packet)).unwrap();
        packet.extend(symbol(self.next));
        self.nodes[0].send_coded(now, KEY, PacketKind::Source, &packet);
        self.next += 1;
        true
    }

    fn step(&mut self) {
        self.slot += 1;
        let now = self.now();
        for hop in 0..self.forth.len() {
            while self.forth[hop].front().is_some_and(|(at, ..)| *at <= self.slot) {
                let (_, number, kind, payload) = self.forth[hop].pop_front().unwrap();
                self.marks[hop] = self.marks[hop].max(number);
                let delivery =
                    self.nodes[hop + 1].on_carried(now, LINK_UP, &self.view, kind, &payload);
                if let Some(delivery) = delivery {
                    self.deliver(delivery.kind, delivery.payload.to_vec());
                }
            }
            while self.back[hop].front().is_some_and(|(at, _)| *at <= self.slot) {
                let (_, report) = self.back[hop].pop_front().unwrap();
                self.nodes[hop].on_report(now, LINK_DOWN, &self.view, &report);
            }
        }
        for node in &mut self.nodes {
            if node.next_timeout().is_some_and(|at| at <= now) {
                node.handle_timeout(now);
            }
        }
        for hop in 0..self.forth.len() {
            let (number, mut out) = (self.numbers[hop] + 1, Vec::new());
            let pulled = self.nodes[hop].pull(now, LINK_DOWN, &self.view, number, &mut out);
            if let Some(kind) = pulled {
                self.numbers[hop] = number;
                if !self.rng.random_bool(self.loss) {
                    self.forth[hop].push_back((self.slot + self.delay, number, kind, out));
                }
            }
            let mark = self.marks[hop];
            while let Some(report) = self.nodes[hop + 1].next_report(now, LINK_UP, mark) {
                self.back[hop].push_back((self.slot + self.delay, report));
            }
        }
    }

    /// Counts the ranks that arrive; every packet is the combination that its vector says.
    fn deliver(&mut self, kind: PacketKind, payload: Vec<u8>) {
        let mut reader = Reader::new(&payload);
        let header = CodingHeader::decode(kind, &mut reader).unwrap();
        let (_, batch, _, vector) = parts(&header);
        let mut expected = [0; SYMBOL];
        for (index, &factor) in vector.iter().enumerate() {
            let symbol = symbol(u64::from(batch) * 16 + index as u64);
            for (x, y) in expected.iter_mut().zip(symbol) {
                *x ^= bats_code::gf256::mul(factor, y);
            }
        }
        self.payload_errors += usize::from(reader.rest() != expected);
        *self.received.entry(u64::from(batch)).or_default() += 1;
    }

    fn rank(&self) -> usize {
        self.received.values().sum()
    }

    /// Runs with a source at `load` symbols a slot; symbols that arrive per slot, from a third on.
    fn run(&mut self, slots: u64, load: f64) -> f64 {
        let (mut due, mut before) = (0.0, 0);
        for slot in 0..slots {
            due = f64::min(due + load, 50.0);
            while due >= 1.0 && self.offer() {
                due -= 1.0;
            }
            self.step();
            if slot == slots / 3 {
                before = self.rank();
            }
        }
        (self.rank() - before) as f64 / (slots - slots / 3) as f64
    }

    /// Lets everything arrive that still can.
    fn drain(&mut self) {
        for _ in 0..20_000 {
            if self.rank() as u64 == self.next {
                break;
            }
            self.step();
        }
    }
}

fn recoding(node: usize) -> RelayConfig {
    RelayConfig::new(NodeId(if node == 0 { 0 } else { 50 + node as u32 }))
}

fn line(hops: usize, loss: f64, delay: u64) -> Line {
    Line::new(hops, loss, delay, |i| {
        let config = recoding(i);
        if i == hops { RelayConfig { node: KEY.destination, ..config } } else { config }
    })
}

/// `coding.md` 5.2: a source at 97 % of (1 - p) C gets through however many hops there are.
#[test]
fn goodput_does_not_depend_on_the_number_of_hops() {
    for (hops, loss, delay) in
        [(6, 0.05, 20), (6, 0.1, 20), (6, 0.2, 20), (10, 0.2, 20), (6, 0.1, 100)]
    {
        let mut line = line(hops, loss, delay);
        let goodput = line.run(12_000 + 60 * delay, 0.97 * (1.0 - loss)) / (1.0 - loss);
        let (sent, peak) = (line.next, line.nodes[2].stats().bytes_peak / 192);
        let useless: u64 = line.nodes.iter().map(|n| n.stats().useless + n.stats().late).sum();
        let (extras, top_ups) = line
            .nodes
            .iter()
            .fold((0, 0), |(e, t), n| (e + n.stats().extras, t + n.stats().top_ups));
        line.drain();
        println!(
            "{hops} hops, {loss}, {delay} slots: {goodput:.4} of (1-p)C, useless {useless}, extras {extras}, \
             top-ups {top_ups} of {sent}, buffer {peak} packets"
        );
        assert!(goodput > 0.95, "{hops} hops at {loss}: {goodput}");
        assert_eq!((line.rank() as u64, line.payload_errors), (line.next, 0));
    }
}

/// At full load the tightest hop decides, and relays hold no more than a round trip and the queue.
#[test]
fn backpressure_keeps_the_source_at_the_rate_of_the_line() {
    let mut line = line(6, 0.2, 20);
    let goodput = line.run(12_000, 10.0) / 0.8;
    println!("full load: {goodput}");
    assert!(goodput > 0.96, "{goodput}");
    for node in &line.nodes {
        let stats = node.stats();
        assert!(stats.bytes_peak / 192 < 700, "{} packets", stats.bytes_peak / 192);
        assert_eq!((stats.batches_unrepaired, stats.batches_dropped), (0, 0));
    }
}
