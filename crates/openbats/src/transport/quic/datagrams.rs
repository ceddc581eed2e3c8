//! Messages as QUIC datagrams (RFC 9221): each arrives at most once.
//!
//! The stream transports only the frames that open, finish and close the session. QUIC's congestion
//! control may delay messages; a message that waits beyond its deadline is not sent.

use std::collections::VecDeque;
use std::time::Duration;

use bats_proto::session::{Inbox, MESSAGE_OVERHEAD};
use bats_proto::stream::Session;
use bats_proto::{ConnectionStats, Event, SendError, Timestamp, TransportConfig};
use bytes::Bytes;
use quinn_proto::SendDatagramError;

/// Bytes that QUIC buffers; deadlines have no effect there.
pub(super) const QUIC_SEND_BUFFER: usize = 64 << 10;
/// Bytes queued for QUIC before messages are refused; a longer queue would only add delay.
const SEND_QUEUE: usize = 4 << 20;
/// Least receive buffer in bytes, even with a smaller budget.
const MIN_RECEIVE_BUFFER: usize = 64 << 10;
/// Bytes that each message counts in addition to its payload.
const MESSAGE_COST: usize = MESSAGE_OVERHEAD;
/// The longest deadline.
const MAX_DEADLINE: Duration = Duration::from_secs(3_600);

/// The messages of one connection.
pub(super) struct Datagrams {
    outgoing: VecDeque<(Bytes, Timestamp)>,
    queued: usize,
    send_budget: usize,
    deadline: Duration,
    incoming: Inbox,
    receive_budget: usize,
    max_message: usize,
    /// Longest datagram in bytes that can be sent now; none before the handshake completes.
    longest: Option<usize>,
    /// Free space of QUIC's send buffer when it is empty.
    empty_space: usize,
    is_quic_buffer_empty: bool,
    /// QUIC's send buffer is full.
    is_full: bool,
    was_refused: bool,
    wants_finish: bool,
    awaits_acknowledgement: bool,
    pending: PendingEvents,
    counters: Counters,
}

/// Pending events for the application, each reported once.
#[derive(Default)]
struct PendingEvents {
    readable: bool,
    writable: bool,
    acknowledged: bool,
}

#[derive(Default)]
struct Counters {
    messages_sent: u64,
    bytes_sent: u64,
    messages_received: u64,
    bytes_received: u64,
    /// Past their deadline, or longer than the path MTU has become.
    expired: u64,
    /// Displaced because the application did not take them in time.
    overflowed: u64,
}

impl Datagrams {
    pub(super) fn new(config: &TransportConfig, quic: &mut quinn_proto::Connection) -> Self {
        Self::with_send_space(config, quic.datagrams().send_buffer_space())
    }

    /// Creates the queues; `empty_space` is the free space of QUIC's empty send buffer.
    fn with_send_space(config: &TransportConfig, empty_space: usize) -> Self {
        Self {
            outgoing: VecDeque::new(),
            queued: 0,
            send_budget: SEND_QUEUE.min(config.send_budget),
            deadline: config.deadline,
            incoming: Inbox::default(),
            receive_budget: config.receive_budget.max(MIN_RECEIVE_BUFFER),
            max_message: config.max_message_size,
            longest: None,
            empty_space,
            is_quic_buffer_empty: true,
            is_full: false,
            was_refused: false,
            wants_finish: false,
            awaits_acknowledgement: false,
            pending: PendingEvents::default(),
            counters: Counters::default(),
        }
    }

    pub(super) fn longest(&self) -> Option<usize> {
        self.longest
    }

    /// Updates the longest datagram; returns `false` if the peer does not accept datagrams.
    pub(super) fn update_max_size(&mut self, quic: &mut quinn_proto::Connection) -> bool {
        self.longest = quic.datagrams().max_size();
        self.longest.is_some()
    }

    pub(super) fn on_unblocked(&mut self) {
        self.is_full = false;
    }

    /// Like [`Session::send`].
    pub(super) fn send(
        &mut self,
        now: Timestamp,
        session: &Session,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        if session.is_closed() {
            return Err(SendError::Closed);
        }
        if self.wants_finish {
            return Err(SendError::Finished);
        }
        let (Some(longest), Some(peer)) = (self.longest, session.peer_limits()) else {
            self.was_refused = true;
            return Err(SendError::Blocked(message));
        };
        let limit = longest.min(peer.max_message_size);
        if message.len() > limit {
            return Err(SendError::TooLarge { size: message.len(), limit });
        }
        let cost = message.len() + MESSAGE_COST;
        if self.queued > 0 && self.queued + cost > self.send_budget {
            self.was_refused = true;
            return Err(SendError::Blocked(message));
        }
        self.queued += cost;
        self.counters.messages_sent += 1;
        self.counters.bytes_sent += message.len() as u64;
        let until = now + deadline.unwrap_or(self.deadline).min(MAX_DEADLINE);
        self.outgoing.push_back((message, until));
        (self.awaits_acknowledgement, self.pending.acknowledged) = (true, false);
        Ok(())
    }

    /// Like [`Session::finish`], once all messages have been sent.
    pub(super) fn finish(&mut self, session: &Session) -> Result<(), SendError> {
        if session.is_closed() {
            return Err(SendError::Closed);
        }
        if self.wants_finish {
            return Err(SendError::Finished);
        }
        self.wants_finish = true;
        Ok(())
    }

