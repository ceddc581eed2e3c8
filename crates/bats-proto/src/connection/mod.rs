//! A connection: one session over one link, as the endpoint holds it. It joins both: calls of the application go to
//! the session, packets and timers to the link, which pulls from the session.

mod io;
mod setup;
mod shared;

use core::net::IpAddr;
use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use crate::config::{Mode, PeerLimits, TransportConfig};
use crate::error::{CloseReason, SendError};
use crate::event::Event;
use crate::link::{Link, SessionFailure};
use crate::remote::Remote;
use crate::session::Session;
use crate::session::channel::{ChannelError, ChannelId, Channels};
use crate::stats::ConnectionStats;
use crate::wire::flow::{FlowKey, NodeId};
use crate::wire::stateless_reset::RESET_TOKEN_LEN;

pub(crate) use setup::Setup;
pub(crate) use shared::SharedConnection;

/// One session over one link.
#[derive(Debug)]
pub(crate) struct Connection {
    link: Link,
    session: Session,
}

impl Connection {
    /// Accepts a message for sending; see [`crate::Endpoint::send`].
    pub(crate) fn send(
        &mut self,
        now: Timestamp,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        if !self.link.is_open() {
            return Err(SendError::Closed);
        }
        if self.session.has_streams() {
            return self.session.send(now, message, deadline, &self.link.capacity());
        }
        // Early data: a message for the first flight.
        let (len, expires) = (message.len(), self.session.early_expiry(now, deadline));
        match self.link.early_messages().push(now, message, expires) {
            Ok(()) => {
                self.session.on_early_sent(len);
                Ok(())
            }
            Err(message) => {
                self.session.on_early_refused(len);
                Err(SendError::Blocked(message))
            }
        }
    }

    /// Ends the sending direction; see [`crate::Endpoint::finish`].
    pub(crate) fn finish(&mut self) -> Result<(), SendError> {
        if self.link.is_open() { self.session.finish() } else { Err(SendError::Closed) }
    }

    /// Next message in order; see [`crate::Endpoint::recv`].
    pub(crate) fn recv(&mut self, now: Timestamp) -> Option<Bytes> {
        let (message, result) = self.session.recv(now, self.link.rtt().smoothed);
        self.settle(now, result);
        message
    }

    /// Closes the connection if the session cannot go on.
    fn settle(&mut self, now: Timestamp, result: Result<(), SessionFailure>) {
        if let Err(failure) = result {
            self.link.fail(now, failure, &mut self.session);
        }
    }

    /// Whether the peer has finished and the application has read every message.
    pub(crate) fn is_finished(&self) -> bool {
        self.session.is_finished()
    }

    /// Whether the peer has acknowledged everything.
    pub(crate) fn is_all_acknowledged(&self) -> bool {
        self.session.is_all_acknowledged()
    }

    /// The channels of an open connection, if both ends have them.
    pub(crate) fn channels(&mut self) -> Result<&mut Channels, ChannelError> {
        if self.link.is_open() { self.session.channels() } else { Err(ChannelError::Closed) }
    }

    /// See [`crate::Endpoint::write_channel`].
    pub(crate) fn write_channel(
        &mut self,
        id: ChannelId,
        data: &[u8],
    ) -> Result<usize, ChannelError> {
        let written = self.channels()?.write(id, data)?;
        if written > 0 {
            self.session.on_channel_used();
        }
        Ok(written)
    }

    /// See [`crate::Endpoint::finish_channel`].
    pub(crate) fn finish_channel(&mut self, id: ChannelId) -> Result<(), ChannelError> {
        self.channels()?.finish(id)?;
        self.session.on_channel_used();
        Ok(())
    }

    /// Closes the connection locally.
    pub(crate) fn close(&mut self, now: Timestamp, code: u64, reason: &str) {
        self.link.begin_close(now, true, code, reason, CloseReason::Local, &mut self.session);
    }

    /// Refuses the peer because the endpoint's memory budget is used up.
    pub(crate) fn close_for_lack_of_memory(&mut self, now: Timestamp) {
        let text = "no memory left for another connection";
        let reason = CloseReason::Handshake(text.to_owned());
        self.link.begin_close(now, false, 5, text, reason, &mut self.session);
    }

    /// The peer was restarted, and a connection with the new process is established.
    pub(crate) fn on_restarted_peer(&mut self) {
        let text = "the peer was restarted".to_owned();
        self.link.close_silently(CloseReason::Lost(text), &mut self.session);
    }

    /// The server has no state of this connection any more: it has sent a stateless reset (RFC 9000, section
    /// 10.3).
    pub(crate) fn on_stateless_reset(&mut self) {
        let text = "the server does not know the connection any more: it was restarted, or has \
                    closed the connection";
        self.link.close_silently(CloseReason::Lost(text.to_owned()), &mut self.session);
    }

