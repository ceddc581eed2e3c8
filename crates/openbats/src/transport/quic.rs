//! Mode 12: connections over QUIC, by `quinn-proto` on the endpoint's own socket and thread.
//!
//! Messages go over one stream of the connection, framed as over TCP, because streams do not keep
//! message boundaries; optionally they go as datagrams (RFC 9221). Long-header packets of QUIC
//! differ from BATS packets by their version, and short-header packets by a tag in the connection
//! IDs that this end generates.

mod ack_ranges;
mod addresses;
mod connection;
mod datagrams;
#[cfg(test)]
mod forgery_tests;
mod ids;
mod peer_reachability;
mod post_handshake;
mod settings;
#[cfg(test)]
mod tests;
mod tls_config;
mod tls_session;
mod unreachable_port;
mod watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::stream::Session;
use bats_proto::{
    ClientConfig, ConnectError, ConnectionStats, Mode, PeerLimits, Received, SendError,
    ServerConfig, Timestamp, Transmit, TransportConfig,
};
use bats_types::StuckTimers;
use bytes::{Bytes, BytesMut};
use quinn_proto::{ConnectionHandle, DatagramEvent, EcnCodepoint, EndpointConfig, Incoming};

use super::binding::{Output, Transport};
use super::half_open::NetworkCounts;
use super::round_robin::RoundRobin;
use crate::clock::Clock;
use addresses::Addresses;
use connection::Connection;
use datagrams::Datagrams;
use ids::{ID_LEN, IdGenerator};
use settings::{Controller, Settings, Shared, unsupported_controller, window};
use tls_config::{VERSION, client_config, server_config, unusable};
use watch::Watch;

/// The ALPN token (RFC 7301) of this framing over QUIC.
const ALPN: &[u8] = b"openbats-quic/1";
/// Packets of one burst: after it the next connection is serviced, as in the other modes.
const BURST: usize = 32;
/// Handshakes of peers that are not complete, and half of them of one network, as in the other modes over UDP.
const MAX_HALF_OPEN: usize = 4_096;
/// Queued responses to unauthenticated peers; more are dropped, the peer will retransmit.
const MAX_RESPONSES: usize = 64;

/// The longest UDP payload in bytes that a peer may send, as transport parameters say: that of Ethernet. Longer ones are
/// ignored, because `quinn-proto` keeps a whole datagram for a byte of a stream in it.
const MAX_UDP_PAYLOAD: u16 = 1_500 - 28;

/// Settings that all connections of a server share.
struct Server {
    transport: Arc<TransportConfig>,
    has_datagrams: bool,
    controller: Controller,
    retry_threshold: usize,
    max_connections: usize,
}

/// The QUIC connections of an endpoint.
pub(crate) struct Quic {
    clock: Clock,
    endpoint: quinn_proto::Endpoint,
    watch: Watch,
    shared: Shared,
    ids: IdGenerator,
    server: Option<Server>,
    refuses_new: bool,
    /// Boxed, because a node of the map has room for several.
    connections: BTreeMap<u64, Box<Connection>>,
    by_handle: BTreeMap<ConnectionHandle, u64>,
    addresses: Addresses,
    /// When more than a few connections to one address were last searched for an unreachable port.
    last_unreachable_search: Option<Timestamp>,
    #[cfg(test)]
    unreachable_visits: usize,
    next: u64,
    dirty: RoundRobin,
    timers: BTreeSet<(Timestamp, u64)>,
    stuck_timers: StuckTimers<u64>,
    half_open: NetworkCounts,
    responses: VecDeque<(quinn_proto::Transmit, Vec<u8>)>,
    counters: Counters,
}

/// Counters of an endpoint for this mode.
#[derive(Clone, Copy, Default)]
pub(super) struct Counters {
    pub(super) handshakes_started: u64,
    pub(super) retries_sent: u64,
    pub(super) refused: u64,
    /// First packets ignored because too many handshakes are half-open.
    pub(super) half_open_refused: u64,
    pub(super) answers_dropped: u64,
    /// Connections closed because a timer stayed due.
    pub(super) timers_stuck: u64,
}

impl std::fmt::Debug for Quic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Quic").field("connections", &self.by_handle).finish_non_exhaustive()
    }
}

