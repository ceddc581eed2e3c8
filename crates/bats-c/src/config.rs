//! Configurations (`bats_config_*`), and their conversion to the options of `openbats`.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use openbats::{
    Builder, ClientOptions, CongestionAlgorithm, Endpoint, Fingerprint, Identity, KnownHosts, Mode,
    PresharedKey, ServerOptions, TransportConfig, Trust,
};

use crate::event::{Code, Failure};

/// Default time-out of the original SDK.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time-outs below this number count as seconds.
const MIN_MILLISECONDS: i32 = 100;
/// Zstandard level: the fastest, for links that are faster than disks.
const COMPRESSION_LEVEL: i32 = 1;
/// Names in generated certificates.
const IDENTITY_NAMES: [&str; 1] = ["localhost"];
const TRANSPARENT: i32 = 3;
const TCP: i32 = 10;
const UDP: i32 = 11;
const QUIC: i32 = 12;

/// `bats_congestion_control_t`, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Congestion {
    None,
    Bbr,
    Bbrv2,
    Bbrv3,
    Gcc,
}

/// Server certificates that a client trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TrustPolicy {
    AnyCertificate,
    /// Trust on first use.
    KnownHosts(KnownHosts),
    Fingerprint(Fingerprint),
    /// A PEM file of certificate authorities.
    Authorities(String),
}

/// Server certificates that a client trusts if the program has not chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DefaultTrust {
    /// Any, as in the original SDK.
    AnyCertificate,
    /// Trust on first use, with the file of the user.
    KnownHosts,
}

/// Client certificates that a server accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientTrust {
    /// Clients need no certificate.
    AnyClient,
    Fingerprints(Vec<Fingerprint>),
    /// A PEM file of certificate authorities.
    Authorities(String),
}

/// All settings. Invalid values are stored and rejected by the call that uses them.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) mode: i32,
    /// `None` until the program sets one.
    pub(crate) congestion: Option<Congestion>,
    pub(crate) timeout: Duration,
    pub(crate) local_addr: String,
    pub(crate) local_port: i32,
    pub(crate) remote_addr: String,
    pub(crate) remote_port: i32,
    pub(crate) cert_file: String,
    pub(crate) key_file: String,
    /// The file of the identity that a server keeps; it is generated if it does not exist.
    pub(crate) identity_file: Option<PathBuf>,
    pub(crate) compression: bool,
    pub(crate) encryption: bool,
    /// Whether the program requested encryption explicitly.
    pub(crate) encryption_requested: bool,
    /// Mode 12: send messages as datagrams.
    pub(crate) quic_datagrams: bool,
    /// Unreliable modes: default deadline of messages.
    pub(crate) deadline: Option<Duration>,
    pub(crate) frame_type: i32,
    /// Bytes of unacknowledged and of received data for each connection; `None` for the defaults.
    pub(crate) send_budget: Option<usize>,
    pub(crate) receive_budget: Option<usize>,
    /// Bytes of received data of all connections of a socket; `None` for the default.
    pub(crate) memory_budget: Option<u64>,
    /// Channels that the peer may have open; `None` for a connection without channels.
    pub(crate) channels: Option<u32>,
    /// `None` until the program sets one, or the call that connects its default.
    pub(crate) trust: Option<TrustPolicy>,
    pub(crate) client_trust: ClientTrust,
    /// PSK mode, for modes 0 to 3: the key that both ends need.
    pub(crate) psk: Option<PresharedKey>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: 0,
            congestion: None,
            timeout: DEFAULT_TIMEOUT,
            local_addr: String::new(),
            local_port: 0,
            remote_addr: String::new(),
            remote_port: 0,
            cert_file: String::new(),
            key_file: String::new(),
            identity_file: None,
            compression: false,
            encryption: true,
            encryption_requested: false,
            quic_datagrams: false,
            deadline: None,
            frame_type: 0,
            send_budget: None,
            receive_budget: None,
            memory_budget: None,
            channels: None,
            trust: None,
            client_trust: ClientTrust::AnyClient,
            psk: None,
        }
    }
}

