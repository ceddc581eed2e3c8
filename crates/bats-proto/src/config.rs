//! What the user of an endpoint decides: identity and trust, mode, limits, congestion control.

use core::time::Duration;
use std::sync::Arc;

use crate::crypto::SessionStore;
use crate::error::ConnectError;

/// How a connection treats messages; the numbers are part of the API and travel in the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// BTP: messages with a deadline, each delivered once or not at all, as soon as it is known.
    Btp = 0,
    /// BRTP: reliable, ordered messages.
    #[default]
    Brtp = 1,
    /// BRCTP: reliable, ordered messages in blocks, each coded without a rate as RFC 9426 has it: its
    /// packets go on until the receiver has enough. For objects and for relays that know nothing but
    /// the RFC.
    Brctp = 2,
    /// TRANSPARENT: messages leave as they are, at once: no redundancy, no congestion control. They
    /// are encrypted all the same. For networks that are known to carry the load.
    Transparent = 3,
    /// Reliable, ordered messages over TCP with TLS 1.3, where UDP does not pass or the kernel's
    /// congestion control is wanted. Not carried by packets of this protocol: see
    /// [`stream`](crate::stream).
    Tcp = 10,
    /// Plain UDP: a message is a datagram, neither encrypted nor repaired nor controlled, and there is
    /// no handshake. Not carried by packets of this protocol.
    Udp = 11,
    /// Reliable, ordered messages over QUIC. Not carried by packets of this protocol: see
    /// [`stream`](crate::stream).
    Quic = 12,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Btp, Self::Brtp, Self::Brctp, Self::Transparent, Self::Tcp, Self::Udp, Self::Quic];

    /// The mode with this number, if it is known.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| *mode as u8 == number)
    }

    /// Whether everything that is sent arrives, once and in order, or the connection ends.
    pub fn is_reliable(self) -> bool {
        match self {
            Self::Brtp | Self::Brctp | Self::Tcp | Self::Quic => true,
            Self::Btp | Self::Transparent | Self::Udp => false,
        }
    }

    /// Whether packets of this protocol carry it; the others are a driver's matter.
    pub fn is_own(self) -> bool {
        match self {
            Self::Btp | Self::Brtp | Self::Brctp | Self::Transparent => true,
            Self::Tcp | Self::Udp | Self::Quic => false,
        }
    }
}

/// Which congestion controller a connection starts with.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum CongestionAlgorithm {
    /// Model-based control that does not take random loss for congestion.
    #[default]
    Bbr,
    /// BBRv3 to the letter of draft-ietf-ccwg-bbr-06: loss above 2 % counts as congestion.
    Bbr3,
    /// CUBIC (RFC 9438): TCP's answer to loss, polite to TCP and slow where the path itself loses.
    Cubic,
    /// Delay-based control for real-time traffic: a short queue before a full link.
    Gcc,
    /// A constant pacing rate in bits per second of UDP payload, whatever the network says.
    FixedRate {
        /// UDP payload bits per second.
        bits_per_second: u64,
    },
    /// No control at all: only for closed networks and measurements on loopback.
    None,
}

/// What the redundancy of a connection favours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Goal {
    /// Hide losses from the application, at the price of a few per cent of the rate.
    Latency,
    /// Little waste in bulk, strong protection of message ends.
    #[default]
    Balanced,
    /// Least waste; losses may cost a round trip.
    Throughput,
}

/// The key of closed mode: 32 random bytes that an endpoint and all its peers share. See
/// [`TransportConfig::closed`].
#[derive(Clone)]
pub struct ClosedKey([u8; 32]);

impl ClosedKey {
    /// Bytes of a key.
    pub const LEN: usize = 32;

    /// Of bytes that nobody can guess: a password is none.
    pub fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

/// Shows nothing of the key.
impl core::fmt::Debug for ClosedKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ClosedKey(..)")
    }
}

/// A text that is not 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key of closed mode has 64 hexadecimal digits, as `openssl rand -hex 32` makes them")]
pub struct ClosedKeyError;

/// Of 64 hexadecimal digits.
impl core::str::FromStr for ClosedKey {
    type Err = ClosedKeyError;

