//! Messages both ways over one stream of bytes, reliable and in order.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;
use bytes::Bytes;

use super::frame::{self, Control, HEADER_LEN, Hello, Kind, MAX_PART, MESSAGE_COST, Receipt, cost};
use crate::config::{PeerLimits, TransportConfig};
use crate::connection::{max_message, receive_budget};
use crate::error::{CloseReason, SendError};
use crate::event::Event;
use crate::session::Inbox;
use crate::stats::ConnectionStats;

/// Bytes that wait for the stream before a message is refused: what is below the stream has a
/// window of its own, and more would only wait longer.
const SEND_QUEUE: u64 = 4 << 20;
/// Bytes of an unfinished message after which the sender is told of them.
const PROGRESS: u64 = 1 << 20;

/// What the next bytes of the stream are.
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
    /// The peer has not greeted.
    Greeting,
    Open,
    Over,
}

/// What the user is to be told, each once however often it happened.
#[derive(Debug, Default)]
struct Due {
    established: bool,
    readable: bool,
    writable: bool,
    acknowledged: bool,
    closed: Option<CloseReason>,
}

/// What this side sends.
#[derive(Debug, Default)]
struct Outgoing {
    queue: VecDeque<Bytes>,
    /// Bytes and costs of the queue, without those of the first message that have left.
    queued: u64,
    /// Bytes of the first message that have left.
    offset: usize,
    /// Messages accepted, and the end if it was said.
    units: u64,
    units_sent: u64,
    bytes_sent: u64,
    /// Credit used.
    spent: u64,
    is_finished: bool,
    finish_sent: bool,
    was_refused: bool,
    /// What the peer said last.
    receipt: Receipt,
}

/// What the peer sends.
#[derive(Debug, Default)]
struct Incoming {
    partial: Vec<u8>,
    inbox: Inbox,
    /// Cost of what has arrived.
    spent: u64,
    /// Cost of what the user has taken.
    freed: u64,
    units: u64,
    bytes: u64,
    /// What the peer was told last.
    told: Receipt,
    is_finished: bool,
}

/// One end of a connection. Plain bytes go in by [`receive`](Self::receive) and come out of
/// [`transmit`](Self::transmit); time and messages are as in [`Endpoint`](crate::Endpoint).
#[derive(Debug)]
pub struct Session {
    is_client: bool,
    max_message: usize,
    receive_budget: u64,
    send_budget: u64,
    idle_timeout: Duration,
    keep_alive: Option<Duration>,
    /// What the layer above tells its counterpart.
    application: u8,
    state: State,
    peer: Hello,
    expect: Expect,
    outgoing: Outgoing,
    incoming: Incoming,
    due: Due,
    hello_due: bool,
    ping_due: bool,
    pong_due: bool,
    receipt_due: bool,
    farewell: Option<Control>,
    handshake_until: Timestamp,
    heard_at: Timestamp,
    said_at: Timestamp,
    pinged_at: Timestamp,
    established: Option<Timestamp>,
    messages_sent: u64,
    message_bytes_sent: u64,
    messages_received: u64,
    message_bytes_received: u64,
}

impl Session {
    /// One end; the client is the one that has begun the connection.
    pub fn new(now: Timestamp, is_client: bool, config: &TransportConfig) -> Self {
        let receive_budget = receive_budget(config) as u64;
        let mut incoming = Incoming::default();
        incoming.told.credit = receive_budget;
        Self {
            is_client,
            max_message: max_message(config),
            receive_budget,
            send_budget: SEND_QUEUE.min(config.send_budget as u64),
            idle_timeout: config.idle_timeout,
            keep_alive: config.keep_alive,
            state: State::Greeting,
            application: config.application,
            peer: Hello { max_message: 0, credit: 0, idle_ms: 0, application: 0 },
            expect: Expect::START,
            outgoing: Outgoing::default(),
            incoming,
            due: Due::default(),
            hello_due: true,
            ping_due: false,
            pong_due: false,
            receipt_due: false,
            farewell: None,
            // Until then the greetings must have crossed.
            handshake_until: now + config.handshake_timeout.min(config.idle_timeout),
            heard_at: now,
            said_at: now,
            pinged_at: now,
            established: None,
            messages_sent: 0,
            message_bytes_sent: 0,
            messages_received: 0,
            message_bytes_received: 0,
        }
    }

    /// Whether both sides have greeted and neither has gone.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Silence after which the connection ends, as both sides have it.
    pub fn idle_timeout(&self) -> Duration {
        self.idle_timeout
    }

