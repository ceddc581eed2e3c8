//! Which packets may pass: by source, and by link-local addresses and groups.

use bats_node::{Local, NodeId, is_link_local, local, may_pass};
use bats_tun::Packet;

use super::super::Table;

/// Whether a packet with a link-local address or group may pass, in either direction.
pub(super) fn may_pass_locally(packet: &Packet, bytes: &[u8]) -> bool {
    let first = bytes.get(packet.payload).copied();
    may_pass(packet.source, packet.protocol, packet.is_fragment, first)
}

/// Whether a packet of a peer may be written to the device: the peer owns its source. Link-local packets
/// come from neighbours only.
pub(super) fn may_deliver(table: &Table, peer: NodeId, packet: &Packet, bytes: &[u8]) -> bool {
    let (source, has_local_source) = (packet.source, is_link_local(packet.source));
    let is_own = match has_local_source {
        true => local(source) == Some(Local::Neighbour(peer)),
        false => table.owners.may_send(peer, source),
    };
    let is_local = has_local_source || local(packet.destination).is_some();
    let is_allowed = || table.neighbours.contains(&peer) && may_pass_locally(packet, bytes);
    is_own && (!is_local || is_allowed())
}
