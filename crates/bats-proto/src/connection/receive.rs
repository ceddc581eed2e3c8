//! Receiving: handshake packets, data packets and their frames.

use bats_types::Timestamp;

use super::end_to_end::RelayInput;
use super::fragments::FragmentAssembly;
use super::protection::{OpenError, PacketProtection};
use super::streams::Totals;
use super::timeouts::{FULL_BACKOFF, RESTORING, SMALL_PROBES_FROM, SMALL_PROBES_IN_A_ROW};
use super::{Connection, MAX_ACK_DELAY, Role};
use crate::congestion::AckSample;
use crate::endpoint::Received;
use crate::error::CloseReason;
use crate::event::Event;
use crate::flow::FlowError;
use crate::handshake::HandshakeError;
use crate::link::sent::{Contents, LossOutcome};
use crate::wire::frame::{self, AckHeader, Frame, FrameCount, ReadLimits};
use crate::wire::short_header::{self, PacketKind, SHORT_HEADER_LEN, SHORT_OVERHEAD};
use crate::wire::varint::Reader;

/// ECN codepoint CE: congestion experienced (RFC 3168).
const ECN_CE: u8 = 0b11;
/// Packets at the start of a connection during which every second ack-eliciting packet is
/// acknowledged at once: Startup depends on quick acknowledgements.
const IMMEDIATE_ACK_PACKETS: u64 = 64;

impl Connection {
    /// Takes a datagram for this connection.
    pub(crate) fn handle_datagram(&mut self, now: Timestamp, datagram: Received<'_>) {
        let has_long_header = datagram.payload.first().is_some_and(|byte| byte & 0x80 != 0);
        if self.state.is_dead() || (has_long_header && self.handshake.is_confirmed()) {
            return;
        }
        self.unvalidated_received += datagram.payload.len() as u64;
        if self.state.closing_until().is_some() {
            // The peer may have missed the CLOSE frame: send it again, at exponentially growing
            // intervals, so that forged datagrams cannot cause a flood of answers (RFC 9000,
            // section 10.2.1).
            self.datagrams_since_close = self.datagrams_since_close.saturating_add(1);
            if self.datagrams_since_close.is_power_of_two() {
                let again = self.control.close_sent.clone();
                self.control.close = again.or(self.control.close.take());
            }
            return;
        }
        let ce = datagram.ecn & 0b11 == ECN_CE;
        let remote = datagram.remote;
        let local_ip = datagram.local_ip;
        let payload = datagram.payload;
        if has_long_header {
            self.handle_handshake_datagram(now, payload);
        } else if short_header::destination(payload).is_some() {
            let bytes = payload.len();
            let before = self.received.largest().map(|(number, _)| number);
            if self.handle_short(now, payload, ce) {
                let is_newest = self.received.largest().map(|(number, _)| number) != before;
                if remote == self.remote {
                    self.local_ip = local_ip.or(self.local_ip);
                    if is_newest {
                        self.on_current_address(now, bytes);
                    }
                } else if is_newest {
                    self.on_new_address(now, remote, local_ip, bytes);
                }
            }
        } else {
            self.counters.malformed += 1;
        }
        self.update_application();
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn handle_short(&mut self, now: Timestamp, packet: &mut [u8], ce: bool) -> bool {
        let Some(protection) = &mut self.protection else {
            // Data that arrived before its keys. Servers drop it, and the client repairs it.
            if self.role == Role::Client
                && self.state.is_handshaking()
                && self.handshake.may_buffer_early_packets()
            {
                self.early.hold_sealed(ce, packet);
            }
            return false;
        };
        let opened = match protection.open(packet, self.received.expected()) {
            Ok(opened) => opened,
            Err(OpenError::Forged) => {
                self.counters.forged = self.counters.forged.saturating_add(1);
                return false;
            }
            Err(OpenError::IntegrityLimit) => {
                self.close_silently(CloseReason::AeadLimit);
                return false;
            }
        };
        let content = packet.get(SHORT_HEADER_LEN..).and_then(|rest| rest.get(..opened.len));
        let Some(payload) = content else { return false };
        // 1-RTT packets must wait until the handshake is complete (RFC 9001, section 5.7).
        if !self.state.is_established() || self.is_provisional() {
            if !opened.relayed {
                self.early.hold(&opened, ce, payload);
            }
            return false;
        }
        if opened.current {
            self.retire_keys(now);
        }
        if opened.updated && self.received.is_new(opened.pn) {
            self.update_keys(now, opened.pn);
        }
        self.handle_opened(now, opened.pn, (opened.kind, opened.relayed), ce, payload)
    }

    /// Processes packets that arrived before the handshake was complete.
    pub(super) fn handle_early(&mut self, now: Timestamp) {
        for packet in self.early.take() {
            self.handle_opened(now, packet.pn, (packet.kind, false), packet.ce, &packet.payload);
        }
        for (ce, mut packet) in self.early.take_sealed() {
            self.handle_short(now, &mut packet, ce);
        }
    }

    /// Takes an authentic packet; `kind` says whether it is relayed. False if it is a duplicate.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn handle_opened(
        &mut self,
        now: Timestamp,
        pn: u64,
        kind: (PacketKind, bool),
        ce: bool,
        payload: &[u8],
    ) -> bool {
        let is_own_data = !matches!(kind, (PacketKind::Control, _) | (_, true));
        if is_own_data && !self.has_memory_for_packet(now) {
            return false;
        }
        if !self.received.insert(now, pn) {
            self.counters.replayed = self.counters.replayed.saturating_add(1);
            return false;
        }
        self.last_received_at = now;
        self.counters.packets_received = self.counters.packets_received.saturating_add(1);
        self.counters.bytes_received = self
            .counters
            .bytes_received
            .saturating_add(payload.len().saturating_add(SHORT_OVERHEAD) as u64);
        self.ce_received = self.ce_received.saturating_add(u64::from(ce));
        match kind {
            (kind, true) => {
                self.schedule_ack(now);
                self.on_data_activity(now);
                let payload = payload.to_vec();
                self.push_relay_input(RelayInput::Packet(kind, payload));
            }
            (PacketKind::Control, false) => self.handle_control(now, payload),
            (kind, false) => {
                self.schedule_ack(now);
                self.on_data_activity(now);
                self.handle_coded(now, kind, payload);
            }
        }
        true
    }

