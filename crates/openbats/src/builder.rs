//! Configures and starts endpoints.

use std::io;
use std::net::SocketAddr;
use std::num::{NonZeroU8, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use bats_proto::config::Security;
use bats_proto::relay::RelayConfig;
use bats_proto::stream::TlsStreamServer;
use bats_proto::{EndpointConfig, Mode, ServerConfig, Steering};

use crate::clock::Clock;
use crate::driver::{
    self, IoThreads, LazyPoller, MAX_DSCP, Socket, SocketOptions, Sockets, canonical,
};
use crate::endpoint::{Endpoint, NO_HANDSHAKE_FOR_COMPRESSION, ONE_THREAD, or_unspecified};
use crate::error::StartError;
use crate::node::{NodeSetup, NodeState};
use crate::options::{Extras, ServerOptions};
use crate::shared::Shared;
use crate::siblings::Siblings;
#[cfg(feature = "quic")]
use crate::transport::Quic;
use crate::transport::{DATAGRAMS_NEED_QUIC, Listener, Tcp, Transports, Udp};

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
    /// Threads that serve the endpoint, each with a part of its connections; `None` for one.
    parts: Option<NonZeroUsize>,
    /// The packets that this part takes.
    steering: Steering,
    /// The address of the first part, if this is another one.
    of_first: Option<SocketAddr>,
}

/// What a thread serves, before it is started.
struct Part {
    shared: Arc<Shared>,
    sockets: Sockets,
    threads: Option<IoThreads>,
}

/// What the endpoint of a node has besides.
#[derive(Debug)]
pub(crate) struct NodeStart {
    pub(crate) setup: NodeSetup,
    pub(crate) relay: RelayConfig,
    /// Further addresses to listen at.
    pub(crate) others: Vec<SocketAddr>,
}

impl Endpoint {
    /// Returns a builder with default settings.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }
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

    /// Number of I/O threads that serve the endpoint, 1 by default and at most 64. Each has a socket, a lock and
    /// connections of its own: an application that connects in turn gets connections of all threads, and the system hands
    /// packets to the thread that their connection ID names. So connections do not wait for each other, and an endpoint
    /// can use as many processors; one connection cannot use more than one. Memory budget and
    /// [`max_connections`](ServerOptions::max_connections) are divided among the threads, and limits on half-open
    /// connections hold for each. A client resumes a session, or sends early data, only if its first packet reaches the
    /// thread that it was connected to before; else the handshake is a full one. A stateless reset that answers a packet of
    /// one thread may reach another, so several may be needed to end a connection.
    ///
    /// With more than one the endpoint does not start on a system other than Linux, in modes UDP and QUIC, whose packets
    /// do not name a thread, or for a node. With [`io_threads`](Self::io_threads) these are the threads of that set.
    #[must_use]
    pub fn threads(mut self, count: NonZeroUsize) -> Self {
        self.parts = Some(count);
        self
    }