fn mode_name(mode: i32) -> &'static str {
    match mode {
        0 => "BTP",
        1 => "BRTP",
        2 => "BRCTP",
        3 => "TRANSPARENT",
        10 => "TCP",
        11 => "UDP",
        12 => "QUIC",
        _ => "unknown",
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "mode {} ({}), local {}:{}, remote {}:{}, time-out {} ms, congestion control {:?}",
            self.mode,
            mode_name(self.mode),
            self.local_addr,
            self.local_port,
            self.remote_addr,
            self.remote_port,
            self.timeout.as_millis(),
            self.congestion(),
        )?;
        write!(
            f,
            ", frame type {}, certificate '{}', key '{}', compression {}, encryption {}",
            self.frame_type, self.cert_file, self.key_file, self.compression, self.encryption,
        )?;
        match &self.trust {
            None => {}
            Some(TrustPolicy::AnyCertificate) => write!(f, ", trusts any server")?,
            Some(TrustPolicy::KnownHosts(known_hosts)) => {
                write!(f, ", known servers '{}'", known_hosts.path().display())?;
            }
            Some(TrustPolicy::Fingerprint(fingerprint)) => {
                write!(f, ", trusted fingerprint {fingerprint}")?;
            }
            Some(TrustPolicy::Authorities(path)) => write!(f, ", trusted authorities '{path}'")?,
        }
        if let Some(path) = &self.identity_file {
            write!(f, ", identity '{}'", path.display())?;
        }
        if self.quic_datagrams {
            write!(f, ", QUIC datagrams")?;
        }
        if self.psk.is_some() {
            write!(f, ", PSK")?;
        }
        for (name, budget) in [
            ("send", self.send_budget.map(|bytes| bytes as u64)),
            ("receive", self.receive_budget.map(|bytes| bytes as u64)),
            ("memory", self.memory_budget),
        ] {
            if let Some(bytes) = budget {
                write!(f, ", {name} budget {bytes} bytes")?;
            }
        }
        if let Some(channels) = self.channels {
            write!(f, ", channels {channels}")?;
        }
        match self.deadline {
            Some(deadline) => write!(f, ", deadline {} ms", deadline.as_millis()),
            None => Ok(()),
        }
    }
}

pub(crate) fn port(port: i32) -> Result<u16, Failure> {
    u16::try_from(port).map_err(|_| Failure::invalid(format!("{port} is not a port number")))
}

impl Config {
    /// Sets the time-out, normally in milliseconds. The original SDK does not define the unit, and
    /// its programs use both seconds and milliseconds.
    pub(crate) fn set_timeout(&mut self, timeout: i32) {
        self.timeout = match u64::try_from(timeout) {
            Ok(milliseconds) if timeout >= MIN_MILLISECONDS => Duration::from_millis(milliseconds),
            Ok(seconds) if timeout > 0 => {
                tracing::warn!("a time-out of {timeout} is taken as seconds, not as milliseconds");
                Duration::from_secs(seconds)
            }
            _ => {
                tracing::warn!("a time-out of {timeout} means the default of 2000 ms");
                DEFAULT_TIMEOUT
            }
        };
    }

    pub(crate) fn mode(&self) -> Result<Mode, Failure> {
        u8::try_from(self.mode).ok().and_then(Mode::from_number).ok_or_else(|| {
            Failure::invalid(format!(
                "mode {} ({}) is not available in this version of OpenBATS; use 0 (BTP), 1 \
                 (BRTP), 2 (BRCTP), 3 (TRANSPARENT), 10 (TCP), 11 (UDP) or 12 (QUIC)",
                self.mode,
                mode_name(self.mode)
            ))
        })
    }

    fn congestion(&self) -> Congestion {
        self.congestion.unwrap_or(Congestion::Bbr)
    }

    /// Logs a warning for each setting that the mode does not support.
    pub(crate) fn log_fallbacks(&self) {
        for warning in self.fallbacks() {
            tracing::warn!("{warning}");
        }
    }

    /// The settings that the mode does not support, a line for each.
    fn fallbacks(&self) -> Vec<String> {
        let mode = format!("mode {} ({})", self.mode, mode_name(self.mode));
        let congestion = self.congestion.and_then(|asked| self.congestion_fallback(asked));
        let mut lines: Vec<_> =
            congestion.map(|line| format!("{mode} {line}")).into_iter().collect();
        if self.compression && self.mode == UDP {
            lines.push(format!(
                "{mode} has no handshake to negotiate compression: messages are not compressed"
            ));
        }
        if self.quic_datagrams && self.mode != QUIC {
            lines.push(format!("datagrams are an option of mode 12 (QUIC) only: {mode} has none"));
        }
        if !self.encryption && self.mode != UDP {
            lines.push(format!("{mode} is always encrypted: only mode 11 (UDP) is not"));
        }
        if self.encryption_requested && self.mode == UDP {
            lines.push(format!("{mode} is never encrypted: all other modes are"));
        }
        lines
    }

