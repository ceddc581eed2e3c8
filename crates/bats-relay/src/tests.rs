//! Lines of relays in slots. Each link takes one packet in a slot, loses some, and delivers after a
//! fixed number of slots. Tests the code alone, without congestion control.

use core::time::Duration;
use std::collections::VecDeque;

use proptest::prelude::{any, prop, proptest};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::ingress::parts;
use super::*;
use bats_wire::batch_rank::Space;
use bats_wire::coding::{CodingHeader, SourceHeader};
use bats_wire::varint::Reader;

const SLOT: Duration = Duration::from_micros(100);
const SYMBOL: usize = 24;
pub(super) const KEY: FlowKey = FlowKey { destination: NodeId(100), source: NodeId(0), flow: 7 };
pub(super) const LINK_UP: LinkId = LinkId(1);
pub(super) const LINK_DOWN: LinkId = LinkId(2);

/// A packet in flight: arrival slot, number, kind, payload.
type InFlight = (u64, u64, PacketKind, Vec<u8>);

pub(super) struct Line {
    pub(super) nodes: Vec<Relay>,
    forward: Vec<VecDeque<InFlight>>,
    backward: Vec<VecDeque<(u64, BatchRank)>>,
    numbers: Vec<u64>,
    marks: Vec<u64>,
    view: LinkView,
    delay: u64,
    loss: f64,
    slot: u64,
    rng: ChaCha8Rng,
    pub(super) next: u64,
    received: BTreeMap<u64, usize>,
    pub(super) payload_errors: usize,
    /// Fraction of the reports that are lost.
    report_loss: f64,
}

