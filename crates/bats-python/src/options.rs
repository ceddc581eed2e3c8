//! Options of endpoints and connections from the keyword arguments of Python.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::time::Duration;

use openbats::{CongestionAlgorithm, Goal, KnownHosts, Mode, PresharedKey, TransportConfig, Trust};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::UnsupportedMode;

/// Options from the keyword arguments of `connect` and `listen`.
#[derive(FromPyObject)]
pub(crate) struct Options {
    #[pyo3(item)]
    mode: i64,
    #[pyo3(item)]
    congestion: String,
    #[pyo3(item)]
    rate: Option<u64>,
    #[pyo3(item)]
    goal: String,
    #[pyo3(item)]
    deadline: f64,
    #[pyo3(item)]
    idle_timeout: f64,
    #[pyo3(item)]
    keep_alive: Option<f64>,
    #[pyo3(item)]
    max_message_size: Option<usize>,
    #[pyo3(item)]
    compression: Option<i32>,
    #[pyo3(item)]
    pub(crate) quic_datagrams: bool,
    #[pyo3(item)]
    closed_key: Option<Vec<u8>>,
    #[pyo3(item)]
    send_budget: Option<usize>,
    #[pyo3(item)]
    receive_budget: Option<usize>,
    #[pyo3(item)]
    memory_budget: Option<u64>,
    #[pyo3(item)]
    channels: Option<u32>,
}

pub(crate) fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    match Duration::try_from_secs_f64(value) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(PyValueError::new_err(format!("{name} must be a positive number of seconds"))),
    }
}

pub(crate) fn goal(name: &str) -> PyResult<Goal> {
    match name {
        "latency" => Ok(Goal::Latency),
        "balanced" => Ok(Goal::Balanced),
        "throughput" => Ok(Goal::Throughput),
        other => Err(PyValueError::new_err(format!(
            "goal must be 'latency', 'balanced' or 'throughput', not '{other}'"
        ))),
    }
}

/// A congestion controller by name; `fixed` needs a rate in bits per second.
pub(crate) fn congestion(name: &str, rate: Option<u64>) -> PyResult<CongestionAlgorithm> {
    match (name, rate) {
        ("ltcc" | "bbr", None) => Ok(CongestionAlgorithm::Ltcc),
        ("bbr3", None) => Ok(CongestionAlgorithm::Bbr3),
        ("cubic", None) => Ok(CongestionAlgorithm::Cubic),
        ("gcc", None) => Ok(CongestionAlgorithm::Gcc),
        ("none", None) => Ok(CongestionAlgorithm::None),
        ("fixed", Some(0)) => Err(PyValueError::new_err("rate must be more than 0")),
        ("fixed", Some(bits_per_second)) => Ok(CongestionAlgorithm::FixedRate { bits_per_second }),
        ("fixed", None) => Err(PyValueError::new_err("'fixed' needs a rate")),
        ("ltcc" | "bbr" | "bbr3" | "cubic" | "gcc" | "none", Some(_)) => {
            Err(PyValueError::new_err("a rate goes with congestion='fixed' only"))
        }
        (other, _) => Err(PyValueError::new_err(format!(
            "congestion must be 'ltcc', 'bbr3', 'cubic', 'gcc', 'fixed' or 'none', not '{other}'"
        ))),
    }
}

/// Refuses a controller that the mode does not support. The default is always accepted.
fn check_congestion(mode: Mode, name: &str) -> PyResult<()> {
    let (mode, has) = match (mode, name) {
        (_, "ltcc" | "bbr") | (Mode::Quic, "cubic") | (Mode::Transparent | Mode::Udp, "none") => {
            return Ok(());
        }
        (Mode::Tcp, _) => ("tcp", "the kernel's congestion control"),
        (Mode::Quic, _) => ("quic", "'bbr' and 'cubic'"),
        (Mode::Transparent, _) => ("transparent", "no congestion control"),
        (Mode::Udp, _) => ("udp", "no congestion control"),
        _ => return Ok(()),
    };
    Err(PyValueError::new_err(format!(
        "mode {mode} has {has}: congestion='{name}' is for modes 'btp', 'brtp' and 'brctp'{}",
        if name == "cubic" { ", and for 'quic'" } else { "" }
    )))
}

