//! Configuration of endpoints and connections: identity and trust, mode, limits, congestion
//! control.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

mod identity;
mod mode;

use core::time::Duration;
use std::sync::Arc;

pub use identity::{Identity, PeerTrust};
pub use mode::Mode;

use crate::crypto::{KeyLog, SessionStore};
use crate::error::ConnectError;

/// Which congestion controller a connection starts with.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum CongestionAlgorithm {
    /// Loss-tolerant congestion control: BBRv3 that distinguishes the path's own loss from congestion.
    #[default]
    Ltcc,
    /// BBRv3 to the letter of draft-ietf-ccwg-bbr-06: loss above 2 % counts as congestion.
    Bbr3,
    /// The same with a mechanism switched off or a constant scaled, for experiments.
    LtccVariation(crate::congestion::Variation),
    /// CUBIC (RFC 9438): loss-based, fair to TCP, slow on paths with random loss.
    Cubic,
    /// GCC: delay-based control for real-time traffic; prefers a short queue to full utilisation.
    Gcc,
    /// A constant pacing rate in bits per second of UDP payload, without congestion control.
    FixedRate {
        /// UDP payload bits per second.
        bits_per_second: u64,
    },
    /// No congestion control: only for private networks and measurements on loopback.
    None,
}

/// Trade-off for the redundancy of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Goal {
    /// Hide losses from the application, at the cost of a few percent of the rate. In BTP, repairs
    /// also take rate that the path has to spare, up to about the rate of the messages at high loss.
    Latency,
    /// Little waste in bulk, strong protection of message ends.
    #[default]
    Balanced,
    /// Least waste; repairing a loss may take a round trip.
    Throughput,
}

/// Maximum number of pre-shared keys that a server accepts besides its first one. Each costs one hash
/// for every datagram of an unauthenticated peer.
pub const MAX_FURTHER_PSKS: usize = 3;

/// The key of pre-shared-key (PSK) mode: 32 random bytes that an endpoint and its peers share. See
/// [`TransportConfig::psk`].
#[derive(Clone)]
pub struct PresharedKey([u8; 32]);

impl PresharedKey {
    /// Length of a key in bytes.
    pub const LEN: usize = 32;

    /// A key of uniformly random bytes. Do not use a password.
    pub fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

/// Does not print the key.
impl core::fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("PresharedKey(..)")
    }
}

/// The text of a key does not have 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pre-shared key has 64 hexadecimal digits, as `openssl rand -hex 32` makes them")]
pub struct PresharedKeyError;

/// Parses 64 hexadecimal digits.
impl core::str::FromStr for PresharedKey {
    type Err = PresharedKeyError;

    fn from_str(text: &str) -> Result<Self, PresharedKeyError> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut bytes = [0; Self::LEN];
        if pairs.len() != Self::LEN || !rest.is_empty() {
            return Err(PresharedKeyError);
        }
        for (byte, pair) in bytes.iter_mut().zip(pairs) {
            let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
            *byte = (high.ok_or(PresharedKeyError)? << 4 | low.ok_or(PresharedKeyError)?) as u8;
        }
        Ok(Self(bytes))
    }
}