    /// Data arrived, own or relayed. A client detects when it stops, because a NAT may have changed
    /// the client's address without its knowledge.
    fn on_data_activity(&mut self, now: Timestamp) {
        if self.role == Role::Client {
            self.stalls.on_data(now, self.rtt.smoothed());
        }
    }

    fn update_keys(&mut self, now: Timestamp, opened: u64) {
        let next_pn = self.sent.peek_next();
        if let Some(protection) = &mut self.protection {
            protection.update(now, &mut self.handshake, next_pn, Some(opened));
            // Keys older than the previous phase are already gone, so their timer does not apply.
            self.timers.key_discard = None;
            self.retire_keys(now);
        }
    }

    /// The peer uses the keys of this phase: arms the timer that discards the previous ones, which
    /// only late packets still need.
    fn retire_keys(&mut self, now: Timestamp) {
        if self.timers.key_discard.is_none()
            && self.protection.as_ref().is_some_and(PacketProtection::has_previous)
        {
            let probe_timeout = self.rtt.probe_timeout(MAX_ACK_DELAY);
            self.timers.key_discard = Some(PacketProtection::keep_previous(probe_timeout, now));
        }
    }

    /// An ack-eliciting packet arrived: arms the acknowledgement timer.
    fn schedule_ack(&mut self, now: Timestamp) {
        self.control.unacknowledged += 1;
        let immediate = self.counters.packets_received < IMMEDIATE_ACK_PACKETS
            && self.control.unacknowledged >= 2;
        let due = if immediate { now } else { now + self.ack_interval() };
        self.timers.ack = Some(self.timers.ack.map_or(due, |at| at.min(due)));
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn handle_coded(&mut self, now: Timestamp, kind: PacketKind, payload: &[u8]) {
        let rtt = self.report_rtt();
        if let Err(number) = self.check_source_symbol(kind, payload) {
            return self.on_polluted(now, 1, Some(number));
        }
        let Some(streams) = &mut self.streams else { return };
        if let Err(error) = streams.incoming.on_packet(now, kind, payload, rtt) {
            if self.end_to_end.is_none() {
                self.counters.malformed = self
                    .counters
                    .malformed
                    .saturating_add(u64::from(error == FlowError::Malformed));
                return self.on_protocol_violation(now, &error.to_string());
            }
            // A relay may have changed the packet, so the peer is not to blame.
            self.counters.malformed = self.counters.malformed.saturating_add(1);
            return self.on_polluted(now, 1, None);
        }
        self.take_symbols(now);
        let Some(streams) = &self.streams else { return };
        let feedback = streams.incoming.feedback_at();
        self.timers.feedback = match (self.timers.feedback, feedback) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    /// Reassembles messages from received symbols, as far as there is room.
    pub(super) fn take_symbols(&mut self, now: Timestamp) {
        loop {
            let before = self.inbox_room();
            if !self.take_symbols_within(now, before) {
                return;
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
            self.update_credit(now);
        }
    }

    /// Returns whether the connection continues.
    fn take_symbols_within(&mut self, now: Timestamp, room: (usize, bool)) -> bool {
        let Some(streams) = &mut self.streams else { return false };
        let open = self.end_to_end.as_mut().and_then(|end_to_end| end_to_end.symbols.as_mut());
        let open = open.map(|keys| &mut keys.open);
        match streams.take(room, open) {
            Ok(taken) => {
                self.counters.messages_received += taken.messages;
                self.counters.message_bytes_received += taken.bytes;
                if taken.opened > 0 {
                    self.on_authentic_symbol();
                }
                self.on_polluted(now, taken.polluted, taken.attributable);
            }
            Err(error) => {
                self.on_protocol_violation(now, &error.to_string());
                return false;
            }
        }
        self.streams.is_some()
    }

    /// Schedules a CREDIT frame when the application has freed enough of the receive budget.
    pub(super) fn update_credit(&mut self, now: Timestamp) {
        let withheld = self.withheld_memory();
        let Some(streams) = &mut self.streams else { return };
        let rtt = self.rtt.smoothed();
        let rtt = self.end_to_end.as_ref().map_or(rtt, |end_to_end| end_to_end.round_trip(rtt));
        let has_channels = streams.channels.is_some();
        let elsewhere = (!has_channels).then_some(withheld);
        if streams.incoming.update_credit(now, rtt, &streams.inbox, elsewhere) {
            self.control.credit = true;
        }
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn handle_control(&mut self, now: Timestamp, payload: &[u8]) {
        let mut reader = Reader::new(payload);
        let mut ranges = core::mem::take(&mut self.ranges);
        let mut count = FrameCount::default();
        // A packet has one ACK and one RANK at most.
        let limits = ReadLimits {
            ack_ranges: self.range_budget.ranges(),
            rank_entries: self.rank_budget.has_left(now),
        };
        while self.state.is_established() {
            match frame::decode_within(&mut reader, &mut ranges, limits) {
                Ok(Some(frame)) => match count.add(&frame) {
                    Ok(()) => self.handle_frame(now, frame, &ranges),
                    Err(error) => self.on_protocol_violation(now, &error.to_string()),
                },
                Ok(None) => break,
                Err(error) => {
                    self.counters.malformed = self.counters.malformed.saturating_add(1);
                    self.on_protocol_violation(now, &error.to_string());
                }
            }
        }
        self.ranges = ranges;
    }

    fn handle_frame(&mut self, now: Timestamp, frame: Frame<'_>, ranges: &[(u64, u64)]) {
        match frame {
            Frame::Ping => self.schedule_ack(now),
            Frame::Ack(header) => self.handle_ack(now, header, ranges),
            Frame::Rank(mut feedback) => {
                self.coded_at = now;
                let view = self.path_view();
                if self.end_to_end.is_some()
                    && let Some(streams) = &self.streams
                {
                    // A misbehaving relay may have forged numbers that the peer now reports.
                    streams.outgoing.limit(&mut feedback);
                }
                self.on_end_to_end_report(now, feedback.coded);
                if !self.rank_budget.take(now) {
                    return;
                }
                if let Some(streams) = &mut self.streams
                    && let Err(error) = streams.outgoing.on_rank_feedback(now, &feedback, &view)
                {
                    self.on_protocol_violation(now, &error.to_string());
                }
            }
            Frame::Credit(symbols) => {
                self.schedule_ack(now);
                if let Some(streams) = &mut self.streams {
                    streams.outgoing.on_credit(symbols);
                }
            }
            Frame::End { symbols, messages } => {
                self.schedule_ack(now);
                let until = now + self.config.deadline;
                if let Some(streams) = &mut self.streams {
                    streams.incoming.on_end(Totals { symbols, messages }, until);
                    streams.incoming.on_timeout(now);
                }
            }
            Frame::PathChallenge(challenge) => {
                self.schedule_ack(now);
                let unanswered = self.control.path_response.replace(challenge);
                self.counters.challenges_dropped += u64::from(unanswered.is_some());
            }
            Frame::PathResponse(response) => {
                self.schedule_ack(now);
                self.on_path_response(now, response);
            }
            Frame::HandshakeDone => {
                self.schedule_ack(now);
                if self.role == Role::Client {
                    let is_accepted_now = self.handshake.awaits_acceptance();
                    self.handshake.confirm();
                    self.handshake.release_session(false);
                    if is_accepted_now && self.state.is_established() {
                        self.events.push_back(Event::Connected);
                    }
                } else {
                    self.on_protocol_violation(now, "a client confirmed the handshake");
                }
            }
            Frame::Crypto { offset, data } => {
                self.schedule_ack(now);
                self.handshake.read_post_handshake(now, offset, data);
                self.handshake.release_session(false);
            }
            Frame::Close { application, code, reason } => {
                let reason = if application {
                    CloseReason::Peer { code, reason: reason.to_owned() }
                } else if self.handshake.awaits_acceptance() {
                    HandshakeError::ByPeer(reason.to_owned()).into()
                } else {
                    CloseReason::ReportedByPeer(reason.to_owned())
                };
                if let Some(streams) = &mut self.streams {
                    streams.incoming.on_closed();
                }
                self.close_silently(reason);
            }
            Frame::SymbolPolluted(number) => self.on_pollution_report(now, number),
            Frame::BatchRank(report) => self.push_relay_input(RelayInput::Report(report)),
            Frame::Fragment { id, index, kind, relayed, last, data } => {
                self.schedule_ack(now);
                let mut assembly = core::mem::take(&mut self.fragments);
                let limit = self.streams.as_ref().map_or(0, |s| s.max_symbol_size + 64);
                let whole = assembly.insert(id, index, (kind, relayed), last, data, limit);
                if let Some(((kind, relayed), whole)) = whole {
                    if relayed {
                        let whole = core::mem::take(whole);
                        self.push_relay_input(RelayInput::Packet(kind, whole));
                    } else if self.has_memory_for_packet(now) {
                        self.handle_coded(now, kind, whole);
                    }
                }
                self.fragments = FragmentAssembly::default();
                core::mem::swap(&mut self.fragments, &mut assembly);
            }
        }
    }

    fn handle_ack(&mut self, now: Timestamp, header: AckHeader, ranges: &[(u64, u64)]) {
        let outcome = match self.sent.on_ack(now, ranges, self.rtt.min()) {
            Ok(outcome) => outcome,
            Err(violation) => return self.on_protocol_violation(now, &violation.to_string()),
        };
        self.range_budget.charge(ranges.len(), outcome.packets);
        if outcome.crypto_acked {
            self.handshake.on_post_handshake_acknowledged();
            self.control.crypto = false;
        }
        if outcome.end_acked
            && let Some(streams) = &mut self.streams
        {
            streams.outgoing.on_end_acknowledged();
        }
        let Some(largest) = outcome.largest else { return };
        // A misbehaving peer may acknowledge older packets later; these give no RTT sample.
        let is_newest =
            largest.pn == header.largest && self.sent.largest_acked() == Some(largest.pn);
        if is_newest {
            let delay = header.delay.min(MAX_ACK_DELAY * 4);
            self.rtt.on_sample(now, now - largest.sent_at, delay);
        }
        if let Some(protection) = &mut self.protection {
            protection.on_acknowledged(largest.pn);
        }
        self.mtu.on_acknowledged(now, outcome.largest_size);
        let is_small_probe = self.probe_count >= SMALL_PROBES_FROM && !outcome.coded_acked;
        let answered = is_small_probe.then(|| self.sent.loss.estimate());
        // A late acknowledgement of an old packet shows a long queue, not a blackout.
        let after_blackout = self.blackout.take().is_some_and(|blackout| {
            let begun = blackout.since + self.rtt.smoothed() / 2;
            is_newest
                && largest.sent_at >= blackout.noticed
                && self.sent.was_blackout(begun, blackout.noticed)
        });
        if after_blackout {
            let lost = self.sent.end_blackout();
            self.on_losses(now, &lost, answered);
        }
        if outcome.spurious_packets > 0 {
            self.controller.on_spurious_loss(now, outcome.spurious_packets);
        }
        let losses = self.sent.detect_losses(self.rtt.min(), self.rtt.smoothed() * 2, |packet| {
            self.controller.on_lost(now, packet)
        });
        self.on_losses(now, &losses, answered);
        self.sent.loss.set_window(
            self.controller.bandwidth() / 1200 * self.rtt.smoothed().as_millis() as u64 / 500,
        );

        let pending = &mut self.pending_sample;
        pending.acked_bytes += outcome.acked_bytes;
        pending.acked_packets += outcome.acked_packets;
        pending.lost_bytes += losses.lost_bytes;
        pending.lost_packets += losses.lost_packets;
        pending.lost_sent_at = losses.lost_sent_at.unwrap_or(pending.lost_sent_at);
        pending.ce_packets += header.ce_count.saturating_sub(self.ce_reported);
        self.ce_reported = self.ce_reported.max(header.ce_count);
        // The frame gives the arrival time of its largest packet only.
        if is_newest
            && pending.acked_packets > 0
            && let Some(rate) = self.sent.rate_sample(Some(header.received_at), self.rtt.min())
        {
            let pending = core::mem::take(pending);
            self.controller.on_ack(&AckSample {
                now,
                largest_sent_at: largest.sent_at,
                largest_received_at: header.received_at,
                cumulative_sent: largest.cumulative,
                app_limited: largest.app_limited,
                acked_bytes: pending.acked_bytes,
                acked_packets: pending.acked_packets,
                lost_bytes: pending.lost_bytes,
                lost_packets: pending.lost_packets,
                lost_sent_at: pending.lost_sent_at,
                burst_factor: self.sent.loss.burst_factor(),
                ce_packets: pending.ce_packets,
                rtt: self.rtt.latest(),
                smoothed_rtt: self.rtt.smoothed(),
                min_rtt: self.rtt.min(),
                in_flight: self.sent.bytes_in_flight(),
                packet: u64::from(self.mtu.current()),
                rate,
            });
        }
        // The acknowledgement of a small probe does not show that data passes: the path MTU may be below
        // the size of coded packets. Without backoff these would then be sent again and again.
        let passed_small_only = self.small_probes_acked >= SMALL_PROBES_IN_A_ROW;
        if outcome.coded_acked || !self.awaits_decoding() {
            self.small_probes_acked = 0;
        } else if self.probe_count >= SMALL_PROBES_FROM {
            self.small_probes_acked = self.small_probes_acked.saturating_add(1);
        }
        if self.small_probes_acked < SMALL_PROBES_IN_A_ROW {
            let rising_until = if passed_small_only {
                // The losses counted as congestion, so that the rate rises from almost nothing.
                Some(now + self.rtt.probe_timeout(MAX_ACK_DELAY) * RESTORING)
            } else {
                (self.probe_count >= FULL_BACKOFF).then_some(now)
            };
            if let Some(rising_until) = rising_until {
                self.pacer.end_blackout(now, rising_until);
            }
            self.probe_count = 0;
        }
        self.unanswered_since = self.sent.expects_ack().then_some(now);
        self.arm_probe(now);
    }

    /// `answered` is the path's loss if a small probe was answered.
    fn on_losses(&mut self, now: Timestamp, losses: &LossOutcome, answered: Option<f64>) {
        self.retransmit_control(losses.contents);
        for _ in 0..losses.large_lost {
            if self.mtu.on_lost(now, losses.large_size, answered) {
                // What is in flight is too large: it will be lost, and has delayed nothing on the path.
                self.abandon_old_path(now);
                self.pacer.end_blackout(now, now);
                break;
            }
        }
    }

    pub(super) fn retransmit_control(&mut self, lost: Contents) {
        self.control.credit |= lost.credit;
        self.control.end |= lost.end;
        self.control.handshake_done |= lost.handshake_done;
        // An earlier copy may have been acknowledged.
        let crypto_missing = !self.handshake.post_handshake_data().is_empty();
        self.control.crypto |= lost.crypto && crypto_missing;
    }

    /// The peer violated the protocol: closes the connection and reports the rule.
    pub(super) fn on_protocol_violation(&mut self, now: Timestamp, rule: &str) {
        self.begin_close(now, false, 1, rule, CloseReason::PeerMisbehaved(rule.to_owned()));
    }
}
