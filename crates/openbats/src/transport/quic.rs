//! Mode 12: connections over QUIC, by `quinn-proto` on the endpoint's own socket and thread.
//!
//! Messages go over one stream of the connection, framed as over TCP, because streams do not keep
//! message boundaries; optionally they go as datagrams (RFC 9221). Long-header packets of QUIC
//! differ from BATS packets by their version, and short-header packets by a tag in the connection
//! IDs that this end generates.

mod ack_ranges;
mod connection;
mod datagrams;
mod ids;
mod post_handshake;
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
    ClientConfig, CongestionAlgorithm, ConnectError, ConnectionStats, Event, PeerLimits, Received,
    SendError, ServerConfig, Timestamp, Transmit, TransportConfig,
};
use bats_types::StuckTimers;
use bytes::{Bytes, BytesMut};
use quinn_proto::{
    ConnectionHandle, DatagramEvent, EcnCodepoint, EndpointConfig, Incoming, NoneTokenStore,
    VarInt, congestion,
};

use super::half_open::NetworkCounts;
use crate::clock::Clock;
use connection::Connection;
use datagrams::Datagrams;
use ids::{ID_LEN, IdGenerator};
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
/// Largest flow control window of a stream in bytes: 1 Gbit/s at 128 ms RTT.
const MAX_WINDOW: u32 = 16 << 20;

/// Buffer of QUIC for received datagrams in bytes; they are taken out after each packet.
const RECEIVE_BUFFER: usize = 256 << 10;

/// Settings that all connections of a server share.
struct Server {
    transport: Arc<TransportConfig>,
    has_datagrams: bool,
    controller: Controller,
    retry_threshold: usize,
    max_connections: usize,
}

/// Output of [`Quic::poll`].
pub(super) enum Output {
    Transmit(Transmit),
    Event(u64, Event),
    Timeout(Option<Timestamp>),
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
    /// The addresses of the servers that clients of this endpoint have connections to, with their numbers.
    servers: BTreeMap<SocketAddr, usize>,
    next: u64,
    dirty: BTreeSet<u64>,
    timers: BTreeSet<(Timestamp, u64)>,
    stuck_timers: StuckTimers<u64>,
    timers_stuck: u64,
    half_open: NetworkCounts,
    responses: VecDeque<(quinn_proto::Transmit, Vec<u8>)>,
    handshakes_started: u64,
    retries_sent: u64,
    refused: u64,
    half_open_refused: u64,
    answers_dropped: u64,
}

/// Counters of an endpoint for this mode.
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

/// Flow control window in bytes for a receive budget.
fn window(budget: usize) -> VarInt {
    u32::try_from(budget).unwrap_or(u32::MAX).clamp(1 << 16, MAX_WINDOW).into()
}

/// The common options that QUIC has, too.
#[derive(Clone, PartialEq, Eq)]
struct Settings {
    receive_budget: usize,
    idle_timeout: Duration,
    keep_alive_interval: Option<Duration>,
    max_udp_payload: u16,
    has_datagrams: bool,
    controller: Controller,
}

impl Settings {
    fn of(config: &TransportConfig, has_datagrams: bool, controller: Controller) -> Self {
        Self {
            receive_budget: config.receive_budget,
            idle_timeout: config.idle_timeout,
            keep_alive_interval: config.keep_alive_interval(),
            max_udp_payload: config.max_udp_payload,
            has_datagrams,
            controller,
        }
    }

    fn transport(&self) -> quinn_proto::TransportConfig {
        let mut transport = quinn_proto::TransportConfig::default();
        let window = window(self.receive_budget);
        transport
            .max_concurrent_bidi_streams(1u32.into())
            .max_concurrent_uni_streams(0u32.into())
            .stream_receive_window(window)
            .receive_window(window)
            .send_window(MAX_WINDOW.into())
            // An idle timeout that QUIC cannot encode means no timeout.
            .max_idle_timeout(self.idle_timeout.try_into().ok())
            .keep_alive_interval(self.keep_alive_interval)
            .datagram_receive_buffer_size(self.has_datagrams.then_some(RECEIVE_BUFFER))
            .datagram_send_buffer_size(datagrams::QUIC_SEND_BUFFER);
        let mut discovery = quinn_proto::MtuDiscoveryConfig::default();
        discovery.upper_bound(self.max_udp_payload);
        transport.mtu_discovery_config(Some(discovery));
        match self.controller {
            Controller::Bbr => {
                transport.congestion_controller_factory(Arc::new(congestion::BbrConfig::default()));
            }
            Controller::Cubic => {
                transport
                    .congestion_controller_factory(Arc::new(congestion::CubicConfig::default()));
            }
        }
        transport
    }
}

