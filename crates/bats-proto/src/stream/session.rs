//! Messages in both directions over one reliable, ordered byte stream.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::{STUCK_TIMER, Timestamp};
use bytes::Bytes;

use super::frame::{self, Control, HEADER_LEN, Hello, Kind, MAX_PART, MESSAGE_COST, Receipt, cost};
use super::frame_budget::{self, FrameBudget};
use super::partial::Partial;
use crate::config::{PeerLimits, TransportConfig};
use crate::error::{CloseReason, SendError};
use crate::event::Event;
use crate::session::Inbox;
use crate::session::{max_message, receive_budget};
use crate::stats::ConnectionStats;

/// Maximum number of queued bytes before a message is refused. The stream below has a window of its
/// own, so a longer queue would only add delay.
const MAX_SEND_QUEUE: u64 = 4 << 20;
/// Bytes of an incomplete message after which the receiver sends a receipt.
const RECEIPT_INTERVAL: u64 = 1 << 20;
/// Least credit in addition to the longest message: what is released without a receipt must not stop that message.
const SPARE_CREDIT: usize = 64 << 10;

/// State of the frame parser.
#[derive(Debug)]
enum Expect {
    Header { bytes: [u8; HEADER_LEN], have: usize },
    Message { left: usize, is_last: bool },
    Control { kind: u8, len: usize, bytes: Vec<u8> },
    Skip { left: usize },
}

impl Expect {
    const START: Self = Self::Header { bytes: [0; HEADER_LEN], have: 0 };
}

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

/// Send state.
#[derive(Debug, Default)]
struct Outgoing {
    queue: VecDeque<Bytes>,
    /// Cost of the queued messages, without the sent bytes of the first one.
    queued: u64,
    /// Bytes of the first message that were sent.
    offset: usize,
    /// Number of messages accepted, plus one for the end mark.
    units: u64,
    units_sent: u64,
    bytes_sent: u64,
    /// Credit used.
    credit_used: u64,
    is_finished: bool,
    finish_sent: bool,
    send_blocked: bool,
    /// The last receipt of the peer.
    receipt: Receipt,
}

/// Receive state.
#[derive(Debug, Default)]
struct Incoming {
    partial: Partial,
    inbox: Inbox,
    /// Cost of the data received.
    credit_used: u64,
    /// Cost of the messages that the application received.
    credit_released: u64,
    units: u64,
    bytes: u64,
    /// The last receipt sent.
    last_receipt: Receipt,
    is_finished: bool,
}

/// One end of a connection. Plaintext goes into [`receive`](Self::receive) and comes out of
/// [`transmit`](Self::transmit). Time and messages work as in [`Endpoint`](crate::Endpoint).
#[derive(Debug)]
pub struct Session {
    is_client: bool,
    max_message: usize,
    /// Credit of the peer when the application has taken all.
    window: u64,
    send_budget: u64,
    idle_timeout: Duration,
    keep_alive: Option<Duration>,
    /// Bits that the layer above sends to its peer.
    application: u8,
    state: State,
    peer: Hello,
    expect: Expect,
    /// Limits frames that bring neither content nor progress.
    frame_budget: FrameBudget,
    outgoing: Outgoing,
    incoming: Incoming,
    pending: PendingEvents,
    hello_due: bool,
    ping_due: bool,
    pong_due: bool,
    receipt_due: bool,
    close_frame: Option<Control>,
    handshake_deadline: Timestamp,
    last_received_at: Timestamp,
    last_sent_at: Timestamp,
    last_ping_at: Timestamp,
    established: Option<Timestamp>,
    messages_sent: u64,
    message_bytes_sent: u64,
    messages_received: u64,
    message_bytes_received: u64,
}

