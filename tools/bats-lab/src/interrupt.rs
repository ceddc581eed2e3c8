//! Ctrl-C and its kin: noted, so that whoever works can clean up.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Notes interrupt, termination and hang-up from now on instead of dying of them.
pub(crate) fn watch() -> Result<()> {
    ctrlc::set_handler(|| REQUESTED.store(true, Ordering::Relaxed))
        .context("cannot watch for interrupts")
}

/// Whether there was one.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Fails if there was one.
pub(crate) fn check() -> Result<()> {
    if requested() {
        bail!("interrupted");
    }
    Ok(())
}
