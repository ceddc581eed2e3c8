//! `bats_config_*`: what a program asks for, and what becomes of it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use openbats::{
    ClientOptions, ClosedKey, CongestionAlgorithm, Fingerprint, Identity, Mode, ServerOptions,
    TransportConfig, Trust,
};

use crate::event::{Code, Failure};

/// The original's default.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);
/// Numbers below this can only be meant as seconds.
const LEAST_MILLISECONDS: i32 = 100;
/// For links that are faster than discs.
const COMPRESSION_LEVEL: i32 = 1;
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

/// Whom a client believes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Believed {
    Anyone,
    Fingerprint(Fingerprint),
    /// A PEM file of certificate authorities.
    Authorities(String),
}

/// Everything that can be set. Unusable values are kept until they are used, so that the error
/// comes from the call that fails.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) mode: i32,
    /// `None` until the program chooses.
    pub(crate) congestion: Option<Congestion>,
    pub(crate) timeout: Duration,
    pub(crate) local_addr: String,
    pub(crate) local_port: i32,
    pub(crate) remote_addr: String,
    pub(crate) remote_port: i32,
    pub(crate) cert_file: String,
    pub(crate) key_file: String,
    pub(crate) compression: bool,
    pub(crate) encryption: bool,
    /// Encryption was asked for, and is not only the default.
    pub(crate) encryption_wanted: bool,
    /// Mode 12: messages as datagrams.
    pub(crate) quic_datagrams: bool,
    /// Modes without repetition: what a message is worth something for.
    pub(crate) deadline: Option<Duration>,
    pub(crate) frame_type: i32,
    pub(crate) believed: Believed,
    /// Modes 0 to 3: both ends have this key, and answer nobody else.
    pub(crate) closed: Option<ClosedKey>,
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
            compression: false,
            encryption: true,
            encryption_wanted: false,
            quic_datagrams: false,
            deadline: None,
            frame_type: 0,
            believed: Believed::Anyone,
            closed: None,
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
        if self.quic_datagrams {
            write!(f, ", datagrams of QUIC")?;
        }
        if self.closed.is_some() {
            write!(f, ", closed")?;
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
    /// Milliseconds; the original leaves the unit open and its programs use both.
    pub(crate) fn set_timeout(&mut self, timeout: i32) {
        self.timeout = match u64::try_from(timeout) {
            Ok(milliseconds) if timeout >= LEAST_MILLISECONDS => {
                Duration::from_millis(milliseconds)
            }
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

    /// Says what was asked for and does not happen.
    pub(crate) fn warn_of_fallbacks(&self) {
        for warning in self.fallbacks() {
            tracing::warn!("{warning}");
        }
    }

    /// What was asked for and does not happen, a line for each.
    fn fallbacks(&self) -> Vec<String> {
        let mode = format!("mode {} ({})", self.mode, mode_name(self.mode));
        let congestion = self.congestion.and_then(|asked| self.congestion_fallback(asked));
        let mut lines: Vec<_> =
            congestion.map(|line| format!("{mode} {line}")).into_iter().collect();
        if self.compression && self.mode == UDP {
            lines.push(format!(
                "{mode} has no handshake to agree on compression by: messages go as they are"
            ));
        }
        if self.quic_datagrams && self.mode != QUIC {
            lines.push(format!("datagrams are an option of mode 12 (QUIC): {mode} has none"));
        }
        if !self.encryption && self.mode != UDP {
            lines.push(format!("{mode} is always encrypted: only mode 11 (UDP) is not"));
        }
        if self.encryption_wanted && self.mode == UDP {
            lines.push(format!("{mode} is never encrypted: all other modes are"));
        }
        lines
    }

    /// What becomes of a congestion control that the mode does not have.
    fn congestion_fallback(&self, asked: Congestion) -> Option<String> {
        let has = match self.mode {
            TRANSPARENT | UDP => "has no congestion control",
            TCP => "has the congestion control of the kernel's TCP",
            QUIC if matches!(asked, Congestion::None | Congestion::Gcc) => {
                "has BBR and CUBIC for congestion control, and takes CUBIC"
            }
            _ if matches!(asked, Congestion::Bbrv2 | Congestion::Bbrv3) => {
                "has one BBR only for congestion control, and takes that"
            }
            _ => return None,
        };
        Some(format!("{has}: {asked:?} was asked for"))
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
                Congestion::Bbr | Congestion::Bbrv2 | Congestion::Bbrv3 => CongestionAlgorithm::Bbr,
            },
            mode: self.mode().unwrap_or_default(),
            idle_timeout: self.timeout,
            deadline: self.deadline.unwrap_or(default.deadline),
            closed: self.closed.clone(),
            ..default
        }
    }

    pub(crate) fn client_options(&self) -> Result<ClientOptions, Failure> {
        let trust = match &self.believed {
            Believed::Anyone => {
                say_once_that_anyone_is_believed();
                Trust::dangerous_any()
            }
            Believed::Fingerprint(fingerprint) => Trust::fingerprint(*fingerprint),
            Believed::Authorities(path) => Trust::authorities(path)
                .map_err(|error| Failure::new(Code::ConnectFailed, error.to_string()))?,
        };
        let options = ClientOptions::new(trust)
            .transport(self.transport())
            .quic_datagrams(self.quic_datagrams && self.mode == QUIC);
        Ok(if self.compresses() { options.compression(COMPRESSION_LEVEL) } else { options })
    }

    /// Mode 11 has no handshake to agree on it by.
    fn compresses(&self) -> bool {
        self.compression && self.mode != UDP
    }

    pub(crate) fn server_options(&self) -> Result<ServerOptions, Failure> {
        let options = ServerOptions::new(self.identity()?)
            .transport(self.transport())
            .quic_datagrams(self.quic_datagrams && self.mode == QUIC);
        Ok(if self.compresses() { options.compression(COMPRESSION_LEVEL) } else { options })
    }

    /// The certificate of the files; without usable ones, one made for this process.
    pub(crate) fn identity(&self) -> Result<Identity, Failure> {
        if !self.cert_file.is_empty() || !self.key_file.is_empty() {
            match Identity::from_pem_files(&self.cert_file, &self.key_file) {
                Ok(identity) => return Ok(identity),
                Err(error) => {
                    tracing::warn!(%error, "showing a certificate made for this process instead");
                }
            }
        }
        let failed =
            |error: openbats::IdentityError| Failure::new(Code::ListenFailed, error.to_string());
        process_identity().map_err(failed)
    }

    /// The local address for a client; `None` for any.
    pub(crate) fn client_address(&self) -> Result<Option<SocketAddr>, Failure> {
        let port = port(self.local_port)?;
        match (self.local_addr.is_empty(), port) {
            (true, 0) => Ok(None),
            (true, port) => Ok(Some((Ipv6Addr::UNSPECIFIED, port).into())),
            (false, port) => Ok(Some((local_ip(&self.local_addr)?, port).into())),
        }
    }
}

