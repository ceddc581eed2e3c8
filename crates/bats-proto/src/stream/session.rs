//! Messages in both directions over one reliable, ordered byte stream.

use bats_types::{STUCK_TIMER, Timestamp};
use bytes::Bytes;
use core::time::Duration;

use super::activity::ActivityTimers;
use super::frame::{Control, Hello, Kind, Receipt};
use super::frame_budget::FrameBudget;
use super::frame_parser::{FrameParser, Parsed};
use super::incoming::Incoming;
use super::outgoing::Outgoing;
use crate::config::{PeerLimits, TransportConfig};
use crate::error::{CloseReason, SendError};
use crate::event::Event;
use crate::stats::{BufferStats, CongestionStats, ConnectionStats, MessageStats};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The peer's Hello is outstanding.
    Handshake,
    Open,
    Closed,
}

/// Events for the application. Each is reported once, even if it occurred several times.
#[derive(Debug, Default)]
struct PendingEvents {
    established: bool,
    readable: bool,
    writable: bool,
    acknowledged: bool,
    closed: Option<CloseReason>,
}

/// One end of a connection. Plaintext goes into [`receive`](Self::receive) and comes out of
/// [`transmit`](Self::transmit). Time and messages work as in [`Endpoint`](crate::Endpoint).
#[derive(Debug)]
pub struct Session {
    is_client: bool,
    /// Bits that the layer above sends to its peer.
    application: u8,
    state: State,
    peer: Hello,
    parser: FrameParser,
    /// Limits frames that bring neither content nor progress.
    frame_budget: FrameBudget,
    outgoing: Outgoing,
    incoming: Incoming,
    timers: ActivityTimers,
    pending: PendingEvents,
    hello_due: bool,
    ping_due: bool,
    pong_due: bool,
    close_frame: Option<Control>,
    established: Option<Timestamp>,
}

impl Session {
    /// Creates one end; the client is the end that started the connection.
    pub fn new(now: Timestamp, is_client: bool, config: &TransportConfig) -> Self {
        Self {
            is_client,
            application: config.application,
            state: State::Handshake,
            peer: Hello { max_message: 0, credit: 0, idle_ms: 0, application: 0 },
            parser: FrameParser::new(),
            frame_budget: FrameBudget::new(now),
            outgoing: Outgoing::new(config),
            incoming: Incoming::new(config),
            timers: ActivityTimers::new(now, config),
            pending: PendingEvents::default(),
            hello_due: true,
            ping_due: false,
            pong_due: false,
            close_frame: None,
            established: None,
        }
    }

    /// Whether both Hello frames were exchanged and neither end has closed.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Idle time-out of the connection: the smaller one of both ends.
    pub fn idle_timeout(&self) -> Duration {
        self.timers.idle_timeout()
    }

    /// Limits that the peer announced in its Hello; `None` before that.
    pub fn peer_limits(&self) -> Option<PeerLimits> {
        let max_message_size = usize::try_from(self.peer.max_message).unwrap_or(usize::MAX);
        let limits = PeerLimits { max_message_size, application: self.peer.application };
        self.established.map(|_| limits)
    }

    /// The protocol violation of the peer that ended the connection, until it was sent to the peer.
    pub fn violation_found(&self) -> Option<&str> {
        match &self.close_frame {
            Some(Control::Report { reason }) => Some(reason),
            _ => None,
        }
    }

    /// Whether the connection has ended. [`transmit`](Self::transmit) may still send a Close frame.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// The next event for the application.
    pub fn pop_event(&mut self) -> Option<Event> {
        let pending = &mut self.pending;
        if core::mem::take(&mut pending.established) {
            return Some(if self.is_client { Event::Connected } else { Event::Accepted });
        }
        for (flag, event) in [
            (&mut pending.readable, Event::Readable),
            (&mut pending.writable, Event::Writable),
            (&mut pending.acknowledged, Event::AllAcknowledged),
        ] {
            if core::mem::take(flag) {
                return Some(event);
            }
        }
        pending.closed.take().map(Event::Closed)
    }

    /// Latest time for the next call of [`handle_timeout`](Self::handle_timeout).
    pub fn next_timeout(&self) -> Option<Timestamp> {
        match self.state {
            State::Handshake => Some(self.timers.handshake_deadline()),
            State::Open => {
                let outstanding = self.outgoing.has_outstanding();
                Some(self.timers.next(outstanding, self.incoming.has_unreported()))
            }
            State::Closed => None,
        }
    }

