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
use crate::endpoint::{ConnectionHandle, Endpoint, Input, Output, Received};
use crate::error::CloseReason;
use crate::event::Event;
use crate::stats::ConnectionStats;

pub(super) const CLIENT: usize = 0;
pub(super) const SERVER: usize = 1;
pub(super) const MAX_CONNECTIONS: usize = 8;

/// An endpoint must be idle after this number of outputs if nothing new happens.
const MAX_OUTPUTS: usize = 20_000;
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

/// One side and its application.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) endpoint: Endpoint,
    pub(super) handle: Option<ConnectionHandle>,
    pub(super) established: bool,
    pub(super) closed: Option<CloseReason>,
    /// Datagrams in flight to this side.
    pub(super) in_flight: VecDeque<Vec<u8>>,
    /// Datagrams that were delivered to this side earlier.
    pub(super) history: VecDeque<Vec<u8>>,
    /// Messages accepted by `send`.
    pub(super) sent: Vec<Bytes>,
    /// Whether `finish` was called.
    pub(super) finished: bool,
    /// Messages taken by `recv`.
    pub(super) received: Vec<Bytes>,
    next_timeout: Option<Timestamp>,
}

/// Both sides and the clock.
#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Timestamp,
    pub(super) sides: [Side; 2],
    config: WorldConfig,
    buffer: Vec<u8>,
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

