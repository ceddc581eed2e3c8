//! Groups: networks of relays in slots, and one relay compared with a naive model.

use core::time::Duration;
use std::collections::BTreeMap;

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::tests::{symbol, view};
use super::*;
use bats_wire::coding::{CodingHeader, SourceHeader};
use bats_wire::varint::Reader;

const GROUP: NodeId = NodeId(0xe000_0001);
const KEY: FlowKey = FlowKey { destination: GROUP, source: NodeId(0), flow: 7 };
const SLOT: Duration = Duration::from_micros(100);
/// Time of a link in slots, in one direction.
const DELAY: u64 = 20;
const RTT: Duration = Duration::from_millis(4);
/// Bytes of a symbol in a relay.
const ROW: u64 = 192;

/// Payload of a source packet of a flow, with its flow header.
fn source_packet(key: FlowKey, number: u64) -> Vec<u8> {
    let mut packet = vec![0; FLOW_HEADER_LEN + 4];
    let mut writer = Writer::new(&mut packet);
    FlowHeader { key, hop_limit: 64 }.encode(&mut writer).unwrap();
    SourceHeader::new(number).encode(&mut writer).unwrap();
    packet.extend(symbol(number));
    packet
}

/// One direction of a link: link `n` has the number `n + 1` at both of its nodes.
struct Direction {
    from: usize,
    to: usize,
    link: LinkId,
    loss: f64,
    /// A packet leaves each so many slots.
    slots_per_packet: u64,
    is_alive: bool,
    /// Nothing arrives, although the link looks alive.
    is_cut: bool,
    packets: VecDeque<(u64, u64, PacketKind, Vec<u8>)>,
    reports: VecDeque<(u64, BatchRank)>,
    sent: u64,
    largest: u64,
}

struct Network {
    nodes: Vec<Relay>,
    directions: Vec<Direction>,
    slot: u64,
    rng: ChaCha8Rng,
    /// Symbols that the source has sent.
    next: u64,
    /// Slots of the arrivals at each node.
    arrivals: Vec<Vec<u64>>,
}