    /// Handles the time-outs that are due, see [`next_timeout`](Self::next_timeout).
    pub fn handle_timeout(&mut self, now: Timestamp) {
        match self.state {
            State::Handshake if now >= self.timers.handshake_deadline() => {
                self.end(CloseReason::HandshakeTimeout);
            }
            State::Open if self.timers.is_idle(now) => {
                self.end(CloseReason::IdleTimeout(self.timers.idle_timeout()));
            }
            State::Open => {
                // Only while something is unacknowledged does a silent peer matter.
                self.ping_due |= self.timers.take_ping(now, self.outgoing.has_outstanding());
                if self.incoming.has_unreported() && self.timers.is_receipt_due(now) {
                    self.incoming.schedule_receipt();
                }
            }
            _ => {}
        }
    }

    /// Restarts the idle time-out after activity of the peer outside of this stream.
    pub fn on_peer_activity(&mut self, now: Timestamp) {
        self.timers.on_peer_activity(now);
    }

    /// Reports that the stream ended or failed, which says nothing about the peer's intent.
    pub fn on_lost(&mut self, text: &str) {
        match self.state {
            State::Handshake => self.end(CloseReason::Handshake(text.to_owned())),
            State::Open => self.end(CloseReason::Lost(text.to_owned())),
            State::Closed => {}
        }
    }

    /// A timer stays due although it was handled: ends the connection, and reports it to the peer.
    pub fn on_stuck_timer(&mut self) {
        if self.state != State::Closed {
            self.close_frame = Some(Control::Report { reason: STUCK_TIMER.to_owned() });
            self.end(CloseReason::Internal(STUCK_TIMER.to_owned()));
        }
    }

    /// Ends the connection for a reason found in a lower layer.
    pub fn end(&mut self, reason: CloseReason) {
        if self.state != State::Closed {
            self.state = State::Closed;
            self.outgoing.clear();
            self.incoming.drop_partial();
            self.pending.closed = Some(reason);
        }
    }

    /// Closes the connection at once and drops unsent data.
    pub fn close(&mut self, code: u64, reason: &str) {
        if self.state != State::Closed {
            self.close_frame = Some(Control::Close { code, reason: reason.to_owned() });
            self.end(CloseReason::Local);
        }
    }

    /// Ends the connection of a peer that broke a rule, and reports the rule to it.
    pub(super) fn violation(&mut self, rule: &str) {
        self.close_frame = Some(Control::Report { reason: rule.to_owned() });
        self.end(CloseReason::PeerMisbehaved(rule.to_owned()));
    }

    /// Queues a message.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::send`](crate::Endpoint::send).
    pub fn send(&mut self, message: Bytes) -> Result<(), SendError> {
        if self.state == State::Closed {
            return Err(SendError::Closed);
        }
        let limit = match self.state {
            State::Open => usize::try_from(self.peer.max_message).unwrap_or(usize::MAX),
            _ => self.incoming.max_message(),
        };
        self.outgoing.send(message, limit)?;
        self.pending.acknowledged = false;
        Ok(())
    }

    /// Marks the end: no messages will follow.
    ///
    /// # Errors
    ///
    /// Called before, or the connection has ended.
    pub fn finish(&mut self) -> Result<(), SendError> {
        if self.state == State::Closed {
            return Err(SendError::Closed);
        }
        self.outgoing.finish()?;
        self.pending.acknowledged = false;
        Ok(())
    }

    /// The next message in order.
    pub fn recv(&mut self) -> Option<Bytes> {
        self.incoming.pop()
    }

    /// Whether the peer has finished and the application has received every message.
    pub fn is_finished(&self) -> bool {
        self.incoming.is_finished()
    }

    /// Whether the peer has received everything that was sent.
    pub fn is_all_acknowledged(&self) -> bool {
        !self.outgoing.has_outstanding()
    }

    /// Bytes received that the application has not taken.
    pub fn receive_buffer_bytes(&self) -> usize {
        self.incoming.bytes_held()
    }

    /// Statistics of this layer: messages and buffers.
    pub fn stats(&self, now: Timestamp) -> ConnectionStats {
        let (messages_sent, message_bytes_sent) = self.outgoing.accepted();
        let (messages_received, message_bytes_received) = self.incoming.received();
        ConnectionStats {
            time: now,
            established: self.established,
            congestion: CongestionStats {
                controller_state: "kernel",
                ..CongestionStats::default()
            },
            messages: MessageStats {
                sent: messages_sent,
                bytes_sent: message_bytes_sent,
                received: messages_received,
                bytes_received: message_bytes_received,
                ..MessageStats::default()
            },
            buffers: BufferStats {
                send_bytes: self.outgoing.bytes_held(),
                receive_bytes: self.receive_buffer_bytes() as u64,
                ..BufferStats::default()
            },
            ..ConnectionStats::default()
        }
    }

