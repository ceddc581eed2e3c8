//! Packets of a neighbour for a relay.

use bats_proto::Timestamp;
use bats_proto::relay::{LinkId, LinkView, Relay, RelayConfig};
use bats_proto::wire::batch_rank::{BatchRank, MAX_BATCHES, Space};
use bats_proto::wire::coding::SourceHeader;
use bats_proto::wire::flow::{FLOW_HEADER_LEN, FlowHeader, FlowKey, NodeId};
use bats_proto::wire::short_header::PacketKind;
use bats_proto::wire::varint::Writer;

use crate::INTERVAL;

pub(crate) const NAMES: &[&str] = &[
    "relay-distant-batches",
    "relay-many-flows",
    "relay-full-memory",
    "relay-duplicates",
    "relay-batch-ranks",
];

const UP: LinkId = LinkId(1);
const DOWN: LinkId = LinkId(2);
const PACKETS: u64 = 2_000;
/// Flows that the relay has before packets of many flows are measured: with one for each of these packets,
/// nearly as many as it holds.
const FLOWS: u64 = 14_000;
/// Batches between two packets: nearly as many as a node tracks.
const JUMP: u64 = MAX_BATCHES as u64 - 124;

/// Memory of a relay that is full, and packets that fill it: no report of the next node frees any.
const SMALL_MEMORY: usize = 4 << 20;
const FULL: u64 = 16_000;

struct Node {
    relay: Relay,
    now: Timestamp,
    view: LinkView,
    out: Vec<u8>,
    number: u64,
}

impl Node {
    fn new(total_bytes: usize) -> Self {
        let config = RelayConfig { total_bytes, ..RelayConfig::new(NodeId(2)) };
        let mut relay = Relay::new(config, 1);
        relay.add_link(UP, true);
        relay.add_link(DOWN, true);
        let now = Timestamp::from_millis(1_000);
        relay.set_route(now, NodeId(3), DOWN);
        let view = LinkView { rate: 12_000_000, ..LinkView::default() };
        Self { relay, now, view, out: Vec::new(), number: 0 }
    }

    /// A packet from one neighbour, and the packet for the other one that it may cause.
    fn push(&mut self, flow: u32, symbol: u64) {
        let packet = self.packet(flow, symbol);
        measured(self, &packet);
    }

    /// As [`Self::push`], not counted.
    fn prepare(&mut self, flow: u32, symbol: u64) {
        let packet = self.packet(flow, symbol);
        relayed(self, &packet);
    }

    fn packet(&mut self, flow: u32, symbol: u64) -> Vec<u8> {
        let mut packet = vec![5; FLOW_HEADER_LEN + 4 + 1_380];
        let key = FlowKey { destination: NodeId(3), source: NodeId(1), flow };
        let mut writer = Writer::new(&mut packet);
        let written = FlowHeader { key, hop_limit: 9 }
            .encode(&mut writer)
            .and_then(|()| SourceHeader::new(symbol).encode(&mut writer));
        assert!(written.is_some(), "there is room");
        self.now += INTERVAL;
        self.number += 1;
        packet
    }

    /// A report of the next node.
    fn report(&mut self, report: &BatchRank) {
        self.now += INTERVAL;
        measured_report(self, report);
    }
}

/// The counter counts this function.
#[inline(never)]
fn measured(node: &mut Node, packet: &[u8]) {
    relayed(node, packet);
}

fn relayed(node: &mut Node, packet: &[u8]) {
    let (relay, now, view) = (&mut node.relay, node.now, &node.view);
    relay.on_packet(now, UP, view, PacketKind::Source, packet);
    relay.pull(now, DOWN, view, node.number, &mut node.out);
    while relay.next_report(now, UP, node.number).is_some() {}
    if relay.next_timeout().is_some_and(|at| at <= now) {
        relay.handle_timeout(now);
    }
}

/// The counter counts this function.
#[inline(never)]
fn measured_report(node: &mut Node, report: &BatchRank) {
    node.relay.on_report(node.now, DOWN, &node.view, report);
    node.relay.pull(node.now, DOWN, &node.view, node.number, &mut node.out);
}

/// The honest packets that a case is compared with.
pub(crate) fn honest_name(case: &str) -> &'static str {
    match case {
        "relay-many-flows" => "relayed-of-many-flows",
        "relay-full-memory" => "relayed-with-full-memory",
        _ => "relayed",
    }
}

/// Runs a case; `None` if it is not one of a relay.
pub(crate) fn run(case: &str, is_hostile: bool) -> Option<(u64, bool)> {
    if !NAMES.contains(&case) {
        return None;
    }
    let is_full = case == "relay-full-memory";
    let mut node = Node::new(if is_full { SMALL_MEMORY } else { 256 << 20 });
    if is_full {
        (0..FULL).for_each(|number| node.prepare(7, number));
    }
    if case == "relay-many-flows" {
        (0..FLOWS).for_each(|flow| node.prepare(flow as u32, JUMP * 16));
    }
    if !is_hostile {
        match case {
            // The next packet of flows that exist.
            "relay-many-flows" => {
                (0..PACKETS).for_each(|flow| node.push(flow as u32, JUMP * 16 + 1));
            }
            "relay-full-memory" => (FULL..FULL + PACKETS).for_each(|number| node.push(7, number)),
            _ => (0..PACKETS).for_each(|number| node.push(7, number)),
        }
        return Some((PACKETS, false));
    }
    match case {
        "relay-distant-batches" => (0..PACKETS).for_each(|number| node.push(7, number * 16 * JUMP)),
        "relay-many-flows" => {
            (FLOWS..FLOWS + PACKETS).for_each(|flow| node.push(flow as u32, JUMP * 16));
        }
        // Each packet takes the memory of another batch.
        "relay-full-memory" => {
            (FULL..FULL + PACKETS).for_each(|number| node.push(7, 16 * number));
        }
        "relay-duplicates" => (0..PACKETS).for_each(|number| node.push(7, number % 4)),
        _ => {
            // Only the reports are measured. There are as many packets before them as in the honest
            // case.
            let key = FlowKey { destination: NodeId(3), source: NodeId(1), flow: 7 };
            (0..200).for_each(|number| node.push(7, number * 16));
            for mark in 0..PACKETS - 200 {
                node.report(&BatchRank {
                    key,
                    space: Space::Source,
                    mark,
                    room: 1_000,
                    first: 0,
                    ranks: vec![0; MAX_BATCHES],
                });
            }
        }
    }
    Some((PACKETS, false))
}