pub(super) fn symbol(number: u64) -> [u8; SYMBOL] {
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
                    relay.set_route(Timestamp::from_millis(1), KEY.destination, LINK_DOWN);
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
            alive: true,
            potentially_failed: false,
        };
        Self {
            nodes,
            forward: vec![VecDeque::new(); hops],
            backward: vec![VecDeque::new(); hops],
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
            report_loss: 0.0,
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1) + SLOT * self.slot as u32
    }

    /// Sends the source's next symbol.
    fn send_symbol(&mut self) -> bool {
        let now = self.now();
        if !self.nodes[0].has_room(now, KEY, LINK_DOWN) {
            return false;
        }
        let mut packet = vec![0; 4];
        SourceHeader::new(self.next).encode(&mut Writer::new(&mut packet)).unwrap();
        packet.extend(symbol(self.next));
        self.nodes[0].queue_coded(now, KEY, LINK_DOWN, PacketKind::Source, &packet);
        self.next += 1;
        true
    }

    fn step(&mut self) {
        self.slot += 1;
        let now = self.now();
        for hop in 0..self.forward.len() {
            while self.forward[hop].front().is_some_and(|(at, ..)| *at <= self.slot) {
                let (_, number, kind, payload) = self.forward[hop].pop_front().unwrap();
                self.marks[hop] = self.marks[hop].max(number);
                let delivery =
                    self.nodes[hop + 1].on_packet(now, LINK_UP, &self.view, kind, &payload);
                if let Some(delivery) = delivery {
                    self.deliver(delivery.kind, delivery.payload.to_vec());
                }
            }
            while self.backward[hop].front().is_some_and(|(at, _)| *at <= self.slot) {
                let (_, report) = self.backward[hop].pop_front().unwrap();
                self.nodes[hop].on_report(now, LINK_DOWN, &self.view, &report);
            }
        }
        for node in &mut self.nodes {
            if node.next_timeout().is_some_and(|at| at <= now) {
                node.handle_timeout(now);
            }
        }
        for hop in 0..self.forward.len() {
            let (number, mut out) = (self.numbers[hop] + 1, Vec::new());
            let pulled = self.nodes[hop].pull(now, LINK_DOWN, &self.view, number, &mut out);
            if let Some(kind) = pulled {
                self.numbers[hop] = number;
                if !self.rng.random_bool(self.loss) {
                    self.forward[hop].push_back((self.slot + self.delay, number, kind, out));
                }
            }
            let mark = self.marks[hop];
            while let Some(report) = self.nodes[hop + 1].next_report(now, LINK_UP, mark) {
                if !self.rng.random_bool(self.report_loss) {
                    self.backward[hop].push_back((self.slot + self.delay, report));
                }
            }
        }
    }

    /// Counts the ranks that arrive and checks that each packet is the linear combination of its
    /// vector.
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

    pub(super) fn rank(&self) -> usize {
        self.received.values().sum()
    }

    /// Runs with a source load of `load` symbols per slot. Returns the symbols delivered per slot,
    /// measured after the first third.
    pub(super) fn run(&mut self, slots: u64, load: f64) -> f64 {
        let (mut due, mut before) = (0.0, 0);
        for slot in 0..slots {
            due = f64::min(due + load, 50.0);
            while due >= 1.0 && self.send_symbol() {
                due -= 1.0;
            }
            self.step();
            if slot == slots / 3 {
                before = self.rank();
            }
        }
        (self.rank() - before) as f64 / (slots - slots / 3) as f64
    }

    /// Runs until everything that can still arrive has arrived.
    pub(super) fn drain(&mut self) {
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

pub(super) fn line(hops: usize, loss: f64, delay: u64) -> Line {
    Line::new(hops, loss, delay, |i| {
        let config = recoding(i);
        if i == hops { RelayConfig { node: KEY.destination, ..config } } else { config }
    })
}

/// A load of 97 % of (1 - p) C gets through any number of hops.
#[test]
fn goodput_does_not_depend_on_the_number_of_hops() {
    for (hops, loss, delay) in
        [(6, 0.05, 20), (6, 0.1, 20), (6, 0.2, 20), (10, 0.2, 20), (6, 0.1, 100)]
    {
        let mut line = line(hops, loss, delay);
        let goodput = line.run(12_000 + 60 * delay, 0.97 * (1.0 - loss)) / (1.0 - loss);
        let (sent, peak) = (line.next, line.nodes[2].stats().memory.bytes_peak / 192);
        let non_innovative: u64 = line
            .nodes
            .iter()
            .map(|n| n.stats().dropped.non_innovative + n.stats().dropped.late)
            .sum();
        let (extras, top_ups) = line
            .nodes
            .iter()
            .fold((0, 0), |(e, t), n| (e + n.stats().extras, t + n.stats().top_ups));
        line.drain();
        println!(
            "{hops} hops, {loss}, {delay} slots: {goodput:.4} of (1-p)C, non-innovative {non_innovative}, extras {extras}, \
             top-ups {top_ups} of {sent}, buffer {peak} packets"
        );
        assert!(goodput > 0.95, "{hops} hops at {loss}: {goodput}");
        assert_eq!((line.rank() as u64, line.payload_errors), (line.next, 0));
    }
}

/// At full load the slowest hop limits the rate, and relays hold at most a round trip and the
/// queue.
#[test]
fn backpressure_limits_the_source_to_the_slowest_hop() {
    let mut line = line(6, 0.2, 20);
    let goodput = line.run(12_000, 10.0) / 0.8;
    println!("full load: {goodput}");
    assert!(goodput > 0.96, "{goodput}");
    for node in &line.nodes {
        let stats = node.stats();
        assert!(stats.memory.bytes_peak / 192 < 700, "{} packets", stats.memory.bytes_peak / 192);
        assert_eq!((stats.batches.unrepaired, stats.batches.dropped), (0, 0));
    }
}

/// Without reports, adaptive recoding comes close to the best possible mean rank: that of
/// systematic recoding with the optimal number of packets for each batch, computed exactly.
#[test]
fn without_reports_adaptive_recoding_is_close_to_the_optimal_allocation() {
    // (hops, loss, fraction of (1-p)C with optimal allocation)
    for (hops, loss, optimum) in [(2, 0.1, 0.967), (6, 0.1, 0.913), (3, 0.2, 0.923)] {
        let mut line = line(hops, loss, 20);
        for node in &mut line.nodes {
            for link in node.links.values_mut() {
                link.feedback = false;
            }
        }
        // The source sends 16 packets for each batch; each relay sends as many as its link takes.
        let slots = 16_000;
        let (mut due, mut before) = (0.0, (0, 0));
        for slot in 0..slots {
            due = f64::min(due + 1.0 - loss, 20.0);
            while due >= 1.0 && line.send_symbol() {
                due -= 1.0;
            }
            line.step();
            if slot == slots / 3 {
                before = (line.rank(), line.next);
            }
        }
        // Of 16 symbols for each batch, as with a source that sends R-columns at the full rate.
        let fraction = (line.rank() - before.0) as f64 / (line.next - before.1) as f64;
        println!("{hops} hops at {loss} without reports: {fraction:.3}, optimum {optimum}");
        assert!(fraction > 0.97 * optimum, "{hops} hops at {loss}: {fraction}");
        assert!(fraction < 1.0 && line.payload_errors == 0);
    }
}

/// The last report of a queue that has become empty may be lost, too.
#[test]
fn lost_reports_do_not_stall_the_flow() {
    for report_loss in [0.2, 0.6] {
        let mut line = line(4, 0.1, 5);
        line.report_loss = report_loss;
        let goodput = line.run(9_000, 10.0) / 0.9;
        line.drain();
        println!("{report_loss} of the reports lost: {goodput:.3}");
        assert!(goodput > 0.9 - report_loss / 4.0, "{goodput} at {report_loss}");
        assert_eq!(line.rank() as u64, line.next);
    }
}

/// Single symbols at intervals: relays repair a loss at once, before source or destination detect
/// it.
#[test]
fn thin_flow_losses_delay_packets_by_milliseconds() {
    for known in [true, false] {
        let mut line = line(3, 0.05, 100);
        if !known {
            line.view.loss = 0.0;
        }
        let (mut sent, mut delays, mut ranks) = (VecDeque::new(), Vec::new(), 0);
        for slot in 0..60_000_u64 {
            if slot % 100 == 0 && slot < 55_000 {
                assert!(line.send_symbol());
                sent.push_back(slot);
            }
            line.step();
            while ranks < line.rank() {
                ranks += 1;
                delays.push(slot - sent.pop_front().unwrap());
            }
        }
        delays.sort_unstable();
        let at = |quantile: f64| delays[(delays.len() as f64 * quantile) as usize];
        println!("known {known}: {} {} {} slots", at(0.5), at(0.99), at(0.998));
        assert!(sent.is_empty(), "{} never arrived", sent.len());
        assert!(at(0.5) <= 302);
        // Two milliseconds for each hop if the loss is known; otherwise a round trip of the hop
        // plus a margin.
        assert!(at(0.99) < 300 + if known { 70 } else { 700 }, "{}", at(0.99));
    }
}

pub(super) fn two_link_relay() -> Relay {
    let mut relay = Relay::new(RelayConfig::new(NodeId(50)), 1);
    relay.add_link(LINK_UP, true);
    relay.add_link(LINK_DOWN, true);
    relay.set_route(Timestamp::from_millis(1), KEY.destination, LINK_DOWN);
    relay
}

pub(super) fn relayed(key: FlowKey, hop_limit: u8, number: u64, len: usize) -> Vec<u8> {
    let mut packet = vec![0; FLOW_HEADER_LEN + 4];
    let mut writer = Writer::new(&mut packet);
    FlowHeader { key, hop_limit }.encode(&mut writer).unwrap();
    SourceHeader::new(number).encode(&mut writer).unwrap();
    packet.resize(FLOW_HEADER_LEN + 4 + len, number as u8 | 1);
    packet
}

pub(super) fn pull(
    relay: &mut Relay,
    now: Timestamp,
    view: &LinkView,
    number: u64,
) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    relay.pull(now, LINK_DOWN, view, number, &mut out).map(|_| out)
}

