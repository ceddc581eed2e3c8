//! The endpoint: where connections begin.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;

use bats_proto::config::Security;
use bats_proto::stream::SecuredServer;
use bats_proto::{EndpointConfig, EndpointStats, Mode, ServerConfig, Timestamp};
use bytes::Bytes;

#[cfg(feature = "quic")]
use crate::carrier::Quic;
use crate::carrier::{DATAGRAMS_OF_QUIC, Listener, Tcp, Transports, Udp};
use crate::clock::Clock;
use crate::connection::Connection;
use crate::driver::{self, MAX_DSCP, Poller, Socket, SocketOptions, canonical};
use crate::error::{ConnectError, SendError, StartError};
use crate::options::{ClientOptions, Extras, ServerOptions};
use crate::shared::{Shared, Slot};

/// Prepares an [`Endpoint`].
#[derive(Debug, Default)]
pub struct Builder {
    address: Option<SocketAddr>,
    socket: SocketOptions,
    server: Option<ServerOptions>,
    memory_budget: Option<u64>,
    is_for_udp: bool,
}

impl Builder {
    /// The local UDP address; port 0 for any. Without this a free port of both IP families is
    /// taken. An unspecified IPv6 address (`[::]`) serves IPv4 too.
    #[must_use]
    pub fn bind(mut self, address: SocketAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// Everything comes and goes by this network interface only, whatever the routes say. Where
    /// there is no such interface, or the system lets no socket be bound to one, the endpoint does not
    /// start.
    #[must_use]
    pub fn bind_device(mut self, interface: impl Into<String>) -> Self {
        self.socket.device = Some(interface.into());
        self
    }

    /// The code point of differentiated services (RFC 2474) of all packets, 0 to 63: 46 for expedited
    /// forwarding. Their ECN bits stay their own. Networks other than one's own may change it. With
    /// a larger number, or on another system than Linux, the endpoint does not start.
    #[must_use]
    pub fn dscp(mut self, code_point: u8) -> Self {
        self.socket.dscp = code_point;
        self
    }

    /// Accepts connections, too.
    #[must_use]
    pub fn server(mut self, options: ServerOptions) -> Self {
        self.server = Some(options);
        self
    }

    /// Mode UDP alone: the system may cut its messages into fragments, so that they have up to 65,507
    /// bytes in place of what fits a packet, and a connection to a port where nobody listens ends with
    /// [`CloseReason::Refused`](crate::CloseReason) (both on Linux). A server that offers this mode has
    /// such a socket anyhow. Connections of other modes, but for TCP, are refused.
    #[must_use]
    pub fn only_udp(mut self) -> Self {
        self.is_for_udp = true;
        self
    }

    /// Bytes of received data that all connections of BATS's own modes together may hold, 32 GiB by
    /// default: what their receive budgets sum to at most. When little is left, new connections
    /// get less than [`TransportConfig::receive_budget`](crate::TransportConfig), down to 2.75 MiB,
    /// and then none begins.
    #[must_use]
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.memory_budget = Some(bytes);
        self
    }

