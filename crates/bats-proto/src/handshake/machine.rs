//! The handshake of one connection: drives TLS, retransmits its flights, validates addresses.

mod key_discard;
mod resumption;

use core::time::Duration;

use bats_types::Timestamp;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::connection_ids::ConnectionIds;
use super::early::{EarlySender, lock};
use super::early_data::EarlyData;
use super::first::{ServerCrypto, StartInfo};
use super::initial_token::InitialToken;
use super::levels::Levels;
use super::one_rtt::OneRtt;
use super::packet::{self, PacketHeader};
use super::protection::Protection;
use super::retransmit_schedule::RetransmitSchedule;
use super::rtt_echo::RttEcho;
use super::timers::RetransmitTimers;
use crate::config::{ClientConfig, Security};
use crate::crypto::{ClientTls, CryptoError, Keys, PacketKey, PlainIdentity, PskSecrets, Session};
use crate::crypto::{InitialSecrets, SALT_LEN, SymbolKeys, TAG_LEN, initial_keys};
use crate::error::{CloseReason, ConnectError};
use crate::remote::Remote;
use crate::wire::long_header::{
    self, CID_LEN, LongKind, MIN_INITIAL_DATAGRAM, ORIGINAL_CID_LEN, VERSION,
};
use crate::wire::parameters::TransportParameters;
use crate::wire::varint::{Reader, Writer};

/// Bytes of a handshake datagram: every path must support this size.
const DATAGRAM: usize = MIN_INITIAL_DATAGRAM;

/// Frames of a packet other than padding; further ones are ignored.
const MAX_FRAMES: usize = 64;
const CRYPTO: u8 = 1;
const ACKNOWLEDGED: u8 = 2;
const STAMP: u8 = 3;
const ECHO: u8 = 4;
const CLOSE: u8 = 5;
const EARLY_ARRIVED: u8 = 6;

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// TLS rejected the peer's data.
    #[error("{0}")]
    Tls(String),
    /// The peer's transport parameters are malformed or contradict its packets.
    #[error("unacceptable transport parameters")]
    Parameters,
    /// The peer refused the handshake with this reason.
    #[error("refused by the peer: {0}")]
    ByPeer(String),
    /// No common version.
    #[error("no protocol version in common")]
    Version,
}

impl From<CryptoError> for HandshakeError {
    fn from(error: CryptoError) -> Self {
        Self::Tls(error.0)
    }
}

impl From<HandshakeError> for CloseReason {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Version => Self::Version,
            other => Self::Handshake(other.to_string()),
        }
    }
}

/// The handshake of one connection.
#[derive(Debug)]
pub struct Handshake {
    is_client: bool,
    security: Security,
    session: Session,
    rng: ChaCha8Rng,
    levels: Levels,
    one_rtt: OneRtt,
    ids: ConnectionIds,
    token: InitialToken,
    /// The peer's address is validated.
    validated: bool,
    peer: Option<TransportParameters>,
    confirmed: bool,
    /// TLS is complete and the peer's parameters are known. Never reset.
    completed: bool,
    failed: bool,
    schedule: RetransmitSchedule,
    echo: RttEcho,
    early: EarlyData,
}

impl Handshake {
    /// Creates the client side of a handshake with `remote`; the first flight is sent at once.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the name or the configuration is invalid.
    pub(crate) fn client(
        now: Timestamp,
        config: &ClientConfig,
        (remote, server_name): (Remote, &str),
        protection: Protection,
        mut parameters: TransportParameters,
        local_cid: [u8; CID_LEN],
        seed: [u8; 32],
    ) -> Result<Self, ConnectError> {
        let mut rng = ChaCha8Rng::from_seed(seed);
        let mut original = [0; ORIGINAL_CID_LEN];
        rng.fill_bytes(&mut original);
        parameters.connection_id = local_cid;
        let bytes = parameters.encode(rng.next_u32() as u8);
        let (tls, psk) = match protection {
            Protection::Handshake(security) => {
                let tls = ClientTls::new(now, config, remote, server_name, security)?;
                (tls, PskSecrets::of(&config.transport))
            }
            Protection::Links(neighbour) => {
                (ClientTls::Plain(PlainIdentity::OfLinks(neighbour)), None)
            }
        };
        let security = protection.security();
        let session = tls.start(bytes)?;
        let (psk_secrets, salt) = (psk.as_ref(), &[][..]);
        let secrets =
            InitialSecrets { psk: psk_secrets, destination: &original, source: &local_cid, salt };
        let initial = initial_keys(security, &secrets, true);
        secrets.log_client();
        let ids = ConnectionIds::new(local_cid, original, None);
        let token = InitialToken::client(psk, &ids);
        let mut handshake = Self::new(now, true, security, session, rng, (ids, token), initial);
        handshake.drive_session(now).map_err(|e| ConnectError::Configuration(e.to_string()))?;
        handshake.early = EarlyData::client(handshake.session.early_keys().and_then(|keys| {
            let remembered = TransportParameters::decode(handshake.session.peer_parameters()?)?;
            EarlySender::new(keys, remembered)
        }));
        handshake.schedule.send_now(now);
        Ok(handshake)
    }

