//! Messages as datagrams of QUIC (RFC 9221): each arrives once or not at all.
//!
//! The stream carries greetings, the end and the close, and no message. Congestion control is QUIC's,
//! so that messages may have to wait; one that waited for longer than its deadline is not sent.

use std::collections::VecDeque;
use std::time::Duration;

use bats_proto::stream::Session;
use bats_proto::{ConnectionStats, Event, SendError, Timestamp, TransportConfig};
use bytes::Bytes;
use quinn_proto::SendDatagramError;

/// Bytes that QUIC itself holds: what is there has no deadline any more.
pub(super) const BELOW: usize = 64 << 10;
/// Bytes that wait for QUIC before a message is refused; more would only wait longer.
const SEND_QUEUE: usize = 4 << 20;
/// Least memory for what has arrived, whatever the budget.
const LEAST_RECEIVED: usize = 64 << 10;
/// What a message counts beside its bytes.
const MESSAGE_COST: usize = 64;
/// A deadline is an hour at most.
const MAX_DEADLINE: Duration = Duration::from_secs(3_600);

/// The messages of one connection.
pub(super) struct Datagrams {
    outgoing: VecDeque<(Bytes, Timestamp)>,
    queued: usize,
    send_budget: usize,
    deadline: Duration,
    incoming: VecDeque<Bytes>,
    held: usize,
    receive_budget: usize,
    max_message: usize,
    /// Bytes of the longest datagram that passes now; none before the handshake is done.
    longest: Option<usize>,
    /// QUIC's free room while it holds nothing.
    empty: usize,
    is_all_below_sent: bool,
    /// QUIC takes no more for now.
    is_full: bool,
    was_refused: bool,
    wants_finish: bool,
    waits: bool,
    due: Due,
    counters: Counters,
}

/// What the application is to be told, each once however often it happened.
#[derive(Default)]
struct Due {
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
    /// Too old, or too long for a path that has changed.
    expired: u64,
    /// Not taken in time by the application.
    overflowed: u64,
}

impl Datagrams {
    pub(super) fn new(config: &TransportConfig, quic: &mut quinn_proto::Connection) -> Self {
        Self::with_room(config, quic.datagrams().send_buffer_space())
    }

    /// With the room that QUIC has while it holds nothing.
    fn with_room(config: &TransportConfig, empty: usize) -> Self {
        Self {
            outgoing: VecDeque::new(),
            queued: 0,
            send_budget: SEND_QUEUE.min(config.send_budget),
            deadline: config.deadline,
            incoming: VecDeque::new(),
            held: 0,
            receive_budget: config.receive_budget.max(LEAST_RECEIVED),
            max_message: config.max_message_size,
            longest: None,
            empty,
            is_all_below_sent: true,
            is_full: false,
            was_refused: false,
            wants_finish: false,
            waits: false,
            due: Due::default(),
            counters: Counters::default(),
        }
    }

    pub(super) fn longest(&self) -> Option<usize> {
        self.longest
    }

    /// Looks at what passes now; `false` if the peer takes no datagrams.
    pub(super) fn look_at_path(&mut self, quic: &mut quinn_proto::Connection) -> bool {
        self.longest = quic.datagrams().max_size();
        self.longest.is_some()
    }

    pub(super) fn on_unblocked(&mut self) {
        self.is_full = false;
    }