impl Network {
    fn new(nodes: usize, edges: &[(usize, usize)]) -> Self {
        let node = |i: usize| Relay::new(RelayConfig::new(NodeId(i as u32)), i as u64);
        let mut network = Self {
            nodes: (0..nodes).map(node).collect(),
            directions: Vec::new(),
            slot: 0,
            rng: ChaCha8Rng::seed_from_u64(1),
            next: 0,
            arrivals: vec![Vec::new(); nodes],
        };
        for (index, &(a, b)) in edges.iter().enumerate() {
            let link = LinkId(1 + index as u64);
            for (from, to) in [(a, b), (b, a)] {
                network.nodes[from].add_link(link, true);
                network.directions.push(Direction {
                    from,
                    to,
                    link,
                    loss: 0.0,
                    slots_per_packet: 1,
                    is_alive: true,
                    is_cut: false,
                    packets: VecDeque::new(),
                    reports: VecDeque::new(),
                    sent: 0,
                    largest: 0,
                });
            }
        }
        network
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1) + SLOT * self.slot as u32
    }

    fn view(direction: &Direction) -> LinkView {
        let rate = (1_200.0 / SLOT.as_secs_f64()) as u64 / direction.slots_per_packet;
        let alive = direction.is_alive;
        LinkView { loss: direction.loss, packet: 1_200, alive, ..view(rate, 4) }
    }

    /// The direction of link `index` away from a node.
    fn direction(&mut self, index: usize, from: usize) -> &mut Direction {
        self.directions[2 * index..][..2].iter_mut().find(|d| d.from == from).unwrap()
    }

    fn set_entry(&mut self, node: usize, incoming: &[usize], branches: &[&[usize]]) {
        let links = |links: &[usize]| links.iter().map(|&link| LinkId(1 + link as u64)).collect();
        let branches = branches.iter().map(|branch| links(branch)).collect();
        let entry = GroupEntry { incoming: links(incoming), branches };
        let now = self.now();
        self.nodes[node].set_group_entry(now, KEY.source, GROUP, entry).unwrap();
    }

    fn send_symbol(&mut self) -> bool {
        let now = self.now();
        let links = self.nodes[0].branches(KEY);
        if !links.into_iter().any(|link| self.nodes[0].has_room(now, KEY, link)) {
            return false;
        }
        let mut packet = vec![0; 4];
        SourceHeader::new(self.next).encode(&mut Writer::new(&mut packet)).unwrap();
        packet.extend(symbol(self.next));
        self.nodes[0].send_to_group(now, KEY, PacketKind::Source, &packet);
        self.next += 1;
        true
    }

    fn step(&mut self) {
        self.slot += 1;
        let (now, slot) = (self.now(), self.slot);
        for direction in &mut self.directions {
            let seen = Self::view(direction);
            let node = &mut self.nodes[direction.to];
            while direction.packets.front().is_some_and(|(at, ..)| *at <= slot) {
                let (_, number, kind, packet) = direction.packets.pop_front().unwrap();
                direction.largest = number;
                if let Some(delivery) = node.on_packet(now, direction.link, &seen, kind, &packet) {
                    assert_is_combination(kind, delivery.payload);
                    self.arrivals[direction.to].push(slot);
                }
            }
            let node = &mut self.nodes[direction.from];
            while direction.reports.front().is_some_and(|(at, _)| *at <= slot) {
                let (_, report) = direction.reports.pop_front().unwrap();
                node.on_report(now, direction.link, &seen, &report);
            }
            node.set_view(now, direction.link, &seen);
        }
        for node in &mut self.nodes {
            if node.next_timeout().is_some_and(|at| at <= now) {
                node.handle_timeout(now);
            }
        }
        for direction in &mut self.directions {
            let seen = Self::view(direction);
            let (number, mut out) = (direction.sent + 1, Vec::new());
            if slot % direction.slots_per_packet == 0
                && direction.is_alive
                && let Some(kind) =
                    self.nodes[direction.from].pull(now, direction.link, &seen, number, &mut out)
            {
                direction.sent = number;
                if !direction.is_cut && !self.rng.random_bool(direction.loss) {
                    direction.packets.push_back((slot + DELAY, number, kind, out));
                }
            }
            let node = &mut self.nodes[direction.to];
            while let Some(report) = node.next_report(now, direction.link, direction.largest) {
                if direction.is_alive {
                    direction.reports.push_back((slot + DELAY, report));
                }
            }
        }
    }

    /// Runs with a load of so many symbols per slot.
    fn run(&mut self, slots: u64, load: f64) {
        let mut due = 0.0;
        for _ in 0..slots {
            due = f64::min(due + load, 50.0);
            while due >= 1.0 && self.send_symbol() {
                due -= 1.0;
            }
            self.step();
        }
    }
}

/// Each packet is the linear combination of its vector.
fn assert_is_combination(kind: PacketKind, payload: &[u8]) {
    let mut reader = Reader::new(payload);
    let header = CodingHeader::decode(kind, &mut reader).unwrap();
    let (_, batch, _, vector) = super::ingress::parts(&header);
    let mut expected = [0; 24];
    for (index, &factor) in vector.iter().enumerate() {
        let symbol = symbol(u64::from(batch) * 16 + index as u64);
        for (x, y) in expected.iter_mut().zip(symbol) {
            *x ^= bats_code::gf256::mul(factor, y);
        }
    }
    assert_eq!(reader.rest(), expected);
}

/// A source, two relays in a line and three members: 0 - 1 - 2, with the member 3 at the first relay and the
/// members 4 and 5 at the second one.
fn tree(loss: f64) -> Network {
    let mut network = Network::new(6, &[(0, 1), (1, 2), (1, 3), (2, 4), (2, 5)]);
    network.set_entry(0, &[], &[&[0]]);
    network.set_entry(1, &[0], &[&[1], &[2]]);
    network.set_entry(2, &[1], &[&[3], &[4]]);
    for (member, link) in [(3, 2), (4, 3), (5, 4)] {
        network.set_entry(member, &[link], &[]);
        network.nodes[member].set_member(GROUP, true);
    }
    network.directions.iter_mut().for_each(|direction| direction.loss = loss);
    network
}