impl Quic {
    /// Creates the binding, with a server if `server` offers this mode.
    pub(crate) fn new(
        clock: Clock,
        seed: [u8; 32],
        server: Option<&ServerConfig>,
        has_datagrams: bool,
        untrusted_peer_budget: Option<usize>,
    ) -> Result<Self, ConnectError> {
        let controller = match server {
            Some(server) => match Controller::of(server.transport.congestion) {
                Some(controller) => controller,
                // The configured controller applies to the other modes that are offered.
                None if !server.transport.also_accepted.is_empty() => Controller::Cubic,
                None => return Err(unsupported_controller()),
            },
            None => Controller::Cubic,
        };
        let ids = IdGenerator::new(seed);
        let mut config = EndpointConfig::default();
        config.supported_versions(vec![VERSION]).rng_seed(Some(seed));
        config.max_udp_payload_size(MAX_UDP_PAYLOAD).map_err(unusable)?;
        let generator = ids.clone();
        config.cid_generator(move || Box::new(generator.clone()));
        let watch = Watch::default();
        let offered = match server {
            Some(server) => {
                let tls = bats_proto::crypto::tls_server(server, ALPN)?;
                let mut config =
                    quinn_proto::ServerConfig::with_crypto(server_config(tls, watch.clone())?);
                let mut transport =
                    Settings::of(&server.transport, has_datagrams, controller).transport();
                if let Some(budget) = untrusted_peer_budget {
                    // The window can be opened later, but not reduced.
                    transport.receive_window(window(budget));
                }
                config.transport_config(Arc::new(transport));
                Some(Arc::new(config))
            }
            None => None,
        };
        Ok(Self {
            clock,
            // Path MTU discovery needs fragmentation to be off; `quinn-udp` turns it off.
            endpoint: quinn_proto::Endpoint::new(Arc::new(config), offered, true, None),
            watch,
            shared: Shared::new(),
            ids,
            server: server.map(|server| Server {
                transport: server.transport.clone(),
                has_datagrams,
                controller,
                retry_threshold: server.retry_threshold,
                max_connections: server.max_connections,
            }),
            refuses_new: false,
            connections: BTreeMap::new(),
            by_handle: BTreeMap::new(),
            addresses: Addresses::default(),
            last_unreachable_search: None,
            #[cfg(test)]
            unreachable_visits: 0,
            next: 0,
            dirty: RoundRobin::default(),
            timers: BTreeSet::new(),
            stuck_timers: StuckTimers::default(),
            half_open: NetworkCounts::new(MAX_HALF_OPEN, MAX_HALF_OPEN / 2),
            responses: VecDeque::new(),
            counters: Counters::default(),
        })
    }

