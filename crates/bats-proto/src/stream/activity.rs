//! Timers of a connection: the handshake, the idle time-out, and what is sent before it ends.

use core::time::Duration;

use bats_types::Timestamp;

use crate::config::TransportConfig;

/// When something was last sent and received, and the timers that follow from it.
#[derive(Debug)]
pub(super) struct ActivityTimers {
    /// Both Hello frames must arrive before this time.
    handshake_deadline: Timestamp,
    idle_timeout: Duration,
    keep_alive: Option<Duration>,
    last_received_at: Timestamp,
    last_sent_at: Timestamp,
    last_ping_at: Timestamp,
}

impl ActivityTimers {
    pub(super) fn new(now: Timestamp, config: &TransportConfig) -> Self {
        Self {
            handshake_deadline: now + config.handshake_timeout.min(config.idle_timeout),
            idle_timeout: config.idle_timeout,
            keep_alive: config.keep_alive_interval(),
            last_received_at: now,
            last_sent_at: now,
            last_ping_at: now,
        }
    }

    pub(super) fn handshake_deadline(&self) -> Timestamp {
        self.handshake_deadline
    }

    pub(super) fn idle_timeout(&self) -> Duration {
        self.idle_timeout
    }

    /// The peer has this idle time-out: the smaller one of both ends holds.
    pub(super) fn limit_idle_timeout(&mut self, of_peer: Duration) {
        self.idle_timeout = self.idle_timeout.min(of_peer);
    }

    /// Bytes of the peer arrived.
    pub(super) fn on_received(&mut self, now: Timestamp) {
        self.last_received_at = now;
    }

    /// The peer was active outside of the stream.
    pub(super) fn on_peer_activity(&mut self, now: Timestamp) {
        self.last_received_at = self.last_received_at.max(now);
    }

    pub(super) fn on_sent(&mut self, now: Timestamp) {
        self.last_sent_at = now;
    }

    /// The next timer of an open connection. Data that is `outstanding` at the peer needs its
    /// answer, and data of the peer that is `unreported` needs a receipt.
    pub(super) fn next(&self, outstanding: bool, unreported: bool) -> Timestamp {
        let mut next = self.idle_at();
        if let Some(keep_alive_at) = self.keep_alive_at() {
            next = next.min(keep_alive_at);
        }
        if outstanding {
            next = next.min(self.unresponsive_at());
        }
        if unreported {
            next = next.min(self.receipt_at());
        }
        next
    }

    /// Whether the idle time-out has passed.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        now >= self.idle_at()
    }

    /// Whether to send a PING now: for keep-alive, or because a silent peer has not acknowledged
    /// what is `outstanding`.
    pub(super) fn take_ping(&mut self, now: Timestamp, outstanding: bool) -> bool {
        let is_due = self.keep_alive_at().is_some_and(|at| now >= at)
            || outstanding && now >= self.unresponsive_at();
        if is_due {
            self.last_ping_at = now;
        }
        is_due
    }

    /// Whether a receipt for part of a message has waited long enough.
    pub(super) fn is_receipt_due(&self, now: Timestamp) -> bool {
        now >= self.receipt_at()
    }

    fn idle_at(&self) -> Timestamp {
        self.last_received_at + self.idle_timeout
    }

    fn keep_alive_at(&self) -> Option<Timestamp> {
        self.keep_alive.map(|interval| self.last_sent_at.max(self.last_ping_at) + interval)
    }

    fn unresponsive_at(&self) -> Timestamp {
        self.last_received_at.max(self.last_ping_at) + self.idle_timeout / 3
    }

    fn receipt_at(&self) -> Timestamp {
        self.last_sent_at + self.idle_timeout / 4
    }
}
