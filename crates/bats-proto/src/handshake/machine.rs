//! The handshake of one connection: drives TLS, retransmits its flights, validates addresses.

mod key_discard;
mod resumption;
mod retry;

use core::net::SocketAddr;
use core::time::Duration;

use bats_types::Timestamp;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::early::{EarlyReceiver, EarlySender, SharedReplayLedger, lock};
use super::first::{ServerCrypto, StartInfo};
use super::level::Level;
use super::packet::{self, PacketHeader};
use super::timers::{DUPLICATE_AFTER, RetransmitTimers};
use crate::config::{ClientConfig, Security, TransportConfig};
use crate::crypto::{ClientTls, CryptoError, Keys, PacketKey, PskSecrets, Session};
use crate::crypto::{InitialSecrets, SALT_LEN, SymbolKeys, TAG_LEN, initial_keys};
use crate::error::{CloseReason, ConnectError};
use crate::wire::long_header::{
    self, CID_LEN, LongKind, MIN_INITIAL_DATAGRAM, ORIGINAL_CID_LEN, VERSION,
};
use crate::wire::parameters::TransportParameters;
use crate::wire::varint::{Reader, Writer};

/// Least interval between retransmissions.
const MIN_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes of a handshake datagram: every path must support this size.
const DATAGRAM: usize = MIN_INITIAL_DATAGRAM;

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
    levels: [Level; 2],
    local_cid: [u8; CID_LEN],
    original: [u8; ORIGINAL_CID_LEN],
    peer_cid: Option<[u8; CID_LEN]>,
    /// In PSK mode a client's begins with the proof, and a server's is the salt of its keys.
    token: Vec<u8>,
    /// PSK mode, client: the server's salt, once one of its packets is authentic.
    salt: Option<[u8; SALT_LEN]>,
    retried: bool,
    /// Set for a client in PSK mode.
    psk: Option<Box<PskSecrets>>,
    validated: bool,
    peer: Option<TransportParameters>,
    one_rtt: Option<Keys>,
    /// Further TLS data is sent in CRYPTO frames of 1-RTT packets.
    has_one_rtt: bool,
    confirmed: bool,
    /// TLS is complete and the peer's parameters are known. Never reset.
    completed: bool,
    started: Timestamp,
    /// When the last authentic datagram arrived.
    heard: Timestamp,
    next_send: Option<Timestamp>,
    timers: RetransmitTimers,
    interval: Duration,
    /// The current flight has not been sent twice yet.
    duplicate_pending: bool,
    last_sent: Timestamp,
    /// The peer's newest timestamp and when it arrived.
    stamp: Option<(u64, Timestamp)>,
    rtt: Option<Duration>,
    failed: bool,
    /// TLS data after the handshake: received, and to send.
    post_handshake: Level,
    post_handshake_data: Vec<u8>,
    /// Client: early data, if it resumes a session that allows it.
    early: Option<Box<EarlySender>>,
    /// Server: the replay ledger of all clients, if early data is enabled.
    ledger: Option<SharedReplayLedger>,
    early_data: Option<Box<EarlyReceiver>>,
    /// Client: early messages that the server has received, as a bit mask.
    early_arrived: u32,
}

