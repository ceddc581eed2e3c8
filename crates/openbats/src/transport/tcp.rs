//! Mode 10: connections over the kernel's TCP, with TLS 1.3.

#[cfg(test)]
mod changed_records_tests;
mod connection;
#[cfg(test)]
mod kernel_memory_tests;
#[cfg(test)]
mod stuck_timers_tests;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bats_proto::stream::{Session, TlsStream, TlsStreamServer};
use bats_proto::{
    ClientConfig, ConnectError, ConnectionStats, Mode, PeerLimits, SendError, ServerConfig,
    Timestamp,
};
use bats_types::StuckTimers;
use bytes::Bytes;
use socket2::{Domain, Protocol, Socket, Type};

use super::binding::{Output, Transport};
use super::half_open::NetworkCounts;
use super::lost;
#[cfg(target_os = "linux")]
use super::tcp_info::SockDiag;
use crate::driver::{Interest, LazyPoller, SocketOptions, canonical};
use crate::log_limit::LogLimit;
use connection::{CloseState, Connection};
use waiting::Waiting;

/// Size of the read buffer in bytes.
const READ_BUFFER: usize = 64 << 10;
/// Connections accepted per iteration.
const MAX_ACCEPTS: usize = 64;
/// Pause of accepting after an error of the system, for example no free file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 1_024;
const LISTENER: u64 = 0;

/// A listening TCP socket, and the settings that its connections share.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    server: TlsStreamServer,
    max_connections: usize,
}

impl Listener {
    /// Listens on the address of the endpoint's UDP socket.
    pub(crate) fn bind(
        address: SocketAddr,
        options: &SocketOptions,
        server: TlsStreamServer,
        config: &ServerConfig,
    ) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        options.apply(&socket, address.is_ipv6())?;
        // Otherwise connections in TIME-WAIT block the port for minutes.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket: socket.into(), server, max_connections: config.max_connections })
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// From now on sockets that share their port can listen at this address.
    pub(crate) fn share_port(&self) -> io::Result<()> {
        Ok(rustix::net::sockopt::set_socket_reuseport(&self.socket, true)?)
    }
}

/// Counters of an endpoint for this mode.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) handshakes_started: u64,
    pub(super) refused: u64,
    /// Connections closed because a timer stayed due.
    pub(super) timers_stuck: u64,
}

/// The TCP connections of an endpoint. Call [`handle`](Self::handle), then [`poll`](Self::poll)
/// until it returns a timeout.
#[derive(Debug)]
pub(crate) struct Tcp {
    poller: Arc<LazyPoller>,
    listener: Option<Listener>,
    /// The poller includes the listener.
    is_listening: bool,
    /// No connections are accepted before this time.
    accept_paused_until: Option<Timestamp>,
    /// Local address of outgoing connections.
    local: Option<SocketAddr>,
    options: SocketOptions,
    /// Boxed, because a node of the map has room for several.
    connections: BTreeMap<u64, Box<Connection>>,
    next: u64,
    dirty: BTreeSet<u64>,
    timers: BTreeSet<(Timestamp, u64)>,
    stuck_timers: StuckTimers<u64>,
    half_open: NetworkCounts,
    /// Accepted connections of networks that have too many half-open ones.
    waiting: Waiting<(TcpStream, SocketAddr)>,
    /// A half-open connection has ended since the waiting ones were tried.
    has_room: bool,
    buffer: Vec<u8>,
    ready: Vec<u64>,
    /// Source of RTT and congestion window, if available.
    #[cfg(target_os = "linux")]
    sock_diag: Option<SockDiag>,
    counters: Counters,
    /// Limit for log lines about connections that cannot be accepted.
    log: LogLimit,
}

impl Tcp {
    /// `local` is the local address of outgoing connections; port 0 for any port.
    pub(crate) fn new(
        poller: Arc<LazyPoller>,
        listener: Option<Listener>,
        (local, options): (Option<SocketAddr>, SocketOptions),
    ) -> io::Result<Self> {
        let mut tcp = Self {
            poller,
            listener,
            is_listening: false,
            accept_paused_until: None,
            local,
            options,
            connections: BTreeMap::new(),
            next: LISTENER + 1,
            dirty: BTreeSet::new(),
            timers: BTreeSet::new(),
            stuck_timers: StuckTimers::default(),
            half_open: NetworkCounts::half_open(),
            waiting: Waiting::new(NetworkCounts::waiting()),
            has_room: false,
            buffer: Vec::new(),
            ready: Vec::new(),
            #[cfg(target_os = "linux")]
            sock_diag: None,
            counters: Counters::default(),
            log: LogLimit::default(),
        };
        tcp.watch_listener(true)?;
        Ok(tcp)
    }

