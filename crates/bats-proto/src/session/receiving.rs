//! The receiving direction of a session.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::limits::channel_limits;
use super::receive_memory::ReceiveMemory;
use super::streams::{Receiving, Streams};
use super::{EndToEnd, Session, min_receive_budget};
use crate::event::Event;
use crate::flow::FlowError;
use crate::link::{LinkRtt, SessionFailure};
use crate::wire::short_header::PacketKind;

impl Session {
    /// Next message in order; see [`crate::Endpoint::recv`]. Its memory may let symbols go on:
    /// then the failure of the session may follow.
    pub(crate) fn recv(
        &mut self,
        now: Timestamp,
        smoothed_rtt: Duration,
    ) -> (Option<Bytes>, Result<(), SessionFailure>) {
        let Some(streams) = &mut self.streams else { return (None, Ok(())) };
        let Some(message) = streams.inbox.pop() else {
            let is_finished = self.is_finished();
            self.notifications.on_all_read(is_finished);
            return (None, Ok(()));
        };
        if let Some(channels) = streams.channels.as_deref_mut() {
            channels.on_message_taken(message.len());
        }
        self.counters.messages_received += 1;
        (Some(message), self.take_symbols(now, smoothed_rtt))
    }

    /// Whether the peer has finished and the application has read every message.
    pub(crate) fn is_finished(&self) -> bool {
        self.streams.as_ref().is_some_and(|s| s.incoming.is_finished() && s.inbox.is_empty())
    }

    /// Bytes received that the application has not read.
    pub(crate) fn receive_buffer_bytes(&self) -> usize {
        self.streams.as_ref().map_or(0, Streams::receive_buffer_bytes)
    }

    /// Bytes of received data that the connection may hold now.
    pub(crate) fn memory(&self) -> usize {
        self.memory.bytes()
    }

    /// Bytes of received data that the connection may hold if there is memory. Its credit is for
    /// these.
    pub(crate) fn memory_limit(&self) -> usize {
        self.memory.limit()
    }

    /// Whether the endpoint has less memory than the connection needs.
    pub(crate) fn is_short_of_memory(&self) -> bool {
        self.memory.is_short()
    }

    /// Bytes of memory that the connection needs for what it holds, the rest of the message under
    /// assembly, and the next packet; `None` before it is established.
    pub(crate) fn memory_demand(&self) -> Option<usize> {
        let (streams, limit) = (self.streams.as_ref()?, self.memory_limit());
        Some(ReceiveMemory::demand(streams.memory_needed(self.memory_for_packet(), limit), limit))
    }

    /// Sets the memory of the connection. Returns whether symbols that waited for room were taken.
    pub(crate) fn set_memory(
        &mut self,
        now: Timestamp,
        bytes: usize,
        is_short: bool,
        smoothed_rtt: Duration,
    ) -> Option<Result<(), SessionFailure>> {
        // Symbols may have waited for room, and the credit may have been limited.
        self.memory.set(bytes, is_short).then(|| self.take_symbols(now, smoothed_rtt))
    }

    /// Raises the limit of the memory of an established connection.
    pub(crate) fn raise_receive_budget(
        &mut self,
        now: Timestamp,
        bytes: usize,
        smoothed_rtt: Duration,
    ) {
        self.memory.raise_limit(bytes.max(min_receive_budget(&self.config)));
        if let Some(streams) = &mut self.streams {
            streams.raise_budget(bytes, channel_limits(&self.config, bytes));
        }
        self.update_credit(now, smoothed_rtt);
    }

    /// What is held when another packet has been taken.
    fn memory_for_packet(&self) -> usize {
        let growth = self.streams.as_ref().map_or(0, |streams| streams.incoming.growth());
        ReceiveMemory::for_packet(self.receive_buffer_bytes(), growth)
    }

    fn refuse_packet(&mut self, now: Timestamp) -> Result<bool, SessionFailure> {
        self.counters.refused_for_memory += 1;
        let missing = self.memory.on_refused(now, self.memory_for_packet());
        // An application that does not read is itself the cause.
        let is_unread = self.streams.as_ref().is_some_and(|streams| !streams.inbox.is_empty());
        match missing {
            Some(missing) if !is_unread => Err(SessionFailure::Memory(missing)),
            _ => Ok(false),
        }
    }

