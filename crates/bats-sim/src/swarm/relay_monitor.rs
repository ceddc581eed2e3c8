//! Checks of relays: a relay sends a bounded number of packets of a batch on each link, sends only
//! batches that it received, keeps within its memory limits, and has no state after the idle
//! time-out.

use std::collections::BTreeMap;

use bats_code::BATCH_SIZE;
use bats_proto::fuzzing::open_short;
use bats_proto::relay::{MAX_RECODED, MIN_FLOW_BYTES, RelayConfig, RelayStats};
use bats_proto::wire::coding::CodingHeader;
use bats_proto::wire::flow::{FlowHeader, FlowKey};
use bats_proto::wire::frame::{self, Frame};
use bats_proto::wire::short_header::{PacketKind, ShortHeader};
use bats_proto::wire::varint::Reader;

use super::nodes::Nodes;
use crate::link_event::LinkEventKind;
use crate::relay_network::{LinkDirection, RelayLinkEvent};
use crate::trace::Trace;

/// Maximum packets of one batch that a relay sends on one link without receiving another packet of
/// the batch: its received and its recoded packets.
const MAX_BATCH_PACKETS: u64 = BATCH_SIZE as u64 + MAX_RECODED as u64;

/// A batch: its flow, whether it is an R-batch, and its number.
type Batch = (FlowKey, bool, u32);
/// One direction of a link's connection: the link, whether forward, the receiver's connection ID.
type Channel = (usize, bool, [u8; 4]);

/// Observes the datagrams between nodes and checks what relays send.
#[derive(Debug)]
pub(super) struct RelayMonitor {
    /// Hash of all link events, if enabled.
    pub(super) trace: Option<Trace>,
    /// Number of datagrams sent.
    pub(super) packets: u64,
    /// The first violation found.
    pub(super) violation: Option<String>,
    nodes: Nodes,
    /// The current key phase of each channel: the number of key updates so far.
    key_phases: BTreeMap<Channel, u64>,
    /// Number of packets of a batch that a node received.
    received: BTreeMap<(usize, Batch), u64>,
    /// Packets of a batch sent on a channel: the total, the number received when the last one was
    /// sent, and the number sent since that reception.
    sent: BTreeMap<(Channel, Batch), [u64; 3]>,
}

impl RelayMonitor {
    pub(super) fn new(nodes: &Nodes, trace: bool) -> Self {
        Self {
            trace: trace.then(Trace::default),
            packets: 0,
            violation: None,
            nodes: nodes.clone(),
            key_phases: BTreeMap::new(),
            received: BTreeMap::new(),
            sent: BTreeMap::new(),
        }
    }

    pub(super) fn record(&mut self, event: &RelayLinkEvent<'_>) {
        let forward = event.direction == LinkDirection::Forward;
        if let Some(trace) = &mut self.trace {
            let ends = [2 + event.link as u8, u8::from(forward)];
            trace.add(event.time, ends, event.kind, event.ecn, event.payload);
        }
        let is_sent = event.kind != LinkEventKind::Delivered;
        self.packets += u64::from(is_sent);
        let (first, second) = self.nodes.edges[event.link];
        let node = if forward == is_sent { first } else { second };
        // The ends are sources, so only relays are checked.
        if node == 0 || node == self.nodes.last() {
            return;
        }
        let Some((channel, header, payload)) = self.open(event.link, forward, event.payload) else {
            return;
        };
        let Some((kind, payload)) = flow_packet(&header, &payload) else { return };
        if kind == PacketKind::Control {
            return;
        }
        let mut reader = Reader::new(payload);
        let flow = FlowHeader::decode(&mut reader);
        let coding = CodingHeader::decode(kind, &mut reader);
        let (Some(flow), Some(coding)) = (flow, coding) else {
            self.fail(format!("node {node}: a flow packet is malformed"));
            return;
        };
        let batch = match coding {
            CodingHeader::Source(header) => (flow.key, false, header.symbol / BATCH_SIZE as u32),
            CodingHeader::RecodedSource { batch, .. } => (flow.key, false, batch),
            CodingHeader::Repair(header) | CodingHeader::RecodedRepair { header, .. } => {
                (flow.key, true, header.batch)
            }
        };
        if is_sent {
            self.check_sent(node, channel, batch);
        } else {
            *self.received.entry((node, batch)).or_default() += 1;
        }
    }

