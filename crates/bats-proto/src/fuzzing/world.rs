//! Two endpoints and the datagrams between them, in virtual time. The caller decides what happens
//! to each datagram.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use bats_types::Timestamp;
use bytes::Bytes;

use crate::config::{
    ClientConfig, CongestionAlgorithm, EndpointConfig, Identity, PeerTrust, PresharedKey, Security,
    ServerConfig, TransportConfig,
};
use crate::endpoint::{ConnectionHandle, Endpoint, Transmit};
use crate::error::CloseReason;
use crate::event::Event;
use crate::stats::ConnectionStats;
use crate::testing::{self, Application, Arrival, Delivery, Links, Turn};

pub(super) const CLIENT: usize = 0;
pub(super) const SERVER: usize = 1;
pub(super) const MAX_CONNECTIONS: usize = 8;

/// An endpoint must be idle after this number of outputs if nothing new happens.
const MAX_OUTPUTS: u32 = 20_000;
/// Maximum number of datagrams in flight in each direction; further ones are lost.
const MAX_IN_FLIGHT: usize = 2_048;
/// Number of datagrams remembered for replays.
const MAX_HISTORY: usize = 64;
/// Bytes that may be held in addition to a budget: queued repairs, rows behind the window that
/// repairs refer to, and state of every symbol.
const MEMORY_SLACK: u64 = 6 << 20;

/// Configuration of a run, the same for both ends.
#[derive(Clone, Debug)]
pub(super) struct WorldConfig {
    pub(super) transport: TransportConfig,
    pub(super) retry_threshold: usize,
}

impl WorldConfig {
    /// Settings from three bytes.
    pub(super) fn new([control, budget, keys]: [u8; 3]) -> Self {
        let congestion = match control % 4 {
            0 | 1 => CongestionAlgorithm::Ltcc,
            2 => CongestionAlgorithm::None,
            _ => CongestionAlgorithm::FixedRate { bits_per_second: 2_000_000 },
        };
        let transport = TransportConfig {
            congestion,
            send_budget: 1 << (8 + budget % 16),
            receive_budget: 1 << (8 + (budget >> 4)),
            max_message_size: 1 << 20,
            key_update_packets: if keys & 1 == 1 { 64 } else { 1 << 22 },
            max_udp_payload: if keys & 2 == 2 { 1_472 } else { 1_200 },
            keep_alive: (keys & 4 == 4).then_some(Duration::from_millis(300)),
            psk: (keys & 48 == 48).then(|| PresharedKey::new([5; PresharedKey::LEN])),
            ..TransportConfig::default()
        };
        Self { transport, retry_threshold: if keys & 8 == 8 { 0 } else { 1_000 } }
    }
}

/// The application of a side.
#[derive(Debug, Default)]
pub(super) struct Side {
    pub(super) handle: Option<ConnectionHandle>,
    pub(super) established: bool,
    pub(super) closed: Option<CloseReason>,
    /// Datagrams that were delivered to this side earlier.
    pub(super) history: VecDeque<Vec<u8>>,
    /// Messages accepted by `send`.
    pub(super) sent: Vec<Bytes>,
    /// Whether `finish` was called.
    pub(super) finished: bool,
    /// Messages taken by `recv`.
    pub(super) received: Vec<Bytes>,
}

/// Datagrams in flight to each side, which the caller delivers.
#[derive(Debug, Default)]
pub(super) struct Flights {
    pub(super) to: [VecDeque<Vec<u8>>; 2],
    /// Datagrams lost since a side was called.
    lost: u32,
}

impl Links for Flights {
    fn send(&mut self, _: Timestamp, from: usize, _: &Transmit, segment: &[u8], bytes: Vec<u8>) {
        assert!(segment.len() <= 1_472, "no longer than the largest MTU");
        let flights = &mut self.to[1 - from];
        if flights.len() < MAX_IN_FLIGHT {
            flights.push_back(bytes);
        } else {
            self.lost += 1;
        }
    }

    fn receive(&mut self, _: Timestamp, _: usize) -> Arrival {
        Arrival::Idle
    }

    fn next(&mut self, _: Timestamp) -> Option<Timestamp> {
        None
    }
}