pub(super) const NOW: Timestamp = Timestamp::from_millis(1_000);

pub(super) fn push(relay: &mut Relay, now: Timestamp, link: LinkId, payload: &[u8]) -> bool {
    relay.on_packet(now, link, &LinkView::default(), PacketKind::Source, payload).is_some()
}

#[test]
fn a_relay_has_the_links_that_were_admitted() {
    let mut relay = two_link_relay();
    assert!(relay.has_link(LINK_UP) && relay.has_link(LINK_DOWN) && !relay.has_link(LinkId(9)));
    relay.remove_link(NOW, LINK_UP);
    assert!(!relay.has_link(LINK_UP) && relay.has_link(LINK_DOWN));
}

#[test]
fn a_relay_recodes_if_its_configuration_says_so() {
    for recoding in [true, false] {
        let config = RelayConfig { recoding, ..RelayConfig::new(NodeId(50)) };
        assert_eq!(Relay::new(config, 1).is_recoding(), recoding);
    }
}

#[test]
fn unadmitted_looping_and_malformed_packets_are_dropped() {
    let mut relay = two_link_relay();
    let is_idle = |relay: &mut Relay| pull(relay, NOW, &LinkView::default(), 1).is_none();
    push(&mut relay, NOW, LinkId(9), &relayed(KEY, 5, 0, 40));
    assert!(is_idle(&mut relay) && relay.stats().flows == 0, "not admitted");
    push(&mut relay, NOW, LINK_UP, &relayed(KEY, 0, 0, 40));
    assert_eq!((is_idle(&mut relay), relay.stats().dropped.hop_limit), (true, 1));
    push(&mut relay, NOW, LINK_DOWN, &relayed(KEY, 5, 0, 40));
    assert_eq!((is_idle(&mut relay), relay.stats().dropped.looped), (true, 1));
    push(&mut relay, NOW, LINK_UP, &relayed(FlowKey { source: NodeId(50), ..KEY }, 5, 0, 40));
    assert_eq!((is_idle(&mut relay), relay.stats().dropped.looped), (true, 2));
    push(&mut relay, NOW, LINK_UP, &relayed(FlowKey { destination: NodeId(3), ..KEY }, 5, 0, 40));
    assert_eq!((is_idle(&mut relay), relay.stats().dropped.unroutable), (true, 1));
    for len in [0, 5, FLOW_HEADER_LEN, FLOW_HEADER_LEN + 3] {
        push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, 0, 40)[..len]);
    }
    assert_eq!((is_idle(&mut relay), relay.stats().dropped.malformed), (true, 4));
    // The last link is crossed with a hop limit of 0.
    push(&mut relay, NOW, LINK_UP, &relayed(KEY, 1, 0, 40));
    let sent = pull(&mut relay, NOW, &LinkView::default(), 1).unwrap();
    assert_eq!(sent, relayed(KEY, 0, 0, 40), "unchanged, at once");
}