/// Limits and behaviour of a connection; each end has its own.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// Mode that a client requests. A server accepts this one and those in `also_accepted`.
    pub mode: Mode,
    /// Further modes that a server accepts.
    pub also_accepted: Vec<Mode>,
    /// BTP and TRANSPARENT: time after `send` at which a message expires, unless it was sent with
    /// its own deadline.
    pub deadline: Duration,
    /// Congestion controller of this end's sending direction.
    pub congestion: CongestionAlgorithm,
    /// Trade-off for the redundancy.
    pub goal: Goal,
    /// Largest message in bytes that this end accepts, at most 64 MiB and half of
    /// `receive_budget`.
    pub max_message_size: usize,
    /// Most memory in bytes for unacknowledged and queued data of this end.
    ///
    /// Within it the send window is at least two congestion windows, and at least 128 KiB (4 MiB
    /// before the path is measured). Progress needs a coding window of 512 symbols (0.7 MiB at an
    /// MTU of 1500 bytes), which is used even if the budget is less. One message that the peer
    /// accepts is taken when nothing else is held, however large, unless the record of sent packets takes the
    /// budget because the peer does not acknowledge them. Queued repairs may use a quarter
    /// on top, and bytes that wait on channels another quarter.
    pub send_budget: usize,
    /// Memory in bytes for received data that the application has not read; the credit given to the
    /// peer never exceeds it. A connection is charged 256 KiB at its start and more with use. At least
    /// four windows (2.75 MiB) are allowed even if it is less.
    pub receive_budget: usize,
    /// Channels that the peer may have open at once, at most 2^20 and as many as half of
    /// `receive_budget` has room for (448 bytes each). `None`: the connection has messages only, and
    /// this end cannot open channels either. Modes BRTP and BRCTP; see
    /// [`Endpoint::open_channel`](crate::Endpoint::open_channel).
    ///
    /// With channels, the budget is divided: 7/16 are for what is in flight, 1/8 for unread messages
    /// and as much for the longest one, 1/5 for unread bytes of channels.
    pub channels: Option<u32>,
    /// Time without received packets after which the connection is closed. The smaller value of the
    /// two ends applies.
    pub idle_timeout: Duration,
    /// Time after which an incomplete handshake fails.
    pub handshake_timeout: Duration,
    /// RTT assumed before one is measured. Above 100 ms the handshake's retransmission intervals
    /// grow in proportion, for paths with very long delay.
    pub initial_rtt: Duration,
    /// Interval of keep-alives, taken as 10 ms if shorter; `None` disables them.
    pub keep_alive: Option<Duration>,
    /// Largest UDP payload in bytes to try by path MTU discovery.
    pub max_udp_payload: u16,
    /// Bits for the upper layer, sent authenticated in the handshake and not interpreted here. See
    /// [`Endpoint::peer_limits`](crate::Endpoint::peer_limits).
    pub application: u8,
    /// Packets sealed with one key before a key update; clamped to the AEAD's limit.
    pub key_update_packets: u64,
    /// Whether a server answers packets of connections that it does not know by stateless resets (RFC
    /// 9000 section 10.3), so that clients learn of a restart at once. A scan gets an answer, too,
    /// shorter than the probe. Off by default.
    pub stateless_resets: bool,
    /// Age of a key after which the next packet is sealed with a new one. WireGuard's interval by
    /// default: memory that an attacker reads later opens no older packets than this. A connection
    /// that sends nothing keeps its key, because nothing is sealed with it. `Duration::MAX` disables
    /// the rule.
    pub key_update_interval: Duration,
    /// Client: store for TLS session resumption, which makes the next handshake shorter. `None`:
    /// every handshake is a full one. Servers always offer resumption.
    pub resumption: Option<Resumption>,
    /// Early data (0-RTT) in mode BTP. Client: messages sent before the connection is established
    /// go with the first flight if a session is resumed, and arrive after half a round trip; needs
    /// `resumption`. Server: accepts such messages if it offers BTP.
    ///
    /// An attacker can replay a recorded first flight. One server resumes each session once, so a
    /// replay delivers nothing twice there; several servers with the same certificate do not share
    /// this protection. Do not send messages as early data that must not be acted on before the
    /// peer is validated. See `docs/adr/0013-resume-once-and-early-data-in-btp-only.md`.
    pub early_data: bool,
    /// Pre-shared-key (PSK) mode: both ends need this key in addition to certificates.
    ///
    /// A server sends no byte to an unauthenticated peer without the key and keeps no state for it.
    /// A client cannot connect to a server with another key or none: its handshake times out. Links
    /// of relays and end-to-end sessions support it too. Modes 0 to 3. See
    /// `docs/adr/0017-psk-mode-answers-only-key-holders.md`.
    pub psk: Option<PresharedKey>,
    /// PSK mode, servers: further keys of clients, at most [`MAX_FURTHER_PSKS`]. With the old and
    /// the new key accepted, one end after the other can change its key.
    /// [`Endpoint::set_psks`](crate::Endpoint::set_psks) changes them at run time.
    pub also_accepted_psks: Vec<PresharedKey>,
    /// Receives all secrets from which the keys of packets and symbols derive, to decrypt captures.
    pub key_log: Option<KeyLog>,
}

/// TLS session resumption of a client.
#[derive(Clone, Debug)]
pub struct Resumption {
    /// Where sessions are kept.
    pub store: SessionStore,
    /// Unix time at the start of the connection, for the age of sessions; the core has no clock.
    /// With [`PeerTrust::Authorities`] that variant's time is used instead.
    pub unix_time: Duration,
}

/// Shortest interval of keep-alives: more would be a load, and an interval of zero would never let a
/// connection rest.
const MIN_KEEP_ALIVE: Duration = Duration::from_millis(10);

impl TransportConfig {
    /// Interval of keep-alives, at least 10 ms; `None` if there are none.
    pub fn keep_alive_interval(&self) -> Option<Duration> {
        self.keep_alive.map(|interval| interval.max(MIN_KEEP_ALIVE))
    }

    /// Whether a server with this configuration accepts a mode with early data.
    pub(crate) fn offers_early(&self) -> bool {
        Mode::ALL.into_iter().any(|mode| mode.supports_early_data() && self.offers(mode))
    }