    /// Bytes that complete messages may occupy, and whether more of them replace the oldest ones in
    /// modes that do not repair everything.
    fn inbox_room(&self) -> (usize, bool) {
        let unread = self.streams.as_ref().map_or(0, |streams| streams.inbox.bytes_held());
        // Symbols may wait within the credit that was given before the messages took memory.
        let others = self.receive_buffer_bytes() - unread;
        self.memory.inbox_room(others)
    }

    /// Whether symbols wait although there is room.
    fn has_room_for_ready(&self) -> bool {
        let (room, _) = self.inbox_room();
        let has_room =
            |streams: &Streams| streams.incoming.has_ready() && streams.inbox.has_room(room);
        self.streams.as_ref().is_some_and(has_room)
    }

    /// Whether symbols wait for room although the endpoint may have more memory.
    pub(crate) fn waits_for_charge(&self) -> bool {
        let (_, is_final) = self.inbox_room();
        !is_final && self.streams.as_ref().is_some_and(|streams| streams.incoming.has_ready())
    }

    /// Reassembles messages from received symbols, as far as there is room.
    fn take_symbols(
        &mut self,
        now: Timestamp,
        smoothed_rtt: Duration,
    ) -> Result<(), SessionFailure> {
        // Pollution beyond the limit closes the connection, but what is authentic can be read.
        let mut result = Ok(());
        loop {
            let before = self.inbox_room();
            if self.streams.is_none() {
                return result;
            }
            match self.take_symbols_within(before) {
                Ok(taken) => result = result.and(taken),
                Err(failure) => return result.and(Err(failure)),
            }
            // What the session has taken, the flow no longer holds.
            if self.inbox_room().0 <= before.0 || !self.has_room_for_ready() {
                break;
            }
        }
        // Otherwise the endpoint sets the memory, and this is called again.
        if !self.waits_for_charge() {
            if let Some(streams) = &mut self.streams {
                streams.incoming.on_timeout(now);
            }
            self.update_credit(now, smoothed_rtt);
        }
        result
    }

    /// Takes symbols as far as there is room. The outer error ends the session at once.
    fn take_symbols_within(
        &mut self,
        room: (usize, bool),
    ) -> Result<Result<(), SessionFailure>, SessionFailure> {
        let Some(streams) = &mut self.streams else { return Ok(Ok(())) };
        let taken = streams
            .take(room, self.transport.opener())
            .map_err(|error| SessionFailure::Violation(error.to_string()))?;
        self.counters.message_bytes_received += taken.bytes;
        if taken.opened > 0
            && let Some(end_to_end) = self.transport.end_to_end_mut()
        {
            end_to_end.pollution().on_authentic();
        }
        Ok(self.on_polluted(taken.polluted, taken.attributable))
    }

    /// Schedules a CREDIT frame when the application has freed enough of the receive budget.
    fn update_credit(&mut self, now: Timestamp, smoothed_rtt: Duration) {
        let least = min_receive_budget(&self.config);
        let withheld = self.memory.withheld(least);
        let rtt = self.transport.round_trip(smoothed_rtt);
        let streams = self.streams.as_mut();
        if streams.is_some_and(|streams| streams.update_credit(now, rtt, withheld)) {
            self.control.announce_credit();
        }
    }

    /// Checks a source symbol on arrival, before it can pollute repairs. This happens only after
    /// the first pollution.
    ///
    /// # Errors
    ///
    /// The number of the symbol, if it is polluted.
    fn check_source_symbol(&mut self, kind: PacketKind, payload: &[u8]) -> Result<(), u64> {
        if self.counters.symbols_polluted == 0 || kind != PacketKind::Source {
            return Ok(());
        }
        let (Some(end_to_end), Some(streams)) = (self.transport.end_to_end_mut(), &self.streams)
        else {
            return Ok(());
        };
        match streams.incoming.source(payload) {
            Some((number, symbol)) if !end_to_end.is_authentic(number, symbol) => Err(number),
            _ => Ok(()),
        }
    }

    /// Counts polluted symbols, blocks or packets; `attributable` is the number of one that only
    /// packets of its own batch can have polluted.
    fn on_polluted(&mut self, count: u64, attributable: Option<u64>) -> Result<(), SessionFailure> {
        if count == 0 {
            return Ok(());
        }
        if self.counters.symbols_polluted == 0 {
            self.notifications.push(Event::PollutionDetected);
        }
        self.counters.symbols_polluted += count;
        let Some(end_to_end) = self.transport.end_to_end_mut() else { return Ok(()) };
        if let Some(number) = attributable {
            self.control.report_pollution(number);
        }
        let are_blocks =
            self.streams.as_ref().is_some_and(|streams| streams.incoming.seals_blocks());
        match end_to_end.pollution().on_polluted(count, are_blocks) {
            Some(in_a_row) => Err(SessionFailure::Pollution(in_a_row)),
            None => Ok(()),
        }
    }

