//! The endpoint: connects to servers and accepts connections.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bats_proto::config::Security;
use bats_proto::relay::RelayConfig;
use bats_proto::stream::TlsStreamServer;
use bats_proto::{EndpointConfig, EndpointStats, Mode, PresharedKey, ServerConfig, Timestamp};
use bytes::Bytes;

use crate::clock::Clock;
use crate::connection::Connection;
use crate::driver::{
    self, IoThreads, LazyPoller, MAX_DSCP, Socket, SocketOptions, Sockets, canonical,
};
use crate::endpoint_state::Core;
use crate::error::{ConnectError, SendError, StartError, TrustError};
use crate::known_hosts::KnownHosts;
use crate::node::{NodeId, NodeSetup, NodeState};
use crate::options::{ClientOptions, Extras, ServerOptions};
use crate::shared::Shared;
use crate::slot::Slot;
#[cfg(feature = "quic")]
use crate::transport::Quic;
use crate::transport::{DATAGRAMS_NEED_QUIC, Handle, Listener, Tcp, Transports, Udp};

/// Configures and starts an [`Endpoint`].
#[derive(Debug, Default)]
pub struct Builder {
    address: Option<SocketAddr>,
    socket: SocketOptions,
    server: Option<ServerOptions>,
    memory_budget: Option<u64>,
    is_udp_only: bool,
    threads: Option<IoThreads>,
    node: Option<NodeStart>,
    busy_poll: Duration,
}

/// The parts of an endpoint that belongs to a node.
#[derive(Debug)]
pub(crate) struct NodeStart {
    pub(crate) setup: NodeSetup,
    pub(crate) relay: RelayConfig,
    /// Further addresses to listen at.
    pub(crate) others: Vec<SocketAddr>,
}

impl Builder {
    pub(crate) fn node(mut self, node: NodeStart) -> Self {
        self.node = Some(node);
        self
    }

    /// Local UDP address; port 0 for any free port. By default the endpoint uses a free port of
    /// both IP families. An unspecified IPv6 address (`[::]`) serves IPv4, too.
    #[must_use]
    pub fn bind(mut self, address: SocketAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// Sends and receives through this network interface only, regardless of the routes. The
    /// endpoint does not start if there is no such interface, or if the system cannot bind sockets
    /// to interfaces.
    #[must_use]
    pub fn bind_device(mut self, interface: impl Into<String>) -> Self {
        self.socket.device = Some(interface.into());
        self
    }

    /// DSCP (RFC 2474) of all packets, 0 to 63; 46 is expedited forwarding. The ECN bits of the
    /// packets are not affected. Other networks may change the DSCP. With a larger number, or on a
    /// system other than Linux, the endpoint does not start.
    #[must_use]
    pub fn dscp(mut self, code_point: u8) -> Self {
        self.socket.dscp = code_point;
        self
    }

    /// Also accepts connections, with these options.
    #[must_use]
    pub fn server(mut self, options: ServerOptions) -> Self {
        self.server = Some(options);
        self
    }

    /// Uses the socket for mode UDP alone. On Linux the system may then fragment messages, so that
    /// they can have up to 65,507 bytes instead of one packet's payload, and a connection to an
    /// unreachable port ends with [`CloseReason::Refused`](crate::CloseReason). A server that
    /// offers mode UDP always has such a socket. Connections of other modes are refused, except for
    /// TCP.
    #[must_use]
    pub fn only_udp(mut self) -> Self {
        self.is_udp_only = true;
        self
    }

    /// Bytes of received data that all connections of BATS's own modes together may hold, by
    /// default 32 GiB. A connection is charged 256 KiB at its start and with use up to its
    /// [`TransportConfig::receive_budget`](crate::TransportConfig). Data for which there is no memory
    /// count as lost; if less than 2.75 MiB are free, new connections are refused.
    #[must_use]
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.memory_budget = Some(bytes);
        self
    }

    /// Uses one of these I/O threads, which other endpoints share. By default the endpoint starts its
    /// own.
    #[must_use]
    pub fn io_threads(mut self, threads: &IoThreads) -> Self {
        self.threads = Some(threads.clone());
        self
    }

