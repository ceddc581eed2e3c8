//! From the device into the queues of the peers.

use std::hash::{Hash, Hasher};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bats_node::{Local, NodeId, local};
use bats_tun::{HEADER, MAX_PACKET, Offload, Packet, TCP};
use rustc_hash::FxHasher;

use super::super::{Lanes, Table, Worker};
use super::filter::may_pass_locally;
use super::format;
use super::lane::DEADLINE;
use super::port::Port;
use crate::config::TunMode;

/// Lowest DSCP of conversational traffic (CS5, EF), for which a late packet is as bad as a lost one.
const EXPEDITED: u8 = 40;
/// One-way delay that conversations tolerate (ITU-T G.114).
const EXPEDITED_DEADLINE: Duration = Duration::from_millis(150);

/// Reads packets of the device into the lanes of their owners; runs on a thread of its own.
pub(in super::super) fn read_packets(worker: &Worker, port: &Port) {
    let mut buffer = vec![0; HEADER + MAX_PACKET];
    let mut had_error = false;
    loop {
        let (offload, length) = match port.read(&mut buffer) {
            Ok(read) => read,
            Err(error) => {
                if !std::mem::replace(&mut had_error, true) {
                    eprintln!("batsd: cannot read from the TUN device: {error}; trying again");
                }
                // The device is down or was removed; then the keeper ends, and this process with it.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        had_error = false;
        port.counters.read.fetch_add(1, Relaxed);
        port.counters.read_bytes.fetch_add(length as u64, Relaxed);
        let packet = buffer.get(HEADER..).and_then(|rest| rest.get(..length)).unwrap_or_default();
        let table = worker.table();
        queue_packet(&table, port, offload, packet);
    }
}

fn queue_packet(table: &Table, port: &Port, offload: Offload, bytes: &[u8]) {
    let Some(packet) = Packet::parse(bytes) else {
        port.counters.malformed.fetch_add(1, Relaxed);
        return;
    };
    let lanes_of = |node: &NodeId| table.lanes.get(node);
    let neighbour = |node: &NodeId| lanes_of(node).filter(|_| table.neighbours.contains(node));
    let lanes = match local(packet.destination) {
        None => table.owners.owner(packet.destination).and_then(|node| lanes_of(&node)),
        Some(_) if !may_pass_locally(&packet, bytes) => None,
        Some(Local::Neighbour(node)) => neighbour(&node),
        Some(Local::Neighbours) if !table.neighbours.is_empty() => {
            for lanes in table.neighbours.iter().filter_map(lanes_of) {
                push_packet(table, lanes, &packet, offload, bytes);
            }
            return;
        }
        Some(Local::Neighbours | Local::NoNode) => None,
    };
    match lanes {
        Some(lanes) => push_packet(table, lanes, &packet, offload, bytes),
        None => drop(port.counters.no_owner.fetch_add(1, Relaxed)),
    }
}

fn push_packet(table: &Table, lanes: &Lanes, packet: &Packet, offload: Offload, bytes: &[u8]) {
    let is_stream = match table.mode {
        TunMode::Auto => packet.protocol == TCP && !packet.is_fragment,
        TunMode::Brtp => true,
        TunMode::Btp => false,
    };
    let mut hash = FxHasher::default();
    (packet.source, packet.destination, packet.protocol, packet.ports).hash(&mut hash);
    let deadline = if packet.dscp >= EXPEDITED { EXPEDITED_DEADLINE } else { DEADLINE };
    let lane = if is_stream { &lanes.stream } else { &lanes.datagram };
    // The low bits of the hash select the queue, but they are the least random ones.
    lane.push(hash.finish() >> 20, format::packet(offload, bytes), deadline);
}
