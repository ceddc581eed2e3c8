//! The endpoint: routes datagrams to connections and speaks for all of them to the driver.

use core::net::{IpAddr, SocketAddr};

use bats_types::Timestamp;
use bytes::Bytes;

use crate::config::{ClientConfig, EndpointConfig};
use crate::error::{ConnectError, SendError};
use crate::event::Event;
use crate::stats::{ConnectionStats, EndpointStats};

/// Names a connection of one endpoint; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionHandle(pub u64);

/// A datagram as it came from the network.
#[derive(Debug)]
pub struct Received<'a> {
    /// Sender's address.
    pub remote: SocketAddr,
    /// Own address that it was sent to, if the driver knows.
    pub local_ip: Option<IpAddr>,
    /// The two ECN bits of the IP header.
    pub ecn: u8,
    /// UDP payload; decrypted in place.
    pub payload: &'a mut [u8],
}

/// What a driver tells an endpoint.
#[derive(Debug)]
pub enum Input<'a> {
    /// A datagram arrived.
    Datagram(Received<'a>),
    /// The time that `poll` named has come.
    Timeout,
}

/// Datagrams to be sent, all of `segment_size` octets but the last, which may be shorter.
/// Their bytes stand in the buffer handed to `poll`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where to.
    pub remote: SocketAddr,
    /// From which own address, if that matters.
    pub local_ip: Option<IpAddr>,
    /// The two ECN bits.
    pub ecn: u8,
    /// Octets of each datagram but the last.
    pub segment_size: usize,
    /// Octets in all.
    pub len: usize,
}

/// What an endpoint tells its driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send what stands in the buffer.
    Transmit(Transmit),
    /// Tell the application.
    Event(ConnectionHandle, Event),
    /// Nothing more now; call again at this time at the latest, if there is one.
    Timeout(Option<Timestamp>),
}

/// One UDP socket's worth of connections.
#[derive(Debug)]
pub struct Endpoint {}

#[expect(unused_variables, reason = "skeleton")]
impl Endpoint {
    /// An endpoint whose every random choice follows from `seed`.
    pub fn new(config: EndpointConfig, seed: [u8; 32]) -> Result<Self, ConnectError> {
        unimplemented!()
    }

    /// Begins a connection; [`Event::Connected`] or [`Event::Closed`] follows.
    pub fn connect(
        &mut self,
        now: Timestamp,
        remote: SocketAddr,
        server_name: &str,
        config: ClientConfig,
    ) -> Result<ConnectionHandle, ConnectError> {
        unimplemented!()
    }

    /// Takes one input. Never fails: what is wrong with a datagram is counted.
    pub fn handle(&mut self, now: Timestamp, input: Input<'_>) {
        unimplemented!()
    }

    /// The next output. `buffer` is cleared first; its capacity bounds a GSO burst.
    pub fn poll(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Output {
        unimplemented!()
    }

    /// Hands over a message; kept until it is acknowledged.
    pub fn send(
        &mut self,
        now: Timestamp,
        handle: ConnectionHandle,
        message: Bytes,
    ) -> Result<(), SendError> {
        unimplemented!()
    }

    /// No more messages will follow; the peer learns it in order.
    pub fn finish(&mut self, now: Timestamp, handle: ConnectionHandle) -> Result<(), SendError> {
        unimplemented!()
    }

    /// The next message in order. `None` when there is none now.
    pub fn recv(&mut self, now: Timestamp, handle: ConnectionHandle) -> Option<Bytes> {
        unimplemented!()
    }

    /// Whether the peer has finished and every message was taken.
    pub fn is_finished(&self, handle: ConnectionHandle) -> bool {
        unimplemented!()
    }

    /// Ends the connection at once; unsent data is dropped. [`Event::Closed`] follows.
    pub fn close(&mut self, now: Timestamp, handle: ConnectionHandle, code: u64, reason: &str) {
        unimplemented!()
    }

    /// A sample of the connection's statistics.
    pub fn stats(&self, now: Timestamp, handle: ConnectionHandle) -> Option<ConnectionStats> {
        unimplemented!()
    }

    /// Address of the peer.
    pub fn remote(&self, handle: ConnectionHandle) -> Option<SocketAddr> {
        unimplemented!()
    }

    /// SHA-256 of the peer's end-entity certificate, if it showed one.
    pub fn peer_fingerprint(&self, handle: ConnectionHandle) -> Option<[u8; 32]> {
        unimplemented!()
    }

    /// Counters of the endpoint itself.
    pub fn endpoint_stats(&self) -> EndpointStats {
        unimplemented!()
    }

    /// Number of open connections.
    pub fn connection_count(&self) -> usize {
        unimplemented!()
    }
}
