//! What arrives: handshake packets, data packets and their frames.

use bats_types::Timestamp;

use super::carried::Arrived;
use super::fragments::FragmentAssembly;
use super::protection::{OpenError, PacketProtection};
use super::setup::receive_budget;
use super::streams::Totals;
use super::{Connection, MAX_ACK_DELAY, Role};
use crate::congestion::AckSample;
use crate::endpoint::Received;
use crate::error::CloseReason;
use crate::flow::FlowError;
use crate::link::sent::{Contents, LossOutcome};
use crate::wire::frame::{self, AckHeader, Frame};
use crate::wire::short_header::{self, PacketKind, SHORT_HEADER_LEN, SHORT_OVERHEAD};
use crate::wire::varint::Reader;

/// ECN bits of a packet that met congestion (RFC 3168).
const ECN_CE: u8 = 0b11;
/// Ack-eliciting packets after which an acknowledgement does not wait, at first: the start of a
/// connection lives on quick answers.
const EAGER_ACK_PACKETS: u64 = 64;

impl Connection {
    /// Takes a datagram that was routed here.
    pub(crate) fn handle_datagram(&mut self, now: Timestamp, datagram: Received<'_>) {
        if self.state.is_dead() {
            return;
        }
        self.unvalidated_received += datagram.payload.len() as u64;
        if self.state.closing_until().is_some() {
            // The peer has not heard of the end: say it again, but ever less often, so that nobody
            // can have it flooded with the answers to made-up datagrams (RFC 9000, 10.2.1).
            self.heard_since_close = self.heard_since_close.saturating_add(1);
            if self.heard_since_close.is_power_of_two() {
                self.control.close = self.control.close_sent.take().or(self.control.close.take());
            }
            return;
        }
        let ce = datagram.ecn & 0b11 == ECN_CE;
        let remote = datagram.remote;
        let local_ip = datagram.local_ip;
        let payload = datagram.payload;
        if payload.first().is_some_and(|byte| byte & 0x80 != 0) {
            self.handle_handshake_datagram(now, payload);
        } else if short_header::destination(payload).is_some() {
            let bytes = payload.len();
            let before = self.received.largest().map(|(number, _)| number);
            if self.handle_short(now, payload, ce) {
                let is_newest = self.received.largest().map(|(number, _)| number) != before;
                if remote == self.remote {
                    self.local_ip = local_ip.or(self.local_ip);
                    if is_newest {
                        self.on_known_address(now, bytes);
                    }
                } else if is_newest {
                    self.on_other_address(now, remote, local_ip, bytes);
                }
            }
        } else {
            self.counters.malformed += 1;
        }
        self.update_application();
    }