    /// What the peer said of itself, once it has greeted.
    pub fn peer_limits(&self) -> Option<PeerLimits> {
        let max_message_size = usize::try_from(self.peer.max_message).unwrap_or(usize::MAX);
        let limits = PeerLimits { max_message_size, application: self.peer.application };
        self.established.map(|_| limits)
    }

    /// The rule that the peer broke, if that ended the connection and it was not told yet.
    pub fn violation_found(&self) -> Option<&str> {
        match &self.farewell {
            Some(Control::Report { reason }) => Some(reason),
            _ => None,
        }
    }

    /// Whether the connection has ended; [`transmit`](Self::transmit) may still have a last word.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// The next thing to tell the user.
    pub fn pop_event(&mut self) -> Option<Event> {
        let due = &mut self.due;
        if core::mem::take(&mut due.established) {
            return Some(if self.is_client { Event::Connected } else { Event::Accepted });
        }
        for (flag, event) in [
            (&mut due.readable, Event::Readable),
            (&mut due.writable, Event::Writable),
            (&mut due.acknowledged, Event::AllAcknowledged),
        ] {
            if core::mem::take(flag) {
                return Some(event);
            }
        }
        due.closed.take().map(Event::Closed)
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called at the latest.
    pub fn next_timeout(&self) -> Option<Timestamp> {
        match self.state {
            State::Greeting => Some(self.handshake_until),
            State::Open => {
                let mut next = self.heard_at + self.idle_timeout;
                if let Some(interval) = self.keep_alive {
                    next = next.min(self.said_at.max(self.pinged_at) + interval);
                }
                if self.has_outstanding() {
                    next = next.min(self.heard_at.max(self.pinged_at) + self.idle_timeout / 3);
                }
                if self.has_unreported() {
                    next = next.min(self.said_at + self.idle_timeout / 4);
                }
                Some(next)
            }
            State::Over => None,
        }
    }

    /// A time that [`next_timeout`](Self::next_timeout) named has come.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        match self.state {
            State::Greeting if now >= self.handshake_until => {
                self.end(CloseReason::HandshakeTimeout);
            }
            State::Open if now >= self.heard_at + self.idle_timeout => {
                self.end(CloseReason::IdleTimeout(self.idle_timeout));
            }
            State::Open => {
                let quiet = self.said_at.max(self.pinged_at);
                let keep = self.keep_alive.is_some_and(|interval| now >= quiet + interval);
                let unheard = self.has_outstanding()
                    && now >= self.heard_at.max(self.pinged_at) + self.idle_timeout / 3;
                if keep || unheard {
                    self.ping_due = true;
                    self.pinged_at = now;
                }
                if self.has_unreported() && now >= self.said_at + self.idle_timeout / 4 {
                    self.receipt_due = true;
                }
            }
            _ => {}
        }
    }

    /// Something of ours has not been confirmed: the silence of the peer would be bad news.
    fn has_outstanding(&self) -> bool {
        self.outgoing.receipt.units < self.outgoing.units
    }

    /// A part of a message has arrived of which the peer does not know. One that waits to be sent
    /// is no reason for a timer.
    fn has_unreported(&self) -> bool {
        self.incoming.told.bytes != self.incoming.bytes && !self.receipt_due
    }

    /// The peer was heard of beside the stream.
    pub fn on_heard(&mut self, now: Timestamp) {
        self.heard_at = self.heard_at.max(now);
    }

    /// The stream has ended or broken, which says nothing of the peer's intent.
    pub fn on_lost(&mut self, text: &str) {
        match self.state {
            State::Greeting => self.end(CloseReason::Handshake(text.to_owned())),
            State::Open => self.end(CloseReason::Lost(text.to_owned())),
            State::Over => {}
        }
    }

    /// Ends the connection for a reason found below the session.
    pub fn end(&mut self, reason: CloseReason) {
        if self.state != State::Over {
            self.state = State::Over;
            self.outgoing.queue.clear();
            self.outgoing.queued = 0;
            self.incoming.partial = Vec::new();
            self.due.closed = Some(reason);
        }
    }

    /// Ends the connection at once; unsent data is dropped.
    pub fn close(&mut self, code: u64, reason: &str) {
        if self.state != State::Over {
            self.farewell = Some(Control::Close { code, reason: reason.to_owned() });
            self.end(CloseReason::Local);
        }
    }

    fn violation(&mut self, rule: &str) {
        self.farewell = Some(Control::Report { reason: rule.to_owned() });
        self.end(CloseReason::PeerMisbehaved(rule.to_owned()));
    }

    /// Hands over a message.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::send`](crate::Endpoint::send).
    pub fn send(&mut self, message: Bytes) -> Result<(), SendError> {
        if self.state == State::Over {
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
            outgoing.was_refused = true;
            return Err(SendError::Blocked(message));
        }
        outgoing.queued += cost;
        outgoing.units += 1;
        self.messages_sent += 1;
        self.message_bytes_sent += message.len() as u64;
        outgoing.queue.push_back(message);
        self.due.acknowledged = false;
        Ok(())
    }

    /// No more messages will follow.
    ///
    /// # Errors
    ///
    /// Said before, or the connection is over.
    pub fn finish(&mut self) -> Result<(), SendError> {
        if self.state == State::Over {
            return Err(SendError::Closed);
        }
        if self.outgoing.is_finished {
            return Err(SendError::Finished);
        }
        self.outgoing.is_finished = true;
        self.outgoing.units += 1;
        self.due.acknowledged = false;
        Ok(())
    }

    /// The next message in order.
    pub fn recv(&mut self) -> Option<Bytes> {
        let incoming = &mut self.incoming;
        let message = incoming.inbox.pop()?;
        incoming.freed += cost(message.len(), true);
        // Credit is worth a frame of its own when it is a good part of the whole.
        if incoming.freed + self.receive_budget - incoming.told.credit >= self.receive_budget / 4 {
            self.receipt_due = true;
        }
        Some(message)
    }

    /// Whether the peer has finished and every message was taken.
    pub fn is_finished(&self) -> bool {
        self.incoming.is_finished && self.incoming.inbox.is_empty()
    }

    /// Whether everything handed over has arrived at the peer.
    pub fn is_all_acknowledged(&self) -> bool {
        !self.has_outstanding()
    }

    /// Bytes that have arrived and that nobody has taken.
    pub fn receive_buffer_bytes(&self) -> usize {
        self.incoming.inbox.bytes_held() + self.incoming.partial.len()
    }

    /// A sample of what this layer knows: messages and buffers.
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

    /// Appends what is to be sent, until `out` holds `limit` bytes or a little more.
    pub fn transmit(&mut self, now: Timestamp, out: &mut Vec<u8>, limit: usize) {
        let before = out.len();
        if self.hello_due && self.farewell.is_none() && self.state != State::Over {
            self.hello_due = false;
            let idle_ms = u64::try_from(self.idle_timeout.as_millis()).unwrap_or(u64::MAX);
            let max_message = self.max_message as u64;
            let credit = self.receive_budget;
            let hello = Hello { max_message, credit, idle_ms, application: self.application };
            Control::Hello(hello).encode(out);
        }
        match self.state {
            State::Greeting => {}
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
            State::Over => {
                if let Some(farewell) = self.farewell.take() {
                    farewell.encode(out);
                }
            }
        }
        if out.len() > before {
            self.said_at = now;
        }
    }

    fn transmit_receipt(&mut self, out: &mut Vec<u8>) {
        let incoming = &mut self.incoming;
        let told = incoming.told;
        let is_due = core::mem::take(&mut self.receipt_due)
            || incoming.units != told.units
            || incoming.bytes - told.bytes >= PROGRESS;
        if is_due {
            let credit = incoming.freed + self.receive_budget;
            incoming.told = Receipt { units: incoming.units, bytes: incoming.bytes, credit };
            Control::Receipt(incoming.told).encode(out);
        }
    }

    fn transmit_messages(&mut self, out: &mut Vec<u8>, limit: usize) {
        let outgoing = &mut self.outgoing;
        while out.len() < limit
            && let Some(message) = outgoing.queue.front()
        {
            let left = message.len() - outgoing.offset;
            let credit = outgoing.receipt.credit.saturating_sub(outgoing.spent);
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
            outgoing.spent += cost;
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
        if outgoing.was_refused && outgoing.queued <= self.send_budget / 4 * 3 {
            outgoing.was_refused = false;
            self.due.writable = true;
        }
    }

    /// Takes the next bytes of the stream. What is wrong with them ends the connection.
    pub fn receive(&mut self, now: Timestamp, mut bytes: &[u8]) {
        if !bytes.is_empty() && self.state != State::Over {
            self.heard_at = now;
        }
        while !bytes.is_empty() && self.state != State::Over {
            match &mut self.expect {
                Expect::Header { bytes: header, have } => {
                    let len = bytes.len().min(HEADER_LEN - *have);
                    header[*have..*have + len].copy_from_slice(&bytes[..len]);
                    *have += len;
                    bytes = &bytes[len..];
                    if *have == HEADER_LEN {
                        let header = *header;
                        self.on_header(now, header);
                    }
                }
                Expect::Message { left, is_last } => {
                    let len = bytes.len().min(*left);
                    let (content, rest) = bytes.split_at(len);
                    bytes = rest;
                    let ends = len == *left;
                    let is_last = *is_last && ends;
                    *left -= len;
                    if ends {
                        self.expect = Expect::START;
                    }
                    self.on_content(content, is_last);
                }
                Expect::Control { kind, len, bytes: payload } => {
                    let more = bytes.len().min(*len - payload.len());
                    payload.extend_from_slice(&bytes[..more]);
                    bytes = &bytes[more..];
                    if payload.len() == *len {
                        let (kind, payload) = (*kind, core::mem::take(payload));
                        self.expect = Expect::START;
                        self.on_control(now, kind, &payload);
                    }
                }
                Expect::Skip { left } => {
                    let len = bytes.len().min(*left);
                    *left -= len;
                    bytes = &bytes[len..];
                    if *left == 0 {
                        self.expect = Expect::START;
                    }
                }
            }
        }
    }

    fn on_header(&mut self, now: Timestamp, header: [u8; HEADER_LEN]) {
        let (kind, len) = match frame::decode_header(header) {
            Ok(decoded) => decoded,
            Err(error) => return self.violation(&error.to_string()),
        };
        self.expect = Expect::START;
        match (kind, len) {
            (Kind::Part | Kind::Last, _) if self.state != State::Open => {
                self.violation("a message before the greeting");
            }
            (Kind::Part | Kind::Last, _) if self.incoming.is_finished => {
                self.violation("a message after the last");
            }
            // What has no bytes is complete at once.
            (Kind::Last, 0) => self.on_content(&[], true),
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

    fn on_content(&mut self, content: &[u8], is_last: bool) {
        let incoming = &mut self.incoming;
        incoming.spent += cost(content.len(), is_last);
        if incoming.spent > incoming.told.credit {
            return self.violation("more than the credit allows");
        }
        if incoming.partial.len() + content.len() > self.max_message {
            return self.violation("a message longer than is accepted");
        }
        incoming.bytes += content.len() as u64;
        let message = match (is_last, incoming.partial.is_empty()) {
            (true, true) => Bytes::copy_from_slice(content),
            (_, _) => {
                incoming.partial.extend_from_slice(content);
                if !is_last {
                    return;
                }
                Bytes::from(core::mem::take(&mut incoming.partial))
            }
        };
        incoming.units += 1;
        self.messages_received += 1;
        self.message_bytes_received += message.len() as u64;
        incoming.inbox.push(message);
        self.due.readable = true;
    }

    fn on_control(&mut self, now: Timestamp, kind: u8, payload: &[u8]) {
        let control = match Control::decode(kind, payload) {
            Ok(control) => control,
            Err(error) => return self.violation(&error.to_string()),
        };
        match (self.state, control) {
            (_, Control::Close { code, reason }) => self.end(CloseReason::Peer { code, reason }),
            (_, Control::Report { reason }) => self.end(CloseReason::ReportedByPeer(reason)),
            (State::Greeting, Control::Hello(hello)) => self.on_hello(now, hello),
            (State::Open, Control::Receipt(receipt)) => self.on_receipt(receipt),
            (State::Open, Control::Finish) if !self.incoming.is_finished => {
                if !self.incoming.partial.is_empty() {
                    return self.violation("the end within a message");
                }
                self.incoming.is_finished = true;
                self.incoming.units += 1;
                self.due.readable = true;
            }
            (State::Open, Control::Ping) => self.pong_due = true,
            (State::Open, Control::Pong) => {}
            _ => self.violation("a frame out of place"),
        }
    }

    fn on_hello(&mut self, now: Timestamp, hello: Hello) {
        self.state = State::Open;
        self.peer = hello;
        self.outgoing.receipt.credit = hello.credit;
        self.idle_timeout = self.idle_timeout.min(Duration::from_millis(hello.idle_ms));
        self.established = Some(now);
        self.due.established = true;
    }

    fn on_receipt(&mut self, receipt: Receipt) {
        let outgoing = &mut self.outgoing;
        let before = outgoing.receipt;
        if receipt.units > outgoing.units_sent || receipt.bytes > outgoing.bytes_sent {
            return self.violation("a receipt for what was not sent");
        }
        if receipt.units < before.units
            || receipt.bytes < before.bytes
            || receipt.credit < before.credit
        {
            return self.violation("a receipt that takes back");
        }
        outgoing.receipt = receipt;
        if receipt.units == outgoing.units && receipt.units > before.units {
            self.due.acknowledged = true;
        }
    }
}

/// Memory that a message of the peer takes beside its content is paid for.
const _: () = assert!(MESSAGE_COST as usize >= crate::session::MESSAGE_OVERHEAD);

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