#[test]
fn idle_relay_forwards_at_once_and_repairs_after_two_milliseconds() {
    let mut relay = two_link_relay();
    let view = LinkView { loss: 0.05, ..LinkView::default() };
    push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, 0, 40));
    assert!(pull(&mut relay, NOW, &view, 1).is_some());
    assert!(pull(&mut relay, NOW, &view, 2).is_none());
    let close = NOW + Duration::from_millis(2);
    while let Some(at) = relay.next_timeout().filter(|&at| at <= close) {
        relay.handle_timeout(at);
    }
    assert_eq!(relay.pop_ready(), Some(LINK_UP), "a report");
    assert_eq!(relay.pop_ready(), Some(LINK_DOWN));
    assert!(pull(&mut relay, close, &view, 2).is_some(), "two repairs for one packet");
    assert!(pull(&mut relay, close, &view, 3).is_some());
    assert!(pull(&mut relay, close, &view, 4).is_none());
    assert_eq!((relay.stats().forwarded, relay.stats().extras), (1, 2));
}

/// A neighbour that always reports missing rank gets a limited number of recoded packets of a
/// batch.
#[test]
fn recoded_packets_of_a_batch_are_limited() {
    // With losses, those before a report count, too.
    for loss in [0.0, 0.5] {
        let mut relay = two_link_relay();
        for number in 0..16 {
            push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, number, 40));
        }
        let (mut sent, view) = (0, LinkView { loss, ..LinkView::default() });
        let mut now = NOW;
        for round in 0..100 {
            now += Duration::from_millis(10);
            while pull(&mut relay, now, &view, sent + 1).is_some() {
                sent += 1;
            }
            let ranks = vec![round as u8 % 2];
            let report = BatchRank { mark: sent + 10, ranks, ..report(1_000) };
            relay.on_report(now, LINK_DOWN, &view, &report);
        }
        assert_eq!(sent, 16 + u64::from(MAX_RECODED));
        assert_eq!(relay.stats().batches.capped, 1);
    }
}

#[test]
fn non_innovative_neighbour_is_reported_once() {
    let mut relay = two_link_relay();
    for _ in 0..3 * NON_INNOVATIVE_WINDOW {
        push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, 0, 40));
    }
    assert_eq!(relay.pop_event(), Some(RelayEvent::NonInnovativeNeighbour(LINK_UP)));
    assert_eq!(relay.pop_event(), None);
    assert_eq!(relay.stats().dropped.non_innovative, 3 * NON_INNOVATIVE_WINDOW - 1);
    // Half of them is acceptable.
    let mut relay = two_link_relay();
    for number in 0..NON_INNOVATIVE_WINDOW / 2 {
        for _ in 0..2 {
            push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, number, 40));
        }
    }
    assert_eq!(relay.pop_event(), None);
}