    /// Makes a thread that blocks on [`Connection::recv`] with [`Wait`](crate::Wait) look for packets
    /// for this time before it sleeps, by default not at all. That saves the wakeup of the thread,
    /// which takes longer than everything else on a short path, at the price of a busy CPU: for
    /// hosts with CPUs to spare and peers that answer within this time.
    #[must_use]
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.busy_poll = time;
        self
    }

    /// Opens the socket and starts the I/O thread.
    ///
    /// # Errors
    /// The address is in use or not local, the configuration is unusable, or the system has no more
    /// threads or file descriptors.
    pub fn start(self) -> Result<Endpoint, StartError> {
        if self.socket.dscp > MAX_DSCP {
            let text = format!("{} is not a DSCP: use 0 to {MAX_DSCP}", self.socket.dscp);
            return Err(StartError::Configuration(text));
        }
        if let Some(problem) = self.server.as_ref().and_then(ServerOptions::client_trust_problem) {
            return Err(StartError::Configuration(problem.to_owned()));
        }
        let untrusted_peer_budget = self.server.as_ref().and_then(ServerOptions::untrusted_budget);
        let (server, extras) = self.server.map(ServerOptions::into_config).unzip();
        let Extras { compression_offer, has_datagrams } = extras.unwrap_or_default();
        let defaults = EndpointConfig::default();
        let config = EndpointConfig {
            security: Security::Tls,
            server,
            memory_budget: self.memory_budget.unwrap_or(defaults.memory_budget),
            // A node has certificates on both sides of each connection.
            instance: match self.node.is_some() {
                true => crate::clock::unix_time().as_millis() as u64,
                false => defaults.instance,
            },
        };
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| StartError::Thread(io::Error::other(error)))?;
        let unusable =
            |error: bats_proto::ConnectError| StartError::Configuration(error.to_string());
        if let Some(server) = &config.server {
            server.transport.check_psk_modes().map_err(unusable)?;
        }
        let over_tcp = match &config.server {
            Some(server) if offers(server, Mode::Tcp) => {
                Some((TlsStreamServer::new(server).map_err(unusable)?, server.clone()))
            }
            _ => None,
        };
        let clock = Clock::new();
        #[cfg(feature = "quic")]
        let quic = {
            let mut seed = [0; 32];
            getrandom::fill(&mut seed)
                .map_err(|error| StartError::Thread(io::Error::other(error)))?;
            let server = config.server.as_ref().filter(|server| offers(server, Mode::Quic));
            Quic::new(clock.clone(), seed, server, has_datagrams, untrusted_peer_budget)
                .map_err(unusable)?
        };
        #[cfg(not(feature = "quic"))]
        if config.server.as_ref().is_some_and(|server| offers(server, Mode::Quic)) {
            let text = "mode 12 (QUIC) is not in this build: the feature `quic` is off";
            return Err(StartError::Configuration(text.to_owned()));
        }
        if has_datagrams && !config.server.as_ref().is_some_and(|server| offers(server, Mode::Quic))
        {
            return Err(StartError::Configuration(DATAGRAMS_NEED_QUIC.to_owned()));
        }
        let over_udp = config.server.as_ref().filter(|server| offers(server, Mode::Udp));
        if over_udp.is_some_and(|server| {
            Mode::ALL.into_iter().any(|mode| mode != Mode::Udp && offers(server, mode))
        }) {
            let text =
                "mode 11 (UDP) has no handshake, so that a server cannot offer other modes with it";
            return Err(StartError::Configuration(text.to_owned()));
        }
        if over_udp.is_some() && compression_offer.is_some() {
            return Err(StartError::Configuration(NO_HANDSHAKE_FOR_COMPRESSION.to_owned()));
        }
        if self.is_udp_only && config.server.is_some() && over_udp.is_none() {
            let text = "an endpoint for mode 11 (UDP) alone cannot serve another mode";
            return Err(StartError::Configuration(text.to_owned()));
        }
        let udp = Udp::new(over_udp, self.is_udp_only);
        let is_mode_udp = udp.is_exclusive();
        let mut packets = bats_proto::Endpoint::new(config, seed).map_err(unusable)?;
        if let Some(node) = &self.node {
            packets.enable_relay(node.relay.clone()).map_err(unusable)?;
        }
        let (mut socket, listener) = bind(self.address, &self.socket, over_tcp)?;
        let failed = |source| StartError::Bind { address: requested(self.address), source };
        if is_mode_udp {
            socket.dedicate_to_mode_udp().map_err(failed)?;
        }
        let local_addr = socket.local_addr().map_err(failed)?;
        let mut sockets = vec![socket];
        let mut addresses = vec![canonical(local_addr)];
        for &address in self.node.iter().flat_map(|node| &node.others) {
            let failed = |source| StartError::Bind { address, source };
            let socket = Socket::bind(address, &self.socket).map_err(failed)?;
            addresses.push(canonical(socket.local_addr().map_err(failed)?));
            sockets.push(socket);
        }
        let socket = Sockets::new(sockets).map_err(failed)?;
        let poller = Arc::new(LazyPoller::default());
        // Outgoing TCP connections cannot use a port on which the endpoint listens.
        let tcp_from = self.address.map(|address| match listener {
            Some(_) => SocketAddr::new(address.ip(), 0),
            None => address,
        });
        let tcp = Tcp::new(poller.clone(), listener, (tcp_from, self.socket.clone()))
            .map_err(StartError::Thread)?;
        let transports = Transports::new(
            packets,
            tcp,
            udp,
            #[cfg(feature = "quic")]
            quic,
        );
        let shared = Shared::new(
            transports,
            (compression_offer, untrusted_peer_budget),
            poller,
            (clock, self.busy_poll),
            local_addr,
        );
        if let Some(node) = self.node {
            shared.lock().node = Some(Box::new(NodeState::new(node.setup, addresses)));
        }
        let endpoint = Endpoint::new(shared.clone());
        driver::start(shared, socket, self.threads.as_ref()).map_err(StartError::Thread)?;
        Ok(endpoint)
    }
}