    /// Describes the replacement of a congestion control that the mode does not have.
    fn congestion_fallback(&self, asked: Congestion) -> Option<String> {
        let has = match self.mode {
            TRANSPARENT | UDP => "has no congestion control",
            TCP => "has the congestion control of the kernel's TCP",
            QUIC if matches!(asked, Congestion::None | Congestion::Gcc) => {
                "supports BBR and CUBIC for congestion control: CUBIC is used"
            }
            _ if matches!(asked, Congestion::Bbrv2 | Congestion::Bbrv3) => {
                "has one BBR for congestion control, which is used"
            }
            _ => return None,
        };
        Some(format!("{has}: {asked:?} is not available"))
    }

    fn transport(&self) -> TransportConfig {
        let default = TransportConfig::default();
        TransportConfig {
            congestion: match self.congestion() {
                Congestion::None | Congestion::Gcc if self.mode == QUIC => {
                    CongestionAlgorithm::Cubic
                }
                Congestion::None => CongestionAlgorithm::None,
                Congestion::Gcc => CongestionAlgorithm::Gcc,
                Congestion::Bbr | Congestion::Bbrv2 | Congestion::Bbrv3 => {
                    CongestionAlgorithm::Ltcc
                }
            },
            mode: self.mode().unwrap_or_default(),
            idle_timeout: self.timeout,
            deadline: self.deadline.unwrap_or(default.deadline),
            psk: self.psk.clone(),
            send_budget: self.send_budget.unwrap_or(default.send_budget),
            receive_budget: self.receive_budget.unwrap_or(default.receive_budget),
            channels: self.channels,
            ..default
        }
    }

    /// This configuration, with the default of a call if the program has chosen no trust.
    ///
    /// # Errors
    /// There is no home directory for the file of known servers.
    pub(crate) fn with_default_trust(
        self: &Arc<Self>,
        default: DefaultTrust,
    ) -> Result<Arc<Self>, Failure> {
        if self.trust.is_some() {
            return Ok(self.clone());
        }
        let trust = match default {
            // Mode 11 has no certificates.
            _ if self.mode == UDP => TrustPolicy::AnyCertificate,
            DefaultTrust::AnyCertificate => TrustPolicy::AnyCertificate,
            DefaultTrust::KnownHosts => TrustPolicy::KnownHosts(known_hosts(None)?),
        };
        Ok(Arc::new(Self { trust: Some(trust), ..Self::clone(self) }))
    }

    pub(crate) fn client_options(&self) -> Result<ClientOptions, Failure> {
        let trust = match &self.trust {
            None => return Err(Failure::invalid("no server certificate is trusted")),
            Some(TrustPolicy::AnyCertificate) => Trust::dangerous_any(),
            Some(TrustPolicy::KnownHosts(known_hosts)) => Trust::known_hosts(known_hosts.clone()),
            Some(TrustPolicy::Fingerprint(fingerprint)) => Trust::fingerprint(*fingerprint),
            Some(TrustPolicy::Authorities(path)) => Trust::authorities(path)
                .map_err(|error| Failure::new(Code::ConnectFailed, error.to_string()))?,
        };
        let options = ClientOptions::new(trust)
            .transport(TransportConfig { handshake_timeout: self.timeout, ..self.transport() })
            .quic_datagrams(self.quic_datagrams && self.mode == QUIC);
        let options = match self.client_identity() {
            Some(identity) => options.identity(identity),
            None => options,
        };
        Ok(if self.compresses() { options.compression(COMPRESSION_LEVEL) } else { options })
    }

    /// The certificate that a client presents to a server that asks for one.
    fn client_identity(&self) -> Option<Identity> {
        if self.cert_file.is_empty() && self.key_file.is_empty() {
            return None;
        }
        match Identity::from_pem_files(&self.cert_file, &self.key_file) {
            Ok(identity) => Some(identity),
            // Programs of the original SDK may set files that clients never read there.
            Err(error) => {
                tracing::warn!(%error, "the client presents no certificate");
                None
            }
        }
    }

