//! Sessions across relays and over several ways, in virtual time.

use std::time::Duration;

use bats_netem::LinkConfig;
use bats_sim::hops::Hops;
use bats_sim::line::Line;
use bats_sim::matrix::Cell;
use bats_sim::paths::{Cut, Paths};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::ConnectError;
use crate::sim::{Link, checked_cell, seconds};

/// Most links one after the other.
const MOST_HOPS: usize = 64;
/// Most ways side by side: so many routes a node has to one destination.
const MOST_WAYS: usize = bats_proto::relay::MAX_PATHS;
/// Most links in all; each is an Ethernet of its own in the addresses of the simulator.
const MOST_LINKS: usize = 256;

fn never_up() -> PyErr {
    ConnectError::new_err("the links do not come up within 30 s of virtual time")
}

/// A ratio, unless there is nothing to compare with.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// The figures of one line. Without `lossless`, the goodput of one hop without loss in Mbit/s, that
/// is measured first.
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
    if !(1..=MOST_HOPS).contains(&hops) {
        return Err(PyValueError::new_err(format!("hops must be 1 to {MOST_HOPS}")));
    }
    let cell = checked_cell(loss, delay, rate, queue, duration, seed)?;
    let run = Hops::new(hops, cell, recoding);
    let carried = |run: &Hops| {
        let config = run.line();
        let back = config.links.clone();
        let mut line = Line::with_back(config, &back)?;
        Some(run.run_on(&mut line, |_, _| {}))
    };
    let figures = py.detach(|| {
        let lossless = match lossless {
            Some(known) => known,
            None => carried(&Hops::new(1, Cell { loss: 0.0, ..cell }, true))?.goodput(),
        };
        Some((run.figures(&carried(&run)?, lossless), lossless))
    });
    let (figures, lossless) = figures.ok_or_else(never_up)?;
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
        ("useless_percent", Some(figures.useless_percent)),
        ("relay_kib", Some(figures.relay_kib)),
    ] {
        dict.set_item(name, value)?;
    }
    dict.set_item("batches_lost", figures.batches_lost)?;
    Ok(dict)
}

/// The links of ways side by side and the nodes they join: 0 is the source, the last number the
/// destination.
fn edges(ways: &[Vec<LinkConfig>]) -> Vec<(usize, usize, LinkConfig)> {
    let relays = ways.iter().map(|way| way.len() - 1).sum::<usize>();
    let mut links = Vec::new();
    let mut next = 1;
    for way in ways {
        let mut from = 0;
        for (index, link) in way.iter().enumerate() {
            let to = if index + 1 == way.len() { relays + 1 } else { next };
            next += usize::from(index + 1 < way.len());
            links.push((from, to, link.clone()));
            from = to;
        }
    }
    links
}

fn check(ways: &[Vec<LinkConfig>]) -> PyResult<()> {
    let wrong = |text: String| Err(PyValueError::new_err(text));
    let length = ways.first().map_or(0, Vec::len);
    if ways.len() > MOST_WAYS || !(1..=MOST_HOPS).contains(&length) {
        return wrong(format!("1 to {MOST_WAYS} ways of 1 to {MOST_HOPS} links each"));
    }
    if ways.iter().any(|way| way.len() != length) {
        return wrong("all ways need as many links: routes lead over the shortest only".into());
    }
    if ways.len() * length > MOST_LINKS {
        return wrong(format!("at most {MOST_LINKS} links in all"));
    }
    if ways.iter().flatten().any(|link| link.rate_bps.is_none()) {
        return wrong("each link needs a rate: the bound is made of them".into());
    }
    Ok(())
}

/// The figures of a session over several ways; `cut` is a way whose first link ends, and when, and
/// when it carries again.
#[pyfunction]
#[pyo3(signature = (ways, *, cut, duration, seed))]
pub(crate) fn paths<'py>(
    py: Python<'py>,
    ways: Vec<Vec<PyRef<'py, Link>>>,
    cut: Option<(usize, f64, Option<f64>)>,
    duration: f64,
    seed: u64,
) -> PyResult<Bound<'py, PyDict>> {
    let ways: Vec<Vec<LinkConfig>> =
        ways.iter().map(|way| way.iter().map(|link| link.config.clone()).collect()).collect();
    check(&ways)?;
    let length = ways.first().map_or(0, Vec::len);
    let cut = match cut {
        None => None,
        Some((way, ..)) if way >= ways.len() => {
            return Err(PyValueError::new_err(format!("there is no way {way} to cut")));
        }
        Some((way, at, until)) => {
            let until: Option<Duration> = until.map(|time| seconds("until", time)).transpose()?;
            Some(Cut { link: way * length, at: seconds("at", at)?, until })
        }
    };
    let run = Paths {
        name: "",
        links: edges(&ways),
        cut,
        duration: seconds("duration", duration)?,
        seed,
    };
    let figures = py.detach(|| run.try_run()).ok_or_else(never_up)?;
    let dict = PyDict::new(py);
    dict.set_item("ways", ways.len())?;
    for (name, value) in [
        ("goodput_mbps", Some(figures.goodput_mbps)),
        ("bound_mbps", Some(figures.bound_mbps)),
        ("share", finite(figures.share)),
        ("longest_gap_ms", Some(figures.longest_gap_ms)),
        ("end_repairs_percent", Some(figures.end_repairs_percent)),
        ("useless_percent", Some(figures.useless_percent)),
    ] {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}