    /// See [`Link::handle_no_route`].
    pub(crate) fn handle_no_route(&mut self, now: Timestamp, relay: NodeId, destination: NodeId) {
        self.link.handle_no_route(now, relay, destination, &mut self.session);
    }

    /// See [`Link::handle_unreachable_port`].
    pub(crate) fn handle_unreachable_port(&mut self, now: Timestamp) {
        self.link.handle_unreachable_port(now, &mut self.session);
    }

    /// See [`Link::is_quoted`].
    pub(crate) fn is_quoted(&self, payload: &[u8]) -> bool {
        self.link.is_quoted(payload)
    }

    /// Whether this is a client that no server has answered yet.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.link.is_unanswered()
    }

    /// Whether the connection is closed and has no more events, so that it can be dropped.
    pub(crate) fn is_dead(&self) -> bool {
        self.link.is_dead() && !self.session.has_events()
    }

    /// Whether the handshake is done.
    pub(crate) fn is_established(&self) -> bool {
        self.link.was_validated()
    }

    pub(crate) fn remote(&self) -> Remote {
        self.link.remote()
    }

    /// Whether packets from there may be for this connection. Those of an end-to-end session are in its flow; the
    /// neighbour of a link may change its address.
    pub(crate) fn takes_from(&self, remote: Remote) -> bool {
        self.flow_key() == remote.flow_key()
    }

    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        self.link.local_ip()
    }

    pub(crate) fn local_cid(&self) -> [u8; 4] {
        self.link.local_cid()
    }

    pub(crate) fn config(&self) -> &TransportConfig {
        self.session.config()
    }

    pub(crate) fn mode(&self) -> Option<Mode> {
        self.session.mode()
    }

    pub(crate) fn peer_limits(&self) -> Option<PeerLimits> {
        self.session.peer_limits()
    }

    pub(crate) fn peer_fingerprint(&self) -> Option<[u8; 32]> {
        self.link.handshake().peer_fingerprint()
    }

    /// Whether the peer reports batch ranks.
    pub(crate) fn peer_reports_batches(&self) -> bool {
        self.link.handshake().peer_parameters().is_some_and(|parameters| parameters.batch_ranks)
    }

    /// Instance of the authenticated peer, if it announces one.
    pub(crate) fn peer_instance(&self) -> Option<u64> {
        self.link.peer_instance()
    }

    /// The token that ends a stateless reset of this connection, at a client.
    pub(crate) fn reset_token(&self) -> Option<&[u8; RESET_TOKEN_LEN]> {
        self.link.reset_token()
    }

    pub(crate) fn pop_event(&mut self) -> Option<Event> {
        self.session.pop_event(self.link.is_open())
    }

    /// The session, for its memory and for the links of the relay.
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// As [`Self::session`].
    pub(crate) fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The link, for the relay.
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// As [`Self::link`].
    pub(crate) fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }

    /// The flow that this session sends, if it is an end-to-end session.
    pub(crate) fn flow_key(&self) -> Option<FlowKey> {
        self.session.flow_key()
    }

    /// Bytes of memory that the connection needs; `None` before it is established.
    pub(crate) fn memory_demand(&self) -> Option<usize> {
        if self.link.was_validated() { self.session.memory_demand() } else { None }
    }

    /// Sets the memory of the connection.
    pub(crate) fn set_memory(&mut self, now: Timestamp, bytes: usize, is_short: bool) {
        let rtt = self.link.rtt().smoothed;
        if let Some(result) = self.session.set_memory(now, bytes, is_short, rtt) {
            self.settle(now, result);
            self.session.update_application(&self.link.capacity());
        }
    }

    /// Raises the limit of the memory of an established connection.
    pub(crate) fn raise_receive_budget(&mut self, now: Timestamp, bytes: usize) {
        self.session.raise_receive_budget(now, bytes, self.link.rtt().smoothed);
    }

    /// Bytes received that the application has not read.
    pub(crate) fn receive_buffer_bytes(&self) -> usize {
        self.session.receive_buffer_bytes()
    }

    /// A sample of the connection's statistics.
    pub(crate) fn stats(&self, now: Timestamp) -> ConnectionStats {
        let mut stats = ConnectionStats { time: now, ..ConnectionStats::default() };
        self.link.add_stats(&mut stats);
        self.session.add_stats(&mut stats);
        stats
    }

    /// Ends the connection at once.
    #[cfg(test)]
    pub(crate) fn die_for_test(&mut self) {
        self.link.close_silently(CloseReason::Local, &mut self.session);
    }
}
