//! Ctrl-C and its kin end a test in order.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use openbats::Endpoint;

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// From now on an interrupt, termination or hang-up shuts these endpoints down.
pub(crate) fn shuts_down(endpoints: Vec<Endpoint>) -> Result<()> {
    ctrlc::set_handler(move || {
        REQUESTED.store(true, Ordering::Relaxed);
        for endpoint in &endpoints {
            endpoint.shut_down(1, "interrupted");
        }
    })
    .context("cannot watch for interrupts")
}

/// Whether there was one.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}
