//! Termination signals, recorded in a flag so that a run can clean up.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static REQUESTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From now on SIGINT and SIGTERM set the flag instead of ending the process. So does SIGHUP, unless
/// it was ignored when the process began: `nohup` lets a run survive the end of a terminal.
pub(crate) fn watch() -> Result<()> {
    let signals = [SIGINT, SIGTERM, SIGHUP].into_iter();
    for signal in signals.filter(|signal| *signal != SIGHUP || !is_ignored(*signal)) {
        signal_hook::flag::register(signal, REQUESTED.clone())
            .context("cannot install the signal handler")?;
    }
    Ok(())
}

/// Whether the process ignores this signal.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Bit 0 is signal 1.
    let bit = u32::try_from(signal).ok().and_then(|signal| signal.checked_sub(1));
    let mask = bit.and_then(|bit| mask?.checked_shr(bit));
    mask.is_some_and(|mask| mask & 1 == 1)
}

/// Whether a signal has arrived.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Fails if a signal has arrived.
pub(crate) fn check() -> Result<()> {
    if requested() {
        bail!("interrupted");
    }
    Ok(())
}