fn side(config: EndpointConfig, seed: u8) -> Side {
    let Ok(endpoint) = Endpoint::new(config, [seed; 32]) else {
        panic!("the stand-in needs no identity")
    };
    Side {
        endpoint,
        handle: None,
        established: false,
        closed: None,
        in_flight: VecDeque::new(),
        history: VecDeque::new(),
        sent: Vec::new(),
        finished: false,
        received: Vec::new(),
        next_timeout: None,
    }
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
        let endpoint = &mut world.sides[CLIENT].endpoint;
        let Ok(handle) = endpoint.connect(world.now, address(SERVER), "server", client) else {
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
        Self {
            now: Timestamp::from_millis(1_000),
            sides: [side(client, 1), side(server_config(&config), 2)],
            config,
            buffer: Vec::with_capacity(65_536),
        }
    }

    /// Lets a side produce all outputs that are due.
    pub(super) fn settle(&mut self, peer: usize) {
        let Self { now, sides, buffer, .. } = self;
        let (mut outputs, mut lost) = (0, 0);
        loop {
            outputs += 1;
            assert!(outputs < MAX_OUTPUTS, "an endpoint becomes idle");
            match sides[peer].endpoint.poll(*now, buffer) {
                Output::Transmit(transmit) => {
                    assert_eq!(transmit.len, buffer.len());
                    for datagram in buffer.chunks(transmit.segment_size) {
                        assert!(datagram.len() <= 1_472, "no longer than the largest MTU");
                        if sides[1 - peer].in_flight.len() < MAX_IN_FLIGHT {
                            sides[1 - peer].in_flight.push_back(datagram.to_vec());
                        } else {
                            lost += 1;
                        }
                    }
                }
                Output::Event(handle, event) => {
                    let side = &mut sides[peer];
                    match event {
                        Event::Accepted if side.handle.is_none() => side.handle = Some(handle),
                        _ => {}
                    }
                    if side.handle == Some(handle) {
                        match event {
                            Event::Accepted | Event::Connected => side.established = true,
                            Event::Closed(reason) => side.closed = Some(reason),
                            _ => {}
                        }
                    }
                }
                Output::Timeout(at) => {
                    sides[peer].next_timeout = at;
                    break;
                }
            }
        }
        assert!(lost < MAX_OUTPUTS, "a burst is bounded");
        self.check_memory(peer);
    }

    fn check_memory(&self, peer: usize) {
        let side = &self.sides[peer];
        assert!(side.endpoint.connection_count() <= MAX_CONNECTIONS);
        let Some(stats) = self.stats(peer) else { return };
        let transport = &self.config.transport;
        let send = transport.send_budget as u64 + MEMORY_SLACK;
        assert!(stats.buffers.send_bytes <= send, "{stats:?}");
        let receive = transport.receive_budget as u64 + MEMORY_SLACK;
        assert!(stats.buffers.receive_bytes <= receive, "{stats:?}");
    }

    fn stats(&self, peer: usize) -> Option<ConnectionStats> {
        let side = &self.sides[peer];
        side.handle.and_then(|handle| side.endpoint.stats(self.now, handle))
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
    pub(super) fn deliver(&mut self, to: usize, mut datagram: Vec<u8>, from: SocketAddr) {
        let old = &mut self.sides[to].history;
        if old.len() == MAX_HISTORY {
            old.pop_front();
        }
        old.push_back(datagram.clone());
        let received = Received { remote: from, local_ip: None, ecn: 0, payload: &mut datagram };
        self.sides[to].endpoint.handle(self.now, Input::Datagram(received));
        self.settle(to);
    }

    /// Delivers all datagrams in flight in order, including those sent in response.
    pub(super) fn deliver_all(&mut self) {
        for to in [CLIENT, SERVER] {
            for datagram in core::mem::take(&mut self.sides[to].in_flight) {
                self.deliver(to, datagram, address(1 - to));
            }
        }
    }

    /// Advances the clock and fires timers.
    pub(super) fn advance(&mut self, time: Duration) {
        self.now += time;
        for peer in [CLIENT, SERVER] {
            if self.sides[peer].next_timeout.is_some_and(|at| at <= self.now) {
                self.sides[peer].endpoint.handle(self.now, Input::Timeout);
                self.settle(peer);
                let next = self.sides[peer].next_timeout;
                assert!(next.is_none_or(|at| at > self.now), "a timer stays due: {next:?}");
            }
        }
    }

    /// Runs a network without faults and with a delay of 1 ms for `time`, applications included.
    /// May stop when all messages have arrived.
    pub(super) fn run_without_faults(&mut self, time: Duration, until_complete: bool) {
        const STEP: Duration = Duration::from_millis(1);
        let end = self.now + time;
        while self.now < end && !(until_complete && self.is_complete()) {
            self.deliver_all();
            self.receive(CLIENT);
            self.receive(SERVER);
            let next = self.sides.iter().filter_map(|side| side.next_timeout).min();
            let idle = self.sides.iter().all(|side| side.in_flight.is_empty());
            let step = match next {
                Some(at) if idle => at - self.now,
                None if idle => end - self.now,
                _ => STEP,
            };
            // The minimum step ends loops of an endpoint that always requests the current time.
            self.advance(step.max(Duration::from_micros(100)).min(end - self.now));
        }
    }

    /// Sends an application message with a unique content.
    pub(super) fn send(&mut self, peer: usize, len: usize) {
        let Some(handle) = self.sides[peer].handle else { return };
        let side = &mut self.sides[peer];
        let mark = side.sent.len() * 2 + peer;
        let message: Bytes = (0..len).map(|i| (mark * 89 + i * 7 + (i >> 8)) as u8).collect();
        if side.endpoint.send(self.now, handle, message.clone()).is_ok() {
            side.sent.push(message);
        }
        self.settle(peer);
    }

    /// Finishes the application's messages.
    pub(super) fn finish(&mut self, peer: usize) {
        let side = &mut self.sides[peer];
        if let Some(handle) = side.handle {
            side.finished |= side.endpoint.finish(self.now, handle).is_ok();
        }
        self.settle(peer);
    }

    /// Receives all available application messages.
    pub(super) fn receive(&mut self, peer: usize) {
        let side = &mut self.sides[peer];
        let Some(handle) = side.handle else { return };
        let before = side.received.len();
        while let Some(message) = side.endpoint.recv(self.now, handle) {
            side.received.push(message);
        }
        if side.received.len() > before {
            self.settle(peer);
        }
    }

    /// Whether all messages have arrived, and the end mark if there was one.
    pub(super) fn is_complete(&self) -> bool {
        let [client, server] = &self.sides;
        let has_all = |receiver: &Side, sender: &Side| {
            let is_finished = receiver.handle.is_some_and(|h| receiver.endpoint.is_finished(h));
            receiver.received.len() == sender.sent.len() && is_finished == sender.finished
        };
        has_all(client, server) && has_all(server, client)
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