    /// Whether a datagram belongs to QUIC.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn wants(&self, remote: SocketAddr, payload: &[u8]) -> bool {
        if self.server.is_none() && self.connections.is_empty() {
            return false;
        }
        match payload {
            [first, version @ ..] if first & 0x80 != 0 => match version.first_chunk::<4>() {
                // Version Negotiation, of this server or from a server to this client.
                Some([0, 0, 0, 0]) => self.addresses.is_server(remote),
                Some(version) => u32::from_be_bytes(*version) == VERSION,
                None => false,
            },
            [_, id @ ..] => id.first_chunk::<ID_LEN>().is_some_and(|id| self.ids.is_ours(*id)),
            [] => false,
        }
    }

    pub(crate) fn stop_listening(&mut self) {
        self.refuses_new = true;
    }

    pub(super) fn connect(
        &mut self,
        now: Timestamp,
        remote: SocketAddr,
        server_name: &str,
        config: &ClientConfig,
        has_datagrams: bool,
    ) -> Result<u64, ConnectError> {
        // Validate the name first: QUIC would report it as an error of its own.
        let (tls, _) = bats_proto::crypto::tls_client(config, server_name, ALPN)?;
        let mut client = quinn_proto::ClientConfig::new(client_config(tls, self.watch.clone())?);
        let controller =
            Controller::of(config.transport.congestion).ok_or_else(unsupported_controller)?;
        let settings = Settings::of(&config.transport, has_datagrams, controller);
        client.transport_config(self.shared.transport(settings));
        client.token_store(self.shared.tokens.clone());
        let at = self.clock.instant(now);
        let (handle, mut quic) =
            self.endpoint.connect(at, client, remote, server_name).map_err(unusable)?;
        let session = Session::new(now, true, &config.transport);
        let datagrams =
            has_datagrams.then(|| Box::new(Datagrams::new(&config.transport, &mut quic)));
        let connection =
            Connection::new(handle, quic, session, datagrams, remote, (false, controller));
        Ok(self.insert(handle, connection))
    }

    fn insert(&mut self, handle: ConnectionHandle, connection: Connection) -> u64 {
        let id = self.next;
        self.next += 1;
        self.by_handle.insert(handle, id);
        if connection.is_counted {
            self.half_open.insert(connection.remote.ip());
        }
        self.addresses.insert(connection.remote, connection.is_server, id);
        self.connections.insert(id, Box::new(connection));
        self.dirty.insert(id);
        id
    }

    fn queue_response(&mut self, transmit: quinn_proto::Transmit, bytes: Vec<u8>) {
        if self.responses.len() < MAX_RESPONSES {
            self.responses.push_back((transmit, bytes));
        } else {
            self.counters.answers_dropped += 1;
        }
    }

    pub(super) fn handle_datagram(&mut self, now: Timestamp, datagram: &Received<'_>) {
        let at = self.clock.instant(now);
        if datagram.payload.len() > MAX_UDP_PAYLOAD.into() {
            return;
        }
        let mut response = Vec::new();
        let event = self.endpoint.handle(
            at,
            datagram.remote,
            datagram.local_ip,
            EcnCodepoint::from_bits(datagram.ecn),
            BytesMut::from(&*datagram.payload),
            &mut response,
        );
        match event {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let Some(&id) = self.by_handle.get(&handle) else { return };
                let Some(connection) = self.connections.get_mut(&id) else { return };
                let before = self.watch.counts();
                connection.quic.handle_event(event);
                connection.counted.add_since(before, &self.watch);
                connection.limit_work();
                // Read the data before a close discards it.
                connection.read(now);
                self.dirty.insert(id);
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.accept(now, incoming),
            Some(DatagramEvent::Response(transmit)) => self.queue_response(transmit, response),
            None => {}
        }
    }

    fn accept(&mut self, now: Timestamp, incoming: Incoming) {
        let mut response = Vec::new();
        let Some(server) = &self.server else { return self.endpoint.ignore(incoming) };
        if self.refuses_new || self.connections.len() >= server.max_connections {
            self.counters.refused += 1;
            let transmit = self.endpoint.refuse(incoming, &mut response);
            return self.queue_response(transmit, response);
        }
        let ip = incoming.remote_address().ip();
        if self.half_open.is_full() || self.half_open.is_network_full(ip) {
            // Not refused: a client tries again, and there may be room then.
            self.counters.half_open_refused += 1;
            return self.endpoint.ignore(incoming);
        }
        if self.half_open.len() >= server.retry_threshold && incoming.may_retry() {
            self.counters.retries_sent += 1;
            if let Ok(transmit) = self.endpoint.retry(incoming, &mut response) {
                self.queue_response(transmit, response);
            }
            return;
        }
        let (remote, transport) = (incoming.remote_address(), server.transport.clone());
        let has_datagrams = server.has_datagrams;
        let controller = server.controller;
        let at = self.clock.instant(now);
        match self.endpoint.accept(incoming, at, &mut response, None) {
            Ok((handle, mut quic)) => {
                self.counters.handshakes_started += 1;
                let session = Session::new(now, false, &transport);
                let datagrams =
                    has_datagrams.then(|| Box::new(Datagrams::new(&transport, &mut quic)));
                let connection =
                    Connection::new(handle, quic, session, datagrams, remote, (true, controller));
                self.insert(handle, connection);
            }
            Err(refused) => {
                if let Some(transmit) = refused.response {
                    self.queue_response(transmit, response);
                }
            }
        }
    }

    /// Handles the timeout that `poll` returned.
    pub(super) fn handle_timeout(&mut self, now: Timestamp) {
        let at = self.clock.instant(now);
        while let Some(&(due, id)) = self.timers.first()
            && due <= now
        {
            self.timers.pop_first();
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.armed = None;
                connection.session.handle_timeout(now);
                connection.quic.handle_timeout(at);
                self.stuck_timers.on_handled(id, now);
                self.dirty.insert(id);
            }
        }
    }

    fn update_timer(&mut self, now: Timestamp, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.is_counted && !connection.is_half_open() {
            connection.is_counted = false;
            self.half_open.remove(connection.remote.ip());
        }
        // A half-open connection stays at the address with which it is counted.
        let remote = connection.quic.remote_address();
        if remote != connection.remote && !connection.is_counted {
            self.addresses.remove(connection.remote, connection.is_server, id);
            self.addresses.insert(remote, connection.is_server, id);
            connection.remote = remote;
        }
        let is_gone = connection.quic.is_drained() && connection.session.is_closed();
        let quic = connection.quic.poll_timeout().map(|due| self.clock.timestamp(due));
        let own = connection.session.next_timeout();
        #[cfg(test)]
        let own = connection.stuck.or(own);
        let next = Timestamp::earlier(quic, own);
        let is_stuck = self.stuck_timers.is_stuck(id, next);
        if is_stuck && connection.on_stuck_timer() {
            self.counters.timers_stuck += 1;
            self.dirty.insert(id);
            return;
        }
        let is_gone = is_gone || is_stuck;
        let next = next.filter(|_| !is_gone).map(|due| due.max(now));
        if connection.armed != next {
            if let Some(due) = connection.armed {
                self.timers.remove(&(due, id));
            }
            if let Some(due) = next {
                self.timers.insert((due, id));
            }
            connection.armed = next;
        }
        if is_gone {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(&id) else { return };
        self.by_handle.remove(&connection.handle);
        self.stuck_timers.forget(id);
        if connection.is_counted {
            self.half_open.remove(connection.remote.ip());
        }
        self.addresses.remove(connection.remote, connection.is_server, id);
    }

    fn with(&mut self, id: u64) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(&id)?;
        self.dirty.insert(id);
        Some(connection)
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }
}