/// What an endpoint of a simulation has in place of the system's clock, randomness and sockets.
#[cfg(feature = "virtual-time")]
pub(crate) struct Simulated {
    pub(crate) clock: Clock,
    pub(crate) seed: [u8; 32],
    pub(crate) instance: u64,
    /// Addresses at which the node listens.
    pub(crate) addresses: Vec<SocketAddr>,
}

#[cfg(feature = "virtual-time")]
impl Builder {
    /// As [`start`](Self::start) for a node, without sockets and without an I/O thread.
    pub(crate) fn simulate(self, simulated: Simulated) -> Result<Endpoint, StartError> {
        let Simulated { clock, seed, instance, addresses } = simulated;
        let unusable =
            |error: bats_proto::ConnectError| StartError::Configuration(error.to_string());
        let server = self.server.map(|server| server.into_config().0);
        let config = EndpointConfig {
            security: Security::DangerousPlain,
            server,
            instance,
            ..EndpointConfig::default()
        };
        let mut packets = bats_proto::Endpoint::new(config, seed).map_err(unusable)?;
        let node = self.node.ok_or_else(|| StartError::Configuration("no node".to_owned()))?;
        packets.enable_relay(node.relay).map_err(unusable)?;
        let poller = Arc::new(LazyPoller::default());
        let tcp = Tcp::new(poller.clone(), None, (None, self.socket));
        let transports = Transports::new(
            packets,
            tcp.map_err(StartError::Thread)?,
            Udp::new(None, false),
            #[cfg(feature = "quic")]
            Quic::new(clock.clone(), seed, None, false, None).map_err(unusable)?,
        );
        let local = requested(addresses.first().copied());
        let shared = Shared::new(transports, (None, None), poller, (clock, Duration::ZERO), local);
        shared.lock().node = Some(Box::new(NodeState::new(node.setup, addresses)));
        Ok(Endpoint::new(shared))
    }
}

/// The error for early data with compression.
const EARLY_UNCOMPRESSED: &str =
    "early messages are sent before compression is negotiated: use one of the two only";
/// The error for mode UDP with compression.
const NO_HANDSHAKE_FOR_COMPRESSION: &str =
    "mode 11 (UDP) has no handshake to negotiate compression";

/// Attempts to find a port that is free for UDP and for TCP.
const PORT_TRIES: usize = 32;

pub(crate) fn offers(server: &ServerConfig, mode: Mode) -> bool {
    server.transport.mode == mode || server.transport.also_accepted.contains(&mode)
}

fn requested(address: Option<SocketAddr>) -> SocketAddr {
    address.unwrap_or_else(|| ([0, 0, 0, 0], 0).into())
}

