//! A relay whose neighbours send anything: forged flows, reports of packets that were never sent,
//! links that are added, tied to neighbours, become unresponsive and are removed.

use core::time::Duration;

use bats_types::Timestamp;

use super::script::Script;
use crate::relay::{LinkId, LinkPolicy, LinkView, MIN_FLOW_BYTES, Relay, RelayConfig};
use crate::wire::batch_rank::{BatchRank, Space};
use crate::wire::coding::{CodingHeader, MAX_CODING_HEADER_LEN, RepairHeader, SourceHeader};
use crate::wire::flow::{DIRECT_FLOW, FLOW_HEADER_LEN, FlowHeader, FlowKey, NodeId};
use crate::wire::short_header::PacketKind;
use crate::wire::varint::{Reader, Writer};

/// Maximum number of steps of a script; further ones are ignored.
const MAX_STEPS: usize = 400;
/// Maximum number of links.
const LINKS: u64 = 5;
/// Number of nodes that send or receive packets; the relay is one of them.
const NODES: u32 = 4;
const HERE: NodeId = NodeId(2);
const TOTAL: usize = 2 * MIN_FLOW_BYTES;
const KINDS: [PacketKind; 4] =
    [PacketKind::Control, PacketKind::Source, PacketKind::Repair, PacketKind::Recoded];

/// Counters of a run, so that a test can check that it exercised something.
#[derive(Clone, Copy, Debug, Default)]
pub struct RelayReport {
    /// Number of packets sent.
    pub sent: u64,
    /// Number of these that were recoded.
    pub recoded: u64,
    /// Number of packets delivered at the relay's own node.
    pub delivered: u64,
}

struct Run {
    relay: Relay,
    now: Timestamp,
    numbers: [u64; LINKS as usize],
    admitted: [bool; LINKS as usize],
    /// The node to which each link is tied, if it is admitted.
    neighbours: [Option<NodeId>; LINKS as usize],
    /// The largest hop limit received.
    max_hop_limit: u8,
    report: RelayReport,
}

/// Arbitrary packets and reports in any order, with four bytes for each step plus its parameters.
///
/// # Panics
/// The relay holds more than allowed, sends over a link that was not admitted or beyond the hop
/// limit, takes or sends a packet of a direct flow over a link that is not tied to its other end, sends a packet that cannot be parsed, or holds state after the idle time-out.
pub fn relay_run(data: &[u8]) -> RelayReport {
    let mut script = Script::new(data);
    let first = script.u8();
    let config =
        RelayConfig { recoding: first & 7 != 7, total_bytes: TOTAL, ..RelayConfig::new(HERE) };
    let mut run = Run {
        relay: Relay::new(config, u64::from(first)),
        now: Timestamp::from_millis(1_000),
        numbers: [0; LINKS as usize],
        admitted: [false; LINKS as usize],
        neighbours: [None; LINKS as usize],
        max_hop_limit: 0,
        report: RelayReport::default(),
    };
    for link in 0..3 {
        run.admit(link, first & 8 == 0);
        run.relay.add_route(run.now, NodeId(link as u32 % 2), LinkId(link));
        run.relay.add_route(run.now, NodeId(3), LinkId(link));
    }
    for _ in 0..MAX_STEPS {
        if script.is_empty() {
            break;
        }
        run.step(&mut script);
        run.check();
    }
    run.end();
    run.report
}