impl Transport for Quic {
    type Id = u64;

    /// Returns the next datagram, event or timeout. After each datagram or event it is another connection's turn.
    fn poll(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Output<u64> {
        buffer.clear();
        if let Some((transmit, bytes)) = self.responses.pop_front() {
            buffer.extend_from_slice(&bytes[..transmit.size.min(bytes.len())]);
            return Output::Transmit(translate(&transmit));
        }
        let at = self.clock.instant(now);
        while let Some(id) = self.dirty.current() {
            let Some(connection) = self.connections.get_mut(&id) else {
                self.dirty.remove(id);
                continue;
            };
            connection.drive(now, at, &mut self.endpoint);
            if let Some(event) = connection.pop_event() {
                self.dirty.on_output(id);
                return Output::Event(id, event);
            }
            let max_datagrams = (buffer.capacity()
                / usize::from(connection.quic.current_mtu()).max(1))
            .clamp(1, BURST);
            if let Some(transmit) = connection.quic.poll_transmit(at, max_datagrams, buffer) {
                connection.reachability.on_sent(buffer);
                self.dirty.on_output(id);
                return Output::Transmit(translate(&transmit));
            }
            self.dirty.remove(id);
            self.update_timer(now, id);
        }
        Output::Timeout(self.timers.first().map(|&(due, _)| due))
    }

    fn send(
        &mut self,
        now: Timestamp,
        id: u64,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        self.with(id).ok_or(SendError::Closed)?.send(now, message, deadline)
    }

    fn finish(&mut self, _now: Timestamp, id: u64) -> Result<(), SendError> {
        self.with(id).ok_or(SendError::Closed)?.finish()
    }

    fn recv(&mut self, _now: Timestamp, id: u64) -> Option<Bytes> {
        self.with(id)?.recv()
    }

    fn close(&mut self, _now: Timestamp, id: u64, code: u64, reason: &str) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.close(code, reason);
            self.dirty.insert(id);
        }
    }

    fn is_finished(&self, id: u64) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.is_finished())
    }

    fn is_all_acknowledged(&self, id: u64) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.is_all_acknowledged())
    }

    fn peer_limits(&self, id: u64) -> Option<PeerLimits> {
        self.connections.get(&id)?.session.peer_limits()
    }

    /// Size in bytes of the longest datagram that can be sent now, if messages go as datagrams.
    fn longest_datagram(&self, id: u64) -> Option<usize> {
        let datagrams = self.connections.get(&id)?.datagrams.as_ref()?;
        Some(datagrams.longest().unwrap_or_default())
    }

    fn stats(&self, now: Timestamp, id: u64) -> Option<ConnectionStats> {
        self.connections.get(&id).map(|connection| connection.stats(now))
    }

    /// Opens the window of a peer that is now trusted.
    fn trust_peer(&mut self, id: u64) {
        let Some(server) = &self.server else { return };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.quic.set_receive_window(window(server.transport.receive_budget));
            self.dirty.insert(id);
        }
    }

    fn remote(&self, id: u64) -> Option<SocketAddr> {
        Some(self.connections.get(&id)?.remote)
    }

    fn peer_fingerprint(&self, id: u64) -> Option<[u8; 32]> {
        self.connections.get(&id)?.peer_fingerprint()
    }

    fn mode(&self, _id: u64) -> Option<Mode> {
        Some(Mode::Quic)
    }

    fn receive_buffer_bytes(&self, id: u64) -> usize {
        self.connections.get(&id).map_or(0, |connection| connection.receive_buffer_bytes())
    }

    fn connection_count(&self) -> usize {
        self.connections.len()
    }
}

fn translate(transmit: &quinn_proto::Transmit) -> Transmit {
    Transmit {
        remote: transmit.destination,
        local_ip: transmit.src_ip,
        interface: None,
        ecn: transmit.ecn.map_or(0, |ecn| ecn as u8),
        segment_size: transmit.segment_size.unwrap_or(transmit.size).max(1),
        len: transmit.size,
    }
}
