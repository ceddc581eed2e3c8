//! A thousand clients behind one address connect at the same time, as after a failure of their NAT or
//! of the server: in virtual time, with a server whose receive buffer and processor are limited.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::config::Security;
use bats_proto::{
    ClientConfig, CloseReason, Endpoint, EndpointConfig, Event, Identity, Input, Output, PeerTrust,
    Received, ServerConfig, Timestamp, TransportConfig,
};

const CLIENTS: usize = 1_000;
const ONE_WAY_DELAY: Duration = Duration::from_millis(25);
const STEP: Duration = Duration::from_millis(1);
/// Datagrams that wait in the receive buffer of the socket; more are dropped. 212,992 bytes, the default
/// of Linux, hold about 92 datagrams of this size with the overhead of the kernel.
const RECEIVE_BUFFER: usize = 92;
/// Processor time of the server for a datagram that starts a handshake, and for any other. Measured
/// handshakes take 0.3 to 0.4 ms (`crates/bats-proto/examples/unauthenticated_cost.rs`).
const HANDSHAKE_COST: Duration = Duration::from_micros(500);
const DATAGRAM_COST: Duration = Duration::from_micros(20);

fn client_address(number: usize) -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 7], 10_000 + number as u16))
}

fn server_address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 4_000))
}

struct Client {
    endpoint: Endpoint,
    wake_at: Option<Timestamp>,
    established: Option<Timestamp>,
    closed: Option<CloseReason>,
}

struct Storm {
    now: Timestamp,
    server: Endpoint,
    clients: Vec<Client>,
    /// In transit, in the order of arrival.
    to_server: VecDeque<(Timestamp, usize, Vec<u8>)>,
    to_clients: VecDeque<(Timestamp, usize, Vec<u8>)>,
    /// In the receive buffer of the server.
    buffered: VecDeque<(usize, Vec<u8>)>,
    dropped: usize,
    /// Until when the server's processor is busy.
    busy_until: Timestamp,
    buffer: Vec<u8>,
}

impl Storm {
    fn new(transport: TransportConfig) -> Self {
        let now = Timestamp::from_millis(1_000);
        let transport = Arc::new(transport);
        let security = Security::DangerousPlain;
        let server = ServerConfig {
            client_trust: None,
            identity: Identity { certificate_chain: Vec::new(), private_key: Vec::new() },
            transport: transport.clone(),
            retry_threshold: 64,
            max_connections: 10_000,
        };
        let config = EndpointConfig { security, server: Some(server), ..EndpointConfig::default() };
        let server = Endpoint::new(config, [7; 32]).unwrap();
        let client = |number: usize| {
            let config = EndpointConfig { security, ..EndpointConfig::default() };
            let mut seed = [1; 32];
            seed[..8].copy_from_slice(&(number as u64).to_le_bytes());
            let mut endpoint = Endpoint::new(config, seed).unwrap();
            let config = ClientConfig {
                trust: PeerTrust::DangerousAcceptAny,
                identity: None,
                transport: transport.clone(),
            };
            endpoint.connect(now, server_address(), "server.example", config).unwrap();
            Client { endpoint, wake_at: Some(now), established: None, closed: None }
        };
        Self {
            now,
            server,
            clients: (0..CLIENTS).map(client).collect(),
            to_server: VecDeque::new(),
            to_clients: VecDeque::new(),
            buffered: VecDeque::new(),
            dropped: 0,
            busy_until: now,
            buffer: Vec::with_capacity(65_536),
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step_clients();
            self.step_server();
            self.now += STEP;
        }
    }

    fn step_clients(&mut self) {
        while self.to_clients.front().is_some_and(|(at, ..)| *at <= self.now) {
            let (_, number, mut bytes) = self.to_clients.pop_front().unwrap();
            let remote = server_address();
            let received = Received { remote, local_ip: None, ecn: 0, payload: &mut bytes };
            let client = &mut self.clients[number];
            client.endpoint.handle(self.now, Input::Datagram(received));
            client.wake_at = Some(self.now);
        }
        for (number, client) in self.clients.iter_mut().enumerate() {
            if client.wake_at.is_none_or(|at| at > self.now) {
                continue;
            }
            client.endpoint.handle(self.now, Input::Timeout);
            loop {
                match client.endpoint.poll(self.now, &mut self.buffer) {
                    Output::Transmit(transmit) => {
                        let arrival = self.now + ONE_WAY_DELAY;
                        for bytes in self.buffer[..transmit.len].chunks(transmit.segment_size) {
                            self.to_server.push_back((arrival, number, bytes.to_vec()));
                        }
                    }
                    Output::Event(_, Event::Connected) => client.established = Some(self.now),
                    Output::Event(_, Event::Closed(reason)) => client.closed = Some(reason),
                    Output::Event(..) => {}
                    Output::Timeout(at) => {
                        client.wake_at = at;
                        break;
                    }
                }
            }
        }
    }

    fn step_server(&mut self) {
        while self.to_server.front().is_some_and(|(at, ..)| *at <= self.now) {
            let (_, number, bytes) = self.to_server.pop_front().unwrap();
            if self.buffered.len() < RECEIVE_BUFFER {
                self.buffered.push_back((number, bytes));
            } else {
                self.dropped += 1;
            }
        }
        self.busy_until = self.busy_until.max(self.now);
        while self.busy_until < self.now + STEP
            && let Some((number, mut bytes)) = self.buffered.pop_front()
        {
            let before = self.server.endpoint_stats().handshakes_started;
            let remote = client_address(number);
            let received = Received { remote, local_ip: None, ecn: 0, payload: &mut bytes };
            self.server.handle(self.now, Input::Datagram(received));
            let has_started = self.server.endpoint_stats().handshakes_started > before;
            self.busy_until += if has_started { HANDSHAKE_COST } else { DATAGRAM_COST };
            self.poll_server();
        }
        self.server.handle(self.now, Input::Timeout);
        self.poll_server();
    }

    fn poll_server(&mut self) {
        loop {
            match self.server.poll(self.now, &mut self.buffer) {
                Output::Transmit(transmit) => {
                    let arrival = self.now + ONE_WAY_DELAY;
                    let number = usize::from(transmit.remote.port() - 10_000);
                    for bytes in self.buffer[..transmit.len].chunks(transmit.segment_size) {
                        self.to_clients.push_back((arrival, number, bytes.to_vec()));
                    }
                }
                Output::Event(..) => {}
                Output::Timeout(_) => break,
            }
        }
    }
}

#[test]
fn a_thousand_clients_behind_one_address_are_established_within_two_seconds() {
    let mut storm = Storm::new(TransportConfig::default());
    let begin = storm.now;
    storm.run(Duration::from_secs(2));
    let closed = storm.clients.iter().filter_map(|client| client.closed.clone()).count();
    assert_eq!(closed, 0, "no client failed");
    let mut times: Vec<Duration> =
        storm.clients.iter().filter_map(|client| client.established.map(|at| at - begin)).collect();
    times.sort();
    let stats = storm.server.endpoint_stats();
    assert_eq!(
        times.len(),
        CLIENTS,
        "slowest {:?}, {} dropped, {stats:?}",
        times.last(),
        storm.dropped
    );
    // Without these the test would not show what it is for.
    assert!(storm.dropped > 0, "the receive buffer was full");
    assert!(stats.retries_sent > 0, "addresses were validated");
    assert_eq!(
        (stats.half_open_refused, stats.connections_refused, stats.memory_refusals),
        (0, 0, 0)
    );
    // They stay.
    storm.run(Duration::from_secs(3));
    assert!(storm.clients.iter().all(|client| client.closed.is_none()));
}