    /// Delivers a payload of early data at a server. Returns the early messages delivered so far, as a bit
    /// mask by message number.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(crate) fn take_early(&mut self, payload: &[u8]) -> Result<Option<u32>, SessionFailure> {
        let budget = self.memory_limit();
        let Some(streams) = &mut self.streams else { return Ok(None) };
        let taken = streams
            .incoming
            .take_early(payload, &mut streams.inbox, budget)
            .map_err(|error| SessionFailure::Violation(error.to_string()))?;
        let counters = &mut self.counters;
        counters.early_messages = counters.early_messages.saturating_add(taken.messages);
        counters.message_bytes_received =
            counters.message_bytes_received.saturating_add(taken.bytes);
        Ok(Some(taken.delivered))
    }

    /// Marks early messages (a bit mask) that another connection has already delivered.
    pub(crate) fn record_early(&mut self, delivered: u32) {
        if let Some(streams) = &mut self.streams {
            streams.incoming.record_early(delivered);
        }
    }

    /// A coded packet of an end-to-end session arrives over links whose longest RTT is `slowest`.
    pub(crate) fn set_slowest_inbound(&mut self, slowest: Duration, smoothed_rtt: Duration) {
        let end_to_end = self.transport.end_to_end_mut();
        if end_to_end.is_some_and(|end_to_end| end_to_end.set_slowest_inbound(slowest)) {
            self.update_feedback_delay(smoothed_rtt);
        }
    }

    /// Holds a coded packet of an end-to-end session until the handshake is complete.
    pub(crate) fn hold_end_to_end(&mut self, kind: PacketKind, payload: &[u8]) {
        if let Some(end_to_end) = self.transport.end_to_end_mut() {
            end_to_end.hold(kind, payload);
        }
    }

    /// Whether the receiver of an end-to-end session must send a keep-alive.
    pub(crate) fn takes_keep_alive(&mut self, now: Timestamp, idle_timeout: Duration) -> bool {
        let end_to_end = self.transport.end_to_end_mut();
        end_to_end
            .is_some_and(|end_to_end: &mut EndToEnd| end_to_end.takes_keep_alive(now, idle_timeout))
    }

    /// Whether there is memory for a data packet. Credit alone does not ensure memory, because the credit of
    /// all connections together exceeds the endpoint's memory.
    pub(super) fn make_room(&mut self, now: Timestamp) -> Result<bool, SessionFailure> {
        // At its limit the connection is limited by credit alone.
        if self.memory.bytes() >= self.memory_limit() || self.streams.is_none() {
            return Ok(true);
        }
        while !self.memory.has_room(self.memory_for_packet()) {
            if !self.streams.as_mut().is_some_and(Streams::free_some) {
                return self.refuse_packet(now);
            }
        }
        self.memory.on_taken();
        Ok(true)
    }

    /// Takes a coded payload, and what can be read with it.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn take_coded(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        payload: &[u8],
        rtt: LinkRtt,
    ) -> Result<(), SessionFailure> {
        let report_rtt = self.transport.report_rtt(rtt);
        if let Err(number) = self.check_source_symbol(kind, payload) {
            return self.on_polluted(1, Some(number));
        }
        let Some(streams) = &mut self.streams else { return Ok(()) };
        if let Err(error) = streams.incoming.on_packet(now, kind, payload, report_rtt) {
            let may_be_polluted = self.transport.may_pollute();
            let is_malformed = may_be_polluted || error == FlowError::Malformed;
            self.counters.malformed =
                self.counters.malformed.saturating_add(u64::from(is_malformed));
            if may_be_polluted {
                // A relay may have changed the packet, so the peer is not to blame.
                return self.on_polluted(1, None);
            }
            return Err(SessionFailure::Violation(error.to_string()));
        }
        let result = self.take_symbols(now, rtt.smoothed);
        if let Some(streams) = &self.streams {
            self.control.advance_feedback(streams.incoming.feedback_at());
        }
        result
    }
}