/// Memory of one flow and of all flows is limited, whatever arrives and however slow the next hop
/// is. After the idle time-out none is held.
#[test]
fn relay_memory_is_bounded_and_freed_when_idle() {
    let mut relay = two_link_relay();
    relay.config.total_bytes = 2 * MIN_FLOW_BYTES;
    let packets = 3 * MIN_FLOW_BYTES as u64 / 1_408;
    for number in 0..packets {
        push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, number, 1_408));
        assert!(relay.bytes <= MIN_FLOW_BYTES, "{} bytes", relay.bytes);
    }
    assert!(relay.stats().batches.dropped > 50);
    assert!(relay.bytes > MIN_FLOW_BYTES - 20 * 1_600, "the remaining packets are kept");

    // Ten thousand flows share the total budget.
    let flow = |flow: u64| FlowKey { flow: flow as u32, ..KEY };
    let total = 64 << 20;
    relay.config.total_bytes = total;
    for number in 0..10_000 * 5 {
        push(&mut relay, NOW, LINK_UP, &relayed(flow(number % 10_000), 5, number / 10_000, 1_408));
        assert!(relay.bytes <= total);
    }
    assert_eq!(relay.stats().flows, 10_000);
    assert!(relay.bytes > total - (2 << 20));
    for number in 0..=MAX_FLOWS as u64 {
        push(&mut relay, NOW, LINK_UP, &relayed(flow(number), 5, 0, 40));
    }
    assert_eq!((relay.stats().flows, relay.stats().dropped.overflowed), (MAX_FLOWS as u64, 1));

    let timeout = relay.config.idle_timeout;
    let later = NOW + timeout;
    relay.handle_timeout(NOW + (timeout - Duration::from_millis(1)));
    assert_eq!(relay.stats().flows, MAX_FLOWS as u64);
    relay.handle_timeout(later);
    assert_eq!((relay.stats().flows, relay.bytes, relay.timers.len()), (0, 0, 0));
    assert!(pull(&mut relay, later, &LinkView::default(), 1).is_none());
    let kept = relay.links[&LINK_DOWN].active.len() + relay.links[&LINK_UP].reporting.len();
    assert_eq!((relay.stats().flows_expired, kept), (MAX_FLOWS as u64, 0));
}

/// A link with a long round trip needs much memory: what is sent is held until the next node has it. A
/// flow by itself may take half of the memory, and leaves the other half to others.
#[test]
fn a_flow_may_take_half_of_the_memory() {
    let mut relay = two_link_relay();
    relay.config.total_bytes = 32 << 20;
    for number in 0..20_000 {
        push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, number, 1_408));
        assert!(relay.bytes <= 16 << 20);
    }
    assert!(relay.bytes > (16 << 20) - 20 * 1_600, "{}", relay.bytes);
    let other = FlowKey { flow: 8, ..KEY };
    for number in 0..20_000 {
        push(&mut relay, NOW, LINK_UP, &relayed(other, 5, number, 1_408));
    }
    let held = |relay: &Relay, key| relay.flows[&key].outbound[&LINK_DOWN].bytes();
    assert!(held(&relay, other) > (8 << 20) - 20 * 1_600, "half of what is left");
    // The next packet of the first flow leaves it half of what the other one does not take.
    push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, 20_000, 1_408));
    assert!(held(&relay, KEY) <= (12 << 20) + 20 * 1_600, "{}", held(&relay, KEY));
}

/// A source that has packets for longer than they fit into its memory stops. What it holds may need
/// repairs and is not freed.
#[test]
fn a_source_waits_for_memory() {
    let mut relay = two_link_relay();
    relay.config.total_bytes = 4 << 20;
    let (mut sent, seen) = (0, view(100_000_000, 100));
    while relay.has_room(NOW, KEY, LINK_DOWN) {
        let mut packet = vec![0; 4];
        SourceHeader::new(sent).encode(&mut Writer::new(&mut packet)).unwrap();
        packet.extend([7; 1_100]);
        relay.queue_coded(NOW, KEY, LINK_DOWN, PacketKind::Source, &packet);
        sent += 1;
        assert!(pull(&mut relay, NOW, &seen, sent).is_some());
    }
    assert!((2 << 20) - relay.bytes <= 2 * 1_400, "{} bytes", relay.bytes);
    let stats = relay.stats();
    assert_eq!((stats.batches.unrepaired, stats.batches.dropped), (0, 0));
    let first = (sent / 16) as u32;
    let complete = BatchRank { first, mark: sent, ranks: Vec::new(), ..report(100_000) };
    while relay.pop_ready().is_some() {}
    relay.on_report(NOW, LINK_DOWN, &seen, &complete);
    assert_eq!(relay.pop_ready(), Some(LINK_DOWN), "the link asks its sessions again");
    assert!(relay.has_room(NOW, KEY, LINK_DOWN), "the next node has the packets");
}