impl Handshake {
    /// Creates the client side of a handshake with `remote`; the first flight is sent at once.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the name or the configuration is invalid.
    pub fn client(
        now: Timestamp,
        config: &ClientConfig,
        (remote, server_name): (SocketAddr, &str),
        security: Security,
        mut parameters: TransportParameters,
        local_cid: [u8; CID_LEN],
        seed: [u8; 32],
    ) -> Result<Self, ConnectError> {
        let mut rng = ChaCha8Rng::from_seed(seed);
        let mut original = [0; ORIGINAL_CID_LEN];
        rng.fill_bytes(&mut original);
        parameters.connection_id = local_cid;
        let bytes = parameters.encode(rng.next_u32() as u8);
        let tls = ClientTls::new(now, config, remote, server_name, security)?;
        let session = tls.start(bytes)?;
        let psk = PskSecrets::of(&config.transport);
        let (psk_secrets, salt) = (psk.as_ref(), &[][..]);
        let secrets =
            InitialSecrets { psk: psk_secrets, destination: &original, source: &local_cid, salt };
        let initial = initial_keys(security, &secrets, true);
        secrets.log_client();
        let mut handshake =
            Self::new(now, true, security, session, rng, local_cid, original, (None, initial));
        if let Some(psk) = psk {
            handshake.token = psk.proof(&original, &local_cid).to_vec();
            handshake.psk = Some(Box::new(psk));
        }
        handshake.drive_session(now).map_err(|e| ConnectError::Configuration(e.to_string()))?;
        handshake.early = handshake.session.early_keys().and_then(|keys| {
            let remembered = TransportParameters::decode(handshake.session.peer_parameters()?)?;
            EarlySender::new(keys, remembered).map(Box::new)
        });
        handshake.next_send = Some(now);
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
        let session = crypto.tls.start(parameters.encode(rng.next_u32() as u8), has_room)?;
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
        let mut handshake = Self::new(
            now,
            false,
            security,
            session,
            rng,
            local_cid,
            start.destination,
            (Some(start.source), initial),
        );
        handshake.validated = start.validated;
        if crypto.requires_psk() {
            handshake.token = salt.to_vec();
        }
        handshake.ledger = ledger;
        Ok(handshake)
    }

    #[expect(clippy::too_many_arguments, reason = "private, both sides call it once")]
    fn new(
        now: Timestamp,
        is_client: bool,
        security: Security,
        session: Session,
        rng: ChaCha8Rng,
        local_cid: [u8; CID_LEN],
        original: [u8; ORIGINAL_CID_LEN],
        (peer_cid, initial): (Option<[u8; CID_LEN]>, Option<Keys>),
    ) -> Self {
        let initial = Level::initial(initial);
        let timers = RetransmitTimers::of(&TransportConfig::default());
        Self {
            is_client,
            security,
            session,
            rng,
            levels: [initial, Level::handshake()],
            local_cid,
            original,
            peer_cid,
            token: Vec::new(),
            salt: None,
            retried: false,
            psk: None,
            validated: false,
            peer: None,
            one_rtt: None,
            has_one_rtt: false,
            confirmed: false,
            completed: false,
            started: now,
            heard: now,
            next_send: None,
            timers,
            interval: timers.initial,
            duplicate_pending: true,
            last_sent: Timestamp::ZERO,
            stamp: None,
            rtt: None,
            failed: false,
            post_handshake: Level::post_handshake(),
            post_handshake_data: Vec::new(),
            early: None,
            ledger: None,
            early_data: None,
            early_arrived: 0,
        }
    }

    /// Sets the retransmission timers, before anything has been sent.
    pub fn set_timers(&mut self, timers: RetransmitTimers) {
        self.timers = timers;
        self.interval = timers.initial;
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
        self.one_rtt.take()
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
        self.peer_cid
    }

    /// SHA-256 fingerprint of the peer's certificate.
    pub fn peer_fingerprint(&self) -> Option<[u8; 32]> {
        self.session.peer_fingerprint()
    }

    /// Minimum RTT from echoed timestamps.
    pub fn rtt_sample(&self) -> Option<Duration> {
        self.rtt
    }

    /// Frees unused memory.
    pub fn trim(&mut self) {
        self.levels.iter_mut().for_each(Level::trim);
    }

    /// Whether the handshake timeout has passed.
    pub fn has_timed_out(&self, now: Timestamp) -> bool {
        !self.is_complete() && now >= self.fails_at()
    }

