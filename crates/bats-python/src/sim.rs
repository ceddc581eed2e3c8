//! Simulations over an emulated link, in virtual time.

use std::time::Duration;

use bats_netem::{Jitter, LinkConfig, Loss};
use bats_proto::{CongestionAlgorithm, Mode, TransportConfig};
use bats_sim::links::FRAME_OVERHEAD;
use bats_sim::matrix::Cell;
use bats_sim::transfer::{Outcome, Transfer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::connection::stats_dict;
use crate::options::{congestion, goal};

/// Longest run in seconds: virtual time costs real time.
const MAX_DURATION: f64 = 3_600.0;

pub(crate) fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    match Duration::try_from_secs_f64(value) {
        Ok(duration) if value <= MAX_DURATION => Ok(duration),
        _ => Err(PyValueError::new_err(format!("{name} must be 0 to {MAX_DURATION} seconds"))),
    }
}

fn fraction(name: &str, value: f64) -> PyResult<f64> {
    if (0.0..=1.0).contains(&value) {
        return Ok(value);
    }
    Err(PyValueError::new_err(format!("{name} must be from 0 to 1")))
}

/// One direction of a link.
#[pyclass(frozen, module = "openbats.sim")]
pub(crate) struct Link {
    pub(crate) config: LinkConfig,
}

#[pymethods]
impl Link {
    /// `rate` in bits per second of Ethernet frames (`None`: unlimited), `queue` in bytes (`None`:
    /// unlimited), times in seconds, `loss` as a fraction, `burst` as the mean length of a loss
    /// burst in packets.
    #[new]
    #[pyo3(signature = (*, rate=None, queue=None, delay=0.0, jitter=0.0, reorder=false, loss=0.0,
                        burst=None, duplicate=0.0, corrupt=0.0, mtu=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python class")]
    fn new(
        rate: Option<u64>,
        queue: Option<usize>,
        delay: f64,
        jitter: f64,
        reorder: bool,
        loss: f64,
        burst: Option<f64>,
        duplicate: f64,
        corrupt: f64,
        mtu: Option<usize>,
    ) -> PyResult<Self> {
        let loss = fraction("loss", loss)?;
        let loss = match burst {
            _ if loss == 0.0 => Loss::None,
            None => Loss::Iid(loss),
            Some(burst) if burst.is_finite() && burst >= 1.0 && loss < 1.0 => {
                Loss::bursts(loss, burst)
            }
            Some(_) => return Err(PyValueError::new_err("burst must be 1 or more, loss below 1")),
        };
        if rate == Some(0) {
            return Err(PyValueError::new_err("rate must be more than 0"));
        }
        let amplitude = seconds("jitter", jitter)?;
        Ok(Self {
            config: LinkConfig {
                rate_bps: rate,
                queue_bytes: queue,
                delay: seconds("delay", delay)?,
                jitter: (!amplitude.is_zero()).then_some(Jitter { amplitude, reorder }),
                loss,
                duplicate: fraction("duplicate", duplicate)?,
                corrupt: fraction("corrupt", corrupt)?,
                mtu,
                frame_overhead: FRAME_OVERHEAD,
                ..LinkConfig::default()
            },
        })
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.config)
    }
}

fn samples<'py>(py: Python<'py>, outcome: &Outcome) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for sample in &outcome.samples {
        let row = stats_dict(py, &sample.sender)?;
        row.set_item("time", sample.time.as_secs_f64())?;
        row.set_item("delivered_bytes", sample.delivered)?;
        row.set_item("queue_bytes", sample.queue_bytes)?;
        row.set_item("link_offered_packets", sample.link.offered)?;
        row.set_item("link_lost_packets", sample.link.dropped_loss)?;
        row.set_item("link_queue_dropped_packets", sample.link.dropped_queue)?;
        list.append(row)?;
    }
    Ok(list)
}

fn outcome<'py>(py: Python<'py>, outcome: &Outcome) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let time = |time: bats_proto::Timestamp| {
        time.saturating_since(bats_proto::Timestamp::ZERO).as_secs_f64()
    };
    dict.set_item("established", outcome.established.map(time))?;
    dict.set_item("finished", outcome.finished.map(time))?;
    dict.set_item("messages", outcome.messages)?;
    dict.set_item("bytes", outcome.bytes)?;
    dict.set_item("closed", outcome.closed.as_ref().map(ToString::to_string))?;
    dict.set_item("receiver", stats_dict(py, &outcome.receiver)?)?;
    dict.set_item("samples", samples(py, outcome)?)?;
    let percentile = |percent| outcome.message_delays.percentile(percent).map(|d| d.as_secs_f64());
    dict.set_item("delay_p50", percentile(50.0))?;
    dict.set_item("delay_p99", percentile(99.0))?;
    Ok(dict)
}