    /// Makes a thread that blocks on [`Connection::recv`](crate::Connection::recv) with [`Wait`](crate::Wait) look for packets
    /// for this time before it sleeps, by default not at all. That saves the wakeup of the thread,
    /// which takes longer than everything else on a short path, at the price of a busy CPU: for
    /// hosts with CPUs to spare and peers that answer within this time.
    #[must_use]
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.busy_poll = time;
        self
    }

    /// Opens the socket and starts the I/O thread, or those that [`threads`](Self::threads) asks for.
    ///
    /// # Errors
    /// The address is in use or not local, the configuration is unusable, or the system has no more
    /// threads or file descriptors.
    pub fn start(self) -> Result<Endpoint, StartError> {
        let parts = match self.parts {
            Some(count) if count.get() > 1 => self.open_parts(count.get())?,
            _ => vec![self.open_part()?],
        };
        // The threads end with the last handle.
        let endpoint = Endpoint::new(parts.iter().map(|part| part.shared.clone()).collect());
        for Part { shared, sockets, threads } in parts {
            driver::start(shared, sockets, threads.as_ref()).map_err(StartError::Thread)?;
        }
        Ok(endpoint)
    }

    /// Opens sockets of the same address for several threads.
    fn open_parts(self, count: usize) -> Result<Vec<Part>, StartError> {
        let unusable = |text: &str| Err(StartError::Configuration(text.to_owned()));
        let count = match u8::try_from(count).ok().and_then(NonZeroU8::new) {
            Some(count) if count.get() <= MAX_PARTS => count,
            _ => return unusable("an endpoint has at most 64 threads"),
        };
        if !cfg!(target_os = "linux") {
            return unusable("an endpoint has one thread on this system");
        }
        if self.node.is_some() {
            return unusable("the endpoint of a node has one thread");
        }
        let budget = self.memory_budget.unwrap_or(EndpointConfig::default().memory_budget);
        let mut parts: Vec<Part> = Vec::new();
        for index in 0..count.get() {
            let part = Self {
                address: self.address,
                of_first: parts.first().map(|first| first.shared.local_addr),
                // The first socket is bound alone, so that the address is not that of another endpoint.
                socket: SocketOptions { shares_port: !parts.is_empty(), ..self.socket.clone() },
                server: self.server.clone(),
                memory_budget: Some(budget / u64::from(count.get())),
                is_udp_only: self.is_udp_only,
                threads: self.threads.clone(),
                node: None,
                busy_poll: self.busy_poll,
                parts: None,
                steering: Steering::new(index, count).unwrap_or_default(),
            };
            parts.push(part.open_part()?);
        }
        Ok(parts)
    }

    /// Opens the sockets of a part.
    fn open_part(self) -> Result<Part, StartError> {
        if self.socket.dscp > MAX_DSCP {
            let text = format!("{} is not a DSCP: use 0 to {MAX_DSCP}", self.socket.dscp);
            return Err(StartError::Configuration(text));
        }
        if let Some(problem) = self.server.as_ref().and_then(ServerOptions::client_trust_problem) {
            return Err(StartError::Configuration(problem.to_owned()));
        }
        let untrusted_peer_budget = self.server.as_ref().and_then(ServerOptions::untrusted_budget);
        let (mut server, extras) = self.server.map(ServerOptions::into_config).unzip();
        if let Some(server) = &mut server {
            server.max_connections = server.max_connections.div_ceil(self.steering.count());
        }
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
        let is_one = self.steering.count() == 1;
        if !is_one
            && (self.is_udp_only
                || config.server.as_ref().is_some_and(|server| {
                    [Mode::Udp, Mode::Quic].into_iter().any(|mode| offers(server, mode))
                }))
        {
            return Err(StartError::Configuration(ONE_THREAD.to_owned()));
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
        packets.set_steering(self.steering);
        if let Some(node) = &self.node {
            packets.enable_relay(node.relay.clone()).map_err(unusable)?;
        }
        let (mut socket, listener) = bind(self.of_first.or(self.address), &self.socket, over_tcp)?;
        let failed = |source| StartError::Bind { address: or_unspecified(self.address), source };
        if is_mode_udp {
            socket.dedicate_to_mode_udp().map_err(failed)?;
        }
        let local_addr = socket.local_addr().map_err(failed)?;
        if !is_one && self.steering.is_first() {
            socket.share_port().map_err(failed)?;
            if let Some(listener) = &listener {
                listener.share_port().map_err(failed)?;
            }
        }
        if !is_one && self.steering.is_last() {
            // All sockets of the address are there.
            socket.steer(self.steering.count()).map_err(failed)?;
        }
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
        // Outgoing TCP connections cannot use a port on which the endpoint listens, or that of another part.
        let tcp_from = self.address.map(|address| match listener {
            None if is_one => address,
            _ => SocketAddr::new(address.ip(), 0),
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
            (local_addr, Siblings::new(self.steering)),
        );
        if let Some(node) = self.node {
            shared.lock().node = Some(Box::new(NodeState::new(node.setup, addresses)));
        }
        Ok(Part { shared, sockets: socket, threads: self.threads })
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
        let local = or_unspecified(addresses.first().copied());
        let shared = Shared::new(
            transports,
            (None, None),
            poller,
            (clock, Duration::ZERO),
            (local, Siblings::default()),
        );
        shared.lock().node = Some(Box::new(NodeState::new(node.setup, addresses)));
        Ok(Endpoint::new(vec![shared]))
    }
}

/// The most threads of an endpoint.
const MAX_PARTS: u8 = 64;

/// Attempts to find a port that is free for UDP and for TCP.
const PORT_TRIES: usize = 32;

pub(crate) fn offers(server: &ServerConfig, mode: Mode) -> bool {
    server.transport.mode == mode || server.transport.also_accepted.contains(&mode)
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
        let failed = |source| StartError::Bind { address: or_unspecified(address), source };
        let socket = socket.map_err(failed)?;
        let Some((server, config)) = &over_tcp else { return Ok((socket, None)) };
        let local = socket.local_addr().map_err(failed)?;
        match Listener::bind(local, options, server.clone(), config) {
            Ok(listener) => return Ok((socket, Some(listener))),
            // The port is in use for TCP; another one may be free.
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && or_unspecified(address).port() == 0
                    && tries > 1 =>
            {
                tries -= 1;
            }
            Err(source) => return Err(StartError::BindTcp { address: local, source }),
        }
    }
}
