//! Sending, most urgent packets first.

use bats_types::Timestamp;
use rand::Rng;

use super::acks::MAX_ACK_DELAY;
use super::packet_buffers::Fragments;
use super::protection::PacketProtection;
use super::sent::Contents;
use super::session_interface::LinkSession;
use super::{Link, Medium, PacketSource};
use crate::datagram::Outgoing;
use crate::error::CloseReason;
use crate::flow::PathView;
use crate::relay::LinkView;
use crate::wire::frame::{self, Frame};
use crate::wire::short_header::{PacketKind, SHORT_HEADER_LEN, SHORT_OVERHEAD, TAG_LEN};
use crate::wire::varint::Writer;

/// Room for a datagram of the handshake.
const HANDSHAKE_DATAGRAM: usize = 1_500;
/// Segments of one GSO burst: the kernel's limit.
const MAX_SEGMENTS: usize = 64;
/// Bytes of one GSO burst: the limit of the IP length field, less headers.
const MAX_BURST_BYTES: usize = 65_000;
/// Packets with known outcome after which the loss counts as measured, and the loss assumed before.
const MEASURED_LOSS_PACKETS: u64 = 32;
const ASSUMED_LOSS: f64 = 0.3;
/// Frames of a control packet take at most this on larger path MTUs: room for frames is zeroed before they are
/// written, and on a path of 64 KiB that would cost more than the packet.
const CONTROL_ROOM: usize = 2_048;
/// Free bytes that a control packet needs for a further report: its fields, some ranks, and an
/// acknowledgement.
const REPORT_ROOM: usize = 600;