    /// As [`Session::send`].
    pub(super) fn send(
        &mut self,
        now: Timestamp,
        session: &Session,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        if session.is_over() {
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
        (self.waits, self.due.acknowledged) = (true, false);
        Ok(())
    }

    /// As [`Session::finish`], once everything before it has left.
    pub(super) fn finish(&mut self, session: &Session) -> Result<(), SendError> {
        if session.is_over() {
            return Err(SendError::Closed);
        }
        if self.wants_finish {
            return Err(SendError::Finished);
        }
        self.wants_finish = true;
        Ok(())
    }

    /// Hands to QUIC what it takes.
    pub(super) fn write(
        &mut self,
        now: Timestamp,
        quic: &mut quinn_proto::Connection,
        session: &mut Session,
    ) {
        if session.is_over() {
            self.outgoing.clear();
            self.queued = 0;
            return;
        }
        while !self.is_full
            && let Some((message, until)) = self.outgoing.pop_front()
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
                    // The path has become narrower since it was accepted.
                    Err(SendDatagramError::TooLarge) => self.counters.expired += 1,
                    Err(error) => return session.on_lost(&error.to_string()),
                }
            }
            self.queued -= cost;
        }
        if self.was_refused && self.longest.is_some() && self.queued <= self.send_budget / 2 {
            self.was_refused = false;
            self.due.writable = true;
        }
        self.is_all_below_sent = quic.datagrams().send_buffer_space() >= self.empty;
        if self.is_all_sent() {
            self.due.acknowledged |= core::mem::take(&mut self.waits) && !self.wants_finish;
        }
        if self.wants_finish && self.is_all_sent() {
            // Not earlier: where a datagram does not fit, QUIC fills the packet from the stream. Said
            // before is said.
            let _ = session.finish();
        }
    }

    fn is_all_sent(&self) -> bool {
        self.outgoing.is_empty() && self.is_all_below_sent
    }

    /// Whether nothing would be sent any more, and the peer knows of the end if there is one.
    pub(super) fn is_all_acknowledged(&self, session: &Session) -> bool {
        self.is_all_sent() && session.is_all_acknowledged()
    }

    /// Takes what has arrived. The oldest make room for new ones.
    pub(super) fn read(&mut self, quic: &mut quinn_proto::Connection) {
        while let Some(message) = quic.datagrams().recv() {
            self.hold(&message);
        }
    }

    fn hold(&mut self, message: &[u8]) {
        if message.len() > self.max_message {
            self.counters.overflowed += 1;
            return;
        }
        self.held += message.len() + MESSAGE_COST;
        // A copy: the datagram would keep the packet's whole buffer, which nobody has counted.
        self.incoming.push_back(Bytes::copy_from_slice(message));
        while self.held > self.receive_budget
            && let Some(oldest) = self.incoming.pop_front()
        {
            self.held -= oldest.len() + MESSAGE_COST;
            self.counters.overflowed += 1;
        }
        self.due.readable = true;
    }

    pub(super) fn recv(&mut self) -> Option<Bytes> {
        let message = self.incoming.pop_front()?;
        self.held -= message.len() + MESSAGE_COST;
        self.counters.messages_received += 1;
        self.counters.bytes_received += message.len() as u64;
        Some(message)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.incoming.is_empty()
    }

    pub(super) fn pop_event(&mut self, session: &Session) -> Option<Event> {
        session.peer_limits()?;
        let due = &mut self.due;
        [
            (&mut due.readable, Event::Readable),
            (&mut due.writable, Event::Writable),
            (&mut due.acknowledged, Event::AllAcknowledged),
        ]
        .into_iter()
        .find_map(|(flag, event)| core::mem::take(flag).then_some(event))
    }

    /// Bytes that nobody has taken.
    pub(super) fn receive_buffer_bytes(&self) -> usize {
        self.held
    }

    pub(super) fn complete(&self, stats: &mut ConnectionStats) {
        stats.messages_sent += self.counters.messages_sent;
        stats.message_bytes_sent += self.counters.bytes_sent;
        stats.messages_received += self.counters.messages_received;
        stats.message_bytes_received += self.counters.bytes_received;
        stats.messages_expired += self.counters.expired;
        stats.messages_lost += self.counters.overflowed;
        stats.send_buffer_bytes += self.queued as u64;
        stats.receive_buffer_bytes += self.held as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_the_application_is_bounded_and_the_oldest_make_room() {
        let config = TransportConfig {
            receive_budget: LEAST_RECEIVED,
            max_message_size: 1_000,
            ..TransportConfig::default()
        };
        let mut datagrams = Datagrams::with_room(&config, 0);
        // So many fit to the byte.
        let len = 1_024 - MESSAGE_COST;
        for number in 0..64 {
            datagrams.hold(&vec![number; len]);
        }
        assert_eq!((datagrams.held, datagrams.counters.overflowed), (LEAST_RECEIVED, 0));
        datagrams.hold(&[]);
        assert_eq!((datagrams.counters.overflowed, datagrams.incoming.len()), (1, 64));
        assert_eq!(datagrams.recv().unwrap(), vec![1; len], "the oldest has made room");
        datagrams.hold(&[7; 1_000]);
        assert_eq!(datagrams.counters.overflowed, 1);
        datagrams.hold(&[7; 1_001]);
        assert_eq!(datagrams.counters.overflowed, 2);
        while datagrams.recv().is_some() {}
        assert_eq!(datagrams.held, 0);
    }
}