    /// Appends the bytes to send, until `out` holds `limit` bytes or slightly more.
    pub fn transmit(&mut self, now: Timestamp, out: &mut Vec<u8>, limit: usize) {
        let before = out.len();
        if self.hello_due && self.close_frame.is_none() && self.state != State::Closed {
            self.hello_due = false;
            let idle_ms = u64::try_from(self.timers.idle_timeout().as_millis()).unwrap_or(u64::MAX);
            let max_message = self.incoming.max_message() as u64;
            let credit = self.incoming.window();
            let hello = Hello { max_message, credit, idle_ms, application: self.application };
            Control::Hello(hello).encode(out);
        }
        match self.state {
            State::Handshake => {}
            State::Open => {
                if core::mem::take(&mut self.pong_due) {
                    Control::Pong.encode(out);
                }
                if core::mem::take(&mut self.ping_due) {
                    Control::Ping.encode(out);
                }
                if let Some(receipt) = self.incoming.take_receipt() {
                    // A message that waits for credit may continue with as much as there is now.
                    self.frame_budget.on_progress();
                    Control::Receipt(receipt).encode(out);
                }
                self.outgoing.transmit(out, limit);
                self.pending.writable |= self.outgoing.take_writable();
            }
            State::Closed => {
                if let Some(close_frame) = self.close_frame.take() {
                    close_frame.encode(out);
                }
            }
        }
        if out.len() > before {
            self.timers.on_sent(now);
        }
    }

    /// Processes the next bytes of the stream. A protocol violation ends the connection.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub fn receive(&mut self, now: Timestamp, mut bytes: &[u8]) {
        if !bytes.is_empty() && self.state != State::Closed {
            self.timers.on_received(now);
        }
        while self.state != State::Closed {
            match self.parser.next(&mut bytes) {
                Ok(Some(Parsed::Header(kind, len))) => self.on_header(now, kind, len),
                Ok(Some(Parsed::Content { content, left, is_last })) => {
                    self.on_content(content, left, is_last);
                }
                Ok(Some(Parsed::Control { kind, payload })) => {
                    self.on_control(now, kind, &payload);
                }
                Ok(None) => break,
                Err(error) => self.violation(&error.to_string()),
            }
        }
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn on_header(&mut self, now: Timestamp, kind: Kind, len: usize) {
        if !matches!(kind, Kind::Last) && !self.frame_budget.allows(now, len) {
            return self.violation("too many short frames");
        }
        match (kind, len) {
            (Kind::Part | Kind::Last, _) if self.state != State::Open => {
                self.violation("message before Hello");
            }
            (Kind::Part | Kind::Last, _) if self.incoming.has_end() => {
                self.violation("message after the end mark");
            }
            // A frame without payload is complete at once.
            (Kind::Last, 0) => self.on_content(&[], 0, true),
            (Kind::Control(kind), 0) => self.on_control(now, kind, &[]),
            _ => {}
        }
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn on_content(&mut self, content: &[u8], left: usize, is_last: bool) {
        match self.incoming.on_content(content, left, is_last) {
            Ok(true) => {
                self.frame_budget.on_progress();
                self.pending.readable = true;
            }
            Ok(false) => {}
            Err(rule) => self.violation(rule),
        }
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn on_control(&mut self, now: Timestamp, kind: u8, payload: &[u8]) {
        let control = match Control::decode(kind, payload) {
            Ok(control) => control,
            Err(error) => return self.violation(&error.to_string()),
        };
        match (self.state, control) {
            (_, Control::Close { code, reason }) => self.end(CloseReason::Peer { code, reason }),
            (_, Control::Report { reason }) => self.end(CloseReason::ReportedByPeer(reason)),
            (State::Handshake, Control::Hello(hello)) => self.on_hello(now, hello),
            (State::Open, Control::Receipt(receipt)) => self.on_receipt(receipt),
            (State::Open, Control::Finish) if !self.incoming.has_end() => {
                match self.incoming.on_end() {
                    Ok(()) => self.pending.readable = true,
                    Err(rule) => self.violation(rule),
                }
            }
            (State::Open, Control::Ping) => self.pong_due = true,
            (State::Open, Control::Pong) => {}
            _ => self.violation("unexpected frame"),
        }
    }

    fn on_hello(&mut self, now: Timestamp, hello: Hello) {
        self.state = State::Open;
        self.peer = hello;
        self.outgoing.set_credit(hello.credit);
        self.timers.limit_idle_timeout(Duration::from_millis(hello.idle_ms));
        self.established = Some(now);
        self.pending.established = true;
    }

    fn on_receipt(&mut self, receipt: Receipt) {
        match self.outgoing.on_receipt(receipt) {
            Ok(acknowledged) => {
                if acknowledged.is_progress {
                    self.frame_budget.on_progress();
                }
                self.pending.acknowledged |= acknowledged.is_all;
            }
            Err(rule) => self.violation(rule),
        }
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