impl Link {
    /// Writes the next datagrams to `buffer`; `None` if there is nothing to send now. Asks the session for
    /// its packets, and then `source`.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
        session: &mut impl LinkSession,
        mut source: Option<&mut dyn PacketSource>,
    ) -> Option<Outgoing> {
        buffer.clear();
        if self.state.is_dead() {
            return None;
        }
        if self.state.closing_until().is_some() {
            return self.poll_close(now, buffer, session);
        }
        if let Some(transmit) = self.poll_handshake(now, buffer) {
            return Some(transmit);
        }
        if !self.state.is_established() || self.protection.is_none() {
            return None;
        }
        if self.protection.as_ref().is_some_and(PacketProtection::is_spent) {
            self.close_silently(CloseReason::AeadLimit, session);
            return None;
        }
        if self.is_provisional()
            && self.path.handshake_allowance() < usize::from(self.mtu.current())
        {
            return None;
        }
        self.maybe_update_keys(now);
        if self.medium == Medium::Relays {
            // Coded packets are sent when a link asks for them.
            let segment_size = self.poll_control(now, buffer, session, &mut None)?;
            return Some(self.transmit(now, buffer, segment_size));
        }
        if let Some(transmit) = self.poll_challenge(now, buffer, session) {
            return Some(transmit);
        }
        if self.path.awaits_validation(self.mtu.current()) {
            return None;
        }
        let segment_size = self
            .poll_control(now, buffer, session, &mut source)
            .or_else(|| self.poll_mtu_probe(now, buffer, session))
            .or_else(|| self.poll_data(now, buffer, session, &mut source))
            .or_else(|| {
                // The last messages expired unsent: send the END frame now.
                let is_new = session.is_end_due();
                is_new.then(|| self.poll_control(now, buffer, session, &mut source)).flatten()
            });
        if segment_size.is_none() {
            session.on_nothing_sent(|| self.capacity());
        }
        segment_size.map(|segment_size| self.transmit(now, buffer, segment_size))
    }

    fn transmit(&mut self, now: Timestamp, buffer: &[u8], segment_size: usize) -> Outgoing {
        self.activity.on_sent(now, self.config.keep_alive_interval());
        self.counters.on_sent(buffer.len().div_ceil(segment_size) as u64, buffer.len());
        self.path.transmit(buffer.len(), segment_size)
    }

    fn poll_close(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
        session: &mut impl LinkSession,
    ) -> Option<Outgoing> {
        let close = self.closing.take()?;
        if self.protection.is_some() {
            // Acknowledge with the CLOSE frame everything received so far, so that the peer knows
            // that the message to which this close is the answer has arrived.
            let mut ranges = self.acks.take_ranges();
            let header = self.acks.write(now, &mut ranges);
            let feedback = session.last_feedback(now, self.rtt());
            self.begin_packet(buffer);
            let start = self.write_frames(buffer, |writer| {
                if let Some(feedback) = feedback {
                    frame::encode(writer, &Frame::Rank(feedback))?;
                }
                if let Some(header) = &header {
                    frame::encode_ack(writer, header, &ranges)?;
                }
                frame::encode(writer, &close.frame())
            });
            self.acks.return_ranges(ranges);
            let contents = Contents::default();
            self.finish_control(now, buffer, start, false, contents, session);
        } else {
            self.handshake.write_close(&close.text, buffer);
        }
        self.closing.on_sent(close);
        if buffer.is_empty() {
            return None;
        }
        let len = buffer.len();
        Some(self.transmit(now, buffer, len))
    }

    fn poll_handshake(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Option<Outgoing> {
        if !self.handshake.is_due(now) {
            return None;
        }
        // A Handshake packet of the client proves its address (RFC 9000, section 8.1). Under heavy
        // loss the limit would otherwise hold back the rest of the server's flight for long.
        let is_limited = !self.handshake.is_complete() && !self.handshake.is_validated();
        let allowance = if is_limited { self.path.handshake_allowance() } else { usize::MAX };
        buffer.resize(HANDSHAKE_DATAGRAM, 0);
        let len = self.handshake.poll_datagram(now, buffer, allowance).unwrap_or(0);
        buffer.truncate(len);
        if len == 0 {
            return None;
        }
        Some(self.transmit(now, buffer, len))
    }

    fn maybe_update_keys(&mut self, now: Timestamp) {
        let next_pn = self.sent.peek_next();
        if let Some(protection) = &mut self.protection
            && protection.wants_update(now)
        {
            protection.update(now, &mut self.handshake, next_pn, None);
        }
    }

    fn begin_packet(&mut self, buffer: &mut Vec<u8>) {
        buffer.resize(buffer.len() + SHORT_HEADER_LEN, 0);
    }

    /// Lets `write` add frames to the control packet begun last; returns the start of that packet.
    fn write_frames(
        &mut self,
        buffer: &mut Vec<u8>,
        write: impl FnOnce(&mut Writer<'_>) -> Option<()>,
    ) -> usize {
        self.write_frames_within(CONTROL_ROOM, buffer, write)
    }

    /// As [`Self::write_frames`], with at most `room` bytes of frames, and what the path MTU allows.
    fn write_frames_within(
        &mut self,
        room: usize,
        buffer: &mut Vec<u8>,
        write: impl FnOnce(&mut Writer<'_>) -> Option<()>,
    ) -> usize {
        let payload_start = buffer.len();
        let room = room.min(usize::from(self.mtu.current()) - SHORT_OVERHEAD);
        buffer.resize(payload_start + room, 0);
        let mut writer = Writer::new(&mut buffer[payload_start..]);
        let written = if write(&mut writer).is_some() { writer.written() } else { 0 };
        buffer.truncate(payload_start + written);
        payload_start - SHORT_HEADER_LEN
    }

    /// Seals a packet of frames and records it as sent.
    fn finish_control(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
        start: usize,
        ack_eliciting: bool,
        contents: Contents,
        session: &impl LinkSession,
    ) {
        let kind = (PacketKind::Control, false);
        self.finish_packet(now, buffer, start, kind, (ack_eliciting, contents), session);
    }

    /// Seals the packet from `start` on and records it as sent. `kind` says also whether the packet is relayed,
    /// and `contents` whether it is ack-eliciting.
    fn finish_packet(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
        start: usize,
        kind: (PacketKind, bool),
        (ack_eliciting, contents): (bool, Contents),
        session: &impl LinkSession,
    ) {
        let random = self.rng.next_u64();
        let pn = self.sent.next_number(now, random);
        if let Some(protection) = &mut self.protection {
            protection.seal(buffer, start, kind, self.ids.remote, pn, random as u8);
        }
        let size = buffer.len() - start;
        let awaits_answer = ack_eliciting && !contents.mtu_probe;
        if contents.coded {
            self.probing.on_coded(now);
        }
        let app_limited = self.congestion.is_app_limited();
        self.sent.on_sent(now, size, ack_eliciting, app_limited, contents);
        self.congestion.on_sent(now, size as u64, self.sent.bytes_in_flight());
        // MTU probes come in rounds and most of them are lost. They must not defer the probe
        // timeout of other packets.
        if awaits_answer {
            self.probing.on_sent(now);
            self.arm_probe(now, session);
        }
    }

    /// Writes a control packet with all pending frames; returns its size.
    fn poll_control(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
        session: &mut impl LinkSession,
        source: &mut Option<&mut dyn PacketSource>,
    ) -> Option<usize> {
        let source = source.as_mut().filter(|source| source.has_report());
        let is_due = session.is_control_due(now) || self.control.is_due() || self.acks.is_due();
        if !is_due && source.is_none() {
            return None;
        }
        // Any control packet carries a pending acknowledgement.
        let mut ranges = self.acks.take_ranges();
        let header = self.acks.take(now, &mut ranges);
        let of_session = session.next_control(now, self.rtt());
        let mut own = self.control.take();
        let crypto_data =
            if own.crypto { self.handshake.post_handshake_data().to_vec() } else { Vec::new() };
        own.crypto = !crypto_data.is_empty();
        let mark = self.acks.largest().unwrap_or(0);
        let contents = Contents {
            credit: of_session.credit.is_some(),
            end: of_session.end.is_some(),
            handshake_done: own.handshake_done,
            crypto: own.crypto,
            ..Contents::default()
        };
        let ack_eliciting = own.is_ack_eliciting() || of_session.is_ack_eliciting();

        self.begin_packet(buffer);
        let start = self.write_frames(buffer, |writer| {
            own.write(writer, &crypto_data)?;
            of_session.write(writer)?;
            if let Some(source) = source {
                // The last report is cut to the free space; further ones wait for the next packet.
                while writer.remaining() >= REPORT_ROOM
                    && let Some(report) = source.next_report(now, mark)
                {
                    frame::encode(writer, &Frame::BatchRank(report))?;
                }
            }
            if let Some(header) = &header {
                frame::encode_ack(writer, header, &ranges)?;
            }
            Some(())
        });
        self.acks.return_ranges(ranges);
        if own.is_padded {
            let full = start + usize::from(self.mtu.current()) - TAG_LEN;
            buffer.resize(full.max(buffer.len()), 0);
        }
        self.finish_control(now, buffer, start, ack_eliciting, contents, session);
        Some(buffer.len())
    }

    /// Writes a path challenge for the new address, if one is due.
    fn poll_challenge(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
        session: &mut impl LinkSession,
    ) -> Option<Outgoing> {
        let (is_other_path, challenge) = self.path.poll(now);
        if is_other_path {
            self.on_port_changed(now, session);
        }
        let challenge = Frame::PathChallenge(challenge?);
        self.begin_packet(buffer);
        let start = self.write_frames(buffer, |writer| frame::encode(writer, &challenge));
        self.finish_control(now, buffer, start, true, Contents::default(), session);
        let len = buffer.len();
        let Some(to) = self.path.on_challenge(now, len, self.rtt.probe_timeout(MAX_ACK_DELAY))
        else {
            // The packet number is used up; the packet counts as lost.
            buffer.clear();
            return None;
        };
        let mut transmit = self.transmit(now, buffer, len);
        (transmit.remote, transmit.local_ip) = to;
        Some(transmit)
    }

    fn poll_mtu_probe(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
        session: &impl LinkSession,
    ) -> Option<usize> {
        if self.is_provisional() {
            return None;
        }
        // Assume high loss until it is measured.
        let known = self.sent.loss.packets() >= MEASURED_LOSS_PACKETS;
        let loss = self.sent.loss.estimate().max(if known { 0.0 } else { ASSUMED_LOSS });
        let size = self.mtu.poll(now, self.rtt.probe_timeout(MAX_ACK_DELAY), loss)?;
        self.begin_packet(buffer);
        let start = buffer.len() - SHORT_HEADER_LEN;
        // PING and padding, which is zero.
        buffer.push(1);
        buffer.resize(start + usize::from(size) - TAG_LEN, 0);
        let contents = Contents { mtu_probe: true, ..Contents::default() };
        self.finish_control(now, buffer, start, true, contents, session);
        Some(buffer.len())
    }

    /// Writes a burst of coded packets, as far as congestion window and pacer allow; returns the
    /// segment size.
    fn poll_data(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
        session: &mut impl LinkSession,
        source: &mut Option<&mut dyn PacketSource>,
    ) -> Option<usize> {
        let controller = self.congestion.controller();
        let (rate, window) = (controller.pacing_rate(), controller.window());
        let rate = self.probing.pace(rate, window, u64::from(self.mtu.current()));
        self.congestion.begin_burst(now, rate);
        let mut segment_size = self.buffers.take_stash(buffer);
        let view = self.path_view();
        // Sending changes none of this.
        let link_view = if source.is_some() { self.link_view(now) } else { LinkView::default() };
        let limit = buffer.capacity().min(MAX_BURST_BYTES);
        let mut segments = usize::from(segment_size.is_some());
        // Check the anti-amplification limit before every packet to an unvalidated address.
        let is_limited = self.is_provisional() || self.path.is_unvalidated();
        let max_segments = if is_limited { 1 } else { MAX_SEGMENTS };
        while segments < max_segments && !self.buffers.is_occupied() {
            let packet_bound = segment_size.unwrap_or(usize::from(self.mtu.current()));
            if segments > 0 && buffer.len() + packet_bound > limit {
                break;
            }
            if !self.probing.is_allowed() {
                let bytes = packet_bound as u64;
                let in_flight = self.sent.bytes_in_window() + bytes;
                let has_data = || self.relayed.is_ready() || session.has_data();
                if !self.congestion.may_send(now, in_flight, bytes, has_data) {
                    break;
                }
            }
            let start = buffer.len();
            let Some(kind) = self.next_payload(now, (&view, &link_view), session, source) else {
                // A backlog that waits for the next node's credit is no lack of data, and the
                // delivery rate is still meaningful.
                let has_backlog = source.as_mut().is_some_and(|source| source.has_backlog());
                self.congestion.set_app_limited(!has_backlog);
                self.probing.forbid();
                break;
            };
            if let Some(source) = source {
                self.relayed.set_ready(source.has_more(now));
            }
            let backlog = source.as_mut().is_some_and(|source| source.has_backlog());
            // During a blackout the sender also sends less than the path may transport.
            let has_none = !self.has_data(session) && !backlog;
            self.congestion.set_app_limited(has_none || self.probing.is_blackout());
            self.probing.use_allowed();
            if self.buffers.keep_if_long(kind, self.mtu.current()) {
                break;
            }
            buffer.resize(start + SHORT_HEADER_LEN, 0);
            buffer.extend_from_slice(self.buffers.payload());
            let contents = Contents { coded: true, ..Contents::default() };
            self.finish_packet(now, buffer, start, kind, (true, contents), session);
            let size = buffer.len() - start;
            self.congestion.on_paced(now, size as u64);
            match segment_size {
                None => segment_size = Some(size),
                Some(full) if size > full => {
                    self.buffers.stash(buffer, start);
                    break;
                }
                Some(full) if size < full => break,
                Some(_) => {}
            }
            segments += 1;
        }
        if buffer.is_empty() {
            return self.poll_fragments(now, buffer, session);
        }
        segment_size
    }

    /// Whether coded packets of the session or the relay wait to be sent.
    pub(crate) fn has_data(&self, session: &impl LinkSession) -> bool {
        self.relayed.is_ready() || session.has_data()
    }

    /// Pulls the next payload from the session or the relay, which take turns; returns its kind, and whether it is
    /// relayed.
    fn next_payload(
        &mut self,
        now: Timestamp,
        (view, link_view): (&PathView, &LinkView),
        session: &mut impl LinkSession,
        source: &mut Option<&mut dyn PacketSource>,
    ) -> Option<(PacketKind, bool)> {
        let is_turn_of_source = self.relayed.is_ready() && self.relayed.has_next_turn();
        if is_turn_of_source && let Some(kind) = self.pull_relayed(now, link_view, source) {
            return Some((kind, true));
        }
        let (path_mtu, out) = (self.mtu.current(), self.buffers.payload_mut());
        if let Some(kind) = session.next_coded(now, path_mtu, view, out) {
            self.relayed.set_next_turn(true);
            return Some((kind, false));
        }
        if is_turn_of_source {
            return None;
        }
        self.pull_relayed(now, link_view, source).map(|kind| (kind, true))
    }

    /// Pulls the next payload from the relay.
    fn pull_relayed(
        &mut self,
        now: Timestamp,
        view: &LinkView,
        source: &mut Option<&mut dyn PacketSource>,
    ) -> Option<PacketKind> {
        let source = source.as_mut()?;
        let kind = source.pull(now, view, self.sent.peek_next(), self.buffers.payload_mut());
        match kind {
            Some(_) => self.relayed.set_next_turn(false),
            None => self.relayed.set_ready(false),
        }
        kind
    }

    /// Sends the payload that is too large for the path MTU, in equal fragments.
    fn poll_fragments(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
        session: &impl LinkSession,
    ) -> Option<usize> {
        let fragments: Fragments = self.buffers.split(self.mtu.current())?;
        let mut segment_size = None;
        for frame in fragments.frames() {
            self.begin_packet(buffer);
            let start = self
                .write_frames_within(usize::MAX, buffer, |writer| frame::encode(writer, &frame));
            let contents = Contents { coded: true, ..Contents::default() };
            self.finish_control(now, buffer, start, true, contents, session);
            let size = buffer.len() - start;
            self.congestion.on_paced(now, size as u64);
            segment_size.get_or_insert(size);
        }
        self.buffers.end_split(fragments);
        segment_size
    }

    /// Links of the relay have sent a coded packet of `len` bytes of this end-to-end session.
    pub(crate) fn on_coded_over_relays(
        &mut self,
        now: Timestamp,
        len: usize,
        wants_answer: bool,
        session: &impl LinkSession,
    ) {
        if wants_answer {
            self.control.ping();
        }
        self.probing.on_coded(now);
        self.counters.on_sent(1, len);
        if self.probing.next_timeout().is_none() {
            self.arm_probe(now, session);
        }
    }
}
