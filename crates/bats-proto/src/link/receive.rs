//! Receiving: data packets and their frames.

use core::net::IpAddr;

use bats_types::Timestamp;

use super::acks::MAX_ACK_DELAY;
use super::fragments::FragmentAssembly;
use super::loss::LossEstimator;
use super::path::Validated;
use super::protection::OpenError;
use super::rtt::RttEstimator;
use super::sent::{Contents, LossOutcome};
use super::session_interface::{LinkSession, SessionFrame};
use super::{Link, Medium, RelayInput, Role};
use crate::error::CloseReason;
use crate::handshake::HandshakeError;
use crate::remote::Remote;
use crate::wire::frame::{self, AckHeader, Frame, FrameCount, ReadLimits};
use crate::wire::short_header::{PacketKind, SHORT_HEADER_LEN, SHORT_OVERHEAD};
use crate::wire::varint::Reader;

impl Link {
    /// A datagram of `bytes` bytes arrived. Returns whether it is to be processed: a closed link only answers
    /// it.
    pub(crate) fn on_datagram(&mut self, bytes: usize) -> bool {
        self.path.on_received(bytes);
        let is_closing = self.state.closing_until().is_some();
        if is_closing {
            self.closing.on_datagram();
        }
        !is_closing
    }

    /// Takes a datagram of packets with long headers. Returns whether the handshake goes on.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(crate) fn handle_handshake_datagram(
        &mut self,
        now: Timestamp,
        datagram: &mut [u8],
        session: &mut impl LinkSession,
    ) -> bool {
        let Err(error) = self.handshake.handle_datagram(now, datagram) else { return true };
        if self.state.is_handshaking() || self.establishment.is_provisional() {
            let text = error.to_string();
            self.begin_close(now, false, 2, &text, error.into(), session);
        }
        false
    }

    /// A datagram is no packet.
    pub(crate) fn on_malformed(&mut self) {
        self.counters.on_malformed();
    }

    /// Takes a data packet, and the local address that it was sent to.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(crate) fn handle_packet(
        &mut self,
        now: Timestamp,
        (remote, local_ip): (Remote, Option<IpAddr>),
        packet: &mut [u8],
        ce: bool,
        session: &mut impl LinkSession,
    ) {
        let bytes = packet.len();
        let before = self.acks.largest();
        if !self.handle_short(now, packet, ce, session) {
            return;
        }
        let is_newest = self.acks.largest() != before;
        if remote == self.path.remote() {
            self.path.set_local(local_ip);
            if is_newest {
                self.path.on_current_address(now, bytes, &mut self.rng);
            }
        } else if is_newest && self.role == Role::Server {
            // Only servers migrate: clients know their server's address.
            let probe_timeout = self.rtt.probe_timeout(MAX_ACK_DELAY);
            let from = (remote, local_ip);
            if self.path.on_new_address(now, from, bytes, probe_timeout, &mut self.rng) {
                self.on_port_changed(now, session);
            }
        }
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn handle_short(
        &mut self,
        now: Timestamp,
        packet: &mut [u8],
        ce: bool,
        session: &mut impl LinkSession,
    ) -> bool {
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
        let opened = match protection.open(packet, self.acks.expected()) {
            Ok(opened) => opened,
            Err(OpenError::Forged) => {
                self.counters.on_forged();
                return false;
            }
            Err(OpenError::IntegrityLimit) => {
                self.close_silently(CloseReason::AeadLimit, session);
                return false;
            }
        };
        let content = packet.get(SHORT_HEADER_LEN..).and_then(|rest| rest.get(..opened.len));
        let Some(payload) = content else { return false };
        // 1-RTT packets must wait until the handshake is complete (RFC 9001, section 5.7).
        if !self.state.is_established() || self.establishment.is_provisional() {
            if !opened.relayed {
                self.early.hold(&opened, ce, payload);
            }
            return false;
        }
        let probe_timeout = || self.rtt.probe_timeout(MAX_ACK_DELAY);
        if opened.current {
            protection.on_current_keys(now, probe_timeout);
        }
        if opened.updated && self.acks.is_new(opened.pn) {
            let next_pn = self.sent.peek_next();
            protection.update(now, &mut self.handshake, next_pn, Some(opened.pn));
            protection.on_current_keys(now, probe_timeout);
        }
        self.handle_opened(now, opened.pn, (opened.kind, opened.relayed), ce, payload, session)
    }

    /// Processes packets that arrived before the handshake was complete.
    pub(crate) fn handle_early(&mut self, now: Timestamp, session: &mut impl LinkSession) {
        for packet in self.early.take() {
            let kind = (packet.kind, false);
            self.handle_opened(now, packet.pn, kind, packet.ce, &packet.payload, session);
        }
        for (ce, mut packet) in self.early.take_sealed() {
            self.handle_short(now, &mut packet, ce, session);
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
        session: &mut impl LinkSession,
    ) -> bool {
        // First of all, so that a replayed packet changes nothing, even where new ones are refused.
        if !self.acks.is_new(pn) {
            self.counters.on_replayed();
            return false;
        }
        let is_own_data = !matches!(kind, (PacketKind::Control, _) | (_, true));
        if is_own_data && !self.may_take_packet(now, session) {
            return false;
        }
        self.acks.insert(now, pn);
        self.activity.on_received(now);
        self.counters.on_received(payload.len().saturating_add(SHORT_OVERHEAD));
        self.acks.on_mark(ce);
        match kind {
            (kind, true) => {
                self.schedule_ack(now);
                self.on_data_activity(now);
                let payload = payload.to_vec();
                self.relayed.push(RelayInput::Packet(kind, payload));
            }
            (PacketKind::Control, false) => self.handle_control(now, payload, session),
            (kind, false) => {
                self.schedule_ack(now);
                self.on_data_activity(now);
                self.hand_over(now, kind, payload, session);
            }
        }
        true
    }

    /// Whether the session can take the data of another packet. Otherwise the packet counts as lost: the
    /// peer sends it again and slows down.
    fn may_take_packet(&mut self, now: Timestamp, session: &mut impl LinkSession) -> bool {
        let result = session.may_take_packet(now);
        if result != Ok(true) {
            self.activity.on_received(now);
        }
        result.unwrap_or_else(|failure| {
            self.fail(now, failure, session);
            false
        })
    }

    /// Hands a coded payload to the session.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn hand_over(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        payload: &[u8],
        session: &mut impl LinkSession,
    ) {
        if let Err(failure) = session.on_coded(now, kind, payload, self.rtt()) {
            self.fail(now, failure, session);
        }
    }

    /// Takes a coded packet of an end-to-end session, which links of the relay have received. Returns whether it was
    /// taken.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(crate) fn on_coded_from_relays(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        payload: &[u8],
        wants_keep_alive: bool,
        session: &mut impl LinkSession,
    ) -> bool {
        if wants_keep_alive {
            self.control.ping();
        }
        if !self.may_take_packet(now, session) {
            return false;
        }
        self.activity.on_received(now);
        self.counters.on_received(payload.len());
        self.hand_over(now, kind, payload, session);
        true
    }

    /// Data arrived, own or relayed. A client detects when it stops, because a NAT may have changed
    /// the client's address without its knowledge.
    fn on_data_activity(&mut self, now: Timestamp) {
        if self.role == Role::Client {
            self.activity.on_data(now, self.rtt.smoothed());
        }
    }

    /// An ack-eliciting packet arrived: arms the acknowledgement timer.
    fn schedule_ack(&mut self, now: Timestamp) {
        self.acks.schedule(now, self.counters.packets_received(), self.ack_interval());
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn handle_control(&mut self, now: Timestamp, payload: &[u8], session: &mut impl LinkSession) {
        let mut reader = Reader::new(payload);
        let mut ranges = self.acks.take_ranges();
        let mut count = FrameCount::default();
        // A packet has one ACK and one RANK at most.
        let limits = ReadLimits {
            ack_ranges: self.range_budget.ranges(),
            rank_entries: session.may_read_ranks(now),
        };
        while self.state.is_established() {
            match frame::decode_within(&mut reader, &mut ranges, limits) {
                Ok(Some(frame)) => match count.add(&frame) {
                    Ok(()) => self.handle_frame(now, frame, &ranges, session),
                    Err(error) => self.on_protocol_violation(now, &error.to_string(), session),
                },
                Ok(None) => break,
                Err(error) => {
                    self.counters.on_malformed();
                    self.on_protocol_violation(now, &error.to_string(), session);
                }
            }
        }
        self.acks.return_ranges(ranges);
    }

    fn handle_frame(
        &mut self,
        now: Timestamp,
        frame: Frame<'_>,
        ranges: &[(u64, u64)],
        session: &mut impl LinkSession,
    ) {
        match frame {
            Frame::Ping => self.schedule_ack(now),
            Frame::Ack(header) => self.handle_ack(now, header, ranges, session),
            Frame::Rank(feedback) => {
                self.probing.on_coded(now);
                let view = self.path_view();
                if self.medium == Medium::Relays {
                    // The peer answers, which ends a blackout.
                    self.probing.reset();
                    self.arm_probe(now, session);
                }
                self.hand_over_frame(now, SessionFrame::Rank(feedback, view), session);
            }
            Frame::Credit(symbols) => {
                self.schedule_ack(now);
                self.hand_over_frame(now, SessionFrame::Credit(symbols), session);
            }
            Frame::End { symbols, messages } => {
                self.schedule_ack(now);
                self.hand_over_frame(now, SessionFrame::End { symbols, messages }, session);
            }
            Frame::SymbolPolluted(number) => {
                self.hand_over_frame(now, SessionFrame::SymbolPolluted(number), session);
            }
            Frame::PathChallenge(challenge) => {
                self.schedule_ack(now);
                self.control.answer_challenge(challenge);
            }
            Frame::PathResponse(response) => {
                self.schedule_ack(now);
                self.on_path_response(now, response, session);
            }
            Frame::HandshakeDone => {
                self.schedule_ack(now);
                if self.role == Role::Client {
                    let is_accepted_now = self.handshake.awaits_acceptance();
                    self.handshake.confirm();
                    self.handshake.release_session(false);
                    if is_accepted_now && self.state.is_established() {
                        session.on_accepted();
                    }
                } else {
                    let rule = "a client confirmed the handshake";
                    self.on_protocol_violation(now, rule, session);
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
                session.on_closed_by_peer();
                self.close_silently(reason, session);
            }
            Frame::BatchRank(report) => self.relayed.push(RelayInput::Report(report)),
            Frame::Fragment { id, index, kind, relayed, last, data } => {
                self.schedule_ack(now);
                let mut assembly = core::mem::take(&mut self.fragments);
                let limit = session.max_payload();
                let whole = assembly.insert(id, index, (kind, relayed), last, data, limit);
                if let Some(((kind, relayed), whole)) = whole {
                    if relayed {
                        let whole = core::mem::take(whole);
                        self.relayed.push(RelayInput::Packet(kind, whole));
                    } else if self.may_take_packet(now, session) {
                        self.hand_over(now, kind, whole, session);
                    }
                }
                self.fragments = FragmentAssembly::default();
                core::mem::swap(&mut self.fragments, &mut assembly);
            }
        }
    }

    /// Hands a frame to the session.
    fn hand_over_frame(
        &mut self,
        now: Timestamp,
        frame: SessionFrame,
        session: &mut impl LinkSession,
    ) {
        if let Err(failure) = session.on_frame(now, frame) {
            self.fail(now, failure, session);
        }
    }

    fn handle_ack(
        &mut self,
        now: Timestamp,
        header: AckHeader,
        ranges: &[(u64, u64)],
        session: &mut impl LinkSession,
    ) {
        let outcome = match self.sent.on_ack(now, ranges, self.rtt.min()) {
            Ok(outcome) => outcome,
            Err(violation) => {
                return self.on_protocol_violation(now, &violation.to_string(), session);
            }
        };
        self.range_budget.charge(ranges.len(), outcome.packets);
        if outcome.crypto_acked {
            self.handshake.on_post_handshake_acknowledged();
            self.control.on_crypto_acknowledged();
        }
        if outcome.end_acked {
            session.on_end_acknowledged();
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
        let is_small_probe = self.probing.is_small_probe_answered(outcome.coded_acked);
        let answered = is_small_probe.then(|| self.sent.loss.estimate());
        // A late acknowledgement of an old packet shows a long queue, not a blackout.
        let after_blackout = self.probing.end_blackout().is_some_and(|blackout| {
            let begun = blackout.since + self.rtt.smoothed() / 2;
            is_newest
                && largest.sent_at >= blackout.noticed
                && self.sent.was_blackout(begun, blackout.noticed)
        });
        if after_blackout {
            let lost = self.sent.end_blackout();
            self.on_losses(now, &lost, answered, session);
        }
        self.congestion.on_spurious_loss(now, outcome.spurious_packets);
        let losses = self.congestion.detect_losses(now, &mut self.sent, &self.rtt);
        self.on_losses(now, &losses, answered, session);
        self.sent.loss.set_window(
            self.congestion.controller().bandwidth() / 1200
                * self.rtt.smoothed().as_millis() as u64
                / 500,
        );

        self.congestion.collect(&outcome, &losses, header.ce_count);
        // The frame gives the arrival time of its largest packet only.
        if is_newest
            && self.congestion.has_sample()
            && let Some(rate) = self.sent.rate_sample(Some(header.received_at), self.rtt.min())
        {
            let (newest, link) = ((&largest, &header), (&self.sent, &self.rtt));
            self.congestion.on_sample(now, newest, rate, link, self.mtu.current());
        }
        let data_passes = outcome.coded_acked || !session.awaits_decoding();
        let rising = self.probing.on_acknowledged(data_passes);
        if let Some(probe_timeouts) = rising {
            let time = self.rtt.probe_timeout(MAX_ACK_DELAY) * probe_timeouts;
            self.congestion.end_blackout(now, now + time);
        }
        self.probing.on_answer(now, self.sent.expects_ack());
        self.arm_probe(now, session);
    }

    /// `answered` is the path's loss if a small probe was answered.
    fn on_losses(
        &mut self,
        now: Timestamp,
        losses: &LossOutcome,
        answered: Option<f64>,
        session: &mut impl LinkSession,
    ) {
        self.retransmit_control(losses.contents, session);
        for _ in 0..losses.large_lost {
            if self.mtu.on_lost(now, losses.large_size, answered) {
                // What is in flight is too large: it will be lost, and has delayed nothing on the path.
                self.abandon_old_path(now, session);
                self.congestion.end_blackout(now, now);
                break;
            }
        }
    }

    pub(super) fn retransmit_control(&mut self, lost: Contents, session: &mut impl LinkSession) {
        session.on_lost(lost.credit, lost.end);
        // An earlier copy may have been acknowledged.
        let crypto_missing = !self.handshake.post_handshake_data().is_empty();
        self.control.on_lost(lost.handshake_done, lost.crypto && crypto_missing);
    }

    /// A path response arrived: the newest address of the peer is validated if it matches.
    fn on_path_response(&mut self, now: Timestamp, response: u64, session: &mut impl LinkSession) {
        let probe_timeout = self.rtt.probe_timeout(MAX_ACK_DELAY);
        let validated = self.path.on_response(now, response, probe_timeout);
        if matches!(validated, Validated::Nothing | Validated::Current) {
            return;
        }
        if validated == Validated::Moved {
            // Another network: path estimates do not apply any more (RFC 9000, section 9.4). A new
            // port of the same host is NAT rebinding and keeps them.
            self.rtt = RttEstimator::new(self.rtt.smoothed());
            self.sent.loss = LossEstimator::default();
            self.mtu.restart();
            self.restart_congestion_control();
            // Round trips are counted by bytes sent on the link, those on earlier paths included.
            self.congestion.on_sent(now, self.sent.bytes_sent(), 0);
            self.abandon_old_path(now, session);
        } else {
            self.on_port_changed(now, session);
        }
    }

    /// Packets go to another port of the peer now.
    pub(super) fn on_port_changed(&mut self, now: Timestamp, session: &mut impl LinkSession) {
        let (next_pn, largest_acked) = (self.sent.peek_next(), self.sent.largest_acked());
        let probe_timeout = self.rtt.probe_timeout(MAX_ACK_DELAY);
        if self.path.may_abandon(now, probe_timeout, next_pn, largest_acked) {
            self.abandon_old_path(now, session);
        }
    }

    /// Abandons packets in flight to the old address, or that are too large for the path. They say nothing about
    /// the path as it is now, and the peer cannot report them missing before something else arrives.
    fn abandon_old_path(&mut self, now: Timestamp, session: &mut impl LinkSession) {
        let lost = self.sent.abandon_path(now);
        self.retransmit_control(lost, session);
        session.on_path_lost(now, &self.path_view(), self.path.is_unvalidated());
        self.probing.reset();
        self.arm_probe(now, session);
    }
}