    /// Opens the socket and starts the I/O thread.
    ///
    /// # Errors
    /// The address is in use or not ours, the identity is unusable, or the system is out of
    /// threads or files.
    pub fn start(self) -> Result<Endpoint, StartError> {
        if self.socket.dscp > MAX_DSCP {
            let text = format!("{} is no DSCP: 0 to {MAX_DSCP} are", self.socket.dscp);
            return Err(StartError::Configuration(text));
        }
        let stranger_budget = self.server.as_ref().and_then(ServerOptions::strangers);
        let (server, extras) = self.server.map(ServerOptions::into_config).unzip();
        let Extras { wish, has_datagrams } = extras.unwrap_or_default();
        let defaults = EndpointConfig::default();
        let config = EndpointConfig {
            security: Security::Tls,
            server,
            memory_budget: self.memory_budget.unwrap_or(defaults.memory_budget),
        };
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| StartError::Thread(io::Error::other(error)))?;
        let unusable =
            |error: bats_proto::ConnectError| StartError::Configuration(error.to_string());
        if let Some(server) = &config.server {
            server.transport.check_closed().map_err(unusable)?;
        }
        let over_tcp = match &config.server {
            Some(server) if offers(server, Mode::Tcp) => {
                Some((SecuredServer::new(server).map_err(unusable)?, server.clone()))
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
            Quic::new(clock, seed, server, has_datagrams, stranger_budget).map_err(unusable)?
        };
        #[cfg(not(feature = "quic"))]
        if config.server.as_ref().is_some_and(|server| offers(server, Mode::Quic)) {
            let text = "mode 12 (QUIC) is not in this build: the feature `quic` is off";
            return Err(StartError::Configuration(text.to_owned()));
        }
        if has_datagrams && !config.server.as_ref().is_some_and(|server| offers(server, Mode::Quic))
        {
            return Err(StartError::Configuration(DATAGRAMS_OF_QUIC.to_owned()));
        }
        let over_udp = config.server.as_ref().filter(|server| offers(server, Mode::Udp));
        if over_udp.is_some_and(|server| {
            Mode::ALL.into_iter().any(|mode| mode != Mode::Udp && offers(server, mode))
        }) {
            let text = "mode 11 (UDP) has no handshake to tell others by: offer it alone";
            return Err(StartError::Configuration(text.to_owned()));
        }
        if over_udp.is_some() && wish.is_some() {
            return Err(StartError::Configuration(NOTHING_TO_AGREE_BY.to_owned()));
        }
        if self.is_for_udp && config.server.is_some() && over_udp.is_none() {
            let text = "an endpoint for mode 11 (UDP) alone cannot serve another";
            return Err(StartError::Configuration(text.to_owned()));
        }
        let udp = Udp::new(over_udp, self.is_for_udp);
        let is_plain = udp.is_alone();
        let packets = bats_proto::Endpoint::new(config, seed).map_err(unusable)?;
        let (mut socket, listener) = bind(self.address, &self.socket, over_tcp)?;
        let failed = |source| StartError::Bind { address: asked_for(self.address), source };
        if is_plain {
            socket.make_plain().map_err(failed)?;
        }
        let local_addr = socket.local_addr().map_err(failed)?;
        let poller = Arc::new(Poller::new().map_err(StartError::Thread)?);
        // A port that is listened at cannot be where connections begin.
        let tcp_from = self.address.map(|address| match listener {
            Some(_) => SocketAddr::new(address.ip(), 0),
            None => address,
        });
        let tcp = Tcp::new(poller.clone(), listener, (tcp_from, self.socket.clone()))
            .map_err(StartError::Thread)?;
        let carriers = Transports::new(
            packets,
            tcp,
            udp,
            #[cfg(feature = "quic")]
            quic,
        );
        let shared = Shared::new(carriers, (wish, stranger_budget), poller, clock, local_addr)
            .map_err(StartError::Thread)?;
        let endpoint = Endpoint::new(shared.clone());
        driver::start(shared, socket).map_err(StartError::Thread)?;
        Ok(endpoint)
    }
}

/// Mode 11 has no handshake.
const EARLY_ARE_PLAIN: &str =
    "early messages leave before the ends can agree on compression: leave one of the two out";
const NOTHING_TO_AGREE_BY: &str = "mode 11 (UDP) has no handshake to agree on compression by";

/// Ports tried until one is free for UDP and for TCP.
const PORT_TRIES: usize = 32;

fn offers(server: &ServerConfig, mode: Mode) -> bool {
    server.transport.mode == mode || server.transport.also_accepted.contains(&mode)
}

fn asked_for(address: Option<SocketAddr>) -> SocketAddr {
    address.unwrap_or_else(|| ([0, 0, 0, 0], 0).into())
}

/// The UDP socket, and the TCP socket of the same address where one is wanted.
fn bind(
    address: Option<SocketAddr>,
    options: &SocketOptions,
    over_tcp: Option<(SecuredServer, ServerConfig)>,
) -> Result<(Socket, Option<Listener>), StartError> {
    let mut tries = PORT_TRIES;
    loop {
        let socket = match address {
            Some(address) => Socket::bind(address, options),
            None => Socket::bind_any(options),
        };
        let failed = |source| StartError::Bind { address: asked_for(address), source };
        let socket = socket.map_err(failed)?;
        let Some((server, config)) = &over_tcp else { return Ok((socket, None)) };
        let local = socket.local_addr().map_err(failed)?;
        match Listener::bind(local, options, server.clone(), config) {
            Ok(listener) => return Ok((socket, Some(listener))),
            // Somebody else has this port for TCP; the next one may be free.
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && asked_for(address).port() == 0
                    && tries > 1 =>
            {
                tries -= 1;
            }
            Err(source) => return Err(StartError::BindTcp { address: local, source }),
        }
    }
}

/// One UDP socket with its I/O thread; begins and accepts connections. Clones are the same
/// endpoint. It lives on until its connections are dropped, too.
#[derive(Debug)]
pub struct Endpoint {
    shared: Arc<Shared>,
}