/// What the connections of clients share, so that it takes memory once.
struct Shared {
    /// The settings of the last connection, and what they are for QUIC.
    last: Option<(Settings, Arc<quinn_proto::TransportConfig>)>,
    /// Keeps no tokens for later connections (RFC 9000 section 8.1.3).
    tokens: Arc<NoneTokenStore>,
}

impl Shared {
    fn transport(&mut self, settings: Settings) -> Arc<quinn_proto::TransportConfig> {
        match &self.last {
            Some((last, transport)) if *last == settings => transport.clone(),
            _ => {
                let transport = Arc::new(settings.transport());
                self.last = Some((settings, transport.clone()));
                transport
            }
        }
    }
}

/// The congestion controllers of `quinn-proto` that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Controller {
    Bbr,
    Cubic,
}

impl Controller {
    fn of(algorithm: CongestionAlgorithm) -> Option<Self> {
        match algorithm {
            CongestionAlgorithm::Ltcc | CongestionAlgorithm::Bbr3 => Some(Self::Bbr),
            CongestionAlgorithm::Cubic => Some(Self::Cubic),
            _ => None,
        }
    }

    /// The name of the controller in the statistics.
    pub(super) fn state(self) -> &'static str {
        match self {
            Self::Bbr => "quic bbr",
            Self::Cubic => "quic cubic",
        }
    }
}