    fn watch_listener(&mut self, wanted: bool) -> io::Result<()> {
        if let Some(listener) = &self.listener
            && self.is_listening != wanted
        {
            if wanted {
                self.poller.add(&listener.socket, LISTENER, Interest::Read)?;
            } else {
                self.poller.remove(&listener.socket);
            }
            self.is_listening = wanted;
        }
        Ok(())
    }

    /// Closes the listener; the system refuses further connections.
    pub(crate) fn stop_listening(&mut self) {
        self.waiting.clear();
        // Closing a socket removes it from the poller.
        self.listener = None;
        self.is_listening = false;
    }

    pub(crate) fn connect(
        &mut self,
        now: Timestamp,
        remote: SocketAddr,
        server_name: &str,
        config: &ClientConfig,
    ) -> Result<u64, ConnectError> {
        let mut tls = TlsStream::client(now, server_name, config)?;
        let unusable = |error: io::Error| {
            ConnectError::Configuration(format!("no TCP socket for {remote}: {error}"))
        };
        let (socket, begun) = self.begin(remote).map_err(unusable)?;
        let is_broken = begun.is_err();
        if let Err(error) = begun {
            tls.session_mut().end(lost(&error));
        }
        let connection = Connection {
            socket,
            remote,
            tls,
            is_server: false,
            is_connecting: true,
            is_counted: false,
            interest: Interest::ReadWrite,
            sealed: Vec::new(),
            written: 0,
            close_state: CloseState::Open,
            is_broken,
            paused_until: None,
            armed: None,
            #[cfg(test)]
            stuck: None,
        };
        self.insert(connection).map_err(unusable)
    }

    /// Creates a socket and starts to connect. The inner result is the error of the connection
    /// attempt: an unreachable network is not an error of the configuration.
    fn begin(&self, remote: SocketAddr) -> io::Result<(TcpStream, io::Result<()>)> {
        let socket = Socket::new(Domain::for_address(remote), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        self.options.apply(&socket, remote.is_ipv6())?;
        if let Some(mut local) = self.local {
            if local.ip().is_unspecified() {
                let any: IpAddr = match remote {
                    SocketAddr::V4(_) => [0, 0, 0, 0].into(),
                    SocketAddr::V6(_) => [0u16; 8].into(),
                };
                local.set_ip(any);
            }
            socket.set_reuse_address(true)?;
            socket.bind(&local.into())?;
        }
        let begun = match socket.connect(&remote.into()) {
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) =>
            {
                Ok(())
            }
            other => other,
        };
        Ok((socket.into(), begun))
    }

    fn insert(&mut self, connection: Connection) -> io::Result<u64> {
        let id = self.next;
        self.poller.add(&connection.socket, id, connection.interest)?;
        self.next += 1;
        #[cfg(target_os = "linux")]
        if self.sock_diag.is_none() {
            // Without it the statistics lack the values of the kernel.
            self.sock_diag = SockDiag::open().ok();
        }
        if connection.is_counted {
            self.half_open.insert(connection.remote.ip());
        }
        self.connections.insert(id, Box::new(connection));
        self.dirty.insert(id);
        Ok(id)
    }