    /// Checks a packet that a relay sends. A relay may forward each received packet once on a link,
    /// and add a bounded number of recoded packets. Each packet received renews this budget,
    /// because the relay may have dropped its state of the batch before.
    fn check_sent(&mut self, node: usize, channel: Channel, batch: Batch) {
        let received = self.received.get(&(node, batch)).copied().unwrap_or(0);
        let [all, at, since] = self.sent.entry((channel, batch)).or_default();
        *all += 1;
        *since = if *at == received { *since + 1 } else { 1 };
        *at = received;
        let (all, since) = (*all, *since);
        let violation = if received == 0 {
            "it sent a batch that it had not received"
        } else if self.nodes.relay.recoding && since > MAX_BATCH_PACKETS {
            "it sent more packets of a batch than allowed"
        } else if !self.nodes.relay.recoding && all > received {
            "it sent more packets of a batch than it received, although it does not recode"
        } else {
            return;
        };
        self.fail(format!(
            "relay {node}: {violation}: {batch:?}, {received} received, {all} sent, {since} of \
             them since the last one received"
        ));
    }

    /// Decrypts a datagram. The keys of plain security are known.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn open(
        &mut self,
        link: usize,
        forward: bool,
        datagram: &[u8],
    ) -> Option<(Channel, ShortHeader, Vec<u8>)> {
        if datagram.first()? & 0x80 != 0 {
            return None;
        }
        let destination = *datagram.get(1..)?.first_chunk()?;
        let channel = (link, forward, destination);
        let current = self.key_phases.get(&channel).copied().unwrap_or(0);
        for key_phase in [current, current.saturating_add(1), current.saturating_sub(1)] {
            if let Some((header, payload)) = open_short(forward, key_phase, datagram) {
                self.key_phases.insert(channel, key_phase.max(current));
                return Some((channel, header, payload));
            }
        }
        None
    }

    fn fail(&mut self, violation: String) {
        self.violation.get_or_insert(violation);
    }
}

/// Kind and payload of the flow packet in a link packet: the packet itself, or the first fragment
/// in a control packet.
fn flow_packet<'a>(header: &ShortHeader, payload: &'a [u8]) -> Option<(PacketKind, &'a [u8])> {
    if header.relayed {
        return Some((header.kind, payload));
    }
    if header.kind != PacketKind::Control {
        return None;
    }
    let (mut reader, mut ranges) = (Reader::new(payload), Vec::new());
    while let Ok(Some(frame)) = frame::decode(&mut reader, &mut ranges) {
        if let Frame::Fragment { index: 0, kind, relayed: true, data, .. } = frame {
            return Some((kind, data));
        }
    }
    None
}

/// Checks the counters of a node that relays at most `sessions` sessions on `links` links.
pub(super) fn check(
    config: &RelayConfig,
    links: usize,
    sessions: usize,
    stats: &RelayStats,
) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{what}: {stats:?}"));
    let total = config.total_bytes as u64;
    if stats.flows > 2 * sessions as u64 {
        return wrong("there are more flows than the sessions can have");
    }
    if stats.memory.bytes_held > stats.memory.bytes_peak || stats.memory.bytes_peak > total {
        return wrong("the payload memory exceeds the limit of the relay");
    }
    // Each flow takes at most half of what the others leave for a link, or the minimum.
    let queues = stats.flows * links as u64;
    let left = total.checked_shr(queues as u32).unwrap_or(0);
    if stats.memory.bytes_held > total - left + queues * MIN_FLOW_BYTES as u64 {
        return wrong("the payload memory exceeds the shares of the flows");
    }
    if stats.memory.state_bytes > total {
        return wrong("the batch state exceeds the limit of the relay");
    }
    if stats.dropped.malformed
        + stats.dropped.looped
        + stats.dropped.hop_limit
        + stats.polluting_paths
        > 0
    {
        return wrong(
            "packets of correct neighbours were counted as malformed, looped or polluted",
        );
    }
    if !config.recoding && stats.top_ups + stats.extras > 0 {
        return wrong("it recodes although recoding is off");
    }
    Ok(())
}