    /// Whether clients accept any server certificate, as those of the original SDK do. Mode 11 has
    /// no certificates.
    pub(crate) fn accepts_any_certificate(&self) -> bool {
        self.trust == Some(TrustPolicy::AnyCertificate) && self.mode != UDP
    }

    /// An endpoint with the memory budget of this configuration.
    pub(crate) fn endpoint_builder(&self) -> Builder {
        match self.memory_budget {
            Some(bytes) => Endpoint::builder().memory_budget(bytes),
            None => Endpoint::builder(),
        }
    }

    /// Whether to offer compression. Mode 11 has no handshake to negotiate it.
    fn compresses(&self) -> bool {
        self.compression && self.mode != UDP
    }

    pub(crate) fn server_options(&self) -> Result<ServerOptions, Failure> {
        let options = ServerOptions::new(self.identity()?)
            .transport(self.transport())
            .quic_datagrams(self.quic_datagrams && self.mode == QUIC);
        let options = match &self.client_trust {
            ClientTrust::AnyClient => options,
            ClientTrust::Fingerprints(accepted) => {
                options.client_trust(Trust::fingerprints(accepted.iter().copied()))
            }
            ClientTrust::Authorities(path) => {
                let trust = Trust::authorities(path)
                    .map_err(|error| Failure::new(Code::ListenFailed, error.to_string()))?;
                options.client_trust(trust)
            }
        };
        Ok(if self.compresses() { options.compression(COMPRESSION_LEVEL) } else { options })
    }

    /// The certificate of the configured files. Without usable files of the original's calls, the
    /// generated certificate of this process.
    pub(crate) fn identity(&self) -> Result<Identity, Failure> {
        let failed =
            |error: openbats::IdentityError| Failure::new(Code::ListenFailed, error.to_string());
        if let Some(path) = &self.identity_file {
            return Identity::load_or_generate(path, &IDENTITY_NAMES).map_err(failed);
        }
        if !self.cert_file.is_empty() || !self.key_file.is_empty() {
            match Identity::from_pem_files(&self.cert_file, &self.key_file) {
                Ok(identity) => return Ok(identity),
                Err(error) => {
                    tracing::warn!(%error, "using the certificate of this process instead");
                }
            }
        }
        process_identity().map_err(failed)
    }

    /// The local address of a client; `None` for any.
    pub(crate) fn client_address(&self) -> Result<Option<SocketAddr>, Failure> {
        let port = port(self.local_port)?;
        match (self.local_addr.is_empty(), port) {
            (true, 0) => Ok(None),
            (true, port) => Ok(Some((Ipv6Addr::UNSPECIFIED, port).into())),
            (false, port) => Ok(Some((local_ip(&self.local_addr)?, port).into())),
        }
    }
}

/// Parses a local IP address. Host names other than `localhost` are not resolved.
pub(crate) fn local_ip(text: &str) -> Result<IpAddr, Failure> {
    match text {
        "localhost" => Ok([127, 0, 0, 1].into()),
        _ => text.parse().map_err(|_| {
            Failure::invalid(format!("'{text}' is not a local IP address or 'localhost'"))
        }),
    }
}

/// A file of known servers; without a path, that of the user.
///
/// # Errors
/// There is no home directory.
pub(crate) fn known_hosts(path: Option<PathBuf>) -> Result<KnownHosts, Failure> {
    path.map(KnownHosts::new).or_else(KnownHosts::of_user).ok_or_else(|| {
        Failure::invalid(
            "there is no home directory for the file of known servers: name a file with \
             openbats_config_set_known_hosts, or choose other trust, such as \
             openbats_config_set_trusted_fingerprint",
        )
    })
}

