//! Sending, most urgent packets first.

use bats_types::Timestamp;
use rand::Rng;

use super::control::PendingControl;
use super::end_to_end::PacketSource;
use super::protection::PacketProtection;
use super::streams::Totals;
use super::{Connection, MAX_ACK_DELAY};
use crate::endpoint::Transmit;
use crate::error::CloseReason;
use crate::flow::PathView;
use crate::link::sent::Contents;
use crate::wire::frame::{self, AckHeader, Frame};
use crate::wire::parameters::symbol_size_for;
use crate::wire::short_header::{PacketKind, SHORT_HEADER_LEN, SHORT_OVERHEAD, TAG_LEN};
use crate::wire::varint::Writer;

/// ECN codepoint ECT(0) (RFC 9000, section 13.4).
const ECT0: u8 = 0b10;
/// Segments of one GSO burst: the kernel's limit.
const MAX_SEGMENTS: usize = 64;
/// Bytes of one GSO burst: the limit of the IP length field, less headers.
const MAX_BURST_BYTES: usize = 65_000;
/// Packets with known outcome after which the loss counts as measured, and the loss assumed before.
const MEASURED_LOSS_PACKETS: u64 = 32;
const ASSUMED_LOSS: f64 = 0.3;
/// Free bytes that a control packet needs for a further report: its fields, some ranks, and an
/// acknowledgement.
const REPORT_ROOM: usize = 600;
/// Longest header of a FRAGMENT frame in bytes.
const FRAGMENT_OVERHEAD: usize = 1 + 8 + 1 + 1 + 1;

