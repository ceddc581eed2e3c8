//! Two endpoints and the datagrams between them, in virtual time. Whoever drives it decides what
//! becomes of each datagram.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use bats_types::Timestamp;
use bytes::Bytes;

use crate::config::{
    ClientConfig, ClosedKey, CongestionAlgorithm, EndpointConfig, Identity, PeerTrust, Security,
    ServerConfig, TransportConfig,
};
use crate::endpoint::{ConnectionHandle, Endpoint, Input, Output, Received};
use crate::error::CloseReason;
use crate::event::Event;
use crate::stats::ConnectionStats;

pub(super) const CLIENT: usize = 0;
pub(super) const SERVER: usize = 1;
pub(super) const MAX_CONNECTIONS: usize = 8;

/// Outputs after which an endpoint that has nothing new to do must rest.
const MAX_OUTPUTS: usize = 20_000;
/// Datagrams that the network holds in each direction; more are lost.
const MAX_FLYING: usize = 2_048;
/// Datagrams remembered for replays.
const MAX_OLD: usize = 64;
/// Bytes that may be held beyond a budget: repairs in the queue, rows behind the window that
/// repairs refer to, bookkeeping of every symbol.
const MEMORY_SLACK: u64 = 6 << 20;

/// What the ends of a run agreed on.
#[derive(Clone, Debug)]
pub(super) struct WorldConfig {
    pub(super) transport: TransportConfig,
    pub(super) retry_threshold: usize,
}

impl WorldConfig {
    /// Settings from three bytes.
    pub(super) fn new([control, budget, keys]: [u8; 3]) -> Self {
        let congestion = match control % 4 {
            0 | 1 => CongestionAlgorithm::Bbr,
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
            closed: (keys & 48 == 48).then(|| ClosedKey::new([5; ClosedKey::LEN])),
            ..TransportConfig::default()
        };
        Self { transport, retry_threshold: if keys & 8 == 8 { 0 } else { 1_000 } }
    }
}

/// One side.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) endpoint: Endpoint,
    pub(super) handle: Option<ConnectionHandle>,
    pub(super) established: bool,
    pub(super) closed: Option<CloseReason>,
    /// On their way to this side.
    pub(super) flying: VecDeque<Vec<u8>>,
    /// Arrived here earlier or was lost.
    pub(super) old: VecDeque<Vec<u8>>,
    /// Messages accepted by `send`.
    pub(super) sent: Vec<Bytes>,
    /// No more will be sent.
    pub(super) finished: bool,
    /// Messages taken by `recv`.
    pub(super) received: Vec<Bytes>,
    next_timeout: Option<Timestamp>,
}

/// Both.
#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Timestamp,
    pub(super) sides: [Side; 2],
    config: WorldConfig,
    buffer: Vec<u8>,
}

pub(super) fn address(who: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + who as u8], 4_000))
}