    /// Processes expired timers.
    pub(crate) fn handle_timers(&mut self, now: Timestamp) {
        while let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.armed = None;
                connection.handle_timeout(now);
                self.stuck_timers.on_handled(id, now);
                self.dirty.insert(id);
            }
        }
        if self.accept_paused_until.is_some_and(|until| until <= now) {
            self.accept_paused_until = None;
        }
    }

    /// Serves the sockets that are ready. The I/O thread waits for them, so that turns of other
    /// threads need no system call for them.
    pub(crate) fn poll_sockets(&mut self, now: Timestamp) {
        if self.listener.is_none() && self.connections.is_empty() {
            return;
        }
        let mut ready = std::mem::take(&mut self.ready);
        if let Err(error) = self.poller.ready(&mut ready) {
            tracing::error!(%error, "polling the TCP sockets failed");
        }
        for id in ready.drain(..) {
            if id == LISTENER {
                self.accept(now);
            } else {
                self.on_ready(now, id);
            }
        }
        self.ready = ready;
    }

    fn on_ready(&mut self, now: Timestamp, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        self.dirty.insert(id);
        if connection.is_connecting {
            match connection.socket.take_error() {
                Ok(None) if connection.socket.peer_addr().is_ok() => {
                    connection.is_connecting = false
                }
                Ok(None) => return,
                Ok(Some(error)) | Err(error) => return connection.fail(&error),
            }
        }
        self.buffer.resize(READ_BUFFER, 0);
        connection.read(now, &mut self.buffer);
    }

    fn accept(&mut self, now: Timestamp) {
        for _ in 0..MAX_ACCEPTS {
            let Some(listener) = &self.listener else { return };
            if self.half_open.is_full() {
                return;
            }
            let (socket, remote) = match listener.socket.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The peer has closed the connection.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                    ) =>
                {
                    continue;
                }
                Err(error) => {
                    if let Some(others) = self.log.allow(now) {
                        tracing::warn!(%error, others, "cannot accept over TCP");
                    }
                    self.accept_paused_until = Some(now + ACCEPT_RETRY_DELAY);
                    return;
                }
            };
            let open = self.connections.len() + self.waiting.len();
            if open >= listener.max_connections {
                self.counters.refused += 1;
            } else if !self.half_open.is_network_full(remote.ip()) {
                self.start_server(now, socket, remote);
            } else if !self.waiting.push(remote.ip(), (socket, remote)) {
                // One that waits does so here: in the kernel's queue it would block those behind it.
                self.counters.refused += 1;
            }
        }
    }

    /// Starts the handshakes of waiting connections whose network has fewer half-open ones now.
    fn start_waiting(&mut self, now: Timestamp) {
        while let Some((socket, remote)) = self.waiting.pop(&self.half_open) {
            self.start_server(now, socket, remote);
        }
    }

    fn start_server(&mut self, now: Timestamp, socket: TcpStream, remote: SocketAddr) {
        let Some(listener) = &self.listener else { return };
        let prepared = socket
            .set_nonblocking(true)
            .and_then(|()| socket.set_nodelay(true))
            .map_err(|error| error.to_string());
        let tls = prepared.and_then(|()| {
            TlsStream::server(now, &listener.server).map_err(|error| error.to_string())
        });
        let tls = match tls {
            Ok(tls) => tls,
            Err(error) => {
                if let Some(others) = self.log.allow(now) {
                    tracing::debug!(error, others, "TCP connection not accepted");
                }
                return;
            }
        };
        self.counters.handshakes_started += 1;
        let connection = Connection {
            socket,
            remote: canonical(remote),
            tls,
            is_server: true,
            is_connecting: false,
            is_counted: true,
            interest: Interest::Read,
            sealed: Vec::new(),
            written: 0,
            close_state: CloseState::Open,
            is_broken: false,
            paused_until: None,
            armed: None,
            #[cfg(test)]
            stuck: None,
        };
        if let Err(error) = self.insert(connection)
            && let Some(others) = self.log.allow(now)
        {
            tracing::warn!(%error, others, "polling a TCP connection failed");
        }
    }

    fn update_timer_and_interest(&mut self, now: Timestamp, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.is_counted && !connection.is_half_open() {
            connection.is_counted = false;
            self.half_open.remove(connection.remote.ip());
            self.waiting.on_room(connection.remote.ip());
            self.has_room = true;
        }
        let is_closed = connection.advance_close(now);
        let next = if is_closed { None } else { connection.next_timeout() };
        let is_stuck = self.stuck_timers.is_stuck(id, next);
        if is_stuck && !connection.tls.session().is_closed() {
            connection.tls.session_mut().on_stuck_timer();
            self.counters.timers_stuck += 1;
            self.dirty.insert(id);
            return;
        }
        let is_gone = is_closed || is_stuck;
        let next = next.filter(|_| !is_gone);
        if connection.armed != next {
            if let Some(at) = connection.armed {
                self.timers.remove(&(at, id));
            }
            if let Some(at) = next {
                self.timers.insert((at, id));
            }
            connection.armed = next;
        }
        if is_gone {
            self.connections.remove(&id);
            self.stuck_timers.forget(id);
            return;
        }
        let interest = connection.wanted();
        if interest != connection.interest {
            if interest == Interest::Paused
                && let Some(others) = self.log.allow(now)
            {
                tracing::warn!(others, "no kernel memory to send or receive over TCP");
            }
            match self.poller.change(&connection.socket, id, interest) {
                Ok(()) => connection.interest = interest,
                Err(error) => {
                    connection.fail(&error);
                    self.dirty.insert(id);
                }
            }
        }
    }

    fn session_mut(&mut self, id: u64) -> Option<&mut Session> {
        let connection = self.connections.get_mut(&id)?;
        self.dirty.insert(id);
        Some(connection.tls.session_mut())
    }

    fn session(&self, id: u64) -> Option<&Session> {
        self.connections.get(&id).map(|connection| connection.tls.session())
    }

    /// Closes all sockets.
    pub(crate) fn abandon(&mut self) {
        self.stop_listening();
        self.connections.clear();
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }
}