/// A local address is one of this host, never a name to be asked for.
pub(crate) fn local_ip(text: &str) -> Result<IpAddr, Failure> {
    match text {
        "localhost" => Ok([127, 0, 0, 1].into()),
        _ => text
            .parse()
            .map_err(|_| Failure::invalid(format!("'{text}' is not an address of this host"))),
    }
}

/// One certificate for all listeners of the process, so that it can be pinned.
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
    let identity = Identity::generate(&["localhost"])?;
    tracing::info!(fingerprint = %identity.fingerprint(), "made a certificate for this process");
    Ok(IDENTITY.get_or_init(|| identity).clone())
}

pub(crate) fn say_once_that_anyone_is_believed() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        tracing::warn!(
            "clients of this process believe any certificate; \
             openbats_config_set_trusted_fingerprint pins the server's"
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_time_outs_are_seconds_and_none_is_the_default() {
        let mut config = Config::default();
        for (given, meant) in [
            (2_000, 2_000),
            (100, 100),
            (99, 99_000),
            (2, 2_000),
            (0, 2_000),
            (-1, 2_000),
            (1_000_000, 1_000_000),
        ] {
            config.set_timeout(given);
            assert_eq!(config.timeout.as_millis(), meant, "{given}");
        }
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
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
    fn what_a_mode_does_not_have_is_said_if_it_was_asked_for() {
        for mode in [0, 1, 2, 3, 10, 11, 12] {
            let config = Config { mode, ..Config::default() };
            assert_eq!(config.fallbacks(), [""; 0]);
            let said = |asked| {
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
                let line = said(asked);
                assert!(line.contains(expected), "{mode} {asked:?}: '{line}'");
                assert_eq!(line.is_empty(), expected.is_empty(), "{mode} {asked:?}: '{line}'");
            }
            let off = Config { encryption: false, ..config.clone() }.fallbacks();
            assert_eq!(off.len(), usize::from(mode != 11), "{off:?}");
            let on = Config { encryption_wanted: true, ..config }.fallbacks();
            assert_eq!(on.len(), usize::from(mode == 11), "{on:?}");
        }
    }

    #[test]
    fn the_key_of_closed_mode_is_used_and_not_told() {
        let closed = Some(ClosedKey::new([0x5a; ClosedKey::LEN]));
        let config = Config { mode: 1, closed, ..Config::default() };
        assert!(config.transport().closed.is_some());
        let told = format!("{config} {config:?}");
        assert!(told.contains(", closed"), "{told}");
        assert!(!told.contains("5a5a") && !told.contains("90, 90"), "{told}");
        assert!(!Config::default().to_string().contains("closed"));
    }

    #[test]
    fn unusable_certificate_files_fall_back_to_the_certificate_of_the_process() {
        let config = Config { cert_file: "/nowhere".into(), ..Config::default() };
        let own = config.identity().unwrap().fingerprint();
        assert_eq!(Config::default().identity().unwrap().fingerprint(), own);
    }
}