impl Session {
    /// Creates one end; the client is the end that started the connection.
    pub fn new(now: Timestamp, is_client: bool, config: &TransportConfig) -> Self {
        let window = window(config) as u64;
        let mut incoming = Incoming::default();
        incoming.last_receipt.credit = window;
        Self {
            is_client,
            max_message: max_message(config),
            window,
            send_budget: MAX_SEND_QUEUE.min(config.send_budget as u64),
            idle_timeout: config.idle_timeout,
            keep_alive: config.keep_alive_interval(),
            state: State::Handshake,
            application: config.application,
            peer: Hello { max_message: 0, credit: 0, idle_ms: 0, application: 0 },
            expect: Expect::START,
            frame_budget: FrameBudget::new(now),
            outgoing: Outgoing::default(),
            incoming,
            pending: PendingEvents::default(),
            hello_due: true,
            ping_due: false,
            pong_due: false,
            receipt_due: false,
            close_frame: None,
            // Both Hello frames must arrive before this time.
            handshake_deadline: now + config.handshake_timeout.min(config.idle_timeout),
            last_received_at: now,
            last_sent_at: now,
            last_ping_at: now,
            established: None,
            messages_sent: 0,
            message_bytes_sent: 0,
            messages_received: 0,
            message_bytes_received: 0,
        }
    }