impl Run {
    fn admit(&mut self, link: u64, feedback: bool) {
        self.admitted[link as usize] = true;
        self.relay.add_link(LinkId(link), feedback);
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let [kind, a, b, c] = script.array();
        let link = LinkId(u64::from(a) % LINKS);
        let key = FlowKey {
            destination: NodeId(u32::from(b) % NODES),
            source: NodeId(u32::from(b >> 2) % NODES),
            flow: (u32::from(b >> 4) % 3) | if b >> 4 > 11 { DIRECT_FLOW } else { 0 },
        };
        match kind % 16 {
            0..=4 => self.deliver_coded(script, link, key, c),
            5 => {
                let bytes = script.bytes().to_vec();
                self.deliver_packet(link, KINDS[usize::from(c & 3)], &bytes);
            }
            6 => {
                self.deliver_packet(link, PacketKind::Control, &flow_packet(key, c, script.bytes()))
            }
            7..=9 => (0..=c % 32).for_each(|_| self.pull(link)),
            10 => self.deliver_report(script, link, key, c),
            11 => {
                self.now += Duration::from_micros((u64::from(b) * 40) << (c % 10));
                self.relay.handle_timeout(self.now);
            }
            12 => {
                let mark = u64::from(c);
                while self.relay.next_report(self.now, link, mark).is_some() {}
                while self.relay.pop_ready().is_some() {}
                while self.relay.pop_event().is_some() {}
            }
            13 => self.send_own(link, FlowKey { source: HERE, ..key }, c),
            14 => self.relay.set_view(self.now, link, &view(b, c)),
            _ => self.routes(link, key.destination, c),
        }
    }

    /// A coded packet with a valid header.
    fn deliver_coded(&mut self, script: &mut Script<'_>, link: LinkId, key: FlowKey, c: u8) {
        let number = script.number(u64::from(c));
        let header = match c % 4 {
            0 | 1 => CodingHeader::Source(SourceHeader::new(number)),
            2 => CodingHeader::Repair(RepairHeader {
                batch: (number & 0x00ff_ffff) as u32,
                column: c >> 4,
                first: u32::from(c),
                count: 16,
            }),
            _ => CodingHeader::RecodedSource {
                batch: (number & 0x00ff_ffff) as u32,
                vector: script.array(),
            },
        };
        let mut bytes = vec![0; MAX_CODING_HEADER_LEN];
        let mut writer = Writer::new(&mut bytes);
        let written = header.encode(&mut writer).map_or(0, |()| writer.written());
        bytes.truncate(written);
        bytes.resize(written + 1 + usize::from(c) * 5, c);
        self.deliver_packet(link, header.kind(), &flow_packet(key, 1 + c % 9, &bytes));
    }

    fn deliver_packet(&mut self, link: LinkId, kind: PacketKind, packet: &[u8]) {
        if let Some(header) = FlowHeader::decode(&mut Reader::new(packet)) {
            self.max_hop_limit = self.max_hop_limit.max(header.hop_limit);
        }
        let view = LinkView { loss: 0.1, ..LinkView::default() };
        if let Some(delivery) = self.relay.on_packet(self.now, link, &view, kind, packet) {
            assert!(self.admitted[link.0 as usize], "over a link that was not admitted");
            assert_eq!(delivery.key.destination, HERE);
            let neighbour = self.neighbours[link.0 as usize];
            assert!(!delivery.key.is_direct() || neighbour == Some(delivery.key.source));
            self.report.delivered += 1;
        }
    }

    fn pull(&mut self, link: LinkId) {
        let (index, mut out) = (link.0 as usize, Vec::new());
        self.numbers[index] += 1;
        let view = LinkView { loss: 0.1, ..LinkView::default() };
        let kind = self.relay.pull(self.now, link, &view, self.numbers[index], &mut out);
        let Some(kind) = kind else { return };
        assert!(self.admitted[index], "over a link that was not admitted");
        let mut reader = Reader::new(&out);
        let header = FlowHeader::decode(&mut reader).expect("a flow header");
        assert!(header.key.destination != HERE, "the packet was at its destination");
        let own = header.key.source == HERE;
        assert!(own || header.hop_limit < self.max_hop_limit, "within the hop limit");
        let leads_there = self.neighbours[index] == Some(header.key.destination);
        assert!(!header.key.is_direct() || own && leads_there, "over a link with the neighbour");
        if kind != PacketKind::Control && self.relay.is_recoding() {
            assert!(CodingHeader::decode(kind, &mut reader).is_some(), "a coding header");
            assert!(!reader.rest().is_empty());
        }
        self.report.sent += 1;
        self.report.recoded += u64::from(kind == PacketKind::Recoded);
    }

