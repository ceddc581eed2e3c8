//! Looks at each datagram: a node sends packets only over the edges of its routes, and forwards only those of neighbours
//! with transit.

use std::collections::BTreeMap;
use std::time::Duration;

use bats_proto::Timestamp;
use bats_proto::fuzzing::open_short;
use bats_proto::wire::flow::{FlowHeader, FlowKey};
use bats_proto::wire::short_header::PacketKind;
use bats_proto::wire::varint::Reader;

use super::config::World;
use super::node::index;

/// Time for which a node may forward packets of a flow after the neighbour that sends them has lost its transit: what it
/// received before waits for a route or a link.
const HELD: Duration = Duration::from_secs(3);

/// What the nodes have received.
#[derive(Debug, Default)]
pub(super) struct Monitor {
    /// When a node last received a packet of a flow from a neighbour with transit.
    received: BTreeMap<(usize, FlowKey), Timestamp>,
    /// When a node last received a packet of a flow from a neighbour without transit.
    refused: BTreeMap<(usize, FlowKey), Timestamp>,
    pub(super) forwarded: u64,
}

impl Monitor {
    fn flow(datagram: &[u8]) -> Option<FlowKey> {
        let opened = [false, true].into_iter().find_map(|way| open_short(way, 0, datagram));
        let (header, payload) = opened?;
        if !header.relayed || header.kind == PacketKind::Control {
            return None;
        }
        Some(FlowHeader::decode(&mut Reader::new(&payload))?.key)
    }

    /// A datagram arrives at a node over an edge.
    pub(super) fn receive(
        &mut self,
        now: Timestamp,
        world: &World,
        (node, edge): (usize, usize),
        datagram: &[u8],
    ) {
        let Some(flow) = Self::flow(datagram) else { return };
        let from = world.other(edge, node);
        let has_transit = world.nodes[node].transit.get(&from) == Some(&true);
        let times = if has_transit { &mut self.received } else { &mut self.refused };
        times.insert((node, flow), now);
    }

    /// A node sends a datagram over an edge. Returns what is wrong.
    pub(super) fn send(
        &mut self,
        now: Timestamp,
        world: &World,
        (node, edge): (usize, usize),
        datagram: &[u8],
    ) -> Option<String> {
        let flow = Self::flow(datagram)?;
        let (to, config) = (index(flow.destination), &world.nodes[node]);
        let next = world.other(edge, node);
        let routes = config.routes.get(&to).into_iter().flatten();
        // A route over a neighbour takes each edge to it.
        let leads = routes.into_iter().any(|&route| world.other(route, node) == next);
        if !leads {
            return Some(format!(
                "node {node} sends packets for node {to} over edge {edge}: no route"
            ));
        }
        if !config.dials.contains(&edge) && !config.transit.contains_key(&next) {
            return Some(format!("node {node} sends packets to {next}, which it does not admit"));
        }
        if index(flow.source) != config.claims {
            self.forwarded += 1;
            let [last, refused] =
                [&self.received, &self.refused].map(|times| times.get(&(node, flow)));
            // Without packets since then, it is one that waited for a route.
            if last.is_none_or(|at| refused.is_some_and(|refused| refused > at) && now - *at > HELD)
            {
                return Some(format!(
                    "node {node} forwards {flow:?} of neighbours without transit"
                ));
            }
        }
        None
    }
}
