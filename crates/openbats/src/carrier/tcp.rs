//! Mode 10: connections over the kernel's TCP, with TLS 1.3.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bats_proto::stream::{Secured, SecuredServer, Session};
use bats_proto::{
    ClientConfig, CloseReason, ConnectError, ConnectionStats, Event, SendError, ServerConfig,
    Timestamp,
};
use bytes::Bytes;
use socket2::{Domain, Protocol, Socket, Type};

use super::half_open::HalfOpen;
#[cfg(target_os = "linux")]
use super::kernel::Kernel;
use super::lost;
use crate::driver::{Interest, Poller, SocketOptions, canonical};
use crate::log_limit::LogLimit;

/// Bytes read at a time.
const READ: usize = 64 << 10;
/// Reads of one connection before the others get their turn.
const READS: usize = 8;
/// Sealed bytes that wait for the socket before more are sealed.
const WRITE: usize = 256 << 10;
/// Connections taken in one turn.
const ACCEPTS: usize = 64;
/// Rest after the system refused to accept, for want of files for instance.
const AFTER_ERROR: Duration = Duration::from_millis(100);
/// How long the last words may take to be written, and the peer's end to come.
const FAREWELL: Duration = Duration::from_secs(1);
/// Connections that wait in the kernel.
const BACKLOG: i32 = 1_024;
const LISTENER: u64 = 0;

/// A bound TCP socket with what its connections have in common.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    server: SecuredServer,
    max_connections: usize,
}

impl Listener {
    /// Listens at an address that the endpoint's UDP socket has, too.
    pub(crate) fn bind(
        address: SocketAddr,
        options: &SocketOptions,
        server: SecuredServer,
        config: &ServerConfig,
    ) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        options.apply(&socket, address.is_ipv6())?;
        // Connections that are over keep the port for minutes otherwise.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket: socket.into(), server, max_connections: config.max_connections })
    }
}

/// How far the goodbye of a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goodbye {
    NotYet,
    /// Until this time the last words may be written.
    Writing(Timestamp),
    /// They are; the peer's end is waited for, so that the system does not take them back.
    Waiting(Timestamp),
}

#[derive(Debug)]
struct Connection {
    socket: TcpStream,
    remote: SocketAddr,
    secured: Secured,
    is_server: bool,
    is_connecting: bool,
    /// Counted among those whose handshake is not done.
    is_counted: bool,
    interest: Interest,
    /// Sealed bytes, those before `written` are gone.
    sealed: Vec<u8>,
    written: usize,
    goodbye: Goodbye,
    /// Neither direction works any more.
    is_broken: bool,
    armed: Option<Timestamp>,
}

impl Connection {
    fn is_half_open(&self) -> bool {
        let session = self.secured.session();
        self.is_server && !session.is_open() && !session.is_over()
    }

    fn break_off(&mut self, error: &io::Error) {
        self.is_broken = true;
        let is_young = !self.secured.session().is_open() && self.secured.bytes().0 == 0;
        match (is_young, error.kind()) {
            // Closed before a word: as good as a refusal.
            (true, ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof) => {
                self.secured.session_mut().end(CloseReason::Refused);
            }
            (true, _) => self.secured.session_mut().end(lost(error)),
            _ => self.secured.on_lost(&error.to_string()),
        }
    }