#[test]
fn members_get_everything_and_each_hop_repairs_its_own_losses() {
    let loss = 0.1;
    let mut network = tree(loss);
    network.run(20_000, 0.97 * (1.0 - loss));
    let sent = network.next;
    assert!(sent > 17_000, "{sent}");
    network.run(5_000, 0.0);
    for member in 3..6 {
        assert_eq!(network.arrivals[member].len() as u64, sent, "member {member}");
    }
    // The source sends each packet once, and repairs the losses of its own link alone.
    let least = sent as f64 / (1.0 - loss);
    for (index, from) in [(0, 0), (1, 1), (2, 1), (3, 2), (4, 2)] {
        let ratio = network.direction(index, from).sent as f64 / least;
        println!("link {index}: {ratio:.4} of the least number of packets");
        assert!(ratio < 1.06, "link {index}: {ratio:.4}");
    }
    for node in &network.nodes {
        assert_eq!(node.stats().batches.overdue, 0);
        assert_eq!(node.stats().memory.bytes_held, 0, "all was reported");
    }
}

/// Arrivals at a member per slot, after the first 4,000 slots.
fn goodput(network: &Network, member: usize) -> f64 {
    let late = network.arrivals[member].iter().filter(|&&slot| slot > 4_000).count();
    late as f64 / (network.slot - 4_000) as f64
}

#[test]
fn slow_or_cut_branch_does_not_hold_the_others_back() {
    for (slots_per_packet, is_cut) in [(100, false), (1, true)] {
        let mut network = tree(0.0);
        for (index, from) in [(2, 1), (4, 2)] {
            let direction = network.direction(index, from);
            (direction.slots_per_packet, direction.is_cut) = (slots_per_packet, is_cut);
        }
        network.run(20_000, 2.0);
        println!("{slots_per_packet}, {is_cut}: {:.4}", goodput(&network, 4));
        assert!(goodput(&network, 4) > 0.95, "{}", goodput(&network, 4));
        for (relay, index) in [(1, 2), (2, 4)] {
            let stats = network.nodes[relay].stats();
            // A packet each slot for 250 ms, and what is in flight on the other branch.
            assert!(stats.memory.bytes_peak < 4_000 * ROW, "{} bytes", stats.memory.bytes_peak);
            assert!(stats.batches.overdue > 500, "{stats:?}");
            let (next, sent) = (network.next, network.direction(index, relay).sent);
            assert!(sent <= next, "no repairs without reports: {sent} of {next}");
        }
        if !is_cut {
            let newest = *network.arrivals[3].last().unwrap();
            assert!(network.slot - newest < 200, "the slow member gets new packets");
        }
    }
}

/// A branch whose next node never reports does not repair, and holds nothing after a while.
#[test]
fn repairs_end_if_the_next_node_takes_nothing() {
    let mut network = Network::new(2, &[(0, 1)]);
    network.set_entry(0, &[], &[&[0]]);
    network.run(500, 0.5);
    network.run(4_000, 0.0);
    let sent = network.direction(0, 0).sent;
    assert_eq!(sent, network.next);
    let (sender, receiver) = (network.nodes[0].stats(), network.nodes[1].stats());
    assert_eq!(sender.memory.bytes_held, 0);
    assert_eq!((receiver.dropped.not_incoming, receiver.flows), (network.next, 0));
}

#[test]
fn flap_between_two_links_of_a_neighbour_costs_a_round_trip() {
    // A source, a relay that two links lead to, and a member.
    let mut network = Network::new(3, &[(0, 1), (0, 1), (1, 2)]);
    network.set_entry(0, &[], &[&[0, 1]]);
    network.set_entry(1, &[0, 1], &[&[2]]);
    network.set_entry(2, &[2], &[]);
    network.nodes[2].set_member(GROUP, true);
    for turn in 0..10 {
        for from in [0, 1] {
            network.direction(0, from).is_alive = turn % 2 == 0;
        }
        if turn % 2 == 1 {
            // What is in flight on the link is lost.
            network.directions[..2].iter_mut().for_each(|direction| direction.packets.clear());
        }
        network.run(2_000, 0.5);
    }
    network.run(1_000, 0.0);
    assert_eq!(network.arrivals[2].len() as u64, network.next);
    let gap = network.arrivals[2].windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    // What was lost, and what waits before it.
    assert!(SLOT * gap as u32 <= RTT + RTT / 2, "{gap} slots");
    assert!(network.direction(1, 0).sent > 4_000, "the second link was used");
}

