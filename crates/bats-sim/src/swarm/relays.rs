//! What relays may do: of each batch a bounded number of packets leaves by a link, what leaves came
//! before, memory stays within what was granted, and after silence nothing is left.

use std::collections::BTreeMap;

use bats_code::BATCH_SIZE;
use bats_proto::fuzzing::open_short;
use bats_proto::relay::{LEAST_FLOW_BYTES, MAX_RECODED, RelayConfig, RelayStats};
use bats_proto::wire::coding::CodingHeader;
use bats_proto::wire::flow::{FlowHeader, FlowKey};
use bats_proto::wire::frame::{self, Frame};
use bats_proto::wire::short_header::{PacketKind, ShortHeader};
use bats_proto::wire::varint::Reader;

use super::plan::Nodes;
use crate::line::{Passage, Way};
use crate::record::What;
use crate::trace::Trace;

/// Packets of one batch that may leave by one link while nothing of it comes: its rows, and
/// combinations.
const MOST_OF_BATCH: u64 = BATCH_SIZE as u64 + MAX_RECODED as u64;

/// A batch of a flow: whether it is of repairs, and its number.
type Batch = (FlowKey, bool, u32);
/// One end of a connection of a link: the link, the direction, the receiver's connection ID.
type Channel = (usize, bool, [u8; 4]);

/// Watches the datagrams between nodes.
#[derive(Debug)]
pub(super) struct Watcher {
    /// Hash of all that happened, if it was asked for.
    pub(super) trace: Option<Trace>,
    /// Datagrams that left.
    pub(super) packets: u64,
    /// What was broken.
    pub(super) violation: Option<String>,
    nodes: Nodes,
    /// Generations of keys.
    generations: BTreeMap<Channel, u64>,
    /// Packets of a batch that a node got.
    arrived: BTreeMap<(usize, Batch), u64>,
    /// Packets of a batch that left by a link: in all, how many had arrived when the last of them
    /// arrived, and how many left since then.
    left: BTreeMap<(Channel, Batch), [u64; 3]>,
}

impl Watcher {
    pub(super) fn new(nodes: &Nodes, trace: bool) -> Self {
        Self {
            trace: trace.then(Trace::default),
            packets: 0,
            violation: None,
            nodes: nodes.clone(),
            generations: BTreeMap::new(),
            arrived: BTreeMap::new(),
            left: BTreeMap::new(),
        }
    }

    pub(super) fn note(&mut self, passage: &Passage<'_>) {
        let forth = passage.way == Way::Forth;
        if let Some(trace) = &mut self.trace {
            let ends = [2 + passage.link as u8, u8::from(forth)];
            trace.add(passage.time, ends, passage.what, passage.ecn, passage.payload);
        }
        let left = passage.what != What::Delivered;
        self.packets += u64::from(left);
        let (first, second) = self.nodes.edges[passage.link];
        let node = if forth == left { first } else { second };
        // What the ends send is their own.
        if node == 0 || node == self.nodes.last() {
            return;
        }
        let Some((channel, header, payload)) = self.open(passage.link, forth, passage.payload)
        else {
            return;
        };
        let Some((kind, payload)) = carried(&header, &payload) else { return };
        if kind == PacketKind::Control {
            return;
        }
        let mut reader = Reader::new(payload);
        let flow = FlowHeader::decode(&mut reader);
        let coding = CodingHeader::decode(kind, &mut reader);
        let (Some(flow), Some(coding)) = (flow, coding) else {
            self.fail(format!("node {node}: a packet of a relay is malformed"));
            return;
        };
        let batch = match coding {
            CodingHeader::Source(header) => (flow.key, false, header.symbol / BATCH_SIZE as u32),
            CodingHeader::RecodedSource { batch, .. } => (flow.key, false, batch),
            CodingHeader::Repair(header) | CodingHeader::RecodedRepair { header, .. } => {
                (flow.key, true, header.batch)
            }
        };
        if left {
            self.leave(node, channel, batch);
        } else {
            *self.arrived.entry((node, batch)).or_default() += 1;
        }
    }

    /// What came leaves by a link once, and so do some combinations of it. When something of a batch
    /// comes that was given up, its budget begins anew.
    fn leave(&mut self, node: usize, channel: Channel, batch: Batch) {
        let arrived = self.arrived.get(&(node, batch)).copied().unwrap_or(0);
        let [all, at, since] = self.left.entry((channel, batch)).or_default();
        *all += 1;
        *since = if *at == arrived { *since + 1 } else { 1 };
        *at = arrived;
        let (all, since) = (*all, *since);
        let wrong = if arrived == 0 {
            "it sent what nobody gave it"
        } else if self.nodes.relay.recoding && since > MOST_OF_BATCH {
            "it sent more of a batch than it may"
        } else if !self.nodes.relay.recoding && all > arrived {
            "it sent more of a batch than it got, and does not recode"
        } else {
            return;
        };
        self.fail(format!(
            "relay {node}: {wrong}: {batch:?}, {arrived} came, {all} left, {since} of them since"
        ));
    }

    /// Opens a datagram: the keys of the stand-in are no secret.
    fn open(
        &mut self,
        link: usize,
        forth: bool,
        datagram: &[u8],
    ) -> Option<(Channel, ShortHeader, Vec<u8>)> {
        if datagram.first()? & 0x80 != 0 {
            return None;
        }
        let destination = *datagram.get(1..)?.first_chunk()?;
        let channel = (link, forth, destination);
        let current = self.generations.get(&channel).copied().unwrap_or(0);
        for generation in [current, current + 1, current.saturating_sub(1)] {
            if let Some((header, payload)) = open_short(forth, generation, datagram) {
                self.generations.insert(channel, generation.max(current));
                return Some((channel, header, payload));
            }
        }
        None
    }