    /// Takes what has come in.
    fn read(&mut self, now: Timestamp, buffer: &mut [u8]) {
        for _ in 0..READS {
            if self.is_broken {
                return;
            }
            match self.socket.read(buffer) {
                Ok(0) => {
                    let error =
                        io::Error::new(ErrorKind::UnexpectedEof, "the peer ended the stream");
                    return self.break_off(&error);
                }
                // After a goodbye this is read only for its end.
                Ok(len) => self.secured.receive(now, &buffer[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.break_off(&error),
            }
        }
    }

    /// Writes what the system takes.
    fn write(&mut self, now: Timestamp) {
        if self.is_connecting || self.is_broken {
            return;
        }
        loop {
            if self.written == self.sealed.len() {
                self.sealed.clear();
                self.written = 0;
                self.secured.transmit(now, &mut self.sealed, WRITE);
                if self.sealed.is_empty() {
                    return;
                }
            }
            match self.socket.write(&self.sealed[self.written..]) {
                Ok(0) => return,
                Ok(len) => self.written += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.hear_out(now, &error),
            }
        }
    }

    /// The peer takes nothing more; what it has said before that still counts.
    fn hear_out(&mut self, now: Timestamp, error: &io::Error) {
        let mut buffer = [0; 16 << 10];
        while !self.secured.session().is_over()
            && let Ok(len @ 1..) = self.socket.read(&mut buffer)
        {
            self.secured.receive(now, &buffer[..len]);
        }
        self.break_off(error);
    }

    /// Brings the goodbye forward; whether nothing is left of the connection.
    fn is_gone(&mut self, now: Timestamp) -> bool {
        if !self.secured.session().is_over() {
            return false;
        }
        if self.is_broken || self.is_connecting {
            return true;
        }
        if self.goodbye == Goodbye::NotYet {
            self.goodbye = Goodbye::Writing(now + FAREWELL);
        }
        if let Goodbye::Writing(until) = self.goodbye
            && self.written == self.sealed.len()
        {
            let _ = self.socket.shutdown(Shutdown::Write);
            self.goodbye = Goodbye::Waiting(until);
        }
        match self.goodbye {
            Goodbye::NotYet => false,
            Goodbye::Writing(until) | Goodbye::Waiting(until) => now >= until,
        }
    }

    fn next_timeout(&self) -> Option<Timestamp> {
        match self.goodbye {
            Goodbye::NotYet => self.secured.session().next_timeout(),
            Goodbye::Writing(until) | Goodbye::Waiting(until) => Some(until),
        }
    }
}

/// The TCP connections of an endpoint. [`handle`](Self::handle), then [`poll`](Self::poll) until it
/// answers with a time.
#[derive(Debug)]
pub(crate) struct Tcp {
    poller: Arc<Poller>,
    listener: Option<Listener>,
    /// The listener is watched.
    is_listening: bool,
    /// No look at the listener before this.
    rests_until: Option<Timestamp>,
    /// What connections of this end are bound to.
    local: Option<SocketAddr>,
    options: SocketOptions,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    dirty: BTreeSet<u64>,
    timers: BTreeSet<(Timestamp, u64)>,
    half_open: HalfOpen,
    buffer: Vec<u8>,
    ready: Vec<u64>,
    /// Tells of round-trip times and windows, where it does.
    #[cfg(target_os = "linux")]
    kernel: Option<Kernel>,
    handshakes_started: u64,
    refused: u64,
    /// Of connections that cannot be taken.
    log: LogLimit,
}

impl Tcp {
    /// `local` is what connections of this end are bound to; port 0 for any.
    pub(crate) fn new(
        poller: Arc<Poller>,
        listener: Option<Listener>,
        (local, options): (Option<SocketAddr>, SocketOptions),
    ) -> io::Result<Self> {
        let mut tcp = Self {
            poller,
            listener,
            is_listening: false,
            rests_until: None,
            local,
            options,
            connections: BTreeMap::new(),
            next: LISTENER + 1,
            dirty: BTreeSet::new(),
            timers: BTreeSet::new(),
            half_open: HalfOpen::default(),
            buffer: Vec::new(),
            ready: Vec::new(),
            #[cfg(target_os = "linux")]
            kernel: None,
            handshakes_started: 0,
            refused: 0,
            log: LogLimit::default(),
        };
        tcp.listen(true)?;
        Ok(tcp)
    }

    fn listen(&mut self, wanted: bool) -> io::Result<()> {
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

    /// Frees the port; who connects from now on is refused by the system.
    pub(crate) fn stop_listening(&mut self) {
        // Closing a socket ends its being watched.
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
        let mut secured = Secured::client(now, server_name, config)?;
        let unusable = |error: io::Error| {
            ConnectError::Configuration(format!("no TCP socket for {remote}: {error}"))
        };
        let (socket, begun) = self.begin(remote).map_err(unusable)?;
        let is_broken = begun.is_err();
        if let Err(error) = begun {
            secured.session_mut().end(lost(&error));
        }
        let connection = Connection {
            socket,
            remote,
            secured,
            is_server: false,
            is_connecting: true,
            is_counted: false,
            interest: Interest::ReadWrite,
            sealed: Vec::new(),
            written: 0,
            goodbye: Goodbye::NotYet,
            is_broken,
            armed: None,
        };
        self.insert(connection).map_err(unusable)
    }

    /// A socket, and whether it could begin to connect: an unreachable network is no fault of the
    /// configuration.
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
        if self.kernel.is_none() {
            // Without it the figures lack what only the kernel knows.
            self.kernel = Kernel::open().ok();
        }
        if connection.is_counted {
            self.half_open.insert(connection.remote.ip());
        }
        self.connections.insert(id, connection);
        self.dirty.insert(id);
        Ok(id)
    }

    /// Takes what the sockets have and what time brings.
    pub(crate) fn handle(&mut self, now: Timestamp) {
        while let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.armed = None;
                connection.secured.session_mut().handle_timeout(now);
                self.dirty.insert(id);
            }
        }
        if self.rests_until.is_some_and(|until| until <= now) {
            self.rests_until = None;
        }
        if self.listener.is_none() && self.connections.is_empty() {
            return;
        }
        let mut ready = std::mem::take(&mut self.ready);
        if let Err(error) = self.poller.ready(&mut ready) {
            tracing::error!(%error, "TCP sockets are not heard");
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
                Ok(Some(error)) | Err(error) => return connection.break_off(&error),
            }
        }
        self.buffer.resize(READ, 0);
        connection.read(now, &mut self.buffer);
    }

    fn accept(&mut self, now: Timestamp) {
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else { return };
            if self.half_open.is_full() {
                return;
            }
            let (socket, remote) = match listener.socket.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The peer has gone meanwhile.
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
                    self.rests_until = Some(now + AFTER_ERROR);
                    return;
                }
            };
            // Left in the kernel's queue it would hold up those behind it.
            let is_crowded = self.half_open.is_crowded(remote.ip());
            if is_crowded || self.connections.len() >= listener.max_connections {
                self.refused += 1;
                continue;
            }
            let prepared = socket
                .set_nonblocking(true)
                .and_then(|()| socket.set_nodelay(true))
                .map_err(|error| error.to_string());
            let secured = prepared.and_then(|()| {
                Secured::server(now, &listener.server).map_err(|error| error.to_string())
            });
            let secured = match secured {
                Ok(secured) => secured,
                Err(error) => {
                    if let Some(others) = self.log.allow(now) {
                        tracing::debug!(error, others, "a TCP connection is not accepted");
                    }
                    continue;
                }
            };
            self.handshakes_started += 1;
            let connection = Connection {
                socket,
                remote: canonical(remote),
                secured,
                is_server: true,
                is_connecting: false,
                is_counted: true,
                interest: Interest::Read,
                sealed: Vec::new(),
                written: 0,
                goodbye: Goodbye::NotYet,
                is_broken: false,
                armed: None,
            };
            if let Err(error) = self.insert(connection)
                && let Some(others) = self.log.allow(now)
            {
                tracing::warn!(%error, others, "a TCP connection cannot be heard");
            }
        }
    }

    /// The next event, or when to come again.
    pub(crate) fn poll(&mut self, now: Timestamp) -> Result<(u64, Event), Option<Timestamp>> {
        while let Some(&id) = self.dirty.first() {
            let Some(connection) = self.connections.get_mut(&id) else {
                self.dirty.remove(&id);
                continue;
            };
            if let Some(event) = connection.secured.pop_event() {
                return Ok((id, event));
            }
            connection.write(now);
            if let Some(event) = connection.secured.pop_event() {
                return Ok((id, event));
            }
            self.dirty.remove(&id);
            self.settle(now, id);
        }
        let wanted = !self.half_open.is_full() && self.rests_until.is_none();
        if let Err(error) = self.listen(wanted) {
            tracing::error!(%error, "the TCP listener is not heard");
        }
        Err([self.timers.first().map(|&(at, _)| at), self.rests_until].into_iter().flatten().min())
    }

    fn settle(&mut self, now: Timestamp, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.is_counted && !connection.is_half_open() {
            connection.is_counted = false;
            self.half_open.remove(connection.remote.ip());
        }
        let is_gone = connection.is_gone(now);
        let next = if is_gone { None } else { connection.next_timeout() };
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
            return;
        }
        let is_full = connection.written < connection.sealed.len();
        let interest =
            if is_full || connection.is_connecting { Interest::ReadWrite } else { Interest::Read };
        if interest != connection.interest {
            match self.poller.change(&connection.socket, id, interest) {
                Ok(()) => connection.interest = interest,
                Err(error) => {
                    connection.break_off(&error);
                    self.dirty.insert(id);
                }
            }
        }
    }

    fn with(&mut self, id: u64) -> Option<&mut Session> {
        let connection = self.connections.get_mut(&id)?;
        self.dirty.insert(id);
        Some(connection.secured.session_mut())
    }

    pub(crate) fn send(&mut self, id: u64, message: Bytes) -> Result<(), SendError> {
        self.with(id).ok_or(SendError::Closed)?.send(message)
    }

    pub(crate) fn finish(&mut self, id: u64) -> Result<(), SendError> {
        self.with(id).ok_or(SendError::Closed)?.finish()
    }

    pub(crate) fn recv(&mut self, id: u64) -> Option<Bytes> {
        self.with(id)?.recv()
    }

    pub(crate) fn close(&mut self, id: u64, code: u64, reason: &str) {
        if let Some(session) = self.with(id) {
            session.close(code, reason);
        }
    }

    pub(crate) fn session(&self, id: u64) -> Option<&Session> {
        self.connections.get(&id).map(|connection| connection.secured.session())
    }

    pub(crate) fn stats(&self, now: Timestamp, id: u64) -> Option<ConnectionStats> {
        let connection = self.connections.get(&id)?;
        let (bytes_received, bytes_sent) = connection.secured.bytes();
        let stats = connection.secured.session().stats(now);
        let mut stats = ConnectionStats { bytes_received, bytes_sent, ..stats };
        #[cfg(target_os = "linux")]
        if let Some(kernel) = &self.kernel
            && !connection.is_broken
        {
            kernel.complete(&connection.socket, &mut stats);
        }
        Some(stats)
    }

    pub(crate) fn remote(&self, id: u64) -> Option<SocketAddr> {
        Some(self.connections.get(&id)?.remote)
    }

    pub(crate) fn local(&self, id: u64) -> Option<SocketAddr> {
        self.connections.get(&id)?.socket.local_addr().ok().map(canonical)
    }

    /// Closes every socket.
    pub(crate) fn abandon(&mut self) {
        self.stop_listening();
        self.connections.clear();
    }

    pub(crate) fn peer_fingerprint(&self, id: u64) -> Option<[u8; 32]> {
        self.connections.get(&id)?.secured.peer_fingerprint()
    }

    /// Handshakes begun by peers, and connections refused for want of room.
    pub(crate) fn counters(&self) -> (u64, u64) {
        (self.handshakes_started, self.refused)
    }

    pub(crate) fn connection_count(&self) -> usize {
        self.connections.len()
    }
}
