//! Early data (0-RTT): messages before the handshake is complete, in BTP if both ends enable it.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::{Connection, MAX_DEADLINE, Role, setup::receive_budget};
use crate::config::Mode;
use crate::error::SendError;

/// Bytes sent to an unvalidated address per byte received from it (RFC 9000, section 8).
pub(super) const AMPLIFICATION: u64 = 3;

/// State of early data.
#[derive(Debug, Default)]
pub(super) struct ZeroRtt {
    /// Server: the connection is set up from the client's first flight alone; the client is not
    /// validated yet.
    pub(super) provisional: bool,
    /// A message was refused before the connection was established.
    pub(super) refused: bool,
    /// Messages of the first flight, sent or delivered.
    pub(super) messages: u64,
    /// Client: how many of them the server had when the handshake completed.
    pub(super) accepted: u64,
}

impl Connection {
    /// Whether the connection is set up but the peer is not validated yet.
    pub(super) fn is_provisional(&self) -> bool {
        self.zero_rtt.provisional
    }

    /// Bytes that the anti-amplification limit allows now.
    pub(super) fn amplification_allowance(&self) -> usize {
        let allowed = self.unvalidated_received.saturating_mul(AMPLIFICATION);
        usize::try_from(allowed.saturating_sub(self.unvalidated_sent)).unwrap_or(usize::MAX)
    }

    /// Accepts a message for the first flight; if it does not fit, the application must wait.
    pub(super) fn send_early(
        &mut self,
        now: Timestamp,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        let deadline = deadline.unwrap_or(self.config.deadline).min(MAX_DEADLINE);
        let len = message.len() as u64;
        match self.handshake.push_early(now, message, now + deadline) {
            Ok(()) => {
                self.counters.messages_sent += 1;
                self.counters.message_bytes_sent += len;
                self.zero_rtt.messages += 1;
                self.acknowledged_notified = false;
                Ok(())
            }
            Err(message) => {
                self.zero_rtt.refused = true;
                self.writable_wanted = true;
                self.refused_bytes = message.len();
                Err(SendError::Blocked(message))
            }
        }
    }

    /// Client, when the handshake completes: sends the early messages that the server does not have
    /// as normal data. Messages keep their numbers, so that none is delivered twice.
    pub(super) fn resend_unaccepted_early(&mut self, now: Timestamp) {
        let (messages, arrived) = match self.handshake.finish_early() {
            Ok(Some(early)) => early,
            Ok(None) => return,
            Err(rule) => return self.on_protocol_violation(now, rule),
        };
        let Some(streams) = &mut self.streams else { return };
        streams.outgoing.skip(arrived as u64);
        self.zero_rtt.accepted = arrived as u64;
        for (message, expires) in messages.into_iter().skip(arrived) {
            // A changed server may accept only shorter messages: then this one counts as expired.
            let fits = message.len() <= streams.peer_max_message;
            let (message, expires) =
                if fits { (message, expires) } else { (Bytes::new(), Timestamp::ZERO) };
            streams.outgoing.push(message, expires);
        }
    }

    /// Server: whether the connection can be set up from the client's first flight.
    pub(super) fn may_be_provisional(&self) -> bool {
        self.role == Role::Server
            && self.handshake.takes_early()
            && self.protection.is_some()
            && self
                .handshake
                .peer_parameters()
                .is_some_and(|peer| self.agreed_mode(peer.mode) == Some(Mode::Btp))
    }

    /// Server: delivers the early data received so far.
    pub(super) fn take_early_data(&mut self, now: Timestamp) {
        if !self.is_provisional() {
            return;
        }
        for payload in self.handshake.take_early() {
            let budget = receive_budget(&self.config);
            let Some(streams) = &mut self.streams else { return };
            match streams.incoming.take_early(&payload, &mut streams.inbox, budget) {
                Ok((taken, arrived)) => {
                    self.zero_rtt.messages += taken.messages;
                    self.counters.messages_received += taken.messages;
                    self.counters.message_bytes_received += taken.bytes;
                    self.handshake.record_early(arrived);
                }
                Err(error) => return self.on_protocol_violation(now, &error.to_string()),
            }
        }
    }

    /// Server, when the handshake completes: messages that replays of the first flight have
    /// delivered on other connections are not delivered again.
    pub(super) fn close_early_data(&mut self) {
        let delivered = self.handshake.close_early();
        if let Some(streams) = &mut self.streams {
            streams.incoming.record_early(delivered);
        }
    }

    /// Server: the client is validated. There is no RTT sample before.
    pub(super) fn confirm_provisional(&mut self, now: Timestamp) {
        self.zero_rtt.provisional = false;
        self.close_early_data();
        if let Some(rtt) = self.handshake.rtt_sample() {
            self.rtt.on_sample(now, rtt, Duration::ZERO);
            self.controller = self.new_controller();
            self.controller.on_sent(now, self.sent.bytes_sent(), 0);
        }
        self.control.handshake_done = true;
        self.control.crypto = !self.handshake.post_handshake_data().is_empty();
        self.handshake.release_session(false);
        self.last_received_at = now;
        self.timers.idle = Some(now + self.idle_timeout);
        self.handle_early(now);
    }
}