    /// Creates the server side; `start` comes from the client's first packet. `take_early` allows
    /// early data, if the server accepts it at all.
    ///
    /// # Errors
    ///
    /// [`CryptoError`] if no TLS session can be created.
    pub fn server(
        now: Timestamp,
        crypto: &ServerCrypto,
        mut parameters: TransportParameters,
        local_cid: [u8; CID_LEN],
        start: &StartInfo,
        take_early: bool,
        seed: [u8; 32],
    ) -> Result<Self, CryptoError> {
        let mut rng = ChaCha8Rng::from_seed(seed);
        parameters.connection_id = local_cid;
        parameters.original_destination = Some(start.destination);
        let ledger = crypto.ledger.clone().filter(|_| take_early);
        let has_room = ledger.as_ref().is_some_and(|ledger| lock(ledger).has_room(now));
        let session =
            crypto.tls.start(parameters.encode(rng.next_u32() as u8), has_room, start.neighbour)?;
        let security = crypto.tls.security();
        let mut salt = [0; SALT_LEN];
        if crypto.requires_psk() {
            rng.fill_bytes(&mut salt);
        }
        let secrets = InitialSecrets {
            psk: crypto.psk_of(start),
            destination: &start.destination,
            source: &start.source,
            salt: &salt,
        };
        let initial = initial_keys(security, &secrets, false);
        secrets.log_client();
        secrets.log_server();
        let token = match crypto.requires_psk() {
            true => InitialToken::server(salt),
            false => InitialToken::default(),
        };
        let ids = ConnectionIds::new(local_cid, start.destination, Some(start.source));
        let mut handshake = Self::new(now, false, security, session, rng, (ids, token), initial);
        handshake.validated = start.validated;
        handshake.early = EarlyData::server(ledger);
        Ok(handshake)
    }

    fn new(
        now: Timestamp,
        is_client: bool,
        security: Security,
        session: Session,
        rng: ChaCha8Rng,
        (ids, token): (ConnectionIds, InitialToken),
        initial: Option<Keys>,
    ) -> Self {
        Self {
            is_client,
            security,
            session,
            rng,
            levels: Levels::new(initial),
            one_rtt: OneRtt::new(),
            ids,
            token,
            validated: false,
            peer: None,
            confirmed: false,
            completed: false,
            failed: false,
            schedule: RetransmitSchedule::new(now),
            echo: RttEcho::new(now),
            early: EarlyData::default(),
        }
    }

    /// Sets the retransmission timers, before anything has been sent.
    pub fn set_timers(&mut self, timers: RetransmitTimers) {
        self.schedule.set_timers(timers);
    }

    /// Whether TLS is complete at this end and the peer's transport parameters are known.
    pub fn is_complete(&self) -> bool {
        self.completed
    }

    /// Whether the peer's address is validated: it returned a Retry token, or used keys that only a
    /// receiver of our packets can have.
    pub fn is_validated(&self) -> bool {
        self.validated || self.is_client
    }

    /// Takes the 1-RTT keys, once.
    pub fn take_one_rtt_keys(&mut self) -> Option<Keys> {
        self.one_rtt.take_keys()
    }

    /// 1-RTT keys of the next key phase: (to seal, to open).
    pub fn next_one_rtt_keys(&mut self) -> Option<(PacketKey, PacketKey)> {
        self.session.next_keys()
    }

    /// Keys of the symbol seals, once the handshake is complete.
    pub(crate) fn symbol_keys(&self) -> Option<SymbolKeys> {
        self.session.symbol_keys()
    }

    /// The peer's transport parameters; authentic once the handshake is complete.
    pub fn peer_parameters(&self) -> Option<&TransportParameters> {
        self.peer.as_ref()
    }

    /// The connection ID that the peer chose for itself.
    pub fn peer_cid(&self) -> Option<[u8; CID_LEN]> {
        self.ids.peer()
    }

    /// SHA-256 fingerprint of the peer's certificate.
    pub fn peer_fingerprint(&self) -> Option<[u8; 32]> {
        self.session.peer_fingerprint()
    }