impl Connection {
    /// Writes the next datagrams to `buffer`; `None` if there is nothing to send now.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
        mut source: Option<&mut dyn PacketSource>,
    ) -> Option<Transmit> {
        buffer.clear();
        if self.state.is_dead() {
            return None;
        }
        if self.state.closing_until().is_some() {
            return self.poll_close(now, buffer);
        }
        if let Some(transmit) = self.poll_handshake(now, buffer) {
            return Some(transmit);
        }
        if !self.state.is_established() || self.protection.is_none() {
            return None;
        }
        if self.protection.as_ref().is_some_and(PacketProtection::is_spent) {
            self.close_silently(CloseReason::AeadLimit);
            return None;
        }
        if self.is_provisional() && self.amplification_allowance() < usize::from(self.mtu.current())
        {
            return None;
        }
        self.maybe_update_keys(now);
        if self.end_to_end.is_some() {
            // Coded packets are sent when a link asks for them.
            let segment_size = self.poll_control(now, buffer, &mut None)?;
            return Some(self.transmit(now, buffer, segment_size));
        }
        if let Some(transmit) = self.poll_challenge(now, buffer) {
            return Some(transmit);
        }
        if self.awaits_validation() {
            return None;
        }
        let had_end = self.control.end;
        let segment_size = self
            .poll_control(now, buffer, &mut source)
            .or_else(|| self.poll_mtu_probe(now, buffer))
            .or_else(|| self.poll_data(now, buffer, &mut source))
            .or_else(|| {
                // The last messages expired unsent: send the END frame now.
                let is_new = self.control.end && !had_end;
                is_new.then(|| self.poll_control(now, buffer, &mut source)).flatten()
            });
        if segment_size.is_none()
            && self.writable_wanted
            && let Some(streams) = &self.streams
        {
            // Expired messages free send-buffer space without an acknowledgement, so notify the
            // application here. Do so only when more have expired: otherwise notifications could
            // repeat endlessly at one instant.
            let expired = streams.outgoing.expired();
            let is_new = core::mem::replace(&mut self.expired_notified, expired) != expired;
            if is_new || streams.outgoing.bytes_held() == 0 {
                self.update_application();
            }
        }
        segment_size.map(|segment_size| self.transmit(now, buffer, segment_size))
    }

    pub(super) fn transmit(
        &mut self,
        now: Timestamp,
        buffer: &[u8],
        segment_size: usize,
    ) -> Transmit {
        self.last_sent_at = now;
        self.arm_keep_alive(now);
        self.unvalidated_sent += buffer.len() as u64;
        self.charge_unvalidated(buffer.len() as u64);
        self.counters.bytes_sent += buffer.len() as u64;
        self.counters.packets_sent += buffer.len().div_ceil(segment_size) as u64;
        Transmit {
            remote: self.remote,
            local_ip: self.local_ip,
            interface: self.interface,
            ecn: ECT0,
            segment_size,
            len: buffer.len(),
        }
    }

    fn poll_close(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Option<Transmit> {
        let close = self.control.close.take()?;
        if self.protection.is_some() {
            // Acknowledge with the CLOSE frame everything received so far, so that the peer knows
            // that the message to which this close is the answer has arrived.
            let mut ranges = core::mem::take(&mut self.ranges);
            let header = self.ack_header(now, &mut ranges);
            let rtt = self.report_rtt();
            let feedback =
                self.streams.as_mut().and_then(|streams| streams.incoming.feedback(now, rtt));
            self.begin_packet(buffer);
            let start = self.write_frames(buffer, |writer| {
                if let Some(feedback) = feedback {
                    frame::encode(writer, &Frame::Rank(feedback))?;
                }
                if let Some(header) = &header {
                    frame::encode_ack(writer, header, &ranges)?;
                }
                frame::encode(writer, &PendingControl::close_frame(&close))
            });
            self.ranges = ranges;
            self.finish_packet(now, buffer, start, PacketKind::Control, false, Contents::default());
        } else {
            self.handshake.write_close(&close.2, buffer);
        }
        self.control.close_sent = Some(close);
        if buffer.is_empty() {
            return None;
        }
        let len = buffer.len();
        Some(self.transmit(now, buffer, len))
    }

    fn poll_handshake(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Option<Transmit> {
        // A Handshake packet of the client proves its address (RFC 9000, section 8.1). Under heavy
        // loss the limit would otherwise hold back the rest of the server's flight for long.
        let is_limited = !self.handshake.is_complete() && !self.handshake.is_validated();
        let allowance = if is_limited { self.amplification_allowance() } else { usize::MAX };
        buffer.resize(1_500, 0);
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

    pub(super) fn begin_packet(&mut self, buffer: &mut Vec<u8>) {
        buffer.resize(buffer.len() + SHORT_HEADER_LEN, 0);
    }

    /// Lets `write` add frames to the packet begun last; returns the start of that packet.
    pub(super) fn write_frames(
        &mut self,
        buffer: &mut Vec<u8>,
        write: impl FnOnce(&mut Writer<'_>) -> Option<()>,
    ) -> usize {
        let payload_start = buffer.len();
        buffer.resize(payload_start + usize::from(self.mtu.current()) - SHORT_OVERHEAD, 0);
        let mut writer = Writer::new(&mut buffer[payload_start..]);
        let written = if write(&mut writer).is_some() { writer.written() } else { 0 };
        buffer.truncate(payload_start + written);
        payload_start - SHORT_HEADER_LEN
    }

    pub(super) fn finish_packet(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
        start: usize,
        kind: PacketKind,
        ack_eliciting: bool,
        contents: Contents,
    ) {
        self.finish_packet_of(now, buffer, start, (kind, false), ack_eliciting, contents);
    }

    /// As `finish_packet`; `kind` says also whether the packet is relayed.
    fn finish_packet_of(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
        start: usize,
        kind: (PacketKind, bool),
        ack_eliciting: bool,
        contents: Contents,
    ) {
        let random = self.rng.next_u64();
        let pn = self.sent.next_number(now, random);
        if let Some(protection) = &mut self.protection {
            protection.seal(buffer, start, kind, self.remote_cid, pn, random as u8);
        }
        let size = buffer.len() - start;
        let awaits_answer = ack_eliciting && !contents.mtu_probe;
        if contents.coded {
            self.coded_at = now;
        }
        self.sent.on_sent(now, size, ack_eliciting, self.app_limited, contents);
        // Round trips are counted by the bytes of all packets, acknowledgements included.
        self.controller.on_sent(now, size as u64, self.sent.bytes_in_flight());
        // MTU probes come in rounds and most of them are lost. They must not defer the probe
        // timeout of other packets.
        if awaits_answer {
            self.unanswered_since.get_or_insert(now);
            self.arm_probe(now);
        }
    }

    /// Writes a control packet with all pending frames; returns its size.
    fn poll_control(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
        source: &mut Option<&mut dyn PacketSource>,
    ) -> Option<usize> {
        let source = source.as_mut().filter(|source| source.has_report());
        if let Some(streams) = &self.streams
            && streams.incoming.feedback_at().is_some_and(|at| at <= now)
        {
            self.control.rank = true;
        }
        if !self.control.is_due() && source.is_none() {
            return None;
        }
        // Any control packet carries a pending acknowledgement.
        let ack_due = self.control.ack || self.control.unacknowledged > 0;
        let mut ranges = core::mem::take(&mut self.ranges);
        let header = if ack_due { self.ack_header(now, &mut ranges) } else { None };
        let rtt = self.report_rtt();
        let feedback = match &mut self.streams {
            Some(streams) if self.control.rank => streams.incoming.feedback(now, rtt),
            _ => None,
        };
        let credit = match &mut self.streams {
            Some(streams) if self.control.credit => streams.incoming.credit(),
            _ => None,
        };
        let end = match &self.streams {
            Some(streams) if self.control.end => streams.outgoing.end(),
            _ => None,
        };
        let (ping, done) = (self.control.ping, self.control.handshake_done);
        let crypto_data = if self.control.crypto {
            self.handshake.post_handshake_data().to_vec()
        } else {
            Vec::new()
        };
        let (path_response, polluted) = (self.control.path_response, self.control.polluted);
        let mark = self.received.largest().map_or(0, |(largest, _)| largest);

        self.begin_packet(buffer);
        let start = self.write_frames(buffer, |writer| {
            if ping {
                frame::encode(writer, &Frame::Ping)?;
            }
            if let Some(challenge) = path_response {
                frame::encode(writer, &Frame::PathResponse(challenge))?;
            }
            if done {
                frame::encode(writer, &Frame::HandshakeDone)?;
            }
            if !crypto_data.is_empty() {
                frame::encode(writer, &Frame::Crypto { offset: 0, data: &crypto_data })?;
            }
            if let Some(number) = polluted {
                frame::encode(writer, &Frame::SymbolPolluted(number))?;
            }
            if let Some(credit) = credit {
                frame::encode(writer, &Frame::Credit(credit))?;
            }
            if let Some(Totals { symbols, messages }) = end {
                frame::encode(writer, &Frame::End { symbols, messages })?;
            }
            if let Some(feedback) = feedback {
                frame::encode(writer, &Frame::Rank(feedback))?;
            }
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
        self.ranges = ranges;
        let padded = self.control.padded;
        if padded > 0 {
            let full = start + usize::from(self.mtu.current()) - TAG_LEN;
            buffer.resize(full.max(buffer.len()), 0);
        }
        let contents = Contents {
            credit: credit.is_some(),
            end: end.is_some(),
            handshake_done: done,
            crypto: !crypto_data.is_empty(),
            ..Contents::default()
        };
        let ack_eliciting = ping
            || path_response.is_some()
            || done
            || !crypto_data.is_empty()
            || credit.is_some()
            || end.is_some();
        self.control = PendingControl {
            padded: padded.saturating_sub(1),
            ping: padded > 1,
            close: self.control.close.take(),
            close_sent: self.control.close_sent.take(),
            ..PendingControl::default()
        };
        self.timers.ack = None;
        self.timers.feedback =
            self.streams.as_ref().and_then(|streams| streams.incoming.feedback_at());
        self.finish_packet(now, buffer, start, PacketKind::Control, ack_eliciting, contents);
        Some(buffer.len())
    }

    fn ack_header(&mut self, now: Timestamp, ranges: &mut Vec<(u64, u64)>) -> Option<AckHeader> {
        let (largest, received_at) = self.received.largest()?;
        self.received.write_ranges(ranges);
        Some(AckHeader {
            largest,
            delay: now - received_at,
            received_at,
            ce_count: self.ce_received,
        })
    }

    fn poll_mtu_probe(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Option<usize> {
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
        self.finish_packet(now, buffer, start, PacketKind::Control, true, contents);
        Some(buffer.len())
    }

    /// The path's properties for the flow.
    pub(super) fn path_view(&self) -> PathView {
        if let Some(end_to_end) = &self.end_to_end {
            return self.end_to_end_view(end_to_end);
        }
        PathView {
            rate_bytes_per_second: self.controller.bandwidth(),
            smoothed_rtt: self.rtt.smoothed(),
            ack_interval: self.ack_interval(),
            loss: self.sent.loss.estimate(),
            burst_factor: self.sent.loss.burst_factor(),
            loss_packets: self.sent.loss.packets(),
            queue_delay: self.controller.queue_delay(),
        }
    }

    /// Writes a burst of coded packets, as far as congestion window and pacer allow; returns the
    /// segment size.
    fn poll_data(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
        source: &mut Option<&mut dyn PacketSource>,
    ) -> Option<usize> {
        let (rate, window) = (self.controller.pacing_rate(), self.controller.window());
        let packet = u64::from(self.mtu.current());
        self.pacer.set_rate(now, self.blackout.map_or(rate, |b| b.pace(rate, window, packet)));
        self.timers.pacing = None;
        let mut segment_size = None;
        if !self.stash.is_empty() {
            core::mem::swap(buffer, &mut self.stash);
            self.stash.clear();
            segment_size = Some(buffer.len());
        }
        let view = self.path_view();
        let limit = buffer.capacity().min(MAX_BURST_BYTES);
        let mut segments = usize::from(segment_size.is_some());
        // Check the anti-amplification limit before every packet to an unvalidated address.
        let is_limited = self.is_provisional() || self.migration.is_unvalidated();
        let max_segments = if is_limited { 1 } else { MAX_SEGMENTS };
        while segments < max_segments && self.stash.is_empty() && self.unsplit.is_none() {
            let packet_bound = segment_size.unwrap_or(usize::from(self.mtu.current()));
            if segments > 0 && buffer.len() + packet_bound > limit {
                break;
            }
            if self.probes_allowed == 0 {
                let in_flight = self.sent.bytes_in_window() + packet_bound as u64;
                if in_flight > self.controller.window() {
                    self.controller.on_cwnd_limited();
                    break;
                }
                if let Some(at) = self.pacer.next_send_time(now, packet_bound as u64)
                    && at > now
                {
                    // The pacer blocks: arm its timer only if there is data.
                    if self.has_data() {
                        self.timers.pacing = Some(at);
                    }
                    break;
                }
            }
            let start = buffer.len();
            let own = self.next_coded(now, &view).map(|kind| (kind, false));
            let next = own.or_else(|| self.next_relayed(now, source));
            let Some(kind) = next else {
                // A backlog that waits for the next node's credit is no lack of data, and the
                // delivery rate is still meaningful.
                self.app_limited = !source.as_ref().is_some_and(|c| c.has_backlog());
                self.probes_allowed = 0;
                break;
            };
            if let Some(source) = source {
                self.packet_source.ready = source.has_more(now);
            }
            let backlog = source.as_ref().is_some_and(|source| source.has_backlog());
            // During a blackout the sender also sends less than the path may transport.
            self.app_limited = (!self.has_data() && !backlog) || self.blackout.is_some();
            self.probes_allowed = self.probes_allowed.saturating_sub(1);
            if self.scratch.len() + SHORT_OVERHEAD > usize::from(self.mtu.current()) {
                self.unsplit = Some(kind);
                break;
            }
            buffer.resize(start + SHORT_HEADER_LEN, 0);
            buffer.extend_from_slice(&self.scratch);
            let contents = Contents { coded: true, ..Contents::default() };
            self.finish_packet_of(now, buffer, start, kind, true, contents);
            let size = buffer.len() - start;
            self.pacer.on_sent(now, size as u64);
            match segment_size {
                None => segment_size = Some(size),
                Some(full) if size > full => {
                    self.stash.extend_from_slice(&buffer[start..]);
                    buffer.truncate(start);
                    break;
                }
                Some(full) if size < full => break,
                Some(_) => {}
            }
            segments += 1;
        }
        if buffer.is_empty() {
            return self.poll_fragments(now, buffer);
        }
        segment_size
    }

    pub(super) fn has_data(&self) -> bool {
        self.packet_source.ready || self.streams.as_ref().is_some_and(|streams| streams.has_data())
    }

    /// Puts the next relayed payload into `scratch`.
    fn next_relayed(
        &mut self,
        now: Timestamp,
        source: &mut Option<&mut dyn PacketSource>,
    ) -> Option<(PacketKind, bool)> {
        let source = source.as_mut()?;
        let (view, number) = (self.link_view(now), self.sent.peek_next());
        let kind = source.pull(now, &view, number, &mut self.scratch);
        self.packet_source.ready &= kind.is_some();
        kind.map(|kind| (kind, true))
    }

    /// Puts the next coded payload into `scratch`.
    fn next_coded(&mut self, now: Timestamp, view: &PathView) -> Option<PacketKind> {
        let symbol_size = symbol_size_for(self.mtu.current());
        let streams = self.streams.as_mut()?;
        let symbol_size = symbol_size.min(streams.max_symbol_size);
        let had_end = streams.outgoing.end().is_some();
        let kind = streams.poll(now, symbol_size, view, None, &mut self.scratch);
        // The last message has been cut into symbols: the totals for the END frame are known.
        self.control.end |= !had_end && streams.outgoing.end().is_some();
        kind
    }

    /// Sends the payload in `scratch`, which is too large for the path MTU, in equal fragments.
    fn poll_fragments(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Option<usize> {
        let (kind, relayed) = self.unsplit.take()?;
        let room = usize::from(self.mtu.current()) - SHORT_OVERHEAD - FRAGMENT_OVERHEAD;
        let payload = core::mem::take(&mut self.scratch);
        let parts = payload.len().div_ceil(room).max(1);
        let id = self.next_fragment_id;
        self.next_fragment_id += 1;
        let mut segment_size = None;
        for (index, data) in payload.chunks(payload.len().div_ceil(parts).max(1)).enumerate() {
            self.begin_packet(buffer);
            let last = index + 1 == parts;
            let frame = Frame::Fragment { id, index: index as u64, kind, relayed, last, data };
            let start = self.write_frames(buffer, |writer| frame::encode(writer, &frame));
            let contents = Contents { coded: true, ..Contents::default() };
            self.finish_packet(now, buffer, start, PacketKind::Control, true, contents);
            let size = buffer.len() - start;
            self.pacer.on_sent(now, size as u64);
            segment_size.get_or_insert(size);
        }
        self.scratch = payload;
        segment_size
    }
}