    fn handle_short(&mut self, now: Timestamp, packet: &mut [u8], ce: bool) -> bool {
        let Some(protection) = &mut self.protection else {
            // Data that overtook the handshake. A server's sender will repair it.
            if self.role == Role::Client && self.state.is_handshaking() && self.handshake.may_hold()
            {
                self.early.hold_sealed(ce, packet);
            }
            return false;
        };
        let opened = match protection.open(packet, self.received.expected()) {
            Ok(opened) => opened,
            Err(OpenError::Forged) => {
                self.counters.forged += 1;
                return false;
            }
            Err(OpenError::IntegrityLimit) => {
                self.vanish(CloseReason::AeadLimit);
                return false;
            }
        };
        let payload = &packet[SHORT_HEADER_LEN..SHORT_HEADER_LEN + opened.len];
        // What comes with the keys of data before the handshake is done waits for that (RFC 9001,
        // section 5.7).
        if !self.state.is_established() || self.is_provisional() {
            if !opened.carried {
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
        self.handle_opened(now, opened.pn, (opened.kind, opened.carried), ce, payload)
    }

    /// Takes what came before the handshake was complete.
    pub(super) fn handle_early(&mut self, now: Timestamp) {
        for packet in self.early.take() {
            self.handle_opened(now, packet.pn, (packet.kind, false), packet.ce, &packet.payload);
        }
        for (ce, mut packet) in self.early.take_sealed() {
            self.handle_short(now, &mut packet, ce);
        }
    }

    /// Takes an authentic packet, a carried one or not; false if it was seen before.
    fn handle_opened(
        &mut self,
        now: Timestamp,
        pn: u64,
        kind: (PacketKind, bool),
        ce: bool,
        payload: &[u8],
    ) -> bool {
        if !self.received.insert(now, pn) {
            self.counters.replayed += 1;
            return false;
        }
        self.last_received_at = now;
        self.counters.packets_received += 1;
        self.counters.bytes_received += (payload.len() + SHORT_OVERHEAD) as u64;
        self.ce_received += u64::from(ce);
        match kind {
            (kind, true) => {
                self.schedule_ack(now);
                self.on_data_activity(now);
                let payload = payload.to_vec();
                self.push_arrived(Arrived::Packet(kind, payload));
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

    /// Data arrived, this connection's own or what it carries for others: a client notices when
    /// there are no more, as its address may be another without its knowing.
    fn on_data_activity(&mut self, now: Timestamp) {
        if self.role == Role::Client {
            self.stalls.on_data(now, self.rtt.smoothed());
        }
    }

    fn update_keys(&mut self, now: Timestamp, opened: u64) {
        let next_pn = self.sent.peek_next();
        if let Some(protection) = &mut self.protection {
            protection.update(&mut self.handshake, next_pn, Some(opened));
            // Of the phase before the last one nothing is kept; its clock does not count.
            self.deadlines.key_discard = None;
            self.retire_keys(now);
        }
    }

    /// The peer uses the keys of this phase: those of the last one are needed for late packets only.
    fn retire_keys(&mut self, now: Timestamp) {
        if self.deadlines.key_discard.is_none()
            && self.protection.as_ref().is_some_and(PacketProtection::has_previous)
        {
            let probe_timeout = self.rtt.probe_timeout(MAX_ACK_DELAY);
            self.deadlines.key_discard = Some(PacketProtection::keep_previous(probe_timeout, now));
        }
    }

    /// An ack-eliciting packet arrived.
    fn schedule_ack(&mut self, now: Timestamp) {
        self.control.unacknowledged += 1;
        let eager =
            self.counters.packets_received < EAGER_ACK_PACKETS && self.control.unacknowledged >= 2;
        let due = if eager { now } else { now + self.ack_interval() };
        self.deadlines.ack = Some(self.deadlines.ack.map_or(due, |at| at.min(due)));
    }

    pub(super) fn handle_coded(&mut self, now: Timestamp, kind: PacketKind, payload: &[u8]) {
        let rtt = self.report_rtt();
        if let Err(number) = self.is_genuine(kind, payload) {
            return self.on_altered(now, 1, Some(number));
        }
        let Some(streams) = &mut self.streams else { return };
        if let Err(error) = streams.incoming.on_packet(now, kind, payload, rtt) {
            if self.carried.is_none() {
                self.counters.malformed += u64::from(error == FlowError::Malformed);
                return self.misbehaved(now, &error.to_string());
            }
            // Whoever has carried it may have changed it: the peer is not to blame.
            self.counters.malformed += 1;
            return self.on_altered(now, 1, None);
        }
        self.take_symbols(now);
        let Some(streams) = &self.streams else { return };
        let feedback = streams.incoming.feedback_at();
        self.deadlines.feedback = match (self.deadlines.feedback, feedback) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    /// Makes messages of what arrived, as far as the application leaves room for them.
    pub(super) fn take_symbols(&mut self, now: Timestamp) {
        let budget = receive_budget(&self.config);
        let Some(streams) = &mut self.streams else { return };
        let open = self.carried.as_mut().and_then(|carried| carried.symbols.as_mut());
        let open = open.map(|keys| &mut keys.open);
        match streams.incoming.take(&mut streams.inbox, budget, open) {
            Ok(taken) => {
                self.counters.messages_received += taken.messages;
                self.counters.message_bytes_received += taken.bytes;
                if taken.opened > 0 {
                    self.on_genuine();
                }
                self.on_altered(now, taken.altered, taken.certain);
            }
            Err(error) => return self.misbehaved(now, &error.to_string()),
        }
        let Some(streams) = &mut self.streams else { return };
        streams.incoming.on_timeout(now);
        self.update_credit(now);
    }

    /// Grants the peer what the application's progress has freed.
    pub(super) fn update_credit(&mut self, now: Timestamp) {
        let Some(streams) = &mut self.streams else { return };
        let rtt = self.rtt.smoothed();
        let rtt = self.carried.as_ref().map_or(rtt, |carried| carried.round_trip(rtt));
        if streams.incoming.update_credit(now, rtt, &streams.inbox) {
            self.control.credit = true;
        }
    }

    fn handle_control(&mut self, now: Timestamp, payload: &[u8]) {
        let mut reader = Reader::new(payload);
        let mut ranges = core::mem::take(&mut self.ranges);
        while self.state.is_established() {
            match frame::decode(&mut reader, &mut ranges) {
                Ok(Some(frame)) => self.handle_frame(now, frame, &ranges),
                Ok(None) => break,
                Err(error) => {
                    self.counters.malformed += 1;
                    self.misbehaved(now, &error.to_string());
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
                if self.carried.is_some()
                    && let Some(streams) = &self.streams
                {
                    // Relays may have made up the numbers that the peer speaks of.
                    streams.outgoing.limit(&mut feedback);
                }
                self.on_carried_report(now, feedback.coded);
                if let Some(streams) = &mut self.streams
                    && let Err(error) = streams.outgoing.on_rank_feedback(now, &feedback, &view)
                {
                    self.misbehaved(now, &error.to_string());
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
                    self.handshake.confirm();
                } else {
                    self.misbehaved(now, "a client confirmed the handshake");
                }
            }
            Frame::Crypto { offset, data } => {
                self.schedule_ack(now);
                self.handshake.read_later(now, offset, data);
            }
            Frame::Close { application, code, reason } => {
                let reason = if application {
                    CloseReason::Peer { code, reason: reason.to_owned() }
                } else {
                    CloseReason::ReportedByPeer(reason.to_owned())
                };
                if let Some(streams) = &mut self.streams {
                    streams.incoming.on_closed();
                }
                self.vanish(reason);
            }
            Frame::Altered(number) => self.on_altered_told(now, number),
            Frame::BatchRank(report) => self.push_arrived(Arrived::Report(report)),
            Frame::Fragment { id, index, kind, carried, last, data } => {
                self.schedule_ack(now);
                let mut assembly = core::mem::take(&mut self.fragments);
                let limit = self.streams.as_ref().map_or(0, |s| s.max_symbol_size + 64);
                let whole = assembly.insert(id, index, (kind, carried), last, data, limit);
                if let Some(((kind, carried), whole)) = whole {
                    if carried {
                        let whole = core::mem::take(whole);
                        self.push_arrived(Arrived::Packet(kind, whole));
                    } else {
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
            Err(violation) => return self.misbehaved(now, &violation.to_string()),
        };
        if outcome.end_acked
            && let Some(streams) = &mut self.streams
        {
            streams.outgoing.on_end_acknowledged();
        }
        let Some(largest) = outcome.largest else { return };
        // A liar may name older packets later; samples that run backwards are not measured.
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
        // An old packet whose acknowledgement is late tells of a long queue and not of a hole.
        let after_blackout = self.blackout.take().is_some_and(|blackout| {
            let begun = blackout.since + self.rtt.smoothed() / 2;
            is_newest
                && largest.sent_at >= blackout.noticed
                && self.sent.nothing_arrived(begun, blackout.noticed)
        });
        if after_blackout {
            let lost = self.sent.end_silence();
            self.on_losses(now, &lost);
        }
        if outcome.spurious_packets > 0 {
            self.controller.on_spurious_loss(now, outcome.spurious_packets);
        }
        let losses = self.sent.detect_losses(self.rtt.min(), self.rtt.smoothed() * 2, |packet| {
            self.controller.on_lost(now, packet)
        });
        self.on_losses(now, &losses);
        self.sent.loss.set_window(
            self.controller.bandwidth() / 1200 * self.rtt.smoothed().as_millis() as u64 / 500,
        );

        let pending = &mut self.pending_sample;
        pending.after_blackout |= after_blackout;
        pending.acked_bytes += outcome.acked_bytes;
        pending.acked_packets += outcome.acked_packets;
        pending.lost_bytes += losses.lost_bytes;
        pending.lost_packets += losses.lost_packets;
        pending.lost_sent_at = losses.lost_sent_at.unwrap_or(pending.lost_sent_at);
        pending.ce_packets += header.ce_count.saturating_sub(self.ce_reported);
        self.ce_reported = self.ce_reported.max(header.ce_count);
        // Only the packet that the frame names has its time of arrival.
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
                settled_until: losses.settled_until,
                burst_factor: self.sent.loss.burst_factor(),
                ce_packets: pending.ce_packets,
                rtt: self.rtt.latest(),
                smoothed_rtt: self.rtt.smoothed(),
                min_rtt: self.rtt.min(),
                in_flight: self.sent.bytes_in_flight(),
                packet: u64::from(self.mtu.current()),
                rate,
                after_blackout: pending.after_blackout,
            });
        }
        self.probe_count = 0;
        self.unanswered_since = self.sent.expects_ack().then_some(now);
        self.arm_probe(now);
    }

    fn on_losses(&mut self, now: Timestamp, losses: &LossOutcome) {
        self.retransmit_control(losses.contents);
        for _ in 0..losses.large_lost {
            if self.mtu.on_lost(now, losses.large_size) {
                break;
            }
        }
    }

    pub(super) fn retransmit_control(&mut self, lost: Contents) {
        self.control.credit |= lost.credit;
        self.control.end |= lost.end;
        self.control.handshake_done |= lost.handshake_done;
        self.control.crypto |= lost.crypto;
    }

    /// The peer broke the rules: close and name the rule.
    pub(super) fn misbehaved(&mut self, now: Timestamp, rule: &str) {
        self.begin_close(now, false, 1, rule, CloseReason::PeerMisbehaved(rule.to_owned()));
    }
}
