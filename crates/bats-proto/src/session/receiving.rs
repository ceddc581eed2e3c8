//! The receiving direction of a session, and what links hand to it.

use core::time::Duration;
use std::sync::Arc;

use bats_types::Timestamp;
use bytes::Bytes;

use super::limits::channel_limits;
use super::receive_memory::ReceiveMemory;
use super::streams::{Streams, Totals};
use super::{EndToEnd, Session, TransportConfig, min_receive_budget, receive_budget};
use crate::error::CloseReason;
use crate::event::Event;
use crate::flow::{FlowError, PathView};
use crate::link::{LinkCapacity, LinkRtt, LinkSession, SessionFailure, SessionFrames, earlier};
use crate::wire::frame::Frame;
use crate::wire::parameters::symbol_size_for;
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;

/// Bytes of a coded packet in addition to the symbol, at most.
const CODING_OVERHEAD: usize = 64;

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
        receive_budget(&self.config)
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
        let config = TransportConfig { receive_budget: bytes, ..(*self.config).clone() };
        self.config = Arc::new(config);
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
        self.memory.inbox_room(others, self.memory_limit())
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
        self.counters.messages_received += taken.messages;
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
        let withheld = self.memory.withheld(self.memory_limit(), least);
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
        let budget = receive_budget(&self.config);
        let Some(streams) = &mut self.streams else { return Ok(None) };
        let (taken, arrived) = streams
            .incoming
            .take_early(payload, &mut streams.inbox, budget)
            .map_err(|error| SessionFailure::Violation(error.to_string()))?;
        let counters = &mut self.counters;
        counters.early_messages = counters.early_messages.saturating_add(taken.messages);
        counters.messages_received = counters.messages_received.saturating_add(taken.messages);
        counters.message_bytes_received =
            counters.message_bytes_received.saturating_add(taken.bytes);
        Ok(Some(arrived))
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

    fn on_rank(
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
    fn on_pollution_report(&mut self, number: u64) -> Result<(), SessionFailure> {
        let Some(end_to_end) = self.transport.end_to_end_mut() else {
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

impl LinkSession for Session {
    fn has_data(&self) -> bool {
        self.streams.as_ref().is_some_and(Streams::has_data)
    }

    fn awaits_decoding(&self) -> bool {
        self.streams.as_ref().is_some_and(|streams| streams.outgoing.awaits_decoding())
    }

    fn next_coded(
        &mut self,
        now: Timestamp,
        path_mtu: u16,
        view: &PathView,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        let streams = self.streams.as_mut()?;
        let symbol_size = symbol_size_for(path_mtu).min(streams.max_symbol_size);
        let had_end = streams.outgoing.end().is_some();
        let kind = streams.poll(now, symbol_size, view, None, out);
        // The last message has been cut into symbols: the totals for the END frame are known.
        self.control.announce_end(had_end, streams.outgoing.end().is_some());
        kind
    }

    fn is_control_due(&mut self, now: Timestamp) -> bool {
        let feedback_at = self.streams.as_ref().and_then(|s| s.incoming.feedback_at());
        if feedback_at.is_some_and(|at| at <= now) {
            self.control.report_ranks();
        }
        self.control.is_due()
    }

    fn is_end_due(&self) -> bool {
        self.control.is_end_due()
    }

    fn next_control(&mut self, now: Timestamp, rtt: LinkRtt) -> SessionFrames {
        let rtt = self.transport.report_rtt(rtt);
        self.control.take(now, self.streams.as_mut(), rtt)
    }

    fn last_feedback(&mut self, now: Timestamp, rtt: LinkRtt) -> Option<RankFeedback> {
        let rtt = self.transport.report_rtt(rtt);
        self.streams.as_mut()?.incoming.feedback(now, rtt)
    }

    fn on_nothing_sent(&mut self, capacity: impl FnOnce() -> LinkCapacity) {
        if !self.notifications.awaits_space() {
            return;
        }
        let Some(streams) = &self.streams else { return };
        // Expired messages free send-buffer space without an acknowledgement, so notify the
        // application here. Do so only when more have expired: otherwise notifications could
        // repeat endlessly at one instant.
        let is_new = self.notifications.on_expired(streams.outgoing.expired());
        if is_new || streams.outgoing.bytes_held() == 0 {
            self.update_application(&capacity());
        }
    }

    /// Whether there is memory for a data packet. Credit alone does not ensure memory, because the credit of
    /// all connections together exceeds the endpoint's memory.
    fn may_take_packet(&mut self, now: Timestamp) -> Result<bool, SessionFailure> {
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

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn on_coded(
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
            let over_relays = self.transport.is_relays();
            let is_malformed = over_relays || error == FlowError::Malformed;
            self.counters.malformed =
                self.counters.malformed.saturating_add(u64::from(is_malformed));
            if over_relays {
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

    fn max_payload(&self) -> usize {
        self.streams.as_ref().map_or(0, |streams| streams.max_symbol_size + CODING_OVERHEAD)
    }

    fn may_read_ranks(&self, now: Timestamp) -> bool {
        self.rank_budget.has_left(now)
    }

    fn on_frame(
        &mut self,
        now: Timestamp,
        frame: Frame<'_>,
        view: &PathView,
    ) -> Result<(), SessionFailure> {
        match frame {
            Frame::Rank(feedback) => return self.on_rank(now, feedback, view),
            Frame::SymbolPolluted(number) => return self.on_pollution_report(number),
            Frame::Credit(symbols) => {
                if let Some(streams) = &mut self.streams {
                    streams.outgoing.on_credit(symbols);
                }
            }
            Frame::End { symbols, messages } => {
                let until = now + self.config.deadline;
                if let Some(streams) = &mut self.streams {
                    streams.incoming.on_end(Totals { symbols, messages }, until);
                    streams.incoming.on_timeout(now);
                }
            }
            // The others are those of the link.
            _ => {}
        }
        Ok(())
    }

    fn on_end_acknowledged(&mut self) {
        if let Some(streams) = &mut self.streams {
            streams.outgoing.on_end_acknowledged();
        }
    }

    fn on_lost(&mut self, credit: bool, end: bool) {
        self.control.on_lost(credit, end);
    }

    fn on_probe_timeout(&mut self, packets: u64) -> bool {
        self.streams.as_mut().is_some_and(|streams| streams.outgoing.on_probe_timeout(packets))
    }

    fn on_path_lost(&mut self, now: Timestamp, view: &PathView, is_limited: bool) {
        let view = self.transport.view(view);
        if let Some(streams) = &mut self.streams {
            streams.outgoing.on_path_lost(now, &view, is_limited);
        }
    }

    fn report_soon(&mut self) {
        self.control.report_ranks();
    }

    fn handle_timeout(&mut self, now: Timestamp, view: &PathView) {
        self.control.handle_timeout(now);
        let view = self.transport.view(view);
        if let Some(streams) = &mut self.streams {
            let had_end = streams.outgoing.end().is_some();
            streams.outgoing.on_timeout(now, &view);
            streams.incoming.on_timeout(now);
            self.control.announce_end(had_end, streams.outgoing.end().is_some());
        }
    }

    fn next_timeout(&self, may_send: bool) -> Option<Timestamp> {
        earlier(self.control.next_timeout(), self.next_stream_timeout(may_send))
    }

    fn trim(&mut self) {
        self.notifications.trim();
        if let Some(streams) = &mut self.streams {
            streams.trim();
        }
    }

    fn on_accepted(&mut self) {
        self.notifications.push(Event::Connected);
    }

    fn on_closed_by_peer(&mut self) {
        if let Some(streams) = &mut self.streams {
            streams.incoming.on_closed();
        }
    }

    fn on_closed(&mut self, reason: CloseReason) {
        self.notifications.push(Event::Closed(reason));
    }
}
