//! The coded modes: the endpoint of `bats-proto`, whose packets are the datagrams of the endpoint's socket.

use std::net::SocketAddr;
use std::time::Duration;

use bats_proto::{
    ConnectionHandle, ConnectionStats, Endpoint, Mode, PeerLimits, SendError, Timestamp,
};
use bytes::Bytes;

use super::binding::{Output, Transport};
use crate::slot::RemoteNode;

/// The connections of the coded modes, and the relay.
#[derive(Debug)]
pub(super) struct Packets {
    pub(super) endpoint: Endpoint,
}

impl Transport for Packets {
    type Id = ConnectionHandle;

    fn poll(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Output<ConnectionHandle> {
        match self.endpoint.poll(now, buffer) {
            bats_proto::Output::Transmit(transmit) => Output::Transmit(transmit),
            bats_proto::Output::Event(id, event) => Output::Event(id, event),
            bats_proto::Output::Timeout(at) => Output::Timeout(at),
        }
    }

    fn send(
        &mut self,
        now: Timestamp,
        id: ConnectionHandle,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        match deadline {
            None => self.endpoint.send(now, id, message),
            Some(deadline) => self.endpoint.send_within(now, id, message, deadline),
        }
    }

    fn finish(&mut self, now: Timestamp, id: ConnectionHandle) -> Result<(), SendError> {
        self.endpoint.finish(now, id)
    }

    fn recv(&mut self, now: Timestamp, id: ConnectionHandle) -> Option<Bytes> {
        self.endpoint.recv(now, id)
    }

    fn is_finished(&self, id: ConnectionHandle) -> bool {
        self.endpoint.is_finished(id)
    }

    fn is_all_acknowledged(&self, id: ConnectionHandle) -> bool {
        self.endpoint.is_all_acknowledged(id)
    }

    fn close(&mut self, now: Timestamp, id: ConnectionHandle, code: u64, reason: &str) {
        self.endpoint.close(now, id, code, reason);
    }

    fn stats(&self, now: Timestamp, id: ConnectionHandle) -> Option<ConnectionStats> {
        self.endpoint.stats(now, id)
    }

    fn receive_buffer_bytes(&self, id: ConnectionHandle) -> usize {
        self.endpoint.receive_buffer_bytes(id).unwrap_or(0)
    }

    fn remote(&self, id: ConnectionHandle) -> Option<SocketAddr> {
        self.endpoint.remote(id)
    }

    fn remote_node(&self, id: ConnectionHandle) -> Option<RemoteNode> {
        let node = self.endpoint.remote_node(id)?;
        Some(RemoteNode { id: node, is_direct: self.endpoint.is_direct(id) })
    }

    fn mode(&self, id: ConnectionHandle) -> Option<Mode> {
        self.endpoint.mode(id)
    }

    fn peer_limits(&self, id: ConnectionHandle) -> Option<PeerLimits> {
        self.endpoint.peer_limits(id)
    }

    fn longest_datagram(&self, _id: ConnectionHandle) -> Option<usize> {
        None
    }

    fn peer_fingerprint(&self, id: ConnectionHandle) -> Option<[u8; 32]> {
        self.endpoint.peer_fingerprint(id)
    }

    fn connection_count(&self) -> usize {
        self.endpoint.connection_count()
    }
}