    /// Whether both Hello frames were exchanged and neither end has closed.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Idle time-out of the connection: the smaller one of both ends.
    pub fn idle_timeout(&self) -> Duration {
        self.idle_timeout
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
            State::Handshake => Some(self.handshake_deadline),
            State::Open => {
                let mut next = self.last_received_at + self.idle_timeout;
                if let Some(interval) = self.keep_alive {
                    next = next.min(self.last_sent_at.max(self.last_ping_at) + interval);
                }
                if self.has_outstanding() {
                    next = next
                        .min(self.last_received_at.max(self.last_ping_at) + self.idle_timeout / 3);
                }
                if self.has_unreported() {
                    next = next.min(self.last_sent_at + self.idle_timeout / 4);
                }
                Some(next)
            }
            State::Closed => None,
        }
    }

    /// Handles the time-outs that are due, see [`next_timeout`](Self::next_timeout).
    pub fn handle_timeout(&mut self, now: Timestamp) {
        match self.state {
            State::Handshake if now >= self.handshake_deadline => {
                self.end(CloseReason::HandshakeTimeout);
            }
            State::Open if now >= self.last_received_at + self.idle_timeout => {
                self.end(CloseReason::IdleTimeout(self.idle_timeout));
            }
            State::Open => {
                let last_activity = self.last_sent_at.max(self.last_ping_at);
                let keep = self.keep_alive.is_some_and(|interval| now >= last_activity + interval);
                let unresponsive = self.has_outstanding()
                    && now >= self.last_received_at.max(self.last_ping_at) + self.idle_timeout / 3;
                if keep || unresponsive {
                    self.ping_due = true;
                    self.last_ping_at = now;
                }
                if self.has_unreported() && now >= self.last_sent_at + self.idle_timeout / 4 {
                    self.receipt_due = true;
                }
            }
            _ => {}
        }
    }

    /// Whether data or the end mark is unacknowledged. Only then a silent peer matters.
    fn has_outstanding(&self) -> bool {
        self.outgoing.receipt.units < self.outgoing.units
    }

    /// Whether part of a message has arrived that no receipt covers. A receipt that is already
    /// scheduled needs no timer.
    fn has_unreported(&self) -> bool {
        self.incoming.last_receipt.bytes != self.incoming.bytes && !self.receipt_due
    }

    /// Restarts the idle time-out after activity of the peer outside of this stream.
    pub fn on_peer_activity(&mut self, now: Timestamp) {
        self.last_received_at = self.last_received_at.max(now);
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
            self.outgoing.queue.clear();
            self.outgoing.queued = 0;
            self.incoming.partial = Partial::default();
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
        let outgoing = &mut self.outgoing;
        if outgoing.is_finished {
            return Err(SendError::Finished);
        }
        let limit = match self.state {
            State::Open => usize::try_from(self.peer.max_message).unwrap_or(usize::MAX),
            _ => self.max_message,
        };
        if message.len() > limit {
            return Err(SendError::TooLarge { size: message.len(), limit });
        }
        let cost = cost(message.len(), true);
        if outgoing.queued > 0 && outgoing.queued + cost > self.send_budget {
            outgoing.send_blocked = true;
            return Err(SendError::Blocked(message));
        }
        outgoing.queued += cost;
        outgoing.units += 1;
        self.messages_sent += 1;
        self.message_bytes_sent += message.len() as u64;
        outgoing.queue.push_back(message);
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
        if self.outgoing.is_finished {
            return Err(SendError::Finished);
        }
        self.outgoing.is_finished = true;
        self.outgoing.units += 1;
        self.pending.acknowledged = false;
        Ok(())
    }

    /// The next message in order.
    pub fn recv(&mut self) -> Option<Bytes> {
        let incoming = &mut self.incoming;
        let message = incoming.inbox.pop()?;
        incoming.credit_released += cost(message.len(), true);
        let unreported = incoming.credit_released + self.window - incoming.last_receipt.credit;
        let left = incoming.last_receipt.credit.saturating_sub(incoming.credit_used);
        // Send credit in a frame of its own once it is a quarter of the window, or as soon as the peer may take it for
        // progress if it has little left: it may wait in the middle of a message.
        if unreported >= self.window / 4
            || unreported >= frame_budget::LONG as u64 && left < self.window / 4
        {
            self.receipt_due = true;
        }
        Some(message)
    }

    /// Whether the peer has finished and the application has received every message.
    pub fn is_finished(&self) -> bool {
        self.incoming.is_finished && self.incoming.inbox.is_empty()
    }

    /// Whether the peer has received everything that was sent.
    pub fn is_all_acknowledged(&self) -> bool {
        !self.has_outstanding()
    }

    /// Bytes received that the application has not taken.
    pub fn receive_buffer_bytes(&self) -> usize {
        self.incoming.inbox.bytes_held() + self.incoming.partial.len()
    }

    /// Statistics of this layer: messages and buffers.
    pub fn stats(&self, now: Timestamp) -> ConnectionStats {
        let unconfirmed = self.outgoing.bytes_sent.saturating_sub(self.outgoing.receipt.bytes);
        ConnectionStats {
            time: now,
            established: self.established,
            controller_state: "kernel",
            messages_sent: self.messages_sent,
            message_bytes_sent: self.message_bytes_sent,
            messages_received: self.messages_received,
            message_bytes_received: self.message_bytes_received,
            send_buffer_bytes: self.outgoing.queued + unconfirmed,
            receive_buffer_bytes: self.receive_buffer_bytes() as u64,
            ..ConnectionStats::default()
        }
    }

    /// Appends the bytes to send, until `out` holds `limit` bytes or slightly more.
    pub fn transmit(&mut self, now: Timestamp, out: &mut Vec<u8>, limit: usize) {
        let before = out.len();
        if self.hello_due && self.close_frame.is_none() && self.state != State::Closed {
            self.hello_due = false;
            let idle_ms = u64::try_from(self.idle_timeout.as_millis()).unwrap_or(u64::MAX);
            let max_message = self.max_message as u64;
            let credit = self.window;
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
                self.transmit_receipt(out);
                self.transmit_messages(out, limit);
            }
            State::Closed => {
                if let Some(close_frame) = self.close_frame.take() {
                    close_frame.encode(out);
                }
            }
        }
        if out.len() > before {
            self.last_sent_at = now;
        }
    }

    fn transmit_receipt(&mut self, out: &mut Vec<u8>) {
        let incoming = &mut self.incoming;
        let last_receipt = incoming.last_receipt;
        let is_due = core::mem::take(&mut self.receipt_due)
            || incoming.units != last_receipt.units
            || incoming.bytes - last_receipt.bytes >= RECEIPT_INTERVAL;
        if is_due {
            let credit = incoming.credit_released + self.window;
            incoming.last_receipt =
                Receipt { units: incoming.units, bytes: incoming.bytes, credit };
            // A message that waits for credit may continue with as much as there is now.
            self.frame_budget.on_progress();
            Control::Receipt(incoming.last_receipt).encode(out);
        }
    }

    fn transmit_messages(&mut self, out: &mut Vec<u8>, limit: usize) {
        let outgoing = &mut self.outgoing;
        while out.len() < limit
            && let Some(message) = outgoing.queue.front()
        {
            let left = message.len() - outgoing.offset;
            let credit = outgoing.receipt.credit.saturating_sub(outgoing.credit_used);
            let is_last = left <= MAX_PART && cost(left, true) <= credit;
            let len = if is_last {
                left
            } else {
                left.min(MAX_PART).min(usize::try_from(credit).unwrap_or(usize::MAX))
            };
            if len == 0 && !is_last {
                break;
            }
            frame::put_part(out, &message[outgoing.offset..outgoing.offset + len], is_last);
            let cost = cost(len, is_last);
            outgoing.credit_used += cost;
            outgoing.queued -= cost;
            outgoing.bytes_sent += len as u64;
            outgoing.offset += len;
            if is_last {
                outgoing.queue.pop_front();
                outgoing.offset = 0;
                outgoing.units_sent += 1;
            }
        }
        if outgoing.queue.is_empty() && outgoing.is_finished && !outgoing.finish_sent {
            outgoing.finish_sent = true;
            outgoing.units_sent += 1;
            Control::Finish.encode(out);
        }
        if outgoing.send_blocked && outgoing.queued <= self.send_budget / 4 * 3 {
            outgoing.send_blocked = false;
            self.pending.writable = true;
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
            self.last_received_at = now;
        }
        while !bytes.is_empty() && self.state != State::Closed {
            match &mut self.expect {
                Expect::Header { bytes: header, have } => {
                    let missing = header.get_mut(*have..).unwrap_or_default();
                    let (part, rest) = split_at_most(bytes, missing.len());
                    missing.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
                    *have = have.saturating_add(part.len());
                    bytes = rest;
                    if *have == HEADER_LEN {
                        let header = *header;
                        self.on_header(now, header);
                    }
                }
                Expect::Message { left, is_last } => {
                    let (content, rest) = split_at_most(bytes, *left);
                    bytes = rest;
                    *left = left.saturating_sub(content.len());
                    let left = *left;
                    let is_last = *is_last && left == 0;
                    if left == 0 {
                        self.expect = Expect::START;
                    }
                    self.on_content(content, left, is_last);
                }
                Expect::Control { kind, len, bytes: payload } => {
                    let (more, rest) = split_at_most(bytes, len.saturating_sub(payload.len()));
                    payload.extend_from_slice(more);
                    bytes = rest;
                    if payload.len() == *len {
                        let (kind, payload) = (*kind, core::mem::take(payload));
                        self.expect = Expect::START;
                        self.on_control(now, kind, &payload);
                    }
                }
                Expect::Skip { left } => {
                    let (skipped, rest) = split_at_most(bytes, *left);
                    *left = left.saturating_sub(skipped.len());
                    bytes = rest;
                    if *left == 0 {
                        self.expect = Expect::START;
                    }
                }
            }
        }
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn on_header(&mut self, now: Timestamp, header: [u8; HEADER_LEN]) {
        let (kind, len) = match frame::decode_header(header) {
            Ok(decoded) => decoded,
            Err(error) => return self.violation(&error.to_string()),
        };
        self.expect = Expect::START;
        if !matches!(kind, Kind::Last) && !self.frame_budget.allows(now, len) {
            return self.violation("too many short frames");
        }
        match (kind, len) {
            (Kind::Part | Kind::Last, _) if self.state != State::Open => {
                self.violation("message before Hello");
            }
            (Kind::Part | Kind::Last, _) if self.incoming.is_finished => {
                self.violation("message after the end mark");
            }
            // A frame without payload is complete at once.
            (Kind::Last, 0) => self.on_content(&[], 0, true),
            (Kind::Control(kind), 0) => self.on_control(now, kind, &[]),
            (Kind::Unknown, 0) => {}
            (Kind::Part, left) => self.expect = Expect::Message { left, is_last: false },
            (Kind::Last, left) => self.expect = Expect::Message { left, is_last: true },
            (Kind::Control(kind), len) => {
                self.expect = Expect::Control { kind, len, bytes: Vec::new() };
            }
            (Kind::Unknown, left) => self.expect = Expect::Skip { left },
        }
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn on_content(&mut self, content: &[u8], left: usize, is_last: bool) {
        let incoming = &mut self.incoming;
        let cost = cost(content.len(), is_last);
        incoming.credit_used = incoming.credit_used.saturating_add(cost);
        if incoming.credit_used > incoming.last_receipt.credit {
            return self.violation("more data than the credit allows");
        }
        if incoming.partial.len().saturating_add(content.len()) > self.max_message {
            return self.violation("message longer than accepted");
        }
        incoming.bytes = incoming.bytes.saturating_add(content.len() as u64);
        let message = match (is_last, incoming.partial.is_empty()) {
            (true, true) => Bytes::copy_from_slice(content),
            (_, _) => {
                incoming.partial.push(content, left);
                if !is_last {
                    return;
                }
                incoming.partial.take()
            }
        };
        incoming.units = incoming.units.saturating_add(1);
        self.frame_budget.on_progress();
        self.messages_received = self.messages_received.saturating_add(1);
        let len = message.len() as u64;
        self.message_bytes_received = self.message_bytes_received.saturating_add(len);
        incoming.inbox.push(message);
        self.pending.readable = true;
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
            (State::Open, Control::Finish) if !self.incoming.is_finished => {
                if !self.incoming.partial.is_empty() {
                    return self.violation("end mark within a message");
                }
                self.incoming.is_finished = true;
                self.incoming.units = self.incoming.units.saturating_add(1);
                self.pending.readable = true;
            }
            (State::Open, Control::Ping) => self.pong_due = true,
            (State::Open, Control::Pong) => {}
            _ => self.violation("unexpected frame"),
        }
    }

    fn on_hello(&mut self, now: Timestamp, hello: Hello) {
        self.state = State::Open;
        self.peer = hello;
        self.outgoing.receipt.credit = hello.credit;
        self.idle_timeout = self.idle_timeout.min(Duration::from_millis(hello.idle_ms));
        self.established = Some(now);
        self.pending.established = true;
    }

    fn on_receipt(&mut self, receipt: Receipt) {
        let outgoing = &mut self.outgoing;
        let before = outgoing.receipt;
        if receipt.units > outgoing.units_sent || receipt.bytes > outgoing.bytes_sent {
            return self.violation("receipt for data that was not sent");
        }
        if receipt.units < before.units
            || receipt.bytes < before.bytes
            || receipt.credit < before.credit
        {
            return self.violation("receipt that decreases a total");
        }
        // A correct peer sends credit alone in large steps.
        let credit = receipt.credit.saturating_sub(before.credit);
        if (receipt.units, receipt.bytes) != (before.units, before.bytes)
            || credit >= frame_budget::LONG as u64
        {
            self.frame_budget.on_progress();
        }
        outgoing.receipt = receipt;
        if receipt.units == outgoing.units && receipt.units > before.units {
            self.pending.acknowledged = true;
        }
    }
}

/// Credit of a peer. While a message is completed, its bytes are there twice: with them, all is within the receive
/// budget.
fn window(config: &TransportConfig) -> usize {
    let longest = max_message(config);
    receive_budget(config).saturating_sub(longest).max(longest.saturating_add(SPARE_CREDIT))
}

/// The first `len` bytes, or all if there are fewer, and the rest.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn split_at_most(bytes: &[u8], len: usize) -> (&[u8], &[u8]) {
    bytes.split_at_checked(len).unwrap_or((bytes, &[]))
}

/// Every message must consume enough credit for its overhead in memory.
const _: () = assert!(MESSAGE_COST as usize >= crate::session::MESSAGE_OVERHEAD);

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
