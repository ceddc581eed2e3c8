//! Endpoints over real TLS and a network with a one-way delay of 5 ms. A test sees every datagram.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::crypto::{fingerprint, generate_identity};
use bats_proto::{
    ClientConfig, CongestionAlgorithm, ConnectionHandle, ConnectionStats, Endpoint, EndpointConfig,
    Event, Identity, Input, Mode, Output, PeerTrust, Received, Resumption, ServerConfig,
    SessionStore, Timestamp, TransportConfig,
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

/// Decides whether the network drops a datagram; may modify it.
pub(crate) type DropFilter<'a> = dyn FnMut(usize, &mut Vec<u8>) -> bool + 'a;

/// Two endpoints and the network between them.
pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) endpoints: [Endpoint; 2],
    /// Datagrams in flight: arrival time, receiver, source address, bytes.
    in_flight: Vec<(Timestamp, usize, SocketAddr, Vec<u8>)>,
    pub(crate) events: Vec<(usize, ConnectionHandle, Event)>,
    /// Datagrams sent: sender, destination address, bytes.
    pub(crate) sent: Vec<(usize, SocketAddr, Vec<u8>)>,
}

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

impl World {
    pub(crate) fn new(server: ServerConfig) -> Self {
        let client = Endpoint::new(EndpointConfig::default(), [1; 32]).unwrap();
        Self {
            now: Timestamp::from_millis(1),
            endpoints: [client, Self::server(server, 2)],
            in_flight: Vec::new(),
            events: Vec::new(),
            sent: Vec::new(),
        }
    }

    pub(crate) fn server(server: ServerConfig, seed: u8) -> Endpoint {
        let config = EndpointConfig { server: Some(server), ..EndpointConfig::default() };
        Endpoint::new(config, [seed; 32]).unwrap()
    }

    /// Replaces the server by a new one without state.
    pub(crate) fn restart(&mut self, config: ServerConfig) {
        self.endpoints[SERVER] = Self::server(config, 3);
        self.events.retain(|(peer, _, _)| *peer == CLIENT);
        self.in_flight.clear();
    }

    pub(crate) fn connect(&mut self, config: ClientConfig) -> ConnectionHandle {
        self.connect_as(config, NAME)
    }

    pub(crate) fn connect_as(&mut self, config: ClientConfig, name: &str) -> ConnectionHandle {
        self.endpoints[CLIENT].connect(self.now, address(SERVER), name, config).unwrap()
    }

    pub(crate) fn run(&mut self, time: Duration) {
        self.run_with(time, &mut |_, _| false);
    }

    /// Advances the clock by `time`. Drops the datagrams for which `drop` returns true.
    pub(crate) fn run_with(&mut self, time: Duration, drop: &mut DropFilter<'_>) {
        let end = self.now + time;
        let mut buffer = Vec::with_capacity(65_536);
        loop {
            let mut next = end;
            for peer in [CLIENT, SERVER] {
                self.endpoints[peer].handle(self.now, Input::Timeout);
                loop {
                    match self.endpoints[peer].poll(self.now, &mut buffer) {
                        Output::Transmit(t) => {
                            for segment in buffer[..t.len].chunks(t.segment_size) {
                                self.sent.push((peer, t.remote, segment.to_vec()));
                                let mut bytes = segment.to_vec();
                                let known = t.remote == address(1 - peer);
                                if known && !drop(peer, &mut bytes) {
                                    let at = self.now + DELAY;
                                    self.in_flight.push((at, 1 - peer, address(peer), bytes));
                                }
                            }
                        }
                        Output::Event(handle, event) => self.events.push((peer, handle, event)),
                        Output::Timeout(at) => {
                            next = next.min(at.unwrap_or(end));
                            break;
                        }
                    }
                }
            }
            if self.now >= end {
                break;
            }
            next = self.in_flight.iter().map(|f| f.0).fold(next, Timestamp::min);
            self.now = next.max(self.now).min(end);
            let now = self.now;
            let (due, later) = self.in_flight.drain(..).partition(|f| f.0 <= now);
            self.in_flight = later;
            let due: Vec<(Timestamp, usize, SocketAddr, Vec<u8>)> = due;
            for (_, to, from, bytes) in due {
                self.inject(to, from, bytes);
            }
        }
    }

    /// Delivers a datagram now.
    pub(crate) fn inject(&mut self, to: usize, from: SocketAddr, mut bytes: Vec<u8>) {
        let received = Received { remote: from, local_ip: None, ecn: 0, payload: &mut bytes };
        self.endpoints[to].handle(self.now, Input::Datagram(received));
    }

    pub(crate) fn all(&self, peer: usize, wanted: &Event) -> Vec<ConnectionHandle> {
        let events = self.events.iter();
        events.filter(|(w, _, e)| *w == peer && e == wanted).map(|(_, h, _)| *h).collect()
    }

    pub(crate) fn stats(&self, peer: usize, handle: ConnectionHandle) -> ConnectionStats {
        self.endpoints[peer].stats(self.now, handle).unwrap()
    }

    /// All messages delivered by the server's connections and not received yet.
    pub(crate) fn delivered(&mut self) -> Vec<Bytes> {
        let mut messages = Vec::new();
        for handle in self.all(SERVER, &Event::Accepted) {
            while let Some(message) = self.endpoints[SERVER].recv(self.now, handle) {
                messages.push(message);
            }
        }
        messages
    }

    /// A first connection with a full handshake, which leaves session tickets.
    pub(crate) fn connect_and_close(&mut self, config: ClientConfig) {
        let handle = self.connect(config);
        self.run(Duration::from_millis(300));
        assert!(self.all(CLIENT, &Event::Connected).contains(&handle), "{:?}", self.events);
        assert!(!self.stats(CLIENT, handle).resumed);
        self.end(handle);
    }

    pub(crate) fn end(&mut self, handle: ConnectionHandle) {
        self.endpoints[CLIENT].close(self.now, handle, 0, "");
        self.run(Duration::from_millis(500));
        self.events.clear();
    }
}
