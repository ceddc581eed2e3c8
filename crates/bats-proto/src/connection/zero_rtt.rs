//! Messages before the handshake is done (0-RTT), in mode BTP where both ends want them.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::{Connection, MAX_DEADLINE, Role, setup::receive_budget};
use crate::config::Mode;
use crate::error::SendError;

/// Bytes sent to an unproved address for each one that came from there (RFC 9000, section 8).
pub(super) const AMPLIFICATION: u64 = 3;

/// What a connection did before its handshake was done.
#[derive(Debug, Default)]
pub(super) struct ZeroRtt {
    /// Server: the connection lives on what the first flight said; the client has not proved yet that
    /// it is there.
    pub(super) provisional: bool,
    /// A message was refused before the connection was established.
    pub(super) refused: bool,
    /// Messages of the first flight, sent or delivered.
    pub(super) messages: u64,
    /// Client: those among them that the server had when the handshake was done.
    pub(super) accepted: u64,
}

impl Connection {
    /// Whether the connection is set up and the other end is not proved.
    pub(super) fn is_provisional(&self) -> bool {
        self.zero_rtt.provisional
    }

    /// Bytes that may be sent now to an address that is not proved.
    pub(super) fn unproved_allowance(&self) -> usize {
        let allowed = self.unvalidated_received.saturating_mul(AMPLIFICATION);
        usize::try_from(allowed.saturating_sub(self.unvalidated_sent)).unwrap_or(usize::MAX)
    }

    /// Takes a message for the first flight, if it can go with it; otherwise it must wait.
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
                self.acknowledged_told = false;
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

    /// Client, when the handshake is done: what the server does not have of the first flight goes its
    /// way with the data. Messages keep their numbers, so that none is delivered twice.
    pub(super) fn settle_first_flight(&mut self, now: Timestamp) {
        let (messages, arrived) = match self.handshake.finish_early() {
            Ok(Some(early)) => early,
            Ok(None) => return,
            Err(rule) => return self.misbehaved(now, rule),
        };
        let Some(streams) = &mut self.streams else { return };
        streams.outgoing.skip(arrived as u64);
        self.zero_rtt.accepted = arrived as u64;
        for (message, expires) in messages.into_iter().skip(arrived) {
            // A server that is another than it was may not take it at all: then it is too late for it.
            let fits = message.len() <= streams.peer_max_message;
            let (message, expires) =
                if fits { (message, expires) } else { (Bytes::new(), Timestamp::ZERO) };
            streams.outgoing.push(message, expires);
        }
    }

    /// Server: whether the connection can be set up by what the client's first flight says.
    pub(super) fn may_be_provisional(&self) -> bool {
        self.role == Role::Server
            && self.handshake.takes_early()
            && self.protection.is_some()
            && self
                .handshake
                .peer_parameters()
                .is_some_and(|peer| self.agreed_mode(peer.mode) == Some(Mode::Btp))
    }

    /// Server: delivers what has come with the first flight.
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
                    self.handshake.note_early(arrived);
                }
                Err(error) => return self.misbehaved(now, &error.to_string()),
            }
        }
    }

    /// Server, when the handshake is done: what copies of the client's first flight have delivered on
    /// other connections is not delivered here.
    pub(super) fn close_early_data(&mut self) {
        let delivered = self.handshake.close_early();
        if let Some(streams) = &mut self.streams {
            streams.incoming.note_early(delivered);
        }
    }

    /// Server: the client is there. What the round trip is shows only now.
    pub(super) fn confirm_provisional(&mut self, now: Timestamp) {
        self.zero_rtt.provisional = false;
        self.close_early_data();
        if let Some(rtt) = self.handshake.rtt_sample() {
            self.rtt.on_sample(now, rtt, Duration::ZERO);
            self.controller = self.new_controller();
            self.controller.on_sent(now, self.sent.bytes_sent(), 0);
        }
        self.control.handshake_done = true;
        self.control.crypto = !self.handshake.later_data().is_empty();
        self.last_received_at = now;
        self.deadlines.idle = Some(now + self.idle_timeout);
        self.handle_early(now);
    }
}