    fn fail(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }
}

/// Kind and payload of the carried packet that a packet is, or is the first part of.
fn carried<'a>(header: &ShortHeader, payload: &'a [u8]) -> Option<(PacketKind, &'a [u8])> {
    if header.carried {
        return Some((header.kind, payload));
    }
    if header.kind != PacketKind::Control {
        return None;
    }
    let (mut reader, mut ranges) = (Reader::new(payload), Vec::new());
    while let Ok(Some(frame)) = frame::decode(&mut reader, &mut ranges) {
        if let Frame::Fragment { index: 0, kind, carried: true, data, .. } = frame {
            return Some((kind, data));
        }
    }
    None
}

/// Counters of a node that carries `sessions` sessions at most.
pub(super) fn check(
    config: &RelayConfig,
    ways: usize,
    sessions: usize,
    stats: &RelayStats,
) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{what}: {stats:?}"));
    let total = config.total_bytes as u64;
    let flow = config.flow_bytes.max(LEAST_FLOW_BYTES) as u64;
    if stats.flows > 2 * sessions as u64 {
        return wrong("there are more flows than sessions have");
    }
    if stats.bytes_held > stats.bytes_peak || stats.bytes_peak > total {
        return wrong("more is held than was granted");
    }
    if stats.bytes_held > stats.flows * flow * ways as u64 {
        return wrong("flows hold more than they were granted");
    }
    if stats.state_bytes > total {
        return wrong("more is known of batches than was granted");
    }
    if stats.malformed + stats.looped + stats.hop_limit + stats.ways_lying > 0 {
        return wrong("honest nodes in a row were taken for others");
    }
    if !config.recoding && stats.top_ups + stats.extras > 0 {
        return wrong("it recodes and should not");
    }
    Ok(())
}

/// Counters of a node for which nobody has had anything for long.
pub(super) fn check_idle(stats: &RelayStats) -> Result<(), String> {
    if (stats.flows, stats.bytes_held, stats.state_bytes) != (0, 0, 0) {
        return Err(format!("something is left after silence: {stats:?}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bats_proto::Timestamp;
    use bats_proto::fuzzing::seal_as;
    use bats_proto::wire::coding::SourceHeader;
    use bats_proto::wire::flow::NodeId;
    use bats_proto::wire::varint::Writer;

    use super::*;

    fn watcher(recoding: bool) -> Watcher {
        let relay = RelayConfig { recoding, ..RelayConfig::new(NodeId(1)) };
        Watcher::new(&Nodes { edges: vec![(0, 1), (1, 2)], relay }, false)
    }

    /// A symbol on a link, under keys of a generation.
    fn symbol(watcher: &mut Watcher, link: usize, what: What, generation: u64, number: u64) {
        let mut payload = [7; 60];
        let mut writer = Writer::new(&mut payload);
        let key = FlowKey { destination: NodeId(3), source: NodeId(1), flow: 9 };
        FlowHeader { key, hop_limit: 9 }.encode(&mut writer).unwrap();
        SourceHeader::new(number).encode(&mut writer).unwrap();
        let header = ShortHeader {
            kind: PacketKind::Source,
            carried: true,
            key_phase: generation & 1 == 1,
            destination: [link as u8; 4],
            packet_number: 4,
        };
        let bytes = seal_as(true, generation, header, &payload);
        let (time, way) = (Timestamp::ZERO, Way::Forth);
        watcher.note(&Passage { time, link, way, what, ecn: 0, payload: &bytes });
    }

    const SENT: What = What::Sent(bats_netem::Fate::Carried);

    #[test]
    fn what_leaves_a_relay_has_come_to_it() {
        let mut watcher = watcher(true);
        symbol(&mut watcher, 0, SENT, 0, 40);
        symbol(&mut watcher, 0, What::Delivered, 0, 40);
        symbol(&mut watcher, 1, SENT, 0, 40);
        assert_eq!(watcher.violation, None);
        symbol(&mut watcher, 1, SENT, 0, 64);
        assert!(watcher.violation.take().unwrap().contains("nobody gave it"));
    }

    #[test]
    fn batches_have_a_budget_across_keys() {
        for (recoding, most) in [(true, MOST_OF_BATCH), (false, 3)] {
            let mut watcher = watcher(recoding);
            for generation in 0..3 {
                symbol(&mut watcher, 0, What::Delivered, generation, 3);
            }
            for generation in 0..most {
                symbol(&mut watcher, 1, SENT, generation, 3);
            }
            assert_eq!(watcher.violation, None);
            symbol(&mut watcher, 1, SENT, most, 3);
            assert!(watcher.violation.unwrap().contains("more of a batch than it"));
        }
    }

    #[test]
    fn memory_and_counters_have_bounds() {
        let config = RelayConfig::new(NodeId(2));
        let fine = RelayStats { flows: 2, bytes_held: 9, bytes_peak: 9, ..Default::default() };
        check(&config, 1, 1, &fine).unwrap();
        let total = config.total_bytes as u64;
        for bad in [
            RelayStats { flows: 3, ..fine },
            RelayStats { bytes_peak: 8, ..fine },
            RelayStats { bytes_peak: total + 1, ..fine },
            RelayStats { bytes_held: 17 << 20, bytes_peak: 17 << 20, ..fine },
            RelayStats { state_bytes: total + 1, ..fine },
            RelayStats { looped: 1, ..fine },
        ] {
            assert!(check(&config, 1, 1, &bad).is_err(), "{bad:?}");
            assert!(check_idle(&bad).is_err());
        }
        check_idle(&RelayStats { received: 9, ..Default::default() }).unwrap();
    }
}
