//! Endpoints over real TLS and wires with a one-way delay of 5 ms. A test sees every datagram.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::crypto::{fingerprint, generate_identity};
use bats_proto::testing::{self, Wires};
use bats_proto::{
    ClientConfig, CongestionAlgorithm, ConnectionHandle, ConnectionStats, Endpoint, EndpointConfig,
    Event, Identity, Mode, PeerTrust, Resumption, ServerConfig, SessionStore, Timestamp,
    TransportConfig,
};
use bytes::Bytes;

pub(crate) const CLIENT: usize = 0;
pub(crate) const SERVER: usize = 1;
/// One-way delay.
pub(crate) const DELAY: Duration = Duration::from_millis(5);
pub(crate) const NAME: &str = "server.example";
/// The year 2026.
pub(crate) const NOW: Duration = Duration::from_secs(1_790_000_000);

pub(crate) fn address(peer: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + peer as u8], 4_000))
}

/// A client and a server over wires.
pub(crate) type World = testing::World<Wires>;

pub(crate) fn identity() -> (Identity, [u8; 32]) {
    let identity = generate_identity(&[NAME.to_owned()]).unwrap();
    let print = fingerprint(&identity.certificate_chain[0]);
    (identity, print)
}

pub(crate) fn transport(mode: Mode) -> TransportConfig {
    TransportConfig {
        mode,
        congestion: CongestionAlgorithm::None,
        deadline: Duration::from_secs(5),
        ..TransportConfig::default()
    }
}

/// A server of both modes, with or without early data.
pub(crate) fn server(identity: &Identity, early_data: bool) -> ServerConfig {
    let transport =
        TransportConfig { also_accepted: vec![Mode::Btp], early_data, ..transport(Mode::Brtp) };
    ServerConfig {
        identity: identity.clone(),
        transport: Arc::new(transport),
        client_trust: None,
        retry_threshold: 1_000,
        max_connections: 100,
    }
}

/// A client that stores its sessions in `store`; with early data in mode BTP.
pub(crate) fn client(mode: Mode, trust: PeerTrust, store: &SessionStore) -> ClientConfig {
    let transport = TransportConfig {
        resumption: Some(Resumption { store: store.clone(), unix_time: NOW }),
        early_data: mode == Mode::Btp,
        ..transport(mode)
    };
    ClientConfig { trust, identity: None, transport: Arc::new(transport) }
}

pub(crate) fn new_world(server: ServerConfig) -> World {
    let client = Endpoint::new(EndpointConfig::default(), [1; 32]).unwrap();
    let nodes = vec![(address(CLIENT), client), (address(SERVER), server_endpoint(server, 2))];
    World::wired(Timestamp::from_millis(1), nodes, DELAY)
}

pub(crate) fn server_endpoint(server: ServerConfig, seed: u8) -> Endpoint {
    let config = EndpointConfig { server: Some(server), ..EndpointConfig::default() };
    Endpoint::new(config, [seed; 32]).unwrap()
}

/// What the tests do with a world.
pub(crate) trait Connections {
    /// Replaces the server by a new one without state.
    fn restart(&mut self, config: ServerConfig);
    fn connect(&mut self, config: ClientConfig) -> ConnectionHandle {
        self.connect_as(config, NAME)
    }
    fn connect_as(&mut self, config: ClientConfig, name: &str) -> ConnectionHandle;
    fn stats(&self, peer: usize, handle: ConnectionHandle) -> ConnectionStats;
    /// All messages delivered by the server's connections and not received yet.
    fn delivered(&mut self) -> Vec<Bytes>;
    /// A first connection with a full handshake, which leaves session tickets.
    fn connect_and_close(&mut self, config: ClientConfig);
    fn end(&mut self, handle: ConnectionHandle);
}

impl Connections for World {
    fn restart(&mut self, config: ServerConfig) {
        self.nodes[SERVER] = server_endpoint(config, 3);
        self.events.retain(|(peer, _, _)| *peer == CLIENT);
        self.links.clear();
    }

    fn connect_as(&mut self, config: ClientConfig, name: &str) -> ConnectionHandle {
        self.nodes[CLIENT].connect(self.now, address(SERVER), name, config).unwrap()
    }

    fn stats(&self, peer: usize, handle: ConnectionHandle) -> ConnectionStats {
        self.nodes[peer].stats(self.now, handle).unwrap()
    }

    fn delivered(&mut self) -> Vec<Bytes> {
        let mut messages = Vec::new();
        for handle in self.all(SERVER, &Event::Accepted) {
            while let Some(message) = self.nodes[SERVER].recv(self.now, handle) {
                messages.push(message);
            }
        }
        messages
    }

    fn connect_and_close(&mut self, config: ClientConfig) {
        let handle = self.connect(config);
        self.run(Duration::from_millis(300));
        assert!(self.all(CLIENT, &Event::Connected).contains(&handle), "{:?}", self.events);
        assert!(!self.stats(CLIENT, handle).resumed);
        self.end(handle);
    }

    fn end(&mut self, handle: ConnectionHandle) {
        self.nodes[CLIENT].close(self.now, handle, 0, "");
        self.run(Duration::from_millis(500));
        self.events.clear();
    }
}