impl Application for [Side; 2] {
    fn on_event(
        &mut self,
        _now: Timestamp,
        (peer, _): (usize, &mut Endpoint),
        handle: ConnectionHandle,
        event: &Event,
    ) -> bool {
        let side = &mut self[peer];
        if *event == Event::Accepted {
            side.handle.get_or_insert(handle);
        }
        if side.handle == Some(handle) {
            match event {
                Event::Accepted | Event::Connected => side.established = true,
                Event::Closed(reason) => side.closed = Some(reason.clone()),
                _ => {}
            }
        }
        false
    }
}

/// Both sides and the clock.
#[derive(Debug)]
pub(super) struct World {
    pub(super) world: testing::World<Flights>,
    pub(super) sides: [Side; 2],
    config: WorldConfig,
}

pub(super) fn address(peer: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + peer as u8], 4_000))
}

/// A server that needs no certificate.
pub(super) fn server_config(config: &WorldConfig) -> EndpointConfig {
    let server = ServerConfig {
        identity: Identity { certificate_chain: Vec::new(), private_key: Vec::new() },
        transport: Arc::new(config.transport.clone()),
        client_trust: None,
        retry_threshold: config.retry_threshold,
        max_connections: MAX_CONNECTIONS,
    };
    EndpointConfig {
        security: Security::DangerousPlain,
        server: Some(server),
        ..EndpointConfig::default()
    }
}

fn endpoint(config: EndpointConfig, seed: u8) -> Endpoint {
    let Ok(endpoint) = Endpoint::new(config, [seed; 32]) else {
        panic!("the stand-in needs no identity")
    };
    endpoint
}

impl World {
    /// A client that has begun to connect, and a server.
    pub(super) fn new(config: WorldConfig) -> Self {
        let mut world = Self::without_client(config);
        let client = ClientConfig {
            trust: PeerTrust::DangerousAcceptAny,
            identity: None,
            transport: Arc::new(world.config.transport.clone()),
        };
        let now = world.now();
        let endpoint = &mut world.world.nodes[CLIENT];
        let Ok(handle) = endpoint.connect(now, address(SERVER), "server", client) else {
            panic!("the configuration can be used")
        };
        world.sides[CLIENT].handle = Some(handle);
        world.settle(CLIENT);
        world
    }

    /// A server without a client endpoint.
    pub(super) fn without_client(config: WorldConfig) -> Self {
        let client =
            EndpointConfig { security: Security::DangerousPlain, ..EndpointConfig::default() };
        let nodes = vec![endpoint(client, 1), endpoint(server_config(&config), 2)];
        let order = vec![Turn::Node(CLIENT), Turn::Node(SERVER)];
        let now = Timestamp::from_millis(1_000);
        let mut world = testing::World::new(now, nodes, Flights::default(), order);
        world.max_work = MAX_OUTPUTS;
        let mut world = Self { world, sides: Default::default(), config };
        [CLIENT, SERVER].into_iter().for_each(|peer| world.settle(peer));
        world
    }

    pub(super) fn now(&self) -> Timestamp {
        self.world.now
    }

    /// Lets a side produce all outputs that are due.
    pub(super) fn settle(&mut self, peer: usize) {
        self.world.settle(peer, &mut self.sides);
        self.check(peer);
    }

    /// Checks a side after its outputs.
    fn check(&mut self, peer: usize) {
        let lost = core::mem::take(&mut self.world.links.lost);
        assert!(lost < MAX_OUTPUTS, "a burst is bounded");
        self.check_memory(peer);
    }

    fn check_memory(&self, peer: usize) {
        assert!(self.world.nodes[peer].connection_count() <= MAX_CONNECTIONS);
        let Some(stats) = self.stats(peer) else { return };
        let transport = &self.config.transport;
        let send = transport.send_budget as u64 + MEMORY_SLACK;
        assert!(stats.buffers.send_bytes <= send, "{stats:?}");
        let receive = transport.receive_budget as u64 + MEMORY_SLACK;
        assert!(stats.buffers.receive_bytes <= receive, "{stats:?}");
    }

    fn stats(&self, peer: usize) -> Option<ConnectionStats> {
        self.sides[peer].handle.and_then(|handle| self.world.nodes[peer].stats(self.now(), handle))
    }

    /// Number of data packets that a side accepted as authentic so far; 0 once it has closed.
    pub(super) fn packets_received(&self, peer: usize) -> u64 {
        self.stats(peer).map_or(0, |stats| stats.packets.received)
    }

    /// Number of source symbols that a side sent so far; 0 once it has closed.
    pub(super) fn symbols_sent(&self, peer: usize) -> u64 {
        self.stats(peer).map_or(0, |stats| stats.coding.source_packets_sent)
    }