impl Endpoint {
    /// Begins the configuration of an endpoint.
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

    /// The socket's address. An endpoint that is bound to all addresses shows `0.0.0.0` or `[::]`.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.local_addr
    }

    /// Connects to a server; `server_name` is the name that its certificate must bear if
    /// [`Trust`](crate::Trust) goes by authorities.
    ///
    /// # Errors
    /// See [`ConnectError`]. Dropping the future before it is done gives the connection up.
    pub async fn connect(
        &self,
        remote: SocketAddr,
        server_name: &str,
        options: ClientOptions,
    ) -> Result<Connection, ConnectError> {
        let (connection, _) = self.begin(remote, server_name, options, VecDeque::new())?;
        poll_fn(|context| connection.poll_established(context)).await?;
        Ok(connection)
    }

    /// As [`connect`](Self::connect), with messages that travel with the first flight if
    /// [`ClientOptions::early_data`] allows it and the server took early data at an earlier visit: up
    /// to 32 messages and 7 kB. Others follow when the connection is established, in their order.
    /// [`ConnectionStats::early_messages_accepted`](crate::ConnectionStats::early_messages_accepted)
    /// tells how many the server had by then.
    ///
    /// # Errors
    /// See [`ConnectError`]; [`ConnectError::Configuration`] for a message longer than the server
    /// accepts, and where compression is asked for. Dropping the future before it is done gives the connection up, but not what has
    /// arrived early.
    pub async fn connect_early<M: Into<Bytes>>(
        &self,
        remote: SocketAddr,
        server_name: &str,
        options: ClientOptions,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Connection, ConnectError> {
        let messages = messages.into_iter().map(Into::into).collect();
        let (connection, others) = self.begin(remote, server_name, options, messages)?;
        poll_fn(|context| connection.poll_established(context)).await?;
        for message in others {
            connection.send(message).await.map_err(|error| match error {
                SendError::Closed(reason) => ConnectError::Closed(reason),
                other => ConnectError::Configuration(other.to_string()),
            })?;
        }
        Ok(connection)
    }

    /// Begins a connection; with the messages that did not go with the first flight.
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
            let (config, Extras { wish, has_datagrams }) = options.into_config();
            if wish.is_some() && config.transport.mode == Mode::Udp {
                return Err(ConnectError::Configuration(NOTHING_TO_AGREE_BY.to_owned()));
            }
            if wish.is_some() && !messages.is_empty() {
                return Err(ConnectError::Configuration(EARLY_ARE_PLAIN.to_owned()));
            }
            let handle = core
                .endpoint
                .connect(clock.now(), remote, server_name, config, has_datagrams)
                .map_err(|error| match error {
                    bats_proto::ConnectError::ServerName(name) => ConnectError::ServerName(name),
                    bats_proto::ConnectError::Memory => ConnectError::Memory,
                    other => ConnectError::Configuration(other.to_string()),
                })?;
            core.slots.insert(handle, Slot { is_held: true, wish, ..Slot::default() });
            // Before the first flight leaves, so that they leave with it.
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

    /// The next connection that a peer has established.
    ///
    /// # Errors
    /// [`ConnectError::EndpointClosed`] after [`shut_down`](Self::shut_down).
    pub async fn accept(&self) -> Result<Connection, ConnectError> {
        poll_fn(|context| {
            self.shared.call(|core, _| {
                // One that has ended meanwhile still has what its peer sent.
                if let Some((handle, remote)) = core.accepted.pop_front() {
                    let shared = self.shared.clone();
                    return Poll::Ready(Ok(Connection::new(shared, core, handle, remote)));
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

    /// Accepts no more connections; those there are live on.
    pub fn stop_accepting(&self) {
        self.shared.call(|core, _| {
            core.refuses_new = true;
            core.endpoint.stop_listening();
        });
    }

    /// Closes all connections with an application's code and text, and begins and accepts no more.
    /// [`idle`](Self::idle) tells when the peers have been told.
    pub fn shut_down(&self, code: u64, reason: &str) {
        self.shared.shut_down(code, reason);
    }

    /// Is done when there are no connections any more, not even ones that still answer late
    /// packets of their peers. A program that ends earlier leaves its peers to their time-outs.
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

    /// Closes everything like [`shut_down`](Self::shut_down), tells each peer once and gives the
    /// socket up, without [`idle`](Self::idle)'s patience for peers that missed it. Done when the
    /// local address is free again.
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

    /// Counters of what belongs to no connection.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.shared.lock().endpoint.endpoint_stats()
    }
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