fn unsupported_controller() -> ConnectError {
    unusable("mode 12 (QUIC) has the congestion controllers BBR and CUBIC only: select one of them")
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
            shared: Shared { last: None, tokens: Arc::new(NoneTokenStore) },
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
            servers: BTreeMap::new(),
            next: 0,
            dirty: BTreeSet::new(),
            timers: BTreeSet::new(),
            stuck_timers: StuckTimers::default(),
            timers_stuck: 0,
            half_open: NetworkCounts::new(MAX_HALF_OPEN, MAX_HALF_OPEN / 2),
            responses: VecDeque::new(),
            handshakes_started: 0,
            retries_sent: 0,
            refused: 0,
            half_open_refused: 0,
            answers_dropped: 0,
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
                Some([0, 0, 0, 0]) => self.servers.contains_key(&remote),
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
        if !connection.is_server {
            *self.servers.entry(connection.remote).or_default() += 1;
        }
        self.connections.insert(id, Box::new(connection));
        self.dirty.insert(id);
        id
    }

    fn queue_response(&mut self, transmit: quinn_proto::Transmit, bytes: Vec<u8>) {
        if self.responses.len() < MAX_RESPONSES {
            self.responses.push_back((transmit, bytes));
        } else {
            self.answers_dropped += 1;
        }
    }

    pub(super) fn handle_datagram(&mut self, now: Timestamp, datagram: &Received<'_>) {
        let at = self.clock.instant(now);
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
            self.refused += 1;
            let transmit = self.endpoint.refuse(incoming, &mut response);
            return self.queue_response(transmit, response);
        }
        let ip = incoming.remote_address().ip();
        if self.half_open.is_full() || self.half_open.is_network_full(ip) {
            // Not refused: a client tries again, and there may be room then.
            self.half_open_refused += 1;
            return self.endpoint.ignore(incoming);
        }
        if self.half_open.len() >= server.retry_threshold && incoming.may_retry() {
            self.retries_sent += 1;
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
                self.handshakes_started += 1;
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

    /// Returns the next datagram, event or timeout.
    pub(super) fn poll(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Output {
        buffer.clear();
        if let Some((transmit, bytes)) = self.responses.pop_front() {
            buffer.extend_from_slice(&bytes[..transmit.size.min(bytes.len())]);
            return Output::Transmit(translate(&transmit));
        }
        let at = self.clock.instant(now);
        while let Some(&id) = self.dirty.first() {
            let Some(connection) = self.connections.get_mut(&id) else {
                self.dirty.remove(&id);
                continue;
            };
            connection.drive(now, at, &mut self.endpoint);
            if let Some(event) = connection.pop_event() {
                return Output::Event(id, event);
            }
            let max_datagrams = (buffer.capacity()
                / usize::from(connection.quic.current_mtu()).max(1))
            .clamp(1, BURST);
            if let Some(transmit) = connection.quic.poll_transmit(at, max_datagrams, buffer) {
                connection.reachability.on_sent(buffer);
                return Output::Transmit(translate(&transmit));
            }
            self.dirty.remove(&id);
            self.update_timer(now, id);
        }
        Output::Timeout(self.timers.first().map(|&(due, _)| due))
    }

    fn update_timer(&mut self, now: Timestamp, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.is_counted && !connection.is_half_open() {
            connection.is_counted = false;
            self.half_open.remove(connection.remote.ip());
        }
        let is_gone = connection.quic.is_drained() && connection.session.is_closed();
        let quic = connection.quic.poll_timeout().map(|due| self.clock.timestamp(due));
        let own = connection.session.next_timeout();
        #[cfg(test)]
        let own = connection.stuck.or(own);
        let next = [quic, own].into_iter().flatten().min();
        let is_stuck = self.stuck_timers.is_stuck(id, next);
        if is_stuck && connection.on_stuck_timer() {
            self.timers_stuck += 1;
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
        if !connection.is_server
            && let Some(count) = self.servers.get_mut(&connection.remote)
        {
            *count -= 1;
            if *count == 0 {
                self.servers.remove(&connection.remote);
            }
        }
    }

    /// Opens the window of a peer that is now trusted.
    pub(super) fn trust_peer(&mut self, id: u64) {
        let Some(server) = &self.server else { return };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.quic.set_receive_window(window(server.transport.receive_budget));
            self.dirty.insert(id);
        }
    }

    fn with(&mut self, id: u64) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(&id)?;
        self.dirty.insert(id);
        Some(connection)
    }

    pub(super) fn send(
        &mut self,
        now: Timestamp,
        id: u64,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        self.with(id).ok_or(SendError::Closed)?.send(now, message, deadline)
    }

    pub(super) fn finish(&mut self, id: u64) -> Result<(), SendError> {
        self.with(id).ok_or(SendError::Closed)?.finish()
    }

    pub(super) fn recv(&mut self, id: u64) -> Option<Bytes> {
        self.with(id)?.recv()
    }

    pub(super) fn close(&mut self, id: u64, code: u64, reason: &str) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.close(code, reason);
            self.dirty.insert(id);
        }
    }

    pub(super) fn is_finished(&self, id: u64) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.is_finished())
    }

    pub(super) fn is_all_acknowledged(&self, id: u64) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.is_all_acknowledged())
    }

    pub(super) fn peer_limits(&self, id: u64) -> Option<PeerLimits> {
        self.connections.get(&id)?.session.peer_limits()
    }

    /// Size in bytes of the longest datagram that can be sent now, if messages go as datagrams.
    pub(super) fn longest_datagram(&self, id: u64) -> Option<usize> {
        let datagrams = self.connections.get(&id)?.datagrams.as_ref()?;
        Some(datagrams.longest().unwrap_or_default())
    }

    pub(super) fn stats(&self, now: Timestamp, id: u64) -> Option<ConnectionStats> {
        self.connections.get(&id).map(|connection| connection.stats(now))
    }

    pub(super) fn remote(&self, id: u64) -> Option<SocketAddr> {
        Some(self.connections.get(&id)?.remote)
    }

    pub(super) fn peer_fingerprint(&self, id: u64) -> Option<[u8; 32]> {
        self.connections.get(&id)?.peer_fingerprint()
    }

    pub(super) fn counters(&self) -> Counters {
        Counters {
            handshakes_started: self.handshakes_started,
            retries_sent: self.retries_sent,
            refused: self.refused,
            half_open_refused: self.half_open_refused,
            answers_dropped: self.answers_dropped,
            timers_stuck: self.timers_stuck,
        }
    }

    /// Received bytes that the application has not taken.
    pub(super) fn receive_buffer_bytes(&self, id: u64) -> usize {
        self.connections.get(&id).map_or(0, |connection| connection.receive_buffer_bytes())
    }

    pub(super) fn connection_count(&self) -> usize {
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

#[cfg(test)]
mod tests {
    use bats_proto::{CloseReason, Mode};

    use super::*;

    #[test]
    fn the_queue_of_responses_is_bounded() {
        let mut quic = Quic::new(Clock::new(), [7; 32], None, false, None).unwrap();
        let destination = ([127, 0, 0, 1], 9).into();
        let transmit = || quinn_proto::Transmit {
            destination,
            ecn: None,
            size: 3,
            segment_size: None,
            src_ip: None,
        };
        for number in 0..=MAX_RESPONSES {
            assert_eq!(quic.counters().answers_dropped, 0, "{number}");
            quic.queue_response(transmit(), vec![1, 2, 3]);
        }
        assert_eq!((quic.responses.len(), quic.counters().answers_dropped), (MAX_RESPONSES, 1));
        let sent = quic.poll(Timestamp::ZERO, &mut Vec::new());
        assert!(matches!(sent, Output::Transmit(transmit) if transmit.remote == destination));
        quic.queue_response(transmit(), vec![1, 2, 3]);
        assert_eq!((quic.responses.len(), quic.counters().answers_dropped), (MAX_RESPONSES, 1));
    }

    /// Polls until the next timeout; also returns why a connection was closed.
    fn drain(quic: &mut Quic, now: Timestamp) -> (Option<Timestamp>, Option<(u64, CloseReason)>) {
        let (mut closed, mut buffer) = (None, Vec::with_capacity(65_536));
        loop {
            match quic.poll(now, &mut buffer) {
                Output::Event(id, bats_proto::Event::Closed(reason)) => closed = Some((id, reason)),
                Output::Timeout(next) => return (next, closed),
                _ => {}
            }
        }
    }

    #[test]
    fn connection_with_a_stuck_timer_is_closed_with_an_internal_error() {
        let mut quic = Quic::new(Clock::new(), [7; 32], None, false, None).unwrap();
        let config = config();
        let (now, to) = (Timestamp::from_millis(1_000), ([127, 0, 0, 1], 9).into());
        let [stuck, other] =
            [0; 2].map(|_| quic.connect(now, to, "server", &config, false).unwrap());
        let (next, closed) = drain(&mut quic, now);
        assert!(next.is_some_and(|at| at > now) && closed.is_none(), "{next:?} {closed:?}");

        quic.connections.get_mut(&stuck).unwrap().stuck = Some(now);
        quic.dirty.insert(stuck);
        let (mut next, mut closed) = drain(&mut quic, now);
        let mut handled = 0;
        while closed.is_none() && next.is_some_and(|at| at <= now) {
            handled += 1;
            assert!(handled < 100, "the endpoint spins");
            quic.handle_timeout(now);
            (next, closed) = drain(&mut quic, now);
        }
        let (id, reason) = closed.expect("the connection was closed");
        assert!(matches!(reason, CloseReason::Internal(_)), "{reason:?}");
        assert_eq!((id, quic.counters().timers_stuck), (stuck, 1));
        for _ in 0..100 {
            quic.handle_timeout(now);
            drain(&mut quic, now);
        }
        assert!(!quic.connections.contains_key(&stuck), "a closed one that is stuck is removed");
        assert!(quic.connections.get(&other).is_some_and(|other| !other.session.is_closed()));
        assert!(drain(&mut quic, now).0.is_some_and(|at| at > now));
    }

    fn config() -> ClientConfig {
        ClientConfig {
            trust: bats_proto::PeerTrust::DangerousAcceptAny,
            identity: None,
            transport: Arc::new(TransportConfig { mode: Mode::Quic, ..TransportConfig::default() }),
        }
    }

    fn server() -> Quic {
        let config = ServerConfig {
            identity: bats_proto::crypto::generate_identity(&["server".to_owned()]).unwrap(),
            client_trust: None,
            transport: config().transport,
            retry_threshold: usize::MAX,
            max_connections: 100,
        };
        Quic::new(Clock::new(), [8; 32], Some(&config), false, None).unwrap()
    }

    /// The first datagram of a client.
    fn first_flight(now: Timestamp) -> Vec<u8> {
        let mut client = Quic::new(Clock::new(), [9; 32], None, false, None).unwrap();
        client.connect(now, ([127, 0, 0, 1], 9).into(), "server", &config(), false).unwrap();
        let mut buffer = Vec::with_capacity(65_536);
        let output = client.poll(now, &mut buffer);
        assert!(matches!(output, Output::Transmit(transmit) if transmit.len == buffer.len()));
        buffer
    }

    fn receive(quic: &mut Quic, now: Timestamp, remote: SocketAddr, datagram: &[u8]) {
        let payload = &mut datagram.to_vec()[..];
        quic.handle_datagram(now, &Received { remote, local_ip: None, ecn: 0, payload });
    }

    #[test]
    fn only_clients_take_version_negotiation_and_only_from_their_servers() {
        let negotiation = [0x80, 0, 0, 0, 0, 0, 0];
        let now = Timestamp::from_millis(1_000);
        let addresses: [SocketAddr; 3] = [1, 2, 3].map(|host| ([10, 0, 0, host], 9).into());
        let mut quic = server();
        receive(&mut quic, now, addresses[0], &first_flight(now));
        assert_eq!(quic.connection_count(), 1);
        assert!(!quic.wants(addresses[0], &negotiation), "from a client");
        let ids = [0, 0, 1].map(|server| {
            quic.connect(now, addresses[1 + server], "server", &config(), false).unwrap()
        });
        let wanted = |quic: &Quic| addresses.map(|from| quic.wants(from, &negotiation));
        for (closed, expected) in
            ids.into_iter().zip([[false, true, true], [false, true, true], [false, false, true]])
        {
            assert_eq!(wanted(&quic), expected);
            quic.remove(closed);
        }
        assert_eq!(wanted(&quic), [false; 3]);
        assert!(quic.servers.is_empty() && quic.by_handle.len() == 1);
    }

    #[test]
    fn half_open_handshakes_are_limited_in_all_and_for_each_network() {
        let mut quic = server();
        let now = quic.clock.now();
        quic.half_open = NetworkCounts::new(6, 4);
        let address = |network, host| SocketAddr::from(([10, 0, network, host], 9));
        // Each from another client: the same flight would belong to the same connection.
        let arrive = |quic: &mut Quic, from| {
            receive(quic, now, from, &first_flight(now));
            (quic.connection_count(), quic.counters().half_open_refused)
        };
        for host in 1..=4 {
            assert_eq!(arrive(&mut quic, address(1, host)), (usize::from(host), 0));
        }
        assert_eq!(arrive(&mut quic, address(1, 5)), (4, 1), "its network has four");
        assert_eq!(arrive(&mut quic, address(2, 1)), (5, 1));
        assert_eq!(arrive(&mut quic, address(2, 2)), (6, 1));
        assert_eq!(arrive(&mut quic, address(3, 1)), (6, 2), "there are six");
        // None completes its handshake.
        for second in 1..30 {
            drain(&mut quic, now + Duration::from_secs(second));
            quic.handle_timeout(now + Duration::from_secs(second));
        }
        assert_eq!((quic.connection_count(), quic.half_open.len()), (0, 0));
        assert_eq!(arrive(&mut quic, address(3, 1)), (1, 2));
    }

    #[test]
    fn the_window_follows_the_receive_budget_within_bounds() {
        assert_eq!(window(1), (1u32 << 16).into());
        assert_eq!(window(1 << 20), (1u32 << 20).into());
        for more in [MAX_WINDOW as usize, MAX_WINDOW as usize + 1, usize::MAX] {
            assert_eq!(window(more), MAX_WINDOW.into());
        }
    }
}