/// Checks the counters of a relay that has been idle for longer than its idle time-out.
pub(super) fn check_idle(stats: &RelayStats) -> Result<(), String> {
    if (stats.flows, stats.memory.bytes_held, stats.memory.state_bytes) != (0, 0, 0) {
        return Err(format!("state is left after the idle time-out: {stats:?}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bats_proto::Timestamp;
    use bats_proto::fuzzing::seal_as;
    use bats_proto::relay::{RelayDropStats, RelayMemoryStats};
    use bats_proto::wire::coding::SourceHeader;
    use bats_proto::wire::flow::NodeId;
    use bats_proto::wire::varint::Writer;

    use super::*;

    fn monitor(recoding: bool) -> RelayMonitor {
        let relay = RelayConfig { recoding, ..RelayConfig::new(NodeId(1)) };
        RelayMonitor::new(&Nodes { edges: vec![(0, 1), (1, 2)], relay }, false)
    }

    /// Records a source symbol on a link, sealed with the keys of a key phase.
    fn symbol(
        monitor: &mut RelayMonitor,
        link: usize,
        kind: LinkEventKind,
        key_phase: u64,
        number: u64,
    ) {
        let mut payload = [7; 60];
        let mut writer = Writer::new(&mut payload);
        let key = FlowKey { destination: NodeId(3), source: NodeId(1), flow: 9 };
        FlowHeader { key, hop_limit: 9 }.encode(&mut writer).unwrap();
        SourceHeader::new(number).encode(&mut writer).unwrap();
        let header = ShortHeader {
            kind: PacketKind::Source,
            relayed: true,
            key_phase: key_phase & 1 == 1,
            destination: [link as u8; 4],
            packet_number: 4,
        };
        let bytes = seal_as(true, key_phase, header, &payload);
        let (time, direction) = (Timestamp::ZERO, LinkDirection::Forward);
        monitor.record(&RelayLinkEvent { time, link, direction, kind, ecn: 0, payload: &bytes });
    }

    const SENT: LinkEventKind = LinkEventKind::Sent(bats_netem::Fate::Carried);

    #[test]
    fn a_batch_that_the_relay_did_not_receive_is_a_violation() {
        let mut monitor = monitor(true);
        symbol(&mut monitor, 0, SENT, 0, 40);
        symbol(&mut monitor, 0, LinkEventKind::Delivered, 0, 40);
        symbol(&mut monitor, 1, SENT, 0, 40);
        assert_eq!(monitor.violation, None);
        symbol(&mut monitor, 1, SENT, 0, 64);
        assert!(monitor.violation.take().unwrap().contains("had not received"));
    }

    #[test]
    fn exceeding_the_budget_of_a_batch_is_a_violation_across_key_updates() {
        for (recoding, most) in [(true, MAX_BATCH_PACKETS), (false, 3)] {
            let mut monitor = monitor(recoding);
            for key_phase in 0..3 {
                symbol(&mut monitor, 0, LinkEventKind::Delivered, key_phase, 3);
            }
            for key_phase in 0..most {
                symbol(&mut monitor, 1, SENT, key_phase, 3);
            }
            assert_eq!(monitor.violation, None);
            symbol(&mut monitor, 1, SENT, most, 3);
            assert!(monitor.violation.unwrap().contains("more packets of a batch than"));
        }
    }

    #[test]
    fn counters_out_of_bounds_are_violations() {
        let config = RelayConfig::new(NodeId(2));
        let memory = |held, peak, state| RelayMemoryStats {
            bytes_held: held,
            bytes_peak: peak,
            state_bytes: state,
        };
        let fine = RelayStats { flows: 2, memory: memory(9, 9, 0), ..Default::default() };
        check(&config, 1, 1, &fine).unwrap();
        let total = config.total_bytes as u64;
        for bad in [
            RelayStats { flows: 3, ..fine },
            RelayStats { memory: memory(9, 8, 0), ..fine },
            RelayStats { memory: memory(9, total + 1, 0), ..fine },
            RelayStats { memory: memory(195 << 20, 195 << 20, 0), ..fine },
            RelayStats { memory: memory(9, 9, total + 1), ..fine },
            RelayStats { dropped: RelayDropStats { looped: 1, ..Default::default() }, ..fine },
        ] {
            assert!(check(&config, 1, 1, &bad).is_err(), "{bad:?}");
            assert!(check_idle(&bad).is_err());
        }
        check_idle(&RelayStats { received: 9, ..Default::default() }).unwrap();
    }
}