/// Every node has branches to all its neighbours: each packet crosses a link at most once in each direction.
#[test]
fn packets_cross_each_link_of_a_ring_or_mesh_once() {
    let ring: &[_] = &[(0, 1), (1, 2), (2, 3), (3, 0)];
    let mesh: &[_] = &[(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
    for (edges, upstream) in [(ring, [0, 0, 1, 3]), (mesh, [0, 0, 1, 2])] {
        let mut network = Network::new(4, edges);
        for node in 0..4 {
            let own: Vec<[usize; 1]> = (0..edges.len())
                .filter(|&edge| edges[edge].0 == node || edges[edge].1 == node)
                .map(|edge| [edge])
                .collect();
            let branches: Vec<&[usize]> = own.iter().map(|links| &links[..]).collect();
            let incoming: &[usize] = if node == 0 { &[] } else { &upstream[node..=node] };
            network.set_entry(node, incoming, &branches);
            network.nodes[node].set_member(GROUP, node != 0);
        }
        network.run(3_000, 0.5);
        network.run(5_000, 0.0);
        assert!(network.next > 1_400);
        for member in 1..4 {
            assert_eq!(network.arrivals[member].len() as u64, network.next, "member {member}");
        }
        for direction in &network.directions {
            let (from, to) = (direction.from, direction.to);
            assert!(direction.sent <= network.next, "{from} to {to}: {}", direction.sent);
        }
    }
}

#[test]
fn packets_that_no_entry_accepts_take_no_state() {
    let mut network = tree(0.0);
    let relay = &mut network.nodes[1];
    let (now, seen) = (Timestamp::from_millis(1), view(12_000_000, 4));
    let mut receive = |link: u64, key: FlowKey| {
        for kind in [PacketKind::Source, PacketKind::Control] {
            let packet = source_packet(key, 5);
            assert_eq!(relay.on_packet(now, LinkId(link), &seen, kind, &packet), None);
        }
    };
    // Another source, another group, and a link that does not lead to the source.
    let other_source = FlowKey { source: NodeId(9), ..KEY };
    let other_group = FlowKey { destination: NodeId(0xe000_0002), ..KEY };
    for (link, key) in [(1, other_source), (1, other_group), (2, KEY), (3, KEY)] {
        receive(link, key);
    }
    // A group is no source, neither of a group nor of a node.
    for destination in [GROUP, NodeId(3)] {
        receive(1, FlowKey { source: NodeId(0xe123_4567), destination, flow: 1 });
    }
    let (stats, flows) = (relay.stats(), relay.flows.len());
    assert_eq!((stats.dropped.not_incoming, stats.dropped.refused, flows), (8, 4, 0));
    assert_eq!((stats.dropped.unroutable, relay.pop_event()), (0, None));
}

/// A neighbour that connects again has a new link, and the entry then names that one alone.
#[test]
fn branch_keeps_what_it_holds_if_its_neighbour_connects_again() {
    let mut network = Network::new(3, &[(0, 1), (1, 2), (1, 2)]);
    network.set_entry(1, &[0], &[&[1]]);
    let (now, seen) = (network.now(), view(12_000_000, 4));
    for number in 0..5 {
        let packet = source_packet(KEY, number);
        network.nodes[1].on_packet(now, LinkId(1), &seen, PacketKind::Source, &packet);
    }
    network.set_entry(1, &[0], &[&[2]]);
    let relay = &mut network.nodes[1];
    let mut sent = |link: u64| {
        let pull = |number| relay.pull(now, LinkId(link), &seen, number, &mut Vec::new());
        (1..100).map_while(pull).count()
    };
    assert_eq!((sent(2), sent(3)), (0, 5));
}

/// A neighbour without transit reaches the members here, and nothing beyond.
#[test]
fn policy_without_transit_delivers_here_only() {
    let mut network = tree(0.0);
    let relay = &mut network.nodes[1];
    relay.set_policy(
        Timestamp::from_millis(1),
        LinkId(1),
        LinkPolicy { transit: false, ..LinkPolicy::default() },
    );
    let (now, seen) = (Timestamp::from_millis(1), view(12_000_000, 4));
    let packet = source_packet(KEY, 0);
    assert_eq!(relay.on_packet(now, LinkId(1), &seen, PacketKind::Source, &packet), None);
    assert_eq!((relay.stats().dropped.refused, relay.flows.len()), (1, 0));
    relay.set_member(GROUP, true);
    assert!(relay.on_packet(now, LinkId(1), &seen, PacketKind::Source, &packet).is_some());
    assert!(!relay.wants(now, LinkId(2)) && !relay.wants(now, LinkId(3)));
}

/// End-to-end packets go to all branches and to this node.
#[test]
fn end_to_end_packets_are_copied_once() {
    let mut network = tree(0.0);
    let relay = &mut network.nodes[1];
    relay.set_member(GROUP, true);
    let (now, seen) = (Timestamp::from_millis(1), view(12_000_000, 4));
    let packet = source_packet(KEY, 0);
    for is_first in [true, false] {
        let delivery = relay.on_packet(now, LinkId(1), &seen, PacketKind::Control, &packet);
        assert_eq!(delivery.is_some(), is_first);
        for link in [2, 3] {
            let mut out = Vec::new();
            let pulled = relay.pull(now, LinkId(link), &seen, 1, &mut out);
            assert_eq!(pulled.is_some(), is_first);
            assert!(!is_first || out[FLOW_HEADER_LEN..] == packet[FLOW_HEADER_LEN..]);
        }
        assert_eq!(relay.pull(now, LinkId(1), &seen, 1, &mut Vec::new()), None);
    }
}

#[test]
fn invalid_entries_are_refused_with_their_reason() {
    let mut network = tree(0.0);
    let relay = &mut network.nodes[1];
    let entry = |incoming: &[u64], branches: &[&[u64]]| GroupEntry {
        incoming: incoming.iter().map(|&link| LinkId(link)).collect(),
        branches: branches.iter().map(|b| b.iter().map(|&link| LinkId(link)).collect()).collect(),
    };
    let mut set = |source: u32, group: NodeId, entry| {
        relay.set_group_entry(Timestamp::from_millis(1), NodeId(source), group, entry)
    };
    let many: Vec<&[u64]> = vec![&[]; MAX_PATHS + 1];
    for (source, group, entry, error) in [
        (0, NodeId(5), entry(&[1], &[]), GroupEntryError::NotAGroup(NodeId(5))),
        (GROUP.0, GROUP, entry(&[1], &[]), GroupEntryError::GroupAsSource(GROUP)),
        (1, GROUP, entry(&[1], &[]), GroupEntryError::Incoming(1)),
        (0, GROUP, entry(&[], &[&[2]]), GroupEntryError::Incoming(0)),
        (0, GROUP, entry(&[1], &many), GroupEntryError::TooMany(MAX_PATHS + 1)),
        (0, GROUP, entry(&[1; MAX_PATHS + 1], &[]), GroupEntryError::TooMany(MAX_PATHS + 1)),
        (0, GROUP, entry(&[1], &[&[2], &[3, 2]]), GroupEntryError::Shared(LinkId(2))),
        (0, GROUP, entry(&[1], &[&[9]]), GroupEntryError::NotAdmitted(LinkId(9))),
    ] {
        assert_eq!(set(source, group, entry), Err(error), "{error}");
    }
    for source in 1_000..1_000 + MAX_GROUP_ENTRIES as u32 - 1 {
        set(source, GROUP, entry(&[1], &[&[2]])).unwrap();
    }
    assert_eq!(set(9, GROUP, entry(&[1], &[])), Err(GroupEntryError::TooManyEntries));
    set(0, GROUP, entry(&[1], &[&[1], &[2]])).unwrap();
    assert_eq!(relay.branches(KEY), [LinkId(2)], "packets do not return");
    assert!(relay.remove_group_entry(KEY.source, GROUP));
    assert!(!relay.remove_group_entry(KEY.source, GROUP));

    let config = RelayConfig { recoding: false, ..RelayConfig::new(NodeId(0)) };
    let result = Relay::new(config, 1).set_group_entry(
        Timestamp::from_millis(1),
        NodeId(0),
        GROUP,
        GroupEntry::default(),
    );
    assert_eq!(result, Err(GroupEntryError::NotRecoding));
}

/// A group has no unicast routes.
#[test]
fn group_is_no_destination_of_a_route() {
    let mut network = tree(0.0);
    let (relay, now) = (&mut network.nodes[1], Timestamp::from_millis(1));
    assert!(!relay.set_routes(now, GROUP, &[(LinkId(2), 0)]));
    assert!(!relay.add_route(now, GROUP, LinkId(2)));
    relay.set_route(now, GROUP, LinkId(2));
    assert_eq!(relay.routes(GROUP).count(), 0);
}

/// What arrived before there were branches does not go to them, whichever link it came over.
#[test]
fn new_branches_get_nothing_that_arrived_before() {
    let mut network = Network::new(2, &[(0, 1), (0, 1), (0, 1), (0, 1)]);
    let (now, seen) = (network.now(), view(12_000_000, 4));
    network.set_entry(1, &[0, 1], &[]);
    let receive = |network: &mut Network, link: u64, number: u64| {
        let packet = source_packet(KEY, number);
        network.nodes[1].on_packet(now, LinkId(link), &seen, PacketKind::Source, &packet);
    };
    receive(&mut network, 1, 0);
    receive(&mut network, 2, 4);
    network.set_entry(1, &[2], &[&[3]]);
    for number in [0, 4, 5] {
        receive(&mut network, 3, number);
    }
    let relay = &mut network.nodes[1];
    let pull = |number| relay.pull(now, LinkId(4), &seen, number, &mut Vec::new());
    assert_eq!((1..100).map_while(pull).count(), 1);
}

/// A change of a relay, or a packet that it receives.
#[derive(Clone, Debug)]
enum Step {
    Set { source: u8, incoming: Vec<u8>, branches: Vec<Vec<u8>> },
    Remove { source: u8 },
    Member(bool),
    Alive { link: u8, is_alive: bool },
    Packet { link: u8, source: u8, flow: u8, symbol: u8 },
}

const LINKS: u8 = 6;

fn step() -> impl Strategy<Value = Step> {
    let links = || prop::collection::vec(0..LINKS, 1..3);
    prop_oneof![
        2 => (0_u8..2, links(), prop::collection::vec(links(), 0..4))
            .prop_map(|(source, incoming, branches)| Step::Set { source, incoming, branches }),
        1 => (0_u8..2).prop_map(|source| Step::Remove { source }),
        1 => any::<bool>().prop_map(Step::Member),
        2 => (0..LINKS, any::<bool>()).prop_map(|(link, is_alive)| Step::Alive { link, is_alive }),
        24 => (0..LINKS, 0_u8..3, 0_u8..2, 0_u8..40).prop_map(|(link, source, flow, symbol)| {
            Step::Packet { link, source, flow, symbol }
        }),
    ]
}

/// The symbols that came over each link.
type SymbolsByLink = BTreeMap<u8, BTreeSet<u8>>;

/// What a relay should do, without batches, memory, or repairs.
#[derive(Default)]
struct Model {
    entries: BTreeMap<u8, (Vec<u8>, Vec<Vec<u8>>)>,
    is_member: bool,
    silent: BTreeSet<u8>,
    /// By source and flow: the symbols that came over each link, and those that came over any.
    seen: BTreeMap<(u8, u8), (SymbolsByLink, BTreeSet<u8>)>,
}

impl Model {
    /// The link of each branch.
    fn links(&self, source: u8) -> BTreeSet<u8> {
        let Some((incoming, branches)) = self.entries.get(&source) else { return BTreeSet::new() };
        let onward = branches.iter().filter(|b| !b.iter().any(|link| incoming.contains(link)));
        let responsive = |branch: &Vec<u8>| {
            branch.iter().copied().find(|link| !self.silent.contains(link)).unwrap_or(branch[0])
        };
        onward.map(responsive).collect()
    }

    /// Whether a packet is delivered, and the links that it is sent over.
    fn receive(&mut self, link: u8, source: u8, flow: u8, symbol: u8) -> (bool, BTreeSet<u8>) {
        let accepts = self.entries.get(&source).is_some_and(|entry| entry.0.contains(&link));
        if !accepts {
            return (false, BTreeSet::new());
        }
        let (by_link, all) = self.seen.entry((source, flow)).or_default();
        let is_innovative = by_link.entry(link).or_default().insert(symbol);
        let is_new = is_innovative && all.insert(symbol);
        let links = if is_new { self.links(source) } else { BTreeSet::new() };
        (is_innovative && self.is_member, links)
    }
}

fn group_key(source: u8, flow: u8) -> FlowKey {
    FlowKey { destination: GROUP, source: NodeId(u32::from(source)), flow: u32::from(flow) }
}

/// The packets that a relay has for its links: (link, source, flow, symbol).
fn pull_all(
    relay: &mut Relay,
    silent: &BTreeSet<u8>,
    now: Timestamp,
) -> BTreeSet<(u8, u8, u8, u8)> {
    let mut sent = BTreeSet::new();
    for link in 0..LINKS {
        let seen = LinkView { alive: !silent.contains(&link), ..view(1_000_000_000, 4) };
        let mut out = Vec::new();
        while let Some(kind) = relay.pull(now, LinkId(u64::from(link)), &seen, 1, &mut out) {
            let mut reader = Reader::new(&out);
            let key = FlowHeader::decode(&mut reader).unwrap().key;
            assert_is_combination(kind, &out[FLOW_HEADER_LEN..]);
            let CodingHeader::Source(header) = CodingHeader::decode(kind, &mut reader).unwrap()
            else {
                panic!("nothing is lost");
            };
            let packet = (link, key.source.0 as u8, key.flow as u8, header.symbol as u8);
            assert!(sent.insert(packet), "{packet:?} is sent twice");
        }
    }
    sent
}

proptest! {
    /// Packets are delivered once, and go to each branch once, over its first responsive link. When a branch
    /// changes its link, packets that were not reported follow, and no others.
    #[test]
    fn relay_does_as_a_naive_model(steps in prop::collection::vec(step(), 1..150)) {
        let now = Timestamp::from_millis(1);
        let mut relay = Relay::new(RelayConfig::new(NodeId(99)), 1);
        for link in 0..LINKS {
            relay.add_link(LinkId(u64::from(link)), true);
        }
        let mut model = Model::default();
        for step in steps {
            let mut expected = BTreeSet::new();
            let mut is_packet = false;
            match step {
                Step::Set { source, incoming, branches } => {
                    let ids = |links: &Vec<u8>| {
                        links.iter().map(|&link| LinkId(u64::from(link))).collect::<Vec<_>>()
                    };
                    let entry = GroupEntry {
                        incoming: ids(&incoming),
                        branches: branches.iter().map(ids).collect(),
                    };
                    let source_id = NodeId(u32::from(source));
                    if relay.set_group_entry(now, source_id, GROUP, entry).is_err() {
                        continue;
                    }
                    for (key, (by_link, _)) in &mut model.seen {
                        if key.0 == source {
                            by_link.retain(|link, _| incoming.contains(link));
                        }
                    }
                    model.entries.insert(source, (incoming, branches));
                }
                Step::Remove { source } => {
                    let is_known = model.entries.remove(&source).is_some();
                    let id = NodeId(u32::from(source));
                    prop_assert_eq!(relay.remove_group_entry(id, GROUP), is_known);
                    model.seen.retain(|key, _| key.0 != source);
                }
                Step::Member(is_member) => {
                    relay.set_member(GROUP, is_member);
                    model.is_member = is_member;
                }
                Step::Alive { link, is_alive } => {
                    match is_alive {
                        true => model.silent.remove(&link),
                        false => model.silent.insert(link),
                    };
                    let seen = LinkView { alive: is_alive, ..view(1_000_000_000, 4) };
                    relay.set_view(now, LinkId(u64::from(link)), &seen);
                }
                Step::Packet { link, source, flow, symbol } => {
                    is_packet = true;
                    let (is_delivered, links) = model.receive(link, source, flow, symbol);
                    let packet = source_packet(group_key(source, flow), u64::from(symbol));
                    let alive = !model.silent.contains(&link);
                    let seen = LinkView { alive, ..view(1_000_000_000, 4) };
                    let delivery = relay.on_packet(
                        now, LinkId(u64::from(link)), &seen, PacketKind::Source, &packet,
                    );
                    prop_assert_eq!(delivery.is_some(), is_delivered);
                    expected.extend(links.into_iter().map(|link| (link, source, flow, symbol)));
                }
            }
            let sent = pull_all(&mut relay, &model.silent, now);
            if is_packet {
                prop_assert_eq!(&sent, &expected);
            }
            for (link, source, flow, symbol) in sent {
                prop_assert!(model.links(source).contains(&link));
                prop_assert!(model.seen[&(source, flow)].1.contains(&symbol));
            }
        }
    }
}
