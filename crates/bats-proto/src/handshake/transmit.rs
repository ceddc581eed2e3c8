//! What is sent, and when.

use bats_types::Timestamp;
use rand::Rng;
use smallvec::SmallVec;

use super::error::{Blame, code};
use super::space::Space;
use super::stateless::seal;
use super::{Handshake, TIMEOUT};
use crate::crypto::Side;
use crate::wire::handshake_frame as frame;
use crate::wire::long_header::{self, LongType, MIN_INITIAL_DATAGRAM, TAG_LEN};
use crate::wire::varint::Writer;

/// Largest datagram of the handshake: every path carries it, and what a client must pad to.
const MAX_DATAGRAM: usize = MIN_INITIAL_DATAGRAM;
/// Less than this allowance is not worth a packet.
const MIN_PACKET: usize = 100;
/// Octets that a CRYPTO frame has at least for its data; fewer are left to the next datagram.
const MIN_CRYPTO: usize = 8;

impl Handshake {
    /// Writes the next datagram to the front of `out` (1,200 octets are enough) and returns its
    /// length; `None` when there is nothing to send. A server stays below `allowance` octets
    /// until the client's address is validated.
    pub fn poll_datagram(
        &mut self,
        now: Timestamp,
        out: &mut [u8],
        allowance: usize,
    ) -> Option<usize> {
        let allowance = if self.address_validated { usize::MAX } else { allowance };
        let limit = out.len().min(MAX_DATAGRAM).min(allowance);
        let out = out.get_mut(..limit)?;
        if limit < MIN_PACKET || self.failure.is_some() {
            return None;
        }
        let mut written = 0;
        for packet_type in [LongType::Initial, LongType::Handshake] {
            written += self.write_packet(now, packet_type, &mut out[written..]).unwrap_or(0);
        }
        if written == 0 {
            return None;
        }
        self.schedule.on_sent(now);
        self.counters.datagrams_sent += 1;
        Some(written)
    }

    fn write_packet(
        &mut self,
        now: Timestamp,
        packet_type: LongType,
        out: &mut [u8],
    ) -> Option<usize> {
        let grease = self.rng.next_u32() as u8;
        let (space, token): (&mut Space, &[u8]) = match packet_type {
            LongType::Handshake => (&mut self.handshake, &[]),
            LongType::Initial | LongType::Retry => (&mut self.initial, &self.token),
        };
        if !space.wants_to_send() {
            return None;
        }
        let number = space.next_number()?;
        let room = out.len().checked_sub(TAG_LEN)?;
        let mut writer = Writer::new(&mut out[..room]);
        let open = long_header::write_header(
            &mut writer,
            packet_type,
            grease,
            &self.destination,
            &self.local_cid,
            token,
        )?;
        let payload_at = writer.written();
        let (ranges, delay) = space.acknowledgement(now);
        // Every packet acknowledges: acknowledgements are lost, too.
        let acknowledged = frame::write_ack(&mut writer, delay, &ranges).is_some();
        if space.ping_pending {
            frame::write_ping(&mut writer)?;
        }
        let parts = write_stream(space, &mut writer);
        let idle = parts.is_empty() && !space.ping_pending;
        if idle && !(acknowledged && space.ack_pending) {
            return None;
        }
        if packet_type == LongType::Initial && self.side == Side::Client {
            // PADDING frames (RFC 9000, section 14.1).
            let padding = writer.remaining();
            pad(&mut writer, padding)?;
        }
        let payload_end = writer.written();
        if payload_end == payload_at {
            return None;
        }
        let keys = space.keys.as_ref()?;
        let written = seal(&keys.local, out, open, payload_end, number)?;
        space.on_sent(now, parts);
        Some(written)
    }

