//! Simulations of end-to-end sessions over relays and of multipath, in virtual time.

use std::time::Duration;

use bats_netem::LinkConfig;
use bats_sim::hops::Hops;
use bats_sim::matrix::Cell;
use bats_sim::paths::{Cut, Paths};
use bats_sim::relay_network::RelayNetwork;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::ConnectError;
use crate::sim::{Link, checked_cell, seconds};

/// Limit of links in a row.
const MAX_HOPS: usize = 64;
/// Limit of parallel paths: the relay's limit of routes to one destination.
const MAX_PATHS: usize = bats_proto::relay::MAX_PATHS;
/// Limit of all links; each uses its own address prefix in the simulator.
const MAX_LINKS: usize = 256;

fn links_failed() -> PyErr {
    ConnectError::new_err("the links do not come up within 30 s of virtual time")
}

/// A ratio, or `None` if the divisor is 0.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// Runs one line of relays. `lossless` is the goodput in Mbit/s of one hop without loss; if it is
/// not given, it is measured first.
#[pyfunction]
#[pyo3(signature = (*, hops, loss, delay, rate, queue, recoding, duration, seed, lossless=None))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
pub(crate) fn hops<'py>(
    py: Python<'py>,
    hops: usize,
    loss: f64,
    delay: f64,
    rate: u64,
    queue: f64,
    recoding: bool,
    duration: f64,
    seed: u64,
    lossless: Option<f64>,
) -> PyResult<Bound<'py, PyDict>> {
    if !(1..=MAX_HOPS).contains(&hops) {
        return Err(PyValueError::new_err(format!("hops must be 1 to {MAX_HOPS}")));
    }
    let cell = checked_cell(loss, delay, rate, queue, duration, seed)?;
    let run = Hops::new(hops, cell, recoding);
    let run_line = |run: &Hops| {
        let config = run.network_config();
        let back = config.links.clone();
        let mut network = RelayNetwork::asymmetric(config, &back)?;
        Some(run.run_on(&mut network, |_, _| {}))
    };
    let figures = py.detach(|| {
        let lossless = match lossless {
            Some(known) => known,
            None => run_line(&Hops::new(1, Cell { loss: 0.0, ..cell }, true))?.goodput(),
        };
        Some((run.figures(&run_line(&run)?, lossless), lossless))
    });
    let (figures, lossless) = figures.ok_or_else(links_failed)?;
    let dict = PyDict::new(py);
    dict.set_item("hops", figures.hops)?;
    dict.set_item("loss_percent", figures.loss_percent)?;
    dict.set_item("recoding", figures.recoding)?;
    for (name, value) in [
        ("goodput_mbps", Some(figures.goodput_mbps)),
        ("bound_mbps", Some(figures.bound_mbps)),
        ("share", finite(figures.share)),
        ("forwarding_mbps", Some(figures.forwarding_mbps)),
        ("lossless_mbps", Some(lossless)),
        ("handshake_ms", figures.handshake_ms),
        ("end_repairs_percent", Some(figures.end_repairs_percent)),
        ("useless_percent", Some(figures.non_innovative_percent)),
        ("relay_kib", Some(figures.relay_kib)),
    ] {
        dict.set_item(name, value)?;
    }
    dict.set_item("batches_lost", figures.batches_lost)?;
    Ok(dict)
}

/// The links of parallel paths and the nodes that they connect: 0 is the source, the last number
/// the destination.
fn edges(paths: &[Vec<LinkConfig>]) -> Vec<(usize, usize, LinkConfig)> {
    let relays = paths.iter().map(|path| path.len() - 1).sum::<usize>();
    let mut links = Vec::new();
    let mut next = 1;
    for path in paths {
        let mut from = 0;
        for (index, link) in path.iter().enumerate() {
            let to = if index + 1 == path.len() { relays + 1 } else { next };
            next += usize::from(index + 1 < path.len());
            links.push((from, to, link.clone()));
            from = to;
        }
    }
    links
}

fn check(paths: &[Vec<LinkConfig>]) -> PyResult<()> {
    let invalid = |text: String| Err(PyValueError::new_err(text));
    let length = paths.first().map_or(0, Vec::len);
    if paths.len() > MAX_PATHS || !(1..=MAX_HOPS).contains(&length) {
        return invalid(format!("paths must be 1 to {MAX_PATHS} of 1 to {MAX_HOPS} links each"));
    }
    if paths.iter().any(|path| path.len() != length) {
        return invalid("all paths need equally many links: only shortest routes are used".into());
    }
    if paths.len() * length > MAX_LINKS {
        return invalid(format!("all paths together can have at most {MAX_LINKS} links"));
    }
    if paths.iter().flatten().any(|link| link.rate_bps.is_none()) {
        return invalid("each link needs a rate, because the bound depends on it".into());
    }
    Ok(())
}

/// Runs a session over several paths. `cut` is (the path whose first link fails, when it fails,
/// when it works again), in seconds.
#[pyfunction]
#[pyo3(signature = (paths, *, cut, duration, seed))]
pub(crate) fn paths<'py>(
    py: Python<'py>,
    paths: Vec<Vec<PyRef<'py, Link>>>,
    cut: Option<(usize, f64, Option<f64>)>,
    duration: f64,
    seed: u64,
) -> PyResult<Bound<'py, PyDict>> {
    let paths: Vec<Vec<LinkConfig>> =
        paths.iter().map(|path| path.iter().map(|link| link.config.clone()).collect()).collect();
    check(&paths)?;
    let length = paths.first().map_or(0, Vec::len);
    let cut = match cut {
        None => None,
        Some((path, ..)) if path >= paths.len() => {
            return Err(PyValueError::new_err(format!("there is no path {path} to cut")));
        }
        Some((path, at, until)) => {
            let until: Option<Duration> = until.map(|time| seconds("until", time)).transpose()?;
            Some(Cut { link: path * length, at: seconds("at", at)?, until })
        }
    };
    let run = Paths {
        name: "",
        links: edges(&paths),
        is_direct: false,
        cut,
        duration: seconds("duration", duration)?,
        seed,
    };
    let figures = py.detach(|| run.try_run()).ok_or_else(links_failed)?;
    let dict = PyDict::new(py);
    dict.set_item("paths", paths.len())?;
    for (name, value) in [
        ("goodput_mbps", Some(figures.goodput_mbps)),
        ("bound_mbps", Some(figures.bound_mbps)),
        ("share", finite(figures.share)),
        ("longest_gap_ms", Some(figures.longest_gap_ms)),
        ("end_repairs_percent", Some(figures.end_repairs_percent)),
        ("useless_percent", Some(figures.non_innovative_percent)),
    ] {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}
