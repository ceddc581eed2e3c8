//! The modes TCP, QUIC and UDP without an I/O thread, for programs that count the instructions or the
//! memory of an endpoint. Not part of the API.

use std::net::SocketAddr;
use std::sync::Arc;

use bats_proto::stream::TlsStreamServer;
use bats_proto::{
    ClientConfig, ConnectError, ConnectionStats, EndpointConfig, EndpointStats, Event, Input, Mode,
    SendError, ServerConfig, Timestamp, Transmit,
};
use bytes::Bytes;

use crate::builder::offers;
use crate::clock::Clock;
use crate::driver::{LazyPoller, SocketOptions};
#[cfg(feature = "quic")]
use crate::transport::Quic;
use crate::transport::{Handle, Listener, Output, Tcp, Transports, Udp};

/// Identifies a connection of [`Bindings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(Handle);

/// What the caller of [`Bindings::poll`] has to do next.
#[derive(Debug)]
pub enum Step {
    /// Send the datagram in the buffer.
    Transmit(Transmit),
    /// Tell the application.
    Event(Key, Event),
    /// Wait for a datagram, a ready socket, or this time.
    Timeout(Option<Timestamp>),
}

/// All modes of an endpoint. The caller transports the datagrams of QUIC and UDP, and has the time; TCP has
/// sockets of the system, which [`handle`](Self::handle) serves with [`Input::Timeout`].
#[derive(Debug)]
pub struct Bindings {
    transports: Transports,
    tcp_address: Option<SocketAddr>,
    start: Timestamp,
}

impl Bindings {
    /// An endpoint. A server that offers TCP listens at a free port of 127.0.0.1. `has_datagrams`: messages of
    /// QUIC go as datagrams.
    ///
    /// # Errors
    ///
    /// The configuration is not valid, or the system has no socket.
    pub fn new(
        server: Option<ServerConfig>,
        seed: [u8; 32],
        has_datagrams: bool,
    ) -> Result<Self, ConnectError> {
        let failed = |error: std::io::Error| ConnectError::Configuration(error.to_string());
        let offering = |mode| server.as_ref().filter(|server| offers(server, mode));
        let clock = Clock::new();
        let start = clock.now();
        #[cfg(feature = "quic")]
        let quic = Quic::new(clock, seed, offering(Mode::Quic), has_datagrams, None)?;
        #[cfg(not(feature = "quic"))]
        let _ = has_datagrams;
        let udp = Udp::new(offering(Mode::Udp), false);
        let options = SocketOptions::default();
        let listener = match offering(Mode::Tcp) {
            Some(server) => {
                let tls = TlsStreamServer::new(server)?;
                let address = ([127, 0, 0, 1], 0).into();
                Some(Listener::bind(address, &options, tls, server).map_err(failed)?)
            }
            None => None,
        };
        let tcp_address = match &listener {
            Some(listener) => Some(listener.local_addr().map_err(failed)?),
            None => None,
        };
        let tcp = Tcp::new(Arc::new(LazyPoller::default()), listener, (None, options));
        let config = EndpointConfig { server, ..EndpointConfig::default() };
        let packets = bats_proto::Endpoint::new(config, seed)?;
        let transports = Transports::new(
            packets,
            tcp.map_err(failed)?,
            udp,
            #[cfg(feature = "quic")]
            quic,
        );
        Ok(Self { transports, tcp_address, start })
    }

    /// The address at which it listens for TCP.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp_address
    }

    /// The first time that may be passed.
    pub fn start(&self) -> Timestamp {
        self.start
    }

    /// See [`bats_proto::Endpoint::connect`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn connect(
        &mut self,
        now: Timestamp,
        remote: SocketAddr,
        config: ClientConfig,
        has_datagrams: bool,
    ) -> Result<Key, ConnectError> {
        self.transports.connect(now, remote, "localhost", config, has_datagrams).map(Key)
    }

    /// See [`bats_proto::Endpoint::handle`]. [`Input::Timeout`] also serves the sockets of TCP.
    pub fn handle(&mut self, now: Timestamp, input: Input<'_>) {
        self.transports.handle(now, input);
    }

    /// See [`bats_proto::Endpoint::handle_unreachable_port`].
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub fn handle_unreachable_port(&mut self, now: Timestamp, remote: SocketAddr, quoted: &[u8]) {
        self.transports.handle_unreachable_port(now, remote, quoted);
    }

    /// See [`bats_proto::Endpoint::poll`].
    pub fn poll(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Step {
        match self.transports.poll(now, buffer) {
            Output::Transmit(transmit) => Step::Transmit(transmit),
            Output::Event(handle, event) => Step::Event(Key(handle), event),
            Output::Timeout(at) => Step::Timeout(at),
        }
    }

    /// See [`bats_proto::Endpoint::send`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn send(&mut self, now: Timestamp, key: Key, message: Bytes) -> Result<(), SendError> {
        self.transports.send(now, key.0, message, None)
    }

    /// See [`bats_proto::Endpoint::recv`].
    pub fn recv(&mut self, now: Timestamp, key: Key) -> Option<Bytes> {
        self.transports.recv(now, key.0)
    }

    /// See [`bats_proto::Endpoint::stats`].
    pub fn stats(&self, now: Timestamp, key: Key) -> Option<ConnectionStats> {
        self.transports.stats(now, key.0)
    }

    /// See [`bats_proto::Endpoint::endpoint_stats`].
    pub fn endpoint_stats(&self) -> EndpointStats {
        self.transports.endpoint_stats()
    }

    /// See [`bats_proto::Endpoint::connection_count`].
    pub fn connection_count(&self) -> usize {
        self.transports.connection_count()
    }
}
