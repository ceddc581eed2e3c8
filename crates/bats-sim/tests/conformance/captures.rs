//! Captures at one host, with the messages that were exchanged.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bats_proto::crypto::fingerprint;
use bats_proto::relay::RelayConfig;
use bats_proto::{
    ChannelError, ChannelId, CongestionAlgorithm, ConnectionHandle, Event, KeyLog, Mode,
    PresharedKey, TransportConfig,
};
use bats_sim::capture::Capture;
use bats_sim::links;
use bats_sim::recorder::LinkEventKind;
use bats_sim::relay_network::{LinkDirection, RelayNetwork, RelayNetworkConfig, node_id};
use bats_sim::swarm::{Plan, run_captured};
use bytes::Bytes;

/// The nodes between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// One link, without relaying.
    Link,
    /// Three links in a row.
    TwoRelays,
    /// Two parallel links.
    TwoPaths,
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) topology: Topology,
    pub(crate) mode: Mode,
    pub(crate) psk: Option<PresharedKey>,
    pub(crate) key_update_packets: u64,
    /// Whether both ends also use channels.
    pub(crate) has_channels: bool,
}

/// Length and SHA-256 of messages.
pub(crate) struct Exchange {
    pub(crate) received_by_server: Vec<(usize, String)>,
    pub(crate) sent_by_server: Vec<(usize, String)>,
    /// Bytes of channels: the server sends each byte of the client back.
    pub(crate) channels: Vec<(usize, String)>,
}

const MESSAGES: usize = 80;

fn message(number: usize) -> Bytes {
    let length = match number {
        7 => 0,
        9 => 40_000,
        _ => number * 997 % 4_001 + 1,
    };
    (0..length).map(|at| (at * 31 + number * 17 + at / 251) as u8).collect()
}

fn digest(message: &[u8]) -> (usize, String) {
    let mut hash = String::new();
    for byte in fingerprint(message) {
        write!(hash, "{byte:02x}").unwrap();
    }
    (message.len(), hash)
}

fn edges(topology: Topology) -> Vec<(usize, usize)> {
    match topology {
        Topology::Link => vec![(0, 1)],
        Topology::TwoRelays => vec![(0, 1), (1, 2), (2, 3)],
        Topology::TwoPaths => vec![(0, 1), (0, 1)],
    }
}

fn network(case: &Case, key_log: KeyLog) -> RelayNetwork {
    let edges = edges(case.topology);
    let link = links::queued(20_000_000, Duration::from_millis(5), 2.0, 0.05);
    let links = vec![link; edges.len()];
    let transport = TransportConfig {
        mode: case.mode,
        also_accepted: vec![Mode::Btp, Mode::Brtp, Mode::Brctp, Mode::Transparent],
        psk: case.psk.clone(),
        key_log: Some(key_log),
        key_update_packets: case.key_update_packets,
        channels: case.has_channels.then_some(10),
        // Lost packets are only repaired while the deadline lasts.
        deadline: Duration::from_secs(2),
        congestion: CongestionAlgorithm::FixedRate { bits_per_second: 5_000_000 },
        ..TransportConfig::default()
    };
    let config = RelayNetworkConfig {
        links: links.clone(),
        relay: RelayConfig::new(node_id(0)),
        transport,
        seed: 11,
    };
    RelayNetwork::build(config, &links, edges)
}

/// Runs until the handle of the server's end is known.
fn accepted(net: &mut RelayNetwork, is_session: bool) -> ConnectionHandle {
    let end = net.now() + Duration::from_secs(20);
    while net.now() < end {
        net.step(end);
        for (node, handle, event) in core::mem::take(&mut net.events) {
            let is_end = node == net.last() && event == Event::Accepted;
            if is_end && net.node(node).remote_node(handle).is_some() == is_session {
                return handle;
            }
        }
    }
    panic!("no connection within 20 s");
}

