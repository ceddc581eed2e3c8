//! The first messages of a client that was there before: it takes up a session, and they travel with its
//! first flight.
//!
//! Over real TLS, whose keys the seed does not decide: of a run with the same seed the losses are the
//! same as long as the packets are.

use core::time::Duration;
use std::sync::Arc;

use bats_netem::LinkConfig;
use bats_proto::crypto::generate_identity;
use bats_proto::{
    ClientConfig, ConnectionHandle, Endpoint, EndpointConfig, Event, Mode, PeerTrust, Resumption,
    ServerConfig, SessionStore, Timestamp, TransportConfig,
};
use bytes::Bytes;

use crate::network::{Host, Network};
use crate::transfer;

/// Time that anything may take: a handshake, or a message on its way.
const PATIENCE: Duration = Duration::from_secs(10);
/// Messages of a client before its handshake is done, at most.
const MAX_MESSAGES: u64 = 32;

/// A visit in full, and one that takes up its session, over the same links; the server sends messages
/// back.
#[derive(Clone, Debug)]
pub struct Resumed {
    /// The hops, alike in both directions.
    pub hops: Vec<LinkConfig>,
    /// Bytes of a message, at least 8.
    pub size: usize,
    /// Messages of the second visit, handed in together with its beginning; at most 32.
    pub count: u64,
    /// The server has lost its sessions in between, so that early data are refused.
    pub restart: bool,
    /// Decides every random choice but the keys.
    pub seed: u64,
}

/// What became of the second visit.
#[derive(Clone, Debug, Default)]
pub struct ResumedOutcome {
    /// From the client's `connect` to the echo of the first message to come.
    pub first: Option<Duration>,
    /// Messages that arrived at the server, and echoes that arrived.
    pub arrived: u64,
    /// Echoes that arrived.
    pub echoed: u64,
    /// The session was taken up.
    pub resumed: bool,
    /// Messages that the server had when the client's handshake was done.
    pub accepted: u64,
    /// Messages delivered twice, altered, or never sent: none, or a defect.
    pub wrong: u64,
}

impl Resumed {
    fn server(&self) -> Endpoint {
        let identity = generate_identity(&["server".to_owned()]).expect("a name");
        let transport = TransportConfig {
            mode: Mode::Btp,
            early_data: true,
            deadline: PATIENCE,
            ..TransportConfig::default()
        };
        let server = ServerConfig {
            identity,
            transport: Arc::new(transport),
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

    /// Runs in virtual time. `None` if the first visit left no session: the path is too bad.
    pub fn run(&self) -> Option<ResumedOutcome> {
        let client = Endpoint::new(EndpointConfig::default(), self.bytes(0)).expect("nothing set");
        let back = self.hops.iter().rev().cloned().collect();
        let endpoints = [client, self.server()];
        let mut network = Network::chain(endpoints, [self.hops.clone(), back], self.seed);
        let store = SessionStore::new(16);
        let first = self.connect(&mut network, &store);
        let end = network.now() + PATIENCE;
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
        network.touch(Host::Client);
        let later = now + PATIENCE;
        while network.step(later) {}
        network.events.clear();
        if self.restart {
            *network.endpoint(Host::Server) = self.server();
            network.touch(Host::Server);
        }
        Some(self.second(network, &store))
    }

    fn connect(&self, network: &mut Network, store: &SessionStore) -> ConnectionHandle {
        // Virtual time began today.
        let unix_time = network.now() - Timestamp::ZERO;
        let transport = TransportConfig {
            mode: Mode::Btp,
            resumption: Some(Resumption { store: store.clone(), unix_time }),
            early_data: true,
            deadline: PATIENCE,
            ..TransportConfig::default()
        };
        // Certificates are not what is measured; each server has its own.
        let config = ClientConfig {
            trust: PeerTrust::DangerousAcceptAny,
            identity: None,
            transport: Arc::new(transport),
        };
        let now = network.now();
        let server = Host::Server.address();
        let begun = network.endpoint(Host::Client).connect(now, server, "server", config);
        network.touch(Host::Client);
        begun.expect("a valid configuration")
    }

    fn message(&self, number: u64) -> Bytes {
        transfer::message(self.seed, number, self.size)
    }

    /// The number of a message that is as it was sent.
    fn number_of(&self, message: &Bytes) -> Option<usize> {
        let number = u64::from_le_bytes(*message.first_chunk()?);
        let known = number < self.count && *message == self.message(number);
        known.then_some(number as usize)
    }

    fn second(&self, mut network: Network, store: &SessionStore) -> ResumedOutcome {
        let began = network.now();
        let count = self.count.min(MAX_MESSAGES);
        let client = self.connect(&mut network, store);
        let mut outcome = ResumedOutcome::default();
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
            network.touch(Host::Client);
        };
        send(&mut network, &mut waiting);
        let mut end = began + PATIENCE;
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
                network.touch(host);
            }
            if outcome.echoed == count {
                // What comes twice comes soon.
                end = end.min(now + Duration::from_secs(1));
            }
        }
        let now = network.now();
        if let Some(stats) = network.endpoint(Host::Client).stats(now, client) {
            outcome.resumed = stats.resumed;
            outcome.accepted = stats.early_messages_accepted;
        }
        outcome
    }
}