impl Options {
    pub(crate) fn endpoint_builder(&self) -> openbats::Builder {
        let builder = openbats::Endpoint::builder();
        match self.memory_budget {
            Some(bytes) => builder.memory_budget(bytes),
            None => builder,
        }
    }

    /// Whether the connection's mode is UDP.
    pub(crate) fn is_mode_udp(&self) -> bool {
        u8::try_from(self.mode).ok().and_then(Mode::from_number) == Some(Mode::Udp)
    }

    pub(crate) fn compression(&self) -> PyResult<Option<i32>> {
        match self.compression {
            Some(level) if !(1..=19).contains(&level) => Err(PyValueError::new_err(format!(
                "compression is a level of 1 to 19, not {level}"
            ))),
            level => Ok(level),
        }
    }

    fn closed_key(&self) -> PyResult<Option<PresharedKey>> {
        let Some(bytes) = &self.closed_key else { return Ok(None) };
        let bytes = bytes.as_slice().try_into().map_err(|_| {
            let length = bytes.len();
            PyValueError::new_err(format!(
                "closed_key must have {} bytes, not {length}: secrets.token_bytes(32) makes one",
                PresharedKey::LEN
            ))
        })?;
        Ok(Some(PresharedKey::new(bytes)))
    }

    pub(crate) fn transport(&self) -> PyResult<TransportConfig> {
        let Some(mode) = u8::try_from(self.mode).ok().and_then(Mode::from_number) else {
            return Err(UnsupportedMode::new_err(format!(
                "mode {} is not available in this version of the Python package; use 'btp', \
                 'brtp', 'brctp', 'transparent', 'tcp', 'udp' or 'quic'",
                self.mode
            )));
        };
        let congestion = congestion(&self.congestion, self.rate)?;
        check_congestion(mode, &self.congestion)?;
        let default = TransportConfig::default();
        let transport = TransportConfig {
            mode,
            psk: self.closed_key()?,
            deadline: seconds("deadline", self.deadline)?,
            congestion,
            goal: goal(&self.goal)?,
            idle_timeout: seconds("idle_timeout", self.idle_timeout)?,
            keep_alive: self.keep_alive.map(|value| seconds("keep_alive", value)).transpose()?,
            max_message_size: self.max_message_size.unwrap_or(default.max_message_size),
            send_budget: self.send_budget.unwrap_or(default.send_budget),
            receive_budget: self.receive_budget.unwrap_or(default.receive_budget),
            channels: self.channels,
            ..default
        };
        transport.check_psk_modes().map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(transport)
    }
}

/// Whom to trust: `fingerprint` and the accepted ones, `authorities` and a PEM file, `known_hosts` and
/// a file (none: that of the user), or `insecure`.
pub(crate) fn trust(kind: &str, values: &[String]) -> PyResult<Trust> {
    let wrong = |error: openbats::IdentityError| PyValueError::new_err(error.to_string());
    match (kind, values) {
        ("fingerprint", values) => {
            let parsed: Result<Vec<_>, _> = values.iter().map(|value| value.parse()).collect();
            Ok(Trust::fingerprints(parsed.map_err(wrong)?))
        }
        ("authorities", [path]) => Trust::authorities(path).map_err(wrong),
        ("known_hosts", [path]) => Ok(Trust::known_hosts(KnownHosts::new(path))),
        ("known_hosts", []) => match KnownHosts::of_user() {
            Some(known_hosts) => Ok(Trust::known_hosts(known_hosts)),
            None => Err(PyValueError::new_err(
                "there is no home directory for the file of known servers: use known_hosts='file', \
                 fingerprint='...', authorities='file.pem' or insecure=True",
            )),
        },
        ("insecure", []) => Ok(Trust::dangerous_any()),
        (other, _) => Err(PyValueError::new_err(format!("unknown kind of trust: {other}"))),
    }
}