    fn from_str(text: &str) -> Result<Self, ClosedKeyError> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut bytes = [0; Self::LEN];
        if pairs.len() != Self::LEN || !rest.is_empty() {
            return Err(ClosedKeyError);
        }
        for (byte, pair) in bytes.iter_mut().zip(pairs) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16).ok_or(ClosedKeyError);
            *byte = (digit(0)? << 4 | digit(1)?) as u8;
        }
        Ok(Self(bytes))
    }
}

/// Limits and behaviour of a connection; both ends have their own.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// Mode asked for by a client. A server accepts this one and those of `also_accepted`.
    pub mode: Mode,
    /// Further modes that a server leaves to the client to choose.
    pub also_accepted: Vec<Mode>,
    /// BTP and TRANSPARENT: how long after `send` a message is worth something, unless it was sent
    /// with a deadline of its own.
    pub deadline: Duration,
    /// Congestion controller of this end's sending direction.
    pub congestion: CongestionAlgorithm,
    /// One knob for the redundancy.
    pub goal: Goal,
    /// Largest message in bytes that this end accepts, at most 64 MiB and half of
    /// `receive_budget`.
    pub max_message_size: usize,
    /// Most memory in bytes for unacknowledged and queued data of this end. Within it the send
    /// window follows the congestion window: at least three bandwidth-delay products, at least
    /// 4 MiB. Progress needs a window of 512 symbols (0.7 MiB at an MTU of 1500), which is used
    /// even if the budget is less, and one message that the peer accepts is taken when nothing else
    /// is held, however large. Repairs that wait to be sent may take a quarter of it beyond.
    pub send_budget: usize,
    /// Memory in bytes for received data that the application has not taken; the credit given to
    /// the peer never promises more. Less than four windows (3 MiB) counts as that.
    pub receive_budget: usize,
    /// Silence after which the connection ends. Both ends' values count, the smaller wins.
    pub idle_timeout: Duration,
    /// After this time a handshake that is not done is given up.
    pub handshake_timeout: Duration,
    /// The round trip that is expected before one is measured. What is longer than 100 ms makes the
    /// handshake's repetitions rarer in proportion: minutes, to another planet.
    pub initial_rtt: Duration,
    /// Interval of keep-alive packets, `None` for none.
    pub keep_alive: Option<Duration>,
    /// Largest UDP payload in bytes to try by path MTU discovery.
    pub max_udp_payload: u16,
    /// Bits that the layer above tells its counterpart in the handshake, authenticated; they have no
    /// meaning here. See [`Endpoint::peer_limits`](crate::Endpoint::peer_limits).
    pub application: u8,
    /// Packets sealed with one key before the key is updated; clamped to the AEAD's limit.
    pub key_update_packets: u64,
    /// Client: sessions with servers are kept there and taken up again, which spares the next handshake
    /// the certificates. `None`: every handshake is a full one. Servers offer it always.
    pub resumption: Option<Resumption>,
    /// Client in mode BTP: messages handed in before the connection is established travel with its
    /// first flight if an earlier session is taken up, and arrive after half a round trip. Needs
    /// `resumption`. Server that offers BTP: it takes such messages.
    ///
    /// Who records the first flight can send it again. A server takes each session up once, so that a
    /// replay delivers nothing twice to one server; but it knows only itself: of several that share
    /// a certificate each has its own sessions. Messages that must not be acted on before the peer
    /// has answered do not belong here: what arrives early comes from who holds the session, not
    /// from who is there now. See `docs/adr/0013-resumption-and-early-data.md`.
    pub early_data: bool,
    /// Closed mode: both ends have this key beside certificates and all the rest, and speak to nobody
    /// who has not. A server answers no datagram of a stranger, with not one byte, and keeps nothing
    /// of it; a client cannot connect to a server that has another key or none, and hears nothing from
    /// one: its handshake times out. The links of relays and the sessions across them have it alike.
    /// Modes 0 to 3. See `docs/adr/0017-closed-mode.md`.
    pub closed: Option<ClosedKey>,
}

/// Where a client's sessions are kept, and what time it is.
#[derive(Clone, Debug)]
pub struct Resumption {
    /// The sessions.
    pub store: SessionStore,
    /// The time since 1970 when the connection begins, by which the age of sessions is told: like all
    /// time it comes from outside. [`PeerTrust::Authorities`] has a time of its own, which counts
    /// then.
    pub unix_time: Duration,
}