/// Binds the UDP socket, and the TCP listener of the same address if the server offers TCP.
fn bind(
    address: Option<SocketAddr>,
    options: &SocketOptions,
    over_tcp: Option<(TlsStreamServer, ServerConfig)>,
) -> Result<(Socket, Option<Listener>), StartError> {
    let mut tries = PORT_TRIES;
    loop {
        let socket = match address {
            Some(address) => Socket::bind(address, options),
            None => Socket::bind_any(options),
        };
        let failed = |source| StartError::Bind { address: requested(address), source };
        let socket = socket.map_err(failed)?;
        let Some((server, config)) = &over_tcp else { return Ok((socket, None)) };
        let local = socket.local_addr().map_err(failed)?;
        match Listener::bind(local, options, server.clone(), config) {
            Ok(listener) => return Ok((socket, Some(listener))),
            // The port is in use for TCP; another one may be free.
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && requested(address).port() == 0
                    && tries > 1 =>
            {
                tries -= 1;
            }
            Err(source) => return Err(StartError::BindTcp { address: local, source }),
        }
    }
}

/// One UDP socket with its I/O thread; opens and accepts connections. Clones refer to the same
/// endpoint. The socket stays open until the endpoint and all its connections are dropped.
#[derive(Debug)]
pub struct Endpoint {
    shared: Arc<Shared>,
}

