//! What long packets change.

use bats_types::Timestamp;
use smallvec::SmallVec;

use super::error::HandshakeError;
use super::space::Space;
use super::stateless::{RETRY_NUMBER, open};
use super::{Handshake, TIMEOUT};
use crate::crypto::{Keys, Side};
use crate::wire::handshake_frame::{self, HandshakeFrame};
use crate::wire::long_header::{
    CID_LEN, Invariant, LongHeader, LongType, MAX_CID_LEN, ORIGINAL_CID_LEN, PACKET_NUMBER_LEN,
};
use crate::wire::parameters::TransportParameters;
use crate::wire::varint::Reader;
use crate::wire::version::{NEGOTIATION, VERSION};

/// Handshake packets that a client keeps while it waits for the ServerHello, and their size.
const MAX_EARLY: usize = 8;
const MAX_EARLY_LEN: usize = 1_500;
/// Longest token that a client takes from a Retry.
const MAX_TOKEN_LEN: usize = 256;

impl Handshake {
    /// Takes a datagram of long packets, decrypting it in place. Whatever is not authentic, not
    /// for this end or not for this moment is counted and changes nothing.
    ///
    /// # Errors
    /// The handshake has failed, which is said once; [`Handshake::write_close`] tells the peer.
    pub fn handle_datagram(
        &mut self,
        now: Timestamp,
        datagram: &mut [u8],
    ) -> Result<(), HandshakeError> {
        if self.failure.is_some() {
            self.counters.ignored += 1;
            return Ok(());
        }
        let result = self.handle_packets(now, datagram);
        if let Err(error) = &result {
            self.failure = Some(error.clone());
            self.schedule.stop();
        }
        result
    }

    fn handle_packets(
        &mut self,
        now: Timestamp,
        datagram: &mut [u8],
    ) -> Result<(), HandshakeError> {
        let mut rest = datagram;
        while let Some(invariant) = Invariant::decode(rest) {
            if invariant.version == NEGOTIATION {
                return self.handle_negotiation(rest);
            }
            let Some(header) = LongHeader::decode(rest) else {
                self.counters.ignored += 1;
                return Ok(());
            };
            let (packet_type, number_at, end) = (header.packet_type, header.number_at, header.end);
            let source: SmallVec<[u8; MAX_CID_LEN]> = SmallVec::from_slice(header.source);
            if !self.is_for_us(&header) {
                self.counters.ignored += 1;
                return Ok(());
            }
            if packet_type == LongType::Retry {
                self.handle_retry(now, rest);
                return Ok(());
            }
            let (packet, next) = rest.split_at_mut(end);
            self.handle_packet(now, packet_type, &source, number_at, packet)?;
            rest = next;
        }
        // What overtook the ServerHello can be read once that is there.
        if self.has_handshake_keys && !self.early.is_empty() {
            for mut packet in core::mem::take(&mut self.early) {
                self.handle_packets(now, &mut packet)?;
            }
        }
        Ok(())
    }

    /// Whether the connection IDs are those of this connection.
    fn is_for_us(&self, header: &LongHeader<'_>) -> bool {
        let first = self.side == Side::Server
            && header.packet_type == LongType::Initial
            && header.destination == self.first;
        if header.destination != self.local_cid && !first {
            return false;
        }
        match self.peer_cid {
            Some(peer_cid) => header.source == peer_cid,
            None if header.packet_type == LongType::Retry => {
                header.source.len() == ORIGINAL_CID_LEN
            }
            None => header.source.len() == CID_LEN,
        }
    }

    fn space(&mut self, packet_type: LongType) -> &mut Space {
        match packet_type {
            LongType::Handshake => &mut self.handshake,
            LongType::Initial | LongType::Retry => &mut self.initial,
        }
    }