    /// Delivers a datagram.
    pub(super) fn deliver(&mut self, to: usize, bytes: Vec<u8>, remote: SocketAddr) {
        let old = &mut self.sides[to].history;
        if old.len() == MAX_HISTORY {
            old.pop_front();
        }
        old.push_back(bytes.clone());
        let delivery = Delivery { to, remote, local_ip: None, ecn: 0, bytes };
        self.world.arrive(delivery, &mut self.sides);
        self.check(to);
    }

    /// Delivers all datagrams in flight in order, including those sent in response.
    pub(super) fn deliver_all(&mut self) {
        for to in [CLIENT, SERVER] {
            for datagram in core::mem::take(&mut self.world.links.to[to]) {
                self.deliver(to, datagram, address(1 - to));
            }
        }
    }

    /// Advances the clock and fires timers.
    pub(super) fn advance(&mut self, time: Duration) {
        self.world.advance(self.now() + time);
        self.world.round(&mut self.sides);
        for peer in [CLIENT, SERVER] {
            self.check(peer);
            let next = self.world.next_timeout(peer);
            assert!(next.is_none_or(|at| at > self.now()), "a timer stays due: {next:?}");
        }
    }

    /// Runs a network without faults and with a delay of 1 ms for `time`, applications included.
    /// May stop when all messages have arrived.
    pub(super) fn run_without_faults(&mut self, time: Duration, until_complete: bool) {
        const STEP: Duration = Duration::from_millis(1);
        let end = self.now() + time;
        while self.now() < end && !(until_complete && self.is_complete()) {
            self.deliver_all();
            self.receive(CLIENT);
            self.receive(SERVER);
            let next = self.world.next_time();
            let idle = self.world.links.to.iter().all(VecDeque::is_empty);
            let step = match next {
                Some(at) if idle => at - self.now(),
                None if idle => end - self.now(),
                _ => STEP,
            };
            // The minimum step ends loops of an endpoint that always requests the current time.
            self.advance(step.max(Duration::from_micros(100)).min(end - self.now()));
        }
    }

    /// Sends an application message with a unique content.
    pub(super) fn send(&mut self, peer: usize, len: usize) {
        let Some(handle) = self.sides[peer].handle else { return };
        let side = &mut self.sides[peer];
        let mark = side.sent.len() * 2 + peer;
        let message: Bytes = (0..len).map(|i| (mark * 89 + i * 7 + (i >> 8)) as u8).collect();
        let endpoint = &mut self.world.nodes[peer];
        if endpoint.send(self.world.now, handle, message.clone()).is_ok() {
            side.sent.push(message);
        }
        self.settle(peer);
    }

    /// Finishes the application's messages.
    pub(super) fn finish(&mut self, peer: usize) {
        let side = &mut self.sides[peer];
        if let Some(handle) = side.handle {
            side.finished |= self.world.nodes[peer].finish(self.world.now, handle).is_ok();
        }
        self.settle(peer);
    }

    /// Receives all available application messages.
    pub(super) fn receive(&mut self, peer: usize) {
        let side = &mut self.sides[peer];
        let Some(handle) = side.handle else { return };
        let before = side.received.len();
        while let Some(message) = self.world.nodes[peer].recv(self.world.now, handle) {
            side.received.push(message);
        }
        if side.received.len() > before {
            self.settle(peer);
        }
    }

    /// Whether all messages have arrived, and the end mark if there was one.
    pub(super) fn is_complete(&self) -> bool {
        [CLIENT, SERVER].into_iter().all(|peer| {
            let (receiver, sender) = (&self.sides[peer], &self.sides[1 - peer]);
            let node = &self.world.nodes[peer];
            let is_finished = receiver.handle.is_some_and(|handle| node.is_finished(handle));
            receiver.received.len() == sender.sent.len() && is_finished == sender.finished
        })
    }

    /// Checks that the received messages are a prefix of the sent ones.
    pub(super) fn check_messages(&self) {
        for peer in [CLIENT, SERVER] {
            let (sent, received) = (&self.sides[1 - peer].sent, &self.sides[peer].received);
            assert!(received.len() <= sent.len(), "more received than sent");
            for (index, (sent, received)) in sent.iter().zip(received).enumerate() {
                assert!(sent == received, "message {index} changed in transit");
            }
        }
    }
}