    /// Minimum RTT from echoed timestamps.
    pub fn rtt_sample(&self) -> Option<Duration> {
        self.echo.rtt()
    }

    /// Frees unused memory.
    pub fn trim(&mut self) {
        self.levels.trim();
    }

    /// Whether the handshake timeout has passed.
    pub fn has_timed_out(&self, now: Timestamp) -> bool {
        !self.is_complete() && now >= self.fails_at()
    }

    /// When the handshake fails unless it is complete.
    fn fails_at(&self) -> Timestamp {
        // Early data has stricter limits: servers remember first flights for 25 s only (ADR 0013).
        let is_strict = self.is_client || self.early.is_decided();
        self.schedule.deadline(!is_strict)
    }

    /// Takes a datagram of packets with long headers; returns whether any was authentic. Others are
    /// ignored.
    ///
    /// # Errors
    ///
    /// [`HandshakeError`] if the handshake has failed.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub fn handle_datagram(
        &mut self,
        now: Timestamp,
        datagram: &mut [u8],
    ) -> Result<bool, HandshakeError> {
        let mut authentic = false;
        let mut rest = datagram;
        while !rest.is_empty() {
            let Some(header) = long_header::decode(rest) else { break };
            if header.version == 0 {
                self.on_version_negotiation(header.destination, header.token)?;
                return Ok(false);
            }
            if header.version != VERSION {
                break;
            }
            let (kind, number_at, packet_len) = (header.kind, header.number_at, header.packet_len);
            let source: Option<[u8; CID_LEN]> = header.source.try_into().ok();
            if kind == LongKind::Retry {
                // Only from a sender that has seen the first flight, and before any other answer.
                let is_first_answer = self.is_client
                    && self.ids.peer().is_none()
                    && header.source == self.ids.original();
                if is_first_answer && self.token.on_retry(header.token, &self.ids) {
                    self.rewind();
                    self.schedule.send_now(now);
                }
                return Ok(false);
            }
            let salt: Option<[u8; SALT_LEN]> = header.token.try_into().ok();
            let Some((packet, others)) = rest.split_at_mut_checked(packet_len) else { break };
            if kind == LongKind::Early {
                authentic |= self.early.receive(packet, number_at);
            } else if let Some(payload) = self.open((kind, salt), packet, number_at) {
                authentic = true;
                if self.is_client {
                    self.ids.on_authentic_source(source);
                }
                if kind == LongKind::Handshake {
                    self.validated = true;
                    self.on_handshake_packet();
                }
                self.handle_payload(now, kind, &payload)?;
                // This packet may yield the keys of the next one.
                self.drive_session(now)?;
            }
            rest = others;
        }
        if authentic {
            self.schedule.on_authentic(now);
        }
        self.confirm_server();
        self.answer(now);
        Ok(authentic)
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn on_version_negotiation(&mut self, to: &[u8], offered: &[u8]) -> Result<(), HandshakeError> {
        let ours = VERSION.to_be_bytes();
        // A server in PSK mode never sends version negotiation, so an attacker sent it.
        let is_unanswered = self.is_client
            && !self.token.has_psk()
            && self.ids.peer().is_none()
            && to == self.ids.local();
        if is_unanswered && offered.chunks_exact(4).all(|version| version != ours) {
            self.failed = true;
            return Err(HandshakeError::Version);
        }
        Ok(())
    }

    /// Begins another transmission round of all unacknowledged data.
    fn rewind(&mut self) {
        self.levels.rewind();
        if !self.levels.has_handshake_keys() {
            self.early.rewind();
        }
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn open(
        &mut self,
        (kind, salt): (LongKind, Option<[u8; SALT_LEN]>),
        packet: &mut [u8],
        number_at: usize,
    ) -> Option<Vec<u8>> {
        let keys = self.levels.of(kind)?.keys.as_mut()?;
        if kind == LongKind::Initial {
            let client = (self.security, &self.ids);
            self.token.open(packet, number_at, salt, keys, client)
        } else {
            packet::open(packet, &keys.remote, number_at)
        }
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn handle_payload(
        &mut self,
        now: Timestamp,
        kind: LongKind,
        payload: &[u8],
    ) -> Result<(), HandshakeError> {
        let Some(level) = self.levels.of(kind) else { return Ok(()) };
        let mut reader = Reader::new(payload);
        let mut frames = 0_usize;
        while let Some(frame) = reader.u8() {
            // Each costs work, and peers send a few. Padding does not count.
            frames = frames.saturating_add(usize::from(frame != 0));
            if frames > MAX_FRAMES {
                return Ok(());
            }
            let parsed = (|| {
                match frame {
                    0 => {}
                    CRYPTO => {
                        let offset = reader.varint()?;
                        let len = usize::try_from(reader.varint()?).ok()?;
                        let before = level.received();
                        if !level.receive(offset, reader.take(len)?) {
                            return None;
                        }
                        level.ack_pending = true;
                        if level.received() == before {
                            // The peer retransmits, so it may have missed our data.
                            if self.schedule.may_rewind(now) && level.has_unacknowledged() {
                                level.rewind();
                            }
                        }
                    }
                    ACKNOWLEDGED => level.on_acknowledged(reader.varint()?),
                    STAMP => self.echo.on_stamp(now, reader.varint()?),
                    ECHO => {
                        let sent = Timestamp::from_micros(reader.varint()?);
                        let held = Duration::from_micros(reader.varint()?);
                        self.echo.on_echo(now, sent, held);
                    }
                    EARLY_ARRIVED => {
                        let arrived = reader.u32()?;
                        // Everyone knows the Initial keys.
                        if kind == LongKind::Handshake && self.is_client {
                            self.early.on_acknowledged(arrived);
                        }
                    }
                    CLOSE => {
                        let len = usize::try_from(reader.varint()?).ok()?;
                        let text = String::from_utf8_lossy(reader.take(len)?).into_owned();
                        return Some(Err(HandshakeError::ByPeer(text)));
                    }
                    _ => return None,
                }
                Some(Ok(()))
            })();
            match parsed {
                Some(Ok(())) => {}
                Some(Err(error)) => return Err(error),
                // Authentic, but with an unknown frame: the rest cannot be parsed.
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Schedules data and acknowledgements that the last datagram made possible or necessary.
    fn answer(&mut self, now: Timestamp) {
        if self.confirmed {
            return;
        }
        if self.levels.has_unsent() {
            self.schedule.begin_flight(now, self.echo.rtt());
        } else if self.levels.is_ack_due() && !self.is_complete() {
            // An answer is sent anyway: send the duplicate with it.
            if self.schedule.take_duplicate() {
                self.rewind();
            }
            self.schedule.answer(now, self.echo.rtt());
        }
    }

    /// When to call [`Handshake::handle_timeout`] or [`Handshake::poll_datagram`].
    pub fn next_timeout(&self) -> Option<Timestamp> {
        let fails_at = (!self.is_complete()).then(|| self.fails_at());
        Timestamp::earlier(self.schedule.next_send(), fails_at)
    }

    /// Begins a retransmission if it is due.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if !self.schedule.is_due(now) || self.levels.has_unsent() {
            return;
        }
        // What is sent again now is the duplicate, if there was none.
        self.schedule.take_duplicate();
        self.rewind();
        if self.is_client && !self.levels.has_unsent() {
            // The server has everything but sends nothing: it may have reached its
            // anti-amplification limit (RFC 9002, section 6.2.2.1).
            self.levels.current().ack_pending = true;
        }
    }

    /// Whether the peer may still lack data of this end.
    fn is_waiting(&self) -> bool {
        let unanswered = self.levels.has_unacknowledged();
        if self.is_client { !self.confirmed } else { !self.is_complete() && unanswered }
    }

    /// Whether a datagram with long headers may be due.
    pub fn is_due(&self, now: Timestamp) -> bool {
        !self.failed && self.schedule.is_due(now)
    }

    /// Writes the next datagram with long headers if one is due, at most `allowance` bytes; returns
    /// its length.
    pub fn poll_datagram(
        &mut self,
        now: Timestamp,
        out: &mut [u8],
        allowance: usize,
    ) -> Option<usize> {
        if !self.is_due(now) {
            return None;
        }
        // A poll before the timer was handled must find the due retransmission. Otherwise peers
        // that retransmit at the same moments would never answer each other.
        if !self.levels.is_ack_due() && !self.has_early() {
            self.handle_timeout(now);
        }
        let limit = out.len().min(allowance).min(DATAGRAM);
        let mut len = 0;
        let mut has_initial = false;
        for kind in [LongKind::Initial, LongKind::Handshake] {
            // A client that has Handshake keys needs Initial only to acknowledge.
            while let Some(written) = self.write_packet(now, kind, &mut out[len..limit]) {
                has_initial |= kind == LongKind::Initial;
                len += written;
            }
        }
        if let Some(written) = self.write_early(now, &mut out[len..limit]) {
            len += written;
        }
        let more = self.levels.has_unsent() || self.has_early();
        if len == 0 || !more {
            self.schedule.on_flight_sent(now, self.is_waiting(), self.echo.rtt());
        }
        if len == 0 {
            return None;
        }
        if self.is_client && has_initial {
            // Pad the datagram with zeros after the packets; zeros end the packets of a datagram.
            out[len..DATAGRAM].fill(0);
            len = DATAGRAM;
        }
        self.schedule.on_sent(now);
        Some(len)
    }

    fn write_packet(&mut self, now: Timestamp, kind: LongKind, out: &mut [u8]) -> Option<usize> {
        /// Header without token, packet number, tag, and frames other than CRYPTO data.
        const OVERHEAD: usize = 64 + 4 + TAG_LEN + 40;
        let token = self.token.of(kind);
        let room = out.len().checked_sub(OVERHEAD + token.len())?;
        let level = self.levels.of(kind)?;
        let keys = level.keys.as_ref()?;
        if room < 32 || !(level.has_unsent() || level.ack_pending) {
            return None;
        }
        let mut payload = [0; DATAGRAM];
        let mut writer = Writer::new(&mut payload[..room + 40]);
        if level.received() > 0 {
            writer.u8(ACKNOWLEDGED)?;
            writer.varint(level.received() as u64)?;
        }
        writer.u8(STAMP)?;
        writer.varint(now.as_micros())?;
        if let Some((stamp, held)) = self.echo.echo(now) {
            writer.u8(ECHO)?;
            writer.varint(stamp)?;
            writer.varint(held.as_micros() as u64)?;
        }
        if kind == LongKind::Handshake
            && let Some(arrived) = self.early.arrived()
        {
            writer.u8(EARLY_ARRIVED)?;
            writer.u32(arrived)?;
        }
        let mut sent = 0;
        if let Some((offset, data)) = level.next_part(writer.remaining().saturating_sub(12)) {
            writer.u8(CRYPTO)?;
            writer.varint(offset as u64)?;
            writer.varint(data.len() as u64)?;
            writer.bytes(data)?;
            sent = data.len();
        }
        let payload_len = writer.written();
        let grease = self.rng.next_u32() as u8;
        let (destination, source) = (self.ids.destination(), self.ids.local());
        let head = PacketHeader { kind, destination, source, token, grease };
        let packet_len =
            packet::seal(out, &keys.local, &head, level.next_pn, &payload[..payload_len])?;
        level.next_pn += 1;
        level.ack_pending = false;
        level.advance(sent);
        if kind == LongKind::Handshake {
            self.on_handshake_packet_sent();
        }
        Some(packet_len)
    }

    /// Writes a datagram with a CLOSE frame that says why the handshake fails.
    pub fn write_close(&mut self, text: &str, out: &mut Vec<u8>) {
        let kind = self.levels.current_kind();
        let mut frame = vec![CLOSE, text.len().min(63) as u8];
        frame.extend_from_slice(&text.as_bytes()[..text.len().min(63)]);
        let level = self.levels.current();
        let Some(keys) = &level.keys else { return };
        let (destination, source) = (self.ids.destination(), self.ids.local());
        let token = self.token.of(kind);
        out.clear();
        out.resize(256 + token.len(), 0);
        let head = PacketHeader { kind, destination, source, token, grease: 0 };
        let len = packet::seal(out, &keys.local, &head, level.next_pn, &frame).unwrap_or(0);
        out.truncate(len);
        level.next_pn += 1;
    }

    /// Which security this handshake uses.
    pub fn security(&self) -> Security {
        self.security
    }

    /// Client: whether packets that arrive before their keys may be buffered. In PSK mode only
    /// after the server has answered, so that unauthenticated peers cause no memory use.
    pub(crate) fn may_buffer_early_packets(&self) -> bool {
        !self.token.has_psk() || self.ids.peer().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::key_discard_tests::Pair;
    use super::*;
    use crate::config::TransportConfig;

    #[test]
    fn frames_beyond_the_limit_are_ignored_and_padding_does_not_count() {
        let now = Timestamp::from_millis(1_000);
        for (before, is_read) in [(MAX_FRAMES - 1, true), (MAX_FRAMES, false)] {
            let mut client = Pair::with_client(TransportConfig::default()).client;
            let mut payload = [0, ACKNOWLEDGED, 0].repeat(before);
            payload.extend([CLOSE, 1, b'x']);
            let result = client.handle_payload(now, LongKind::Initial, &payload);
            assert_eq!(result.is_err(), is_read, "{before} frames before: {result:?}");
        }
    }
}