/// Exchanges messages and writes `capture.pcapng` at the server and `keys.log`.
pub(crate) fn run(case: &Case, directory: &Path) -> Exchange {
    let log =
        Arc::new(Mutex::new(BufWriter::new(File::create(directory.join("keys.log")).unwrap())));
    let lines = log.clone();
    let key_log = KeyLog::new(move |line| writeln!(lines.lock().unwrap(), "{line}").unwrap());
    let mut net = network(case, key_log);
    let file = BufWriter::new(File::create(directory.join("capture.pcapng")).unwrap());
    let capture = Rc::new(RefCell::new(Some(Capture::new(Box::new(file), 1 << 30).unwrap())));
    let (recording, at_server) = (capture.clone(), edges(case.topology));
    let last = at_server.iter().map(|edge| edge.1).max().unwrap();
    net.observe(Box::new(move |event| {
        let is_here = at_server[event.link].1 == last;
        // The datagrams that the server receives and sends.
        let is_seen = match event.direction {
            LinkDirection::Forward => event.kind == LinkEventKind::Delivered,
            LinkDirection::Reverse => event.kind != LinkEventKind::Delivered,
        };
        if let Some(capture) = recording.borrow_mut().as_mut().filter(|_| is_here && is_seen) {
            capture.record_datagram(event.time, event.addresses(), event.ecn, event.payload);
        }
    }));
    let (client, server) = match case.topology {
        Topology::Link => {
            let server = accepted(&mut net, false);
            (net.link_connection(0).unwrap(), server)
        }
        Topology::TwoRelays | Topology::TwoPaths => {
            let end = net.now() + Duration::from_secs(20);
            while !net.is_established() {
                assert!(net.now() < end, "the links are established");
                net.step(end);
            }
            let client = net.connect_ends_in(case.mode);
            (client, accepted(&mut net, true))
        }
    };
    let mut exchange = Exchange {
        received_by_server: Vec::new(),
        sent_by_server: Vec::new(),
        channels: Vec::new(),
    };
    let mut channels = Vec::new();
    let begun = net.now();
    for number in 0..MESSAGES + 60 {
        if number < MESSAGES {
            let now = net.now();
            if case.has_channels && number % 10 == 0 {
                let id = net.node(0).open_channel(now, client).unwrap();
                let data = message(9);
                let taken = net.node(0).write_channel(now, client, id, &data).unwrap();
                assert_eq!(taken, data.len());
                net.node(0).finish_channel(client, id).unwrap();
                exchange.channels.push(digest(&data));
            }
            net.node(0).send(now, client, message(number)).unwrap();
            net.wake(0);
            if number % 8 == 0 {
                let message = message(1_000 + number);
                exchange.sent_by_server.push(digest(&message));
                net.node(last).send(now, server, message).unwrap();
                net.wake(last);
            }
        }
        let until = begun + Duration::from_millis(20) * (number as u32 + 1);
        while net.now() < until {
            net.step(until);
        }
        let now = net.now();
        if case.has_channels {
            echo_channels(&mut net, last, server, &mut channels);
        }
        while let Some(message) = net.node(last).recv(now, server) {
            exchange.received_by_server.push(digest(&message));
        }
    }
    if case.mode.is_reliable() {
        assert_eq!(exchange.received_by_server.len(), MESSAGES, "all messages arrive");
    }
    capture.borrow_mut().take().unwrap().finish().unwrap();
    log.lock().unwrap().flush().unwrap();
    exchange
}

/// Sends back the bytes that have arrived on the channels of the server, and removes channels that
/// have ended.
fn echo_channels(
    net: &mut RelayNetwork,
    last: usize,
    server: ConnectionHandle,
    channels: &mut Vec<ChannelId>,
) {
    let now = net.now();
    let node = net.node(last);
    while let Some(id) = node.accept_channel(server).unwrap() {
        channels.push(id);
    }
    let mut buffer = vec![0; 100_000];
    channels.retain(|&id| {
        loop {
            match node.read_channel(now, server, id, &mut buffer) {
                Ok(Some(len)) => {
                    let taken = node.write_channel(now, server, id, &buffer[..len]).unwrap();
                    assert_eq!(taken, len);
                }
                Ok(None) => {
                    node.finish_channel(server, id).unwrap();
                    return false;
                }
                Err(ChannelError::Blocked) => return true,
                Err(error) => panic!("channel {id}: {error}"),
            }
        }
    });
    net.wake(last);
}

/// Runs a seed of the swarm and captures its first packets.
pub(crate) fn run_swarm(seed: u64, packets: u64, path: &Path) {
    let file = BufWriter::new(File::create(path).unwrap());
    let capture = Capture::new(Box::new(file), packets).unwrap();
    let plan = Plan::new(seed, Duration::from_secs(10));
    let report = run_captured(&plan, false, Some(capture));
    assert_eq!(report.violation, None, "seed {seed}");
}