    /// Passes messages to QUIC until its buffer is full.
    pub(super) fn write(
        &mut self,
        now: Timestamp,
        quic: &mut quinn_proto::Connection,
        session: &mut Session,
    ) {
        if session.is_closed() {
            self.outgoing.clear();
            self.queued = 0;
            return;
        }
        while !self.is_full
            && let Some((message, until)) = take_first(&mut self.outgoing)
        {
            let cost = message.len() + MESSAGE_COST;
            if until < now {
                self.counters.expired += 1;
            } else {
                match quic.datagrams().send(message, false) {
                    Ok(()) => {}
                    Err(SendDatagramError::Blocked(message)) => {
                        self.is_full = true;
                        self.outgoing.push_front((message, until));
                        break;
                    }
                    // The path MTU has decreased since `send` accepted the message.
                    Err(SendDatagramError::TooLarge) => self.counters.expired += 1,
                    Err(error) => return session.on_lost(&error.to_string()),
                }
            }
            self.queued -= cost;
        }
        if self.was_refused && self.longest.is_some() && self.queued <= self.send_budget / 2 {
            self.was_refused = false;
            self.pending.writable = true;
        }
        self.is_quic_buffer_empty = quic.datagrams().send_buffer_space() >= self.empty_space;
        if self.is_all_sent() {
            self.pending.acknowledged |=
                core::mem::take(&mut self.awaits_acknowledgement) && !self.wants_finish;
        }
        if self.wants_finish && self.is_all_sent() {
            // Not earlier: QUIC fills packets with stream data when a datagram does not fit. An
            // error means that the session is already finished.
            let _ = session.finish();
        }
    }

    fn is_all_sent(&self) -> bool {
        self.outgoing.is_empty() && self.is_quic_buffer_empty
    }

    /// Whether nothing is left to send, and the peer has acknowledged the end, if any.
    pub(super) fn is_all_acknowledged(&self, session: &Session) -> bool {
        self.is_all_sent() && session.is_all_acknowledged()
    }

    /// Takes datagrams from QUIC; new ones displace the oldest.
    pub(super) fn read(&mut self, quic: &mut quinn_proto::Connection) {
        while let Some(message) = quic.datagrams().recv() {
            self.enqueue_received(&message);
        }
    }

    fn enqueue_received(&mut self, message: &[u8]) {
        if message.len() > self.max_message {
            self.counters.overflowed += 1;
            return;
        }
        // Copied, because the datagram would keep the packet's whole buffer, which is not accounted
        // for.
        self.incoming.push(Bytes::copy_from_slice(message));
        while self.incoming.bytes_held() > self.receive_budget && self.incoming.pop().is_some() {
            self.counters.overflowed += 1;
        }
        self.pending.readable = true;
    }

    pub(super) fn recv(&mut self) -> Option<Bytes> {
        let message = self.incoming.pop()?;
        if self.incoming.is_empty() {
            // Many connections are idle.
            self.incoming.trim();
        }
        self.counters.messages_received += 1;
        self.counters.bytes_received += message.len() as u64;
        Some(message)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.incoming.is_empty()
    }

    pub(super) fn pop_event(&mut self, session: &Session) -> Option<Event> {
        session.peer_limits()?;
        let pending = &mut self.pending;
        [
            (&mut pending.readable, Event::Readable),
            (&mut pending.writable, Event::Writable),
            (&mut pending.acknowledged, Event::AllAcknowledged),
        ]
        .into_iter()
        .find_map(|(flag, event)| core::mem::take(flag).then_some(event))
    }

    /// Received bytes that the application has not taken.
    pub(super) fn receive_buffer_bytes(&self) -> usize {
        self.incoming.bytes_held()
    }

    pub(super) fn add_to(&self, stats: &mut ConnectionStats) {
        stats.messages.sent += self.counters.messages_sent;
        stats.messages.bytes_sent += self.counters.bytes_sent;
        stats.messages.received += self.counters.messages_received;
        stats.messages.bytes_received += self.counters.bytes_received;
        stats.messages.expired += self.counters.expired;
        stats.messages.lost += self.counters.overflowed;
        stats.buffers.send_bytes += self.queued as u64;
        stats.buffers.receive_bytes += self.receive_buffer_bytes() as u64;
    }
}

/// Takes the first element, and frees the memory of an empty queue: many connections are idle.
fn take_first<T>(queue: &mut VecDeque<T>) -> Option<T> {
    let first = queue.pop_front()?;
    if queue.is_empty() {
        *queue = VecDeque::new();
    }
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_datagrams_are_bounded_and_the_oldest_are_displaced() {
        let config = TransportConfig {
            receive_budget: MIN_RECEIVE_BUFFER,
            max_message_size: 1_000,
            ..TransportConfig::default()
        };
        let mut datagrams = Datagrams::with_send_space(&config, 0);
        // Exactly 64 messages fit.
        let len = 1_024 - MESSAGE_COST;
        for number in 0..64 {
            datagrams.enqueue_received(&vec![number; len]);
        }
        assert_eq!(
            (datagrams.receive_buffer_bytes(), datagrams.counters.overflowed),
            (MIN_RECEIVE_BUFFER, 0)
        );
        datagrams.enqueue_received(&[]);
        assert_eq!((datagrams.counters.overflowed, datagrams.incoming.len()), (1, 64));
        assert_eq!(datagrams.recv().unwrap(), vec![1; len], "the oldest was displaced");
        datagrams.enqueue_received(&[7; 1_000]);
        assert_eq!(datagrams.counters.overflowed, 1);
        datagrams.enqueue_received(&[7; 1_001]);
        assert_eq!(datagrams.counters.overflowed, 2);
        while datagrams.recv().is_some() {}
        assert_eq!(datagrams.receive_buffer_bytes(), 0);
    }
}