    /// When the handshake fails unless it is complete.
    fn fails_at(&self) -> Timestamp {
        // Early data has stricter limits: servers remember first flights for 25 s only (ADR 0013).
        match self.is_client || self.early_data.is_some() {
            true => self.started + self.timers.timeout,
            false => self.timers.server_deadline(self.started, self.heard),
        }
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
                let from_first = header.source == self.original;
                if self.may_retry(from_first) {
                    let token = header.token.to_vec();
                    self.on_retry(now, &token);
                }
                return Ok(false);
            }
            let salt: Option<[u8; SALT_LEN]> = header.token.try_into().ok();
            let Some((packet, others)) = rest.split_at_mut_checked(packet_len) else { break };
            if kind == LongKind::Early {
                let early = self.early_data.as_mut();
                authentic |= early.is_some_and(|early| early.receive(packet, number_at));
            } else if let Some(payload) = self.open((kind, salt), packet, number_at) {
                authentic = true;
                if self.is_client && self.peer_cid.is_none() {
                    self.peer_cid = source;
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
            self.heard = now;
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
        let is_unanswered =
            self.is_client && self.psk.is_none() && self.peer_cid.is_none() && to == self.local_cid;
        if is_unanswered && offered.chunks_exact(4).all(|version| version != ours) {
            self.failed = true;
            return Err(HandshakeError::Version);
        }
        Ok(())
    }

    /// Begins another transmission round of all unacknowledged data.
    fn rewind(&mut self) {
        self.levels.iter_mut().for_each(Level::rewind);
        if self.levels[1].keys.is_none()
            && let Some(early) = &mut self.early
        {
            early.rewind();
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
        let keys = self.levels.get_mut(kind as usize)?.keys.as_mut()?;
        let Some(psk) = self.psk.as_deref().filter(|_| kind == LongKind::Initial) else {
            return packet::open(packet, &keys.remote, number_at);
        };
        let salt = salt?;
        if self.salt.is_some() {
            return packet::open(packet, &keys.remote, number_at)
                .filter(|_| self.salt == Some(salt));
        }
        let secrets = InitialSecrets {
            psk: Some(psk),
            destination: &self.original,
            source: &self.local_cid,
            salt: &salt,
        };
        let servers = initial_keys(self.security, &secrets, true)?.remote;
        let payload = packet::open(packet, &servers, number_at)?;
        secrets.log_server();
        (keys.remote, self.salt) = (servers, Some(salt));
        Some(payload)
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
        let Some(level) = self.levels.get_mut(kind as usize) else { return Ok(()) };
        let mut reader = Reader::new(payload);
        while let Some(frame) = reader.u8() {
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
                            let since = now.saturating_since(self.last_sent);
                            if since >= self.timers.initial && level.has_unacknowledged() {
                                level.rewind();
                            }
                        }
                    }
                    ACKNOWLEDGED => level.on_acknowledged(reader.varint()?),
                    STAMP => self.stamp = Some((reader.varint()?, now)),
                    ECHO => {
                        let sent = Timestamp::from_micros(reader.varint()?);
                        let held = Duration::from_micros(reader.varint()?);
                        let rtt = now.saturating_since(sent).saturating_sub(held);
                        if sent >= self.started && sent <= now && rtt > Duration::ZERO {
                            self.rtt = Some(self.rtt.map_or(rtt, |old| old.min(rtt)));
                        }
                    }
                    EARLY_ARRIVED => {
                        let arrived = reader.u32()?;
                        // Everyone knows the Initial keys.
                        if kind == LongKind::Handshake && self.is_client {
                            self.early_arrived |= arrived;
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
        let has_unsent_data = self.levels.iter().any(Level::has_unsent);
        let ack_due = self.levels.iter().any(|level| level.ack_pending && level.keys.is_some());
        if has_unsent_data {
            self.interval = self.base_interval();
            self.duplicate_pending = true;
            self.next_send = Some(now);
        } else if ack_due && !self.is_complete() {
            // An answer is sent anyway: send the duplicate with it.
            if core::mem::take(&mut self.duplicate_pending) {
                self.rewind();
            }
            self.interval = self.base_interval();
            self.next_send = Some(now);
        }
    }

    fn base_interval(&self) -> Duration {
        let first = self.timers.initial;
        // A measured RTT overrides the assumed one.
        self.rtt.map_or(first, |rtt| (rtt + rtt / 4).max(first.min(MIN_INTERVAL)))
    }

    /// When to call [`Handshake::handle_timeout`] or [`Handshake::poll_datagram`].
    pub fn next_timeout(&self) -> Option<Timestamp> {
        let fails_at = (!self.is_complete()).then(|| self.fails_at());
        match (self.next_send, fails_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Begins a retransmission if it is due.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if self.next_send.is_none_or(|at| at > now) || self.levels.iter().any(Level::has_unsent) {
            return;
        }
        self.duplicate_pending = false;
        self.rewind();
        if self.is_client && !self.levels.iter().any(Level::has_unsent) {
            // The server has everything but sends nothing: it may have reached its
            // anti-amplification limit (RFC 9002, section 6.2.2.1).
            let level = usize::from(self.levels[1].keys.is_some());
            self.levels[level].ack_pending = true;
        }
    }

    /// Whether the peer may still lack data of this end.
    fn is_waiting(&self) -> bool {
        let unanswered = self.levels.iter().any(Level::has_unacknowledged);
        if self.is_client { !self.confirmed } else { !self.is_complete() && unanswered }
    }

    /// Writes the next datagram with long headers if one is due, at most `allowance` bytes; returns
    /// its length.
    pub fn poll_datagram(
        &mut self,
        now: Timestamp,
        out: &mut [u8],
        allowance: usize,
    ) -> Option<usize> {
        if self.failed || self.next_send.is_none_or(|at| at > now) {
            return None;
        }
        // A poll before the timer was handled must find the due retransmission. Otherwise peers
        // that retransmit at the same moments would never answer each other.
        let ack_due = self.levels.iter().any(|level| level.ack_pending && level.keys.is_some());
        if !ack_due && !self.has_early() {
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
        let more = self.levels.iter().any(Level::has_unsent) || self.has_early();
        if len == 0 || !more {
            let wait = if self.duplicate_pending { DUPLICATE_AFTER } else { self.interval };
            self.next_send = self.is_waiting().then(|| now + wait);
            if !self.duplicate_pending {
                let max_interval = self.timers.max.max(self.base_interval());
                self.interval = (self.interval * 2).min(max_interval);
            }
        }
        if len == 0 {
            return None;
        }
        if self.is_client && has_initial {
            // Pad the datagram with zeros after the packets; zeros end the packets of a datagram.
            out[len..DATAGRAM].fill(0);
            len = DATAGRAM;
        }
        self.last_sent = now;
        Some(len)
    }

    fn write_packet(&mut self, now: Timestamp, kind: LongKind, out: &mut [u8]) -> Option<usize> {
        /// Header without token, packet number, tag, and frames other than CRYPTO data.
        const OVERHEAD: usize = 64 + 4 + TAG_LEN + 40;
        let index = kind as usize;
        let token = if kind == LongKind::Initial { self.token.as_slice() } else { &[] };
        let room = out.len().checked_sub(OVERHEAD + token.len())?;
        let level = &mut self.levels[index];
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
        if let Some((stamp, at)) = self.stamp {
            writer.u8(ECHO)?;
            writer.varint(stamp)?;
            writer.varint((now - at).as_micros() as u64)?;
        }
        if kind == LongKind::Handshake
            && let Some(early) = self.early_data.as_ref().filter(|early| early.arrived > 0)
        {
            writer.u8(EARLY_ARRIVED)?;
            writer.u32(early.arrived)?;
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
        let destination: &[u8] = match &self.peer_cid {
            Some(cid) => cid,
            None => &self.original,
        };
        let head = PacketHeader { kind, destination, source: &self.local_cid, token, grease };
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
        let kind =
            if self.levels[1].keys.is_some() { LongKind::Handshake } else { LongKind::Initial };
        let mut frame = vec![CLOSE, text.len().min(63) as u8];
        frame.extend_from_slice(&text.as_bytes()[..text.len().min(63)]);
        let level = &mut self.levels[kind as usize];
        let Some(keys) = &level.keys else { return };
        let destination: &[u8] = match &self.peer_cid {
            Some(cid) => cid,
            None => &self.original,
        };
        out.clear();
        out.resize(256 + self.token.len(), 0);
        let token = if kind == LongKind::Initial { self.token.as_slice() } else { &[] };
        let head = PacketHeader { kind, destination, source: &self.local_cid, token, grease: 0 };
        let len = packet::seal(out, &keys.local, &head, level.next_pn, &frame).unwrap_or(0);
        out.truncate(len);
        level.next_pn += 1;
    }

    /// Which security this handshake uses.
    pub fn security(&self) -> Security {
        self.security
    }
}