    fn handle_packet(
        &mut self,
        now: Timestamp,
        packet_type: LongType,
        source: &[u8],
        number_at: usize,
        packet: &mut [u8],
    ) -> Result<(), HandshakeError> {
        if self.space(packet_type).keys.is_none() {
            let too_early = packet_type == LongType::Handshake
                && self.side == Side::Client
                && !self.has_handshake_keys;
            if too_early && self.early.len() < MAX_EARLY && packet.len() <= MAX_EARLY_LEN {
                self.early.push(packet.to_vec());
            } else {
                self.counters.ignored += 1;
            }
            return Ok(());
        }
        let space = self.space(packet_type);
        let opened = space.keys.as_ref().and_then(|keys| open(&keys.remote, packet, number_at));
        let Some((number, payload_len)) = opened else {
            self.counters.forged += 1;
            return Ok(());
        };
        if space.is_duplicate(number) {
            self.counters.duplicated += 1;
            return Ok(());
        }
        let payload = &packet[number_at + PACKET_NUMBER_LEN..][..payload_len];
        let frames = match read_frames(payload) {
            Ok(frames) => frames,
            Err(rule) => return self.broken(packet_type, rule),
        };
        self.space(packet_type).on_received(now, number);
        self.heard = true;
        if self.peer_cid.is_none()
            && let Ok(cid) = source.try_into()
        {
            self.peer_cid = Some(cid);
            self.destination = SmallVec::from_slice(source);
        }
        if packet_type == LongType::Handshake && self.side == Side::Server {
            // RFC 9001, section 4.9.1: the client has the ServerHello, and its address is real.
            self.address_validated = true;
            self.initial.discard();
        }
        let mut eliciting = false;
        let mut repeated = false;
        for frame in frames {
            match frame {
                HandshakeFrame::Ping => eliciting = true,
                HandshakeFrame::Ack { delay, ranges } => {
                    let space = self.space(packet_type);
                    match space.on_ack(now, delay, &ranges) {
                        Ok(Some(rtt)) => {
                            self.rtt = Some(self.rtt.map_or(rtt, |known| known.min(rtt)));
                        }
                        Ok(None) => {}
                        Err(rule) => self.broken(packet_type, rule)?,
                    }
                }
                HandshakeFrame::Crypto { offset, data } => {
                    eliciting = true;
                    let space = self.space(packet_type);
                    match space.incoming.insert(offset, data) {
                        Ok(new) => repeated |= !new && !data.is_empty(),
                        Err(rule) => self.broken(packet_type, rule)?,
                    }
                }
                // In Initial packets, which anyone on the path can make, believed only as long as
                // there is nothing better: their keys are gone with the first Handshake packet.
                HandshakeFrame::Close { code, reason } => {
                    return Err(HandshakeError::closed_by_peer(code, reason));
                }
            }
        }
        let space = self.space(packet_type);
        space.ack_pending |= eliciting && space.keys.is_some();
        self.advance(now)?;
        if repeated && self.schedule.peer_repeats(now, self.rtt) {
            self.repeat_flight();
        }
        self.settle_schedule(now);
        Ok(())
    }

    /// A rule is broken: fatal where only the peer can have done it, counted elsewhere.
    fn broken(&mut self, packet_type: LongType, rule: &'static str) -> Result<(), HandshakeError> {
        if packet_type == LongType::Handshake {
            return Err(HandshakeError::Protocol(rule));
        }
        self.counters.malformed += 1;
        Ok(())
    }

    /// Hands TLS what can be read in order, and takes what it has to say.
    fn advance(&mut self, now: Timestamp) -> Result<(), HandshakeError> {
        loop {
            let space =
                if self.has_handshake_keys { &mut self.handshake } else { &mut self.initial };
            let Some(data) = space.incoming.take() else { break };
            let read = self.session.read(&data);
            // Also after an error: TLS may want to say why.
            self.take_from_session(now);
            read.map_err(|error| HandshakeError::Tls { alert: error.alert, reason: error.reason })?;
        }
        if self.complete_at.is_none() && !self.session.is_handshaking() {
            self.complete(now)?;
        }
        Ok(())
    }

