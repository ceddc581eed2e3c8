//! Session resumption with early data: the client's first messages travel in its first flight.
//!
//! Uses real TLS, whose keys do not derive from the seed. Two runs with the same seed have the same
//! losses only while their packets are the same.

use core::time::Duration;
use std::sync::Arc;

use bats_netem::LinkConfig;
use bats_proto::crypto::generate_identity;
use bats_proto::{
    ClientConfig, ConnectionHandle, Endpoint, EndpointConfig, Event, Mode, PeerTrust, Resumption,
    ServerConfig, SessionStore, Timestamp, TransportConfig,
};
use bytes::Bytes;

use crate::host::Host;
use crate::network::Network;
use crate::transfer;

/// Time limit of a handshake, and of the delivery of the last message.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of messages that a client sends before its handshake is complete.
const MAX_MESSAGES: u64 = 32;

/// A connection with a full handshake, then one that resumes its session over the same links. The
/// server echoes the messages of the second one.
#[derive(Clone, Debug)]
pub struct ResumptionRun {
    /// Links in a row without relays, the same in both directions.
    pub hops: Vec<LinkConfig>,
    /// Message size in bytes, at least 8.
    pub size: usize,
    /// Number of messages of the second connection, sent when it starts; at most 32.
    pub count: u64,
    /// Whether the server loses its sessions between the connections and so rejects early data.
    pub restart: bool,
    /// Seed of all random choices except the keys.
    pub seed: u64,
}

/// Result of the second connection.
#[derive(Clone, Debug, Default)]
pub struct ResumptionOutcome {
    /// Time from the client's `connect` to the first echo.
    pub first: Option<Duration>,
    /// Messages that arrived at the server.
    pub arrived: u64,
    /// Echoes that arrived at the client.
    pub echoed: u64,
    /// Whether the session was resumed.
    pub resumed: bool,
    /// Early messages that the server had when the client's handshake was complete.
    pub accepted: u64,
    /// Messages delivered twice, corrupted, or never sent. Any is a defect of the protocol.
    pub wrong: u64,
}

impl ResumptionRun {
    fn server(&self) -> Endpoint {
        let identity = generate_identity(&["server".to_owned()]).expect("a name");
        let transport = TransportConfig {
            mode: Mode::Btp,
            early_data: true,
            deadline: TIME_LIMIT,
            ..TransportConfig::default()
        };
        let server = ServerConfig {
            identity,
            transport: Arc::new(transport),
            client_trust: None,
            retry_threshold: usize::MAX,
            max_connections: 64,
        };
        let config = EndpointConfig { server: Some(server), ..EndpointConfig::default() };
        Endpoint::new(config, self.bytes(1)).expect("a valid configuration")
    }

    fn bytes(&self, what: u8) -> [u8; 32] {
        let mut bytes = [what; 32];
        bytes[..8].copy_from_slice(&self.seed.to_le_bytes());
        bytes
    }

    /// Runs in virtual time. Returns `None` if the path is too bad for the first connection to get
    /// a session within 10 s.
    pub fn run(&self) -> Option<ResumptionOutcome> {
        let client = Endpoint::new(EndpointConfig::default(), self.bytes(0))
            .expect("the default configuration is valid");
        let back = self.hops.iter().rev().cloned().collect();
        let endpoints = [client, self.server()];
        let mut network = Network::chain(endpoints, [self.hops.clone(), back], self.seed);
        let store = SessionStore::new(16);
        let first = self.connect(&mut network, &store);
        let end = network.now() + TIME_LIMIT;
        while store.is_empty() && network.now() < end {
            let next = network.now() + Duration::from_millis(10);
            network.step(next.min(end));
            network.events.clear();
        }
        if store.is_empty() {
            return None;
        }
        let now = network.now();
        network.endpoint(Host::Client).close(now, first, 0, "");
        network.wake(Host::Client);
        let later = now + TIME_LIMIT;
        while network.step(later) {}
        network.events.clear();
        if self.restart {
            *network.endpoint(Host::Server) = self.server();
            network.wake(Host::Server);
        }
        Some(self.second(network, &store))
    }

    fn connect(&self, network: &mut Network, store: &SessionStore) -> ConnectionHandle {
        // Virtual time counts as Unix time.
        let unix_time = network.now() - Timestamp::ZERO;
        let transport = TransportConfig {
            mode: Mode::Btp,
            resumption: Some(Resumption { store: store.clone(), unix_time }),
            early_data: true,
            deadline: TIME_LIMIT,
            ..TransportConfig::default()
        };
        // Each server has a certificate of its own, and the measurement does not depend on trust.
        let config = ClientConfig {
            trust: PeerTrust::DangerousAcceptAny,
            identity: None,
            transport: Arc::new(transport),
        };
        let now = network.now();
        let server = Host::Server.address();
        let begun = network.endpoint(Host::Client).connect(now, server, "server", config);
        network.wake(Host::Client);
        begun.expect("a valid configuration")
    }

    fn message(&self, number: u64) -> Bytes {
        transfer::message(self.seed, number, self.size)
    }

    /// The number of a message if it is not corrupted.
    fn number_of(&self, message: &Bytes) -> Option<usize> {
        let number = transfer::number_at(message, 0)?;
        let known = number < self.count && *message == self.message(number);
        known.then_some(number as usize)
    }

    fn second(&self, mut network: Network, store: &SessionStore) -> ResumptionOutcome {
        let began = network.now();
        let count = self.count.min(MAX_MESSAGES);
        let client = self.connect(&mut network, store);
        let mut outcome = ResumptionOutcome::default();
        let mut waiting: Vec<Bytes> = (0..count).rev().map(|number| self.message(number)).collect();
        let mut seen = [vec![false; count as usize], vec![false; count as usize]];
        let send = |network: &mut Network, waiting: &mut Vec<Bytes>| {
            let now = network.now();
            while let Some(message) = waiting.pop() {
                let sent = network.endpoint(Host::Client).send(now, client, message.clone());
                if sent.is_err() {
                    waiting.push(message);
                    break;
                }
            }
            network.wake(Host::Client);
        };
        send(&mut network, &mut waiting);
        let mut end = began + TIME_LIMIT;
        while network.now() < end && network.step(end) {
            let now = network.now();
            for (host, handle, event) in core::mem::take(&mut network.events) {
                match event {
                    Event::Connected | Event::Writable => send(&mut network, &mut waiting),
                    Event::Readable => {}
                    _ => continue,
                }
                while let Some(message) = network.endpoint(host).recv(now, handle) {
                    let side = usize::from(host == Host::Client);
                    match self.number_of(&message) {
                        Some(number) if !seen[side][number] => seen[side][number] = true,
                        _ => outcome.wrong += 1,
                    }
                    if host == Host::Server {
                        outcome.arrived += 1;
                        let _late = network.endpoint(host).send(now, handle, message);
                    } else {
                        outcome.echoed += 1;
                        outcome.first.get_or_insert(now - began);
                    }
                }
                network.wake(host);
            }
            if outcome.echoed == count {
                // Wait one more second for duplicates.
                end = end.min(now + Duration::from_secs(1));
            }
        }
        let now = network.now();
        if let Some(stats) = network.endpoint(Host::Client).stats(now, client) {
            outcome.resumed = stats.resumed;
            outcome.accepted = stats.early.messages_accepted;
        }
        outcome
    }
}