/// A server that needs no certificate.
pub(super) fn server_config(config: &WorldConfig) -> EndpointConfig {
    let server = ServerConfig {
        identity: Identity { certificate_chain: Vec::new(), private_key: Vec::new() },
        transport: Arc::new(config.transport.clone()),
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
        flying: VecDeque::new(),
        old: VecDeque::new(),
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

    /// A server, and nobody who speaks for the client.
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

    /// Lets a side say everything that it has to say now.
    pub(super) fn settle(&mut self, who: usize) {
        let Self { now, sides, buffer, .. } = self;
        let (mut outputs, mut lost) = (0, 0);
        loop {
            outputs += 1;
            assert!(outputs < MAX_OUTPUTS, "an endpoint comes to rest");
            match sides[who].endpoint.poll(*now, buffer) {
                Output::Transmit(transmit) => {
                    assert_eq!(transmit.len, buffer.len());
                    for datagram in buffer.chunks(transmit.segment_size) {
                        assert!(datagram.len() <= 1_472, "no longer than the largest path");
                        if sides[1 - who].flying.len() < MAX_FLYING {
                            sides[1 - who].flying.push_back(datagram.to_vec());
                        } else {
                            lost += 1;
                        }
                    }
                }
                Output::Event(handle, event) => {
                    let side = &mut sides[who];
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
                    sides[who].next_timeout = at;
                    break;
                }
            }
        }
        assert!(lost < MAX_OUTPUTS, "a burst is bounded");
        self.check_memory(who);
    }

    fn check_memory(&self, who: usize) {
        let side = &self.sides[who];
        assert!(side.endpoint.connection_count() <= MAX_CONNECTIONS);
        let Some(stats) = self.stats(who) else { return };
        let transport = &self.config.transport;
        let send = transport.send_budget as u64 + MEMORY_SLACK;
        assert!(stats.send_buffer_bytes <= send, "{stats:?}");
        let receive = transport.receive_budget as u64 + MEMORY_SLACK;
        assert!(stats.receive_buffer_bytes <= receive, "{stats:?}");
    }

    fn stats(&self, who: usize) -> Option<ConnectionStats> {
        let side = &self.sides[who];
        side.handle.and_then(|handle| side.endpoint.stats(self.now, handle))
    }

    /// Data packets that a side took for genuine so far, 0 when it has closed.
    pub(super) fn packets_received(&self, who: usize) -> u64 {
        self.stats(who).map_or(0, |stats| stats.packets_received)
    }

    /// Source symbols that a side sent so far, 0 when it has closed.
    pub(super) fn symbols_sent(&self, who: usize) -> u64 {
        self.stats(who).map_or(0, |stats| stats.source_packets_sent)
    }

    /// A datagram arrives.
    pub(super) fn deliver(&mut self, to: usize, mut datagram: Vec<u8>, from: SocketAddr) {
        let old = &mut self.sides[to].old;
        if old.len() == MAX_OLD {
            old.pop_front();
        }
        old.push_back(datagram.clone());
        let received = Received { remote: from, local_ip: None, ecn: 0, payload: &mut datagram };
        self.sides[to].endpoint.handle(self.now, Input::Datagram(received));
        self.settle(to);
    }

    /// Everything in flight arrives in order, and what follows from it takes flight.
    pub(super) fn deliver_all(&mut self) {
        for to in [CLIENT, SERVER] {
            for datagram in core::mem::take(&mut self.sides[to].flying) {
                self.deliver(to, datagram, address(1 - to));
            }
        }
    }

    /// Time goes on.
    pub(super) fn advance(&mut self, time: Duration) {
        self.now += time;
        for who in [CLIENT, SERVER] {
            if self.sides[who].next_timeout.is_some_and(|at| at <= self.now) {
                self.sides[who].endpoint.handle(self.now, Input::Timeout);
                self.settle(who);
            }
        }
    }

    /// A perfect network of a millisecond for some time, applications included; may stop when all
    /// messages have arrived.
    pub(super) fn run_perfectly(&mut self, time: Duration, until_complete: bool) {
        const STEP: Duration = Duration::from_millis(1);
        let end = self.now + time;
        while self.now < end && !(until_complete && self.is_complete()) {
            self.deliver_all();
            self.receive(CLIENT);
            self.receive(SERVER);
            let next = self.sides.iter().filter_map(|side| side.next_timeout).min();
            let idle = self.sides.iter().all(|side| side.flying.is_empty());
            let step = match next {
                Some(at) if idle => at - self.now,
                None if idle => end - self.now,
                _ => STEP,
            };
            // An endpoint that asks for now again and again would stop the world.
            self.advance(step.max(Duration::from_micros(100)).min(end - self.now));
        }
    }

    /// The application sends a message that is like no other.
    pub(super) fn send(&mut self, who: usize, len: usize) {
        let Some(handle) = self.sides[who].handle else { return };
        let side = &mut self.sides[who];
        let mark = side.sent.len() * 2 + who;
        let message: Bytes = (0..len).map(|i| (mark * 89 + i * 7 + (i >> 8)) as u8).collect();
        if side.endpoint.send(self.now, handle, message.clone()).is_ok() {
            side.sent.push(message);
        }
        self.settle(who);
    }

    /// The application has nothing more to say.
    pub(super) fn finish(&mut self, who: usize) {
        let side = &mut self.sides[who];
        if let Some(handle) = side.handle {
            side.finished |= side.endpoint.finish(self.now, handle).is_ok();
        }
        self.settle(who);
    }

    /// The application takes everything there is.
    pub(super) fn receive(&mut self, who: usize) {
        let side = &mut self.sides[who];
        let Some(handle) = side.handle else { return };
        let before = side.received.len();
        while let Some(message) = side.endpoint.recv(self.now, handle) {
            side.received.push(message);
        }
        if side.received.len() > before {
            self.settle(who);
        }
    }

    /// Whether all messages and the end mark, if there was one, have arrived.
    pub(super) fn is_complete(&self) -> bool {
        let [client, server] = &self.sides;
        let has_all = |receiver: &Side, sender: &Side| {
            let is_finished = receiver.handle.is_some_and(|h| receiver.endpoint.is_finished(h));
            receiver.received.len() == sender.sent.len() && is_finished == sender.finished
        };
        has_all(client, server) && has_all(server, client)
    }

    /// What arrived is the beginning of what was sent.
    pub(super) fn check_messages(&self) {
        for who in [CLIENT, SERVER] {
            let (sent, received) = (&self.sides[1 - who].sent, &self.sides[who].received);
            assert!(received.len() <= sent.len(), "nobody sent that");
            for (index, (sent, received)) in sent.iter().zip(received).enumerate() {
                assert!(sent == received, "message {index} changed on the way");
            }
        }
    }
}