impl Endpoint {
    /// Returns a builder with default settings.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn new(shared: Arc<Shared>) -> Self {
        let mut core = shared.lock();
        core.handles += 1;
        core.endpoints += 1;
        drop(core);
        Self { shared }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// Returns the socket's address. An endpoint that is bound to all addresses reports `0.0.0.0`
    /// or `[::]`.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.local_addr
    }

    /// Connects to a server. With [`Trust::authorities`](crate::Trust::authorities) the server's
    /// certificate must be valid for `server_name`.
    ///
    /// # Errors
    /// See [`ConnectError`]. Dropping the future before it completes closes the connection.
    pub async fn connect(
        &self,
        remote: SocketAddr,
        server_name: &str,
        options: ClientOptions,
    ) -> Result<Connection, ConnectError> {
        Ok(self.establish(remote, server_name, options, VecDeque::new()).await?.0)
    }

    /// Connects like [`connect`](Self::connect) and sends `messages`, the first of them as early
    /// data. Up to 32 messages and 7 kB go with the first flight if [`ClientOptions::early_data`]
    /// is set and the server accepted early data in the resumed session. The others are sent in
    /// order once the connection is established.
    /// [`EarlyDataStats::messages_accepted`](crate::EarlyDataStats::messages_accepted)
    /// counts the early messages that the server accepted.
    ///
    /// # Errors
    /// See [`ConnectError`]. [`ConnectError::Configuration`] if a message is longer than the server
    /// accepts, or if compression is enabled. Dropping the future before it completes closes the
    /// connection, but early messages may have arrived.
    pub async fn connect_early<M: Into<Bytes>>(
        &self,
        remote: SocketAddr,
        server_name: &str,
        options: ClientOptions,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Connection, ConnectError> {
        let messages = messages.into_iter().map(Into::into).collect();
        let (connection, others) = self.establish(remote, server_name, options, messages).await?;
        for message in others {
            connection.send(message).await.map_err(|error| match error {
                SendError::Closed(reason) => ConnectError::Closed(reason),
                other => ConnectError::Configuration(other.to_string()),
            })?;
        }
        Ok(connection)
    }

    /// Establishes a connection with a trusted server. Also returns the messages that did not fit
    /// the first flight.
    async fn establish(
        &self,
        remote: SocketAddr,
        server_name: &str,
        mut options: ClientOptions,
        messages: VecDeque<Bytes>,
    ) -> Result<(Connection, VecDeque<Bytes>), ConnectError> {
        let known_hosts = options.known_hosts(server_name, remote.port())?;
        let (connection, others) = self.begin(remote, server_name, options, messages)?;
        poll_fn(|context| connection.poll_established(context)).await?;
        check_known_host(&connection, known_hosts)?;
        Ok((connection, others))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Establishes a session with a node over the routes.
    pub(crate) async fn establish_session(
        &self,
        node: NodeId,
        server_name: &str,
        mut options: ClientOptions,
    ) -> Result<Connection, ConnectError> {
        let known_hosts = options.known_hosts(server_name, 0)?;
        let connection = self.begin_session(node, server_name, options)?;
        poll_fn(|context| connection.poll_established(context)).await?;
        check_known_host(&connection, known_hosts)?;
        Ok(connection)
    }

    fn begin_session(
        &self,
        node: NodeId,
        server_name: &str,
        options: ClientOptions,
    ) -> Result<Connection, ConnectError> {
        self.shared.call(|core, clock| {
            let is_over = core.is_shut_down || core.ended.is_some();
            let Some(state) = core.node.as_ref().filter(|_| !is_over) else {
                return Err(ConnectError::EndpointClosed);
            };
            if node == state.id {
                let text = format!("{node} is this node itself");
                return Err(ConnectError::Configuration(text));
            }
            if !state.routes.leads_to(node) {
                return Err(ConnectError::NoRoute { node });
            }
            let setup = &state.setup;
            let options = options.with_node_defaults(&setup.identity, setup.preshared_key.as_ref());
            let (config, Extras { compression_offer, has_datagrams }) = options.into_config();
            if has_datagrams {
                return Err(ConnectError::Configuration(DATAGRAMS_NEED_QUIC.to_owned()));
            }
            let packets = core.endpoint.packets();
            let handle = packets
                .connect_across(clock.now(), node, server_name, config)
                .map_err(cannot_connect)?;
            let remote = packets.remote(handle).unwrap_or_else(|| requested(None));
            let handle = Handle::Packets(handle);
            core.slots.insert(handle, Slot { is_held: true, compression_offer, ..Slot::default() });
            Ok(Connection::new(self.shared.clone(), core, handle, remote))
        })
    }

    /// Starts a connection. Also returns the messages that did not fit the first flight.
    fn begin(
        &self,
        remote: SocketAddr,
        server_name: &str,
        options: ClientOptions,
        mut messages: VecDeque<Bytes>,
    ) -> Result<(Connection, VecDeque<Bytes>), ConnectError> {
        let remote = canonical(remote);
        let local = self.shared.local_addr;
        let bound_to_one = local.is_ipv4() || !local.ip().is_unspecified();
        if bound_to_one && local.is_ipv4() != remote.is_ipv4() {
            return Err(ConnectError::Family { local, remote });
        }
        self.shared.call(|core, clock| {
            if core.is_shut_down || core.ended.is_some() {
                return Err(ConnectError::EndpointClosed);
            }
            let (config, Extras { compression_offer, has_datagrams }) = options.into_config();
            if compression_offer.is_some() && config.transport.mode == Mode::Udp {
                return Err(ConnectError::Configuration(NO_HANDSHAKE_FOR_COMPRESSION.to_owned()));
            }
            if compression_offer.is_some() && !messages.is_empty() {
                return Err(ConnectError::Configuration(EARLY_UNCOMPRESSED.to_owned()));
            }
            let handle = core
                .endpoint
                .connect(clock.now(), remote, server_name, config, has_datagrams)
                .map_err(cannot_connect)?;
            core.slots.insert(handle, Slot { is_held: true, compression_offer, ..Slot::default() });
            // Queue the messages before the first flight is sent, so that it includes them.
            while let Some(message) = messages.pop_front() {
                match core.endpoint.send(clock.now(), handle, message) {
                    Ok(()) => {}
                    Err(bats_proto::SendError::Blocked(message)) => {
                        messages.push_front(message);
                        break;
                    }
                    Err(error) => return Err(ConnectError::Configuration(error.to_string())),
                }
            }
            Ok((Connection::new(self.shared.clone(), core, handle, remote), messages))
        })
    }

    /// Returns the next connection that a peer has established.
    ///
    /// # Errors
    /// [`ConnectError::EndpointClosed`] after [`shut_down`](Self::shut_down).
    pub async fn accept(&self) -> Result<Connection, ConnectError> {
        Ok(self.accept_with(|_, _| ()).await?.0)
    }

    /// As [`accept`](Self::accept), at a node: also returns the node at the other end.
    pub(crate) async fn accept_session(&self) -> Result<(Connection, NodeId), ConnectError> {
        let node_of = |core: &Core, handle| core.slots.get(&handle)?.remote_node;
        let (connection, node) = self.accept_with(node_of).await?;
        Ok((connection, node.unwrap_or(NodeId(0))))
    }

    async fn accept_with<T>(
        &self,
        describe: impl Fn(&Core, Handle) -> T,
    ) -> Result<(Connection, T), ConnectError> {
        poll_fn(|context| {
            self.shared.call(|core, _| {
                // A connection that has ended may still hold received messages.
                if let Some((handle, remote)) = core.accepted.pop_front() {
                    let shared = self.shared.clone();
                    let about = describe(core, handle);
                    let connection = Connection::new(shared, core, handle, remote);
                    return Poll::Ready(Ok((connection, about)));
                }
                if core.is_shut_down || core.ended.is_some() {
                    return Poll::Ready(Err(ConnectError::EndpointClosed));
                }
                core.accepting.register(context.waker());
                Poll::Pending
            })
        })
        .await
    }

    /// Accepts no more connections; open connections stay open.
    pub fn stop_accepting(&self) {
        self.shared.call(|core, _| {
            core.refuses_new = true;
            core.endpoint.stop_listening();
        });
    }

    /// PSK mode: replaces the keys that the server accepts, one to four, for connections that clients
    /// open from now on. Open connections stay.
    ///
    /// # Errors
    /// [`ConnectError::Configuration`] if this endpoint is no server with a
    /// [`preshared_key`](crate::ServerOptions::preshared_key), or the number of keys is another one.
    pub fn set_preshared_keys(&self, keys: &[PresharedKey]) -> Result<(), ConnectError> {
        let set = self.shared.call(|core, _| core.endpoint.packets().set_psks(keys));
        set.map_err(cannot_connect)
    }

    /// Closes all connections with an application's code and text. The endpoint opens and accepts
    /// no more. Await [`idle`](Self::idle) to let the peers receive the close.
    pub fn shut_down(&self, code: u64, reason: &str) {
        self.shared.shut_down(code, reason);
    }

    /// Waits until there are no connections, closing and draining ones included. If a program exits
    /// earlier, its peers may have to wait for their idle timeout.
    pub async fn idle(&self) {
        poll_fn(|context| {
            self.shared.call(|core, _| {
                if core.is_idle() || core.ended.is_some() {
                    return Poll::Ready(());
                }
                core.idling.register(context.waker());
                Poll::Pending
            })
        })
        .await;
    }

    /// Closes everything like [`shut_down`](Self::shut_down), sends each peer one CONNECTION_CLOSE
    /// and closes the socket. Unlike [`idle`](Self::idle) it does not wait for peers that missed
    /// it. Completes when the local address is free again.
    pub async fn terminate(&self, code: u64, reason: &str) {
        self.shared.shut_down(code, reason);
        self.shared.terminate();
        poll_fn(|context| {
            let mut core = self.shared.lock();
            if core.ended.is_some() {
                return Poll::Ready(());
            }
            core.ending.register(context.waker());
            Poll::Pending
        })
        .await;
    }

    /// Returns the counters that belong to no connection.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.shared.lock().endpoint.endpoint_stats()
    }
}

fn cannot_connect(error: bats_proto::ConnectError) -> ConnectError {
    match error {
        bats_proto::ConnectError::ServerName(name) => ConnectError::ServerName(name),
        bats_proto::ConnectError::Memory => ConnectError::Memory,
        other => ConnectError::Configuration(other.to_string()),
    }
}

/// Checks the certificate of a server against the file of known servers, if the trust is one.
fn check_known_host(
    connection: &Connection,
    known_hosts: Option<(KnownHosts, String)>,
) -> Result<(), ConnectError> {
    let Some((known_hosts, name)) = known_hosts else { return Ok(()) };
    let fingerprint = connection.peer_fingerprint().ok_or(TrustError::NoCertificate);
    match fingerprint.and_then(|print| Ok((known_hosts.check(&name, print)?, print))) {
        Ok((true, fingerprint)) => {
            let path = known_hosts.path().display();
            tracing::warn!(%name, %fingerprint, %path, "recorded a new server");
        }
        Ok((false, _)) => {}
        Err(error) => {
            connection.close(0, "the server is not trusted");
            return Err(error.into());
        }
    }
    Ok(())
}

impl Clone for Endpoint {
    fn clone(&self) -> Self {
        Self::new(self.shared.clone())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.on_dropped(None);
    }
}