    /// When [`Handshake::handle_timeout`] wants to be called at the latest.
    pub fn next_timeout(&self) -> Option<Timestamp> {
        if self.failure.is_some() {
            return None;
        }
        let end = (!self.is_complete()).then_some(self.started + TIMEOUT);
        match (self.schedule.due(), end) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The time of [`Handshake::next_timeout`] may have come.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        let since = self.complete_at.unwrap_or(self.started);
        if now >= since + TIMEOUT {
            return self.schedule.stop();
        }
        if !self.schedule.expired(now, self.rtt) {
            return;
        }
        self.repeat_flight();
        if self.side == Side::Client
            && !self.initial.outgoing.has_pending()
            && !self.handshake.outgoing.has_pending()
        {
            // All that was said has arrived and the answer has not: ask, which also lets a server
            // speak that has used up its allowance (RFC 9002, section 6.2.2.1).
            self.handshake.ping_pending = self.handshake.keys.is_some();
            self.initial.ping_pending = self.initial.keys.is_some();
        }
    }

    /// Appends a datagram that tells the peer of the end, at every level that it may understand.
    /// Nothing if it was the peer who declined: it knows, and two ends that answer closes with
    /// closes would never stop.
    ///
    /// Without a failure of the handshake it was the application that closed, whose words are for
    /// the authenticated peer only (RFC 9000, section 10.2.3): Initial packets leave them out.
    pub fn write_close(&mut self, reason: &str, buffer: &mut Vec<u8>) {
        let close_code = match &self.failure {
            Some(error) if error.blame() == Blame::Declined => return,
            Some(error) => error.code(),
            None => code::APPLICATION_ERROR,
        };
        let start = buffer.len();
        buffer.resize(start + MAX_DATAGRAM, 0);
        let mut written = 0;
        for packet_type in [LongType::Initial, LongType::Handshake] {
            let out = &mut buffer[start + written..];
            let private = self.failure.is_none() && packet_type == LongType::Initial;
            let reason = if private { "" } else { reason };
            written += self.write_close_packet(packet_type, close_code, reason, out).unwrap_or(0);
        }
        buffer.truncate(start + written);
    }

    fn write_close_packet(
        &mut self,
        packet_type: LongType,
        close_code: u64,
        reason: &str,
        out: &mut [u8],
    ) -> Option<usize> {
        let grease = self.rng.next_u32() as u8;
        let space = match packet_type {
            LongType::Handshake => &mut self.handshake,
            LongType::Initial | LongType::Retry => &mut self.initial,
        };
        let keys = space.keys.as_ref()?;
        let number = space.next_number()?;
        let room = out.len().checked_sub(TAG_LEN)?;
        let mut writer = Writer::new(&mut out[..room]);
        let token: &[u8] = if packet_type == LongType::Initial { &self.token } else { &[] };
        let open = long_header::write_header(
            &mut writer,
            packet_type,
            grease,
            &self.destination,
            &self.local_cid,
            token,
        )?;
        frame::write_close(&mut writer, close_code, reason)?;
        if packet_type == LongType::Initial && self.side == Side::Client {
            let padding = writer.remaining();
            pad(&mut writer, padding)?;
        }
        let payload_end = writer.written();
        let written = seal(&keys.local, out, open, payload_end, number)?;
        space.on_sent(Timestamp::ZERO, SmallVec::new());
        Some(written)
    }
}

/// Writes as much of what is pending as fits; returns which parts these are.
fn write_stream(space: &Space, writer: &mut Writer<'_>) -> SmallVec<[(u64, u64); 2]> {
    let mut parts: SmallVec<[(u64, u64); 2]> = SmallVec::new();
    for (offset, data) in space.outgoing.all_pending() {
        let overhead = frame::crypto_overhead(offset, data.len());
        let Some(room) = writer.remaining().checked_sub(overhead) else { break };
        let len = data.len().min(room);
        if len < data.len().min(MIN_CRYPTO)
            || frame::write_crypto(writer, offset, &data[..len]).is_none()
        {
            break;
        }
        parts.push((offset, offset + len as u64));
        if len < data.len() {
            break;
        }
    }
    parts
}

fn pad(writer: &mut Writer<'_>, mut len: usize) -> Option<()> {
    const ZEROS: [u8; 64] = [0; 64];
    while len > 0 {
        let part = len.min(ZEROS.len());
        writer.bytes(&ZEROS[..part])?;
        len -= part;
    }
    Some(())
}