/// Sends messages from one host to another over a link.
#[pyfunction]
#[pyo3(signature = (up, down, *, message_size, total_bytes, duration, seed, goal_name, mode,
                    congestion_name, bits_per_second))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
pub(crate) fn transfer<'py>(
    py: Python<'py>,
    up: &Link,
    down: &Link,
    message_size: usize,
    total_bytes: Option<u64>,
    duration: f64,
    seed: u64,
    goal_name: &str,
    mode: i64,
    congestion_name: &str,
    bits_per_second: Option<u64>,
) -> PyResult<Bound<'py, PyDict>> {
    let default = TransportConfig::default();
    if message_size == 0 || message_size > default.max_message_size {
        return Err(PyValueError::new_err(format!(
            "message_size must be 1 to {}",
            default.max_message_size
        )));
    }
    // A run ends with the first missing message, and other modes allow missing messages.
    let mode = match u8::try_from(mode).ok().and_then(Mode::from_number) {
        Some(mode @ (Mode::Brtp | Mode::Brctp)) => mode,
        _ => return Err(PyValueError::new_err("the simulator has modes 'brtp' and 'brctp'")),
    };
    let congestion = congestion(congestion_name, bits_per_second)?;
    if congestion == CongestionAlgorithm::None && up.config.rate_bps.is_none() {
        return Err(PyValueError::new_err("congestion='none' needs a link with a rate"));
    }
    let transfer = Transfer {
        up: up.config.clone(),
        down: down.config.clone(),
        transport: TransportConfig { mode, congestion, goal: goal(goal_name)?, ..default },
        message_size,
        message_interval: None,
        total_bytes,
        duration: seconds("duration", duration)?,
        sample_interval: Transfer::SAMPLE,
        changes: Vec::new(),
        seed,
    };
    let result = py.detach(|| transfer.run());
    outcome(py, &result)
}

/// A cell of a matrix from user input, with the same loss in both directions.
pub(crate) fn checked_cell(
    loss: f64,
    delay: f64,
    rate: u64,
    queue: f64,
    duration: f64,
    seed: u64,
) -> PyResult<Cell> {
    if rate == 0 || !(0.0..=1e4).contains(&queue) {
        return Err(PyValueError::new_err("rate must be more than 0, queue 0 to 10000 BDP"));
    }
    Ok(Cell {
        loss: fraction("loss", loss)?,
        delay: seconds("delay", delay)?,
        rate_bps: rate,
        queue,
        duration: seconds("duration", duration)?,
        congestion: CongestionAlgorithm::Ltcc,
        seed,
    })
}

/// Runs one cell of a matrix; returns its figures and samples.
#[pyfunction]
#[pyo3(signature = (*, loss, delay, rate, queue, duration, seed))]
pub(crate) fn cell<'py>(
    py: Python<'py>,
    loss: f64,
    delay: f64,
    rate: u64,
    queue: f64,
    duration: f64,
    seed: u64,
) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyList>)> {
    let cell = checked_cell(loss, delay, rate, queue, duration, seed)?;
    let (figures, outcome) = py.detach(|| cell.run());
    let dict = PyDict::new(py);
    for (name, value) in [
        ("loss_percent", Some(figures.loss_percent)),
        ("delay_ms", Some(figures.delay_ms)),
        ("rate_mbps", Some(figures.rate_mbps)),
        ("goodput_mbps_10s", Some(figures.goodput_mbps_10s)),
        ("goodput_mbps_steady", Some(figures.goodput_mbps_steady)),
        ("e_10s", Some(figures.e_10s)),
        ("e_steady", Some(figures.e_steady)),
        ("waste_percent", Some(figures.waste_percent)),
        ("queue_loss_percent", Some(figures.queue_loss_percent)),
        ("queue_loss_first_second_percent", Some(figures.queue_loss_first_second_percent)),
        ("queue_bdp", Some(figures.queue_bdp)),
        ("rounds_to_rate", figures.rounds_to_rate),
        ("delay_p50_ms", figures.delay_p50_ms),
        ("delay_p95_ms", figures.delay_p95_ms),
        ("delay_p99_ms", figures.delay_p99_ms),
        ("network_delay_p50_ms", figures.network_delay_p50_ms),
        ("network_delay_p95_ms", figures.network_delay_p95_ms),
        ("network_delay_p99_ms", figures.network_delay_p99_ms),
    ] {
        dict.set_item(name, value)?;
    }
    Ok((dict, samples(py, &outcome)?))
}