impl TransportConfig {
    /// Whether a server with this configuration lets clients choose the mode.
    pub(crate) fn offers(&self, mode: Mode) -> bool {
        self.mode == mode || self.also_accepted.contains(&mode)
    }

    /// Why the modes do not go with closed mode, if they do not.
    ///
    /// # Errors
    ///
    /// Closed mode, and a mode that packets of this protocol do not carry.
    pub fn check_closed(&self) -> Result<(), ConnectError> {
        let foreign = Mode::ALL.into_iter().find(|mode| !mode.is_own() && self.offers(*mode));
        match foreign.filter(|_| self.closed.is_some()) {
            Some(mode) => Err(ConnectError::Configuration(format!(
                "closed mode is for the modes 0 to 3: whoever asks for mode {} is answered before a key \
                 can be asked of it",
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
            congestion: CongestionAlgorithm::Bbr,
            goal: Goal::Balanced,
            max_message_size: 64 << 20,
            send_budget: 128 << 20,
            receive_budget: 192 << 20,
            idle_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            initial_rtt: Duration::from_millis(100),
            keep_alive: None,
            max_udp_payload: 1472,
            application: 0,
            key_update_packets: 1 << 22,
            resumption: None,
            early_data: false,
            closed: None,
        }
    }
}

/// What a peer said of itself in the handshake, for the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLimits {
    /// Bytes of the longest message that the peer accepts.
    pub max_message_size: usize,
    /// The peer's [`TransportConfig::application`].
    pub application: u8,
}

/// Certificate chain and private key of an endpoint, DER.
#[derive(Clone)]
pub struct Identity {
    /// X.509 certificates, end entity first.
    pub certificate_chain: Vec<Vec<u8>>,
    /// PKCS#8 private key.
    pub private_key: Vec<u8>,
}

impl core::fmt::Debug for Identity {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Identity").field("certificates", &self.certificate_chain.len()).finish()
    }
}

/// Whom a client believes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PeerTrust {
    /// Certificate authorities; the server's name is checked, and that its certificate is valid
    /// now.
    Authorities {
        /// Their certificates, DER.
        certificates: Vec<Vec<u8>>,
        /// The time since 1970 that counts as now: like all time it comes from outside.
        unix_time: Duration,
    },
    /// SHA-256 fingerprints of the peer's end-entity certificate.
    Fingerprints(Vec<[u8; 32]>),
    /// Anyone. Encrypted, but an active attacker can sit in the middle.
    DangerousAcceptAny,
}

/// Which security a connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// TLS 1.3 through rustls.
    #[default]
    Tls,
    /// No security: a deterministic stand-in for the simulator and for fuzzing, with checksums in
    /// place of tags. An endpoint accepts it only if it is configured with it itself.
    DangerousPlain,
}

/// Configuration of the connections that this endpoint opens.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Whom to believe.
    pub trust: PeerTrust,
    /// Own certificate, if the server asks for one.
    pub identity: Option<Identity>,
    /// Limits and behaviour.
    pub transport: Arc<TransportConfig>,
}

/// Configuration of the connections that this endpoint accepts.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Own certificate and key.
    pub identity: Identity,
    /// Limits and behaviour.
    pub transport: Arc<TransportConfig>,
    /// Half-open connections from which on a client must first prove its address by a retry
    /// token; 0 asks everyone.
    pub retry_threshold: usize,
    /// Connections open at once; more are refused.
    pub max_connections: usize,
}

/// Bytes promised to peers unless configured otherwise: 10,000 connections with the least budget
/// each (2.75 MiB), and 5 GiB above that for busy ones. It is a bound to what peers can cause; what is
/// not sent takes no memory.
const DEFAULT_MEMORY_BUDGET: u64 = 32 << 30;

/// Configuration of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// TLS or the simulator's stand-in.
    pub security: Security,
    /// Present if the endpoint accepts connections.
    pub server: Option<ServerConfig>,
    /// Bytes of received data that all connections together may hold: the receive budgets that
    /// they begin with never sum to more. When little is left, new connections get less than they
    /// are configured for, down to four windows (2.75 MiB at an MTU of 1500), and then none begins. The default
    /// is 32 GiB, which is room for 10,000 connections: set it to what the machine can spare.
    pub memory_budget: u64,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self { security: Security::default(), server: None, memory_budget: DEFAULT_MEMORY_BUDGET }
    }
}
