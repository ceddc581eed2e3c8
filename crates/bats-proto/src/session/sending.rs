//! The sending direction of a session: the application's messages, and the coded packets that links pull.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::end_to_end::{EndToEnd, FirstLink};
use super::streams::{Outgoing, Sending, Streams};
use super::{Session, SessionTransport, TransportConfig};
use crate::error::SendError;
use crate::flow::PathView;
use crate::link::{LinkCapacity, LinkSession, SessionFailure};
use crate::wire::parameters::symbol_size_for;
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;

/// Size of the send window in congestion windows. A congestion window is about two BDP. Data whose
/// loss a top-up repairs stays held for two BDP, and data in flight needs a third.
const SEND_WINDOW_CWNDS: usize = 2;
/// Lower bounds of the send window in bytes, unless the budget is less. The initial one applies
/// before the path is measured, so that Startup does not wait for the application. The later one
/// is smaller, because a slow path would need minutes to send what was accepted at once.
const INITIAL_SEND_WINDOW: usize = 4 << 20;
const MIN_SEND_WINDOW: usize = 128 << 10;
/// Longest deadline of a message. Chosen so that sums of times cannot overflow.
pub(super) const MAX_DEADLINE: Duration = Duration::from_secs(3_600);

/// The time until a message expires.
fn deadline_of(config: &TransportConfig, deadline: Option<Duration>) -> Duration {
    deadline.unwrap_or(config.deadline).min(MAX_DEADLINE)
}

/// Bytes of a session that may be held for sending now.
///
/// Accepting more than a few BDP would only let data age here, and the application's counters would
/// run ahead of the network. Data kept for repair does not count against new data.
fn send_window(
    config: &TransportConfig,
    transport: &SessionTransport,
    outgoing: &Outgoing,
    capacity: &LinkCapacity,
) -> usize {
    let path_window = usize::try_from(transport.path_window(capacity)).unwrap_or(usize::MAX);
    let with_repairs = outgoing.flow_bytes().saturating_add(path_window);
    let window = path_window.saturating_mul(SEND_WINDOW_CWNDS).max(with_repairs);
    let is_measured = transport.is_measured(capacity);
    let min_window = if is_measured { MIN_SEND_WINDOW } else { INITIAL_SEND_WINDOW };
    // Do not accept data that would expire in the queue.
    let in_time = if outgoing.is_timely() { transport.bytes_in(config.deadline / 2) } else { None };
    let max_window = in_time.map_or(usize::MAX, |bytes| {
        usize::try_from(bytes).unwrap_or(usize::MAX).saturating_add(outgoing.flow_bytes())
    });
    window.min(max_window).max(min_window).min(config.send_budget)
}

impl Session {
    /// Whether messages can be sent as data; before that there is only early data.
    pub(crate) fn has_streams(&self) -> bool {
        self.streams.is_some()
    }

    /// Accepts a message for sending on an established session; see [`crate::Endpoint::send`].
    pub(crate) fn send(
        &mut self,
        now: Timestamp,
        message: Bytes,
        deadline: Option<Duration>,
        capacity: &LinkCapacity,
    ) -> Result<(), SendError> {
        let Some(streams) = &mut self.streams else { return Err(SendError::Closed) };
        if streams.outgoing.is_finished() {
            return Err(SendError::Finished);
        }
        if message.len() > streams.peer_max_message {
            return Err(SendError::TooLarge {
                size: message.len(),
                limit: streams.peer_max_message,
            });
        }
        let held = streams.outgoing.bytes_held();
        let record = capacity.record_bytes;
        let window = send_window(&self.config, &self.transport, &streams.outgoing, capacity);
        let budget = self.config.send_budget;
        // Accept one message larger than the budget when nothing else is held, so that every
        // message that the peer accepts can be sent.
        let is_full = held > 0 && (held >= window || held + record + message.len() > budget);
        if is_full || record >= budget {
            self.notifications.on_refused(message.len());
            return Err(SendError::Blocked(message));
        }
        self.counters.messages_sent += 1;
        self.counters.message_bytes_sent += message.len() as u64;
        let expires = now + deadline_of(&self.config, deadline);
        streams.outgoing.push(message, expires);
        self.notifications.on_sending();
        Ok(())
    }

    /// When a message expires that is sent now as early data.
    pub(crate) fn early_expiry(&self, now: Timestamp, deadline: Option<Duration>) -> Timestamp {
        now + deadline_of(&self.config, deadline)
    }

    /// A message of `len` bytes is sent as early data.
    pub(crate) fn on_early_sent(&mut self, len: usize) {
        self.counters.messages_sent += 1;
        self.counters.message_bytes_sent += len as u64;
        self.counters.early_messages += 1;
        self.notifications.on_sending();
    }

    /// A message of `len` bytes does not fit the first flight, so the application must wait.
    pub(crate) fn on_early_refused(&mut self, len: usize) {
        self.notifications.on_refused_early(len);
    }

    /// Client, when the handshake completes: sends the early messages that the server does not have
    /// as normal data. Messages keep their numbers, so that none is delivered twice. The server has
    /// the first `arrived` of them.
    pub(crate) fn resend_unaccepted_early(
        &mut self,
        messages: impl IntoIterator<Item = (Bytes, Timestamp)>,
        arrived: usize,
    ) {
        let Some(streams) = &mut self.streams else { return };
        streams.outgoing.skip(arrived as u64);
        self.counters.early_accepted = arrived as u64;
        for (message, expires) in messages.into_iter().skip(arrived) {
            // A changed server may accept only shorter messages: then this one counts as expired.
            let fits = message.len() <= streams.peer_max_message;
            let (message, expires) =
                if fits { (message, expires) } else { (Bytes::new(), Timestamp::ZERO) };
            streams.outgoing.push(message, expires);
        }
    }