impl Transport for Tcp {
    type Id = u64;

    /// Returns the next event, or the next timeout: the kernel sends the packets.
    fn poll(&mut self, now: Timestamp, _buffer: &mut Vec<u8>) -> Output<u64> {
        loop {
            while let Some(&id) = self.dirty.first() {
                let Some(connection) = self.connections.get_mut(&id) else {
                    self.dirty.remove(&id);
                    continue;
                };
                if let Some(event) = connection.tls.pop_event() {
                    return Output::Event(id, event);
                }
                connection.write(now);
                if let Some(event) = connection.tls.pop_event() {
                    return Output::Event(id, event);
                }
                self.dirty.remove(&id);
                self.update_timer_and_interest(now, id);
            }
            if !std::mem::take(&mut self.has_room) {
                break;
            }
            self.start_waiting(now);
        }
        let wanted = !self.half_open.is_full() && self.accept_paused_until.is_none();
        if let Err(error) = self.watch_listener(wanted) {
            tracing::error!(%error, "polling the TCP listener failed");
        }
        let next = self.timers.first().map(|&(at, _)| at);
        Output::Timeout(Timestamp::earlier(next, self.accept_paused_until))
    }

    /// The mode ignores deadlines, because it is reliable.
    fn send(
        &mut self,
        _now: Timestamp,
        id: u64,
        message: Bytes,
        _deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        self.session_mut(id).ok_or(SendError::Closed)?.send(message)
    }

    fn finish(&mut self, _now: Timestamp, id: u64) -> Result<(), SendError> {
        self.session_mut(id).ok_or(SendError::Closed)?.finish()
    }

    fn recv(&mut self, _now: Timestamp, id: u64) -> Option<Bytes> {
        self.session_mut(id)?.recv()
    }

    fn is_finished(&self, id: u64) -> bool {
        self.session(id).is_some_and(|session| session.is_finished())
    }

    fn is_all_acknowledged(&self, id: u64) -> bool {
        self.session(id).is_some_and(|session| session.is_all_acknowledged())
    }

    fn close(&mut self, _now: Timestamp, id: u64, code: u64, reason: &str) {
        if let Some(session) = self.session_mut(id) {
            session.close(code, reason);
        }
    }

    fn stats(&self, now: Timestamp, id: u64) -> Option<ConnectionStats> {
        let connection = self.connections.get(&id)?;
        let mut stats = connection.tls.session().stats(now);
        (stats.packets.bytes_received, stats.packets.bytes_sent) = connection.tls.bytes();
        #[cfg(target_os = "linux")]
        if let Some(sock_diag) = &self.sock_diag
            && !connection.is_broken
        {
            sock_diag.fill(&connection.socket, &mut stats);
        }
        Some(stats)
    }

    fn receive_buffer_bytes(&self, id: u64) -> usize {
        self.session(id).map_or(0, |session| session.receive_buffer_bytes())
    }

    fn remote(&self, id: u64) -> Option<SocketAddr> {
        Some(self.connections.get(&id)?.remote)
    }

    fn local(&self, id: u64) -> Option<SocketAddr> {
        self.connections.get(&id)?.socket.local_addr().ok().map(canonical)
    }

    fn mode(&self, _id: u64) -> Option<Mode> {
        Some(Mode::Tcp)
    }

    fn peer_limits(&self, id: u64) -> Option<PeerLimits> {
        self.session(id)?.peer_limits()
    }

    fn longest_datagram(&self, _id: u64) -> Option<usize> {
        None
    }

    fn peer_fingerprint(&self, id: u64) -> Option<[u8; 32]> {
        self.connections.get(&id)?.tls.peer_fingerprint()
    }

    fn connection_count(&self) -> usize {
        self.connections.len()
    }
}