/// The generated certificate of this process. All listeners use the same, so that clients can pin
/// it.
fn process_identity() -> Result<Identity, openbats::IdentityError> {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    static MAKING: Mutex<()> = Mutex::new(());
    if let Some(identity) = IDENTITY.get() {
        return Ok(identity.clone());
    }
    let _one_at_a_time = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(identity) = IDENTITY.get() {
        return Ok(identity.clone());
    }
    let identity = Identity::generate(&IDENTITY_NAMES)?;
    tracing::info!(fingerprint = %identity.fingerprint(), "generated the process certificate");
    Ok(IDENTITY.get_or_init(|| identity).clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_timeouts_count_as_seconds_and_nonpositive_ones_as_the_default() {
        let mut config = Config::default();
        for (given, expected) in [
            (2_000, 2_000),
            (100, 100),
            (99, 99_000),
            (2, 2_000),
            (0, 2_000),
            (-1, 2_000),
            (1_000_000, 1_000_000),
        ] {
            config.set_timeout(given);
            assert_eq!(config.timeout.as_millis(), expected, "{given}");
        }
    }

    #[test]
    fn unknown_modes_are_rejected_and_known_numbers_map_to_their_mode() {
        for mode in [-1, 4, 13, 255] {
            let failure = Config { mode, ..Config::default() }.mode().unwrap_err();
            assert_eq!(failure.code, Code::InvalidParam);
            assert!(failure.text.contains(mode_name(mode)), "{}", failure.text);
        }
        for (number, mode) in [
            (0, Mode::Btp),
            (1, Mode::Brtp),
            (2, Mode::Brctp),
            (3, Mode::Transparent),
            (10, Mode::Tcp),
            (11, Mode::Udp),
            (12, Mode::Quic),
        ] {
            let config = Config { mode: number, ..Config::default() };
            assert_eq!(config.mode().unwrap(), mode);
            assert_eq!(config.transport().mode, mode);
        }
    }

    #[test]
    fn settings_that_the_mode_does_not_support_are_reported_if_they_were_set() {
        for mode in [0, 1, 2, 3, 10, 11, 12] {
            let config = Config { mode, ..Config::default() };
            assert_eq!(config.fallbacks(), [""; 0]);
            let fallback = |asked| {
                let lines = Config { congestion: Some(asked), ..config.clone() }.fallbacks();
                assert!(lines.len() <= 1, "{lines:?}");
                lines.first().cloned().unwrap_or_default()
            };
            for (asked, by_coded, by_quic) in [
                (Congestion::Bbr, "", ""),
                (Congestion::Bbrv2, "one BBR", "one BBR"),
                (Congestion::Bbrv3, "one BBR", "one BBR"),
                (Congestion::Gcc, "", "CUBIC"),
                (Congestion::None, "", "CUBIC"),
            ] {
                let expected = match mode {
                    3 | 11 => "no congestion control",
                    10 => "kernel",
                    12 => by_quic,
                    _ => by_coded,
                };
                let line = fallback(asked);
                assert!(line.contains(expected), "{mode} {asked:?}: '{line}'");
                assert_eq!(line.is_empty(), expected.is_empty(), "{mode} {asked:?}: '{line}'");
            }
            let off = Config { encryption: false, ..config.clone() }.fallbacks();
            assert_eq!(off.len(), usize::from(mode != 11), "{off:?}");
            let on = Config { encryption_requested: true, ..config }.fallbacks();
            assert_eq!(on.len(), usize::from(mode == 11), "{on:?}");
        }
    }

    #[test]
    fn the_preshared_key_is_used_and_not_printed() {
        let psk = Some(PresharedKey::new([0x5a; PresharedKey::LEN]));
        let config = Config { mode: 1, psk, ..Config::default() };
        assert!(config.transport().psk.is_some());
        let text = format!("{config} {config:?}");
        assert!(text.contains(", PSK"), "{text}");
        assert!(!text.contains("5a5a") && !text.contains("90, 90"), "{text}");
        assert!(!Config::default().to_string().contains("PSK"));
    }

    #[test]
    fn the_default_trust_of_a_call_counts_only_if_none_is_chosen() {
        let trust = |config: Config, default| {
            Arc::new(config).with_default_trust(default).unwrap().trust.clone().unwrap()
        };
        assert_eq!(
            trust(Config::default(), DefaultTrust::AnyCertificate),
            TrustPolicy::AnyCertificate
        );
        let udp = Config { mode: UDP, ..Config::default() };
        assert_eq!(trust(udp, DefaultTrust::KnownHosts), TrustPolicy::AnyCertificate);
        let chosen = TrustPolicy::KnownHosts(KnownHosts::new("/x"));
        let config = Config { trust: Some(chosen.clone()), ..Config::default() };
        assert_eq!(trust(config, DefaultTrust::AnyCertificate), chosen);
        assert!(Config::default().client_options().is_err(), "nothing is trusted by accident");
    }

    #[test]
    fn unusable_certificate_files_fall_back_to_the_certificate_of_the_process() {
        let config = Config { cert_file: "/nowhere".into(), ..Config::default() };
        let own = config.identity().unwrap().fingerprint();
        assert_eq!(Config::default().identity().unwrap().fingerprint(), own);
    }
}