    /// Whether a server with this configuration accepts the mode.
    pub(crate) fn offers(&self, mode: Mode) -> bool {
        self.mode == mode || self.also_accepted.contains(&mode)
    }

    /// Checks that PSK mode is used only with modes of this protocol's packets, and the number of
    /// keys.
    ///
    /// # Errors
    ///
    /// A pre-shared key is set and a mode of another transport binding is offered; too many keys, or
    /// further ones without a first one.
    pub fn check_psk_modes(&self) -> Result<(), ConnectError> {
        let further = self.also_accepted_psks.len();
        if further > MAX_FURTHER_PSKS || further > 0 && self.psk.is_none() {
            return Err(ConnectError::Configuration(format!(
                "{further} further pre-shared keys: a server with a pre-shared key accepts at most \
                 {MAX_FURTHER_PSKS} more, one without accepts none"
            )));
        }
        let foreign = Mode::ALL.into_iter().find(|mode| !mode.is_own() && self.offers(*mode));
        match foreign.filter(|_| self.psk.is_some()) {
            Some(mode) => Err(ConnectError::Configuration(format!(
                "PSK mode is for the modes 0 to 3: mode {} answers a client before the client can \
                 prove the key",
                mode as u8
            ))),
            None => Ok(()),
        }
    }
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self {
            mode: Mode::Brtp,
            also_accepted: Vec::new(),
            deadline: Duration::from_millis(200),
            congestion: CongestionAlgorithm::Ltcc,
            goal: Goal::Balanced,
            max_message_size: 64 << 20,
            send_budget: 128 << 20,
            receive_budget: 192 << 20,
            channels: None,
            idle_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            initial_rtt: Duration::from_millis(100),
            keep_alive: None,
            max_udp_payload: 1472,
            application: 0,
            key_update_packets: 1 << 22,
            stateless_resets: false,
            key_update_interval: Duration::from_secs(120),
            resumption: None,
            early_data: false,
            psk: None,
            also_accepted_psks: Vec::new(),
            key_log: None,
        }
    }
}

/// Limits from the peer's transport parameters, for the upper layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLimits {
    /// Bytes of the longest message that the peer accepts.
    pub max_message_size: usize,
    /// The peer's [`TransportConfig::application`].
    pub application: u8,
}

/// Which security a connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// TLS 1.3 through rustls.
    #[default]
    Tls,
    /// No security: a deterministic stand-in for simulation and fuzzing, with checksums in place of
    /// authentication tags. Both endpoints must be configured with it.
    DangerousPlain,
}

/// Configuration of outgoing connections.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Which servers to trust.
    pub trust: PeerTrust,
    /// Client certificate, if the server requests one.
    pub identity: Option<Identity>,
    /// Limits and behaviour.
    pub transport: Arc<TransportConfig>,
}

/// Configuration of incoming connections.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Server certificate and key.
    pub identity: Identity,
    /// Which clients are accepted: with authorities or fingerprints, a client must present such a
    /// certificate and prove that it has the key. `None`: clients are not asked for certificates.
    pub client_trust: Option<PeerTrust>,
    /// Limits and behaviour.
    pub transport: Arc<TransportConfig>,
    /// Number of half-open connections from which a client must validate its address with a retry
    /// token; 0: always.
    pub retry_threshold: usize,
    /// Limit of open connections; more are refused.
    pub max_connections: usize,
}

/// Default memory budget in bytes: 10,000 connections with the least receive budget (2.75 MiB
/// each), plus 5 GiB for busy ones. It bounds what peers can cause; memory is used only for
/// received data.
const DEFAULT_MEMORY_BUDGET: u64 = 32 << 30;

/// Configuration of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// TLS, or the stand-in for simulation.
    pub security: Security,
    /// Set if the endpoint accepts connections.
    pub server: Option<ServerConfig>,
    /// Limit in bytes of received data that all connections together may hold.
    ///
    /// Each connection is charged 256 KiB and more with use, and the sum never exceeds this. Data for
    /// which there is no memory count as lost. If less than four windows are free (2.75 MiB at an MTU
    /// of 1500 bytes), new connections are refused. With the default of 32 GiB, four windows are there
    /// for each of 10,000 connections: set it to what the machine can spare. See
    /// `docs/adr/0022-memory-is-charged-when-data-arrive.md`.
    pub memory_budget: u64,
    /// For endpoints that all their peers authenticate: a number that grows with each start, for
    /// example the Unix time in milliseconds. Once a connection with a newer instance of a peer is
    /// established, the other end closes its connections with older ones of the same certificate at
    /// once, so only one process may use a certificate. 0: peers do not learn it.
    pub instance: u64,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            security: Security::default(),
            server: None,
            memory_budget: DEFAULT_MEMORY_BUDGET,
            instance: 0,
        }
    }
}