    fn complete(&mut self, now: Timestamp) -> Result<(), HandshakeError> {
        if !self.had_one_rtt {
            return Err(HandshakeError::Internal("TLS finished without keys"));
        }
        let encoded = self
            .session
            .peer_parameters()
            .ok_or(HandshakeError::Parameters("transport parameters: none"))?;
        let parameters = TransportParameters::decode(encoded)
            .map_err(|error| HandshakeError::Parameters(error.0))?;
        let wrong = |what| Err(HandshakeError::Parameters(what));
        if Some(parameters.initial_source) != self.peer_cid {
            return wrong("connection ID differs from the one in its packets");
        }
        let (original, retry) = match self.side {
            Side::Client => (Some(self.original), self.retry_source),
            Side::Server => (None, None),
        };
        if parameters.original_destination != original || parameters.retry_source != retry {
            return wrong("connection IDs do not tell of the same beginning");
        }
        if parameters.versions.0 != VERSION {
            return wrong("version differs from the one in use");
        }
        self.peer_parameters = Some(parameters);
        self.complete_at = Some(now);
        if self.side == Side::Server {
            // The client's Finished covers everything that was said to it.
            self.initial.discard();
            self.handshake.outgoing.clear();
            self.handshake.forget_sent();
        }
        Ok(())
    }

    /// Stops the clock when nothing of the flight at hand is missing at the peer.
    fn settle_schedule(&mut self, now: Timestamp) {
        let done = match self.side {
            Side::Server => {
                self.is_complete()
                    || self.has_handshake_keys
                        && self.initial.outgoing.is_acknowledged()
                        && self.handshake.outgoing.is_acknowledged()
            }
            Side::Client => self.is_complete() && self.handshake.outgoing.is_acknowledged(),
        };
        if done || self.complete_at.is_some_and(|at| now >= at + TIMEOUT) {
            self.schedule.stop();
        }
    }

    /// Sends the flight again as far as it is not acknowledged.
    pub(super) fn repeat_flight(&mut self) {
        let initial = self.initial.keys.is_some() && self.initial.outgoing.repeat();
        let handshake = self.handshake.keys.is_some() && self.handshake.outgoing.repeat();
        self.counters.repeats += u64::from(initial || handshake);
    }

    /// Version negotiation (RFC 9000, section 6.2): believed only as the first answer.
    fn handle_negotiation(&mut self, packet: &[u8]) -> Result<(), HandshakeError> {
        let Some(invariant) = Invariant::decode(packet) else { return Ok(()) };
        let ours = self.side == Side::Client
            && !self.heard
            && invariant.destination == self.local_cid
            && *invariant.source == *self.destination;
        let (versions, rest) = packet[invariant.len..].as_chunks::<4>();
        let offers_ours = versions.iter().any(|version| u32::from_be_bytes(*version) == VERSION);
        if ours && !offers_ours && !versions.is_empty() && rest.is_empty() {
            return Err(HandshakeError::Version);
        }
        self.counters.ignored += 1;
        Ok(())
    }

    /// Retry (RFC 9000, section 17.2.5): once, and only as the first answer.
    fn handle_retry(&mut self, now: Timestamp, packet: &mut [u8]) {
        let acceptable = self.side == Side::Client && !self.heard && self.retry_source.is_none();
        let accepted = LongHeader::decode(packet).and_then(|header| {
            let source: [u8; ORIGINAL_CID_LEN] = header.source.try_into().ok()?;
            let good = acceptable && (1..=MAX_TOKEN_LEN).contains(&header.token.len());
            good.then(|| (source, header.token.to_vec(), header.number_at))
        });
        let Some((source, token, tag_at)) = accepted else {
            self.counters.ignored += 1;
            return;
        };
        let (front, tag) = packet.split_at_mut(tag_at);
        let keys = Keys::initial(self.security, &self.original, Side::Client);
        if keys.remote.packet.open_in_place(RETRY_NUMBER, front, tag) != Some(0) {
            self.counters.forged += 1;
            return;
        }
        self.initial.keys = Some(Keys::initial(self.security, &source, Side::Client));
        self.initial.forget_sent();
        self.initial.outgoing.repeat();
        self.destination = SmallVec::from_slice(&source);
        self.first = source;
        self.retry_source = Some(source);
        self.token = token;
        self.schedule.restart(now, self.rtt);
    }
}

fn read_frames(payload: &[u8]) -> Result<SmallVec<[HandshakeFrame<'_>; 4]>, &'static str> {
    let mut reader = Reader::new(payload);
    let mut frames = SmallVec::new();
    while let Some(frame) = handshake_frame::decode(&mut reader)? {
        frames.push(frame);
    }
    if frames.is_empty() && payload.is_empty() {
        return Err("packet without frames");
    }
    Ok(frames)
}
