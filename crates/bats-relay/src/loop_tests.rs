//! A routing loop: while routes change, three relays may send the packets of a flow in a circle.
//! Each relay must forward a packet once, whichever link it comes over.

use core::time::Duration;

use super::tests::{KEY, symbol, view};
use super::*;
use bats_wire::coding::SourceHeader;

/// From the node before in the circle, to the next one, and from the source.
const BEFORE: LinkId = LinkId(1);
const NEXT: LinkId = LinkId(2);
const SOURCE: LinkId = LinkId(3);
const NODES: usize = 3;
/// Number of symbols that the source sends: some batches and a part of one.
const SYMBOLS: u64 = 100;
const SLOT: Duration = Duration::from_micros(100);
/// Time of a link in slots.
const DELAY: u64 = 20;

/// Packets that cross the links of the circle until all is quiet.
fn packets_in_a_circle(recoding: bool, source_links: &[LinkId]) -> u64 {
    let seen = LinkView { packet: 1_200, ..view(12_000_000, 4) };
    let mut nodes: Vec<Relay> = (0..NODES)
        .map(|i| {
            let config = RelayConfig { recoding, ..RelayConfig::new(NodeId(1 + i as u32)) };
            let mut relay = Relay::new(config, i as u64);
            for link in [BEFORE, NEXT, SOURCE, LinkId(4)] {
                relay.add_link(link, true);
            }
            relay.set_route(Timestamp::from_millis(1), KEY.destination, NEXT);
            relay
        })
        .collect();
    let mut forward = vec![VecDeque::<(u64, u64, PacketKind, Vec<u8>)>::new(); NODES];
    let mut backward = vec![VecDeque::<(u64, BatchRank)>::new(); NODES];
    let (mut sent, mut marks) = ([0u64; NODES], [0u64; NODES]);
    for slot in 0..60_000u64 {
        let now = Timestamp::from_millis(1) + SLOT * slot as u32;
        if slot < SYMBOLS {
            let mut packet = vec![0; FLOW_HEADER_LEN + 4];
            let mut writer = Writer::new(&mut packet);
            FlowHeader { key: KEY, hop_limit: 64 }.encode(&mut writer).unwrap();
            SourceHeader::new(slot).encode(&mut writer).unwrap();
            packet.extend(symbol(slot));
            let link = source_links[slot as usize % source_links.len()];
            nodes[0].on_packet(now, link, &seen, PacketKind::Source, &packet);
        }
        for i in 0..NODES {
            let next = (i + 1) % NODES;
            while forward[i].front().is_some_and(|(at, ..)| *at <= slot) {
                let (_, number, kind, packet) = forward[i].pop_front().unwrap();
                marks[i] = marks[i].max(number);
                nodes[next].on_packet(now, BEFORE, &seen, kind, &packet);
            }
            while backward[i].front().is_some_and(|(at, _)| *at <= slot) {
                let (_, report) = backward[i].pop_front().unwrap();
                nodes[i].on_report(now, NEXT, &seen, &report);
            }
            if nodes[i].next_timeout().is_some_and(|at| at <= now) {
                nodes[i].handle_timeout(now);
            }
        }
        for i in 0..NODES {
            let mut out = Vec::new();
            if let Some(kind) = nodes[i].pull(now, NEXT, &seen, sent[i] + 1, &mut out) {
                sent[i] += 1;
                forward[i].push_back((slot + DELAY, sent[i], kind, out));
            }
            while let Some(report) = nodes[(i + 1) % NODES].next_report(now, BEFORE, marks[i]) {
                backward[i].push_back((slot + DELAY, report));
            }
        }
    }
    sent.iter().sum()
}

/// Regression: the rank was counted for each link alone, so that only the hop limit ended the
/// circle.
#[test]
fn routing_loop_of_three_nodes_costs_one_round() {
    for recoding in [true, false] {
        let sent = packets_in_a_circle(recoding, &[SOURCE]);
        assert_eq!(sent, NODES as u64 * SYMBOLS, "recoding: {recoding}");
    }
}

#[test]
fn routing_loop_costs_one_round_although_the_source_uses_two_links() {
    for recoding in [true, false] {
        let sent = packets_in_a_circle(recoding, &[SOURCE, LinkId(4)]);
        assert_eq!(sent, NODES as u64 * SYMBOLS, "recoding: {recoding}");
    }
}