    fn deliver_report(&mut self, script: &mut Script<'_>, link: LinkId, key: FlowKey, c: u8) {
        let report = BatchRank {
            key,
            space: if c & 1 == 0 { Space::Source } else { Space::Repair },
            mark: script.number(self.numbers[link.0 as usize]),
            room: script.number(100),
            first: (script.number(0) & 0x00ff_ffff) as u32,
            ranks: script.bytes().iter().map(|rank| rank % 17).collect(),
        };
        self.relay.on_report(self.now, link, &LinkView::default(), &report);
    }

    /// Sends a packet of a session at this node.
    fn send_own(&mut self, link: LinkId, key: FlowKey, c: u8) {
        if key.destination == HERE {
            return;
        }
        if c & 1 == 0 {
            self.relay.send_opaque(self.now, key, &[c; 40]);
        } else if self.relay.has_room(self.now, key, link) {
            let mut bytes = vec![c; 60];
            let header = SourceHeader::new(u64::from(c));
            if header.encode(&mut Writer::new(&mut bytes)).is_some() {
                let (kind, view) = ((PacketKind::Source, u64::from(c)), LinkView::default());
                self.relay.send_coded(self.now, key, link, &view, kind, &mut bytes);
            }
        }
    }

    fn routes(&mut self, link: LinkId, node: NodeId, c: u8) {
        let index = link.0 as usize;
        match c % 6 {
            0 => self.relay.set_route(self.now, node, link),
            1 => {
                self.relay.add_route(self.now, node, link);
            }
            2 => self.relay.remove_route(self.now, node, link),
            3 => {
                self.relay.mark_polluting(self.now, node, link);
            }
            4 => {
                self.relay.remove_link(self.now, link);
                (self.admitted[index], self.neighbours[index]) = (false, None);
            }
            _ => {
                self.admit(link.0, c & 8 == 0);
                let mut policy = LinkPolicy::default();
                policy.neighbour = (c & 32 != 0).then_some(node);
                self.neighbours[index] = policy.neighbour;
                self.relay.set_policy(self.now, link, policy);
                if node != HERE {
                    self.relay.set_direct(self.now, node, c & 16 == 0);
                }
            }
        }
    }

    fn check(&self) {
        let stats = self.relay.stats();
        assert!(stats.memory.bytes_held <= TOTAL as u64, "{stats:?}");
        assert!(stats.memory.state_bytes <= TOTAL as u64 + (1 << 20), "{stats:?}");
        assert!(stats.flows <= 2 * u64::from(NODES * NODES) * 3, "{stats:?}");
    }

    /// After the idle time-out nothing is held.
    fn end(&mut self) {
        for _ in 0..3 {
            self.now += Duration::from_secs(301);
            self.relay.handle_timeout(self.now);
        }
        let stats = self.relay.stats();
        assert_eq!((stats.flows, stats.memory.bytes_held, stats.memory.state_bytes), (0, 0, 0));
    }
}

fn flow_packet(key: FlowKey, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; FLOW_HEADER_LEN];
    if (FlowHeader { key, hop_limit }).encode(&mut Writer::new(&mut packet)).is_none() {
        return Vec::new();
    }
    packet.extend_from_slice(payload);
    packet
}

fn view(b: u8, c: u8) -> LinkView {
    LinkView {
        rate: u64::from(b) << (c % 24),
        smoothed_rtt: Duration::from_micros(u64::from(b) << (c % 16)),
        min_rtt: Duration::from_micros(u64::from(b)),
        loss: f64::from(c) / 255.0,
        burst_factor: 1.0 + f64::from(b & 15),
        packet: u64::from(b) * 8,
        alive: c & 1 == 0,
        potentially_failed: c & 2 != 0,
    }
}