/// A relay that loses its state costs the packets in flight, and later packets pass.
#[test]
fn relay_restart_loses_only_packets_in_flight() {
    let mut line = line(4, 0.1, 20);
    line.run(3_000, 0.8);
    let fresh = |id: usize| {
        let mut relay = Relay::new(recoding(id), 77);
        relay.add_link(LINK_UP, true);
        relay.add_link(LINK_DOWN, true);
        relay.set_route(Timestamp::from_millis(1), KEY.destination, LINK_DOWN);
        relay
    };
    let held = line.nodes[2].stats().memory.bytes_held / 192;
    line.nodes[2] = fresh(2);
    line.run(3_000, 0.8);
    for _ in 0..20_000 {
        line.step();
    }
    let lost = line.next - line.rank() as u64;
    println!("{held} packets held, {lost} symbols lost");
    assert!(lost <= held, "{lost} of {held} packets");
    assert_eq!(line.payload_errors, 0);
    assert!(
        line.nodes.iter().all(|node| node.stats().memory.bytes_held == 0),
        "no packets are held"
    );
}

/// Conservation: a relay sends as many packets of a batch as the loss of its link requires.
#[test]
fn relays_send_as_many_packets_as_the_loss_requires() {
    for loss in [0.0, 0.1, 0.3] {
        let mut line = line(3, loss, 20);
        line.run(9_000, 0.9 * (1.0 - loss));
        line.drain();
        let symbols = line.next as f64;
        for node in &line.nodes[..3] {
            let stats = node.stats();
            assert!(stats.forwarded as f64 <= symbols, "no packet is forwarded twice");
            let expected = 1.0 / (1.0 - loss);
            let needed = (stats.forwarded + stats.top_ups) as f64 / symbols;
            assert!(needed < 1.04 * expected, "{needed} for {expected} at {loss}");
            let all = needed + stats.extras as f64 / symbols;
            assert!(all > 0.97 * expected, "{all} for {expected} at {loss}");
            assert!(loss > 0.0 || stats.extras == 0);
        }
    }
}

proptest! {
    /// Whatever an admitted neighbour sends, the relay stays within its limits.
    #[test]
    fn arbitrary_packets_keep_relay_limits(
        inputs in prop::collection::vec(
            (any::<u8>(), prop::collection::vec(any::<u8>(), 0..80)), 0..60),
    ) {
        let mut relay = two_link_relay();
        // About 20 packets of this length.
        relay.config.total_bytes = 4 << 10;
        let (mut now, view) = (NOW, LinkView { loss: 0.3, ..LinkView::default() });
        for (number, (choice, bytes)) in (1..).zip(inputs) {
            let link = if choice & 1 == 0 { LINK_UP } else { LINK_DOWN };
            let kinds =
                [PacketKind::Control, PacketKind::Source, PacketKind::Repair, PacketKind::Recoded];
            let kind = kinds[usize::from(choice >> 1 & 3)];
            // Mostly a flow that exists, followed by arbitrary bytes.
            let mut payload = relayed(KEY, choice >> 5, 0, 0);
            payload.truncate(if choice & 8 == 0 { FLOW_HEADER_LEN } else { 0 });
            payload.extend(&bytes);
            relay.on_packet(now, link, &view, kind, &payload);
            let mut report = vec![0; 12];
            KEY.encode(&mut Writer::new(&mut report)).unwrap();
            report.extend(&bytes);
            if let Some(report) = BatchRank::decode(&mut Reader::new(&report)) {
                relay.on_report(now, link, &view, &report);
            }
            let mut out = Vec::new();
            relay.pull(now, LINK_DOWN, &view, number, &mut out);
            while relay.next_report(now, LINK_UP, number).is_some() {}
            now += Duration::from_micros(u64::from(choice) * 100);
            relay.handle_timeout(now);
            assert!(relay.bytes <= relay.config.total_bytes && relay.flows.len() <= 1 + number as usize);
        }
        now += Duration::from_secs(301);
        for _ in 0..3 {
            relay.handle_timeout(now);
        }
        assert_eq!((relay.flows.len(), relay.bytes), (0, 0));
    }
}

pub(super) fn view(rate: u64, rtt: u64) -> LinkView {
    let rtt = Duration::from_millis(rtt);
    LinkView { rate, smoothed_rtt: rtt, min_rtt: rtt, ..LinkView::default() }
}

pub(super) fn report(room: u64) -> BatchRank {
    BatchRank { key: KEY, space: Space::Source, mark: 9, room, first: 0, ranks: vec![1] }
}