    /// Ends the sending direction; see [`crate::Endpoint::finish`].
    pub(crate) fn finish(&mut self) -> Result<(), SendError> {
        let Some(streams) = &mut self.streams else { return Err(SendError::Closed) };
        streams.outgoing.finish();
        self.control.set_end(streams.outgoing.end().is_some());
        self.notifications.on_sending();
        Ok(())
    }

    /// Whether the peer has acknowledged everything.
    pub(crate) fn is_all_acknowledged(&self) -> bool {
        self.streams.as_ref().is_some_and(Streams::is_all_acknowledged)
    }

    /// Whether there is space for the message that was refused last.
    pub(super) fn is_writable(&self, streams: &Streams, capacity: &LinkCapacity) -> bool {
        let held = streams.outgoing.bytes_held();
        let window = send_window(&self.config, &self.transport, &streams.outgoing, capacity);
        let (record, budget) = (capacity.record_bytes, self.config.send_budget);
        let refused = self.notifications.refused_bytes();
        let fits = record < budget && (held == 0 || held + record + refused <= budget);
        held <= window / 4 * 3 && fits
    }

    /// Whether links of the relay have coded packets of this session to send.
    pub(crate) fn has_end_to_end_data(&self) -> bool {
        self.transport.is_relays() && self.has_data()
    }

    /// Bytes that an end-to-end session has not handed to a link yet.
    pub(crate) fn end_to_end_backlog(&self) -> u64 {
        self.streams.as_ref().map_or(0, |streams| streams.outgoing.unsent_bytes() as u64)
    }

    /// Whether symbols are reserved for this link.
    pub(crate) fn has_assigned(&self, link: u64) -> bool {
        self.streams.as_ref().is_some_and(|streams| streams.outgoing.has_assigned(link))
    }

    /// Lets other links send the symbols that were reserved for this one.
    pub(crate) fn release_assigned(&mut self, link: u64) {
        if let Some(streams) = &mut self.streams {
            streams.outgoing.release_assigned(link);
        }
    }

    /// Takes the link that a reported polluted symbol was sent over; each report once.
    pub(crate) fn take_polluting_link(&mut self) -> Option<u64> {
        self.transport.end_to_end_mut()?.pollution().take_polluting_link()
    }

    /// Writes the next coded packet of an end-to-end session for a link of the relay. `measured` and `capacity` are
    /// those of end-to-end packets.
    pub(crate) fn poll_end_to_end(
        &mut self,
        now: Timestamp,
        first: &FirstLink,
        measured: &PathView,
        capacity: impl FnOnce() -> LinkCapacity,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        let end_to_end = self.transport.end_to_end_mut()?;
        end_to_end.on_polled(first);
        let path = end_to_end.view(measured);
        let streams = self.streams.as_mut()?;
        let size = symbol_size_for(first.room()).min(streams.max_symbol_size);
        if !end_to_end.may_send() {
            return None;
        }
        let seal = end_to_end.sealer();
        streams.outgoing.set_link(first.of_several());
        let had_end = streams.outgoing.end().is_some();
        let kind = streams.poll(now, size, &path, seal, out);
        // The remaining messages may have expired: then there is an end but no packet.
        self.control.announce_end(had_end, streams.outgoing.end().is_some());
        if self.notifications.awaits_space() {
            // Without acknowledgements only sending frees send-buffer space.
            self.update_application(&capacity());
        }
        let kind = kind?;
        if let (Some(streams), Some(link)) = (&self.streams, first.of_several())
            && let Some(end_to_end) = self.transport.end_to_end_mut()
            && end_to_end.seals_symbols()
        {
            let number = streams.outgoing.number_of(kind, out);
            end_to_end.pollution().record_first_link(number, link);
        }
        Some(kind)
    }

    /// A link of the relay sends a coded packet. Returns whether the peer must answer; see
    /// [`EndToEnd::on_sent`].
    pub(crate) fn on_end_to_end_sent(
        &mut self,
        now: Timestamp,
        idle_time: (Timestamp, Duration),
    ) -> bool {
        let end_to_end = self.transport.end_to_end_mut();
        end_to_end.is_some_and(|end_to_end: &mut EndToEnd| end_to_end.on_sent(now, idle_time))
    }

    /// The peer reports which ranks it has.
    pub(super) fn on_rank(
        &mut self,
        now: Timestamp,
        mut feedback: RankFeedback,
        link: &PathView,
    ) -> Result<(), SessionFailure> {
        let view = self.transport.view(link);
        if self.transport.is_relays() {
            if let Some(streams) = &self.streams {
                // A misbehaving relay may have forged numbers that the peer now reports.
                streams.outgoing.limit(&mut feedback);
            }
            self.transport.on_report(now, feedback.coded, link.smoothed_rtt);
            self.update_feedback_delay(link.smoothed_rtt);
        }
        if !self.rank_budget.take(now) {
            return Ok(());
        }
        let Some(streams) = &mut self.streams else { return Ok(()) };
        streams
            .outgoing
            .on_rank_feedback(now, &feedback, &view)
            .map_err(|error| SessionFailure::Violation(error.to_string()))
    }

    /// The peer reports a polluted symbol or block.
    pub(super) fn on_pollution_report(&mut self, number: u64) -> Result<(), SessionFailure> {
        let end_to_end = self.transport.end_to_end_mut();
        let Some(end_to_end) = end_to_end.filter(|end_to_end| end_to_end.seals_symbols()) else {
            let rule = "pollution report outside an end-to-end session";
            return Err(SessionFailure::Violation(rule.to_owned()));
        };
        end_to_end.pollution().on_report(number);
        if let Some(streams) = &mut self.streams {
            streams.outgoing.on_polluted();
        }
        Ok(())
    }
}
