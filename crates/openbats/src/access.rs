//! How a call of the application reaches its connection.

use std::net::SocketAddr;
use std::time::Duration;

use bats_proto::{ConnectionCalls, ConnectionStats, SendError, Timestamp};
use bytes::Bytes;

use crate::transport::{Handle, Transports};

/// A connection for the time of a call, under the lock of its [`Slot`](crate::slot::Slot).
pub(crate) enum Access<'a> {
    /// A connection of the coded modes, which has a lock of its own.
    Own(ConnectionCalls),
    /// A connection of another transport, under the lock of the endpoint.
    Endpoint(&'a mut Transports, Handle),
    /// It has ended.
    Ended,
}

impl Access<'_> {
    pub(crate) fn send(
        &mut self,
        now: Timestamp,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        match self {
            Self::Own(calls) => calls.send(now, message, deadline),
            Self::Endpoint(endpoint, handle) => endpoint.send(now, *handle, message, deadline),
            Self::Ended => Err(SendError::Closed),
        }
    }

    pub(crate) fn finish(&mut self, now: Timestamp) -> Result<(), SendError> {
        match self {
            Self::Own(calls) => calls.finish(),
            Self::Endpoint(endpoint, handle) => endpoint.finish(now, *handle),
            Self::Ended => Err(SendError::Closed),
        }
    }

    pub(crate) fn recv(&mut self, now: Timestamp) -> Option<Bytes> {
        match self {
            Self::Own(calls) => calls.recv(now),
            Self::Endpoint(endpoint, handle) => endpoint.recv(now, *handle),
            Self::Ended => None,
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        match self {
            Self::Own(calls) => calls.is_finished(),
            Self::Endpoint(endpoint, handle) => endpoint.is_finished(*handle),
            Self::Ended => false,
        }
    }

    pub(crate) fn is_all_acknowledged(&self) -> bool {
        match self {
            Self::Own(calls) => calls.is_all_acknowledged(),
            Self::Endpoint(endpoint, handle) => endpoint.is_all_acknowledged(*handle),
            Self::Ended => false,
        }
    }

    pub(crate) fn close(&mut self, now: Timestamp, code: u64, reason: &str) {
        match self {
            Self::Own(calls) => calls.close(now, code, reason),
            Self::Endpoint(endpoint, handle) => endpoint.close(now, *handle, code, reason),
            Self::Ended => {}
        }
    }

    pub(crate) fn stats(&self, now: Timestamp) -> Option<ConnectionStats> {
        match self {
            Self::Own(calls) => Some(calls.stats(now)),
            Self::Endpoint(endpoint, handle) => endpoint.stats(now, *handle),
            Self::Ended => None,
        }
    }

    /// Size in bytes of the longest message that can be sent now, if there is a limit.
    pub(crate) fn longest_message(&self) -> Option<usize> {
        match self {
            Self::Own(calls) => Some(calls.peer_limits()?.max_message_size),
            Self::Endpoint(endpoint, handle) => endpoint.longest_message(*handle),
            Self::Ended => None,
        }
    }

    /// The connection's local address, if it can differ from the endpoint's.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        match self {
            Self::Endpoint(endpoint, handle) => endpoint.local(*handle),
            Self::Own(_) | Self::Ended => None,
        }
    }
}
